//! Cost files: what a machine's operations cost, one on a line, and whether somebody measured it.
//!
//! ```text
//! # What operations cost on this machine, in ns unless a line says otherwise.
//! near = 48.5            # measured: a line comes from another CPU of this socket
//! far = 120              # assumed: a line comes from another socket
//! ```
//! All fields of [`Costs`] stand in it, each once, in any order. Only what follows the word `measured` in the remark was
//! measured; whatever else is written there, or nothing, is taken for assumed, so that a cost changed by hand makes no
//! claim by accident. What cannot be a cost is refused, with the number of its line.

use super::Costs;
use core::fmt::{self, Write as _};

/// A time is below this, in nanoseconds: a second, which no single operation takes.
const LONGEST: f64 = 1e9;

/// A file is shorter than this, in bytes: as long as any list of so few lines may be.
pub const LONGEST_FILE: usize = 1 << 16;

/// Where a cost comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// On a machine, by `slat calibrate`.
    Measured,
    /// From what machines of its kind are said to do.
    Assumed,
}

impl Origin {
    /// As files and reports write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Assumed => "assumed",
        }
    }
}

/// What a cost file says.
#[derive(Clone, PartialEq, Debug)]
pub struct Sheet {
    /// What operations cost.
    pub costs: Costs,
    /// Where each of [`Costs::FIELDS`] comes from.
    pub origins: [Origin; Costs::FIELDS.len()],
}

/// Why a text is no cost file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Counted from 1; the last one where something is missing.
    pub line: usize,
    /// What is wrong with it.
    pub flaw: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.flaw)
    }
}

impl core::error::Error for Error {}

impl Sheet {
    /// Costs of which nobody has measured any.
    pub const fn assumed(costs: Costs) -> Self {
        Self { costs, origins: [Origin::Assumed; Costs::FIELDS.len()] }
    }

    /// Each cost: its name, its value, and where it comes from.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, f64, Origin)> {
        Costs::FIELDS
            .iter()
            .zip(&self.origins)
            .map(|(field, &origin)| (field.name, (field.get)(&self.costs), origin))
    }

    /// Notes that the cost of this name was measured.
    ///
    /// # Panics
    /// Where no cost has that name.
    pub fn measured(&mut self, name: &str, value: f64) {
        let at = position(name).expect("measured costs are fields");
        (Costs::FIELDS[at].set)(&mut self.costs, value);
        self.origins[at] = Origin::Measured;
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() >= LONGEST_FILE {
            let line = text.as_bytes()[..LONGEST_FILE].split(|&byte| byte == b'\n').count();
            return Err(Error { line, flaw: format!("a cost file ends before its byte {LONGEST_FILE}") });
        }
        let mut sheet = Self::assumed(Costs::SERVER);
        let mut seen = [None; Costs::FIELDS.len()];
        for (line, text) in (1..).zip(text.lines()) {
            let refuse = |flaw| Error { line, flaw };
            let Some((at, value, origin)) = entry(text).map_err(refuse)? else { continue };
            if let Some(before) = seen[at].replace(line) {
                return Err(refuse(format!("`{}` stands in line {before}, too", Costs::FIELDS[at].name)));
            }
            (Costs::FIELDS[at].set)(&mut sheet.costs, value);
            sheet.origins[at] = origin;
        }
        match seen.iter().position(Option::is_none) {
            None => Ok(sheet),
            Some(at) => Err(Error {
                line: text.lines().count().max(1),
                flaw: format!("the file ends without `{}`", Costs::FIELDS[at].name),
            }),
        }
    }
}

/// Which of [`Costs::FIELDS`] has that name.
fn position(name: &str) -> Option<usize> {
    Costs::FIELDS.iter().position(|field| field.name == name)
}

/// What a line says, if it says anything.
fn entry(text: &str) -> Result<Option<(usize, f64, Origin)>, String> {
    let (said, remark) = text.split_once('#').unwrap_or((text, ""));
    if said.trim().is_empty() {
        return Ok(None);
    }
    let (name, value) = said
        .split_once('=')
        .map(|(name, value)| (name.trim(), value.trim()))
        .ok_or_else(|| format!("`{}` is no `name = value`", short(said.trim())))?;
    let at = position(name).ok_or_else(|| format!("`{}` is no cost", short(name)))?;
    let number = value.parse().map_err(|_| format!("{name}: `{}` is no number", short(value)))?;
    check(name, number).map_err(|wants| format!("{name}: {} is not {wants}", short(value)))?;
    let is_measured = remark.trim_start().starts_with(Origin::Measured.name());
    Ok(Some((at, number, if is_measured { Origin::Measured } else { Origin::Assumed })))
}

/// Whether the value is one that this cost can have; otherwise what it had to be.
fn check(name: &str, value: f64) -> Result<(), &'static str> {
    let (fits, wants) = match name {
        "cpus_per_socket" => {
            (value.fract() == 0.0 && (1.0..=1024.0).contains(&value), "a whole number from 1 to 1024")
        }
        "bandwidth" => ((0.001..=1e6).contains(&value), "from 0.001 to 1000000 bytes per ns"),
        _ => ((0.0..LONGEST).contains(&value), "from 0 to less than 1000000000 ns"),
    };
    if fits { Ok(()) } else { Err(wants) }
}

/// As much of a text as fits into one line of complaint.
fn short(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# What operations cost, in ns unless a line says otherwise; read by `slat sim --costs`."
        )?;
        for ((name, value, origin), field) in self.entries().zip(Costs::FIELDS) {
            let mut said = String::new();
            write!(said, "{name} = {value}")?;
            let unit = if field.unit == "ns" { String::new() } else { format!(" ({})", field.unit) };
            writeln!(f, "{said:<24} # {}: {}{unit}", origin.name(), field.about)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let mut sheet = Sheet::assumed(Costs::SERVER);
        sheet.measured("near", 48.125);
        sheet
    }

    /// The file with the line of `name` replaced, and that line's number.
    fn with(name: &str, line: &str) -> (String, usize) {
        let text = sheet().to_string();
        let begins = |text: &str| text.split('=').next().unwrap().trim() == name;
        let at = text.lines().position(begins).unwrap();
        (text.lines().map(|old| if begins(old) { line } else { old }).collect::<Vec<_>>().join("\n"), at + 1)
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let read = Sheet::parse(&sheet().to_string()).unwrap();
        assert_eq!(read, sheet());
        assert_eq!(read.costs.near.to_bits(), 48.125_f64.to_bits());
        let measured: Vec<_> =
            read.entries().filter(|entry| entry.2 == Origin::Measured).map(|entry| entry.0).collect();
        assert_eq!(measured, ["near"]);
    }

    #[test]
    fn lines_may_stand_in_any_order_and_say_nothing() {
        let text = sheet().to_string();
        let mut lines: Vec<_> = text.lines().rev().flat_map(|line| ["", "   # a remark", line]).collect();
        lines.push("  ");
        assert_eq!(Sheet::parse(&lines.join("\r\n")), Ok(sheet()));
    }

    #[test]
    fn what_was_changed_by_hand_was_not_measured() {
        for remark in ["", "# mesured: near", "# not measured", "# assumed: measured elsewhere"] {
            let (text, _) = with("near", &format!("near = 50 {remark}"));
            assert_eq!(
                Sheet::parse(&text).unwrap().origins,
                Sheet::assumed(Costs::SERVER).origins,
                "{remark}"
            );
        }
    }

    #[test]
    fn what_is_no_cost_is_refused_with_its_line() {
        for (line, says) in [
            ("near", "`near` is no `name = value`"),
            ("nea = 3", "`nea` is no cost"),
            ("= 3", "`` is no cost"),
            ("near = ", "near: `` is no number"),
            ("near = 3 ns", "near: `3 ns` is no number"),
            ("near = 3 = 4", "near: `3 = 4` is no number"),
            ("near = -1", "near: -1 is not from 0 to less than 1000000000 ns"),
            ("near = NaN", "near: NaN is not from 0 to less than 1000000000 ns"),
            ("near = inf", "near: inf is not from 0 to less than 1000000000 ns"),
            ("near = 1e9", "near: 1e9 is not from 0 to less than 1000000000 ns"),
            ("far = 60", "`far` stands in line "),
            ("near\u{1b}[2J = 1", "`near\\u{1b}[2J` is no cost"),
        ] {
            let (text, at) = with("near", line);
            let error = Sheet::parse(&text).unwrap_err().to_string();
            // A field that stands twice is noticed where it stands the second time.
            let at = if line.starts_with("far") { at + 1 } else { at };
            assert!(error.starts_with(&format!("line {at}: {says}")), "{line}: {error}");
        }
    }

    #[test]
    fn sizes_and_bandwidth_have_bounds_of_their_own() {
        for (name, bad) in [
            ("cpus_per_socket", &["0", "1025", "1.5", "-8", "1e300", "NaN"][..]),
            ("bandwidth", &["0", "0.0001", "1e7", "-1", "inf"]),
        ] {
            for value in bad {
                let (text, at) = with(name, &format!("{name} = {value}"));
                let error = Sheet::parse(&text).unwrap_err();
                assert_eq!(error.line, at);
                assert!(error.flaw.starts_with(&format!("{name}: {value} is not ")), "{error}");
            }
        }
    }

    #[test]
    fn nothing_may_be_missing() {
        let (text, _) = with("near", "");
        let lines = text.lines().count();
        assert_eq!(
            Sheet::parse(&text).unwrap_err().to_string(),
            format!("line {lines}: the file ends without `near`")
        );
        assert_eq!(Sheet::parse("").unwrap_err().line, 1);
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = Sheet::parse(&"#\n".repeat(LONGEST_FILE)).unwrap_err();
        assert_eq!(error.flaw, "a cost file ends before its byte 65536");
    }
}
