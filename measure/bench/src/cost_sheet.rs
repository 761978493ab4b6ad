//! Cost files: TOML that says of each operation what it costs, and whether it was measured.
//!
//! ```toml
//! near = { value = 48.5, source = "measured" } # ns: a line comes from another CPU of this socket
//! far = { value = 120, source = "assumed" }    # ns: a line comes from another socket
//! ```
//! All fields of [`Costs`] stand in it, each once, in any order. A value that cannot be a cost is refused, with the number of its line.

use serde::Deserialize;
use slat_machine::costs::Costs;
use std::collections::BTreeMap;
use std::fmt;
use toml::{Spanned, Value};

/// A time is below this, in nanoseconds: a second, which no single operation takes.
const LONGEST: f64 = 1e9;

/// A file is shorter than this, in bytes: as long as any list of so few lines may be.
pub const LONGEST_FILE: usize = 1 << 16;

/// Where a cost comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// The content of a cost file.
#[derive(Clone, PartialEq, Debug)]
pub struct Sheet {
    /// The costs of operations.
    pub costs: Costs,
    /// Where each of [`Costs::FIELDS`] comes from.
    pub origins: [Origin; Costs::FIELDS.len()],
}

/// Why a text is no cost file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {flaw}")]
pub struct Error {
    /// Counted from 1; the last one where something is missing.
    pub line: usize,
    /// The error.
    pub flaw: String,
}

/// One cost of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    value: f64,
    source: Origin,
}

impl Sheet {
    /// Costs none of which was measured.
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
        let line_of = |byte: usize| text.bytes().take(byte).filter(|&byte| byte == b'\n').count() + 1;
        if text.len() >= LONGEST_FILE {
            let flaw = format!("a cost file ends before its byte {LONGEST_FILE}");
            return Err(Error { line: line_of(LONGEST_FILE), flaw });
        }
        let mut said: BTreeMap<String, Spanned<Value>> = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(span.start));
            Error { line, flaw: one_line(error.message()) }
        })?;
        let mut sheet = Self::assumed(Costs::SERVER);
        for (field, origin) in Costs::FIELDS.iter().zip(&mut sheet.origins) {
            let entry = said.remove(field.name).ok_or_else(|| Error {
                line: text.lines().count().max(1),
                flaw: format!("the file ends without `{}`", field.name),
            })?;
            let line = line_of(entry.span().start);
            let entry = entry_of(field.name, entry.into_inner()).map_err(|flaw| Error { line, flaw })?;
            (field.set)(&mut sheet.costs, entry.value);
            *origin = entry.source;
        }
        match said.into_iter().min_by_key(|(_, entry)| entry.span().start) {
            None => Ok(sheet),
            Some((name, entry)) => Err(Error {
                line: line_of(entry.span().start),
                flaw: one_line(&format!("`{name}` is no cost")),
            }),
        }
    }
}

/// Which of [`Costs::FIELDS`] has that name.
fn position(name: &str) -> Option<usize> {
    Costs::FIELDS.iter().position(|field| field.name == name)
}

/// The cost of this name, or the error in it.
fn entry_of(name: &str, said: Value) -> Result<Entry, String> {
    let bare = said.as_float().or(said.as_integer().map(|whole| whole as f64));
    if let Some(value) = bare {
        return Err(format!(
            "`{name}` has no source: a cost is `{name} = {{ value = {value}, source = \"measured\" }}`, or \"assumed\"; \
             `slat calibrate` writes such a file"
        ));
    }
    let entry = Entry::deserialize(said).map_err(|error| format!("{name}: {}", one_line(error.message())))?;
    check(name, entry.value).map_err(|wants| format!("{name}: {} is not {wants}", entry.value))?;
    Ok(entry)
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

/// As much of a complaint as fits into one line.
fn one_line(text: &str) -> String {
    text.chars().take(200).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# What operations cost; read by `slat sim --costs`.")?;
        for ((name, value, origin), field) in self.entries().zip(Costs::FIELDS) {
            let said = format!("{name} = {{ value = {value}, source = \"{}\" }}", origin.name());
            writeln!(f, "{said:<60} # {}: {}", field.unit, field.about)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::cost_sheet::*;

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
    fn entries_may_stand_in_any_order_and_form() {
        let text = sheet().to_string();
        let mut lines: Vec<_> = text.lines().rev().flat_map(|line| ["", "   # a remark", line]).collect();
        lines.push("  ");
        assert_eq!(Sheet::parse(&lines.join("\r\n")), Ok(sheet()));
        let (text, _) = with("near", "");
        let table = "[near]\nsource = 'measured'\nvalue = 48.125";
        assert_eq!(Sheet::parse(&format!("{text}\n{table}")), Ok(sheet()));
    }

    #[test]
    fn what_is_no_cost_is_refused_with_its_line() {
        for (line, says) in [
            ("near", "key with no value"),
            ("near = { value = , source = \"assumed\" }", ""),
            (
                "near = { value = 3, source = \"mesured\" }",
                "near: unknown variant `mesured`, expected `measured` or",
            ),
            ("near = { value = 3 }", "near: missing field `source`"),
            ("near = { source = \"measured\" }", "near: missing field `value`"),
            ("near = { value = \"3 ns\", source = \"assumed\" }", "near: invalid type: string \"3 ns\""),
            ("near = { value = 3, source = \"assumed\", unit = \"ns\" }", "near: unknown field `unit`"),
            (
                "near = { value = -1, source = \"assumed\" }",
                "near: -1 is not from 0 to less than 1000000000 ns",
            ),
            ("near = { value = nan, source = \"assumed\" }", "near: NaN is not from 0 to less than"),
            ("near = { value = inf, source = \"assumed\" }", "near: inf is not from 0 to less than"),
            ("near = { value = 1e9, source = \"assumed\" }", "near: 1000000000 is not from 0 to less than"),
            ("near = [1]", "near: invalid length"),
        ] {
            let (text, at) = with("near", line);
            let error = Sheet::parse(&text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("line {at}: {says}")) && !error.contains('\n'),
                "{line}: {error}"
            );
        }
        let near = "near = { value = 3, source = \"assumed\" }";
        let (text, at) = with("near", &format!("\"nea\\u001b\" = 3\n{near}"));
        assert_eq!(Sheet::parse(&text).unwrap_err().to_string(), format!("line {at}: `nea ` is no cost"));
        let (text, at) = with("near", &format!("{near}\n{near}"));
        let error = Sheet::parse(&text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("line {}: duplicate key", at + 1)), "{error}");
    }

    #[test]
    fn a_file_of_the_format_before_is_refused_with_what_to_write() {
        let (text, at) = with("near", "near = 48.5            # measured: a line comes from another CPU");
        let error = Sheet::parse(&text).unwrap_err().to_string();
        let says = "`near` has no source: a cost is `near = { value = 48.5, source = \"measured\" }`, or \"assumed\"; \
                    `slat calibrate` writes such a file";
        assert_eq!(error, format!("line {at}: {says}"));
    }

    #[test]
    fn sizes_and_bandwidth_have_bounds_of_their_own() {
        for (name, bad) in [
            ("cpus_per_socket", &["0", "1025", "1.5", "-8"][..]),
            ("bandwidth", &["0", "0.0001", "10000000", "-1"]),
        ] {
            for value in bad {
                let (text, at) = with(name, &format!("{name} = {{ value = {value}, source = \"assumed\" }}"));
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
