//! One operation, checked after each of its writes.
//!
//! | at every write | reason |
//! |---|---|
//! | each look-up gives what it gave before the operation, or what it gives after it | no third value, and no return to the first; no hole in between, unless the operation allows it |
//! | the numbers of holes never fall | an answer from before an invalidation is refused for ever |
//! | a zapped leaf is covered by a published invalidation | faults there wait |
//! | each mapped frame has a slot | an invalidation by the host finds it |
//!
//! At the end: every translation that a TLB could have held at any instant was flushed after it had become wrong
//! ([`super::stale`]).

use super::controlled_host::{World, hva};
use super::lookup::{Look, Seen, look};
use super::stale_tlb::{Flushes, Stale};
use crate::active::{Page, Unconfirmed};
use crate::table::entry::{Version, Word};
use crate::table::history::watched;
use crate::*;
use std::format;
use std::string::String;
use std::vec::Vec;

/// The results that look-ups may find during an operation, besides the old and the new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Between {
    /// Nothing else.
    Nothing,
    /// A frozen entry: a thread waits for a moment.
    Waiting,
    /// A frozen entry or a hole: the old page is zapped before the new one is mapped.
    Hole,
}

/// Record of an operation.
pub(super) struct Record {
    /// Whether any entry was written.
    pub(super) wrote: bool,
    /// The shootdowns made.
    pub(super) flushes: Vec<Span<Gfn>>,
    /// Tables that went out of use.
    pub(super) tables: u64,
    pub(super) before: Vec<(Gfn, Look)>,
    pub(super) after: Vec<(Gfn, Look)>,
}

/// State during an operation.
struct Watcher<'w, F: Format> {
    world: &'w World<F>,
    /// The last look at each probe, and the newest number in its holes.
    now: Vec<(Gfn, Look)>,
    newest: Vec<Version>,
    /// The changes, in order: index of the probe, and the new value.
    changes: Vec<(usize, Seen)>,
    stale: Vec<Stale>,
    /// Flushes paid before.
    paid: u64,
    looks: u64,
    wrong: Option<String>,
}

/// Returns the number of shootdowns so far.
fn paid<F: Format>(world: &World<F>) -> u64 {
    world.vm.tlb.by_cause.read().total().paid
}

impl<F: Format> Watcher<'_, F> {
    fn look(&mut self) {
        self.looks += 1;
        let flushed = paid(self.world) - self.paid;
        let slots = self.world.slots();
        for index in 0..self.now.len() {
            let (gfn, old) = self.now[index];
            let new = look(self.world, gfn);
            if new != old {
                self.now[index].1 = new;
                self.stale.extend(Stale::of::<F>(gfn, old, new, flushed));
                if new.seen != old.seen {
                    self.changed(index, (old.seen, new.seen));
                }
            }
            let mapped = new.seen.translation().is_some();
            if mapped && !slots.iter().any(|slot| slot.gfns.contains(gfn)) {
                self.blame(&format!("{gfn:?} is mapped, and has no slot"));
            }
        }
    }

    fn changed(&mut self, index: usize, (old, new): (Seen, Seen)) {
        let gfn = self.now[index].0;
        if let Seen::Nothing(version) = new {
            if version < self.newest[index] {
                self.blame(&format!("the number of {gfn:?} fell to {version:?}"));
            }
            self.newest[index] = version;
            if !matches!(old, Seen::Nothing(_)) {
                let vm = &self.world.vm;
                let page = Page::small(gfn, hva(gfn));
                let stamp = vm.active.stamp(vm.active.epoch(), page, Level::M2, Word::OLDEST);
                if stamp.err() != Some(Unconfirmed::Covered) {
                    self.blame(&format!("{gfn:?} was taken away where no thread waits"));
                }
            }
        }
        self.changes.push((index, new));
    }

    fn blame(&mut self, what: &str) {
        let looks = self.looks;
        self.wrong.get_or_insert_with(|| format!("{what}, after write {looks}"));
    }
}

/// Runs `operation` and looks at `probes`; adds the number of looks. Returns what was wrong as an error.
pub(super) fn record<F: Format>(
    world: &World<F>,
    idle: &mut Idle,
    probes: &[Gfn],
    (between, so_often): (Between, &mut u64),
    operation: impl FnOnce(&World<F>, &mut Idle),
) -> Result<Record, String> {
    let vm = &world.vm;
    // Earlier flushes do not belong to this operation.
    let _ = Flushes::of(vm, idle);
    let tables = vm.table_pages(idle).reachable;
    let before: Vec<_> = probes.iter().map(|&gfn| (gfn, look(world, gfn))).collect();
    let newest = before.iter().map(|(_, look)| match look.seen {
        Seen::Nothing(version) => version,
        _ => Version::default(),
    });
    let mut watcher = Watcher {
        world,
        newest: newest.collect(),
        now: before.clone(),
        changes: Vec::new(),
        stale: Vec::new(),
        paid: paid(world),
        looks: 0,
        wrong: None,
    };
    watched(|| watcher.look(), || operation(world, idle));
    let Watcher { now: after, changes, stale, looks, wrong, .. } = watcher;
    *so_often += looks;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    old_or_new(&before, &after, &changes, between)?;
    let flushes = Flushes::of(vm, idle);
    for stale in stale {
        let now = after.iter().find(|(gfn, _)| *gfn == stale.gfn).expect("it is a probe").1;
        if !stale.is_true(&now)
            && !flushes.0.iter().skip(stale.flushed as usize).any(|&gfns| stale.goes(gfns))
        {
            return Err(format!("TLBs may still hold {stale:x?}, flushed was {:?}", flushes.0));
        }
    }
    let tables = tables.saturating_sub(vm.table_pages(idle).reachable);
    Ok(Record { wrote: looks > 0, flushes: flushes.0, tables, before, after })
}

/// Checks that each look-up changes once from old to new.
fn old_or_new(
    before: &[(Gfn, Look)],
    after: &[(Gfn, Look)],
    changes: &[(usize, Seen)],
    between: Between,
) -> Result<(), String> {
    let mut is_new: Vec<bool> = before.iter().map(|_| false).collect();
    for &(index, seen) in changes {
        let (gfn, old, new) = (before[index].0, before[index].1.seen, after[index].1.seen);
        let pauses = match between {
            Between::Nothing => false,
            Between::Waiting => seen == Seen::Waiting,
            Between::Hole => seen.translation().is_none(),
        };
        if seen.is_same(new) {
            is_new[index] = true;
        } else if is_new[index] || !(seen.is_same(old) || pauses) {
            return Err(format!("{gfn:?} was {old:x?}, becomes {new:x?}, and between it is {seen:x?}"));
        }
    }
    Ok(())
}
