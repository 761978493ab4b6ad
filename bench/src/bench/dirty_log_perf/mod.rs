//! `slat bench dirty-log-perf`: what it costs to know which pages a guest writes, for the guest and for the harvester.
//!
//! ```text
//! log       the stages of KVM's `dirty_log_perf_test`       stages.rs   (logging.rs: each way to log)
//! enable    a log is switched on, up front or gradually     enable.rs   (mapped_slot.rs: leaf tables by address)
//! harvest   a harvest against the least that it could cost  harvest.rs  (the same)
//! split     large pages, split eagerly or by stores         split.rs
//! disable   large pages come back in place, or by faults    disable.rs
//! ```
//! The host of the VM (`logged_vm.rs`) has no data memory, so what is timed is the engine, and vCPUs that cache translations. The
//! vCPUs (`vcpus.rs`) go over memory together (`sweep.rs`); logs report pages (`reported.rs`). A fault costs
//! no exit from the guest here, which hardware would charge to the vCPU that faults. So each test with a guest is made a second
//! time, where a fault takes a microsecond more (`--exits`). Checks compare the pages that logs
//! reported with the pages that the guest wrote; no check is of speed.

mod disable;
mod enable;
mod harvest;
mod logged_vm;
mod logging;
mod mapped_slot;
mod reported;
mod split;
mod stages;
mod sweep;
#[cfg(test)]
mod tests;
mod vcpus;

use super::machine::Machine;
use super::report::{Report, params};
use super::{About, Asked, Bench, TrackName, multiple_of, ring_size};
use crate::typed::Unused;
use clap::{Args, Command, ValueEnum};
use logged_vm::MOST;
use logging::{Entrant, Way};
use slat::{Level, RingSize, Splitting, Track};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::interrupt;
use slat_cli::size::size;
use slat_series::PatchSeries;
use stages::Stages;
use std::time::{Duration, Instant};

/// What it costs to know which pages a guest writes: enable, get, clear, disable; before against slat's ways (the TDP MMU series)
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
    track: Vec<TrackName>,
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
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    exits: Vec<u32>,
    /// What to measure
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

/// The row of this bench in the registry.
pub const ABOUT: About = About {
    takes: ["2 min", "1.1 GiB"],
    question: "What does it cost to know which pages a guest writes?",
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
    ..About::of("dirty-log-perf", PatchSeries::TdpMmu)
};

impl Bench for DirtyLogPerf {
    /// A flag's help begins with the names of the tests that use it, where not all do.
    fn unused(&self) -> Unused {
        let mut unused = Unused::new();
        for arg in Self::augment_args(Command::new(ABOUT.name)).get_arguments() {
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

    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let machine = Machine::detect();
        let vcpus = self.vcpus.unwrap_or(machine.cores.clamp(1, 256) as u32);
        self.refuse(vcpus)?;
        let mut report = Report::of(ABOUT.name, machine);
        report.params = params! {
            "vcpus": vcpus,
            "bytes_per_vcpu": self.bytes,
            "slots": self.slots,
            "write_percent": self.write_percent,
            "iterations": self.iterations,
            "runs": asked.runs,
        };
        let runs = asked.runs;
        let exits: Vec<_> = self.exits.iter().map(|&ns| Duration::from_nanos(ns.into())).collect();
        let tracks: Vec<Track> = self.track.iter().map(|&name| name.into()).collect();
        for test in &self.tests {
            if interrupt::asked() {
                break;
            }
            say(format_args!("{test:?}: {runs} rounds"));
            let report = &mut report;
            match test {
                Test::Log => self.log(report, (vcpus, &exits), &tracks, runs)?,
                Test::Enable => enable::measure(report, (self.sparse, self.dense), &tracks, runs)?,
                Test::Harvest => harvest::measure(report, self.harvested, &tracks, runs)?,
                Test::Split => split::measure(report, self.huge, (vcpus, &exits), &tracks, runs)?,
                Test::Disable => disable::measure(report, self.huge, (vcpus, &exits), runs)?,
            }
        }
        Ok(report)
    }
}

impl DirtyLogPerf {
    /// Refuses sizes that cannot be measured.
    fn refuse(&self, vcpus: u32) -> Result<(), Error> {
        let large = Level::M2;
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

    /// Each way to log, in the stages of KVM's test; the first one is the one before.
    fn entrants(&self, tracks: &[Track]) -> Vec<Entrant> {
        let manual = tracks.iter().filter(|_| !self.no_manual).map(|&track| Way::Manual(track));
        let auto = tracks.iter().map(|&track| Way::Auto(track));
        let splitting = if self.lazy { Splitting::Lazy } else { Splitting::Eager };
        let ways = std::iter::once(Way::Before).chain(auto).chain(manual).chain(self.ring.map(Way::Ring));
        ways.map(|way| Entrant { way, splitting }).collect()
    }

    fn log(
        &self,
        report: &mut Report,
        (vcpus, exits): (u32, &[Duration]),
        tracks: &[Track],
        runs: u32,
    ) -> Result<(), Error> {
        for (pages, &exit) in self.pages.iter().flat_map(|pages| exits.iter().map(move |exit| (pages, exit)))
        {
            if interrupt::asked() {
                break;
            }
            let stages = Stages {
                vcpus,
                bytes_per_vcpu: self.bytes,
                slots: self.slots,
                percent: self.write_percent,
                iterations: self.iterations,
                size: if *pages == PageSize::K4 { Level::K4 } else { Level::M2 },
                exit,
            };
            stages.measure(report, self.entrants(tracks), runs)?;
        }
        Ok(())
    }
}

fn name_of(track: Track) -> &'static str {
    match track {
        Track::Writes => "write protection",
        Track::DirtyBits => "D bits",
    }
}

fn exit_name(exit: Duration) -> String {
    format!("{} ns", exit.as_nanos())
}

/// How long `work` takes.
fn timed(work: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}
