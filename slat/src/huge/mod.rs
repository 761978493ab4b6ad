//! Huge pages: the same memory in larger and smaller pages, changed in place.
//!
//! A fault maps as large a page as four parties allow: the host (how large its own page is), the slot (its frames cover
//! the page, are congruent to its host addresses, and are not logged), the format, and the VM's policy. Afterwards
//! the size can change without the guest losing the page:
//!
//! | file | what happens | who notices |
//! |---|---|---|
//! | `split` | a large leaf becomes a table of smaller ones with the same translations | nobody: one CAS, no hole, no flush |
//! | `recover` | a table becomes the large leaf that the host has there | vCPUs in the guest, once: one flush |
//!
//! **Pages that do not execute.** Some processors can be brought down by a fetch through a large page (the erratum
//! "machine check on page size change"). With [`Builder::nx_huge_pages`](crate::Builder::nx_huge_pages) large leaves
//! do not execute: a fetch splits its page down to 4 KiB leaves that do, and [`Vm::recover`](crate::Vm::recover) over
//! a range, called now and then, gives code that is no longer run its large pages back.

#[cfg(all(test, not(loom)))]
mod history_tests;
mod recover;
mod split;

use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, Span};
use crate::host::Host;
use crate::slots::Slot;
use crate::table::format::{Format, Perms};
use crate::vm::Vm;

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

    /// What a leaf of `level` allows, where stores are as `writable` says.
    #[inline(always)]
    pub(crate) fn perms(&self, level: Level, writable: bool) -> Perms {
        let perms = if writable { Perms::RWX } else { Perms::RX };
        if level > Level::K4 && self.policy.nx_huge_pages { perms.without(Perms::EXECUTE) } else { perms }
    }
}
