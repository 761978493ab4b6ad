//! Tables in Markdown, and the one in `proof/verdicts/nightly.md`: the results of the last nightly run, step by step,
//! kept in the repository, so that steps that never run are seen. Each row has its commit: a step that ran alone has a
//! later row.

use super::steps::{STEPS, Tier};
use crate::outcome::Outcome;
use crate::process::answer;
use anyhow::Result;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

const FILE: &str = "proof/verdicts/nightly.md";
const ABOUT: &str = "# The last nightly run

`cargo xtask nightly` writes a row when a step has ended; `cargo xtask nightly --only STEP` writes that step's alone. A row
of another commit is of an earlier run. A commit with `+` had changes that were not committed.
";
const HEAD: [&str; 5] = ["step", "verdict", "took, s", "commit", "date"];
const PASSED: &str = "passed";

/// The file's rows, as [`HEAD`] has them.
#[derive(Default)]
pub struct Kept(Vec<[String; 5]>);

impl Kept {
    /// Reads the file, which may be missing.
    pub fn read() -> Self {
        Self::of(&fs::read_to_string(FILE).unwrap_or_default())
    }

    /// Parses the rows of existing steps.
    fn of(text: &str) -> Self {
        let rows = text.lines().filter_map(cells::<5>);
        let rows = rows.filter(|row| steps().any(|step| step == row[0]));
        Self(rows.map(|row| row.map(str::to_owned)).collect())
    }

    /// Writes the row of `step`, which has just ended.
    pub fn note(&mut self, step: &str, passed: bool, took: Duration) -> Outcome {
        let verdict = if passed { PASSED } else { "FAILED" };
        let date = answer("date", "-u +%F")?;
        self.set([step.to_owned(), verdict.to_owned(), took.as_secs().to_string(), commit()?, date]);
        Ok(fs::write(FILE, self.text())?)
    }

    fn set(&mut self, row: [String; 5]) {
        self.0.retain(|old| old[0] != row[0]);
        self.0.push(row);
        self.0.sort_by_key(|row| steps().position(|step| step == row[0]));
    }

    fn text(&self) -> String {
        format!("{ABOUT}\n{}\n{}\n", table(HEAD, self.0.clone()), self.summary())
    }

    /// Returns a summary of one line.
    pub fn summary(&self) -> String {
        let passed = self.0.iter().filter(|[_, verdict, ..]| verdict == PASSED).count();
        let mut text = format!("Nightly: {passed} of {} steps passed", steps().count());
        if let Some(last) = self.0.iter().map(|[.., date]| date).max() {
            _ = write!(text, ", the last on {last}");
        }
        let missing: Vec<_> = steps().filter(|name| !self.0.iter().any(|[step, ..]| step == name)).collect();
        if !missing.is_empty() {
            _ = write!(text, "; never run: {}", missing.join(", "));
        }
        text + "."
    }
}

/// Returns the names of the steps of the nightly tier.
fn steps() -> impl Iterator<Item = &'static str> {
    STEPS.iter().filter(|step| step.of(Tier::Nightly).next().is_some()).map(|step| step.name)
}

/// Returns the current commit, with `+` if anything but this file was changed.
fn commit() -> Result<String> {
    let changed = answer("git", &format!("status --porcelain -- . :!{FILE}"))?;
    let commit = answer("git", "rev-parse --short=8 HEAD")?;
    Ok(if changed.is_empty() { commit } else { commit + "+" })
}

/// Formats a table with columns as wide as their widest cell.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = [head.map(str::to_owned)].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let cell = |(cell, width): (&String, usize)| format!(" {cell:width$} ");
    let line = |row: &[String; N]| row.iter().zip(widths).map(cell).collect::<Vec<_>>().join("|");
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    lines.insert(1, widths.map(|width| "-".repeat(width + 2)).join("|"));
    format!("|{}|\n", lines.join("|\n|"))
}

/// Parses the cells of a table's row with at least `N` cells; the line of dashes is no row. Removes the marks of code.
pub fn cells<const N: usize>(line: &str) -> Option<[&str; N]> {
    let cells = line.strip_prefix('|')?.split('|').map(|cell| cell.trim().trim_matches('`'));
    let cells: Vec<&str> = cells.take(N).collect();
    cells.try_into().ok().filter(|cells: &[&str; N]| !cells[0].starts_with("--"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written_and_replaced_by_name() {
        let row =
            |step: &str, verdict: &str| [step, verdict, "7", "12345678+", "2026-01-02"].map(str::to_owned);
        let mut kept = Kept::default();
        assert!(kept.summary().contains("0 of") && kept.summary().contains("never run: suite, loom"));
        kept.set(row("shuttle", "FAILED"));
        kept.set(row("loom", PASSED));
        let mut kept = Kept::of(&kept.text());
        assert_eq!(kept.0, [row("loom", PASSED), row("shuttle", "FAILED")]);
        assert!(kept.summary().starts_with("Nightly: 1 of") && kept.summary().contains("2026-01-02"));
        kept.set(row("shuttle", PASSED));
        assert!(kept.summary().starts_with("Nightly: 2 of") && !kept.text().contains("FAILED"));
    }

    #[test]
    fn a_written_table_is_read_back() {
        let text = table(["what", "n"], [["`a-b`", "7"], ["c", "12,000"]].map(|row| row.map(str::to_owned)));
        assert_eq!(text.lines().nth(2), Some("| `a-b` | 7      |"));
        let rows: Vec<[&str; 2]> = text.lines().filter_map(cells).collect();
        assert_eq!(rows, [["what", "n"], ["a-b", "7"], ["c", "12,000"]]);
        assert_eq!((cells::<9>("| a | b |"), cells::<1>("words")), (None, None));
    }
}
