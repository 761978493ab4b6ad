//! Formats figures with three digits and a unit, at most seven characters wide.

/// A count: `0`, `950`, `31.2k`, `2.13M`.
pub fn count(value: f64) -> String {
    let value = if value.is_finite() { value.max(0.0) } else { 0.0 };
    if value > 0.0 && value < 9.95 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let units = ["", "k", "M", "G", "T", "P", "E"];
    scaled(value, 1000.0, &units)
}

/// Bytes: `4K`, `169M`, `1.5G`.
pub fn bytes(value: u64) -> String {
    scaled(value as f64, 1024.0, &["B", "K", "M", "G", "T", "P", "E"])
}

/// Formats `value` with three digits, and returns its unit.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    // A value that rounds up to the next unit is shown in that unit.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    let mut text = format!("{value:.digits$}");
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    text + units[unit]
}

/// A share in percent: `99.98%`, `0.268%`, `100%`.
pub fn percent(value: f64) -> String {
    match value {
        value if value >= 99.995 || value == 0.0 => format!("{value:.0}%"),
        value if value >= 9.995 => format!("{value:.2}%"),
        value => format!("{value:.3}%"),
    }
}

/// A time in milliseconds: `50 ms`, `0.5 s`, `4 s`, `12 min`.
pub fn time(ms: u64) -> String {
    match ms {
        0..100 => format!("{ms} ms"),
        100..10_000 if ms % 1000 >= 50 => format!("{:.1} s", ms as f64 / 1e3),
        1000..120_000 => format!("{} s", ms / 1000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        for (value, text) in [
            (0.0, "0"),
            (0.04, "0.0"),
            (2.5, "2.5"),
            (7.0, "7"),
            (950.4, "950"),
            (999.4, "999"),
            (999.6, "1k"),
            (31_240.0, "31.2k"),
            (999_950.0, "1M"),
            (2_131_309.0, "2.13M"),
            (f64::INFINITY, "0"),
            (f64::NAN, "0"),
            (-1.0, "0"),
        ] {
            assert_eq!(count(value), text);
        }
        for (value, text) in
            [(0, "0B"), (4096, "4K"), (177_160_192, "169M"), (3 << 29, "1.5G"), (u64::MAX, "16E")]
        {
            assert_eq!(bytes(value), text);
        }
        for (value, text) in [(0.0, "0%"), (0.26821, "0.268%"), (83.2, "83.20%"), (100.0, "100%")] {
            assert_eq!(percent(value), text);
        }
        for (ms, text) in [
            (50, "50 ms"),
            (508, "0.5 s"),
            (1000, "1 s"),
            (1500, "1.5 s"),
            (64_000, "64 s"),
            (720_000, "12 min"),
        ] {
            assert_eq!(time(ms), text);
        }
        assert!((0..200).all(|power| count(1.37_f64.powi(power)).len() <= 24));
    }
}
