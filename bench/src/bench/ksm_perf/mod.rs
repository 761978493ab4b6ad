//! `slat bench ksm-perf`: what it costs VMs and their host that KSM merges pages under running guests.
//!
//! ```text
//! stages.rs   what the VMs hold, and what KSM must have found: LTP's ksm02
//! lap.rs      one sample: VMs, a scanner, guests
//! guest.rs    what a guest does meanwhile
//! watch.rs    a VM as its address space sees it: time in MMU code, pages that are changing
//! rows.rs     the report
//! ```
//! The change-pte series: a merge tells KVM twice, of a write protection and of a new frame behind the entry, and KVM unmaps the page
//! each time. A VM that heeds the reasons keeps it mapped, read-only: no guest faults for want of a translation. The
//! entrants are the same engine with [`contexts`](slat::vm::Builder::contexts) on and off, under the same KSM.
//!
//! **What is counted as time in MMU code**, the same for both: notifications by the scanner, and the guests' faults, from
//! leaving the guest until it may be entered again; of both, without the host's own change inside of notifications (it
//! changes its entries, and copies pages that are written). Nothing of the first filling counts.

mod guest;
mod lap;
mod rows;
mod stages;
mod watch;

use super::harness::rounds;
use super::machine::Machine;
use super::report::{Report, params};
use super::{About, Asked, Bench, Cell, Grid};
use clap::ValueEnum;
use slat::PAGE_SIZE;
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::size::{self, size};
use slat_series::PatchSeries;
use stages::Size;

/// What same-page merging costs running guests and their host, with and without the reasons that it gives (the change-pte series)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench ksm-perf --vms 4 -b 16M --runs 20")]
pub struct KsmPerf {
    /// VMs, one vCPU each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=256))]
    vms: u32,
    /// Guest memory of each: 64K to 1G
    #[arg(short, long, value_name = "SIZE", default_value = "8M", value_parser = size)]
    bytes: u64,
    /// Pages that the host backs the guests with before it merges
    #[arg(long, default_value = "4k")]
    pages: Pages,
}

/// What the host maps at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Pages {
    /// 4 KiB
    #[value(name = "4k")]
    Small,
    /// 2 MiB, of which small pages are merged
    #[value(name = "2m")]
    Huge,
}

/// Whether the VMs heed the reasons. The first is slat as it ships.
const CONTEXTS: [bool; 2] = [true, false];

/// Its levers: [`crate::levers`].
const LEVERS: &[Grid] = &[Grid {
    what: "Pages of running guests are merged",
    columns: &[
        ("reasons ignored", Cell::baseline("median, best and worst")),
        ("reasons heeded", Cell::slat("median, best and worst")),
    ],
    rows: &[
        ("time in MMU code", &[("figure", "time in MMU code")], "ms"),
        ("of it, faults of the guests", &[("figure", "of it, faults of the guests")], "ms"),
        ("of it, notifications by the scanner", &[("figure", "of it, notifications by the scanner")], "ms"),
        ("faults for want of a translation", &[("figure", "faults for want of a translation")], "faults"),
        ("flushes", &[("figure", "flushes")], "flushes"),
    ],
    says: "The columns differ in one thing, the idea of the change-pte series: whether the VMs heed the reasons. The scanner gathers pages in\n\
           both. It tells more where reasons are heeded, since each page that is still mapped is told twice.",
}];

/// Its row of the registry.
pub const ABOUT: About = About {
    takes: ["5 s", "40 MiB"],
    runs: "10",
    question: "What does same-page merging cost running guests and their host?",
    kept: "--runs 25",
    levers: LEVERS,
    ci: &["-b 4M"],
    quick: &["--runs 5"],
    full: &["--runs 25"],
    ..About::of("ksm-perf", PatchSeries::ChangePte)
};

impl Bench for KsmPerf {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let possible = 64 << 10..=1 << 30;
        let huge = self.pages == Pages::Huge;
        if huge && !self.bytes.is_multiple_of(2 << 20) {
            return Err(Error::Usage(format!(
                "--bytes: {} is not a multiple of 2M, and --pages is 2m",
                size::text(self.bytes)
            )));
        }
        if !possible.contains(&self.bytes) || !self.bytes.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Usage(format!(
                "--bytes: {} is not a multiple of 4K from 64K to 1G",
                size::text(self.bytes)
            )));
        }
        let size = Size { vms: self.vms, pages_per_vm: self.bytes / PAGE_SIZE, huge };
        let machine = Machine::detect();
        let threads = machine.cores.saturating_sub(1).clamp(1, self.vms as usize);
        say(format_args!("{} VMs of {}: {} rounds", self.vms, size::text(self.bytes), asked.runs));
        let arena = lap::arena(size)?;
        let samples = rounds(asked.runs as usize, &CONTEXTS, |&on| lap::sample(&arena, size, threads, on))?;
        let report = Report {
            params: params! {
                "vms": self.vms, "bytes_per_vm": self.bytes, "pages": if huge { "2M" } else { "4K" },
                "guest_threads": threads, "runs": asked.runs,
            },
            rows: rows::rows(&samples[0], &samples[1]),
            checks: rows::checks(size, &samples[0], &samples[1]),
            ..Report::of(ABOUT.name, machine)
        };
        Ok(report)
    }
}
