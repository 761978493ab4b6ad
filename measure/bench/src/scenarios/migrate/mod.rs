//! `slat bench migrate`: a running guest moves to another machine, and every byte is compared.
//!
//! ```text
//! sender                                                        receiver
//! vCPUs write ─▶ dirty log ─▶ harvest ─▶ read, send ──TCP──▶ write, mark ─▶ vCPUs go on
//!                    ▲             │                             │
//!                    └─ give back ─┴─ commit ◀── received? ◀─────┘
//! ```
//! The crate `slat-migrate` migrates. Here is the rest:
//!
//! | file | idea |
//! |---|---|
//! | `migration` | one sample, from the empty machine to the guest that runs on the other one; connections that break on request |
//! | `endpoint` | one of the two machines, and how it arrives; the comparison, byte by byte |
//! | `checked_guest`, `migrating_vcpus` | a guest that writes meanwhile, and knows every byte; the threads that it runs on |
//! | `migrate_rows` | the report |
//!
//! The TDP MMU series is about VMs of terabytes that migrate. Users also ask that a migration that fails loses
//! nothing: a harvest gives its bits back unless it is committed, and it is committed once the receiver has said that it has
//! the round. `--fail-at-round` and `--fail-each-round` break connections half-way; the migration then goes on with the
//! **same** receiver, which keeps what earlier rounds have brought. Nothing but the bits that were given back makes the
//! sender send those pages again, so a lost one cannot hide behind a full copy.
//!
//! The baseline halts the guest first and sends everything then: what downtime is without a log.

mod checked_guest;
mod endpoint;
mod migrate_rows;
mod migrating_vcpus;
mod migration;

use crate::scenarios::threads_prelude::*;
use crate::threads::flag_values::{TrackName, ring_size};
use migration::{Job, Settings};
use slat_cli::Pages;
use slat_cli::bar::bar;
use slat_migrate::PreCopy;
use std::io::Write as _;
use std::ops::RangeInclusive;

/// A running guest moves to another machine over TCP, and every byte is compared; connections may break (the TDP MMU series)
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  slat bench migrate
  slat bench migrate -v 4 -b 256M --bandwidth 200M --downtime 50
  slat bench migrate -b 64M --fail-each-round --track dirty-bits")]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag that users type")]
pub struct Migrate {
    /// vCPUs, each with a guest that writes all the time
    #[arg(short, long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: u32,
    /// Guest memory of each vCPU: 64K to 64G
    #[arg(short, long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    bytes: u64,
    /// The memory that each guest writes to again and again [default: a 32nd of its memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    working_set: Option<u64>,
    /// How long the guest may stand still, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    downtime: u64,
    /// Rounds at most; in the last one the guest stands still, whether the rest fits or not
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1000))]
    max_rounds: u64,
    /// Bytes per second at most, from 1M
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bandwidth: Option<u64>,
    /// The connection breaks half-way in this round, once
    #[arg(long, value_name = "N", conflicts_with = "fail_each_round", value_parser = clap::value_parser!(u64).range(1..=1000))]
    fail_at_round: Option<u64>,
    /// The connection breaks half-way in each round, once
    #[arg(long)]
    fail_each_round: bool,
    /// Page sizes of both hosts
    #[arg(short, long, value_enum, default_value_t = Pages::K4)]
    pages: Pages,
    /// How writes are noticed
    #[arg(long, value_enum, default_value_t = TrackName::Writes)]
    track: TrackName,
    /// Log by a ring of so many bytes for each vCPU, not by bitmaps: a power of two from 4K to 1M
    #[arg(long, value_name = "SIZE", value_parser = ring_size, conflicts_with = "track")]
    ring: Option<RingSize>,
    /// Log from the start of the machine, not from the start of the migration: what was never written is not sent
    #[arg(long)]
    log_at_start: bool,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Negative control: a failed round is committed all the same. The comparison must find out
    #[arg(long, hide = true)]
    sabotage_commit: bool,
    /// Negative control: harvests leave out their flush. The comparison must find out
    #[arg(long, hide = true)]
    sabotage_rearm: bool,
}

/// How the guest migrates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entrant {
    /// In rounds, with a log: slat as it ships.
    PreCopy,
    /// After the guest was halted, all at once.
    HaltFirst,
}

const ENTRANTS: [Entrant; 2] = [Entrant::PreCopy, Entrant::HaltFirst];

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "migrate",
    asks: "A running guest moves to another machine over TCP, and every byte is compared; connections may break (the TDP MMU series)",
    series: PatchSeries::TdpMmu,
    simulated: Simulated::NOT,
    measured: Measured {
        takes: ["1 min", "2.1 GiB"],
        runs: "3",
        question: "How long does a guest stand still while it migrates over TCP?",
        kept: "",
        headlines: &[Headline {
            what: "a guest of 1 GiB that writes stands still for its migration",
            against: "halt first, then send",
            row: "downtime",
            params: &[("baseline", "halt first, send everything")],
        }],
        ci: &[
            "-b 32M",
            "-b 16M --fail-each-round --track dirty-bits --pages thp",
            "-b 16M --fail-each-round --ring 64K",
        ],
        quick: &["-b 64M --runs 1 --json"],
        full: &["-b 256M --runs 2 --json"],
        ..Measured::of::<Migrate>()
    },
};

impl Flags for Migrate {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        let job = self.job()?;
        let machine = Machine::detect();
        let bar = bar(Some(0), "{prefix} [{bar:40}] {human_pos} of {human_len} pages, {elapsed}");
        let laps = Lineup::run(asked.runs, ENTRANTS, |&who| job.sample(self.settings(who), &bar));
        bar.finish_and_clear();
        let laps = laps?;
        let [pre_copy, halt_first] = ENTRANTS.map(|who| laps.of(who));
        let mut rows = migrate_rows::rows(pre_copy, halt_first);
        if asked.json {
            rows.extend(migrate_rows::rounds(pre_copy));
        } else {
            write!(std::io::stdout().lock(), "{}", migrate_rows::Table(pre_copy))?;
        }
        let report = Report {
            params: params! {
                "vcpus": self.vcpus,
                "bytes_per_vcpu": self.bytes,
                "working_set": job.working_set * PAGE_SIZE,
                "downtime_ms": self.downtime,
                "max_rounds": self.max_rounds,
                "bandwidth": self.bandwidth.map_or("any".into(), size::text),
                "pages": if self.pages == Pages::K4 { "4k" } else { "thp" },
                "log": self.ring.map_or("bitmap".into(), |ring| format!("ring of {} entries", ring.entries())),
                "track": if self.track == TrackName::Writes { "writes" } else { "dirty-bits" },
                "log_at_start": self.log_at_start,
                "fails": self.fails().1,
                "runs": asked.runs,
            },
            rows,
            checks: migrate_rows::checks(&laps),
            ..Report::of(scenario.name, machine)
        };
        Ok(report)
    }
}

impl Migrate {
    fn job(&self) -> Result<Job> {
        let possible = 64 << 10..=64 << 30;
        if !possible.contains(&self.bytes) || !self.bytes.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Usage(format!(
                "--bytes: {} is not a multiple of 4K from 64K to 64G",
                size::text(self.bytes)
            )));
        }
        let working_set = self.working_set.unwrap_or((self.bytes / 32).next_multiple_of(PAGE_SIZE));
        if !(PAGE_SIZE..=self.bytes).contains(&working_set) {
            return Err(Error::Usage(format!(
                "--working-set: {} is not from 4K to --bytes, {}",
                size::text(working_set),
                size::text(self.bytes)
            )));
        }
        if self.bandwidth.is_some_and(|limit| limit < 1 << 20) {
            return Err(Error::Usage("--bandwidth: from 1M".into()));
        }
        if let Some(round) = self.fail_at_round.filter(|round| *round > self.max_rounds) {
            return Err(Error::Usage(format!(
                "--fail-at-round: {round} is past --max-rounds, {}",
                self.max_rounds
            )));
        }
        let log = self.ring.map_or_else(|| DirtyLog::bitmap().track(self.track.into()), DirtyLog::ring);
        let sending = endpoint::Settings {
            vcpus: self.vcpus,
            // The first harvest is everything, which is the first round.
            log: if self.log_at_start { log } else { log.initially_set() },
            logs: self.log_at_start,
            largest: self.pages.largest(),
            sabotage_rearm: self.sabotage_rearm,
        };
        let [pages, working_set] = [self.bytes, working_set].map(|bytes| bytes / PAGE_SIZE);
        Ok(Job { sending, pages, working_set, seed: self.seed })
    }

    /// The rounds whose connection breaks, also in words.
    fn fails(&self) -> (RangeInclusive<u64>, String) {
        match self.fail_at_round {
            Some(round) => (round..=round, format!("in round {round}")),
            None if self.fail_each_round => (1..=u64::MAX, "in each round".into()),
            None => (0..=0, "never".into()),
        }
    }

    fn settings(&self, who: Entrant) -> Settings {
        let (max_rounds, fails) = match who {
            Entrant::PreCopy => (self.max_rounds, self.fails().0),
            Entrant::HaltFirst => (1, 0..=0),
        };
        let pre_copy = PreCopy::new().downtime(Duration::from_millis(self.downtime)).max_rounds(max_rounds);
        let pre_copy = self.bandwidth.map_or(pre_copy, |limit| pre_copy.bandwidth(limit));
        Settings { pre_copy, fails, sabotage_commit: self.sabotage_commit }
    }
}
