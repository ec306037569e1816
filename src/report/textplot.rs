//! Charts as text for a terminal.
use super::axis::Axis;
use super::{Chart, Series};

/// The characters of a text plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glyphs {
    /// Braille patterns, eight dots per character.
    Braille,
    /// ASCII, one dot per character.
    Ascii,
}

/// The marks of the series. The first series is a line.
const MARKS: [char; 5] = ['o', 'x', '+', '#', '@'];

/// Renders the chart in lines of at most `width` characters, with a plot area of at least 10 columns and 4 rows. The
/// first series is a line (its moving mean if it is long); the others are marks over it, at their moving mean if it is
/// drawn as a line elsewhere.
pub(crate) fn text_plot(chart: &Chart, width: usize, rows: usize, glyphs: Glyphs) -> String {
    let axes = (chart.x_axis(), chart.y_axis());
    let rows = rows.max(4);
    let labels = axes.1.ticks(rows / 3).into_iter().map(|(_, label)| label.chars().count());
    let gap = labels.max().unwrap_or(0);
    // A label, a space, the axis.
    let columns = width.saturating_sub(gap + 2).max(10);
    let mut canvas = vec![vec![' '; columns]; rows];
    for (n, series) in chart.series.iter().enumerate() {
        match n.checked_sub(1) {
            None => line(&mut canvas, series, &axes, glyphs),
            Some(n) => {
                for (x, y) in series.curve().iter().filter_map(|point| place(point, &axes, (columns, rows))) {
                    canvas[y][x] = MARKS[n % MARKS.len()];
                }
            }
        }
    }
    framed(chart, &canvas, &axes, glyphs)
}

fn line(canvas: &mut [Vec<char>], series: &Series, axes: &(Axis, Axis), glyphs: Glyphs) {
    let points = series.curve();
    let (wide, high) = match glyphs {
        Glyphs::Braille => (2, 4),
        Glyphs::Ascii => (1, 1),
    };
    let dots = (wide * canvas[0].len(), high * canvas.len());
    let mut bits = vec![vec![0u8; canvas[0].len()]; canvas.len()];
    let placed: Vec<(usize, usize)> = points.iter().filter_map(|point| place(point, axes, dots)).collect();
    for pair in placed.windows(2) {
        for (x, y) in between(pair[0], pair[1]) {
            bits[y / high][x / wide] |= dot(x % wide, y % high);
        }
    }
    if let [(x, y)] = placed[..] {
        bits[y / high][x / wide] |= dot(x % wide, y % high);
    }
    for (row, bits) in canvas.iter_mut().zip(bits) {
        for (cell, bits) in row.iter_mut().zip(bits).filter(|pair| pair.1 != 0) {
            *cell = match glyphs {
                Glyphs::Braille => char::from_u32(0x2800 + u32::from(bits)).unwrap_or('*'),
                Glyphs::Ascii => '*',
            };
        }
    }
}

/// The dot of a point, counted from the top left. `None`: it cannot be drawn.
fn place(point: &(f64, f64), (x, y): &(Axis, Axis), dots: (usize, usize)) -> Option<(usize, usize)> {
    let at = |share: f64, n: usize| (share.clamp(0.0, 1.0) * (n - 1) as f64).round() as usize;
    Some((at(x.at(point.0)?, dots.0), at(1.0 - y.at(point.1)?, dots.1)))
}

/// The dots of a straight line from `a` to `b`.
fn between(a: (usize, usize), b: (usize, usize)) -> impl Iterator<Item = (usize, usize)> {
    let steps = a.0.abs_diff(b.0).max(a.1.abs_diff(b.1)).max(1);
    let at = move |from: usize, to: usize, n: usize| {
        (from as f64 + (to as f64 - from as f64) * n as f64 / steps as f64).round() as usize
    };
    (0..=steps).map(move |n| (at(a.0, b.0, n), at(a.1, b.1, n)))
}

/// The bit of a dot in a 2 x 4 braille pattern.
fn dot(x: usize, y: usize) -> u8 {
    [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]][y][x]
}

/// Adds axes, ticks and legend to the canvas.
fn framed(chart: &Chart, canvas: &[Vec<char>], (x, y): &(Axis, Axis), glyphs: Glyphs) -> String {
    let (columns, rows) = (canvas[0].len(), canvas.len());
    let mut left = vec![String::new(); rows];
    for (value, label) in y.ticks(rows / 3) {
        if let Some(at) = y.at(value).filter(|at| (0.0..=1.0).contains(at)) {
            left[((1.0 - at) * (rows - 1) as f64).round() as usize] = label;
        }
    }
    let gap = left.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let width = gap + 2 + columns;
    let mut out = cut(&chart.title, width);
    out.push('\n');
    let line = if glyphs == Glyphs::Braille { '\u{28d2}' } else { '*' };
    let names = chart.series.iter().zip([line].into_iter().chain(MARKS.into_iter().cycle()));
    let names = names.map(|(series, mark)| cut(&format!("{mark} {}", series.legend()), width));
    out.push_str(&in_lines(names, width));
    for (row, label) in canvas.iter().zip(&left) {
        let edge = if label.is_empty() { '|' } else { '+' };
        let text: String = row.iter().collect();
        out.push_str(format!("{label:>gap$} {edge}{text}").trim_end());
        out.push('\n');
    }
    let mut rule = vec!['-'; columns];
    let mut labels = vec![' '; width];
    let mut free = 0;
    for (value, label) in x.ticks(columns / 12) {
        let Some(at) = x.at(value) else { continue };
        let at = (at * (columns - 1) as f64).round() as usize;
        let length = label.chars().count();
        // The label of the last tick ends with the line.
        let start = (gap + 2 + at).saturating_sub(length / 2).min(width.saturating_sub(length));
        if start < free || length > width {
            continue;
        }
        rule[at] = '+';
        for (cell, c) in labels[start..].iter_mut().zip(label.chars()) {
            *cell = c;
        }
        free = start + label.chars().count() + 1;
    }
    let rule: String = rule.into_iter().collect();
    let labels: String = labels.into_iter().collect();
    out.push_str(&format!("{:gap$} +{rule}\n{}\n", "", labels.trim_end()));
    out.push_str(format!("{:center$}{}", "", chart.x_label, center = gap + 2 + columns / 2).trim_end());
    out.push('\n');
    out
}

/// The entries, separated by spaces, in as few lines of at most `width` characters as their order allows.
fn in_lines(entries: impl Iterator<Item = String>, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for entry in entries {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + entry.chars().count() <= width => {
                *line += "   ";
                *line += &entry;
            }
            _ => lines.push(entry),
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// The text, shortened to `width` characters.
fn cut(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_string(),
        Some(_) => text.chars().take(width.saturating_sub(3)).chain("...".chars()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Scale, Stroke};

    fn chart(series: Vec<Series>) -> Chart {
        let (title, x_label) = ("run".to_string(), "step".to_string());
        Chart { title, x_label, x_scale: Scale::Linear, y_scale: Scale::Linear, series }
    }

    fn falling(n: u32) -> Series {
        let points = (0..n).map(|n| (f64::from(n), 100.0 - f64::from(n))).collect();
        Series { name: "loss".into(), points, stroke: Stroke::Line }
    }

    #[test]
    fn values_that_differ_in_the_last_bit_are_drawn() {
        let points = vec![(1.0, 1.000_000_000_000_000_2), (2.0, 1.0)];
        let series = Series { name: "reward".into(), points, stroke: Stroke::Line };
        assert!(text_plot(&chart(vec![series]), 40, 18, Glyphs::Ascii).contains('*'));
    }

    #[test]
    fn a_long_text_ends_with_three_dots() {
        let cuts = ["abcdef", "abcdefg", "\u{e9}bcdefgh", ""].map(|text| cut(text, 6));
        assert_eq!(cuts, ["abcdef", "abc...", "\u{e9}bc...", ""]);
        assert_eq!(cut("abcdef", 2), "...");
    }

    #[test]
    fn a_falling_line_goes_from_the_top_left_to_the_bottom_right() {
        let text = text_plot(&chart(vec![falling(11)]), 16, 6, Glyphs::Ascii);
        let want = "\
run
* loss 90.000
100 +*
    | **
    |   **
 95 +     ***
    |        **
 90 +          *
    ++---------+
     0        10
          step
";
        assert_eq!(text, want);
    }

    #[test]
    fn a_chart_without_drawable_points_is_an_empty_frame() {
        for points in [vec![], vec![(f64::NAN, 1.0)], vec![(1.0, f64::INFINITY)]] {
            let series = Series { name: "loss".into(), points, stroke: Stroke::Line };
            let text = text_plot(&chart(vec![series]), 24, 0, Glyphs::Braille);
            assert!(text.contains("loss (no points)"), "{text}");
        }
    }

    #[test]
    fn the_dots_of_a_braille_pattern_are_those_of_unicode() {
        // dots 1 to 8 have the bits 0 to 7; 1, 2, 3, 7 are the left column
        let columns = [0, 1].map(|x| [0, 1, 2, 3].map(|y| dot(x, y).trailing_zeros() + 1));
        assert_eq!(columns, [[1, 2, 3, 7], [4, 5, 6, 8]]);
        assert!((0..2).all(|x| (0..4).all(|y| dot(x, y).is_power_of_two())));
    }

    #[test]
    fn no_line_is_longer_than_the_width() {
        for width in [20, 40, 80] {
            for n in [3, 2000] {
                let mut long = falling(n);
                long.name = "completions/mean_terminated_length".into();
                let text = text_plot(&chart(vec![falling(n), long]), width, 8, Glyphs::Braille);
                let longest = text.lines().map(|line| line.chars().count()).max();
                assert!(longest <= Some(width), "{width}:\n{text}");
            }
        }
    }

    #[test]
    fn the_legend_of_a_moving_mean_says_so() {
        let text = text_plot(&chart(vec![falling(1600)]), 60, 8, Glyphs::Ascii);
        assert!(text.contains("loss -1489.000 (mean of 41)"), "{text}");
    }

    #[test]
    fn the_second_series_is_marks() {
        let mut marks = falling(3);
        marks.name = "val_loss".into();
        let text = text_plot(&chart(vec![falling(3), marks]), 40, 5, Glyphs::Braille);
        assert_eq!(text.lines().skip(2).flat_map(str::chars).filter(|&c| c == 'o').count(), 3, "{text}");
    }
}
