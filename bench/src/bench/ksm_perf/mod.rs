//! `slat bench ksm-perf`: what it costs VMs and their host that KSM merges pages under running guests.
//!
//! ```text
//! page_contents.rs what the VMs hold, and what KSM must have found: LTP's ksm02
//! merge_run.rs one sample: VMs, a scanner, guests
//! reading_guest.rs what a guest does meanwhile
//! notified_vm.rs a VM as its address space sees it: time in MMU code, pages that are changing
//! compared.rs the report
//! ```
//! The change-pte series: a merge tells KVM twice, of a write protection and of a new frame behind the entry, and KVM unmaps the page
//! each time. A VM that heeds the reasons keeps it mapped, read-only: no guest faults for want of a translation. The
//! entrants are the same engine with [`contexts`](slat::vm::Builder::contexts) on and off, under KSM that merges up to 64 pages
//! [together](slat_mm::KsmBuilder::merge_together), or one by one; with small and with large pages under guests that run all the while,
//! and under guests that mostly rest.
//!
//! **What is counted as time in MMU code**, the same for both: notifications by the scanner, and the guests' faults, from
//! leaving the guest until it may be entered again; of both, without the host's own change inside of notifications (it
//! changes its entries, and copies pages that are written). Nothing of the first filling counts.

mod compared;
mod merge_run;
mod notified_vm;
mod page_contents;
mod reading_guest;

use super::harness::rounds;
use super::machine::Machine;
use super::report::{Report, params};
use super::{About, Asked, Bench, Cell, Grid};
use compared::{FREED, ONE_BY_ONE, Samples, TOGETHER, Tables};
use merge_run::Way;
use page_contents::Size;
use slat::{Level, PAGE_SIZE, Why};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::size::{self, size};
use slat_series::PatchSeries;

/// What same-page merging costs running guests and their host, with and without the reasons that it gives (the change-pte series)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench ksm-perf --vms 4 -b 16M --runs 20")]
pub struct KsmPerf {
    /// VMs, one vCPU each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=256))]
    vms: u32,
    /// Guest memory of each: 2M to 1G
    #[arg(short, long, value_name = "SIZE", default_value = "8M", value_parser = size)]
    bytes: u64,
}

/// The 2 × 2 of reasons and merging together; the first is slat as it ships, each second one ignores the reasons.
const LEVER: [(bool, u32); 4] = [(true, 64), (false, 64), (true, 1), (false, 1)];

/// The 2 × 2 under each host page and guest.
fn ways() -> Vec<Way> {
    let grounds = [(false, false), (false, true), (true, false), (true, true)];
    let all = grounds
        .map(|(huge, rests)| LEVER.map(|(contexts, together)| Way { contexts, together, huge, rests }));
    all.concat()
}

/// Rows of levers: a figure and its unit, for each size of pages and each kind of guest.
macro_rules! each_ground {
    ($($figure:literal $unit:literal)*) => {
        &[$(
            each_ground!(@ $figure $unit "4 KiB" "running"),
            each_ground!(@ $figure $unit "4 KiB" "resting"),
            each_ground!(@ $figure $unit "2 MiB" "running"),
            each_ground!(@ $figure $unit "2 MiB" "resting"),
        )*]
    };
    (@ $figure:literal $unit:literal $pages:literal $guest:literal) => {
        (
            concat!($figure, "; pages of ", $pages, ", guests ", $guest),
            &[("figure", $figure), ("pages", $pages), ("guest", $guest)],
            $unit,
        )
    };
}

/// Its levers: [`crate::levers`].
const LEVERS: &[Grid] = &[
    Grid {
        what: "Pages of guests are merged: one by one or up to 64 together, with reasons ignored or heeded",
        columns: &[
            ("ignored, one by one", Cell::baseline(ONE_BY_ONE)),
            ("ignored, together", Cell::baseline(TOGETHER)),
            ("heeded, one by one", Cell::slat(ONE_BY_ONE)),
            ("heeded, together", Cell::slat(TOGETHER)),
        ],
        rows: each_ground! {
            "time in MMU code" "ms"
            "of it, faults of the guests" "ms"
            "of it, notifications by the scanner" "ms"
            "flushes" "flushes"
            "faults for want of a translation" "faults"
            "notifications by the scanner" "notifications"
        },
        says: "To heed the reasons is the idea of the change-pte series, to merge pages together is slat's.",
    },
    Grid {
        what: "All of a guest's memory is invalidated, and then used again: table pages freed and made again, by reason",
        columns: &[("ignored", Cell::baseline(FREED)), ("heeded", Cell::slat(FREED))],
        rows: &[
            ("munmap", &[("reason", "unmap")], "KiB"),
            ("mremap", &[("reason", "remap")], "KiB"),
            ("MADV_DONTNEED", &[("reason", "clear")], "KiB"),
            ("migration, compaction", &[("reason", "migrate")], "KiB"),
            ("reclaim", &[("reason", "reclaim")], "KiB"),
            ("mprotect", &[("reason", "protect")], "KiB"),
            ("fork, first step of a merge", &[("reason", "write-protect")], "KiB"),
            ("clear_refs", &[("reason", "soft-dirty")], "KiB"),
            ("NUMA balancing", &[("reason", "numa")], "KiB"),
            ("second step of a merge, break of copy-on-write", &[("reason", "change-pte")], "KiB"),
        ],
        says: "To free table pages only where the mapping goes is the idea of the change-pte series, too. A merge frees none even where reasons\n\
               are ignored: a table page goes with all of what it maps.",
    },
];

/// Its row of the registry.
pub const ABOUT: About = About {
    takes: ["15 s", "40 MiB"],
    runs: "10",
    question: "What does same-page merging cost running guests and their host?",
    kept: "--runs 25",
    levers: LEVERS,
    ci: &["-b 2M"],
    quick: &["-b 2M --runs 3"],
    full: &["--runs 10"],
    ..About::of("ksm-perf", PatchSeries::ChangePte)
};

impl Bench for KsmPerf {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let huge = Level::M2.bytes();
        if !(huge..=1 << 30).contains(&self.bytes) || !self.bytes.is_multiple_of(huge) {
            let text = size::text(self.bytes);
            return Err(Error::Usage(format!("--bytes: {text} is not a multiple of 2M up to 1G")));
        }
        let size = Size { vms: self.vms, pages_per_vm: self.bytes / PAGE_SIZE };
        let machine = Machine::detect();
        let threads = machine.cores.saturating_sub(1).clamp(1, self.vms as usize);
        say(format_args!("{} VMs of {}: {} rounds", self.vms, size::text(self.bytes), asked.runs));
        let arena = merge_run::arena(size)?;
        let ways = ways();
        let samples =
            rounds(asked.runs as usize, &ways, |&way| merge_run::sample(&arena, size, threads, way))?;
        let samples = Samples { size, ways: &ways, samples: &samples };
        let reasons = Why::ALL.into_iter().filter(|&why| why != Why::Slot);
        let tables = reasons.map(|why| {
            let pages = |contexts| merge_run::tables(&arena, size, why, Way { contexts, ..ways[0] });
            Ok((why, [pages(false)?, pages(true)?]))
        });
        let tables = Tables(tables.collect::<Result<_, Error>>()?);
        let report = Report {
            params: params! {
                "vms": self.vms, "bytes_per_vm": self.bytes, "guest_threads": threads, "runs": asked.runs,
            },
            rows: samples.rows().into_iter().chain(tables.rows()).collect(),
            checks: samples.checks().into_iter().chain(tables.checks()).collect(),
            ..Report::of(ABOUT.name, machine)
        };
        Ok(report)
    }
}
