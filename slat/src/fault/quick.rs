//! The common case of a fault, with nothing in it that the common case does not need.
//!
//! A leaf table is there, its entry is a hole, no invalidation of the page is in flight, the slot is the last one, writable and
//! without a log, and the host answers without sleeping with a small page that may be written. Then a fault is: enter; two loads,
//! of the region's number and the epoch; the entry (remembered, or four loads down); the host; one CAS; leave. Whatever else
//! is the case, nothing has been changed and the full pipeline takes over.
//!
//! [`super::memo`] says why the two loads are enough for the frames that it has confirmed, with invalidations active beside
//! them, too.

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
        let mapped = self.quick_inside(fault);
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
        let mapped = self.quick_inside(fault);
        drop(gate);
        if mapped {
            seat.mapped_under_lock();
        }
        mapped
    }

    #[inline(always)]
    fn quick_inside(&mut self, fault: Fault) -> bool {
        let vm = self.vm;
        let who = (self.id, fault.gpa.gfn());
        // SAFETY: inside a section, or under the lock under which all unhooking is done.
        let Some(hole) = (unsafe { self.memo.hole(vm, self.space, who) }) else { return false };
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
