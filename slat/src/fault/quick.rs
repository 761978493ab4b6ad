//! The common case of a fault, with nothing in it that the common case does not need.
//!
//! A leaf table is there, its entry is a hole, no invalidation of the page is in flight, the slot is the last one, writable and
//! without a log, and the host answers without sleeping with a small page that may be written. Then a fault is: enter; load N, or,
//! beside invalidations elsewhere, the region's number and the epoch; the entry (remembered, or one load down); the host; one CAS;
//! leave. Whatever else is the case, nothing has been changed and the full pipeline takes over.
//!
//! [`super::memo`] says why these loads are enough for the frames that it has confirmed.

use super::Fault;
use super::memo::{ConfirmedTable, Fillable, Unremembered};
use crate::addr::Level;
use crate::host::{Host, HostPage};
use crate::sync::mode::Shared;
use crate::sync::readside::Section;
use crate::table::format::Format;
use crate::trace::FaultResult;
use crate::vcpu::Vcpu;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// True: mapped a page of 4 KiB. False: nothing was done.
    ///
    /// It is compiled into the caller's loop. Each value that has to be saved there is one more store that the CAS waits for: so no
    /// call is in it, but for those that end it.
    #[inline(always)]
    pub(super) fn quick(&mut self, fault: Fault) -> bool {
        match self.memo.known(fault.gpa.gfn()) {
            // Compiled without what another table needs.
            Some(ConfirmedTable::Table) => self.quick_in_quiet(ConfirmedTable::Table, fault),
            Some(known) => self.quick_in_quiet(known, fault),
            None => self.quick_beside(fault),
        }
    }

    #[inline(always)]
    fn quick_in_quiet(&mut self, known: ConfirmedTable, fault: Fault) -> bool {
        let Some(section) = self.light_section() else { return self.quick_otherwise(fault) };
        // SAFETY: inside a section.
        match unsafe { self.memo.hole_in_quiet(self.vm, known, fault.gpa.gfn()) } {
            Ok(hole) => self.fill(section, hole, fault),
            Err(Unremembered) => self.quick_again(section, fault),
        }
    }

    /// The same beside invalidations elsewhere.
    #[inline(always)]
    fn quick_beside(&mut self, fault: Fault) -> bool {
        if !self.memo.has(fault.gpa.gfn()) {
            return false;
        }
        let Some(section) = self.light_section() else { return self.quick_otherwise(fault) };
        // SAFETY: inside a section.
        match unsafe { self.memo.hole_near::<F>(&self.vm.active, fault.gpa.gfn()) } {
            Ok(hole) => self.fill(section, hole, fault),
            Err(Unremembered) => self.quick_again(section, fault),
        }
    }

    #[inline(always)]
    fn quick_again(&mut self, section: Section<'_>, fault: Fault) -> bool {
        drop(section);
        self.quick_otherwise(fault)
    }

    /// The same where the memo has to confirm something; behind the lock of a baseline policy; or with a fence, where barriers are
    /// symmetric or a writer asks for a moment of rest.
    #[cold]
    #[inline(never)]
    fn quick_otherwise(&mut self, fault: Fault) -> bool {
        let (vm, who) = (self.vm, (self.id, fault.gpa.gfn()));
        let seat = self.awake();
        let gate = vm.lock.enter::<Shared>(&vm.reads, seat);
        // SAFETY: inside a section, or under the lock under which all unhooking is done.
        let hole = unsafe { self.memo.hole(vm, self.space, who) };
        let mapped = hole.is_some_and(|hole| self.fills(&hole, fault));
        drop(gate);
        if mapped {
            seat.mapped_under_lock();
        }
        mapped
    }

    /// Ends the section, in which the hole was found, if there is one.
    #[inline(always)]
    fn fill(&self, section: Section<'_>, hole: Option<Fillable<'_>>, fault: Fault) -> bool {
        let mapped = hole.is_some_and(|hole| self.fills(&hole, fault));
        if mapped {
            section.end_mapped();
        }
        mapped
    }

    #[inline(always)]
    fn fills(&self, hole: &Fillable<'_>, fault: Fault) -> bool {
        let Some(page) = self.vm.host.lookup(hole.hva, fault.access) else { return false };
        if page != (HostPage { pfn: page.pfn, ..HostPage::PLAIN }) {
            return false;
        }
        let leaf = self.vm.leaf(page, fault.access);
        let mapped = hole.entry.cas(hole.word, F::leaf(&leaf, Level::K4)).is_ok();
        if mapped && !seeded!(EventForgotten) {
            self.observed(fault, FaultResult::Mapped(Level::K4));
        }
        mapped
    }
}
