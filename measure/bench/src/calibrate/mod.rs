//! `slat calibrate`: what operations cost on this machine, as far as one can see that on it, in a file for `slat sim --costs`.
//!
//! ```text
//! probes, round after round ──▶ readings ──▶ medians ──▶ cost file: measured or assumed, line by line
//!                                  └──▶ fit: plain instructions, so that two paths of a real fault come out right
//! ```
//! A reading takes about ten milliseconds, and all probes are in it, so that a machine which is slower for a while is slower in
//! all of them. A cost that a small machine cannot show stays as it is on the server of [`Costs::SERVER`], and the file says so: how
//! far a line is that comes from another socket, how many CPUs a socket has, an interrupt to a CPU that runs a guest.
//! Locks are those of this machine's programs, which sleep when they have spun for a while; the server's are a kernel's,
//! which queue ([`Costs::park_after`]).
//!
//! | file | idea |
//! |---|---|
//! | `own_costs` | what a CPU does alone: accesses, clock, pages, waiting |
//! | `pair_costs` | what two cost each other: a line that travels, a barrier, a wake-up |
//! | `fit_costs` | what is left of a real program: plain instructions, and how soon a guest that polls notices a kick |

mod fit_costs;
mod own_costs;
mod pair_costs;

pub use crate::calibrate::fit_costs::polls;

use crate::cost_sheet::Sheet;
use crate::threads::machine_info::cpus;
use crate::threads::samples::Series;
use slat_cli::bar::bar;
use slat_cli::error::Error;
use slat_cli::{interrupt, temporary};
use slat_machine::Costs;
use std::collections::BTreeMap;
use std::io;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Bytes of a page that is zeroed.
const PAGE: f64 = 4096.0;

/// Measure what operations cost on this machine, for `slat sim --costs`
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example:\n  slat calibrate -o here.costs && slat sim demand-paging --costs here.costs"
)]
pub struct Calibrate {
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A third of the readings
    #[arg(long)]
    quick: bool,
}

impl Calibrate {
    /// Measures and writes the file.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let cannot = |path: &PathBuf, error| Error::Usage(format!("--output {}: {error}", path.display()));
        // Known before the readings begin; what is in the file stays until they have ended.
        if let Some(path) = &self.output {
            temporary::writable(path).map_err(|error| cannot(path, error))?;
        }
        let text = measure(if self.quick { 11 } else { 33 })?.to_string();
        if interrupt::asked() {
            return Ok(interrupt::status());
        }
        match &self.output {
            Some(path) => {
                temporary::write_whole(path, text.as_bytes()).map_err(|error| cannot(path, error))?;
            }
            None => io::stdout().lock().write_all(text.as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The costs of this machine now: medians of so many readings, or of the readings until an interrupt.
pub fn measure(readings: usize) -> Result<Sheet, Error> {
    let bar = bar(Some(readings as u64), "calibrating [{bar:30}] {pos}/{len}");
    let mut all = BTreeMap::<_, Vec<f64>>::new();
    for _ in 0..readings {
        for (name, value) in reading(1)? {
            all.entry(name).or_default().push(value);
        }
        bar.inc(1);
        if interrupt::asked() {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(sheet(all.into_iter().map(|(name, values)| (name, round(Series::new(values).median())))))
}

/// The costs of this machine at this moment, while so many of its CPUs are busy.
pub fn glance(busy: usize) -> Result<Costs, Error> {
    Ok(sheet(reading(busy)?).costs)
}

/// The measured costs, and those of a server for the rest.
fn sheet(measured: impl IntoIterator<Item = (&'static str, f64)>) -> Sheet {
    let mut sheet = Sheet::assumed(Costs::SERVER);
    for (name, value) in measured {
        sheet.measured(name, value);
    }
    sheet
}

/// Each cost that can be measured here, once, while `busy` CPUs do the same.
fn reading(busy: usize) -> Result<Vec<(&'static str, f64)>, Error> {
    let cpus = cpus();
    let (pause, give_away) = (own_costs::pause(busy), own_costs::give_away(busy));
    let (call, arrives) = if cpus > 1 {
        pair_costs::wake_up()
    } else {
        // Where both threads have one CPU, the end of the call and the start of the sleeper cannot be distinguished.
        let half = own_costs::wake_up() / 2.0;
        (half, half)
    };
    let mut measured = own_costs::probes(busy);
    measured.extend([
        ("bandwidth", PAGE * cpus as f64 / own_costs::zero(cpus)),
        ("pause", pause),
        // A waiter for a lock of `parking_lot`'s looks after 2, 4 and 8 pauses, then seven times after giving its CPU away.
        ("handoff", pause),
        ("park_after", 14.0 * pause + 7.0 * give_away),
        ("wake", call),
        ("wake_arrives", arrives),
    ]);
    if cpus > 1 {
        measured.push(("near", pair_costs::transfer()));
    }
    measured.extend(pair_costs::barrier(cpus.min(2)).map(|time| ("barrier", time)));
    let fitted = fit_costs::instructions(&sheet(measured.iter().copied()).costs, busy)?;
    measured.retain(|(name, _)| !["rmw", "word"].contains(name));
    measured.extend([
        ("rmw", fitted.rmw),
        ("word", fitted.word),
        ("step", fitted.step),
        ("full_path", fitted.full_path),
    ]);
    Ok(measured)
}

/// To a thousandth: no clock here says more.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
