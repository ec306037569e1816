//! Charts as SVG, without scripts or embedded fonts.
use std::fmt::Write;

use super::axis::Axis;
use super::{Chart, Series};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
/// The plot area.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 28.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = HEIGHT - 56.0;
/// Colors that color-blind readers can distinguish (Okabe and Ito).
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// The chart as the text of an SVG file.
pub(crate) fn svg(chart: &Chart) -> String {
    let (x, y) = (chart.x_axis(), chart.y_axis());
    let mut out = String::new();
    head(&mut out, chart);
    grid(&mut out, &x, &y);
    for (series, color) in chart.series.iter().zip(COLORS.iter().cycle()) {
        draw(&mut out, series, color, &(x, y));
    }
    legend(&mut out, chart);
    out.push_str("</svg>\n");
    out
}

/// Appends to a string, which cannot fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => { writeln!($out, $($text)*).expect("a string takes every write") };
}

fn head(out: &mut String, chart: &Chart) {
    put!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13" fill="#444">"##
    );
    put!(out, r##"<rect width="100%" height="100%" fill="#fff"/>"##);
    let title = escape(&chart.title);
    put!(out, r##"<text x="{LEFT}" y="32" font-size="18" font-weight="600" fill="#111">{title}</text>"##);
    let middle = (LEFT + RIGHT) / 2.0;
    let label = escape(&chart.x_label);
    put!(out, r##"<text x="{middle}" y="{}" text-anchor="middle">{label}</text>"##, HEIGHT - 16.0);
}

fn grid(out: &mut String, x: &Axis, y: &Axis) {
    for (value, label) in y.ticks(6) {
        let at = tenth(BOTTOM - y.at(value).unwrap_or(0.0) * (BOTTOM - TOP));
        put!(out, r##"<path d="M{LEFT} {at}H{RIGHT}" stroke="#e6e6e6"/>"##);
        put!(out, r##"<text x="{}" y="{}" text-anchor="end">{label}</text>"##, LEFT - 10.0, tenth(at + 4.5));
    }
    for (value, label) in x.ticks(8) {
        let at = tenth(LEFT + x.at(value).unwrap_or(0.0) * (RIGHT - LEFT));
        put!(out, r##"<path d="M{at} {TOP}V{BOTTOM}" stroke="#f1f1f1"/>"##);
        put!(out, r##"<path d="M{at} {BOTTOM}v5" stroke="#888"/>"##);
        put!(out, r##"<text x="{at}" y="{}" text-anchor="middle">{label}</text>"##, BOTTOM + 21.0);
    }
    put!(out, r##"<path d="M{LEFT} {BOTTOM}H{RIGHT}" stroke="#888"/>"##);
}

fn draw(out: &mut String, series: &Series, color: &str, axes: &(Axis, Axis)) {
    let frame = Frame { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM };
    if series.is_noisy() {
        let thin = path(&thinned(&frame.place(&series.finite(), axes)));
        put!(
            out,
            r##"<path d="{thin}" fill="none" stroke="{color}" stroke-opacity=".28" stroke-width="1"/>"##
        );
    }
    let line = frame.place(&series.curve(), axes);
    put!(
        out,
        r##"<path d="{}" fill="none" stroke="{color}" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"/>"##,
        path(&thinned(&line))
    );
    if series.stroke.has_marks() || line.len() == 1 {
        let radius = if line.len() > 60 { 2.0 } else { 3.5 };
        for (x, y) in line {
            put!(
                out,
                r##"<circle cx="{x}" cy="{y}" r="{radius}" fill="#fff" stroke="{color}" stroke-width="1.8"/>"##
            );
        }
    }
}

fn legend(out: &mut String, chart: &Chart) {
    let mut x = LEFT;
    for (series, color) in chart.series.iter().zip(COLORS.iter().cycle()) {
        let name = series.legend();
        put!(out, r##"<path d="M{x} 52h18" stroke="{color}" stroke-width="3" stroke-linecap="round"/>"##);
        put!(out, r##"<text x="{}" y="56.5">{}</text>"##, x + 26.0, escape(&name));
        x += 50.0 + 7.2 * name.chars().count() as f64;
    }
}

/// The plot area of a picture, in pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Frame {
    /// Converts points to pixels, rounded to a tenth.
    pub(super) fn place(self, points: &[(f64, f64)], (x, y): &(Axis, Axis)) -> Vec<(f64, f64)> {
        let at = |point: &(f64, f64)| {
            let (x, y) = (x.at(point.0)?, y.at(point.1)?);
            let across = self.left + x * (self.right - self.left);
            Some((tenth(across), tenth(self.bottom - y * (self.bottom - self.top))))
        };
        points.iter().filter_map(at).collect()
    }
}

/// Keeps at most the first, lowest, highest and last point of each pixel column. A screen cannot show more.
pub(super) fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut kept = Vec::new();
    for column in points.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        let low = (0..column.len()).min_by(|&a, &b| column[a].1.total_cmp(&column[b].1)).unwrap_or(0);
        let high = (0..column.len()).max_by(|&a, &b| column[a].1.total_cmp(&column[b].1)).unwrap_or(0);
        let mut at = vec![0, low, high, column.len() - 1];
        at.sort_unstable();
        at.dedup();
        kept.extend(at.into_iter().map(|at| column[at]));
    }
    kept
}

pub(super) fn path(points: &[(f64, f64)]) -> String {
    let commands = ["M"].into_iter().chain(std::iter::repeat("L"));
    commands.zip(points).map(|(command, (x, y))| format!("{command}{x} {y}")).collect()
}

pub(super) fn tenth(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

/// Escapes text for XML. Control characters, which XML does not allow, become spaces.
pub(super) fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Scale, Stroke};

    fn chart(points: Vec<(f64, f64)>, stroke: Stroke) -> Chart {
        let series = vec![Series { name: "a<b>".into(), points, stroke }];
        Chart {
            title: "x & y\u{1}".into(),
            x_label: "step".into(),
            x_scale: Scale::Linear,
            y_scale: Scale::Log,
            series,
        }
    }

    #[test]
    fn names_are_escaped() {
        let text = svg(&chart(vec![(0.0, 1.0), (1.0, 2.0)], Stroke::Marks));
        assert!(text.contains("x &amp; y <") && text.contains("a&lt;b&gt; 2.000 (best 1.000)"), "{text}");
        assert_eq!(text.matches("<circle").count(), 2);
    }

    #[test]
    fn a_chart_without_drawable_points_is_a_valid_picture() {
        for points in [vec![], vec![(0.0, f64::NAN)], vec![(0.0, -1.0)], vec![(3.0, 1.0)]] {
            let text = svg(&chart(points, Stroke::Line));
            assert!(text.ends_with("</svg>\n") && !text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn the_ends_of_the_axes_are_the_edges_of_the_frame() {
        let frame = Frame { left: 10.0, right: 110.0, top: 20.0, bottom: 220.0 };
        let axis = |values: [f64; 2]| Axis::over(values.into_iter(), Scale::Linear);
        let axes = (axis([0.0, 4.0]), axis([-1.0, 1.0]));
        let points = [(0.0, -1.0), (4.0, 1.0), (1.0, 0.0), (3.0, -0.5), (0.333, 0.777), (f64::NAN, 0.0)];
        let want = [(10.0, 220.0), (110.0, 20.0), (35.0, 120.0), (85.0, 170.0), (18.3, 42.3)];
        assert_eq!(frame.place(&points, &axes), want);
    }

    #[test]
    fn a_long_series_keeps_the_extremes_of_every_column() {
        let points: Vec<(f64, f64)> =
            (0..100_000).map(|n| (f64::from(n) / 1000.0, f64::from(n % 977))).collect();
        let kept = thinned(&points);
        assert!(kept.len() <= 400, "{}", kept.len());
        assert_eq!(kept.iter().map(|p| p.1).fold(0.0, f64::max), 976.0);
        assert_eq!((kept[0], kept[kept.len() - 1]), (points[0], points[99_999]));
    }
}
