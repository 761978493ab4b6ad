//! The report of a bench: figures of a baseline and of slat, and the checks under which they count.
//!
//! One [`Report`] has two faces, a table for people and one JSON object for programs, and both carry the
//! same rows. A false [`Check`] makes the figures worthless; the process then exits with status 1.

use crate::parts::point::Tally;
use crate::threads::machine_info::Machine;
use crate::threads::samples::Series;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use slat_cli::date;
use slat_series::PatchSeries;
use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;
use std::{fmt, io};

/// The number of what the reports of `slat bench` and `slat sim` are as JSON: another one where a key goes, or means something else.
pub const SCHEMA: u32 = 1;

/// The outcome of one bench.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The clock: "real".
    pub clock: Cow<'static, str>,
    /// Its name on the command line.
    pub bench: Cow<'static, str>,
    /// The measured version, with its commit where that is known.
    pub slat: Cow<'static, str>,
    /// The day, in UTC.
    pub date: String,
    /// Where it ran.
    pub machine: Machine,
    /// With what settings.
    pub params: Map<String, Value>,
    /// Baseline against slat, one comparison each. Rows with equal parameters stand together.
    pub rows: Vec<Row>,
    /// The conditions under which the rows count.
    pub checks: Vec<Check>,
}

/// A figure of a sample: its name, its unit, and its value; no value where a sample lacks it.
pub type Figure<S> = (&'static str, &'static str, fn(&S) -> Option<f64>);

/// One comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The name of the baseline; or of the operation, where the baseline is the same in all rows.
    pub name: String,
    /// Settings of this row, beyond those of the bench.
    pub params: Map<String, Value>,
    /// Median of the baseline; `None` where slat ran alone.
    pub baseline: Option<f64>,
    /// Median of slat.
    pub slat: f64,
    /// Unit of both.
    pub unit: Cow<'static, str>,
    /// `baseline / slat`: above 1, slat is the faster.
    pub ratio: Option<f64>,
    /// The patch series whose claim this row answers.
    pub series: Option<Cow<'static, str>>,
    /// The ratio which that series reports, where it reports one for this very comparison.
    pub series_ratio: Option<f64>,
    /// The baseline's figures of the rounds, in their order.
    pub baseline_samples: Option<Vec<f64>>,
    /// The samples of slat.
    pub slat_samples: Vec<f64>,
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
            baseline_samples: Some(baseline.samples().to_vec()),
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
            unit: unit.into(),
            ratio: None,
            series: None,
            series_ratio: None,
            baseline_samples: None,
            slat_samples: slat.samples().to_vec(),
        }
    }

    /// A figure of slat's, against a baseline where there is one.
    pub fn against(
        name: &str,
        params: Map<String, Value>,
        unit: &'static str,
        baseline: Option<Series>,
        slat: &Series,
    ) -> Self {
        match baseline {
            Some(baseline) => Self::compare(name, params, unit, &baseline, slat),
            None => Self::alone(name, params, unit, slat),
        }
    }

    /// A row for each of these figures that both have.
    pub fn compare_each<S>(
        figures: &[Figure<S>],
        params: &Map<String, Value>,
        [baseline, slat]: [&[S]; 2],
    ) -> Vec<Self> {
        let row = |&(name, unit, figure): &Figure<S>| {
            let [baseline, slat] = [baseline, slat].map(|samples| Series::known(samples, figure));
            Some(Self::compare(name, params.clone(), unit, &baseline?, &slat?))
        };
        figures.iter().filter_map(row).collect()
    }

    /// A row for each of these figures that slat has.
    pub fn alone_each<S>(figures: &[Figure<S>], params: &Map<String, Value>, slat: &[S]) -> Vec<Self> {
        let row = |&(name, unit, figure): &Figure<S>| {
            Some(Self::alone(name, params.clone(), unit, &Series::known(slat, figure)?))
        };
        figures.iter().filter_map(row).collect()
    }

    /// The row, whose name begins with `who`.
    #[must_use]
    pub fn of(self, who: &str) -> Self {
        Self { name: format!("{who}: {}", self.name), ..self }
    }

    /// Names the series that this row answers.
    #[must_use]
    pub fn answering(mut self, series: impl Into<Option<PatchSeries>>) -> Self {
        self.series = series.into().map(|series| series.id().into());
        self
    }

    /// The ratio that the series reports for this very comparison.
    #[must_use]
    pub fn claiming(mut self, ratio: Option<f64>) -> Self {
        self.series_ratio = ratio;
        self
    }
}

/// A condition of the whole bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// The conditions that must hold.
    pub name: String,
    /// Whether it held, in every round.
    pub ok: bool,
    /// The count behind the verdict.
    pub detail: String,
}

impl Check {
    /// So many of so many: it holds where it is all of them.
    pub fn all(name: impl Into<String>, [good, of]: [u64; 2]) -> Self {
        Self { name: name.into(), ok: good == of, detail: format!("{good} of {of}") }
    }

    /// A condition of each sample: the number of samples for which it holds.
    pub fn each<'s, S: 's>(
        name: impl Into<String>,
        samples: impl Iterator<Item = &'s S> + Clone,
        holds: impl Fn(&S) -> bool,
    ) -> Self {
        let good = samples.clone().filter(|sample| holds(sample)).count() as u64;
        Self::all(name, [good, samples.count() as u64])
    }

    /// Adds it to those before. One that is made in every round is one: it holds where it held each time, and tells of the
    /// first time that it did not.
    pub fn add_to(self, all: &mut Vec<Self>) {
        match all.iter_mut().find(|known| known.name == self.name) {
            Some(known) if known.ok => *known = self,
            Some(_) => {}
            None => all.push(self),
        }
    }

    /// One for each name in `tallies`, of all of that name together; `at` says where.
    pub fn tallied<'t>(who: &str, at: &str, tallies: impl Iterator<Item = &'t Tally>) -> Vec<Self> {
        let mut sums: Vec<Tally> = Vec::new();
        for &(name, [good, of]) in tallies {
            match sums.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum = [sum[0] + good, sum[1] + of],
                None => sums.push((name, [good, of])),
            }
        }
        let check = |(name, counts)| {
            let check = Self::all(format!("{who}: {name}"), counts);
            Self { detail: check.detail + at, ..check }
        };
        sums.into_iter().map(check).collect()
    }
}

impl Report {
    /// One of this bench, without rows yet.
    pub fn of(bench: &'static str, machine: Machine) -> Self {
        Self {
            schema: SCHEMA,
            clock: "real".into(),
            bench: bench.into(),
            slat: slat_cli::VERSION.into(),
            date: date::today(),
            machine,
            params: Map::new(),
            rows: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// Prints to stdout, as JSON or as a table, and returns the exit status: 1 if any check is false.
    pub fn finish(&self, json: bool) -> io::Result<ExitCode> {
        print(self, json, self.checks.iter().all(|check| check.ok))
    }
}

/// Prints to stdout, as one JSON object or as a table, and returns the exit status: 1 if what it says is not `good`.
pub fn print(report: &(impl Serialize + fmt::Display), json: bool, good: bool) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "slat bench {}: {}", self.bench, self.machine)?;
        writeln!(f, "{}; median (min..max); ratio = baseline / slat", Settings(&self.params))?;

        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for group in self.rows.chunk_by(|a, b| a.params == b.params && a.unit == b.unit) {
            writeln!(f, "\n{}, {}", Settings(&group[0].params), group[0].unit)?;
            writeln!(f, "  {:width$} {:>23} {:>23} {:>8}  series", "", "baseline", "slat", "ratio")?;
            for row in group {
                let baseline = row.baseline.zip(row.baseline_samples.as_deref());
                let baseline =
                    baseline.map_or_else(|| "-".into(), |(all, samples)| Median(all, samples).to_string());
                let slat = Median(row.slat, &row.slat_samples).to_string();
                let ratio = row.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"));
                write!(f, "  {:width$} {baseline:>23} {slat:>23} {ratio:>8}", row.name)?;
                match (row.series.as_deref(), row.series_ratio) {
                    (Some(id), Some(ratio)) => writeln!(f, "  {} ({ratio:.2}x)", slat_series::name(id))?,
                    (Some(id), None) => writeln!(f, "  {}", slat_series::name(id))?,
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

/// The least and the greatest.
pub fn range(samples: &[f64]) -> [f64; 2] {
    samples.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[min, max], &one| [min.min(one), max.max(one)])
}

/// A median with its range, to three digits or so.
struct Median<'a>(f64, &'a [f64]);

impl fmt::Display for Median<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(median, samples) = *self;
        let [min, max] = range(samples);
        let decimals = usize::from(median < 100.0);
        write!(f, "{median:.decimals$} ({min:.decimals$}..{max:.decimals$})")
    }
}

/// Parameters as words: `order random, vcpus 2`.
pub struct Settings<'a>(pub &'a Map<String, Value>);

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
            params: params! { "runs": 3 },
            rows: vec![
                Row::compare("lock", params! { "vcpus": 2, "order": "random" }, "ns/fault", &before, &after)
                    .answering(PatchSeries::TdpMmu),
            ],
            checks: vec![Check { name: "sums agree".into(), ok, detail: "3 of 4".into() }],
            ..Report::of("example", Machine { cpu: None, cores: 2, os: "os".into(), arch: "arch".into() })
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
        assert!(keys(
            &value,
            &["schema", "clock", "bench", "slat", "date", "machine", "params", "rows", "checks"]
        ));
        let row = &value["rows"][0];
        assert!(keys(
            row,
            &["name", "params", "baseline", "slat", "unit", "ratio", "series", "series_ratio"]
        ));
        assert!(row["series_ratio"].is_null(), "a ratio that the series does not give is null, not missing");
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
