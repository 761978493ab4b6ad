//! Frames that hardware uses by their numbers while the guest runs.

use super::{Held, HeldUse, HoldError};
use crate::{Access, Format, Gfn, GuestSpace, Host, Idle, InGuest, Pfn};
use core::ops::Deref;

/// A frame that is held for hardware: a vCPU's control block names it, and the processor uses it while the guest runs.
/// See [`GuestSpace::hold_for_hardware`].
///
/// It never becomes a plain [`Held`], for which no vCPU is kicked:
///
/// ```compile_fail,E0596
/// # use slat::*;
/// # fn f<F: Format, H: Host>(apic: &mut HeldForHardware<'_, F, H>, plain: &mut Held<'_, F, H>) {
/// std::mem::swap(&mut **apic, plain);
/// # }
/// ```
pub struct HeldForHardware<'vm, F: Format, H: Host>(Held<'vm, F, H>);

impl<'vm, F: Format, H: Host> GuestSpace<'vm, F, H> {
    /// Like [`hold`](Self::hold), for a frame that hardware uses while the guest runs, because a control block names
    /// it: a posted-interrupt descriptor, a virtual-APIC page, the bitmaps of a nested guest.
    ///
    /// Each vCPU holds the frame for itself, and reads the [current](HeldForHardware::current) frame at each entry. An
    /// invalidation that takes the frame back kicks the vCPUs that are in the guest.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// use slat::{*, table::formats::Ept4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # struct Tlb;
    /// # impl Translations for Tlb {
    /// #     fn flush_all(&mut self) {}
    /// #     fn flush(&mut self, _: Span<Gfn>) {}
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Ept4, _>::builder(Identity).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// # let vmwrite = |pfn: Pfn| assert_eq!(pfn, Pfn(0x4_0007));
    /// let mut apic = vm.memory().hold_for_hardware(&mut idle, Gfn(7), Access::Write)?;
    /// loop {
    ///     let ready = vcpu.enter(&mut idle, &mut Tlb);
    ///     let Some(frame) = apic.current(&ready) else {
    ///         drop(ready); // out again: the host may sleep
    ///         apic.refresh(&mut idle)?;
    ///         continue;
    ///     };
    ///     vmwrite(frame); // VIRTUAL_APIC_PAGE_ADDR
    ///     let entry::Go::In(guest, ()) = ready.go(|| ()) else { continue }; // a kick: ask again
    ///     // … the guest runs, until an exit …
    ///     drop(guest);
    ///     apic.mark_dirty(); // the processor may have written it
    ///     break;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold_for_hardware(
        &self,
        idle: &mut Idle,
        gfn: Gfn,
        access: Access,
    ) -> Result<HeldForHardware<'vm, F, H>, HoldError> {
        self.hold_as(idle, gfn, access, true).map(HeldForHardware)
    }
}

impl<F: Format, H: Host> HeldForHardware<'_, F, H> {
    /// Like [`Held::read`].
    pub fn read<'h>(&'h mut self, idle: &'h mut Idle) -> Option<HeldUse<'h, F, H>> {
        self.0.read(idle)
    }

    /// Like [`Held::write`].
    ///
    /// # Panics
    /// If the frame is not held to write.
    pub fn write<'h>(&'h mut self, idle: &'h mut Idle) -> Option<HeldUse<'h, F, H>> {
        self.0.write(idle)
    }

    /// Like [`Held::refresh`].
    pub fn refresh(&mut self, idle: &mut Idle) -> Result<(), HoldError> {
        self.0.refresh(idle)
    }

    /// Returns the frame for the control block of a vCPU that has entered but not gone in yet
    /// ([`Ready`](crate::entry::Ready)). `None` if the frame has been taken back: leave, and [refresh](Self::refresh) it. Call
    /// it **at each entry**, after [`Vcpu::enter`](crate::Vcpu::enter), and after each [`InGuest::answer`] that lets
    /// the guest continue. An earlier call is no use: an invalidation would find the vCPU out of the guest, and not
    /// kick it.
    ///
    /// Drop it only when no control block of a running vCPU names the frame: no vCPU is kicked for it afterwards.
    ///
    /// # Panics
    /// If the vCPU belongs to another VM.
    #[inline]
    pub fn current<'a>(&self, guest: &impl AsRef<InGuest<'a>>) -> Option<Pfn> {
        assert!(
            guest.as_ref().is_flushed_by(&self.slots.vm.tlb),
            "a vCPU of another VM is not kicked for this frame"
        );
        self.0.cell.is_valid().then_some(self.0.pfn)
    }
}

impl<F: Format, H: Host> core::fmt::Debug for HeldForHardware<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("HeldForHardware").field(&self.0).finish()
    }
}

impl<'vm, F: Format, H: Host> Deref for HeldForHardware<'vm, F, H> {
    type Target = Held<'vm, F, H>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
