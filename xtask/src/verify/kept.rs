//! `verification/nightly.md`: what the last nightly run showed, step by step, kept in the repository, so that a tier that is
//! never run is seen. Each row says of which commit it is: a step that was run alone has a row of its own time.

use super::steps::{STEPS, Tier};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FILE: &str = "verification/nightly.md";
const HEAD: &str = "# The last nightly run

`cargo xtask nightly` writes a row when a step has ended; `cargo xtask nightly --only STEP` writes that step's alone. A row
of another commit is of an earlier run. A commit with `+` had changes that were not committed.

| step       | verdict | took, s | commit    | date       |
|------------|---------|---------|-----------|------------|
";

/// The file's rows.
#[derive(Default)]
pub struct Kept(Vec<Row>);

struct Row {
    step: String,
    verdict: String,
    took: String,
    commit: String,
    date: String,
}

impl Row {
    /// `| step | verdict | took | commit | date |`, of a step that there is.
    fn read(line: &str) -> Option<Self> {
        let mut cells = line.strip_prefix('|')?.split('|').map(|cell| cell.trim().to_owned());
        let mut next = || cells.next();
        let row = Self { step: next()?, verdict: next()?, took: next()?, commit: next()?, date: next()? };
        steps().any(|step| step == row.step).then_some(row)
    }
}

impl Kept {
    /// Reads the file below `root`, which may be missing.
    pub fn read(root: &Path) -> Result<Self, std::io::Error> {
        let path = root.join(FILE);
        if !path.exists() {
            return Ok(Self::default());
        }
        Ok(Self::of(&fs::read_to_string(path)?))
    }

    fn of(text: &str) -> Self {
        Self(text.lines().filter_map(Row::read).collect())
    }

    /// Writes the row of `step`, which has just ended.
    pub fn note(
        &mut self,
        root: &Path,
        step: &str,
        passed: bool,
        took: Duration,
    ) -> Result<(), Box<dyn Error>> {
        let verdict = if passed { "passed" } else { "FAILED" };
        let took = took.as_secs().to_string();
        let (commit, date) = (commit(root)?, said(Command::new("date").args(["-u", "+%F"]))?);
        self.set(Row { step: step.to_owned(), verdict: verdict.to_owned(), took, commit, date });
        fs::create_dir_all(root.join("verification"))?;
        Ok(fs::write(root.join(FILE), self.text())?)
    }

    fn set(&mut self, row: Row) {
        self.0.retain(|old| old.step != row.step);
        self.0.push(row);
        self.0.sort_by_key(|row| steps().position(|step| step == row.step));
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for Row { step, verdict, took, commit, date } in &self.0 {
            _ = writeln!(text, "| {step:<10} | {verdict:<7} | {took:>7} | {commit:<9} | {date:<10} |");
        }
        _ = write!(text, "\n{}\n", self.summary());
        text
    }

    /// What there is to say in one line.
    pub fn summary(&self) -> String {
        let failed = self.0.iter().filter(|row| row.verdict != "passed").count();
        let mut missing = steps().filter(|step| self.0.iter().all(|row| row.step != *step)).peekable();
        let mut text = format!("Nightly: {} of {} steps passed", self.0.len() - failed, steps().count());
        if let Some(last) = self.0.iter().map(|row| &row.date).max() {
            _ = write!(text, ", the last on {last}");
        }
        if missing.peek().is_some() {
            _ = write!(text, "; never run: {}", missing.collect::<Vec<_>>().join(", "));
        }
        text + "."
    }
}

/// The names of the steps of the nightly tier.
fn steps() -> impl Iterator<Item = &'static str> {
    STEPS.iter().filter(|step| step.of(Tier::Nightly).next().is_some()).map(|step| step.name)
}

/// The commit that is checked out, with `+` where anything but this file was changed.
fn commit(root: &Path) -> Result<String, Box<dyn Error>> {
    let git = |args: &[&str]| said(Command::new("git").args(args).current_dir(root));
    let changed = git(&["status", "--porcelain", "--", ".", &format!(":!{FILE}")])?;
    let commit = git(&["rev-parse", "--short=8", "HEAD"])?;
    Ok(if changed.is_empty() { commit } else { commit + "+" })
}

fn said(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: &str, verdict: &str) -> Row {
        let [commit, date] = ["12345678+", "2026-01-02"].map(str::to_owned);
        Row { step: step.to_owned(), verdict: verdict.to_owned(), took: "7".to_owned(), commit, date }
    }

    #[test]
    fn rows_are_read_as_they_were_written_and_replaced_by_name() {
        let mut kept = Kept::default();
        assert!(kept.summary().contains("0 of") && kept.summary().contains("never run: suite, loom"));
        kept.set(row("shuttle", "FAILED"));
        kept.set(row("loom", "passed"));
        let mut kept = Kept::of(&kept.text());
        assert_eq!(kept.0.iter().map(|row| row.step.as_str()).collect::<Vec<_>>(), ["loom", "shuttle"]);
        assert!(kept.summary().starts_with("Nightly: 1 of") && kept.summary().contains("2026-01-02"));
        kept.set(row("shuttle", "passed"));
        assert!(kept.summary().starts_with("Nightly: 2 of") && !kept.text().contains("FAILED"));
    }
}
