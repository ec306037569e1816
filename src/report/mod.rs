//! Terminal and SVG output: tables, units, progress, charts.
mod axis;
mod chart;
pub(crate) mod html;
mod printable;
mod progress;
mod resident;
mod svg;
mod table;
mod tensorboard;
mod textplot;
mod timings;
pub(crate) mod units;

pub(crate) use axis::Scale;
pub(crate) use chart::{Chart, Series, Stroke, short};
pub(crate) use printable::printable;
pub(crate) use progress::Progress;
pub(crate) use resident::Resident;
pub(crate) use svg::svg;
pub(crate) use table::Table;
pub(crate) use tensorboard::EventFile;
pub(crate) use textplot::{Glyphs, text_plot};
pub(crate) use timings::{Pass, Spread, Timings};
