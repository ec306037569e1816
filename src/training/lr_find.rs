//! The learning rate range test (Smith 2017, arXiv:1506.01186): a few steps with a growing learning rate.
use crate::tensor::math::{log_f64, pow_f64};

/// The rates of the test: from the lowest to the highest, each a constant factor above the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrRange {
    /// The rate of the first step.
    pub lowest: f64,
    /// The rate of the last step.
    pub highest: f64,
    /// Number of steps, at least 2.
    pub steps: usize,
}

impl LrRange {
    /// The rate of `step`, from 0.
    pub fn rate(&self, step: usize) -> f64 {
        let share = step as f64 / (self.steps - 1).max(1) as f64;
        self.lowest * pow_f64(self.highest / self.lowest, share)
    }
}

/// The rates and the losses of the test. `loss_at` trains a step with a number and a rate, and returns the loss before
/// the update; `None` ends the test. NaN, the loss of a step without a target, is no point. A loss of four times the
/// lowest one so far ends the test too.
///
/// # Errors
/// The error of `loss_at`.
pub fn lr_losses<E>(
    range: LrRange,
    mut loss_at: impl FnMut(usize, f64) -> Result<Option<f32>, E>,
) -> Result<Vec<(f64, f64)>, E> {
    let (mut points, mut lowest) = (Vec::new(), f32::INFINITY);
    for step in 0..range.steps {
        let rate = range.rate(step);
        let Some(loss) = loss_at(step, rate)? else { break };
        if loss.is_nan() {
            continue;
        }
        points.push((rate, f64::from(loss)));
        lowest = lowest.min(loss);
        if loss > 4.0 * lowest {
            break;
        }
    }
    Ok(points)
}

/// The rate at which the smoothed loss falls fastest for each factor of the rate. `None`: the loss does not fall.
pub fn steepest_rate(points: &[(f64, f64)]) -> Option<f64> {
    let smooth = smoothed(points);
    let slopes = smooth.windows(3).map(|three| {
        let [(before, high), (rate, _), (after, low)] = [three[0], three[1], three[2]];
        (rate, (low - high) / log_f64(after / before))
    });
    slopes.filter(|slope| slope.1 < 0.0).min_by(|a, b| a.1.total_cmp(&b.1)).map(|slope| slope.0)
}

/// The mean of each loss and its neighbors, an eighth of all points in total.
fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = (points.len() / 16).max(1);
    let mean = |at: usize| {
        let near = &points[at.saturating_sub(reach)..(at + reach + 1).min(points.len())];
        near.iter().map(|point| point.1).sum::<f64>() / near.len() as f64
    };
    points.iter().enumerate().map(|(at, point)| (point.0, mean(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_grow_by_a_constant_factor() {
        let range = LrRange { lowest: 1e-6, highest: 1.0, steps: 7 };
        for step in 0..7 {
            let want = 10f64.powi(step as i32 - 6);
            // the power and two products are rounded
            assert!((range.rate(step) / want - 1.0).abs() < 1e-15, "{step}");
        }
        assert_eq!([range.rate(0), range.rate(6)], [1e-6, 1.0]);
    }

    #[test]
    fn the_test_ends_at_four_times_the_lowest_loss_or_without_a_loss() {
        let range = LrRange { lowest: 1e-6, highest: 1.0, steps: 7 };
        let losses = [4.0, 2.0, f32::NAN, 3.0, 8.0, 8.1, 9.0];
        let points = |last: usize| {
            let loss_at = |step: usize, _| Ok::<_, ()>((step < last).then_some(losses[step]));
            lr_losses(range, loss_at).unwrap()
        };
        let found: Vec<f32> = points(7).into_iter().map(|point| point.1 as f32).collect();
        assert_eq!(found, [4.0, 2.0, 3.0, 8.0, 8.1]);
        assert_eq!(points(2).len(), 2);
    }

    #[test]
    fn a_loss_is_smoothed_over_an_eighth_of_the_points() {
        let points: Vec<(f64, f64)> =
            (0..32).map(|at| (at as f64, if at == 16 { 5.0 } else { 0.0 })).collect();
        let smooth: Vec<f64> = smoothed(&points).into_iter().map(|point| point.1).collect();
        assert_eq!(smooth[14..19], [1.0; 5]);
        assert_eq!(smooth.iter().sum::<f64>(), 5.0);
    }

    #[test]
    fn the_steepest_rate_is_where_the_loss_falls_most() {
        let range = LrRange { lowest: 1e-6, highest: 1.0, steps: 61 };
        let loss = |rate: f64| 4.0 - 3.0 / (1.0 + (1e-3 / rate).powi(2)) + 10.0 * rate;
        let points: Vec<(f64, f64)> =
            (0..61).map(|step| (range.rate(step), loss(range.rate(step)))).collect();
        let found = steepest_rate(&points).unwrap();
        assert!((5e-4..2e-3).contains(&found), "{found}");
        let rising: Vec<(f64, f64)> = (0..61).map(|step| (range.rate(step), step as f64)).collect();
        assert_eq!((steepest_rate(&rising), steepest_rate(&[])), (None, None));
    }
}
