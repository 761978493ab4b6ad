//! A [`Scenario`]: one program, its columns, and its row of the registry.
//!
//! ```text
//!                           ┌─ simulated: columns, run(setting) ─▶ Point    virtual time (crate slat-sim), threads (crate slat-bench)
//! Scenario: name, asks ─────┤
//!                           └─ measured: flags ─▶ report() ─▶ Report        threads only
//! ```
//! This source is compiled twice. Crate `slat-sim` has the engine on simulated CPUs in virtual time, crate `slat-bench` has it on this
//! machine's threads ([`crate::world`]). The run function of a scenario is the same in both. `slat bench`, `slat sim`,
//! `slat sim validate`, `slat report`, the book's chapter of benchmarks and CI iterate [`crate::scenarios::ALL`]; none of them has a list of its own.

#[cfg(not(virtual_time))]
use crate::levers::Grid;
use crate::parts::point::Point;
use crate::parts::published_figures::Against;
use crate::parts::setting::{Column, Setting};
#[cfg(not(virtual_time))]
use crate::threads::bench_report::Report;
#[cfg(not(virtual_time))]
use clap::{ArgMatches, Args, Command};
#[cfg(not(virtual_time))]
use slat_cli::error::Error;
use slat_series::PatchSeries;

/// A scenario, and all that is known of it without a run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its line of help.
    pub asks: &'static str,
    /// The patch series that it answers.
    pub series: PatchSeries,
    /// How `slat sim` runs it.
    pub simulated: Simulated,
    /// How `slat bench` runs it.
    #[cfg(not(virtual_time))]
    pub measured: Measured,
}

impl Scenario {
    /// Virtual time has it, too.
    pub const fn is_simulated(&self) -> bool {
        !self.simulated.columns.is_empty()
    }
}

/// A scenario as `slat sim` runs it.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    /// The designs that it compares. The last is slat as it ships. Empty: the scenario runs on real threads only.
    pub columns: &'static [Column],
    /// Runs it once, in one column.
    pub run: fn(&Setting<'_>) -> Result<Point, String>,
    /// The series' figures beside those of some points, as far as the points suffice.
    pub published: fn(&[Point]) -> Vec<Against>,
    /// Time and peak of resident memory with the default flags.
    pub takes: [&'static str; 2],
    /// Numbers of vCPUs by default.
    pub vcpus: &'static str,
    /// Arguments, as an example.
    pub example: &'static str,
    /// Flags of the work around the engine that change nothing, and why: "has no ager".
    pub unused: &'static [(&'static [&'static str], &'static str)],
    /// It has the threads that [`Work::invalidators`](crate::parts::setting::Work::invalidators) asks for.
    pub invalidates: bool,
    /// `slat report` simulates it.
    pub reported: bool,
}

impl Simulated {
    /// Not simulated.
    pub const NOT: Self = Self::of(|_| Err("it runs on real threads only".to_owned()), &[]);

    /// With 1 to 416 vCPUs, by `slat report`, too.
    pub const fn of(run: fn(&Setting<'_>) -> Result<Point, String>, columns: &'static [Column]) -> Self {
        Self {
            columns,
            run,
            published: |_| Vec::new(),
            takes: ["10 s", "40 MiB"],
            // As far as the series go: 112 vCPUs in MGLRU aging, 416 in TDP MMU.
            vcpus: "1,2,4,8,16,32,64,112,208,416",
            example: "-v 1,16,112",
            unused: &[NO_AGER],
            invalidates: false,
            reported: true,
        }
    }
}

/// A row of [`Simulated::unused`].
pub const NO_AGER: (&[&str], &str) = (&["rest_ns"], "has no ager");

/// Why flags of the host change nothing, where it has every page from the start.
pub const ALL_THERE: &str = "has a host with every page from the start";

/// A scenario as `slat bench` runs it.
#[cfg(not(virtual_time))]
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Adds its flags to its command.
    pub flags: fn(Command) -> Command,
    /// Its flags as they were typed.
    pub parse: fn(&ArgMatches) -> Result<Box<dyn Flags + Send>, clap::Error>,
    /// Time and peak of resident memory with the default flags.
    pub takes: [&'static str; 2],
    /// Counted rounds by default.
    pub runs: &'static str,
    /// The question of its section of the book's chapter of benchmarks; empty where no result is kept.
    pub question: &'static str,
    /// The arguments of the kept result.
    pub kept: &'static str,
    /// Further results that are kept: name, question, arguments.
    pub variants: &'static [(&'static str, &'static str, &'static str)],
    /// Its lines in the README.
    pub headlines: &'static [Headline],
    /// Tables that show the contribution of each idea.
    pub levers: &'static [Grid],
    /// Arguments of each run in CI, where its checks count and its times do not.
    pub ci: &'static [&'static str],
    /// Arguments of each run of `slat report --quick`.
    pub quick: &'static [&'static str],
    /// Arguments of each run of `slat report`.
    pub full: &'static [&'static str],
}

#[cfg(not(virtual_time))]
impl Measured {
    /// A scenario with the flags `F`, of which no result is kept.
    pub const fn of<F: Flags + Args + Send + 'static>() -> Self {
        Self {
            flags: F::augment_args,
            parse: |matches| Ok(Box::new(F::from_arg_matches(matches)?)),
            takes: ["1 min", "1 GiB"],
            runs: "5",
            question: "",
            kept: "",
            variants: &[],
            headlines: &[],
            levers: &[],
            ci: &[],
            quick: &[],
            full: &[],
        }
    }
}

/// The flags of `slat bench NAME`.
#[cfg(not(virtual_time))]
pub trait Flags {
    /// Measures what they ask for. After Ctrl-C the report has the rounds until then.
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report, Error>;
    /// Flags that have no effect beside the others, by their ids, and why.
    fn unused(&self) -> Unused {
        Unused::new()
    }
}

/// The flags of all benches.
#[cfg(not(virtual_time))]
#[derive(Clone, Copy, Debug, Args)]
pub struct Asked {
    /// Counted rounds: samples of each figure
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

#[cfg(all(test, not(virtual_time)))]
impl Asked {
    /// One round.
    pub const ONCE: Self = Self { runs: 1, json: true };
}

/// A line of the README: a measurement, and the row of the kept result that has it.
#[cfg(not(virtual_time))]
#[derive(Clone, Copy, Debug)]
pub struct Headline {
    /// The measurement.
    pub what: &'static str,
    /// The baseline.
    pub against: &'static str,
    /// The name of the row.
    pub row: &'static str,
    /// Parameters that tell the row from rows of the same name.
    pub params: &'static [(&'static str, &'static str)],
}

/// Flags that have no effect beside the others, by their ids, and why.
#[cfg(not(virtual_time))]
pub type Unused = Vec<(String, String)>;
