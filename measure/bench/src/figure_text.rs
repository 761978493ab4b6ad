//! Figures as people read them: three digits, and the unit that fits. A value that is no number is a dash.
//!
//! `report/page/figures.js` writes the figures of the page's tables by the same rules.

use indicatif::HumanCount;

/// Three digits that count, or all before the point.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        _ if !value.is_finite() => return "–".into(),
        _ if value < 0.0 => return format!("−{}", digits(-value)),
        0.0 => 0,
        size if size < 0.0995 => 4,
        size if size < 0.9995 => 3,
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => return HumanCount(value.round_ties_even() as u64).to_string(),
    };
    format!("{value:.decimals$}")
}

/// A count, or [`digits`] of what is no whole number.
pub fn plain(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1000.0 { value.to_string() } else { digits(value) }
}

/// Nanoseconds.
pub fn ns(value: f64) -> String {
    let units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3)];
    let fits = units.into_iter().find(|(_, scale)| value.abs() >= scale * 0.9995);
    let (unit, scale) = fits.unwrap_or(("ns", 1.0));
    if value.is_finite() { format!("{} {unit}", digits(value / scale)) } else { "–".into() }
}

/// A figure with its unit; times in the unit of time that fits.
pub fn with(value: f64, unit: &str) -> String {
    let (time, each) = unit.split_once(['/', ' ']).unwrap_or((unit, ""));
    let scale = match time {
        "ps" => Some(1e-3),
        "ns" => Some(1.0),
        "us" | "µs" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        _ => None,
    };
    match (scale, unit) {
        _ if !value.is_finite() => "–".into(),
        (Some(scale), _) if each.is_empty() => ns(value * scale),
        (Some(scale), _) => {
            let each = each.trim_start_matches("a ");
            let a = if each.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
            format!("{} {a} {each}", ns(value * scale))
        }
        (None, "share") => format!("{} %", digits(value * 100.0)),
        (None, "%") => format!("{} %", digits(value)),
        (None, "x" | "times" | "ratio") => times(value),
        (None, "") => plain(value),
        (None, unit) => format!("{} {unit}", plain(value)),
    }
}

/// So many times as much.
pub fn times(value: f64) -> String {
    if value.is_finite() { format!("{} ×", digits(value)) } else { "–".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_three_digits_and_the_unit_that_fits() {
        let numbers = [0.0, 0.3747, 3.1035, 9.996, 55.84, 99.96, 982_539.278, -1234.0].map(digits);
        assert_eq!(numbers, ["0", "0.375", "3.10", "10.0", "55.8", "100", "982,539", "−1,234"]);
        assert_eq!([5.0, 0.25, 999.6, 1e6].map(plain), ["5", "0.250", "1,000", "1,000,000"]);
        assert_eq!(
            [3.16, 999.99, 1500.0, 2.5e6, 13.47e9].map(ns),
            ["3.16 ns", "1.00 µs", "1.50 µs", "2.50 ms", "13.5 s"]
        );
        for (value, unit, says) in [
            (0.98, "share", "98.0 %"),
            (1.5, "us/iteration", "1.50 µs an iteration"),
            (85.0, "ps a leaf", "0.0850 ns a leaf"),
            (8625.0, "flushes", "8,625 flushes"),
            (0.39, "x", "0.390 ×"),
        ] {
            assert_eq!(with(value, unit), says);
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_a_dash() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!([digits(odd), plain(odd), ns(odd), with(odd, "ms"), times(odd)], ["–"; 5]);
        }
    }
}
