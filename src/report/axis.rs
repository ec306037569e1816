//! Axes: ranges, positions of values, ticks.

/// How an axis spaces its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// Logarithmic. Values of at most 0 are not drawn.
    Log,
}

/// A range of values, mapped to 0..1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    lo: f64,
    hi: f64,
    scale: Scale,
}

impl Axis {
    /// The axis that covers all values that its scale can show; 0 to 1 if there are none.
    pub(super) fn over(values: impl Iterator<Item = f64>, scale: Scale) -> Axis {
        let shown = values.filter(|&v| v.is_finite() && (scale == Scale::Linear || v > 0.0));
        let (lo, hi) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
        match scale {
            _ if lo > hi => Axis { lo: 0.0, hi: 1.0, scale: Scale::Linear },
            Scale::Linear if lo == hi => {
                let margin = if lo == 0.0 { 1.0 } else { lo.abs() * 0.5 };
                Axis { lo: lo - margin, hi: hi + margin, scale }
            }
            Scale::Log if lo == hi => Axis { lo: lo / 2.0, hi: hi * 2.0, scale },
            _ => Axis { lo, hi, scale },
        }
    }

    /// Extends both ends of the axis by `share` of its length.
    pub(super) fn padded(self, share: f64) -> Axis {
        let (lo, hi) = (self.map(self.lo), self.map(self.hi));
        let more = (hi - lo) * share;
        Axis { lo: self.unmap(lo - more), hi: self.unmap(hi + more), ..self }
    }

    /// The low and the high end.
    pub(super) fn ends(self) -> [f64; 2] {
        [self.lo, self.hi]
    }

    /// Position of a value: 0 at the low end, 1 at the high end. `None`: the scale cannot show it.
    pub(super) fn at(self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.scale == Scale::Log && value <= 0.0) {
            return None;
        }
        let (lo, hi) = (self.map(self.lo), self.map(self.hi));
        Some((self.map(value) - lo) / (hi - lo))
    }

    /// About `want` round values in the range, with their labels.
    pub(super) fn ticks(self, want: usize) -> Vec<(f64, String)> {
        let log = if self.scale == Scale::Log { self.decades() } else { Vec::new() };
        if (3..=3 * want).contains(&log.len()) {
            let is_small = log[0] < 1e-2;
            return log.into_iter().map(|value| (value, log_label(value, is_small))).collect();
        }
        let values = self.steps(want);
        let gap = values.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        values.into_iter().map(|value| (value, label(value, gap))).collect()
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn steps(self, want: usize) -> Vec<f64> {
        let raw = (self.hi - self.lo) / want.max(1) as f64;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= raw * 0.75);
        let step = step.unwrap_or(power * 10.0);
        if !step.is_normal() {
            return Vec::new();
        }
        let first = (self.lo / step - 1e-9).ceil() as i64;
        let last = (self.hi / step + 1e-9).floor() as i64;
        (first..=last.min(first.saturating_add(100))).map(|n| n as f64 * step).collect()
    }

    /// 1, 2 and 5 times the powers of ten; for long ranges only the powers.
    fn decades(self) -> Vec<f64> {
        // the powers of f64, also for a low end that has been rounded to 0
        let (lo, hi) = (self.lo.log10().floor().max(-324.0) as i32, self.hi.log10().ceil() as i32);
        let parts: &[f64] = if hi - lo > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (lo..=hi).flat_map(|power| parts.iter().map(move |m| m * 10f64.powi(power)));
        all.filter(|v| (self.lo..=self.hi).contains(v)).collect()
    }

    fn map(self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        }
    }

    fn unmap(self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => 10f64.powf(value),
        }
    }
}

/// 1, 2 or 5 times a power of ten: `0.05`, `20`, `10k`; with small values on the axis `1e-3`, `1e-1`, `1`.
fn log_label(value: f64, is_small: bool) -> String {
    if (is_small && value < 1.0) || value >= 1e12 { format!("{value:.0e}") } else { label(value, value) }
}

/// A value with enough digits to distinguish it from values `gap` away: `0.25`, `1500`, `20k`, `3M`, `1e-5`.
fn label(value: f64, gap: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".to_string();
    }
    if !(1e-4..1e12).contains(&size) {
        return format!("{value:e}");
    }
    let (scaled, unit) = match size {
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let gap = gap.min(size) * (scaled / value);
    let places = (0..6).find(|&places| {
        let unit = 10f64.powi(places);
        ((gap * unit).round() - gap * unit).abs() < 1e-6 * gap * unit && gap * unit > 0.5
    });
    format!("{scaled:.*}{unit}", places.unwrap_or(6) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(lo: f64, hi: f64, scale: Scale) -> Vec<String> {
        Axis { lo, hi, scale }.ticks(6).into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(labels(0.0, 2000.0, Scale::Linear), ["0", "500", "1000", "1500", "2000"]);
        assert_eq!(labels(1.43, 4.2, Scale::Linear), ["1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]);
        assert_eq!(labels(-1.0, 1.0, Scale::Linear), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
        assert_eq!(labels(0.0, 60_000.0, Scale::Linear), ["0", "10k", "20k", "30k", "40k", "50k", "60k"]);
        assert_eq!(labels(0.01, 1.0, Scale::Log), ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
        assert_eq!(labels(1e-5, 1.0, Scale::Log).len(), 6);
        assert_eq!(labels(1.4, 2.2, Scale::Log), ["1.4", "1.6", "1.8", "2.0", "2.2"]);
    }

    #[test]
    fn ticks_of_ranges_at_the_limits_of_f64_do_not_panic() {
        for [lo, hi] in
            [[1.0, 1.000_000_000_000_000_2], [0.0, 5e-324], [-1e308, 1e308], [-f64::MAX, f64::MAX]]
        {
            for scale in [Scale::Linear, Scale::Log] {
                assert!(labels(lo, hi, scale).len() <= 200, "{lo} to {hi}");
            }
        }
    }

    #[test]
    fn an_axis_covers_its_values_and_ignores_what_it_cannot_show() {
        let axis = Axis::over([1.0, f64::NAN, 100.0, -3.0].into_iter(), Scale::Log);
        assert_eq!((axis.at(1.0), axis.at(10.0), axis.at(100.0)), (Some(0.0), Some(0.5), Some(1.0)));
        assert_eq!((axis.at(-1.0), axis.at(f64::NAN)), (None, None));
        let flat = Axis::over([2.0, 2.0].into_iter(), Scale::Linear);
        assert_eq!(flat.at(2.0), Some(0.5));
        assert_eq!(Axis::over([].into_iter(), Scale::Log).at(0.5), Some(0.5));
    }
}
