//! Hints: the memslot found last, kept for the next look-up at the same place.
//!
//! The engine keeps one hint beside each leaf table. One last-used slot for a VM or vCPU fails under random faults. A
//! hint for each leaf table does not, because the frames of one table nearly always belong to one slot. Device models
//! may keep their own hints, for example one for each queue.
//!
//! `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
//!
//! ```
//! # use slat::{*, slots::Hint, table::formats::Npt4};
//! # struct Nothing;
//! # impl Host for Nothing {
//! #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
//! # }
//! # let mut idle = Idle::take().unwrap();
//! # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
//! # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(16), 16, Hva(0x7000_0000))))?;
//! let hint = Hint::default();
//! let slots = vm.memory();
//! let snapshot = slots.snapshot(&mut idle);
//! assert_eq!(snapshot.find_with(&hint, Gfn(20)), snapshot.find(Gfn(20)));
//! # Ok::<(), SlotError>(())
//! ```
//! A hint names the version of the slots that it was copied from. It is stale in any later version, and in another VM.
//!
//! `HvaHints` do the same for invalidations: they find the slot behind a host range without a search. A primary MMU
//! takes pages away in streams, and looks up the same slot repeatedly. For each of sixteen classes of host memory (64
//! MiB each, by address) the engine keeps the slot found last, if no other slot shares its host addresses. Any range
//! inside that slot then maps to frames of this slot alone.
//!
//! A hint has three words (`SeqlockWords`); a slot takes two besides its first frame ([`Packed`]).

use crate::addr::{Gfn, Hva, Span};
use crate::sync::prim::{AtomicU64, Relaxed};
use slat_slots::{Interval, Packed, Slot};

/// The memslot found last by guest frame; see the [module](self). Any number of threads may share a hint.
#[derive(Debug, Default)]
pub struct Hint(SeqlockWords);

impl Hint {
    /// Returns the slot of `gfn` as of `version`, if the hint has it. All versions used with one hint must be numbers
    /// of one address space (the engine's hints beside leaf tables), or all [names](super::publish::Name).
    #[inline]
    pub(crate) fn get(&self, gfn: Gfn, version: u64) -> Option<Slot> {
        let [start, place, name] = self.0.get(version)?;
        Some(Packed::from_words([place, name]).slot(Gfn(start))).filter(|slot| slot.gfns.contains(gfn))
    }

    /// Stores `slot`, found in `version`. Does nothing if another thread is writing.
    pub(crate) fn put(&self, slot: &Slot, version: u64) {
        let [place, name] = Packed::new(slot).words();
        self.0.put([slot.gfns.start.0, place, name], version);
    }

    /// Clears the hint, because another space may have the same version numbers. The caller must own the hint.
    #[inline]
    pub(crate) fn forget(&self) {
        self.0.forget();
    }
}

const HINTS: usize = 16;
/// Number of address bits below the hint's number: a hint serves 64 MiB of host addresses.
const HINT_SHIFT: u32 = 26;

/// The slots found last by host address; see the module's header.
#[derive(Debug, Default)]
pub(super) struct HvaHints([HvaHint; HINTS]);

/// A slot whose host addresses no other slot shares.
#[derive(Debug, Default)]
#[repr(align(64))]
struct HvaHint(SeqlockWords);

impl HvaHints {
    /// Returns the frames behind `hvas` in version `number`, if the hint or `search` finds that one slot alone covers
    /// them.
    #[inline]
    pub(super) fn alone_over(
        &self,
        number: u64,
        hvas: Span<Hva>,
        search: impl FnOnce() -> Option<Interval>,
    ) -> Option<Span<Gfn>> {
        let hint = &self.0[(hvas.start.0 >> HINT_SHIFT) as usize % HINTS];
        if let Some([start, end, gfn]) = hint.0.get(number) {
            let slot = Interval { hvas: Span::new(Hva(start), Hva(end)), gfn: Gfn(gfn) };
            if slot.hvas.covers(&hvas) && !hvas.is_empty() {
                return Some(slot.part(hvas));
            }
        }
        let slot = search()?;
        if slot.hvas.len() > hvas.len() {
            hint.0.put([slot.hvas.start.0, slot.hvas.end.0, slot.gfn.0], number);
        }
        Some(slot.part(hvas))
    }
}

/// Three words found in one version of the slots, which any number of threads read and write. A sequence number guards
/// them and is odd during a write. Any later version makes them stale.
#[derive(Debug, Default)]
struct SeqlockWords {
    sequence: AtomicU64,
    version: AtomicU64,
    words: [AtomicU64; 3],
}

impl SeqlockWords {
    /// Returns the words if they are of `version`.
    #[inline]
    fn get(&self, version: u64) -> Option<[u64; 3]> {
        // Acquire before the words, and a fence after them; pairs with `put`. If the sequence is even, and equal on both
        // sides, no write came in between.
        let before = self.sequence.load(order!(hint.begin, Acquire));
        if before & 1 == 1 || self.version.load(Relaxed) != version {
            return None;
        }
        let [a, b, c] = &self.words;
        let words = [a.load(Relaxed), b.load(Relaxed), c.load(Relaxed)];
        fence!(hint.read, Acquire);
        (self.sequence.load(Relaxed) == before).then_some(words)
    }

    /// Stores `words`, found in `version`. Does nothing if another thread is writing. Rare; it is not inlined, because
    /// that would slow the fault path down.
    #[inline(never)]
    fn put(&self, words: [u64; 3], version: u64) {
        let before = self.sequence.load(Relaxed);
        // Acquire keeps the words below the claim.
        let claim = order!(hint.claim, Acquire);
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, claim, Relaxed).is_err() {
            return;
        }
        // The odd number before the words, for readers on processors that reorder stores.
        fence!(hint.write, Release);
        self.version.store(version, Relaxed);
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Relaxed);
        }
        // The words before the even number; pairs with `get`.
        self.sequence.store(before + 2, order!(hint.end, Release));
    }

    /// Names a version that never exists. Must not race with `put`.
    #[inline]
    fn forget(&self) {
        self.version.store(u64::MAX, Relaxed);
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::slots::{SlotId, SlotMap};
    use alloc::vec::Vec;
    use slat_slots::Place;

    /// Creates and deletes slots, some of which share host addresses for a while. `number_of` is the version number
    /// that the hints see in a round. Returns the number of look-ups in which hints and slots disagree.
    fn wrong_hints(number_of: impl Fn(u64) -> u64) -> usize {
        let (mut map, hints, mut wrong) = (SlotMap::default(), HvaHints::default(), 0);
        let mut random = fastrand::Rng::with_seed(1);
        let mut random = |below: u64| random.u64(..below);
        for round in 0..600 {
            // For a hundred rounds each slot has its own place; for the next hundred any place is allowed. All slots
            // are deleted in between.
            if round % 100 == 0 {
                let ids: Vec<_> = map.range(Span::new(Gfn(0), Gfn(u64::MAX))).map(|slot| slot.id).collect();
                map.commit(|tx| ids.into_iter().try_for_each(|id| tx.delete(id).map(drop))).unwrap();
            }
            let id = random(20);
            let place = if round / 100 % 2 == 0 { 2 * id } else { random(48) };
            let slot = Slot::new(SlotId(id as u32), Gfn(id << 12), 512, Hva(place << 20));
            map.commit(|tx| match tx.get(slot.id) {
                Some(_) => tx.delete(slot.id).map(drop),
                None => tx.create(slot),
            })
            .unwrap();
            for _ in 0..30 {
                let range = Span::sized(Hva(random(52 << 8) << 12 | random(2)), 1 + (random(40) << 9));
                let (mut found, mut by_hint) = (Vec::new(), Vec::new());
                map.over_hvas(range, |gfns| found.push(gfns));
                if let Some(gfns) =
                    hints.alone_over(number_of(round), range, || map.version().alone_over(range))
                {
                    by_hint.push(gfns);
                } else {
                    let slots = map.version().search_hvas(range, Place::FIRST);
                    by_hint.extend(slots.map(|(_, slot)| slot.part(range)));
                }
                wrong += usize::from(found != by_hint);
            }
        }
        wrong
    }

    #[test]
    fn hints_by_host_range_answer_as_the_slots_do() {
        assert_eq!(wrong_hints(|round| round + 1), 0);
    }

    #[test]
    fn negative_control_hints_that_outlive_their_version_are_wrong() {
        assert!(wrong_hints(|_| 1) > 0);
    }
}
