//! Numbers for people: three digits and a unit.
use std::time::Duration;

/// A count: `812`, `1.23 k`, `45.6 M`, `1.50 G`, `2.00 T`.
pub(crate) fn count(n: u64) -> String {
    scaled(n, &["", " k", " M", " G", " T", " P", " E"])
}

/// A count with a noun: `1 document`, `2 documents`.
pub(crate) fn many(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// Bytes in powers of 1000: `812 B`, `12.3 MB`.
pub(crate) fn bytes(n: u64) -> String {
    scaled(n, &[" B", " kB", " MB", " GB", " TB", " PB", " EB"])
}

/// A duration: `12.3 us`, `45.6 ms`, `1.23 s`, `45 s`, `1m 02s`, `2h 03m`, `1d 04h`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let whole = seconds.round() as u64;
    if seconds < 0.9995e-3 {
        format!("{} us", digits(seconds * 1e6))
    } else if seconds < 0.9995 {
        format!("{} ms", digits(seconds * 1e3))
    } else if seconds < 59.5 {
        if seconds < 9.995 { format!("{seconds:.2} s") } else { format!("{whole} s") }
    } else if whole < 3600 {
        format!("{}m {:02}s", whole / 60, whole % 60)
    } else if whole < 86_400 {
        format!("{}h {:02}m", whole / 3600, whole % 3600 / 60)
    } else {
        format!("{}d {:02}h", whole / 86_400, whole % 86_400 / 3600)
    }
}

/// A number with three decimals: `0.125`, `-12.000`; very large and very small ones with an exponent: `1.000e308`.
pub(crate) fn decimal(x: f64) -> String {
    match x.abs() {
        0.0 | 1e-3..1e7 => format!("{x:.3}"),
        _ => format!("{x:.3e}"),
    }
}

/// Events per second, with the unit of the event: `0.42 step/s`, `45.6 ktok/s`.
pub(crate) fn rate(per_second: f64, unit: &str) -> String {
    if !per_second.is_finite() || per_second < 0.0 {
        return format!("- {unit}/s");
    }
    let (value, prefix) = step(per_second, &["", "k", "M", "G", "T"]);
    format!("{} {prefix}{unit}/s", digits(value))
}

fn scaled(n: u64, units: &[&'static str]) -> String {
    if n < 1000 {
        return format!("{n}{}", units[0]);
    }
    let (value, unit) = step(n as f64, units);
    format!("{}{unit}", digits(value))
}

/// `value` over the largest power of 1000 that leaves at least one digit after rounding to three.
fn step<'a>(mut value: f64, units: &[&'a str]) -> (f64, &'a str) {
    let mut at = 0;
    while value >= 999.5 && at + 1 < units.len() {
        value /= 1000.0;
        at += 1;
    }
    (value, units[at])
}

/// Three digits: `1.23`, `12.3`, `123`.
fn digits(x: f64) -> String {
    if x < 9.995 {
        format!("{x:.2}")
    } else if x < 99.95 {
        format!("{x:.1}")
    } else {
        format!("{x:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_short() {
        for (x, want) in [(0.0, "0.000"), (0.25, "0.250"), (-12.0, "-12.000"), (1e308, "1.000e308")] {
            assert_eq!(decimal(x), want);
        }
        assert_eq!([-1e308, 2e-7, f64::NAN].map(decimal), ["-1.000e308", "2.000e-7", "NaN"]);
    }

    #[test]
    fn counts_and_bytes_have_three_digits() {
        for (n, want) in [(0, "0"), (999, "999"), (1000, "1.00 k"), (999_499, "999 k"), (999_500, "1.00 M")] {
            assert_eq!(count(n), want);
        }
        assert_eq!(count(596_049_920), "596 M");
        assert_eq!(count(u64::MAX), "18.4 E");
        assert_eq!((bytes(999), bytes(12_345_678)), ("999 B".into(), "12.3 MB".into()));
    }

    #[test]
    fn durations_carry_into_the_next_unit() {
        for (seconds, want) in [
            (0.0, "0.00 us"),
            (0.000_999_6, "1.00 ms"),
            (0.045_61, "45.6 ms"),
            (0.999_6, "1.00 s"),
            (9.996, "10 s"),
            (59.6, "1m 00s"),
            (62.0, "1m 02s"),
            (3599.6, "1h 00m"),
            (7380.0, "2h 03m"),
            (100_800.0, "1d 04h"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), want, "{seconds}");
        }
    }

    #[test]
    fn an_unknown_rate_is_a_dash() {
        assert_eq!(rate(1234.0, "tok"), "1.23 ktok/s");
        assert_eq!(rate(0.421, "step"), "0.42 step/s");
        assert_eq!(rate(f64::NAN, "tok"), "- tok/s");
    }
}
