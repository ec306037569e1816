//! A chart in a page: SVG, a legend, and the data that the page's script shows under the pointer.
use std::fmt::Write;

use serde::Serialize;

use crate::report::axis::Axis;
use crate::report::svg::{Frame, escape, path, tenth, thinned};
use crate::report::{Chart, Series, short};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const FRAME: Frame = Frame { left: 56.0, right: WIDTH - 14.0, top: 12.0, bottom: HEIGHT - 30.0 };
/// Number of colors of the style sheet.
const COLORS: usize = 8;

/// A curve with its look.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    pub(crate) series: Series,
    /// Index of the color.
    pub(crate) color: usize,
    /// Dashed: a curve of the second run.
    pub(crate) dashed: bool,
}

/// A chart of curves over the steps.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) curves: Vec<Curve>,
}

/// What the script reads: the axes, and every point of every curve.
#[derive(Debug, Serialize)]
pub(super) struct FigureData {
    frame: [f64; 4],
    x: [f64; 2],
    y: [f64; 2],
    curves: Vec<CurveData>,
}

#[derive(Debug, Serialize)]
struct CurveData {
    name: String,
    x: Vec<f64>,
    y: Vec<f64>,
}

/// Appends to a string, which cannot fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => { writeln!($out, $($text)*).expect("a string takes every write") };
}

impl Figure {
    /// The markup of the figure with this number.
    pub(super) fn markup(&self, number: usize) -> String {
        let axes = self.axes();
        let mut out = String::new();
        let title = escape(&self.title);
        put!(out, r#"<figure class="chart" id="chart-{number}" tabindex="0">"#);
        put!(out, r#"<figcaption><span class="name">{title}</span><span class="at"></span></figcaption>"#);
        put!(out, r#"<div class="legend">"#);
        for (at, curve) in self.curves.iter().enumerate() {
            let (name, last) = (escape(&curve.series.name), curve.series.points.last());
            let value = last.map_or("none".to_string(), |point| short(point.1));
            let note = curve.series.smoothing().map(|n| format!(" <small>(line: mean of {n})</small>"));
            let look = curve.look();
            put!(
                out,
                r#"<button type="button" class="{look}" data-curve="{at}"><i></i>{name}{} <b>{value}</b></button>"#,
                note.unwrap_or_default()
            );
        }
        put!(out, "</div>");
        put!(out, r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">"#);
        grid(&mut out, &axes);
        for (at, curve) in self.curves.iter().enumerate() {
            draw(&mut out, curve, at, &axes);
        }
        put!(out, r#"<path class="cross" d="M0 {}V{}"></path>"#, FRAME.top, FRAME.bottom);
        put!(out, "</svg>\n</figure>");
        out
    }

    /// The data of the figure.
    pub(super) fn data(&self) -> FigureData {
        let (x, y) = self.axes();
        let curve = |curve: &Curve| {
            let points = curve.series.finite();
            CurveData {
                name: curve.series.name.clone(),
                x: points.iter().map(|point| point.0).collect(),
                y: points.iter().map(|point| six_digits(point.1)).collect(),
            }
        };
        FigureData {
            frame: [FRAME.left, FRAME.right, FRAME.top, FRAME.bottom],
            x: x.ends(),
            y: y.ends(),
            curves: self.curves.iter().map(curve).collect(),
        }
    }

    fn axes(&self) -> (Axis, Axis) {
        let series = self.curves.iter().map(|curve| curve.series.clone()).collect();
        let chart = Chart::of(String::new(), series);
        (chart.x_axis(), chart.y_axis())
    }
}

impl Curve {
    /// The classes of the curve.
    fn look(&self) -> String {
        let dash = if self.dashed { " dashed" } else { "" };
        format!("c{}{dash}", self.color % COLORS)
    }
}

fn grid(out: &mut String, (x, y): &(Axis, Axis)) {
    for (value, label) in y.ticks(5) {
        let at = tenth(FRAME.bottom - y.at(value).unwrap_or(0.0) * (FRAME.bottom - FRAME.top));
        put!(out, r#"<path class="grid" d="M{} {at}H{}"></path>"#, FRAME.left, FRAME.right);
        put!(out, r#"<text x="{}" y="{}" text-anchor="end">{label}</text>"#, FRAME.left - 8.0, at + 4.0);
    }
    for (value, label) in x.ticks(7) {
        let at = tenth(FRAME.left + x.at(value).unwrap_or(0.0) * (FRAME.right - FRAME.left));
        put!(out, r#"<path class="tick" d="M{at} {}v4"></path>"#, FRAME.bottom);
        put!(out, r#"<text x="{at}" y="{}" text-anchor="middle">{label}</text>"#, FRAME.bottom + 18.0);
    }
    put!(out, r#"<path class="axis" d="M{} {}H{}"></path>"#, FRAME.left, FRAME.bottom, FRAME.right);
}

fn draw(out: &mut String, curve: &Curve, number: usize, axes: &(Axis, Axis)) {
    let series = &curve.series;
    let points = series.finite();
    put!(out, r#"<g class="{}" data-curve="{number}" data-points="{}">"#, curve.look(), points.len());
    if series.smoothing().is_some() {
        put!(out, r#"<path class="raw" d="{}"></path>"#, path(&thinned(&FRAME.place(&points, axes))));
    }
    let line = FRAME.place(&series.curve(), axes);
    put!(out, r#"<path class="line" d="{}"></path>"#, path(&thinned(&line)));
    if (series.stroke.has_marks() || line.len() == 1) && line.len() <= 60 {
        for (x, y) in line {
            put!(out, r#"<circle cx="{x}" cy="{y}" r="2.6"></circle>"#);
        }
    }
    put!(out, r#"<circle class="point" r="4"></circle>"#);
    put!(out, "</g>");
}

/// The value rounded to six digits.
fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Stroke;

    #[test]
    fn a_figure_has_both_axes_their_ticks_and_every_curve() {
        let curve = |name: &str, color, dashed| {
            let points = vec![(0.0, 1.0), (10.0, 3.0)];
            Curve { series: Series { name: name.into(), points, stroke: Stroke::Marks }, color, dashed }
        };
        let curves = vec![curve("a", 0, false), curve("b", 9, true)];
        let markup = Figure { title: "a < b".into(), curves }.markup(3);
        for (part, count) in [
            (r#"id="chart-3""#, 1),
            ("a &lt; b", 2),
            (r#"<path class="axis" d="M56 270H626">"#, 1),
            (r#"<path class="grid" d="M56 "#, 5),
            (r#"<path class="tick" d="#, 6),
            (r#" text-anchor="end">"#, 5),
            (r#" text-anchor="middle">"#, 6),
            (r#"class="c0" data-curve="0""#, 2),
            (r#"class="c1 dashed" data-curve="1""#, 2),
            (r#"<path class="line" d="#, 2),
            (r#"r="2.6""#, 4),
            (r#"<path class="cross" d="M0 12V270">"#, 1),
        ] {
            assert_eq!(markup.matches(part).count(), count, "{part}:\n{markup}");
        }
    }
}
