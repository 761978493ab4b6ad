//! What a vCPU caches, under two tags: one for the guest (L1), one for the guest of the guest (L2), whose translations are combined
//! ones, from a frame of L2 to a frame of the host.
//!
//! Forgetting is the engine's business, through [`Translations`]. Each tag forgets only what it is told to: a flush of L1's frames leaves
//! L2's translations, and one of L2's tag leaves L1's.

use crate::psc::Psc;
use crate::tlb::Tlb;
use slat::{Gfn, Span, Translations};

/// Translations and links under one tag.
#[derive(Debug, Default)]
pub(super) struct Cached {
    pub(super) tlb: Tlb,
    pub(super) psc: Psc,
}

impl Cached {
    fn flush_all(&mut self) {
        self.tlb.flush_all();
        self.psc.flush_all();
    }
}

/// What a vCPU runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Under {
    L1,
    L2,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Caches {
    l1: Cached,
    /// Of a vCPU that has run L2.
    l2: Option<Box<Cached>>,
    /// A mistake: translations that it has for L2 stay.
    keeps_l2: bool,
}

impl Caches {
    pub(super) fn under(&mut self, under: Under) -> &mut Cached {
        match under {
            Under::L1 => &mut self.l1,
            Under::L2 => self.l2.get_or_insert_default(),
        }
    }

    pub(super) fn keep_l2(&mut self) {
        self.keeps_l2 = true;
    }

    /// Hits and misses.
    pub(super) fn tlb_counts(&self) -> (u64, u64) {
        let both = || [Some(&self.l1), self.l2.as_deref()].into_iter().flatten();
        (both().map(|cached| cached.tlb.hits()).sum(), both().map(|cached| cached.tlb.misses()).sum())
    }
}

impl Translations for Caches {
    fn flush_all(&mut self) {
        self.l1.flush_all();
        self.flush_nested();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.l1.tlb.flush(gfns);
        self.l1.psc.flush(gfns);
    }

    fn flush_nested(&mut self) {
        match &mut self.l2 {
            // Links go: those of a shadow that has gone to another table lead nowhere.
            Some(l2) if self.keeps_l2 => l2.psc.flush_all(),
            Some(l2) => l2.flush_all(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb::Translation;
    use slat::{Access, Level, Perms, Pfn};

    #[test]
    fn each_tag_forgets_what_it_is_told_to() {
        let page = Translation { pfn: Pfn(7), level: Level::K4, perms: Perms::RWX, dirty: true };
        for (flush, left) in [
            ((|caches| caches.flush(Span::sized(Gfn(0), 8))) as fn(&mut Caches), [false, true]),
            (|caches| caches.flush_nested(), [true, false]),
            (|caches| caches.flush_all(), [false, false]),
        ] {
            let mut caches = Caches::default();
            let both = [Under::L1, Under::L2];
            for under in both {
                caches.under(under).tlb.insert(Gfn(3), page);
            }
            flush(&mut caches);
            let found = both.map(|under| caches.under(under).tlb.lookup(Gfn(3), Access::Read).is_some());
            assert_eq!(found, left);
        }
    }
}
