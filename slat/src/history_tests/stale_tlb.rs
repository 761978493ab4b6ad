//! The worst possible TLB: it was asked for everything at every instant, and drops nothing by itself.
//!
//! It holds every translation that a look-up ever gave, and every link on the way, as a paging-structure cache does. A
//! translation that has become wrong must be flushed by a shootdown that began later. The flushed ranges are learnt as
//! hardware learns them: by a vCPU that was out of the guest meanwhile, when it enters.

use super::lookup::{Look, Seen, Translation, behind};
use crate::tlb::Translations;
use crate::*;
use std::vec::Vec;

/// A translation or link that was valid until a write.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) gfn: Gfn,
    what: What,
    /// Number of shootdowns that had begun by then.
    pub(super) flushed: u64,
}

#[derive(Debug)]
enum What {
    Page(Translation),
    /// The table of this level.
    Link(Level, Pfn),
}

impl Stale {
    /// Returns what `old` has and `new` has not.
    pub(super) fn of<F: Format>(gfn: Gfn, old: Look, new: Look, flushed: u64) -> impl Iterator<Item = Self> {
        let page = old.seen.translation().filter(|_| old.seen != new.seen).map(What::Page);
        let links = (1..F::LEVELS).filter_map(move |level| {
            let table = old.tables[usize::from(level)]?;
            (new.tables[usize::from(level)] != Some(table))
                .then_some(What::Link(Level::new(level).unwrap(), table))
        });
        page.into_iter().chain(links).map(move |what| Self { gfn, what, flushed })
    }

    /// Whether it is harmless, given the present look-up.
    pub(super) fn is_true(&self, now: &Look) -> bool {
        match (&self.what, now.seen) {
            (What::Page(page), Seen::Maps(now) | Seen::Withdrawn(now)) => page.is_still(now),
            (What::Page(_), _) => false,
            (What::Link(level, table), _) => now.tables[usize::from(level.number())] == Some(*table),
        }
    }

    /// Whether a flush of `gfns` removes it.
    pub(super) fn goes(&self, gfns: Span<Gfn>) -> bool {
        match self.what {
            What::Page(_) => gfns.contains(self.gfn),
            What::Link(level, _) => gfns.overlaps(&behind(self.gfn, level)),
        }
    }
}

const EVERYTHING: Span<Gfn> = Span::new(Gfn(0), Gfn(u64::MAX));

/// The ranges that were flushed since the last call of [`of`](Self::of).
#[derive(Default)]
pub(super) struct Flushes(pub(super) Vec<Span<Gfn>>);

impl Flushes {
    pub(super) fn of<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) -> Self {
        let mut flushes = Self::default();
        let mut vcpu = vm.vcpu(VcpuId(1)).unwrap();
        drop(vcpu.enter(idle, &mut flushes));
        // The last flush is for the number, which was claimed again.
        assert_eq!(flushes.0.pop(), Some(EVERYTHING));
        flushes
    }
}

impl Translations for Flushes {
    fn flush_all(&mut self) {
        self.flush(EVERYTHING);
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0.push(gfns);
    }
}
