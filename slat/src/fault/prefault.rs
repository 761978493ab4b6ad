//! Prefault: maps a range before the guest touches it.
//!
//! Each page takes the path of a fault, with the access that [`Prefault`] names. A young page is mapped as by the guest's
//! own fault, so mostly by the quick path. An old page is one that no guest has used yet. In formats without Accessed
//! bits an old page is a withdrawn leaf, which the first access restores by one CAS. A guest whose hypervisor does not
//! handle such faults needs young pages.

use super::{By, Fault, FaultError, Leave, Next, Resume};
use crate::sync::mode::Lockless;
use crate::{Access, Format, Gfn, Host, HostError, Idle, Span, Vcpu, Walk};

/// How to map pages ahead of the guest: see [`Vcpu::prefault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefault {
    /// The access that must be possible afterwards. For a store the host breaks shares, and a page whose writes are
    /// logged is reported dirty.
    pub access: Access,
    /// Whether the page counts as accessed. The guest's first access then needs no fault, in any format.
    ///
    /// This is for pages that get a new leaf. A leaf that already allows the access keeps its age, and one that gets back
    /// its write permission counts as accessed.
    pub young: bool,
}

impl Prefault {
    /// For loads, mapped old.
    pub const OLD: Self = Self { access: Access::Read, young: false };

    /// As if the guest had made this access.
    pub const fn young(access: Access) -> Self {
        Self { access, young: true }
    }
}

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Maps `gfns` in the vCPU's address space, from the first frame on, for the access and the age in `how`. A frame that
    /// is already mapped gets the missing permission. Returns the number of frames that are mapped now. May sleep in the
    /// host. Owes no flush. (`KVM_PRE_FAULT_MEMORY`.)
    ///
    /// The number is less than requested if the next frame has no memslot, if such an access to it is emulated (a store
    /// to a read-only memslot, or a store that is tracked), if the vCPU's dirty ring has no room for it, or if the host
    /// has no page for it. Another call from there tells which. If the page is [pending](HostError::Pending), the vCPU
    /// waits for the token as after a fault: [take](Vcpu::take_ready) it before the next call.
    ///
    /// # Errors
    /// [`FaultError`] if not even the first frame could be mapped.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let beyond = Span::new(Gfn(500), Gfn(600));
    /// assert_eq!(vcpu.prefault(&mut idle, beyond, Prefault::OLD)?, 12, "the slot ends at 512");
    /// assert!(!vm.memory().translate(&mut idle, Gfn(505)).unwrap().leaf.accessed);
    ///
    /// let stored = Prefault::young(Access::Write);
    /// assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(0), Gfn(8)), stored)?, 8);
    /// let leaf = vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf;
    /// assert!(leaf.perms.allows(Access::Write) && leaf.accessed && leaf.dirty);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefault(&mut self, idle: &mut Idle, gfns: Span<Gfn>, how: Prefault) -> Result<u64, FaultError> {
        // Even for an empty range, the vCPU leaves the guest.
        let seat = self.awake();
        let gfns = gfns.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        let mut next = gfns.start;
        while next < gfns.end {
            let access = Fault { gpa: next.gpa(), access: how.access };
            let done = if how.young {
                self.fault(idle, access)
            } else {
                let done = self.fault_in_full(idle, access, By::Prefault);
                self.answered(access, done)
            };
            let end = match done {
                Ok(Next::Resume(Resume::Mapped(level))) => next.base(level) + level.pages(),
                Ok(Next::Resume(Resume::Fixed | Resume::Spurious)) => {
                    let walk = Walk::<F, H, Lockless>::on_seat(self.vm, self.space, idle, seat);
                    // If the leaf has gone meanwhile, the frame was mapped.
                    walk.translate(next).map_or(next + 1, |found| found.gfns.end)
                }
                Err(error) if next == gfns.start => return Err(error),
                Ok(Next::Leave(Leave::Pending(_))) if next == gfns.start => {
                    return Err(HostError::Pending.into());
                }
                Ok(Next::Leave(Leave::NeedsPage)) if next == gfns.start => {
                    return Err(HostError::NeedsPage.into());
                }
                _ => break,
            };
            next = end.min(gfns.end);
        }
        Ok(next.0 - gfns.start.0)
    }
}
