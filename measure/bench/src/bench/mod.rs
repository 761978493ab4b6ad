//! `slat bench`: the figures that slat was asked to improve, before against after, on this machine.
//!
//! Each bench is one folder or file: it sets up its entrants, measures them side by side ([`harness`]) and
//! hands back a [`report`] whose rows name the patch series they answer. [`programs`] lists them.

mod access_tracking;
mod aging_pass;
mod arithmetic;
mod compare;
mod demand_paging;
mod dirty_log_perf;
mod fault_floor;
mod guest_memory;
pub mod harness;
mod host_faults;
mod invalidate;
mod ksm_perf;
mod latencies;
mod leaf_tables;
pub mod machine;
mod mapped_slot;
mod memslot_perf;
mod migrate;
mod numa_balancing;
mod reclaim;
pub mod report;
mod shared;
pub mod software_vcpu;
mod tables;
pub mod traces;
mod zap;

pub use crate::levers::{Cell, Grid};
pub use crate::registry::{About, Headline};
pub use compare::Compare;
pub use report::Report;
pub(crate) use report::params;

use crate::registry::{self, ByName};
use crate::typed::Unused;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use slat::{Level, RingSize, Track};
use slat_cli::error::Error;
use slat_cli::size::{self, size};
use slat_cli::{flags, interrupt};
use std::io::{Write, stdout};
use std::process::ExitCode;

/// All programs, in the order of the chapter of benchmarks; those that virtual time has too come last. A bench that is added here is known
/// everywhere.
pub fn programs() -> Vec<Program> {
    let mut all = vec![
        own::<fault_floor::FaultFloor>(fault_floor::ABOUT),
        own::<demand_paging::DemandPaging>(demand_paging::ABOUT),
        own::<host_faults::HostFaults>(host_faults::ABOUT),
        own::<invalidate::Invalidate>(invalidate::ABOUT),
        own::<zap::Zap>(zap::ABOUT),
        own::<memslot_perf::MemslotPerf>(memslot_perf::ABOUT),
        own::<access_tracking::AccessTracking>(access_tracking::ABOUT),
        own::<aging_pass::AgingPass>(aging_pass::ABOUT),
        own::<dirty_log_perf::DirtyLogPerf>(dirty_log_perf::ABOUT),
        own::<migrate::Migrate>(migrate::ABOUT),
        own::<reclaim::Reclaim>(reclaim::ABOUT),
        own::<ksm_perf::KsmPerf>(ksm_perf::ABOUT),
        own::<numa_balancing::NumaBalancing>(numa_balancing::ABOUT),
    ];
    all.extend(shared::programs());
    all
}

/// Refuses a size that is no multiple of `unit` from one unit to `most`, in bytes.
fn multiple_of(unit: Level, flag: &str, bytes: u64, most: u64) -> Result<(), Error> {
    let (unit, most) = (unit.bytes(), most / unit.bytes() * unit.bytes());
    if bytes > 0 && bytes.is_multiple_of(unit) && bytes <= most {
        return Ok(());
    }
    let [unit, most] = [unit, most].map(size::text);
    Err(Error::Usage(format!("--{flag}: {bytes} is not a multiple of {unit} from {unit} to {most}")))
}

/// The machine could not be built, or broke: why.
pub(crate) fn machine_error(error: impl std::fmt::Display) -> Error {
    Error::Machine(error.to_string())
}

/// How stores are noticed, as users type it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TrackName {
    /// By the faults of write-protected pages
    Writes,
    /// By the Dirty bits that the hardware sets
    DirtyBits,
}

/// A size of the host's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HostPage {
    #[value(name = "4k")]
    K4,
    #[value(name = "2m")]
    M2,
    #[value(name = "1g")]
    G1,
}

impl HostPage {
    pub fn level(self) -> Level {
        [Level::K4, Level::M2, Level::G1][self as usize]
    }
}

impl From<TrackName> for Track {
    fn from(name: TrackName) -> Self {
        match name {
            TrackName::Writes => Self::Writes,
            TrackName::DirtyBits => Self::DirtyBits,
        }
    }
}

/// Parses the size of a dirty ring.
fn ring_size(text: &str) -> Result<RingSize, String> {
    let bytes = u32::try_from(size(text)?).unwrap_or(u32::MAX);
    RingSize::new(bytes).map_err(|error| error.to_string())
}

/// Makes a bench of what was typed.
type Parse = dyn Fn(&ArgMatches) -> Result<Box<dyn Bench + Send>, clap::Error> + Send + Sync;

/// What runs as `slat bench NAME`.
pub struct Program {
    /// Its row of the registry.
    pub about: About,
    /// The command with its flags.
    flags: fn(Command) -> Command,
    /// The bench that was typed.
    parse: Box<Parse>,
}

impl Program {
    /// The bench that `make` makes of the flags that were typed.
    fn new<F: Args, B: Bench + Send + 'static>(
        about: About,
        make: impl Fn(F) -> B + Send + Sync + 'static,
    ) -> Self {
        let parse = move |matches: &ArgMatches| {
            Ok(Box::new(make(F::from_arg_matches(matches)?)) as Box<dyn Bench + Send>)
        };
        Self { about, flags: F::augment_args, parse: Box::new(parse) }
    }
}

/// A bench with the flags that were typed.
pub trait Bench {
    /// Runs it. After Ctrl-C the report has what there was by then.
    fn report(&self, asked: Asked) -> Result<Report, Error>;
    /// Flags that have no effect beside the others.
    fn unused(&self) -> Unused {
        Unused::new()
    }
}

#[derive(Clone, Copy, Debug, Args)]
pub struct Asked {
    /// Counted rounds: samples of each figure
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
impl Asked {
    /// One round.
    pub const ONCE: Self = Self { runs: 1, json: true };
}

/// A bench whose flags are all its own.
fn own<B: Bench + Args + Send + 'static>(about: About) -> Program {
    Program::new(about, |bench: B| bench)
}

/// What was typed behind `slat bench`.
pub struct Typed {
    asked: Asked,
    bench: Box<dyn Bench + Send>,
}

const ENDS: &str = "0 every check holds; 1 one does not; 2 bad input, or the machine has too little of something; \
                    130 interrupted: the rows are those of the rounds until then";

impl ByName for Typed {
    fn commands() -> Vec<Command> {
        let command = |row: &Program| {
            let About { name, runs, takes: [time, memory], .. } = row.about;
            let command = (row.flags)(Command::new(name));
            // A bench that virtual time has, too, asks there what it asks.
            let simulated = || row.simulated().map(|bench| bench.about().asks.into());
            let asks = command.get_about().cloned().or_else(simulated).unwrap_or_default();
            let command =
                Asked::augment_args(command).mut_arg("runs", |arg| arg.default_value(runs)).about(asks);
            flags::takes(command, time, memory, ENDS)
        };
        registry::all().iter().map(command).collect()
    }

    fn parse(name: &str, matches: &ArgMatches) -> Option<Result<Self, clap::Error>> {
        let row = registry::all().iter().find(|row| row.about.name == name)?;
        let asked = Asked::from_arg_matches(matches);
        Some(asked.and_then(|asked| Ok(Self { asked, bench: (row.parse)(matches)? })))
    }
}

impl Typed {
    /// Runs the bench and prints its report to stdout; a false check becomes exit status 1.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let status = self.report()?.finish(self.asked.json)?;
        if !interrupt::asked() {
            return Ok(status);
        }
        if !self.asked.json {
            writeln!(stdout(), "INTERRUPTED: the rows are those of the rounds until then")?;
        }
        Ok(interrupt::status())
    }

    /// Runs it.
    pub fn report(&self) -> Result<Report, Error> {
        self.bench.report(self.asked)
    }

    /// Flags that have no effect beside the others.
    pub fn unused(&self) -> Unused {
        self.bench.unused()
    }
}
