//! Sizes as the command line writes them.

/// Parses bytes, or a number with K, M, G or T (powers of 1024).
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        unit => return Err(format!("unknown unit `{unit}`: use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size such as 4K, 2M or 1G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 64 bits hold"))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(
            ["0", "4096", "4K", "2m", "1G", "12T"].map(|text| size(text).unwrap()),
            [0, 4096, 4096, 2 << 20, 1 << 30, 12 << 40]
        );
        for bad in ["", "K", "-1", "1.5G", "4KB", "20000000T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
