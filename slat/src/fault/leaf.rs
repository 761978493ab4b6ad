//! What may be mapped, from memslot, host page, access and level: the one place that decides it, for faults that install, upgrade
//! or take the short way, and for recovery.

use super::Fault;
use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, Pfn, Span};
use crate::host::{Host, HostPage};
use crate::slots::Slot;
use crate::table::format::{Access, Format, Leaf, Perms};
use crate::vcpu::Vcpu;
use crate::vm::Vm;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// The host's page, cut to what policy, format and slot allow. The next stamp is for as large a page.
    #[inline(always)]
    pub(super) fn page_for(&mut self, fault: Fault, slot: &Slot, page: HostPage) -> HostPage {
        let page = HostPage { writable: page.writable && !slot.readonly, ..page };
        // A large page that does not execute is no answer to a fetch.
        let small = self.vm.policy.nx_huge_pages && fault.access == Access::Fetch;
        if page.level == Level::K4 || small {
            self.memo.reach = Level::M2;
            HostPage { level: Level::K4, ..page }
        } else {
            self.large_page_for(fault, slot, page)
        }
    }

    #[cold]
    fn large_page_for(&mut self, fault: Fault, slot: &Slot, page: HostPage) -> HostPage {
        let mut level = page.level;
        while level > Level::K4 && self.vm.large_page(slot, fault.gpa.gfn(), level).is_none() {
            level = level.down();
        }
        if level > Level::K4 {
            self.vm.will_map_a_large_page();
        }
        self.memo.reach = level.max(Level::M2);
        HostPage { level, ..page }
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// What a large page of `level` around `gfn` would map, where slot, format and policy allow it: its guest frames
    /// and the host addresses behind them.
    pub(crate) fn large_page(&self, slot: &Slot, gfn: Gfn, level: Level) -> Option<(Span<Gfn>, Span<Hva>)> {
        let gfns = Span::sized(gfn.base(level), level.pages());
        let congruent =
            seeded!(Incongruent) || (slot.hva.0 >> PAGE_SHIFT ^ slot.gfns.start.0) & (level.pages() - 1) == 0;
        let allowed = level <= self.policy.max_page.min(F::MAX_LEAF) && !slot.log_dirty;
        (allowed && congruent && slot.gfns.covers(&gfns))
            .then(|| (gfns, Span::sized(slot.hva_of(gfns.start), level.bytes())))
    }

    /// The leaf for `page`, which has been cut to what is allowed, after `access` to it. Its frame is any of the page's.
    #[inline(always)]
    pub(crate) fn leaf(&self, page: HostPage, access: Access) -> Leaf {
        let perms = if page.writable { Perms::RWX } else { Perms::RX };
        let withheld = page.level > Level::K4 && self.policy.nx_huge_pages;
        Leaf {
            pfn: Pfn(page.pfn.0 & !(page.level.pages() - 1)),
            perms: if withheld { perms.without(Perms::EXECUTE) } else { perms },
            host_writable: page.writable,
            accessed: true,
            dirty: access == Access::Write,
        }
    }
}
