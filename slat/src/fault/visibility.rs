//! Faults that say whether the guest meant private or shared memory.
//!
//! The part of a memslot that contains a frame determines whether it is private ([`GuestSpace::set_private`]), and its
//! host address. A fault takes both from one look-up and confirms them by one stamp. It maps memory of the kind that
//! the guest meant, or starts again: a conversion between look-up and install never lets an access reach memory of the
//! other kind.
//!
//! [`GuestSpace::set_private`]: crate::guest_space::GuestSpace::set_private

use super::pursuit::Wanted;
use super::{By, Fault, FaultError, Next, Resume};
use crate::sync::mode::Shared;
use crate::table::radix::At;
use crate::{Format, Host, Idle, Level, Vcpu, Walk};

impl By {
    /// An access by the guest to either kind of memory.
    pub(super) const GUEST: Self = Self::Guest { private: None };

    /// The page of this access.
    #[inline(always)]
    pub(super) fn wanted(self, fault: Fault) -> Wanted {
        let private = if let Self::Guest { private } = self { private } else { None };
        Wanted { private, ..Wanted::new(fault.gpa.gfn(), fault.access) }
    }
}

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Like [`fault`](Self::fault), for a guest that says whether it means private memory: by the GPA's shared bit
    /// (TDX), or in the exit (SEV-SNP's bit 34 of the error code). `fault.gpa` excludes such a bit. If the frame is of
    /// the other kind, returns [`Leave::MemoryFault`](crate::Leave::MemoryFault) and does nothing, even if a page is mapped. It returns
    /// the same for an access to private memory without a memslot, which no VMM may emulate. May sleep in the host. No
    /// flush is owed.
    ///
    /// ```
    /// use slat::{table::formats::Npt4, *};
    ///
    /// /// A host with shared memory at host addresses, and private memory without.
    /// struct Split;
    /// impl Host for Split {
    ///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         let frame = match hva.private_memory() {
    ///             Some((PrivateMemory(_), offset)) => 0x8_0000 + (offset >> 12),
    ///             None => hva.0 >> 12,
    ///         };
    ///         Ok(HostPage { pfn: Pfn(frame), ..HostPage::PLAIN })
    ///     }
    /// }
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(Split).build()?;
    /// let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000));
    /// vm.memory().commit(&mut idle, |tx| tx.create_with_private(ram, PrivateMemory(0).at(0)))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    ///
    /// // All memory is shared at first. The guest means private memory: the VMM converts it.
    /// let store = Fault { gpa: Gpa(0x5000), access: Access::Write };
    /// assert_eq!(vcpu.fault_as(&mut idle, store, true)?, Next::Leave(Leave::MemoryFault { private: true }));
    /// vm.memory().set_private(&mut idle, Span::sized(store.gpa.gfn(), 1), true)?;
    /// assert_eq!(vcpu.fault_as(&mut idle, store, true)?, Next::Resume(Resume::Mapped(Level::K4)));
    /// assert_eq!(vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.pfn, Pfn(0x8_0005));
    ///
    /// // Changes at host addresses do not affect private memory. Changes of private memory do.
    /// vm.change(&mut idle, ram.hvas(), Why::Unmap, |_| { /* the host changes its own table */ });
    /// assert!(vm.memory().translate(&mut idle, Gfn(5)).is_some());
    /// let private = Span::sized(PrivateMemory(0).at(0x5000), 4096);
    /// vm.change(&mut idle, private, Why::Clear, |_| { /* the host changes its own table */ });
    /// assert!(vm.memory().translate(&mut idle, Gfn(5)).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fault_as(&mut self, idle: &mut Idle, fault: Fault, private: bool) -> Result<Next, FaultError> {
        // The quick path maps only pages of the memo's slot, which is all private or all shared.
        if self.memo.has_as(fault.gpa.gfn(), private) && self.quick(fault) {
            return Ok(Next::Resume(Resume::Mapped(Level::K4)));
        }
        let by = By::Guest { private: Some(private) };
        let done = self.fault_in_full(idle, fault, by);
        self.answered(fault, done)
    }

    /// Like [`Wanted::disagrees`], whatever is mapped at `at`: hardware does not compare a leaf with what the guest means.
    #[inline(always)]
    pub(super) fn disagrees(
        &mut self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        wanted: &Wanted,
    ) -> Option<bool> {
        wanted.private?;
        wanted.disagrees(&self.memo.slot(walk, at, wanted.gfn)?)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::sync::prim::{AtomicU64, Relaxed};
    use crate::table::formats::Npt4;
    use crate::*;
    use std::sync::OnceLock;

    const RAM: Hva = Hva(1 << 30);
    const OWN: Hva = PrivateMemory(1).at(0);

    /// A host that converts the first requested page, once. Its frames are its addresses.
    #[derive(Default)]
    struct Converting {
        vm: OnceLock<std::sync::Weak<Vm<Npt4, Converting>>>,
        asked: AtomicU64,
    }

    impl Host for Converting {
        fn resolve(&self, idle: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            if self.asked.fetch_add(1, Relaxed) == 0 {
                let vm = self.vm.get().unwrap().upgrade().unwrap();
                vm.memory().set_private(idle, Span::sized(Gfn(5), 1), true).unwrap();
            }
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT & 0xff_ffff), ..HostPage::PLAIN })
        }
    }

    /// The first fault of each frame finds no memslot, the second one the mmio word. The last frame is beyond the format.
    #[test]
    fn only_an_access_to_shared_memory_without_a_memslot_is_emulated() {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Converting::default()).build().unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let refused = Next::Leave(Leave::MemoryFault { private: true });
        for gfn in [Gfn(5), Gfn(5), Gfn(1 << Npt4::FRAME_BITS)] {
            for access in [Access::Read, Access::Write, Access::Fetch] {
                let fault = Fault { gpa: gfn.gpa(), access };
                assert_eq!(vcpu.fault_as(&mut idle, fault, true).unwrap(), refused, "{fault:?}");
                let shared = vcpu.fault_as(&mut idle, fault, false).unwrap();
                assert_eq!(shared, Next::Emulate(Emulate::NoMemory), "{fault:?}");
            }
        }
    }

    /// The frame is converted during an access to shared memory.
    #[test]
    fn an_access_to_shared_memory_maps_no_page_that_has_become_private() {
        let mut idle = Idle::take().unwrap();
        let vm = std::sync::Arc::new(Vm::<Npt4, _>::builder(Converting::default()).build().unwrap());
        vm.host().vm.set(std::sync::Arc::downgrade(&vm)).unwrap();
        let ram = Slot::new(SlotId(0), Gfn(0), 8, RAM);
        vm.memory().commit(&mut idle, |tx| tx.create_with_private(ram, OWN)).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let store = Fault { gpa: Gfn(5).gpa(), access: Access::Write };
        let done = vcpu.fault_as(&mut idle, store, false).unwrap();
        drop(vcpu);
        assert_eq!(
            (done, vm.memory().translate(&mut idle, Gfn(5))),
            (Next::Leave(Leave::MemoryFault { private: false }), None)
        );
    }
}
