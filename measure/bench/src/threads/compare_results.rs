//! `slat bench compare OLD NEW`: two results of one bench, row by row, and which differences are more than noise.
//!
//! A row's factor is the median of OLD over that of NEW, so above 1 NEW takes less. Its interval is a bootstrap's: both sets of
//! samples are drawn again, with replacement, 2,000 times, and the middle 95 of 100 factors are kept. Where 1 lies inside, the
//! rows do not say which is faster.

use crate::threads::bench_report::{Report, Row, SCHEMA, Settings};
use crate::threads::samples::factor_interval;
use serde::Serialize;
use slat_cli::error::Error;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compare two results of one bench, as `--json` prints them: by how much each row changed, and whether that is more than noise
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  slat bench zap --json > old.json\n  slat bench zap --json > new.json\n  slat bench compare old.json new.json"
)]
pub struct Compare {
    /// The earlier result
    old: PathBuf,
    /// The later one
    new: PathBuf,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// The output.
#[derive(Debug, Serialize)]
struct Comparison {
    schema: u32,
    bench: String,
    /// Version, commit and day of each.
    old: String,
    new: String,
    /// In what they differ beside that: machine and settings.
    differ: Vec<String>,
    rows: Vec<Change>,
    /// Rows that only one of them has.
    only_old: usize,
    only_new: usize,
}

/// One row of both.
#[derive(Debug, Serialize)]
struct Change {
    name: String,
    settings: String,
    unit: String,
    old: f64,
    new: f64,
    /// `old / new`, and where it lies with 95 of 100; none where `new` is zero, or there are too few samples.
    factor: Option<f64>,
    interval: Option<[f64; 2]>,
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Less,
    More,
    /// The interval has 1 in it.
    WithinNoise,
    /// There is no interval.
    Undecided,
}

impl Compare {
    /// Prints the comparison to stdout.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let comparison = compare(&read(&self.old)?, &read(&self.new)?)?;
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &comparison).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            comparison.print(&mut out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn read(file: &Path) -> Result<Report, Error> {
    let wrong = |what: &dyn std::fmt::Display| Error::Usage(format!("{}: {what}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|error| wrong(&format!("not what `slat bench --json` prints: {error}")))?;
    match report.schema {
        SCHEMA => Ok(report),
        other => Err(wrong(&format!("schema {other}; this version reads {SCHEMA}"))),
    }
}

fn compare(old: &Report, new: &Report) -> Result<Comparison, Error> {
    if old.bench != new.bench {
        return Err(Error::Usage(format!("two benches: {} and {}", old.bench, new.bench)));
    }
    let is = |a: &Row, b: &Row| (&a.name, &a.params, &a.unit) == (&b.name, &b.params, &b.unit);
    let change = |row: &Row| Some(change(row, new.rows.iter().find(|other| is(row, other))?));
    let rows: Vec<Change> = old.rows.iter().filter_map(change).collect();
    if rows.is_empty() {
        return Err(Error::Usage("the two have no row in common: were the settings others?".into()));
    }
    let mut differ = Vec::new();
    if old.machine != new.machine {
        differ.push(format!("machine: {} / {}", old.machine, new.machine));
    }
    let value =
        |report: &Report, key: &String| report.params.get(key).map_or("-".into(), ToString::to_string);
    let keys = old.params.keys().chain(new.params.keys().filter(|key| !old.params.contains_key(*key)));
    for key in keys.filter(|key| old.params.get(*key) != new.params.get(*key)) {
        differ.push(format!("{key}: {} / {}", value(old, key), value(new, key)));
    }
    let of = |report: &Report| format!("{}, {}", report.slat, report.date);
    let (only_old, only_new) = (old.rows.len() - rows.len(), new.rows.len() - rows.len());
    let bench = old.bench.clone().into_owned();
    Ok(Comparison { schema: SCHEMA, bench, old: of(old), new: of(new), differ, rows, only_old, only_new })
}

fn change(old: &Row, new: &Row) -> Change {
    let factor = Some(old.slat / new.slat).filter(|factor| factor.is_finite());
    let enough = old.slat_samples.len().min(new.slat_samples.len()) >= 3;
    let interval = factor.filter(|_| enough).map(|_| factor_interval(&old.slat_samples, &new.slat_samples));
    let verdict = match interval {
        None => Verdict::Undecided,
        Some([least, _]) if least > 1.0 => Verdict::Less,
        Some([_, most]) if most < 1.0 => Verdict::More,
        Some(_) => Verdict::WithinNoise,
    };
    let settings = Settings(&old.params).to_string();
    let (name, unit) = (old.name.clone(), old.unit.clone().into_owned());
    Change { name, settings, unit, old: old.slat, new: new.slat, factor, interval, verdict }
}

impl Comparison {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "slat bench {}: {} → {}", self.bench, self.old, self.new)?;
        for differs in &self.differ {
            writeln!(out, "they differ in {differs}")?;
        }
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for group in self.rows.chunk_by(|a, b| (&a.settings, &a.unit) == (&b.settings, &b.unit)) {
            writeln!(out, "\n{}, {}", group[0].settings, group[0].unit)?;
            writeln!(out, "  {:width$} {:>10} {:>10}  old / new", "", "old", "new")?;
            for row in group {
                let factor = row.factor.map_or("-".into(), |factor| format!("{factor:.2}"));
                let interval = row.interval.map_or(String::new(), |[a, b]| format!(" ({a:.2}..{b:.2})"));
                let verdict = match row.verdict {
                    Verdict::Less => "less",
                    Verdict::More => "MORE",
                    Verdict::WithinNoise => "within noise",
                    Verdict::Undecided => "undecided",
                };
                let (old, new) = (row.old, row.new);
                writeln!(
                    out,
                    "  {:width$} {old:>10.1} {new:>10.1}  {factor}{interval}  {verdict}",
                    row.name
                )?;
            }
        }
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let [less, more, noise] = [Verdict::Less, Verdict::More, Verdict::WithinNoise].map(count);
        writeln!(out, "\n{} rows: {less} less, {more} more, {noise} within noise", self.rows.len())?;
        if self.only_old + self.only_new > 0 {
            writeln!(out, "rows of one only: {} of the old, {} of the new", self.only_old, self.only_new)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::bench_report::params;
    use crate::threads::machine_info::Machine;
    use crate::threads::samples::Series;

    fn report(samples: &[f64]) -> Report {
        let machine = Machine { cpu: None, cores: 2, os: "os".into(), arch: "arch".into() };
        let row = Row::alone("one", params! { "vcpus": 2 }, "ns", &Series::new(samples.to_vec()));
        Report { rows: vec![row], ..Report::of("example", machine) }
    }

    fn verdict(old: &[f64], new: &[f64]) -> Verdict {
        compare(&report(old), &report(new)).unwrap().rows[0].verdict
    }

    #[test]
    fn what_is_less_is_told_from_noise() {
        let old = [100.0, 101.0, 99.0, 100.5, 99.5];
        assert_eq!(verdict(&old, &old.map(|one| one / 2.0)), Verdict::Less);
        assert_eq!(verdict(&old, &old.map(|one| one * 2.0)), Verdict::More);
        assert_eq!(verdict(&old, &[50.0, 101.0, 150.0, 98.0, 102.0]), Verdict::WithinNoise);
        assert_eq!(verdict(&old, &[1.0]), Verdict::Undecided);
    }

    #[test]
    fn it_says_in_what_they_differ() {
        let (old, mut new) = (report(&[1.0]), report(&[1.0]));
        new.machine.cores = 16;
        new.params = params! { "runs": 3 };
        let differ = compare(&old, &new).unwrap().differ;
        assert!(differ[0].starts_with("machine: ") && differ[1] == "runs: - / 3", "{differ:?}");
        new.bench = "another".into();
        assert!(compare(&old, &new).is_err());
    }

    #[test]
    fn each_row_is_printed() {
        let mut text = Vec::new();
        compare(&report(&[2.0; 3]), &report(&[1.0; 3])).unwrap().print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("2.00 (2.00..2.00)  less"), "{text}");
        assert!(text.ends_with("1 rows: 1 less, 0 more, 0 within noise\n"), "{text}");
    }
}
