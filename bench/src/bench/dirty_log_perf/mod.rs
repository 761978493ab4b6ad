//! `slat bench dirty-log-perf`: what it costs to know which pages a guest writes, for the guest and for the harvester.
//!
//! ```text
//! log       the stages of KVM's `dirty_log_perf_test`       stages.rs, with logging.rs: who logs; stage_rows.rs
//!             team.rs: vCPUs that go over memory together     sweep.rs: what they do   reported.rs: what logs said of it
//! enable    a log is switched on, up front or gradually     enable.rs   (on mapped_slot.rs: leaf tables by address)
//! harvest   a harvest against the least that it could cost  harvest.rs  (the same)
//! split     large pages, split eagerly or by stores         split.rs
//! disable   large pages come back in place, or by faults    disable.rs
//! ```
//! The host (`host.rs`) has no data memory, so what is timed is the engine, and vCPUs that cache translations. A fault costs
//! no exit from the guest here, which hardware would charge to the vCPU that faults. So each test with a guest is made a second
//! time, where a fault takes a microsecond more (`--exits`). Checks are of what logs told against what the guest wrote,
//! never of speed.

mod disable;
mod enable;
mod harvest;
mod host;
mod logging;
mod mapped_slot;
mod reported;
mod split;
mod stage_rows;
mod stages;
mod sweep;
mod team;
#[cfg(test)]
mod tests;

use super::harness::rounds;
use super::machine::Machine;
use super::report::{Check, Report, Row, params};
use super::{About, Asked, Bench};
use crate::typed::Unused;
use clap::ValueEnum;
use host::MOST;
use logging::{Entrant, Way};
use slat::{Level, RingSize, Splitting, Track};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::interrupt;
use slat_cli::size::{self, size};
use slat_series::PatchSeries;
use stages::Job;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What it costs to know which pages a guest writes: enable, get, clear, disable; before against slat's ways (the TDP MMU series)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench dirty-log-perf --tests log -v 2 -b 256M -w 30 --runs 3")]
pub struct DirtyLogPerf {
    /// vCPUs, a thread each [default: as many as there are CPUs]
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
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ring: Option<u64>,
    /// log: large pages are split when the log is enabled, or a range is cleared (so unless said otherwise)
    #[arg(long, conflicts_with = "lazy")]
    eager: bool,
    /// log: large pages are split by the first store to them
    #[arg(long)]
    lazy: bool,
    /// log: sizes of the host's pages
    #[arg(short, long, value_name = "PAGES,…", value_delimiter = ',', default_value = "4k,2m")]
    pages: Vec<PageSize>,
    /// How stores are noticed: by faults, by the Dirty bits that walkers set
    #[arg(long, value_name = "HOW,…", value_delimiter = ',', default_value = "writes,dirty-bits")]
    track: Vec<By>,
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

/// What there is to measure.
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

/// How stores are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum By {
    Writes,
    DirtyBits,
}

/// What has been found out.
#[derive(Default)]
struct Findings {
    rows: Vec<Row>,
    checks: Vec<Check>,
}

/// Its row of the registry.
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
    fn unused(&self) -> Unused {
        use Test::{Disable, Enable, Harvest, Log, Split};
        let only = |used: &[Test]| {
            let names = used.iter().filter_map(Test::to_possible_value);
            let names: Vec<_> = names.map(|value| value.get_name().to_owned()).collect();
            format!("only --tests {} has a use for it", names.join(","))
        };
        let flags: [(&'static str, &[Test]); 16] = [
            ("vcpus", &[Log, Split, Disable]),
            ("bytes", &[Log]),
            ("slots", &[Log]),
            ("write_percent", &[Log]),
            ("iterations", &[Log]),
            ("no_manual", &[Log]),
            ("ring", &[Log]),
            ("eager", &[Log]),
            ("lazy", &[Log]),
            ("pages", &[Log]),
            ("track", &[Log, Enable, Harvest, Split]),
            ("sparse", &[Enable]),
            ("dense", &[Enable]),
            ("harvested", &[Harvest]),
            ("huge", &[Split, Disable]),
            ("exits", &[Log, Split, Disable]),
        ];
        let unused = flags.into_iter().filter(|(_, used)| !used.iter().any(|test| self.tests.contains(test)));
        let mut unused: Unused = unused.map(|(flag, used)| (flag, only(used))).collect();
        if !self.pages.contains(&PageSize::M2) {
            let nothing = || "there is nothing to split without --pages 2m".to_owned();
            unused.extend([("eager", nothing()), ("lazy", nothing())]);
        }
        unused
    }

    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let machine = Machine::detect();
        let vcpus = self.vcpus.unwrap_or(machine.cores.clamp(1, 256) as u32);
        self.refuse(vcpus)?;
        let ring = self.ring.map(ring_size).transpose()?;
        let stop = interrupt::flag();
        let mut findings = Findings::default();
        let runs = asked.runs as usize;
        let exits: Vec<_> = self.exits.iter().map(|&ns| Duration::from_nanos(ns.into())).collect();
        for test in &self.tests {
            if stop.load(Relaxed) {
                break;
            }
            say(format_args!("{test:?}: {runs} rounds"));
            let tracks = self.tracks();
            let (rows, checks) = match test {
                Test::Log => self.log((vcpus, &exits), ring, runs)?,
                Test::Enable => enable::measure((self.sparse, self.dense), &tracks, runs)?,
                Test::Harvest => harvest::measure(self.harvested, &tracks, runs)?,
                Test::Split => split::measure(self.huge, (vcpus, &exits), &tracks, runs)?,
                Test::Disable => disable::measure(self.huge, (vcpus, &exits), runs)?,
            };
            findings.rows.extend(rows);
            findings.checks.extend(checks);
        }
        let params = params! {
            "vcpus": vcpus,
            "bytes_per_vcpu": self.bytes,
            "slots": self.slots,
            "write_percent": self.write_percent,
            "iterations": self.iterations,
            "runs": asked.runs,
        };
        let Findings { rows, checks } = findings;
        Ok(Report { params, rows, checks, ..Report::of(ABOUT.name, machine) })
    }
}

impl DirtyLogPerf {
    /// What cannot be measured.
    fn refuse(&self, vcpus: u32) -> Result<(), Error> {
        let large = Level::M2.bytes();
        let all = self.bytes.saturating_mul(vcpus.into());
        let sizes = [
            ("bytes", self.bytes, all),
            ("sparse", self.sparse, self.sparse),
            ("dense", self.dense, self.dense),
            ("harvested", self.harvested, self.harvested),
            ("huge", self.huge, self.huge),
        ];
        for (flag, bytes, all) in sizes {
            if bytes == 0 || !bytes.is_multiple_of(large) || all > MOST {
                let most = size::text(MOST);
                return Err(Error::Usage(format!(
                    "--{flag}: {bytes} is not a multiple of 2M above zero, or more than {most} in all"
                )));
            }
        }
        if self.dense > self.sparse {
            return Err(Error::Usage(format!("--dense: {} is more than --sparse", self.dense)));
        }
        for (flag, bytes, parts) in [("slots", all, self.slots), ("huge", self.huge, vcpus)] {
            if bytes / large < parts.into() {
                return Err(Error::Usage(format!(
                    "--{flag}: {bytes} bytes are less than {parts} parts of 2M"
                )));
            }
        }
        Ok(())
    }

    fn tracks(&self) -> Vec<Track> {
        let track = |by: &By| match by {
            By::Writes => Track::Writes,
            By::DirtyBits => Track::DirtyBits,
        };
        self.track.iter().map(track).collect()
    }

    /// Who runs in the stages of KVM's test; the first one is the one before.
    fn entrants(&self, ring: Option<RingSize>) -> Vec<Entrant> {
        let tracks = self.tracks();
        let manual = tracks.iter().filter(|_| !self.no_manual).map(|&track| Way::Manual(track));
        let auto = tracks.iter().map(|&track| Way::Auto(track));
        let splitting = if self.lazy { Splitting::Lazy } else { Splitting::Eager };
        let ways = std::iter::once(Way::Before).chain(auto).chain(manual).chain(ring.map(Way::Ring));
        ways.map(|way| Entrant { way, splitting }).collect()
    }

    fn log(
        &self,
        (vcpus, exits): (u32, &[Duration]),
        ring: Option<RingSize>,
        runs: usize,
    ) -> Result<(Vec<Row>, Vec<Check>), Error> {
        let entrants = self.entrants(ring);
        let (mut rows, mut checks) = (Vec::new(), Vec::new());
        for (pages, &exit) in self.pages.iter().flat_map(|pages| exits.iter().map(move |exit| (pages, exit)))
        {
            if interrupt::asked() {
                break;
            }
            let job = Job {
                vcpus,
                bytes_per_vcpu: self.bytes,
                slots: self.slots,
                percent: self.write_percent,
                iterations: self.iterations,
                size: if *pages == PageSize::K4 { Level::K4 } else { Level::M2 },
                exit,
            };
            let samples = rounds(runs, &entrants, |&entrant| job.sample(entrant))?;
            rows.extend(stage_rows::rows(&job, &entrants, &samples));
            checks.extend(stage_rows::checks(&job, &entrants, &samples));
        }
        Ok((rows, checks))
    }
}

fn ring_size(bytes: u64) -> Result<RingSize, Error> {
    let wrong = |why: &dyn std::fmt::Display| Error::Usage(format!("--ring: {why}"));
    let bytes = u32::try_from(bytes).map_err(|_| wrong(&format!("{bytes} is more than 1M")))?;
    RingSize::new(bytes).map_err(|error| wrong(&error))
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
