//! `slat bench ksm-perf`: what it costs VMs and their host that KSM merges pages under running guests.
//!
//! ```text
//! ksm_rows.rs    rows and checks out of samples
//! ```
//! VMs, guests and the scanner, and what must hold, are those that `slat sim` simulates: `merge_run.rs`.
//!
//! A merge tells KVM twice, of a write protection and of a new frame behind the entry, and KVM unmaps the page each time. A VM that heeds
//! the reasons keeps it mapped, read-only: no guest faults for want of a translation. That is the change-pte series. The
//! entrants are the same engine with [`contexts`](slat::vm::Builder::contexts) on and off, under KSM that merges up to 64 pages
//! [together](slat_mm::KsmBuilder::merge_together), or one by one; with small and with large pages; under guests that always run, and
//! under guests that run a fifth of the time.
//!
//! **Time in MMU code**, the same for both: notifications by the scanner, and the faults of guests, each from
//! the call until its return; of both, without the host's own change inside of notifications (it edits its entries, and
//! copies pages that are written). Nothing of the first filling counts.

use super::ksm_rows;
use super::ksm_rows::{CONDITIONS, ONE_BY_ONE, TOGETHER};
use super::merge_run::{Entrant, MergeRun, Plan, arena};
use super::merging::HEEDED_BATCHED;
use super::reading_guest::{Memory, Stage};
use crate::scenarios::threads_prelude::*;

/// The flags of `slat bench ksm-perf`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench ksm-perf --vms 4 -b 16M --runs 20")]
pub struct KsmPerf {
    /// VMs, one vCPU each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=256))]
    vms: u32,
    /// Guest memory of each: 2M to 1G
    #[arg(short, long, value_name = "SIZE", default_value = "8M", value_parser = size)]
    bytes: u64,
    /// Of it, memory that KSM may merge: a multiple of 4K, from 8K on [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    mergeable: Option<u64>,
}

/// The 2 × 2 of reasons and merging together; the first is slat as it ships, each second one ignores the reasons.
const LEVER: [(bool, u32); 4] = [(true, 64), (false, 64), (true, 1), (false, 1)];

/// A row of levers: its name, its figure and unit, the size of pages and the kind of guest.
macro_rules! condition {
    ($name:literal $figure:literal $unit:literal $pages:literal $guest:literal) => {
        ($name, &[("figure", $figure), ("pages", $pages), ("guest", $guest)], $unit)
    };
    ($figure:literal $unit:literal) => {
        condition!($figure $figure $unit "4 KiB" "running")
    };
}

/// Its levers: [`crate::levers`].
const LEVERS: &[Grid] = &[
    Grid {
        what: "Running guests' pages, of 4 KiB unless named, are merged: one by one or up to 64 together, reasons ignored or heeded",
        columns: &[
            ("ignored, one by one", Cell::baseline(ONE_BY_ONE)),
            ("ignored, together", Cell::baseline(TOGETHER)),
            ("heeded, one by one", Cell::slat(ONE_BY_ONE)),
            ("heeded, together", Cell::slat(TOGETHER)),
        ],
        rows: &[
            condition!("time in MMU code" "ms"),
            condition!("the same, guests resting" "time in MMU code" "ms" "4 KiB" "resting"),
            condition!("the same, pages of 2 MiB" "time in MMU code" "ms" "2 MiB" "running"),
            condition!("of it, faults of the guests" "ms"),
            condition!("of it, notifications by the scanner" "ms"),
            condition!("flushes" "flushes"),
            condition!("faults for want of a translation" "faults"),
            condition!("notifications by the scanner" "notifications"),
        ],
        says: "Heeding the reasons is the idea of the change-pte series; merging pages together is slat's.",
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
        says: "Freeing table pages only where the mapping goes is an idea of the change-pte series, too. A merge frees none even where\n\
               reasons are ignored: a table page is freed with everything that it maps.",
    },
];

/// `slat bench ksm-perf`.
pub const MEASURED: Measured = Measured {
    takes: ["15 s", "40 MiB"],
    runs: "10",
    question: "How much does same-page merging cost running guests and their host?",
    kept: "--runs 25",
    levers: LEVERS,
    ci: &["-b 2M"],
    quick: &["-b 2M --runs 3"],
    full: &["--runs 10"],
    ..Measured::of::<KsmPerf>()
};

impl Flags for KsmPerf {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        let huge = Level::M2.bytes();
        if !(huge..=1 << 30).contains(&self.bytes) || !self.bytes.is_multiple_of(huge) {
            let text = size::text(self.bytes);
            return Err(Error::Usage(format!("--bytes: {text} is not a multiple of 2M up to 1G")));
        }
        let mergeable = self.mergeable.unwrap_or(self.bytes);
        if !(2 * PAGE_SIZE..=self.bytes).contains(&mergeable) || !mergeable.is_multiple_of(PAGE_SIZE) {
            let [text, most] = [mergeable, self.bytes].map(size::text);
            return Err(Error::Usage(format!(
                "--mergeable: {text} is not a multiple of 4K from 8K to {most}"
            )));
        }
        let [pages, mergeable] = [self.bytes, mergeable].map(|bytes| bytes / PAGE_SIZE);
        let memory = Memory { vms: self.vms, pages, mergeable };
        let machine = Machine::detect();
        let cpus = (machine.cores.saturating_sub(1) as u32).clamp(1, self.vms);
        say(format_args!("{} VMs of {}: {} rounds", self.vms, size::text(self.bytes), asked.runs));
        let arena = arena(memory, cpus + 2).build()?;
        // Guests do nothing but use their memory.
        let setting = &Setting::real(HEEDED_BATCHED, 1, Work::none());
        let entrants = CONDITIONS.iter().flat_map(|&(huge, rests)| {
            LEVER.map(|(heeds, together)| Entrant { heeds, together, huge, rests })
        });
        let samples = Lineup::run(asked.runs, entrants, |&entrant| {
            let plan = Plan { setting, memory, stages: &Stage::ALL, cpus, entrant };
            MergeRun::new(plan, &arena, false).and_then(|machine| machine.run()).map_err(Error::Machine)
        })?;
        let (tables, tables_hold) = compare(&arena, pages)?;
        let report = Report {
            params: params! {
                "vms": self.vms, "bytes_per_vm": self.bytes, "mergeable_pages": mergeable, "guest_threads": cpus,
                "runs": asked.runs,
            },
            rows: ksm_rows::rows(&samples).into_iter().chain(tables).collect(),
            checks: ksm_rows::checks(&samples, memory).into_iter().chain(tables_hold).collect(),
            ..Report::of(scenario.name, machine)
        };
        Ok(report)
    }
}

// Table pages that a VM frees and makes again where all of its memory is invalidated, by the reason that the host gives.

/// Rows of a reason each.
pub const FREED: &str = "table pages freed and made again";

/// Of VMs of so many pages, where reasons are ignored and where they are heeded; with what holds by construction.
pub fn compare(arena: &Arc<Arena>, pages: u64) -> Result<(Vec<Row>, [Check; 3])> {
    let (mut rows, mut right) = (Vec::new(), [[0; 2]; 3]);
    for why in Reason::ALL.into_iter().filter(|&why| why != Reason::Slot) {
        let counted = |heeds| freed_and_made(arena, pages, why, heeds);
        let both @ [[ignored, _], [heeded, _]] = [counted(false)?, counted(true)?];
        let holds = [
            both.iter().all(|[freed, made]| freed == made),
            ignored > 0,
            heeded == if why.frees_tables() { ignored } else { 0 },
        ];
        for (count, holds) in right.iter_mut().zip(holds) {
            *count = [count[0] + u64::from(holds), count[1] + 1];
        }
        let [ignored, heeded] =
            [ignored, heeded].map(|freed| Series::new(vec![(freed * PAGE_SIZE / 1024) as f64]));
        let row = Row::compare(FREED, params! { "reason": why.name() }, "KiB", &ignored, &heeded);
        rows.push(row.answering(PatchSeries::ChangePte));
    }
    let [again, ignored, heeded] = right;
    let checks = [
        Check::all("table pages that a reason frees are made again", again),
        Check::all("reasons ignored: each of them frees table pages", ignored),
        Check::all("reasons heeded: as many are freed where the mapping goes, else none", heeded),
    ];
    Ok((rows, checks))
}

/// The table pages of one VM that heeds reasons, or does not.
fn freed_and_made(arena: &Arc<Arena>, pages: u64, why: Reason, heeds: bool) -> Result<[u64; 2]> {
    let (space, memory) = (AddressSpace::builder(arena).build()?, Span::sized(BASE, pages * PAGE_SIZE));
    let vm = machine::<Ept4>(&space, memory.len(), Backing::Anonymous, |vm| {
        vm.baseline(Baseline::NONE.contexts(heeds))
    });
    let (vm, idle) = (vm.map_err(Error::Machine)?, &mut idle()?);
    let mut vcpu = vm.vcpu(VcpuId(0)).expect("no other thread runs it");
    let mut fill = |idle: &mut _| {
        for gfn in (0..pages).map(Gfn) {
            let done = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write });
            let _ = done.map_err(|error| Error::Machine(error.to_string()))?;
        }
        Ok::<u64, Error>(vm.table_pages(idle).reachable)
    };
    let full = fill(idle)?;
    let done = vm.around(idle, Event::new(memory, why), &mut |idle, pages| {
        // A reason page by page has edited nothing before this, any other one all.
        pages.changed(idle, memory, None);
    });
    debug_assert!(done.is_ok(), "it may block");
    let left = vm.table_pages(idle).reachable;
    Ok([full - left, fill(idle)? - left])
}
