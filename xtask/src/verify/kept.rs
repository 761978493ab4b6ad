//! `verification/nightly.md`: what the last nightly run showed, step by step, kept in the repository, so that a tier that is
//! never run is seen. Each row says of which commit it is: a step that was run alone has a row of its own time.

use super::steps::{STEPS, Tier};
use crate::process::said;
use crate::{Outcome, table};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FILE: &str = "verification/nightly.md";
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
    pub fn read() -> Result<Self, std::io::Error> {
        if Path::new(FILE).exists() { Ok(Self::of(&fs::read_to_string(FILE)?)) } else { Ok(Self::default()) }
    }

    /// Rows of steps that there are.
    fn of(text: &str) -> Self {
        let rows = text
            .lines()
            .filter_map(table::cells)
            .filter(|row: &[&str; 5]| steps().any(|step| step == row[0]));
        Self(rows.map(|row| row.map(str::to_owned)).collect())
    }

    /// Writes the row of `step`, which has just ended.
    pub fn note(&mut self, step: &str, passed: bool, took: Duration) -> Outcome {
        let verdict = if passed { PASSED } else { "FAILED" };
        let date = output("date", &["-u", "+%F"])?;
        self.set([step.to_owned(), verdict.to_owned(), took.as_secs().to_string(), commit()?, date]);
        fs::create_dir_all("verification")?;
        Ok(fs::write(FILE, self.text())?)
    }

    fn set(&mut self, row: [String; 5]) {
        self.0.retain(|old| old[0] != row[0]);
        self.0.push(row);
        self.0.sort_by_key(|row| steps().position(|step| step == row[0]));
    }

    fn text(&self) -> String {
        format!("{ABOUT}\n{}\n{}\n", table::write(HEAD, self.0.clone()), self.summary())
    }

    /// What there is to say in one line.
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

/// The names of the steps of the nightly tier.
fn steps() -> impl Iterator<Item = &'static str> {
    STEPS.iter().filter(|step| step.of(Tier::Nightly).next().is_some()).map(|step| step.name)
}

/// The commit that is checked out, with `+` where anything but this file was changed.
fn commit() -> Result<String, Box<dyn Error>> {
    let changed = output("git", &["status", "--porcelain", "--", ".", &format!(":!{FILE}")])?;
    let commit = output("git", &["rev-parse", "--short=8", "HEAD"])?;
    Ok(if changed.is_empty() { commit } else { commit + "+" })
}

fn output(program: &str, arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    Ok(said(Command::new(program).args(arguments))?.succeeded()?.out.trim().to_owned())
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
}
