//! `slat sim validate`: simulated time held against real time, where this machine has the CPUs for it.
//!
//! ```text
//! round: ── what does this machine cost now? ──▶ costs ──▶ simulate the lap ──▶ ns
//!        └─ the same lap on threads ──────────────────────────────────────────▶ ns     ratio of the two
//! row:   the median ratio of the rounds
//! ```
//! Machines drift, and virtual ones more: a CPU has a busy neighbour now and none a moment later, and the hypervisor moves
//! two CPUs from one cache to two. So costs are measured in each round, just before the lap that they have to explain, with
//! as many CPUs busy. Laps during which the system gave a CPU to another process are run again.
//!
//! A row is within when its median ratio is within a quarter of 1. Where real laps of the row are further apart than that
//! among themselves, or most of them were disturbed however often they were run again, nothing can be said of it, and that
//! is what is said. A row that is off is tried three times.
//!
//! Judged are benches as `slat sim` simulates them. They are shown once more with nothing around the engine. No bench
//! simulates that; it shows where the model ends: a price for each access, and one for what lies between two.
//!
//! | file | idea |
//! |---|---|
//! | `row_spec` | what a row compares, and one run of it in either world |

mod row_spec;

use crate::bench::harness::Series;
use crate::bench::machine::cpus;
use crate::calibrate;
use row_spec::{Around, Measured, RowSpec};
use serde::Serialize;
use slat_cli::bar::bar;
use slat_cli::error::Error;
use slat_machine::Costs;
use slat_sim::benches::ALL;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// Simulated over real time may be this far from 1, either way.
const WITHIN: f64 = 0.25;
/// Middle half of a row's real laps, over their median: with more than this nothing can be said.
const NOISY: f64 = 0.25;
/// Times that a row is tried.
const ATTEMPTS: u32 = 3;
/// Of a row's real laps, this part may have been disturbed.
const DISTURBED: f64 = 0.5;
/// Laps run to find one that no other process disturbed.
const TRIES: u32 = 8;
/// More real CPUs than these are not compared.
const MOST: u32 = 2;

/// Hold simulations against real threads, with costs measured meanwhile
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  slat sim validate --runs 15")]
pub struct Validate {
    /// Rounds for each row; each compares one simulated lap with one real lap
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..=1000))]
    runs: u32,
    /// Only this bench; may be repeated
    #[arg(long, value_name = "NAME")]
    bench: Vec<String>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// What this is.
    pub sim: &'static str,
    /// CPUs that real laps could use.
    pub cpus: usize,
    /// How far from 1 a ratio may be.
    pub within: f64,
    pub rows: Vec<Row>,
}

/// A bench under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub bench: &'static str,
    pub policy: &'static str,
    pub vcpus: u32,
    /// What is around the engine.
    pub around: &'static str,
    pub unit: &'static str,
    /// Median of the real laps.
    pub real: f64,
    /// Median of the simulated ones.
    pub simulated: f64,
    /// Median of simulated over real time, round by round.
    pub ratio: f64,
    /// Middle half of the real laps, over their median.
    pub real_spread: f64,
    /// The part of the real laps from which a CPU was taken away, however often they were run.
    pub disturbed: f64,
    /// Times it was tried.
    pub attempts: u32,
    /// Whether it counts for the exit status.
    pub judged: bool,
    pub verdict: Verdict,
}

/// What a row says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The two agree.
    Within,
    /// They do not.
    Off,
    /// Real laps do not agree among themselves, or were disturbed.
    TooNoisy,
}

impl Validate {
    /// Compares, prints, and returns the exit status.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let validation = self.validation()?;
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &validation).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            write!(out, "{validation}")?;
        }
        let off = validation.rows.iter().any(|row| row.judged && row.verdict == Verdict::Off);
        Ok(if off { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn validation(&self) -> Result<Validation, Error> {
        let laps = self.row_specs()?;
        let bar = bar(Some(laps.len() as u64), "{msg} [{bar:30}] {pos}/{len} {eta}");
        let mut rows = Vec::with_capacity(laps.len());
        for (lap, jobs) in laps {
            bar.set_message(format!("{}, {}", lap.bench, lap.policy));
            rows.push(self.row(lap, jobs)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(Validation { sim: "validate", cpus: cpus(), within: WITHIN, rows })
    }

    /// Everything that both row_spec can run, and how many jobs it has: as many as there are CPUs, and no more.
    fn row_specs(&self) -> Result<Vec<(RowSpec, usize)>, Error> {
        if let Some(unknown) = self.bench.iter().find(|name| ALL.iter().all(|bench| bench.name() != **name)) {
            let names: Vec<_> = ALL.iter().map(|bench| bench.name()).collect();
            return Err(Error::Usage(format!(
                "--bench {}: there are {}",
                unknown.escape_debug(),
                names.join(", ")
            )));
        }
        let mut laps = Vec::new();
        for bench in ALL
            .iter()
            .filter(|bench| self.bench.is_empty() || self.bench.iter().any(|name| name == bench.name()))
        {
            for around in [Around::Default, Around::Nothing] {
                for vcpus in 1..=MOST {
                    for policy in bench.policies() {
                        let lap = RowSpec { bench: bench.name(), policy: policy.name(), vcpus, around };
                        let jobs = lap.simulated(&Costs::SERVER)?.jobs;
                        if jobs <= cpus() {
                            laps.push((lap, jobs));
                        }
                    }
                }
            }
        }
        Ok(laps)
    }

    /// Tries until the row is within, or has been tried often enough.
    fn row(&self, lap: RowSpec, jobs: usize) -> Result<Row, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let row = self.attempt(lap, jobs, attempts)?;
            if row.verdict == Verdict::Within || attempts == ATTEMPTS {
                return Ok(row);
            }
        }
    }

    fn attempt(&self, lap: RowSpec, jobs: usize, attempts: u32) -> Result<Row, Error> {
        let (mut real, mut simulated, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut unit, mut disturbed) = ("", 0);
        // The first round grows pools and warms caches.
        for round in 0..=self.runs {
            let costs = costs_now(jobs)?;
            let (there, (times, here)) = (lap.simulated(&costs)?, undisturbed(&lap, &costs)?);
            if round > 0 {
                real.push(here.value);
                simulated.push(there.value);
                ratios.push(there.value / here.value);
                disturbed += u32::from(times > 0);
            }
            unit = here.unit;
        }
        let (real_spread, ratio) = (spread(&real), Series::new(ratios).median());
        let disturbed = f64::from(disturbed) / f64::from(self.runs);
        Ok(Row {
            bench: lap.bench,
            policy: lap.policy,
            vcpus: lap.vcpus,
            around: lap.around.name(),
            unit,
            real: Series::new(real).median(),
            simulated: Series::new(simulated).median(),
            ratio,
            real_spread,
            disturbed,
            attempts,
            judged: lap.around == Around::Default,
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
fn spread(laps: &[f64]) -> f64 {
    let mut sorted = laps.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    (sorted[sorted.len() - 1 - quarter] - sorted[quarter]) / sorted[sorted.len() / 2]
}

/// What this machine costs now, with as many CPUs busy as the lap has jobs. Its guests are not interrupted by kicks: they look
/// for themselves, every hundred nanoseconds.
fn costs_now(busy: usize) -> Result<Costs, Error> {
    let costs = calibrate::glance(busy)?;
    Ok(Costs { kick: 0.0, kick_arrives: 50.0, kick_taken: 0.0, ..costs })
}

/// A real lap from which the system took no CPU away; of several that it did, the one from which it did so least, and how
/// often. Some
/// benches have a check that only such a lap can pass, that two things were done at the same time.
fn undisturbed(lap: &RowSpec, costs: &Costs) -> Result<(i64, Measured), Error> {
    let mut best: Option<(i64, Measured)> = None;
    let mut wrong = None;
    for _ in 0..TRIES {
        let before = taken_away();
        let came = lap.real(costs);
        let times = taken_away() - before;
        match came {
            Ok(came) if best.is_none_or(|(least, _)| times < least) => best = Some((times, came)),
            Ok(_) => {}
            Err(error) => wrong = Some(error),
        }
        if best.is_some_and(|(least, _)| least == 0) {
            break;
        }
    }
    match (best, wrong) {
        (Some(best), _) => Ok(best),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::Machine("no lap was run".into())),
    }
}

/// How often the system has taken a CPU away from a thread of this process.
#[cfg(unix)]
fn taken_away() -> i64 {
    // SAFETY: all-zero is a valid `rusage`, and the call writes no more than one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// Unknown on this system.
#[cfg(not(unix))]
fn taken_away() -> i64 {
    0
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "slat sim validate: simulated against real, {} CPUs; within {:.0}%",
            self.cpus,
            100.0 * self.within
        )?;
        let head = [
            "bench",
            "policy",
            "vCPUs",
            "around it",
            "real",
            "simulated",
            "ratio",
            "spread",
            "disturbed",
            "verdict",
        ];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        lines.extend(self.rows.iter().map(|row| {
            let verdict = match row.verdict {
                Verdict::Within => "within",
                Verdict::Off => "OFF",
                Verdict::TooNoisy => "too noisy to say",
            };
            vec![
                row.bench.to_owned(),
                row.policy.to_owned(),
                row.vcpus.to_string(),
                row.around.to_owned(),
                format!("{} {}", super::text::number(row.real), row.unit),
                super::text::number(row.simulated),
                format!("{:.2}", row.ratio),
                format!("{:.0}%", 100.0 * row.real_spread),
                format!("{:.0}%", 100.0 * row.disturbed),
                verdict.to_owned(),
            ]
        }));
        write!(f, "{}", super::Grid(&lines))?;
        for (judged, what) in [(true, "as simulated"), (false, "engine only, not judged")] {
            let count = |verdict| {
                self.rows.iter().filter(|row| (row.judged, row.verdict) == (judged, verdict)).count()
            };
            let [within, off, noisy] = [Verdict::Within, Verdict::Off, Verdict::TooNoisy].map(count);
            writeln!(f, "{what}: {within} within, {off} off, {noisy} too noisy to say")?;
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
        let laps = [100.0, 90.0, 110.0, 95.0, 105.0, 5.0, 9000.0, 100.0, 100.0];
        assert!((spread(&laps) - 0.1).abs() < 0.06, "{}", spread(&laps));
        assert!(spread(&[1.0, 2.0, 3.0, 4.0, 5.0]) > 0.6);
    }
}
