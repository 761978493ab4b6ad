//! `Vm::unanswered`: the vCPUs for which flushes wait.

use crate::{Format, Host, Unanswered, Vm};

impl<F: Format, H: Host> Vm<F, H> {
    /// Returns the vCPUs that are in the guest and have not answered a flush, in order. [`FlushDebt::settle`] and every
    /// other call that flushes waits for them. Any thread may call this, for example a watchdog while another thread
    /// waits. It takes no lock, and reads one line of each vCPU.
    ///
    /// For a moment each flush is unanswered. A vCPU that is returned again after a while, with the same
    /// [`since`](Unanswered::since), does not answer. There are four reasons:
    ///
    /// * Its host's [`kick`](crate::Host::kick) does not interrupt it, or interrupts another processor.
    /// * It is a software vCPU that does not poll [`InGuest::kicked`](crate::InGuest::kicked).
    /// * Its [`InGuest`](crate::InGuest) was leaked, or is kept while the thread does other work.
    /// * Its thread waits for the thread that flushes.
    ///
    /// If no vCPU is returned and `settle` still waits, a [use](crate::HeldUse) of a held frame has not ended.
    /// Translations that an aging pass [asked](crate::SecondaryMmu::forget) a vCPU to forget count too; nothing waits
    /// for those.
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
    /// # struct Tlb;
    /// # impl Translations for Tlb {
    /// #     fn flush_all(&mut self) {}
    /// #     fn flush(&mut self, _: Span<Gfn>) {}
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).vcpus(2).build()?;
    /// # let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
    /// # vm.memory().commit(&mut idle, |tx| tx.create(ram))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(1)).unwrap();
    /// # vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Read })?;
    /// let guest = vcpu.enter(&mut idle, &mut Tlb).poll(); // and then this thread polls nothing
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let mut idle = Idle::take().unwrap();
    ///         vm.invalidate(ram.hvas(), Why::Unmap).apply(&mut idle).settle() // waits
    ///     });
    ///     let stuck = loop {
    ///         if let Some(stuck) = vm.unanswered().next() {
    ///             break stuck;
    ///         }
    ///         std::thread::yield_now();
    ///     };
    ///     assert_eq!(stuck, Unanswered { vcpu: VcpuId(1), since: 1, flushes: 1 });
    ///     assert_eq!(stuck.to_string(), "vCPU 1 is in the guest and has not answered flush 1");
    ///     drop(guest); // leaving the guest answers
    /// });
    /// assert_eq!(vm.unanswered().next(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`FlushDebt::settle`]: crate::FlushDebt::settle
    pub fn unanswered(&self) -> impl Iterator<Item = Unanswered> {
        self.tlb.unanswered()
    }
}
