//! The common case of a fault, with nothing in it that the common case does not need.
//!
//! A leaf table is there, its entry is a hole, no invalidation is in flight, the slot is the last one, writable and
//! without a log, and the host answers without sleeping with a small page that may be written. Then a fault is: enter; one load of
//! W; the entry (remembered, or four loads down); the host; one CAS; leave. Whatever else is the case, nothing
//! has been changed and the full pipeline takes over.
//!
//! One look at W stands for both of the full pipeline's: [`super::memo`] says why, for the frames that it has confirmed,
//! with invalidations active elsewhere, too. An invalidation that begins after the look has a number above the stamp.

use super::Fault;
use crate::addr::Level;
use crate::host::Host;
use crate::sync::mode::Shared;
use crate::table::format::{Access, Format, Leaf, Perms};
use crate::vcpu::Vcpu;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// True: mapped a page of 4 KiB. False: nothing was done.
    #[inline(always)]
    pub(super) fn quick(&mut self, fault: Fault) -> bool {
        let Some(section) = self.light_section() else { return self.quick_otherwise(fault) };
        if self.quick_inside(fault) {
            section.end_mapped();
            return true;
        }
        let mapped = self.quick_if_stale(fault);
        if mapped {
            section.end_mapped();
        }
        mapped
    }

    /// The same behind the lock of a baseline policy; or with a fence, where barriers are symmetric or somebody asks.
    #[cold]
    #[inline(never)]
    fn quick_otherwise(&mut self, fault: Fault) -> bool {
        let seat = self.awake();
        let gate = self.vm.lock.enter::<Shared>(&self.vm.reads, seat);
        let mapped = self.quick_inside(fault) || self.quick_if_stale(fault);
        drop(gate);
        if mapped {
            seat.mapped_under_lock();
        }
        mapped
    }

    /// The same with a stale memo, which is confirmed anew first.
    #[cold]
    #[inline(never)]
    fn quick_if_stale(&mut self, fault: Fault) -> bool {
        let (active, gfn) = (&self.vm.active, fault.gpa.gfn());
        if !self.memo.is_stale(active, gfn) {
            return false;
        }
        let attempts = self.attempts();
        self.memo.confirm_again(active, &self.space.memslots, gfn, attempts) && self.quick_inside(fault)
    }

    #[inline(always)]
    fn quick_inside(&mut self, fault: Fault) -> bool {
        let vm = self.vm;
        // SAFETY: inside a section, or under the lock under which all unhooking is done.
        let Some(hole) = (unsafe { self.memo.hole(vm, self.space, fault.gpa.gfn()) }) else { return false };
        let Some(page) = vm.host.lookup(hole.hva, fault.access) else { return false };
        if page.level != Level::K4 || !page.writable {
            return false;
        }
        let leaf = Leaf {
            pfn: page.pfn,
            perms: Perms::RWX,
            host_writable: true,
            accessed: true,
            dirty: fault.access == Access::Write,
        };
        hole.entry.cas(hole.word, F::leaf(&leaf, Level::K4)).is_ok()
    }
}
