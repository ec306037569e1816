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

/// A duration in seconds, as [`duration`]. Values that are no duration are a dash.
pub(crate) fn seconds(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or("-".to_string(), duration)
}

/// A time in seconds since 1970: `2026-11-23 17:05 UTC`.
pub(crate) fn utc(seconds: u64) -> String {
    let (days, minutes) = ((seconds / 86_400) as i64, seconds % 86_400 / 60);
    // Days from civil, reversed: years start in March, so that the leap day is the last of a year.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + 400 * era + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// A number with three decimals: `0.125`, `-12.000`; very large and very small ones with an exponent: `1.000e308`.
pub(crate) fn decimal(x: f64) -> String {
    match x.abs() {
        0.0 | 1e-3..1e7 => format!("{x:.3}"),
        _ => format!("{x:.3e}"),
    }
}

/// A perplexity with `digits` decimal places; from 1e6 on as a power of ten.
pub(crate) fn perplexity(x: f64, digits: usize) -> String {
    if x < 1e6 || !x.is_finite() { format!("{x:.digits$}") } else { format!("{x:.2e}") }
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
    fn a_time_is_a_date_of_the_gregorian_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (1_795_453_500, "2026-11-23 17:05 UTC"),
        ] {
            assert_eq!(utc(seconds), want);
        }
        assert_eq!((super::seconds(62.0), super::seconds(f64::NAN)), ("1m 02s".into(), "-".into()));
    }

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
    fn a_large_perplexity_is_a_power_of_ten() {
        let shown = [1.0, 999_999.25, 1e6, 7.3e243, f64::INFINITY].map(|x| perplexity(x, 2));
        assert_eq!(shown, ["1.00", "999999.25", "1.00e6", "7.30e243", "inf"]);
    }

    #[test]
    fn an_unknown_rate_is_a_dash() {
        assert_eq!(rate(1234.0, "tok"), "1.23 ktok/s");
        assert_eq!(rate(0.421, "step"), "0.42 step/s");
        assert_eq!(rate(f64::NAN, "tok"), "- tok/s");
    }
}
