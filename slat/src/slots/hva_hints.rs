//! Hints for notify: the slot behind a host range without a search.
//!
//! A primary MMU takes pages away in streams, and asks for the same slot again and again. For each of sixteen
//! stretches of host memory (64 MiB each, by address) the slot found last is kept, while no two slots share host
//! addresses: then the answer to any range inside it is frames of this slot alone.
//!
//! As a [`Hint`](super::hint::Hint) each is a copy under a sequence number, and good for one version of the slots.

use super::version::{Interval, Version};
use crate::addr::{Gfn, Hva, Span};
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release, fence};

const HINTS: usize = 16;
const STRETCH: u32 = 26;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct HvaHints([HvaHint; HINTS]);

/// A slot that is alone behind its host addresses.
#[derive(Debug, Default)]
#[repr(align(64))]
struct HvaHint {
    sequence: AtomicU64,
    version: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
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
        if let Some(slot) = hint.get(number).filter(|slot| slot.hvas.covers(&hvas) && !hvas.is_empty()) {
            return visit(slot.part(hvas));
        }
        match version.alone_over(hvas) {
            Some(slot) => {
                if slot.hvas.len() > hvas.len() {
                    hint.put(&slot, number);
                }
                visit(slot.part(hvas));
            }
            None => version.over_hvas(hvas, visit),
        }
    }
}

impl HvaHint {
    /// What it holds, if that is of `version`.
    #[inline]
    fn get(&self, version: u64) -> Option<Interval> {
        // ORDER(hva-hint): Acquire before the fields, fence after them; pairs with `put`, as in `Hint`.
        let before = self.sequence.load(Acquire);
        if before & 1 == 1 || self.version.load(Relaxed) != version {
            return None;
        }
        let hvas = Span::new(Hva(self.start.load(Relaxed)), Hva(self.end.load(Relaxed)));
        let gfn = Gfn(self.gfn.load(Relaxed));
        // ORDER(hva-hint): see above.
        fence(Acquire);
        (self.sequence.load(Relaxed) == before).then_some(Interval { hvas, gfn })
    }

    fn put(&self, slot: &Interval, version: u64) {
        let before = self.sequence.load(Relaxed);
        // ORDER(hva-hint): claims it; Acquire keeps the fields below.
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // ORDER(hva-hint): the odd number before the fields.
        fence(Release);
        self.version.store(version, Relaxed);
        self.start.store(slot.hvas.start.0, Relaxed);
        self.end.store(slot.hvas.end.0, Relaxed);
        self.gfn.store(slot.gfn.0, Relaxed);
        // ORDER(hva-hint): the fields before the even number; pairs with `get`.
        self.sequence.store(before + 2, Release);
    }
}
