//! Pre-fault: a range is mapped before the guest touches it.
//!
//! Each page goes through the pipeline of a fault, as a load, and is mapped old: nobody has used it yet. (In formats
//! without Accessed bits that makes it a tracked leaf, which the first access gives back by one CAS.)

use super::{By, Done, Fault, FaultError};
use crate::addr::{Gfn, Span};
use crate::host::Host;
use crate::sync::idle::Idle;
use crate::sync::mode::Lockless;
use crate::table::format::{Access, Format};
use crate::vcpu::Vcpu;
use crate::walk::Walk;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Maps `gfns` from the first frame on, in the space that the vCPU is in, as far as there are memslots and the host
    /// has pages. Returns how many frames of the range are mapped now; less than asked for where the next one
    /// has no memslot, or the host none to give: asking again from there tells which. May sleep in the host. An
    /// error means that not even the first frame could be mapped. (`KVM_PRE_FAULT_MEMORY`.)
    ///
    /// ```
    /// # use slat::{*, table::{TableMemory, formats::Npt4}};
    /// # struct Identity;
    /// # unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(500), Gfn(600)))?, 12, "the slot ends at 512");
    /// assert!(!vm.translate(&mut idle, Gfn(505)).unwrap().leaf.accessed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefault(&mut self, idle: &mut Idle, gfns: Span<Gfn>) -> Result<u64, FaultError> {
        // Whatever is asked: a vCPU that does anything is not in the guest.
        let seat = self.awake();
        let gfns = gfns.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        let mut next = gfns.start;
        while next < gfns.end {
            let load = Fault { gpa: next.gpa(), access: Access::Read };
            let end = match self.fault_in_full(idle, load, By::Prefault) {
                Ok(Done::Mapped(level)) => next.base(level) + level.pages(),
                Ok(Done::Fixed | Done::Spurious) => {
                    let walk = Walk::<F, H, Lockless>::on_seat(self.vm, self.space, idle, seat);
                    // Where it has gone meanwhile it was there.
                    walk.translate(next).map_or(next + 1, |found| found.gfns.end)
                }
                Err(error) if next == gfns.start => return Err(error),
                Ok(Done::Mmio | Done::RingFull) | Err(_) => break,
            };
            next = end.min(gfns.end);
        }
        Ok(next.0 - gfns.start.0)
    }
}
