//! Hints: the memslot that was found last, kept where it is asked for again.
//!
//! The engine keeps one beside each leaf table. One last-used slot per VM or vCPU fails under random faults; a
//! hint per leaf table does not, because the frames of one table nearly always belong to one slot. Device models
//! may keep their own, one per queue for instance:
//!
//! ```
//! # use slat::{*, slots::Hint, table::formats::Npt4};
//! # struct Nothing;
//! # unsafe impl slat::table::TableMemory for Nothing {}
//! # impl Host for Nothing {
//! #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
//! # }
//! # let mut idle = Idle::take().unwrap();
//! # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
//! # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(16), 16, Hva(0x7000_0000))))?;
//! let hint = Hint::default();
//! let slots = vm.slots();
//! let snapshot = slots.snapshot(&mut idle);
//! assert_eq!(snapshot.find_with(&hint, Gfn(20)), snapshot.find(Gfn(20)));
//! # Ok::<(), SlotError>(())
//! ```
//! It names the version of the slots that it was copied from: any later one, or another VM's, makes it stale at once.
//!
//! `HvaHints` are the same for notify: the slot behind a host range without a search. A primary MMU takes pages away in streams,
//! and asks for the same slot again and again. For each of sixteen stretches of host memory (64 MiB each, by address) the slot
//! found last is kept, while no two slots share host addresses: then the answer to any range inside it is frames of this slot alone.
//!
//! A hint is three words (`Remembered`), and a slot takes two beside its first frame ([`Packed`]).

use crate::addr::{Gfn, Hva, PAGE_SIZE, Span};
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release, fence};
use slat_slots::{Interval, Packed, Slot};

/// The memslot found last by guest frame. See the module's header. Any number of threads may share one.
#[derive(Debug, Default)]
pub struct Hint(Remembered);

impl Hint {
    /// The slot of `gfn` as of `version`, if this is what the hint holds. For one hint all versions are numbers of one
    /// address space (the engine's own, beside leaf tables), or all are [names](super::publish::Name).
    #[inline]
    pub(crate) fn get(&self, gfn: Gfn, version: u64) -> Option<Slot> {
        let [start, place, name] = self.0.get(version)?;
        Some(Packed::from_words([place, name]).slot(Gfn(start))).filter(|slot| slot.gfns.contains(gfn))
    }

    /// Remembers `slot`, found in `version`. Gives up where another thread is writing.
    pub(crate) fn put(&self, slot: &Slot, version: u64) {
        let [place, name] = Packed::new(slot).words();
        self.0.put([slot.gfns.start.0, place, name], version);
    }

    /// Forgets it. By who has it alone: another space may count to the same version.
    #[inline]
    pub(crate) fn forget(&self) {
        self.0.forget();
    }
}

const HINTS: usize = 16;
/// A hint serves 64 MiB of host addresses: this is how many bits are left out of its number.
const HINT_SHIFT: u32 = 26;

/// The slots found last by host address. See the module's header.
#[derive(Debug, Default)]
pub(super) struct HvaHints([HvaHint; HINTS]);

/// A slot that is alone behind its host addresses.
#[derive(Debug, Default)]
#[repr(align(64))]
struct HvaHint(Remembered);

impl HvaHints {
    /// The frames behind `hvas` in version `number`, where they are known to be one slot's and no other's; or where `search` finds
    /// so.
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
                return Some(part(&slot, hvas));
            }
        }
        let slot = search()?;
        if slot.hvas.len() > hvas.len() {
            hint.0.put([slot.hvas.start.0, slot.hvas.end.0, slot.gfn.0], number);
        }
        Some(part(&slot, hvas))
    }
}

/// The frames of `slot` behind `hvas`, some of which lie in it.
#[inline(always)]
pub(super) fn part(slot: &Interval, hvas: Span<Hva>) -> Span<Gfn> {
    if seeded!(PartRoundedDown) {
        let pages = Span::new(hvas.start, Hva(hvas.end.min(slot.hvas.end).0 & !(PAGE_SIZE - 1)));
        return if pages.end <= pages.start.max(slot.hvas.start) {
            Span::new(slot.gfn, slot.gfn)
        } else {
            slot.part(pages)
        };
    }
    slot.part(hvas)
}

/// What was found in one version of the slots, in three words that any number of threads read and write. They are guarded by a
/// sequence number, odd while they are being written, and named by the version that they were copied from: any later one makes
/// them stale at once.
#[derive(Debug, Default)]
struct Remembered {
    sequence: AtomicU64,
    version: AtomicU64,
    words: [AtomicU64; 3],
}

impl Remembered {
    /// The words, if they are of `version`.
    #[inline]
    fn get(&self, version: u64) -> Option<[u64; 3]> {
        // ORDER(hint): Acquire before the words, fence after them; pairs with `put`: equal and even on both
        // sides means that nothing was written between.
        let before = self.sequence.load(Acquire);
        if before & 1 == 1 || self.version.load(Relaxed) != version {
            return None;
        }
        let [a, b, c] = &self.words;
        let words = [a.load(Relaxed), b.load(Relaxed), c.load(Relaxed)];
        // ORDER(hint): see above.
        if !seeded!(HintReadUnfenced) {
            fence(Acquire);
        }
        (self.sequence.load(Relaxed) == before).then_some(words)
    }

    /// Remembers `words`, found in `version`. Gives up where another thread is writing. Rare, and kept out of the
    /// fault's own code, which is slower with it inside.
    #[inline(never)]
    fn put(&self, words: [u64; 3], version: u64) {
        let before = self.sequence.load(Relaxed);
        // ORDER(hint): claims the words; Acquire keeps them below it.
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // ORDER(hint): the odd number before the words, for readers on machines that reorder stores.
        if !seeded!(HintWriteUnfenced) {
            fence(Release);
        }
        self.version.store(version, Relaxed);
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Relaxed);
        }
        // ORDER(hint): the words before the even number; pairs with `get`.
        self.sequence.store(before + 2, unless_seeded!(HintRelaxed, Release));
    }

    /// Names a version that there never is. Not beside a `put`.
    #[inline]
    fn forget(&self) {
        self.version.store(u64::MAX, Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::slots::{SlotId, SlotMap};
    use alloc::vec::Vec;
    use slat_slots::Place;

    /// Slots come and go, some sharing host addresses for a while. Returns how often hints, which are told that a round's version
    /// has this number, said something else than the slots.
    fn wrong_hints(number_of: impl Fn(u64) -> u64) -> usize {
        let (mut map, hints, mut wrong) = (SlotMap::default(), HvaHints::default(), 0);
        let mut random = fastrand::Rng::with_seed(1);
        let mut random = |below: u64| random.u64(..below);
        for round in 0..600 {
            // For a hundred rounds each slot has a place of its own; for the next hundred any place is taken. Between
            // them there are none.
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
                    by_hint.extend(slots.map(|(_, slot)| part(&slot, range)));
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
