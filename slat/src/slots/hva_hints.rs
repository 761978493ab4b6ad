//! Hints for notify: the slot behind a host range without a search.
//!
//! A primary MMU that takes pages away one by one asks for the same slot again and again. For each of sixteen
//! stretches of host memory (2 MiB each, by address) the last answer is kept, if that slot is **alone** there: no
//! other slot shares any host address with it, so that the answer to any range inside is this slot's frames.
//!
//! As a [`Hint`](super::hint::Hint) each is a copy under a sequence number, and good for one version of the slots.

use super::version::Version;
use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release, fence};

const HINTS: usize = 16;
const STRETCH: u32 = 21;
/// How much larger than the range a slot must be: smaller ones are not worth asking whether they are alone.
const WORTH: u64 = 4;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct HvaHints([HvaHint; HINTS]);

/// A slot that is alone behind its host addresses.
#[derive(Debug, Default)]
#[repr(align(64))]
struct HvaHint {
    sequence: AtomicU64,
    version: AtomicU64,
    /// Its host addresses.
    start: AtomicU64,
    end: AtomicU64,
    /// Its first frame.
    gfn: AtomicU64,
}

impl HvaHints {
    /// As [`Version::over_hvas`], in version `number`.
    #[inline]
    pub(super) fn over_hvas(
        &self,
        (version, number): (Version<'_>, u64),
        hvas: Span<Hva>,
        mut visit: impl FnMut(Span<Gfn>),
    ) {
        let hint = &self.0[(hvas.start.0 >> STRETCH) as usize % HINTS];
        if let Some(gfns) = hint.get(hvas, number) {
            return visit(gfns);
        }
        let (mut slots, mut last) = (0, None);
        version.slots_over(hvas, |part, slot_hvas, slot_gfn| {
            slots += 1;
            last = Some((slot_hvas, slot_gfn));
            visit(part);
        });
        if let (1, Some((slot_hvas, gfn))) = (slots, last)
            && slot_hvas.covers(&hvas)
            && slot_hvas.len() / WORTH >= hvas.len()
        {
            let mut sharing = 0;
            version.over_hvas(slot_hvas, |_| sharing += 1);
            if sharing == 1 {
                hint.put(slot_hvas, gfn, number);
            }
        }
    }
}

impl HvaHint {
    /// The frames behind `hvas` as of `version`, if this hint knows.
    #[inline]
    fn get(&self, hvas: Span<Hva>, version: u64) -> Option<Span<Gfn>> {
        // ORDER(hva-hint): Acquire before the fields, fence after them; pairs with `put`, as in `Hint`.
        let before = self.sequence.load(Acquire);
        let current = before & 1 == 0 && self.version.load(Relaxed) == version;
        let known = Span::new(Hva(self.start.load(Relaxed)), Hva(self.end.load(Relaxed)));
        let gfn = Gfn(self.gfn.load(Relaxed));
        // ORDER(hva-hint): see above.
        fence(Acquire);
        if !current || self.sequence.load(Relaxed) != before || !known.covers(&hvas) || hvas.is_empty() {
            return None;
        }
        let frame = |bytes: u64| gfn + (bytes >> PAGE_SHIFT);
        let (from, to) = (hvas.start.0 - known.start.0, hvas.end.0 - known.start.0);
        Some(Span::new(frame(from), frame(to + (PAGE_SIZE - 1))))
    }

    fn put(&self, hvas: Span<Hva>, gfn: Gfn, version: u64) {
        let before = self.sequence.load(Relaxed);
        // ORDER(hva-hint): claims it; Acquire keeps the fields below.
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // ORDER(hva-hint): the odd number before the fields.
        fence(Release);
        self.version.store(version, Relaxed);
        self.start.store(hvas.start.0, Relaxed);
        self.end.store(hvas.end.0, Relaxed);
        self.gfn.store(gfn.0, Relaxed);
        // ORDER(hva-hint): the fields before the even number; pairs with `get`.
        self.sequence.store(before + 2, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slots::{Limits, Slot, SlotId, SlotMap};
    use std::vec::Vec;

    /// Slots come and go, alone and shared, and ranges are asked for by way of hints. Returns how many answers
    /// were not those of the version itself.
    fn wrong_answers(number_of: impl Fn(u64) -> u64) -> usize {
        let mut map = SlotMap::new(Limits::default());
        let hints = HvaHints::default();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let mut wrong = 0;
        for round in 0..200 {
            let id = random(24) as u32;
            let slot = Slot::new(SlotId(id), Gfn(u64::from(id) << 12), 512, Hva(random(48) << 20));
            map.commit(|tx| {
                if tx.get(slot.id).is_some() { tx.delete(slot.id).map(drop) } else { tx.create(slot) }
            })
            .unwrap();
            for _ in 0..60 {
                let range = Span::sized(Hva(random(52 << 8) << 12 | random(2)), 1 + (random(40) << 9));
                let (mut direct, mut by_hint) = (Vec::new(), Vec::new());
                map.version().over_hvas(range, |gfns| direct.push(gfns));
                hints.over_hvas((map.version(), number_of(round)), range, |gfns| by_hint.push(gfns));
                wrong += usize::from(direct != by_hint);
            }
        }
        assert!(hints.0.iter().any(|hint| hint.sequence.load(Relaxed) > 0), "hints were used");
        wrong
    }

    #[test]
    fn hints_answer_as_the_version_does() {
        assert_eq!(wrong_answers(|round| round + 1), 0);
    }

    #[test]
    fn negative_control_hints_that_outlive_their_version_are_wrong() {
        assert!(wrong_answers(|_| 1) > 0);
    }
}
