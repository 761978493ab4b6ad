//! Figures as people read them: three digits, and the unit that fits. A value that is no number is a dash.

use indicatif::HumanCount;

/// Three digits or so, with no unit.
pub fn plain(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "–".into(),
        _ if value < 0.0 => format!("−{}", plain(size)),
        _ if size >= 1e15 => format!("{value:.2e}"),
        _ if size >= 1000.0 => HumanCount(value.round() as u64).to_string(),
        _ if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// Nanoseconds.
pub fn ns(value: f64) -> String {
    if value.is_finite() { time(value, digits) } else { "–".into() }
}

/// Nanoseconds on an axis.
pub fn short_ns(value: f64) -> String {
    time(value, tick)
}

fn time(ns: f64, text: fn(f64) -> String) -> String {
    let (unit, scale) = largest([("s", 1e9), ("ms", 1e6), ("µs", 1e3)], ns).unwrap_or(("ns", 1.0));
    format!("{} {unit}", text(ns / scale))
}

/// The first of these units, from the largest, that the figure has one of.
fn largest(units: [(&'static str, f64); 3], value: f64) -> Option<(&'static str, f64)> {
    units.into_iter().find(|(_, scale)| value.abs() >= *scale * 0.9995)
}

/// A figure with its unit; times in the unit of time that fits.
pub fn with(value: f64, unit: &str) -> String {
    let (time, each) = unit.split_once(['/', ' ']).unwrap_or((unit, ""));
    match (of_time(time), unit) {
        _ if !value.is_finite() => "–".into(),
        (Some(scale), _) if each.is_empty() => ns(value * scale),
        (Some(scale), _) => {
            let each = each.trim_start_matches("a ");
            let a = if each.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
            format!("{} {a} {each}", ns(value * scale))
        }
        (None, "share") => percent(value),
        (None, "%") => format!("{} %", digits(value)),
        (None, "x" | "times" | "ratio") => times(value),
        (None, "") => plain(value),
        (None, unit) => format!("{} {unit}", plain(value)),
    }
}

/// Nanoseconds in this unit, if it is one of time.
pub fn of_time(unit: &str) -> Option<f64> {
    match unit {
        "ps" => Some(1e-3),
        "ns" => Some(1.0),
        "us" | "µs" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        _ => None,
    }
}

/// So many times as much.
pub fn times(value: f64) -> String {
    if value.is_finite() { format!("{} ×", digits(value)) } else { "–".into() }
}

/// A share of 1.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        _ if !share.is_finite() => "–".into(),
        _ if percent < 0.0 => format!("−{}", self::percent(-share)),
        size if size >= 99.95 || size == 0.0 => format!("{percent:.0} %"),
        size if size >= 9.995 => format!("{percent:.1} %"),
        size if size >= 0.005 => format!("{percent:.2} %"),
        _ => "less than 0.01 %".into(),
    }
}

/// A tick of an axis: short, and exact.
pub fn tick(value: f64) -> String {
    let (unit, scale) = largest([("G", 1e9), ("M", 1e6), ("k", 1e3)], value).unwrap_or(("", 1.0));
    let mut text = format!("{:.4}", value / scale);
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    text + unit
}

fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value < 0.0 => format!("−{}", digits(size)),
        _ if size >= 1000.0 => HumanCount(value.round() as u64).to_string(),
        _ if size >= 99.95 => format!("{value:.0}"),
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_three_digits_and_the_unit_that_fits() {
        assert_eq!(
            [0.0, 5.0, 0.25, 12.34, 999.6, 1e6].map(plain),
            ["0", "5", "0.25", "12.3", "1000", "1,000,000"]
        );
        assert_eq!(
            [3.16, 999.99, 1500.0, 2.5e6, 13.47e9].map(ns),
            ["3.16 ns", "1.00 µs", "1.50 µs", "2.50 ms", "13.5 s"]
        );
        assert_eq!(with(0.98, "share"), "98.0 %");
        assert_eq!(with(1.5, "us/iteration"), "1.50 µs an iteration");
        assert_eq!(with(85.0, "ps a leaf"), "0.0850 ns a leaf");
        assert_eq!(with(8625.0, "flushes"), "8,625 flushes");
        assert_eq!([1.0, 2000.0, 2.5e6, 0.05].map(tick), ["1", "2k", "2.5M", "0.05"]);
        assert_eq!(
            [0.0, 0.005, 0.98, 1.0, -0.067].map(percent),
            ["0 %", "0.50 %", "98.0 %", "100 %", "−6.70 %"]
        );
        assert_eq!(
            (times(-12.0), plain(-1500.0), percent(1e-9)),
            ("−12.0 ×".into(), "−1,500".into(), "less than 0.01 %".into())
        );
    }

    #[test]
    fn what_is_no_number_is_a_dash() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!([plain(odd), ns(odd), with(odd, "ms"), times(odd), percent(odd)], ["–"; 5]);
        }
    }
}
