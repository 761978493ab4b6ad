//! The caches of a vCPU, with two tags: one for the guest (L1), one for the nested guest (L2), whose
//! translations are combined: from a frame of L2 to a frame of the host.
//!
//! The engine decides what to flush, through [`Translations`]. A flush affects only its tag: a flush of L1's
//! frames keeps L2's translations, and one of L2's tag keeps L1's.

use crate::psc::Psc;
use crate::tlb::Tlb;
use slat::{Gfn, Span, Translations};

/// Cached translations and links under one tag.
#[derive(Debug, Default)]
pub(crate) struct Cached {
    pub(crate) tlb: Tlb,
    pub(crate) psc: Psc,
}

impl Cached {
    fn flush_all(&mut self) {
        self.tlb.flush_all();
        self.psc.flush_all();
    }
}

/// The guest that a vCPU is running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Under {
    L1,
    L2,
}

/// The caches of a vCPU.
#[derive(Debug, Default)]
pub struct Caches {
    l1: Cached,
    /// Present after the vCPU has run L2.
    l2: Option<Box<Cached>>,
    /// A seeded mistake: L2's translations survive flushes.
    keeps_l2: bool,
}

impl Caches {
    pub(crate) fn under(&mut self, under: Under) -> &mut Cached {
        match under {
            Under::L1 => &mut self.l1,
            Under::L2 => self.l2.get_or_insert_default(),
        }
    }

    pub(crate) fn keep_l2(&mut self) {
        self.keeps_l2 = true;
    }

    /// Returns hits and misses.
    pub(crate) fn tlb_counts(&self) -> (u64, u64) {
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
            // Links are flushed anyway: after a shadow has changed to another table they point nowhere.
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
    fn each_tag_forgets_what_its_flushes_cover() {
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
