//! The hardware: walks, caches, flushes, stores.
//!
//! It always does the worst. A vCPU's caches hold **every** translation and every link that it could have loaded since
//! its last flush. The cached set of a real processor is a subset, so no step has to choose, and every moment of a load
//! is covered. A store that changes no entry happens in every state in which it can; a store that sets Dirty is an
//! action of its own.

use crate::bug::Bug;
use crate::state::{Bad, Caches, Leaf, PAGES, Shared, Span, Track, Word, bits};

/// The hardware's part.
impl Shared {
    /// Adds every translation that a vCPU could load at this moment to its caches.
    pub(crate) fn hardware(&mut self) {
        self.bad = self.bad.or(self.held_is_current());
        let by_bits = self.log.track == Track::DirtyBits;
        for index in 0..self.vcpu_count as usize {
            if !self.tlb.runs(index) {
                continue;
            }
            let mut caches = self.vcpus[index];
            let mut tables = 1_u8 << caches.root;
            if self.deep {
                for node in bits(tables) {
                    if let Word::Table(child) = self.load(node, 2, 0) {
                        caches.links[2] |= 1 << child;
                    }
                }
                tables = caches.links[2];
            }
            for node in bits(tables) {
                for region in 0..2 {
                    match self.load(node, 1, region * 2) {
                        Word::Table(child) => caches.links[region as usize] |= 1 << child,
                        Word::Leaf(leaf) => {
                            for page in 0..2 {
                                caches.learn(
                                    region * 2 + page,
                                    Leaf { pfn: leaf.pfn + page, ..leaf },
                                    by_bits,
                                );
                            }
                        }
                        Word::Hole(_) | Word::Mmio(_) | Word::Frozen(_) => {}
                    }
                }
            }
            for region in 0..2 {
                for node in bits(caches.links[region as usize]) {
                    for gfn in region * 2..region * 2 + 2 {
                        if let Word::Leaf(leaf) = self.load(node, 0, gfn) {
                            caches.learn(gfn, leaf, by_bits);
                        }
                    }
                }
            }
            self.vcpus[index] = caches;
            self.stores_unnoticed(&caches);
            for gfn in 0..PAGES {
                let hva = self.memslots[gfn as usize];
                for frame in (0..16).filter(|frame| caches.loads[gfn as usize] >> frame & 1 != 0) {
                    let stores = caches.stores[gfn as usize] >> frame & 1 != 0;
                    if !self.alive(frame) {
                        self.bad = Some(Bad::StaleLoad);
                    } else if hva != frame % PAGES {
                        self.bad = Some(Bad::StaleSlot);
                    } else if frame / PAGES < self.frames[(frame % PAGES) as usize]
                        && self.writable[(frame % PAGES) as usize]
                    {
                        self.bad = Some(Bad::OldContents);
                    } else if stores && !self.writable[(frame % PAGES) as usize] {
                        self.bad = Some(Bad::StaleStore);
                    } else if stores && self.tracked >> gfn & 1 != 0 {
                        self.bad = Some(Bad::StoreUntracked);
                    }
                }
            }
        }
    }

    /// Makes every store that changes no entry.
    fn stores_unnoticed(&mut self, caches: &Caches) {
        if self.log.begun {
            self.log.unsaved |= match self.log.track {
                Track::Nothing => 0,
                Track::Writes => {
                    (0..2).filter(|&gfn| caches.stores[gfn] != 0).fold(0, |set, gfn| set | 1 << gfn)
                }
                Track::DirtyBits => caches.dirty,
            };
        }
    }

    /// Makes one vCPU answer a flush of `gfns` at once.
    pub(crate) fn flush(&mut self, vcpu: usize, gfns: Span, own_root: bool, bug: Option<Bug>) {
        let root = self.root;
        let caches = &mut self.vcpus[vcpu];
        if caches.root != root && (own_root || bug != Some(Bug::OnlyTheFlipReloads)) {
            *caches = Caches { root, ..Caches::default() };
            return;
        }
        self.forget(vcpu, gfns, bug);
    }

    /// `Translations::flush`.
    pub(crate) fn forget(&mut self, vcpu: usize, gfns: Span, bug: Option<Bug>) {
        let caches = &mut self.vcpus[vcpu];
        for gfn in gfns.start..gfns.end {
            caches.dirty &= !(1 << gfn);
            caches.loads[gfn as usize] = 0;
            caches.stores[gfn as usize] = 0;
            if bug != Some(Bug::FlushKeepsLinks) {
                caches.links[(gfn / 2) as usize] = 0;
                caches.links[2] = 0;
            }
        }
    }

    /// Returns every entry in which a store by `vcpu` to `gfn` would set Dirty now.
    pub(crate) fn clean_places(&mut self, vcpu: usize, gfn: u8) -> Vec<(u8, u8)> {
        if !self.tlb.runs(vcpu) {
            return Vec::new();
        }
        let caches = self.vcpus[vcpu];
        let tables = if self.deep { caches.links[2] } else { 1 << caches.root };
        let mut places = Vec::new();
        let levels = [(tables, 1), (caches.links[(gfn / 2) as usize], 0)];
        for (nodes, level) in levels {
            for node in bits(nodes) {
                if let Word::Leaf(Leaf { write: true, dirty: false, .. }) = self.load(node, level, gfn) {
                    places.push((node, level));
                }
            }
        }
        places
    }

    /// The store: Dirty is set in the entry, atomically, and the frame is written.
    pub(crate) fn store(&mut self, gfn: u8, (node, level): (u8, u8)) {
        if let Word::Leaf(leaf) = self.load(node, level, gfn) {
            self.set(node, level, gfn, Word::Leaf(Leaf { dirty: true, ..leaf }));
            if self.log.track == Track::Nothing {
                self.written |= 1 << (leaf.pfn + (gfn & (Self::pages(level) - 1)));
            } else if self.log.begun {
                self.log.unsaved |= 1 << gfn;
            }
        }
    }
}
