//! `slat bench dirty-log-perf`: what it costs to know which pages a guest writes, for the guest and for the harvester.
//!
//! ```text
//! log       the stages of KVM's `dirty_log_perf_test`       log_stages.rs
//! enable    a log is switched on, up front or gradually     log_harvest.rs   (bits of leaves are set at will)
//! harvest   a harvest against the least that it could cost  log_harvest.rs
//! split     large pages, split eagerly or by stores         log_split.rs
//! disable   large pages come back in place, or by faults    log_split.rs
//! ```
//! The host of the VM (`logged_vm.rs`) has no data memory, so what is timed is the engine, and vCPUs that cache translations. The
//! vCPUs (`logging_vcpus.rs`) go over memory together, and between their passes each way to log does its steps. A fault costs
//! no exit from the guest here, which hardware would charge to the vCPU that faults. So each test with a guest is made a second
//! time, where a fault takes a microsecond more (`--exits`). Checks compare the pages that logs
//! reported with the pages that the guest wrote; no check is of speed.

#[cfg(test)]
mod dirty_log_tests;
mod log_harvest;
mod log_split;
mod log_stages;
mod logged_vm;
mod logging_vcpus;

use crate::scenarios::threads_prelude::*;
use crate::threads::flag_values::{TrackName, ring_size};
use crate::threads::mapped_slot::on_first_cpu;
use clap::builder::{EnumValueParser, TypedValueParser};
use clap::{Args, Command};
use logged_vm::MOST;

/// The flags of `slat bench dirty-log-perf`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench dirty-log-perf --tests log -v 2 -b 256M -w 30 --runs 3")]
pub struct DirtyLogPerf {
    /// log, split, disable: vCPUs, a thread each [default: as many as there are CPUs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Option<u32>,
    /// log: guest memory for each vCPU, a multiple of 2M
    #[arg(short, long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    bytes: u64,
    /// log: memslots that the memory is divided into, each of 2M at least
    #[arg(short, visible_short_alias = 'x', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32_000))]
    slots: u32,
    /// log: percent of accesses that are stores; the others are loads
    #[arg(short, long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100))]
    write_percent: u32,
    /// log: how often memory is dirtied, and the log got
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// log: only the ways without manual mode: a harvest takes what was written and tracks it again
    #[arg(short = 'g', long)]
    no_manual: bool,
    /// log: a ring of so many bytes for each vCPU too: a power of two from 4K to 1M
    #[arg(long, value_name = "SIZE", value_parser = ring_size)]
    ring: Option<RingSize>,
    /// log: large pages are split when the log is enabled, or a range is cleared (so unless said otherwise)
    #[arg(long, conflicts_with = "lazy")]
    eager: bool,
    /// log: large pages are split by the first store to them
    #[arg(long)]
    lazy: bool,
    /// log: sizes of the host's pages
    #[arg(short, long, value_name = "PAGES,…", value_delimiter = ',', default_value = "4k,2m")]
    pages: Vec<PageSize>,
    /// log, enable, harvest, split: how stores are noticed: by faults, by the Dirty bits that walkers set
    #[arg(long, value_name = "HOW,…", value_delimiter = ',', default_value = "writes,dirty-bits")]
    #[arg(value_parser = EnumValueParser::<TrackName>::new().map(Track::from))]
    track: Vec<Track>,
    /// enable: guest memory with a page in each 2M
    #[arg(long, value_name = "SIZE", default_value = "128G", value_parser = size)]
    sparse: u64,
    /// enable: how much of it has every 4K page
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size)]
    dense: u64,
    /// harvest: guest memory
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    harvested: u64,
    /// split, disable: guest memory, in pages of 2M
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size)]
    huge: u64,
    /// log, split, disable: nanoseconds that an exit from the guest and the way back take, each. Here they take none; on
    /// hardware about as long as the second one says
    #[arg(long, value_name = "NS,…", value_delimiter = ',', default_value = "0,1000")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=100_000).map(Duration::from_nanos))]
    exits: Vec<Duration>,
    /// The tests to run
    #[arg(
        long,
        value_name = "TEST,…",
        value_delimiter = ',',
        default_value = "log,enable,harvest,split,disable"
    )]
    tests: Vec<Test>,
}

/// A test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Test {
    /// The stages of KVM's test, by slat's ways and by the one before
    Log,
    /// A log is switched on, up front or gradually
    Enable,
    /// A harvest against scan and locked instructions
    Harvest,
    /// Large pages split eagerly, or by stores
    Split,
    /// Large pages come back in place, or by faults
    Disable,
}

/// The host's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum PageSize {
    #[value(name = "4k")]
    K4,
    #[value(name = "2m")]
    M2,
}

impl PageSize {
    fn level(self) -> Level {
        [Level::K4, Level::M2][self as usize]
    }
}

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "dirty-log-perf",
    asks: "Cost of a dirty log: enable, get, clear, disable, for a memslot that a guest writes (the TDP MMU series)",
    series: PatchSeries::TdpMmu,
    simulated: Simulated::NOT,
    measured: Measured {
        takes: ["2 min", "1.1 GiB"],
        question: "How much does it cost to know which pages a guest writes?",
        kept: "--ring 64K --runs 9",
        ci: &["-b 16M --ring 16K --sparse 1G --dense 64M --harvested 64M --huge 128M"],
        quick: &[
            "--tests enable,harvest --sparse 8G --dense 512M --harvested 256M --runs 3",
            "--tests split,disable --huge 512M --exits 1000 --runs 2",
        ],
        full: &[
            "--tests enable,harvest --sparse 64G --runs 3",
            "--tests log,split,disable --huge 1G --exits 1000 --runs 3",
        ],
        ..Measured::of::<DirtyLogPerf>()
    },
};

impl Flags for DirtyLogPerf {
    /// A flag's help begins with the names of the tests that use it, where not all do.
    fn unused(&self) -> Unused {
        let mut unused = Unused::new();
        for arg in Self::augment_args(Command::new(SCENARIO.name)).get_arguments() {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let (tests, _) = help.split_once(':').unwrap_or_default();
            let used: Vec<Test> =
                tests.split(", ").filter_map(|test| Test::from_str(test, false).ok()).collect();
            if !used.is_empty() && !used.iter().any(|test| self.tests.contains(test)) {
                let tests = tests.replace(' ', "");
                unused.push((arg.get_id().to_string(), format!("only --tests {tests} has a use for it")));
            }
        }
        if !self.pages.contains(&PageSize::M2) {
            let nothing = || "there is nothing to split without --pages 2m".to_owned();
            unused.extend(["eager", "lazy"].map(|flag| (flag.into(), nothing())));
        }
        unused
    }

    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        self.refuse()?;
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! {
            "vcpus": self.vcpus(),
            "bytes_per_vcpu": self.bytes,
            "slots": self.slots,
            "write_percent": self.write_percent,
            "iterations": self.iterations,
            "runs": asked.runs,
        };
        for test in &self.tests {
            if interrupt::asked() {
                break;
            }
            say(format_args!("{test:?}: {} rounds", asked.runs));
            self.measure(*test, &mut report, asked.runs)?;
        }
        Ok(report)
    }
}

impl DirtyLogPerf {
    fn vcpus(&self) -> u32 {
        self.vcpus.unwrap_or_else(|| cpus().clamp(1, 256) as u32)
    }

    fn measure(&self, test: Test, report: &mut Report, runs: u32) -> Result<()> {
        match test {
            Test::Log => self.log(report, runs),
            Test::Enable => on_first_cpu(|idle| self.enable(report, idle, runs)),
            Test::Harvest => on_first_cpu(|idle| self.harvest(report, idle, runs)),
            Test::Split => self.split(report, runs),
            Test::Disable => self.disable(report, runs),
        }
    }

    /// Refuses sizes that cannot be measured.
    fn refuse(&self) -> Result<()> {
        let (large, vcpus) = (Level::M2, self.vcpus());
        multiple_of(large, "bytes", self.bytes, MOST / u64::from(vcpus))?;
        multiple_of(large, "sparse", self.sparse, MOST)?;
        multiple_of(large, "dense", self.dense, self.sparse)?;
        multiple_of(large, "harvested", self.harvested, MOST)?;
        multiple_of(large, "huge", self.huge, MOST)?;
        for (flag, bytes, parts) in
            [("slots", self.bytes * u64::from(vcpus), self.slots), ("huge", self.huge, vcpus)]
        {
            if bytes / large.bytes() < parts.into() {
                return Err(Error::Usage(format!(
                    "--{flag}: {bytes} bytes are less than {parts} parts of 2M"
                )));
            }
        }
        Ok(())
    }
}

fn exit_name(exit: Duration) -> String {
    format!("{} ns", exit.as_nanos())
}

/// How long `work` takes, and what it has made.
fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(Duration, T), E> {
    let began = Instant::now();
    let made = work()?;
    Ok((began.elapsed(), made))
}
