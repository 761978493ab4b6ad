//! Today's date, for results that are stored.

use std::time::{SystemTime, UNIX_EPOCH};

/// Today in UTC, as `2026-11-23`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    day(seconds / (24 * 3600))
}

/// The date of day `days` since 1970-01-01.
fn day(mut days: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::day;

    #[test]
    fn days_have_their_dates() {
        let dates = [0, 31, 59, 789, 11_016, 11_017, 20_780].map(day);
        let said = [
            "1970-01-01",
            "1970-02-01",
            "1970-03-01",
            "1972-02-29",
            "2000-02-29",
            "2000-03-01",
            "2026-11-23",
        ];
        assert_eq!(dates, said);
    }
}
