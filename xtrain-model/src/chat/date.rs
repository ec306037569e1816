//! `strftime_now`: the date that some templates write into their system prompt.

/// Formats `seconds` since 1970-01-01T00:00 with the directives of Python's `strftime` in the C locale. `None`: an
/// unsupported directive.
pub(super) fn strftime(format: &str, seconds: i64) -> Option<String> {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let noon = (hour + 11) % 12 + 1;
    let name = MONTHS.split(' ').nth(month as usize - 1)?;
    let weekday = WEEKDAYS[(days + 4).rem_euclid(7) as usize];
    let day_of_year = days - days_from(year, 1, 1) + 1;
    let (mut out, mut rest) = (String::new(), format.chars());
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next()?;
        let plain = directive == '-';
        if plain {
            directive = rest.next()?;
        }
        let number = |n: i64, width: usize| if plain { n.to_string() } else { format!("{n:0width$}") };
        let formatted = match directive {
            'Y' => year.to_string(),
            'y' => number(year.rem_euclid(100), 2),
            'm' => number(month, 2),
            'd' => number(day, 2),
            'e' if plain => day.to_string(),
            'e' => format!("{day:2}"),
            'H' => number(hour, 2),
            'I' => number(noon, 2),
            'M' => number(minute, 2),
            'S' => number(second % 60, 2),
            'j' => number(day_of_year, 3),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_string(),
            'B' => name.to_string(),
            'b' | 'h' => name[..3].to_string(),
            'A' => weekday.to_string(),
            'a' => weekday[..3].to_string(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'D' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            'T' => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            '%' => "%".to_string(),
            _ => return None,
        };
        out.push_str(&formatted);
    }
    Some(out)
}

const MONTHS: &str = "January February March April May June July August September October November December";
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The year, month and day of a day since 1970-01-01, in the Gregorian calendar. The computation counts years from
/// March, so that a leap day is the last day of its year. 400 years have 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    let since = days + 719_468;
    let (era, of_era) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = (from_march + 2) % 12 + 1;
    (era * 400 + year + i64::from(month < 3), month, of_year - (153 * from_march + 2) / 5 + 1)
}

/// The day since 1970-01-01 of a date.
fn days_from(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month < 3);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_python() {
        // datetime.fromtimestamp(s, UTC).strftime("%a %d %B %Y %-d %b %y %H:%M:%S %I %p %j") of Python 3.11
        for (seconds, want) in [
            (0, "Thu 01 January 1970 1 Jan 70 00:00:00 12 AM 001"),
            (951_827_696, "Tue 29 February 2000 29 Feb 00 12:34:56 12 PM 060"),
            (1_798_761_599, "Thu 31 December 2026 31 Dec 26 23:59:59 11 PM 365"),
            (4_107_542_400, "Mon 01 March 2100 1 Mar 00 00:00:00 12 AM 060"),
        ] {
            assert_eq!(strftime("%a %d %B %Y %-d %b %y %H:%M:%S %I %p %j", seconds).unwrap(), want);
        }
        // "%A %h %m %F %D %T" of the same
        for (seconds, want) in [
            (0, "Thursday Jan 01 1970-01-01 01/01/70 00:00:00"),
            (951_827_696, "Tuesday Feb 02 2000-02-29 02/29/00 12:34:56"),
            (1_798_761_599, "Thursday Dec 12 2026-12-31 12/31/26 23:59:59"),
        ] {
            assert_eq!(strftime("%A %h %m %F %D %T", seconds).unwrap(), want);
        }
        assert_eq!(strftime("%-y %-m %-H %-I %-M %-S %-j", 951_815_045).unwrap(), "0 2 9 9 4 5 60");
        assert_eq!(strftime("%e|%-e", 0).unwrap(), " 1|1");
        assert_eq!(strftime("100%%", 0).unwrap(), "100%");
        assert_eq!((strftime("%Q", 0), strftime("%", 0)), (None, None));
    }

    #[test]
    fn the_conversion_of_days_is_invertible() {
        for days in (-800_000..800_000).step_by(37) {
            let (year, month, day) = civil(days);
            assert_eq!(days_from(year, month, day), days);
        }
    }
}
