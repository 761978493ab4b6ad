//! `slat sim validate`: simulated time held against real time, where this machine has the CPUs for it.
//!
//! ```text
//! round: ── what does this machine cost now? ──▶ costs ──▶ simulate the row ──▶ ns
//!        └─ the same program on threads ──────────────────────────────────────▶ ns     ratio of the two
//! row:   the median ratio of the rounds
//! ```
//! Machines drift, and virtual ones more: a CPU has a busy neighbour now and none a moment later, and the hypervisor moves
//! two CPUs from one cache to two. So costs are measured in each round, just before the real run that they have to explain,
//! with as many CPUs busy. Each round has a seed of its own, so that what happens at the same time varies. A real run from which the system took a CPU away is run again.
//!
//! A row is *within* when its median ratio is within a quarter of 1. It is *too noisy* when it is not within, and its real runs
//! differ by more than that among themselves, or most of them lost a CPU however often they were run again. Otherwise it is *off*. A
//! row that is not within is measured three times. A row that is too noisy then is measured until it is decided, or until the time
//! for such rows is over (`--patience`). Rows that stay undecided are listed. A row that is off fails the validation.
//!
//! Judged are benches as `slat sim` simulates them, but for those that the model is known not to cover; their rows say why. Benches are shown once more with nothing around the engine. No bench
//! simulates that; it shows where the model ends: a price for each access, and one for what lies between two, which is the same
//! for all code of the engine.

use crate::calibrate;
use crate::figure_text::plain;
use crate::sim::sim_flags::refuse_unknown;
use crate::sim::sim_tables::Grid;
use crate::threads::bench_report::print;
use crate::threads::machine_info::cpus;
use crate::threads::samples::Series;
use crate::validation_row::{Around, Measured, RowSpec};
use serde::Serialize;
use slat_cli::bar::bar;
use slat_cli::error::Error;
use slat_machine::Costs;
use slat_sim::scenarios::ALL;
use std::fmt;
use std::process::ExitCode;
use std::time::Instant;

/// Simulated over real time may be this far from 1, either way.
const WITHIN: f64 = 0.25;
/// Middle half of a row's real runs, over their median: with more than this nothing can be said.
const NOISY: f64 = 0.25;
/// Times that a row is measured which is not within.
const ATTEMPTS: u32 = 3;
/// Of a row's real runs, this part may have lost a CPU.
const DISTURBED: f64 = 0.5;
/// Real runs to find one that lost no CPU.
const TRIES: u32 = 8;
/// More real CPUs than these are not compared.
const MOST: u32 = 2;

/// Compare simulations with real threads; each round measures the costs anew
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  slat sim validate --runs 15")]
pub struct Validate {
    /// Rounds for each row; each compares one simulated run with one real run
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..=1000))]
    runs: u32,
    /// Only this bench; may be repeated
    #[arg(long, value_name = "NAME")]
    bench: Vec<String>,
    /// Seconds for rows that are too noisy to say: they are measured again until they are decided
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// The kind of report: "validate".
    pub sim: &'static str,
    /// CPUs that real runs could use.
    pub cpus: usize,
    /// How far from 1 a ratio may be.
    pub within: f64,
    pub rows: Vec<Row>,
}

/// A bench under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub spec: RowSpec,
    pub unit: &'static str,
    /// Median of the real runs.
    pub real: f64,
    /// Median of the simulated runs.
    pub simulated: f64,
    /// Median of simulated over real time, round by round.
    pub ratio: f64,
    /// Middle half of the real runs, over their median.
    pub real_spread: f64,
    /// The part of the real runs that lost a CPU, however often they were run again.
    pub disturbed: f64,
    /// Times it was measured.
    pub attempts: u32,
    /// Whether it counts for the exit status.
    pub judged: bool,
    /// Why it does not, where it is a bench as it is simulated.
    pub not_judged_because: Option<&'static str>,
    pub verdict: Verdict,
}

/// The verdict on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The two agree.
    Within,
    /// They do not.
    Off,
    /// Real runs differ among themselves, or lost CPUs.
    TooNoisy,
}

impl Row {
    fn is_undecided(&self) -> bool {
        self.judged && self.verdict == Verdict::TooNoisy
    }
}

impl Validate {
    /// Compares, prints, and returns the exit status.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let validation = self.validation()?;
        let off = validation.rows.iter().any(|row| row.judged && row.verdict == Verdict::Off);
        Ok(print(&validation, self.json, !off)?)
    }

    fn validation(&self) -> Result<Validation, Error> {
        let specs = self.row_specs()?;
        let bar = bar(Some(specs.len() as u64), "{msg} [{bar:30}] {pos}/{len} {eta}");
        let mut rows = Vec::with_capacity(specs.len());
        for &(spec, jobs) in &specs {
            bar.set_message(format!("{}, {}", spec.bench, spec.policy));
            rows.push(self.row(spec, jobs)?);
            bar.inc(1);
        }
        bar.set_message("rows that are too noisy");
        self.decide(&specs, &mut rows)?;
        bar.finish_and_clear();
        Ok(Validation { sim: "validate", cpus: cpus(), within: WITHIN, rows })
    }

    /// Measures rows that are judged and too noisy again, in turn, until each is decided or the time for them is over.
    fn decide(&self, specs: &[(RowSpec, usize)], rows: &mut [Row]) -> Result<(), Error> {
        let began = Instant::now();
        while rows.iter().any(Row::is_undecided) {
            for (row, &(spec, jobs)) in rows.iter_mut().zip(specs).filter(|(row, _)| row.is_undecided()) {
                if began.elapsed().as_secs() >= self.patience {
                    return Ok(());
                }
                *row = self.attempt(spec, jobs, row.attempts + 1)?;
            }
        }
        Ok(())
    }

    /// Everything that both worlds can run, and how many jobs it has: as many as there are CPUs, and no more.
    fn row_specs(&self) -> Result<Vec<(RowSpec, usize)>, Error> {
        let names: Vec<_> = ALL.iter().map(|bench| bench.name).collect();
        refuse_unknown("bench", &self.bench, "there are", &names)?;
        let is_asked = |name| self.bench.is_empty() || self.bench.iter().any(|asked| asked == name);
        let mut specs = Vec::new();
        for bench in ALL.iter().filter(|bench| is_asked(bench.name)) {
            for around in [Around::Default, Around::Nothing] {
                for vcpus in 1..=MOST {
                    for policy in bench.simulated.columns {
                        let spec = RowSpec { bench: bench.name, policy: policy.name, vcpus, around };
                        let jobs = spec.simulated(&Costs::SERVER, 1)?.jobs;
                        if jobs <= cpus() {
                            specs.push((spec, jobs));
                        }
                    }
                }
            }
        }
        Ok(specs)
    }

    /// Measures until the row is within, or was measured often enough.
    fn row(&self, spec: RowSpec, jobs: usize) -> Result<Row, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let row = self.attempt(spec, jobs, attempts)?;
            if row.verdict == Verdict::Within || attempts == ATTEMPTS {
                return Ok(row);
            }
        }
    }

    fn attempt(&self, spec: RowSpec, jobs: usize, attempts: u32) -> Result<Row, Error> {
        let (mut real, mut simulated, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut unit, mut disturbed) = ("", 0);
        // The first round grows pools and warms caches.
        for round in 0..=self.runs {
            let costs = costs_now(jobs)?;
            let seed = round.into();
            let (there, here) = (spec.simulated_polling(&costs, seed)?, undisturbed(&spec, &costs, seed)?);
            if round > 0 {
                real.push(here.value);
                simulated.push(there);
                ratios.push(there / here.value);
                disturbed += u32::from(here.preemptions > 0);
            }
            unit = here.unit;
        }
        let (real_spread, ratio) = (spread(&real), Series::new(ratios).median());
        let disturbed = f64::from(disturbed) / f64::from(self.runs);
        let not_judged_because = spec.not_judged_because();
        Ok(Row {
            spec,
            unit,
            real: Series::new(real).median(),
            simulated: Series::new(simulated).median(),
            ratio,
            real_spread,
            disturbed,
            attempts,
            judged: spec.around == Around::Default && not_judged_because.is_none(),
            not_judged_because,
            verdict: verdict(ratio, real_spread, disturbed),
        })
    }
}

/// Within is within, however noisy: it is what is off that noise may excuse.
fn verdict(ratio: f64, real_spread: f64, disturbed: f64) -> Verdict {
    if (1.0 - WITHIN..=1.0 + WITHIN).contains(&ratio) {
        Verdict::Within
    } else if real_spread > NOISY || disturbed > DISTURBED {
        Verdict::TooNoisy
    } else {
        Verdict::Off
    }
}

/// The middle half over the median.
fn spread(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    (sorted[sorted.len() - 1 - quarter] - sorted[quarter]) / sorted[sorted.len() / 2]
}

/// The costs of this machine now, with as many CPUs busy as the row has jobs. No kick interrupts a guest of its threads: guests poll.
fn costs_now(busy: usize) -> Result<Costs, Error> {
    let costs = calibrate::glance(busy)?;
    let kick_arrives = if busy > 1 { calibrate::polls(&costs) } else { 0.0 };
    Ok(Costs { kick: 0.0, kick_arrives, kick_taken: 0.0, ..costs })
}

/// A real run that lost no CPU to another process; of several that did, the one that lost one least often. Some benches have a check that
/// only such a run can pass: that two things were done at the same time.
fn undisturbed(spec: &RowSpec, costs: &Costs, seed: u64) -> Result<Measured, Error> {
    let mut best: Option<Measured> = None;
    let mut wrong = None;
    for _ in 0..TRIES {
        match spec.real(costs, seed) {
            Ok(run) if best.is_none_or(|best| run.preemptions < best.preemptions) => best = Some(run),
            Ok(_) => {}
            Err(error) => wrong = Some(error),
        }
        if best.is_some_and(|best| best.preemptions == 0) {
            break;
        }
    }
    best.ok_or_else(|| wrong.unwrap_or_else(|| Error::Machine("nothing was run".into())))
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "slat sim validate: simulated against real, {} CPUs; within {:.0}%",
            self.cpus,
            100.0 * self.within
        )?;
        let head = "bench,policy,vCPUs,around it,real,simulated,ratio,spread,disturbed,verdict";
        let mut lines = vec![head.split(',').map(str::to_owned).collect()];
        lines.extend(self.rows.iter().map(|row| {
            let verdict = match row.verdict {
                Verdict::Within => "within",
                Verdict::Off => "OFF",
                Verdict::TooNoisy => "too noisy to say",
            };
            vec![
                row.spec.bench.to_owned(),
                row.spec.policy.to_owned(),
                row.spec.vcpus.to_string(),
                row.spec.around.name().to_owned(),
                format!("{} {}", plain(row.real), row.unit),
                plain(row.simulated),
                format!("{:.2}", row.ratio),
                format!("{:.0}%", 100.0 * row.real_spread),
                format!("{:.0}%", 100.0 * row.disturbed),
                row.not_judged_because.map_or(verdict.to_owned(), |why| format!("not judged: {why}")),
            ]
        }));
        write!(f, "{}", Grid(&lines))?;
        for (judged, what) in [(true, "as simulated"), (false, "not judged")] {
            let count = |verdict| {
                self.rows.iter().filter(|row| (row.judged, row.verdict) == (judged, verdict)).count()
            };
            let [within, off, noisy] = [Verdict::Within, Verdict::Off, Verdict::TooNoisy].map(count);
            writeln!(f, "{what}: {within} within, {off} off, {noisy} too noisy to say")?;
        }
        for row in self.rows.iter().filter(|row| row.is_undecided()) {
            writeln!(
                f,
                "undecided after {} attempts: {}, {}, {} vCPUs: real runs differ by {:.0}%, {:.0}% of them lost a CPU",
                row.attempts,
                row.spec.bench,
                row.spec.policy,
                row.spec.vcpus,
                100.0 * row.real_spread,
                100.0 * row.disturbed
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_is_off_unless_the_machine_is() {
        for (ratio, spread, says) in [
            (1.0, 0.1, Verdict::Within),
            (0.76, 0.1, Verdict::Within),
            (1.24, 0.9, Verdict::Within),
            (0.74, 0.1, Verdict::Off),
            (1.26, 0.24, Verdict::Off),
            (1.26, 0.26, Verdict::TooNoisy),
            (f64::NAN, 0.1, Verdict::Off),
        ] {
            assert_eq!(verdict(ratio, spread, 0.5), says, "{ratio}");
        }
        assert_eq!(verdict(1.26, 0.1, 0.6), Verdict::TooNoisy);
    }

    #[test]
    fn a_spread_is_of_the_middle_half() {
        let runs = [100.0, 90.0, 110.0, 95.0, 105.0, 5.0, 9000.0, 100.0, 100.0];
        assert!((spread(&runs) - 0.1).abs() < 0.06, "{}", spread(&runs));
        assert!(spread(&[1.0, 2.0, 3.0, 4.0, 5.0]) > 0.6);
    }
}
