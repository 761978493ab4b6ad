//! The common case of a fault, with only the code that it needs.
//!
//! The case: a leaf table is linked, its entry is a hole, no invalidation of the page is in flight, the slot is the
//! remembered one, writable and without a log, and the host answers without sleeping with a small writable page. The
//! fault then does this: enter; load N, or, beside invalidations elsewhere, the region's number and the epoch; load the
//! entry (of the remembered table, or one level down); call the host; one CAS; leave. In any other case it changes
//! nothing, and the full path takes over.
//!
//! [`crate::memo`] says why these loads suffice for the confirmed frames.

use super::Fault;
use crate::memo::{ConfirmedTable, Fillable, NotConfirmed};
use crate::sync::{Section, Shared};
use crate::trace::FaultResult;
use crate::{Format, Host, HostPage, Level, Vcpu};

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Returns true if it mapped a page of 4 KiB, and false if it did nothing.
    ///
    /// It is inlined into the caller's loop. Each register that must be saved there is one more store that the CAS
    /// waits for. Therefore it makes only calls that end it.
    #[inline(always)]
    pub(super) fn quick(&mut self, fault: Fault) -> bool {
        match self.memo.known(fault.gpa.gfn()) {
            // Compiled without the code for another table.
            Some(ConfirmedTable::Table) => self.quick_in_quiet(ConfirmedTable::Table, fault),
            Some(known) => self.quick_in_quiet(known, fault),
            None => self.quick_near(fault),
        }
    }

    #[inline(always)]
    fn quick_in_quiet(&mut self, known: ConfirmedTable, fault: Fault) -> bool {
        let Some(section) = self.light_section() else { return self.confirm_and_map(fault) };
        // SAFETY: inside a section.
        match unsafe { self.memo.hole_in_quiet(self.vm, known, fault.gpa.gfn()) } {
            Ok(hole) => self.map_and_leave(section, hole, fault),
            Err(NotConfirmed) => self.leave_and_confirm(section, fault),
        }
    }

    /// Tries to map beside invalidations elsewhere.
    #[inline(always)]
    fn quick_near(&mut self, fault: Fault) -> bool {
        if !self.memo.has(fault.gpa.gfn()) {
            return false;
        }
        let Some(section) = self.light_section() else { return self.confirm_and_map(fault) };
        // SAFETY: inside a section.
        match unsafe { self.memo.hole_near::<F>(&self.vm.active, fault.gpa.gfn()) } {
            Ok(hole) => self.map_and_leave(section, hole, fault),
            Err(NotConfirmed) => self.leave_and_confirm(section, fault),
        }
    }

    #[inline(always)]
    fn leave_and_confirm(&mut self, section: Section<'_>, fault: Fault) -> bool {
        drop(section);
        self.confirm_and_map(fault)
    }

    /// Tries to map outside the common case: the memo must confirm something; or a baseline policy has a lock; or the
    /// section needs a fence, because barriers are symmetric or a writer waits for a quiescent state.
    #[cold]
    #[inline(never)]
    fn confirm_and_map(&mut self, fault: Fault) -> bool {
        let (vm, who) = (self.vm, (self.id, fault.gpa.gfn()));
        let seat = self.awake();
        let gate = vm.lock.enter::<Shared>(&vm.reads, seat);
        // SAFETY: inside a section, or under the lock under which all unhooking is done.
        let hole = unsafe { self.memo.hole(vm, self.space, who) };
        let mapped = hole.is_some_and(|hole| self.map_hole(&hole, fault));
        drop(gate);
        if mapped {
            seat.mapped_under_lock();
            self.observed_quick(fault);
        }
        mapped
    }

    /// Fills the hole, if there is one, and ends its section.
    #[inline(always)]
    fn map_and_leave(&self, section: Section<'_>, hole: Option<Fillable<'_>>, fault: Fault) -> bool {
        let mapped = hole.is_some_and(|hole| self.map_hole(&hole, fault));
        if mapped {
            section.end_mapped();
            self.observed_quick(fault);
        }
        mapped
    }

    /// Reports the leaf, after it is counted: the observer may panic.
    #[inline(always)]
    fn observed_quick(&self, fault: Fault) {
        self.observed(fault, FaultResult::Mapped(Level::K4));
    }

    #[inline(always)]
    fn map_hole(&self, hole: &Fillable<'_>, fault: Fault) -> bool {
        let Some(page) = self.vm.host.lookup(hole.hva, fault.access) else { return false };
        if page != (HostPage { pfn: page.pfn, ..HostPage::PLAIN }) {
            return false;
        }
        let leaf = self.vm.leaf(page, fault.access);
        let word = F::leaf(&leaf, Level::K4);
        // Cheaper here than `HostPage::is_held`: the entry gives back the frame that it holds.
        let is_held = F::pfn(word) == page.pfn;
        is_held && hole.entry.cas(hole.word, word).is_ok()
    }
}
