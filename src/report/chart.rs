//! Line charts.
use super::axis::{Axis, Scale};
use crate::tensor::faults::{self, Fault};

/// A line with more points is drawn thin, under its moving mean.
const MAX_PLAIN_POINTS: usize = 150;

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    /// A line; with many points a thin line and its moving mean.
    Line,
    /// A line through every point, however many: the values have no noise.
    Exact,
    /// A line with a mark at every point. The lowest value is the best.
    Marks,
    /// A line with a mark at every point. The highest value is the best.
    Scores,
    /// A line with a mark at every point. No value is the best.
    Counts,
}

impl Stroke {
    /// How the metric with this key is drawn.
    pub(crate) fn of_key(key: &str) -> Stroke {
        match key {
            "learning_rate" | "num_tokens" => Stroke::Exact,
            _ if key.starts_with("val_") => Stroke::Marks,
            _ if key.starts_with("eval/completions/") && !faults::on(Fault::LengthsHaveABest) => {
                Stroke::Counts
            }
            _ if key.starts_with("eval/") => Stroke::Scores,
            _ => Stroke::Line,
        }
    }

    /// Whether every point has a mark.
    pub(super) fn has_marks(self) -> bool {
        matches!(self, Stroke::Marks | Stroke::Scores | Stroke::Counts)
    }
}

/// A named list of points, in order. Points that are not finite are not drawn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// x and y.
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) stroke: Stroke,
}

/// Several series over one pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) x_scale: Scale,
    pub(crate) y_scale: Scale,
    pub(crate) series: Vec<Series>,
}

impl Series {
    /// The finite points.
    pub(crate) fn finite(&self) -> Vec<(f64, f64)> {
        self.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    }

    /// The curve to draw: the finite points, or the moving mean of a line of many.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        let points = self.finite();
        if self.is_noisy() { moving_mean(&points, points.len() / 80) } else { points }
    }

    /// Whether the points are drawn thin, under their moving mean.
    pub(super) fn is_noisy(&self) -> bool {
        self.stroke == Stroke::Line && self.points.len() > MAX_PLAIN_POINTS
    }

    /// The number of values of a moving mean. `None`: the points are drawn as they are.
    pub(crate) fn smoothing(&self) -> Option<usize> {
        let shown = self.is_noisy() && !faults::on(Fault::PlotForgetsSmoothing);
        shown.then(|| 2 * (self.finite().len() / 80) + 1)
    }

    /// Name and last value; for a moving mean its length, for marks also the best value if it is not the last.
    pub(crate) fn legend(&self) -> String {
        let points = self.curve();
        let Some(&(_, last)) = points.last() else {
            return format!("{} (no points)", self.name);
        };
        let values = points.iter().map(|point| point.1);
        let best = match self.stroke {
            Stroke::Line | Stroke::Exact | Stroke::Counts => last,
            Stroke::Marks => values.fold(last, f64::min),
            Stroke::Scores => values.fold(last, f64::max),
        };
        if let Some(n) = self.smoothing() {
            return format!("{} {} (mean of {n})", self.name, short(last));
        }
        match best == last {
            true => format!("{} {}", self.name, short(last)),
            false => format!("{} {} (best {})", self.name, short(last), short(best)),
        }
    }
}

impl Chart {
    /// A chart over the steps, with linear axes.
    pub(crate) fn of(title: String, series: Vec<Series>) -> Chart {
        let (x_scale, y_scale) = (Scale::Linear, Scale::Linear);
        Chart { title, x_label: "step".to_string(), x_scale, y_scale, series }
    }

    pub(super) fn x_axis(&self) -> Axis {
        Axis::over(self.all().map(|point| point.0), self.x_scale)
    }

    pub(super) fn y_axis(&self) -> Axis {
        Axis::over(self.all().map(|point| point.1), self.y_scale).padded(0.05)
    }

    fn all(&self) -> impl Iterator<Item = (f64, f64)> {
        self.series.iter().flat_map(Series::finite)
    }
}

/// Formats a value with four digits, or with a power of ten if it is very large or small.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        size if (1e-2..1e4).contains(&size) => format!("{value:.3}"),
        _ => format!("{value:.3e}"),
    }
}

/// The mean of each value and up to `reach` neighbors on both sides. Near the start, where curves are steep, it has as
/// many neighbors after a value as before it; near the end it has fewer after than before.
fn moving_mean(points: &[(f64, f64)], reach: usize) -> Vec<(f64, f64)> {
    let mut sums = vec![0.0];
    for (at, point) in points.iter().enumerate() {
        sums.push(sums[at] + point.1);
    }
    let mean = |at: usize| {
        let (before, after) = (reach.min(at), reach.min(points.len() - 1 - at).min(at));
        (sums[at + after + 1] - sums[at - before]) / (before + after + 1) as f64
    };
    points.iter().enumerate().map(|(at, point)| (point.0, mean(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moving_mean_leaves_a_straight_line_as_it_is_until_its_end() {
        let line: Vec<(f64, f64)> = (0..50).map(|n| (f64::from(n), 2.0 * f64::from(n))).collect();
        let mean = moving_mean(&line, 7);
        for (got, want) in mean.iter().zip(&line).take(43) {
            assert!((got.1 - want.1).abs() < 1e-9, "{got:?} {want:?}");
        }
        assert_eq!(mean[49], (49.0, 2.0 * 45.5));
        assert!(moving_mean(&[], 3).is_empty());
    }

    fn legend_of(key: &str) -> String {
        let points = vec![(0.0, 0.5), (1.0, 0.75), (2.0, 0.25)];
        Series { name: key.into(), points, stroke: Stroke::of_key(key) }.legend()
    }

    #[test]
    fn a_legend_has_the_best_of_losses_and_rewards_only() {
        assert_eq!(legend_of("val_loss"), "val_loss 0.250");
        assert_eq!(legend_of("eval/reward_greedy"), "eval/reward_greedy 0.250 (best 0.750)");
        let ratio = "eval/completions/clipped_ratio";
        assert_eq!(legend_of(ratio), format!("{ratio} 0.250"));
        #[cfg(feature = "faults")]
        assert_ne!(faults::with(Fault::LengthsHaveABest, || legend_of(ratio)), format!("{ratio} 0.250"));
    }

    #[test]
    fn a_legend_names_the_last_value_and_the_best() {
        let mut series = Series {
            name: "val_loss".into(),
            points: vec![(0.0, 3.0), (1.0, 1.5), (2.0, 1.75)],
            stroke: Stroke::Marks,
        };
        assert_eq!(series.legend(), "val_loss 1.750 (best 1.500)");
        series.points.pop();
        assert_eq!(series.legend(), "val_loss 1.500");
        series.points.clear();
        assert_eq!(series.legend(), "val_loss (no points)");
    }
}
