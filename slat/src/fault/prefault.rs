//! Prefault: maps a range before the guest touches it.
//!
//! Each page takes the path of a fault, with the access that [`Prefault`] names. A young page is mapped as by the guest's
//! own fault, so mostly by the quick path. An old page is one that no guest has used yet. In formats without Accessed
//! bits an old page is a tracked leaf, which the first access restores by one CAS. A guest whose hypervisor does not
//! handle such faults needs young pages.

use super::{By, Fault, FaultError, Leave, Next, Resume};
use crate::addr::{Gfn, Span};
use crate::host::{Host, HostError};
use crate::slots::SlotId;
use crate::sync::idle::Idle;
use crate::sync::mode::Lockless;
use crate::table::format::{Access, Format};
use crate::vcpu::Vcpu;
use crate::walk::Walk;
use core::ops::ControlFlow;

/// Number of frames between two reports of [`Vcpu::populate`]: 128 MiB.
const STRETCH_FRAMES: u64 = 1 << 15;

/// How to map pages ahead of the guest: see [`Vcpu::prefault_as`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefault {
    /// The access that must be possible afterwards. For a store the host breaks shares, and a page whose writes are
    /// logged is reported dirty.
    pub access: Access,
    /// Whether the page counts as accessed. The guest's first access then needs no fault, in any format.
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
    /// Maps `gfns` in the vCPU's address space, from the first frame on. Returns the number of frames that are mapped
    /// now. It is less than requested if the next frame has no memslot, or the host has no page for it; another call
    /// from there tells which. May sleep in the host. (`KVM_PRE_FAULT_MEMORY`.)
    ///
    /// It also stops before a frame whose page is [pending](HostError::Pending). The vCPU then waits for the token as
    /// after a fault. Call again from that frame after the vCPU has [taken](Vcpu::take_ready) the token.
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
    /// assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(500), Gfn(600)))?, 12, "the slot ends at 512");
    /// assert!(!vm.memory().translate(&mut idle, Gfn(505)).unwrap().leaf.accessed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefault(&mut self, idle: &mut Idle, gfns: Span<Gfn>) -> Result<u64, FaultError> {
        self.prefault_as(idle, gfns, Prefault::OLD)
    }

    /// Like [`prefault`](Self::prefault), for the access and the age in `how`. A frame that is already mapped gets the
    /// missing permission. It stops before a frame where the access is emulated (a store to a read-only memslot, or a
    /// store that is tracked), and before one for which the vCPU's dirty ring has no room. May sleep in the host. No
    /// flush is owed.
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
    /// let stored = Prefault::young(Access::Write);
    /// assert_eq!(vcpu.prefault_as(&mut idle, Span::new(Gfn(0), Gfn(8)), stored)?, 8);
    /// let leaf = vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf;
    /// assert!(leaf.perms.allows(Access::Write) && leaf.accessed && leaf.dirty);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefault_as(
        &mut self,
        idle: &mut Idle,
        gfns: Span<Gfn>,
        how: Prefault,
    ) -> Result<u64, FaultError> {
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

    /// Maps a whole memslot of the vCPU's address space, from its first frame on. After each 128 MiB it calls
    /// `progress` with the number of mapped frames and the total; `progress` may stop it. Returns the number of mapped
    /// frames. It is less than the total after a stop, or if [`prefault_as`](Self::prefault_as) stops at a frame, and 0
    /// if there is no such memslot. Several vCPUs map one slot together by a [`Population`](crate::Population). May
    /// sleep in the host. Holds nothing between reports.
    ///
    /// # Errors
    /// [`FaultError`] if the first frame after a report could not be mapped. The reported frames are mapped.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # use std::ops::ControlFlow;
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::M2, ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # let ram = Slot::new(SlotId(0), Gfn(0), 1 << 16, Hva(0x4000_0000));
    /// # vm.memory().commit(&mut idle, |tx| tx.create(ram))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let mut shown = Vec::new();
    /// let mapped = vcpu.populate(&mut idle, ram.id, Prefault::young(Access::Write), |done, all| {
    ///     shown.push(done * 100 / all);
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!((mapped, shown), (1 << 16, vec![50, 100])); // 256 MiB
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn populate(
        &mut self,
        idle: &mut Idle,
        slot: SlotId,
        how: Prefault,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<u64, FaultError> {
        let found = self.vm.space(self.space.id).and_then(|space| space.get(idle, slot));
        let Some(gfns) = found.map(|slot| slot.gfns) else { return Ok(0) };
        let mut next = gfns.start;
        while next < gfns.end {
            let stretch = Span::new(next, (next + STRETCH_FRAMES).min(gfns.end));
            next = next + self.prefault_as(idle, stretch, how)?;
            let goes_on = progress(next.0 - gfns.start.0, gfns.len());
            if next < stretch.end || goes_on.is_break() {
                break;
            }
        }
        Ok(next.0 - gfns.start.0)
    }
}
