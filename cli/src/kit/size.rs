//! Sizes and times on the command line.

use std::time::Duration;

/// Parses a number of bytes. The suffixes K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").unwrap_or(&unit) {
        "" if unit.is_empty() => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => {
            return Err(format!("unknown unit `{unit}`: K, M, G and T are powers of 1024, as in 8G or 8GiB"));
        }
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size such as 4K, 2M or 1G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 64 bits hold"))
}

/// Formats bytes so that [`size`] parses them, in the largest unit that divides them.
pub fn text(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let whole = units.into_iter().find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    let (unit, shift) = whole.unwrap_or(("", 0));
    format!("{}{unit}", bytes >> shift)
}

/// Parses a number of seconds, of which `least` and `most` are allowed.
pub fn seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) => Err(format!("from {least} to {most} seconds")),
        Err(_) => Err(format!("`{text}` is no number of seconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::{size, text};

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(
            ["0", "4096", "4K", "2m", "1G", "12T", "8GiB", "3kib"].map(|text| size(text).unwrap()),
            [0, 4096, 4096, 2 << 20, 1 << 30, 12 << 40, 8 << 30, 3 << 10]
        );
        for bad in ["", "K", "-1", "1.5G", "4KB", "4iB", "20000000T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(size("8GB").unwrap_err().ends_with("as in 8G or 8GiB"));
    }

    #[test]
    fn a_size_is_written_as_it_is_read() {
        assert_eq!(
            [0, 4097, 4096, 3 << 20, 64 << 30, 12 << 40].map(text),
            ["0", "4097", "4K", "3M", "64G", "12T"]
        );
    }
}
