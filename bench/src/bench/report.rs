//! What a bench hands back: figures before against after, and the conditions under which they count.
//!
//! One [`Report`] has two faces, a table for people and one JSON object for programs, and both carry the
//! same rows. A false [`Check`] makes the figures worthless; the process then exits with status 1.

use super::harness::Series;
use super::machine::Machine;
use crate::series;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// The outcome of one bench.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Its name on the command line.
    pub bench: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// With what settings.
    pub params: Map<String, Value>,
    /// Baseline against slat, one comparison each. Rows with equal parameters stand together.
    pub rows: Vec<Row>,
    /// What must hold for the rows to mean anything.
    pub checks: Vec<Check>,
}

/// One comparison.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What the baseline is; or what was done, where the baseline is the same in all rows.
    pub name: String,
    /// Settings of this row, beyond those of the bench.
    pub params: Map<String, Value>,
    /// Median of the baseline; `None` where slat ran alone.
    pub baseline: Option<f64>,
    /// Median of slat.
    pub slat: f64,
    /// Unit of both.
    pub unit: &'static str,
    /// `baseline / slat`: above 1, slat is the faster.
    pub ratio: Option<f64>,
    /// The patch series whose claim this row answers.
    pub seed: Option<&'static str>,
    /// The ratio which that series reports, where it reports one for this very comparison.
    pub seed_ratio: Option<f64>,
    /// Least and greatest sample of the baseline.
    pub baseline_range: Option<[f64; 2]>,
    /// Least and greatest sample of slat.
    pub slat_range: [f64; 2],
}

impl Row {
    /// Compares two figures taken in the same rounds.
    pub fn compare(
        name: &str,
        params: Map<String, Value>,
        unit: &'static str,
        baseline: &Series,
        slat: &Series,
    ) -> Self {
        Self {
            baseline: Some(baseline.median()),
            // None of none is no ratio.
            ratio: Some(baseline.median() / slat.median()).filter(|ratio| ratio.is_finite()),
            baseline_range: Some(baseline.range()),
            ..Self::alone(name, params, unit, slat)
        }
    }

    /// A figure of slat's that has nothing to be compared with.
    pub fn alone(name: &str, params: Map<String, Value>, unit: &'static str, slat: &Series) -> Self {
        Self {
            name: name.to_owned(),
            params,
            baseline: None,
            slat: slat.median(),
            unit,
            ratio: None,
            seed: None,
            seed_ratio: None,
            baseline_range: None,
            slat_range: slat.range(),
        }
    }

    /// Names the series that this row answers.
    #[must_use]
    pub fn answering(mut self, seed: Option<&'static str>) -> Self {
        self.seed = seed;
        self
    }

    /// The ratio that the series reports for this very comparison.
    #[must_use]
    pub fn claiming(mut self, ratio: Option<f64>) -> Self {
        self.seed_ratio = ratio;
        self
    }
}

/// A condition of the whole bench.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What must hold.
    pub name: String,
    /// Whether it held, in every round.
    pub ok: bool,
    /// The count behind the verdict.
    pub detail: String,
}

impl Report {
    /// Prints to stdout, as JSON or as a table, and returns the exit status: 1 if any check is false.
    pub fn finish(&self, json: bool) -> io::Result<ExitCode> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            writeln!(out)?;
        } else {
            write!(out, "{self}")?;
        }
        Ok(if self.checks.iter().all(|check| check.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, os, arch } = &self.machine;
        let cpu = cpu.as_deref().unwrap_or("unknown CPU");
        writeln!(f, "slat bench {}: {cpu}, {cores} cores, {arch}, {os}", self.bench)?;
        writeln!(f, "{}; median (min..max); ratio = baseline / slat", Settings(&self.params))?;

        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for group in self.rows.chunk_by(|a, b| a.params == b.params && a.unit == b.unit) {
            writeln!(f, "\n{}, {}", Settings(&group[0].params), group[0].unit)?;
            writeln!(f, "  {:width$} {:>23} {:>23} {:>8}  series", "", "baseline", "slat", "ratio")?;
            for row in group {
                let baseline = row.baseline.zip(row.baseline_range);
                let baseline =
                    baseline.map_or_else(|| "-".into(), |(all, range)| Figure(all, range).to_string());
                let slat = Figure(row.slat, row.slat_range).to_string();
                let ratio = row.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"));
                write!(f, "  {:width$} {baseline:>23} {slat:>23} {ratio:>8}", row.name)?;
                match (row.seed, row.seed_ratio) {
                    (Some(seed), Some(ratio)) => writeln!(f, "  {} ({ratio:.2}x)", series::name(seed))?,
                    (Some(seed), None) => writeln!(f, "  {}", series::name(seed))?,
                    (None, _) => writeln!(f)?,
                }
            }
        }

        writeln!(f)?;
        let failed: Vec<&Check> = self.checks.iter().filter(|check| !check.ok).collect();
        for check in &failed {
            writeln!(f, "FAILED {}: {}", check.name, check.detail)?;
        }
        writeln!(f, "checks: {} of {} hold", self.checks.len() - failed.len(), self.checks.len())
    }
}

/// A median with its range, to three digits or so.
struct Figure(f64, [f64; 2]);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(median, [min, max]) = *self;
        let decimals = usize::from(median < 100.0);
        write!(f, "{median:.decimals$} ({min:.decimals$}..{max:.decimals$})")
    }
}

/// Parameters as words: `order random, vcpus 2`.
struct Settings<'a>(&'a Map<String, Value>);

impl fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (key, value)) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            match value {
                Value::String(text) => write!(f, "{comma}{key} {text}")?,
                other => write!(f, "{comma}{key} {other}")?,
            }
        }
        Ok(())
    }
}

/// Builds a parameter map from a JSON object literal.
macro_rules! params {
    ($($key:literal: $value:expr),* $(,)?) => {
        serde_json::Map::from_iter([$(($key.to_owned(), serde_json::json!($value))),*])
    };
}
pub(crate) use params;

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ok: bool) -> Report {
        let (before, after) = (Series::new(vec![30.0, 20.0, 25.0]), Series::new(vec![10.0]));
        Report {
            bench: "example",
            machine: Machine { cpu: None, cores: 2, os: "os".into(), arch: "arch" },
            params: params! { "runs": 3 },
            rows: vec![
                Row::compare("lock", params! { "vcpus": 2, "order": "random" }, "ns/fault", &before, &after)
                    .answering(Some("003")),
            ],
            checks: vec![Check { name: "sums agree".into(), ok, detail: "3 of 4".into() }],
        }
    }

    #[test]
    fn the_table_shows_ratio_spread_and_series() {
        let text = report(true).to_string();
        assert!(text.contains("order random, vcpus 2, ns/fault"), "{text}");
        assert!(text.contains("25.0 (20.0..30.0)") && text.contains("2.50x  TDP MMU"), "{text}");
        assert!(text.ends_with("checks: 1 of 1 hold\n"), "{text}");
    }

    #[test]
    fn json_has_every_promised_key() {
        let value = serde_json::to_value(report(true)).unwrap();
        let keys = |value: &Value, keys: &[&str]| keys.iter().all(|key| value.get(key).is_some());
        assert!(keys(&value, &["bench", "machine", "params", "rows", "checks"]));
        let row = &value["rows"][0];
        assert!(keys(row, &["name", "params", "baseline", "slat", "unit", "ratio", "seed", "seed_ratio"]));
        assert!(row["seed_ratio"].is_null(), "a ratio that the seed does not give is null, not missing");
        assert!(keys(&value["checks"][0], &["name", "ok", "detail"]));
    }

    #[test]
    fn a_false_check_is_named_and_fails_the_process() {
        let text = report(false).to_string();
        assert!(text.contains("FAILED sums agree: 3 of 4"), "{text}");
        assert!(text.ends_with("checks: 0 of 1 hold\n"), "{text}");
        let status = |ok| format!("{:?}", report(ok).finish(true).unwrap());
        assert_ne!(status(false), status(true));
    }
}
