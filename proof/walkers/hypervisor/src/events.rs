//! Counts the engine's events by kind, and compares them with its own counters ([`Stats`]).
//!
//! ```text
//! the engine ─▶ Host::observe ─▶ sums here ─┐
//!            ─▶ its counters ─▶ Vm::stats ──┴─▶ equal, or the run ends with an error
//! ```
//! If one processor runs the guest, the engine is idle during the comparison: at each 64th turn of the chores, and at
//! the end. With two processors it is at the end only.

use crate::error::Error;
use alloc::format;
use core::array::from_fn;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::trace::{FaultResult, RetryCause, TraceEvent};
use slat::{Cause, Flushes, Format, Host, Level, Retries, Stats, Vm};

/// Number of events between two that the seeded mistake drops.
const LOST: u64 = 4096;
/// Most tries until two processors' sums must be equal: the other one may be in the engine at each try.
const LOOKS_OF_TWO: u32 = 1 << 16;

type Count = AtomicU64;

/// Sums of events.
#[derive(Debug, Default)]
pub struct Events {
    /// A seeded mistake: some events are not counted.
    loses: bool,
    all: Count,
    mapped: Count,
    fixed: Count,
    spurious: Count,
    mmio: Count,
    moved: Count,
    covered: Count,
    lost: Count,
    asked: Count,
    splits: [Count; 2],
    recovered: [Count; 2],
    /// Leaves mapped, and leaves removed.
    came: [Count; 3],
    went: [Count; 3],
    /// Edits, flushes and pages, by cause.
    flushes: [[Count; 3]; Cause::COUNT],
    reclaimed: Count,
}

fn add(count: &Count, more: u64) {
    count.fetch_add(more, Relaxed);
}

fn sum(count: &Count) -> u64 {
    count.load(Relaxed)
}

fn size(level: Level) -> usize {
    usize::from(level.number()) - 1
}

impl Events {
    /// Makes zero sums; `loses` makes the mistake.
    pub fn new(loses: bool) -> Self {
        Self { loses, ..Self::default() }
    }

    /// Returns the number of events.
    pub fn all(&self) -> u64 {
        sum(&self.all)
    }

    /// Counts an event.
    pub fn count(&self, event: TraceEvent) {
        let earlier = self.all.fetch_add(1, Relaxed);
        if self.loses && earlier % LOST == LOST - 1 {
            return;
        }
        match event {
            TraceEvent::Fault { result, .. } => self.fault(result),
            TraceEvent::Retry { cause, .. } => add(
                match cause {
                    RetryCause::Moved => &self.moved,
                    RetryCause::Covered => &self.covered,
                    RetryCause::Lost => &self.lost,
                    RetryCause::Asked => &self.asked,
                },
                1,
            ),
            TraceEvent::Zap { level, leaves, .. } | TraceEvent::TablesFreed { level, leaves } => {
                add(&self.went[size(level)], leaves);
            }
            TraceEvent::Split { level, .. } => {
                add(&self.splits[size(level) - 1], 1);
                add(&self.went[size(level)], 1);
                add(&self.came[size(level) - 1], 512);
            }
            TraceEvent::Recovered { level, .. } => {
                add(&self.recovered[size(level) - 1], 1);
                add(&self.came[size(level)], 1);
            }
            TraceEvent::Flush { cause, edits, pages, .. } => {
                let causes = Cause::ALL.iter().zip(&self.flushes);
                for (_, counts) in causes.filter(|(other, _)| **other == cause) {
                    counts.iter().zip([edits, 1, pages]).for_each(|(count, more)| add(count, more));
                }
            }
            TraceEvent::Reclaimed { subtrees } => add(&self.reclaimed, subtrees),
            // Grace periods, which have no counter either.
            _ => {}
        }
    }

    fn fault(&self, result: FaultResult) {
        match result {
            FaultResult::Mapped(level) => {
                add(&self.mapped, 1);
                add(&self.came[size(level)], 1);
            }
            FaultResult::Fixed => add(&self.fixed, 1),
            FaultResult::Spurious => add(&self.spurious, 1),
            FaultResult::Mmio => add(&self.mmio, 1),
            // For instance faults with a pending page: the engine has no counter for them.
            _ => {}
        }
    }

    /// Returns the expected counters. Counters without events are copied.
    fn expected(&self, said: &Stats) -> Stats {
        let retries_by =
            Retries { moved: sum(&self.moved), covered: sum(&self.covered), lost: sum(&self.lost) };
        let flushes_by: [Flushes; Cause::COUNT] = from_fn(|cause| {
            let [requested, paid, pages] = self.flushes[cause].each_ref().map(sum);
            Flushes { requested, paid, pages }
        });
        Stats {
            mapped_faults: sum(&self.mapped),
            permission_faults: sum(&self.fixed),
            spurious_faults: sum(&self.spurious),
            mmio_faults: sum(&self.mmio),
            splits: self.splits.each_ref().map(sum),
            recovered: self.recovered.each_ref().map(sum),
            retries: retries_by.total(),
            retries_by,
            asked_again: sum(&self.asked),
            leaves: from_fn(|size| sum(&self.came[size]).saturating_sub(sum(&self.went[size]))),
            flushes: flushes_by.iter().fold(Flushes::default(), |all, one| Flushes {
                requested: all.requested + one.requested,
                paid: all.paid + one.paid,
                pages: all.pages + one.pages,
            }),
            flushes_by: flushes_by.into(),
            tables_reclaimed: sum(&self.reclaimed),
            ..*said
        }
    }

    /// Fails if the engine's counters differ, with one processor or two.
    pub fn compare<F: Format, H: Host>(&self, vm: &Vm<F, H>, processors: u32) -> Result<(), Error> {
        let looks = if processors > 1 { LOOKS_OF_TWO } else { 1 };
        let mut differs = None;
        for _ in 0..looks {
            let said = vm.stats();
            let expected = self.expected(&said);
            if said == expected {
                return Ok(());
            }
            differs = Some((expected, said));
        }
        let Some((expected, said)) = differs else { return Ok(()) };
        Err(format!("a count of events is not the engine's: {expected:?} by events, {said:?} by the engine")
            .into())
    }
}
