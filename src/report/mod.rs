//! Terminal and SVG output: tables, units, progress, charts.
mod axis;
mod chart;
mod printable;
mod progress;
mod svg;
mod table;
mod tensorboard;
mod textplot;
mod timings;
pub mod units;

pub use axis::Scale;
pub use chart::{Chart, Series, Stroke};
pub use printable::printable;
pub use progress::{Progress, Screen};
pub use svg::svg;
pub use tensorboard::EventFile;
pub use table::{Column, Table};
pub use textplot::{Glyphs, TextSize, text_plot};
pub use timings::{Pass, Spread, Timings};
