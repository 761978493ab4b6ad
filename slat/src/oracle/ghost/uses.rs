//! Frames that are lent, freed and used; and stores, which a log must know.

use super::World;
use crate::addr::{Gfn, PAGE_SHIFT, Pfn, Span};
use crate::dirty::harvest::TakenWords;
use crate::host::VcpuId;
use crate::oracle::violation::Rule;
use crate::slots::SpaceId;
use crate::slots::bitmap::WORD;
use crate::table::format::Access;
use crate::why::Reason;
use alloc::format;
use alloc::vec::Vec;

impl World {
    /// The lent table pages among `pages` frames from `first` on.
    pub(super) fn table_in(&self, first: u64, pages: u64) -> Option<(u64, u64)> {
        let (&table, &lent) = self.tables.range(..first + pages).next_back()?;
        (table + lent > first).then_some((table, lent))
    }

    pub(in crate::oracle) fn lends(&mut self, (address, pfn): (usize, Pfn), pages: u64, is_there: bool) {
        const CALL: &str = "TableMemory::lend";
        let bytes = (pages << PAGE_SHIFT) as usize;
        let seen = || format!("{pages} pages from frame {:#x} on, at {address:#x}", pfn.0);
        let rule = if self.table_in(pfn.0, pages).is_some() {
            Some(Rule::LentTwice)
        } else if !pfn.0.is_multiple_of(pages) || !address.is_multiple_of(bytes) {
            Some(Rule::LentMisaligned)
        } else {
            (!is_there).then_some(Rule::LentElsewhere)
        };
        if let Some(rule) = rule {
            self.finds(rule, CALL, seen());
        }
        if let Some(frame) = (pfn.0..pfn.0 + pages).find(|&frame| !self.shares && self.guests_use(Pfn(frame)))
        {
            self.finds(Rule::LentGuestPage, CALL, format!("{}: a guest has frame {frame:#x}", seen()));
        }
        self.tables.insert(pfn.0, pages);
    }

    pub(in crate::oracle) fn takes_back(&mut self, pfn: Pfn) {
        self.tables.remove(&pfn.0);
    }

    fn guests_use(&self, pfn: Pfn) -> bool {
        let is_standing = |(index, key): (usize, u64)| {
            self.pages[index].get(key).is_some_and(|given| given.taken.is_none())
        };
        self.owners_of(pfn).into_iter().any(is_standing)
    }

    pub(in crate::oracle) fn frees(&mut self, pfn: Pfn) {
        if self.guests_use(pfn) {
            self.finds(Rule::FreedInUse, "Oracle::frees", format!("frame {:#x}", pfn.0));
        }
    }

    /// The guest uses a translation to `pfn`; a kick waits or not.
    pub(in crate::oracle) fn uses(
        &mut self,
        (vcpu, kicked): (VcpuId, bool),
        gfn: Gfn,
        (pfn, access): (Pfn, Access),
    ) {
        const CALL: &str = "InGuest::uses";
        const MOST: u32 = 4096;
        let state = self.vcpus.entry(vcpu).or_default();
        state.ignored = if kicked { state.ignored + 1 } else { 0 };
        #[cfg(feature = "std")]
        if !kicked {
            // The kick came after the answer to its flush.
            state.kicked = None;
        }
        if state.ignored == MOST {
            self.finds(Rule::KickIgnored, CALL, format!("vCPU {}: {MOST} accesses since", vcpu.0));
        }
        let owners: Vec<_> =
            self.owners_of(pfn).into_iter().filter_map(|(index, key)| self.pages[index].get(key)).collect();
        let seen = |why: Reason| {
            format!("vCPU {}: gfn {:#x}, frame {:#x}, after {}", vcpu.0, gfn.0, pfn.0, why.name())
        };
        let is_gone = owners.iter().all(|given| given.taken.is_some());
        let is_withdrawn = owners.iter().all(|given| given.taken.or(given.withdrawn).is_some());
        if let Some(why) = owners.first().and_then(|given| given.taken).filter(|_| is_gone) {
            self.finds(Rule::StaleUse, CALL, seen(why));
        } else if access == Access::Write
            && is_withdrawn
            && let Some(why) = owners.iter().find_map(|given| given.withdrawn)
        {
            self.finds(Rule::StaleWrite, CALL, seen(why));
        }
    }

    /// No store of a vCPU will be in the bitmaps.
    pub(in crate::oracle) fn logs_in_rings(&mut self) {
        self.logs = false;
    }

    /// The guest has stored. A fault marked the page before, or the walk set its Dirty bit.
    pub(in crate::oracle) fn guest_stores(&mut self, space: SpaceId, gfn: Gfn) {
        if self.logs {
            self.stores(space, gfn);
        }
    }

    pub(in crate::oracle) fn stores(&mut self, space: SpaceId, gfn: Gfn) {
        if self.taking.0 == 0 {
            self.stored.insert((space, gfn));
        }
    }

    /// A harvest or a transaction begins.
    pub(in crate::oracle) fn begins_to_take(&mut self) {
        self.taking = (self.taking.0 + 1, self.taking.0 > 0 || self.taking.1);
    }

    pub(in crate::oracle) fn ends_to_take(&mut self, clears: bool) {
        let left = self.taking.0 - 1;
        self.taking = (left, self.taking.1 && left > 0);
        if clears {
            self.stored.clear();
        }
    }

    /// A harvest has taken `words` from the log of `gfns`.
    pub(in crate::oracle) fn harvests(&mut self, (space, gfns): (SpaceId, Span<Gfn>), words: &TakenWords) {
        let expected = self.stored.range((space, gfns.start)..(space, gfns.end));
        let expected: Vec<_> = expected.copied().collect();
        for stored in expected {
            self.stored.remove(&stored);
            let page = stored.1.0 - gfns.start.0;
            let has = |&(word, bits): &(u64, u64)| word == page / WORD && bits >> (page % WORD) & 1 != 0;
            if !self.taking.1 && !words.words.iter().any(has) {
                self.finds(Rule::StoreUnlogged, "GuestSpace::harvest", format!("gfn {:#x}", stored.1.0));
            }
        }
    }
}
