//! The panels of the dashboard: charts, samples, times.
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Wrap};

use crate::report::{Series, Stroke, printable, short, units};
use crate::run::{RunView, Scored};

/// The colors of the curves of a chart.
const COLORS: [Color; 3] = [Color::Cyan, Color::Yellow, Color::Magenta];

/// The points of a curve.
struct Drawn {
    /// The values behind a moving mean; otherwise empty.
    dots: Vec<(f64, f64)>,
    line: Vec<(f64, f64)>,
    color: Color,
}

/// A chart of the metrics with these keys. A moving mean has its values as dots.
pub(super) fn chart(frame: &mut Frame<'_>, area: Rect, view: &RunView, keys: &[&str]) {
    let mut curves = Vec::new();
    for (key, color) in keys.iter().zip(COLORS) {
        let Some(points) = view.metrics.curve(key) else { continue };
        curves.push((
            Series { name: (*key).to_string(), points: points.to_vec(), stroke: Stroke::of_key(key) },
            color,
        ));
    }
    let title = curves.iter().map(|(series, color)| Span::styled(format!(" {} ", series.legend()), *color));
    let block = Block::bordered().border_style(dim()).title(Line::from_iter(title));
    let drawn: Vec<Drawn> = curves
        .iter()
        .map(|(series, color)| {
            let dots = if series.smoothing().is_some() { series.finite() } else { Vec::new() };
            Drawn { dots, line: series.curve(), color: *color }
        })
        .collect();
    let all = || drawn.iter().flat_map(|drawn| drawn.dots.iter().chain(&drawn.line));
    let Some(x) = range(all().map(|point| point.0)) else {
        let text = format!("{}: no values yet", keys.join(", "));
        let text = Paragraph::new(text).style(dim()).wrap(Wrap { trim: false }).block(block);
        return frame.render_widget(text, area);
    };
    let y = range(all().map(|point| point.1)).unwrap_or([0.0, 1.0]);
    let dots = drawn.iter().filter(|drawn| !drawn.dots.is_empty());
    let dots = dots.map(|drawn| Dataset::default().marker(Marker::Braille).style(dim()).data(&drawn.dots));
    let lines = drawn.iter().map(|drawn| {
        let dataset = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line);
        dataset.style(Style::new().fg(drawn.color)).data(&drawn.line)
    });
    let labels = |[lo, hi]: [f64; 2], format: fn(f64) -> String| [lo, (lo + hi) / 2.0, hi].map(format);
    let chart = Chart::new(dots.chain(lines).collect())
        .x_axis(Axis::default().style(dim()).bounds(x).labels(labels(x, |step| format!("{step:.0}"))))
        .y_axis(Axis::default().style(dim()).bounds(y).labels(labels(y, short)))
        .legend_position(None)
        .block(block);
    frame.render_widget(chart, area);
}

/// The style of what is less important.
pub(super) fn dim() -> Style {
    Style::new().fg(Color::DarkGray)
}

/// The lowest and the highest value, apart. `None`: there is no value.
fn range(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let (lo, hi) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
    let margin = match lo == hi {
        true if lo == 0.0 => 1.0,
        true => lo.abs() * 0.5,
        false => 0.0,
    };
    (lo <= hi).then_some([lo - margin, hi + margin])
}

/// The newest sample, or the best and the worst completion of the newest rollout.
pub(super) fn samples(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let (title, text) = match (&view.rollout, view.samples.last()) {
        (Some((step, completions)), _) => (format!(" completions of step {step} "), extremes(completions)),
        (None, Some(line)) => (format!(" sample of step {} ", line.step), line.samples.join("\n")),
        (None, None) => (" samples ".to_string(), "no samples yet".to_string()),
    };
    let block = Block::bordered().border_style(dim()).title(title);
    frame.render_widget(Paragraph::new(printable(&text)).wrap(Wrap { trim: false }).block(block), area);
}

fn extremes(completions: &[Scored]) -> String {
    let reward = |scored: &&Scored| scored.reward.unwrap_or(f64::NEG_INFINITY);
    let best = completions.iter().max_by(|a, b| reward(a).total_cmp(&reward(b)));
    let worst = completions.iter().min_by(|a, b| reward(a).total_cmp(&reward(b)));
    let line = |(rank, scored): (&str, Option<&Scored>)| {
        let Scored { prompt, completion, reward } = scored?;
        let reward = reward.map_or("none".to_string(), units::decimal);
        Some(format!("{rank}, reward {reward}: {prompt}{completion}"))
    };
    [("best", best), ("worst", worst)].into_iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// The share of each phase as a bar.
pub(super) fn times(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let parts = view.time_split();
    let total: f64 = parts.iter().map(|part| part.1).sum();
    let title = format!(" time {} ", units::seconds(total));
    let width = usize::from(area.width.saturating_sub(21));
    let line = |(name, seconds): &(String, f64)| {
        let share = (seconds / total).clamp(0.0, 1.0);
        let bar = "\u{2588}".repeat((share * width as f64).round() as usize);
        Line::from(vec![
            Span::raw(format!("{name:<11.11} {:>4.0} % ", 100.0 * share)),
            Span::styled(bar, Style::new().fg(Color::Cyan)),
        ])
    };
    let lines: Vec<Line<'_>> = if total > 0.0 { parts.iter().map(line).collect() } else { Vec::new() };
    frame
        .render_widget(Paragraph::new(lines).block(Block::bordered().border_style(dim()).title(title)), area);
}
