//! `Vcpu::run`: from the entry into the guest to its next exit, with all kicks in between.

use super::Vcpu;
use super::entry::{Go, InGuest};
use crate::{Format, Host, Idle, Pfn, Token, Translations};
use core::ops::{Deref, DerefMut};

/// A processor that runs a guest: see [`Vcpu::run`], which has an example.
pub trait Processor: Translations {
    /// Why the guest stopped.
    type Exit;

    /// Runs the guest until it exits. The hardware walks the tables at frame `tables`, for EPTP, nCR3, VTTBR or hgatp:
    /// another frame than last time if the root was replaced.
    ///
    /// The engine calls this with interrupts [blocked](Self::block_interrupts), after its last look for kicks. The
    /// interrupt of a later [kick](Host::kick) must end the run. A software processor polls
    /// [`guest.kicked()`](InGuest::kicked) instead, and answers or returns.
    fn run(&mut self, tables: Pfn, guest: &mut InGuest<'_>) -> Self::Exit;

    /// Blocks interrupts on this processor: one that arrives waits, and then ends the run at once. It must be a compiler
    /// barrier (an `asm!` without `nomem`). The default does nothing. It suits software, and a processor on which
    /// interrupts are blocked anyway, as NMIs are while AMD's GIF is clear.
    fn block_interrupts(&mut self) {}

    /// Ends [`block_interrupts`](Self::block_interrupts). The engine calls this when the vCPU has left the guest.
    fn unblock_interrupts(&mut self) {}

    /// A page for which the vCPU waited has arrived ([`Leave::Pending`](crate::Leave::Pending)): for a guest that knows
    /// tokens. The default does nothing, and the guest repeats the access. Called before an entry.
    fn ready(&mut self, token: Token) {
        let _ = token;
    }
}

/// A processor with blocked interrupts.
struct Blocked<'p, P: Processor>(&'p mut P);

impl<'p, P: Processor> Blocked<'p, P> {
    fn new(processor: &'p mut P) -> Self {
        processor.block_interrupts();
        Self(processor)
    }
}

impl<P: Processor> Deref for Blocked<'_, P> {
    type Target = P;

    fn deref(&self) -> &P {
        self.0
    }
}

impl<P: Processor> DerefMut for Blocked<'_, P> {
    fn deref_mut(&mut self) -> &mut P {
        self.0
    }
}

impl<P: Processor> Drop for Blocked<'_, P> {
    fn drop(&mut self) {
        self.0.unblock_interrupts();
    }
}

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Runs the guest on `processor` until its next exit. Carries out the flushes of the time outside the guest, loads
    /// the root, and enters again after each kick. The thread stays on this processor meanwhile. Other threads' flushes
    /// wait until the processor exits.
    ///
    /// If the processor panics, interrupts are unblocked, and the vCPU is outside the guest.
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
    ///
    /// /// Stands for VMX on this processor.
    /// struct Vmx(Vec<Exit>);
    ///
    /// enum Exit {
    ///     EptViolation(Fault),
    ///     Halt,
    /// }
    ///
    /// impl Translations for Vmx {
    ///     fn flush_all(&mut self) { /* INVEPT */ }
    ///     fn flush(&mut self, _: Span<Gfn>) { /* INVEPT */ }
    /// }
    ///
    /// impl Processor for Vmx {
    ///     type Exit = Exit;
    ///     fn run(&mut self, _tables: Pfn, _: &mut InGuest<'_>) -> Exit {
    ///         self.0.pop().unwrap_or(Exit::Halt) // EPTP from `_tables`, VMRESUME, the exit reason
    ///     }
    ///     fn block_interrupts(&mut self) { /* CLI */ }
    ///     fn unblock_interrupts(&mut self) { /* STI */ }
    /// }
    ///
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Ept4, _>::builder(Identity).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vmx = Vmx(vec![Exit::EptViolation(Fault { gpa: Gpa(0x5000), access: Access::Write })]);
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let left = loop {
    ///     let fault = match vcpu.run(&mut idle, &mut vmx) {
    ///         Exit::EptViolation(fault) => fault,
    ///         Exit::Halt => break None,
    ///     };
    ///     match vcpu.fault(&mut idle, fault)? {
    ///         Next::Resume(_) => {}
    ///         Next::Emulate(_) => { /* a device */ }
    ///         Next::Leave(why) => break Some(why),
    ///     }
    /// };
    /// assert_eq!((left, vm.stats().mapped_faults), (None, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run<P: Processor>(&mut self, idle: &mut Idle, processor: &mut P) -> P::Exit {
        loop {
            while let Some(token) = self.take_ready() {
                processor.ready(token);
            }
            let ready = self.enter(idle, processor);
            let tables = ready.root();
            if let Go::In(guest, mut blocked) = ready.go(|| Blocked::new(&mut *processor)) {
                // Dropped before `blocked`, also if the processor panics: out of the guest before an interrupt is taken,
                // whose handler may wait for a flush.
                let mut guest = guest;
                return blocked.run(tables, &mut guest);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::sync::prim::{AtomicU64, Relaxed};
    use crate::table::formats::Npt4;
    use crate::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::vec::Vec;

    /// A host whose page is late once, with all kicks counted.
    #[derive(Default)]
    struct Late {
        asked: AtomicU64,
        kicks: AtomicU64,
    }

    impl Host for Late {
        fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            // A pending page is asked for twice.
            if self.asked.fetch_add(1, Relaxed) < 2 {
                return Err(HostError::Pending);
            }
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
        }

        fn kick(&self, _: VcpuId) {
            self.kicks.fetch_add(1, Relaxed);
        }
    }

    /// A processor with a device that acts between two looks for kicks, and a record of calls.
    struct Cpu<'vm> {
        vm: &'vm Vm<Npt4, Late>,
        blocked: bool,
        entries: Vec<Pfn>,
        flushes: u64,
        tokens: Vec<Token>,
        before_the_block: Option<Hva>,
        panics: bool,
        /// Whether interrupts were unblocked while a flush waited for the vCPU.
        unblocked_in_guest: bool,
    }

    impl Cpu<'_> {
        /// Another thread asks for a flush. It does not wait.
        fn asks(&self, hva: Hva) {
            let ask = || self.vm.forget(&mut Idle::take().unwrap(), Span::sized(hva, PAGE_SIZE));
            std::thread::scope(|scope| scope.spawn(ask).join().unwrap());
        }
    }

    impl Translations for Cpu<'_> {
        fn flush_all(&mut self) {
            self.flushes += 1;
        }
        fn flush(&mut self, _: Span<Gfn>) {
            self.flushes += 1;
        }
    }

    impl Processor for Cpu<'_> {
        type Exit = bool;

        fn run(&mut self, tables: Pfn, guest: &mut InGuest<'_>) -> bool {
            assert!(self.blocked && !guest.kicked());
            assert_eq!(tables, self.vm.memory().root(), "the tables that are current");
            self.entries.push(tables);
            if self.panics {
                self.asks(Hva(1 << 30));
                panic!("the processor panics");
            }
            true
        }

        fn block_interrupts(&mut self) {
            if let Some(hva) = self.before_the_block.take() {
                // A flush arrives after the entry, and its kick is lost.
                self.asks(hva);
            }
            assert!(!core::mem::replace(&mut self.blocked, true));
        }

        fn unblock_interrupts(&mut self) {
            assert!(core::mem::replace(&mut self.blocked, false));
            self.unblocked_in_guest |= self.vm.unanswered().next().is_some();
        }

        fn ready(&mut self, token: Token) {
            self.tokens.push(token);
        }
    }

    fn cpu(vm: &Vm<Npt4, Late>) -> Cpu<'_> {
        let (entries, tokens) = (Vec::new(), Vec::new());
        Cpu {
            vm,
            blocked: false,
            entries,
            flushes: 0,
            tokens,
            before_the_block: None,
            panics: false,
            unblocked_in_guest: false,
        }
    }

    fn vm(idle: &mut Idle) -> Vm<Npt4, Late> {
        let vm = Vm::<Npt4, _>::builder(Late::default()).build().unwrap();
        vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)))).unwrap();
        vm
    }

    #[test]
    fn each_entry_walks_the_tables_that_are_current() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        let (mut vcpu, mut cpu) = (vm.vcpu(VcpuId(0)).unwrap(), cpu(&vm));
        assert!(vcpu.run(&mut idle, &mut cpu));
        vm.zap_all(&mut idle).unwrap();
        assert!(vcpu.run(&mut idle, &mut cpu));
        assert!(cpu.entries[0] != cpu.entries[1] && !cpu.blocked);
    }

    #[test]
    fn a_kick_before_the_block_makes_it_enter_again() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        let (mut vcpu, mut cpu) = (vm.vcpu(VcpuId(0)).unwrap(), cpu(&vm));
        vcpu.run(&mut idle, &mut cpu);
        let before = cpu.flushes;
        cpu.before_the_block = Some(Hva(1 << 30));
        vcpu.run(&mut idle, &mut cpu);
        assert_eq!((cpu.entries.len(), cpu.flushes - before), (2, 1));
        assert_eq!(vm.host().kicks.load(Relaxed), 1);
        assert!(!cpu.unblocked_in_guest, "a handler may wait for the flush");
    }

    #[test]
    fn a_page_that_has_arrived_is_told_before_the_entry() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        let (mut vcpu, mut cpu) = (vm.vcpu(VcpuId(0)).unwrap(), cpu(&vm));
        let fault = Fault { gpa: Gpa(0), access: Access::Read };
        let Next::Leave(Leave::Pending(token)) = vcpu.fault(&mut idle, fault).unwrap() else {
            panic!("it is late")
        };
        vm.ready(token);
        vcpu.run(&mut idle, &mut cpu);
        assert_eq!((&cpu.tokens[..], cpu.entries.len()), (&[token][..], 1));
        assert_eq!(vcpu.fault(&mut idle, fault), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    }

    #[test]
    fn a_processor_that_panics_leaves_the_guest_with_interrupts_on() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        let (mut vcpu, mut cpu) = (vm.vcpu(VcpuId(0)).unwrap(), cpu(&vm));
        cpu.panics = true;
        catch_unwind(AssertUnwindSafe(|| vcpu.run(&mut idle, &mut cpu))).unwrap_err();
        assert!(!cpu.blocked);
        assert!(!cpu.unblocked_in_guest, "a handler may wait for the flush");
        // Waits for a vCPU that were still in the guest.
        vm.change(&mut idle, Span::sized(Hva(1 << 30), PAGE_SIZE), Why::Unmap, |_| {});
        cpu.panics = false;
        assert!(vcpu.run(&mut idle, &mut cpu));
    }
}
