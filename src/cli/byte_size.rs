//! Sizes in bytes, as flags have them.

/// Parses a size in bytes: a number with KB, MB, GB, KiB, MiB, GiB or no unit, in upper or lower
/// case. Without a unit it is a whole number. A part of a byte is dropped.
pub(super) fn byte_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 7] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("", 1),
    ];
    let lower = text.to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, unit)))
        .expect("every text ends with the empty unit");
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| {
        let all = !text.is_empty() && text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit());
        all.then(|| text.parse::<u128>().ok()).flatten()
    };
    // without a unit, a part of a byte would be given
    let has_fraction = number.contains('.');
    let parts = digits(whole).zip(digits(fraction)).filter(|_| *unit > 1 || !has_fraction);
    let bytes = parts.and_then(|(whole, part)| {
        let unit = u128::from(*unit);
        let part = part * unit / 10u128.pow(fraction.len() as u32);
        u64::try_from(whole * unit + part).ok()
    });
    let want = "expected a size of at least 1 byte, for example 5GB, 500MB or 2GiB";
    bytes.filter(|&n| n > 0).ok_or_else(|| want.to_string())
}

/// A size in memory: at most that of the address space.
pub(super) fn saturating_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::byte_size;

    #[test]
    fn sizes_are_decimal_unless_the_unit_is_binary() {
        for (text, want) in [
            ("5GB", 5_000_000_000),
            ("500mb", 500_000_000),
            ("7KB", 7000),
            ("2GiB", 2 << 30),
            ("3mib", 3 << 20),
            ("1KiB", 1024),
            ("123", 123),
            ("1.5GB", 1_500_000_000),
            ("0.25MiB", 1 << 18),
            ("0.0015kb", 1),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(byte_size(text), Ok(want), "{text}");
        }
        for text in [
            "",
            "GB",
            "0",
            "0MB",
            "-1GB",
            "+1GB",
            "1.5",
            "1.GB",
            ".5GB",
            "0.0001KB",
            "1.5.5GB",
            "5 GB",
            "5TB",
            "99999999999GB",
        ] {
            assert!(byte_size(text).unwrap_err().contains("expected a size"), "{text}");
        }
    }
}
