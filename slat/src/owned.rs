//! `OwnedVcpu`: a vCPU that keeps its VM alive.

use crate::vcpu::entry::Ready;
use crate::{Fault, FaultError, Format, Host, Idle, Next, Processor, Translations, Vcpu, VcpuId, Vm};
use alloc::sync::Arc;
use core::fmt;
use core::mem::MaybeUninit;

/// A [`Vcpu`] that shares its VM instead of borrowing it: for a struct that holds both, and for threads that outlive
/// their creator. See [`Vm::owned_vcpu`].
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// use std::sync::Arc;
///
/// /// A host whose frame is always the address.
/// struct Identity;
/// impl Host for Identity {
///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
///     }
/// }
///
/// struct Registers;
///
/// /// A VMM's struct.
/// struct Cpu {
///     vm: Arc<Vm<Npt4, Identity>>,
///     vcpu: OwnedVcpu<Npt4, Identity>,
///     registers: Registers,
/// }
///
/// let vm = Arc::new(Vm::<Npt4, _>::builder(Identity).vcpus(2).build()?);
/// let mut cpu = Cpu { vcpu: vm.owned_vcpu(VcpuId(1)).unwrap(), vm: vm.clone(), registers: Registers };
/// std::thread::spawn(move || {
///     let mut idle = Idle::take().unwrap();
///     cpu.vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30)))).unwrap();
///     let fault = Fault { gpa: Gpa(0x5000), access: Access::Write };
///     assert_eq!(cpu.vcpu.fault(&mut idle, fault), Ok(Next::Resume(Resume::Mapped(Level::K4))));
///     // Other calls go through `with`:
///     let mapped = cpu.vcpu.with(|vcpu| vcpu.prefault(&mut idle, Span::new(Gfn(0), Gfn(8)), Prefault::OLD));
///     assert_eq!(mapped, Ok(8));
/// })
/// .join()
/// .unwrap();
/// assert_eq!(vm.stats().leaves, [8, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A borrow of the VM through the vCPU cannot leave [`with`](Self::with):
///
/// ```compile_fail
/// # use slat::*;
/// # fn f<F: Format, H: Host>(mut vcpu: OwnedVcpu<F, H>) {
/// let vm = vcpu.with(|vcpu| vcpu.vm());
/// # }
/// ```
pub struct OwnedVcpu<F: Format, H: Host + 'static> {
    /// Borrows from `vm`, not for ever, and is dropped before it. Always initialized. References in an argument must stay
    /// valid until the called function ends, also where it drops the argument and with it the VM; those in a
    /// `MaybeUninit` need not.
    vcpu: MaybeUninit<Vcpu<'static, F, H>>,
    vm: Arc<Vm<F, H>>,
}

impl<F: Format, H: Host + 'static> fmt::Debug for OwnedVcpu<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.vcpu().fmt(f)
    }
}

impl<F: Format, H: Host + 'static> Drop for OwnedVcpu<F, H> {
    fn drop(&mut self) {
        // SAFETY: initialized, and not used again.
        unsafe { self.vcpu.assume_init_drop() }
    }
}

impl<F: Format, H: Host + 'static> Vm<F, H> {
    /// Like [`vcpu`](Self::vcpu), for a thread or a struct that shares the VM.
    pub fn owned_vcpu(self: &Arc<Self>, id: VcpuId) -> Option<OwnedVcpu<F, H>> {
        let vm = self.clone();
        // SAFETY: the VM stays in place and lives as long as `vm`. The vCPU does not outlive `vm`: it is private to
        // `OwnedVcpu`. What leaves it borrows that value, or, in `with`, has a lifetime that the closure cannot name.
        let borrowed = unsafe { &*Arc::as_ptr(&vm) };
        Some(OwnedVcpu { vcpu: MaybeUninit::new(borrowed.vcpu(id)?), vm })
    }
}

impl<F: Format, H: Host + 'static> OwnedVcpu<F, H> {
    /// Calls `work` with the [`Vcpu`], for methods that this type does not forward.
    ///
    /// # Panics
    /// If `work` has put a vCPU of another VM in its place, which is possible where that VM lives for `'static`.
    pub fn with<R>(&mut self, work: impl for<'vm> FnOnce(&mut Vcpu<'vm, F, H>) -> R) -> R {
        let result = work(self.vcpu_mut());
        assert!(core::ptr::eq(self.vcpu().vm, &raw const *self.vm), "the vCPU is of another VM: put it back");
        result
    }

    fn vcpu(&self) -> &Vcpu<'static, F, H> {
        // SAFETY: initialized.
        unsafe { self.vcpu.assume_init_ref() }
    }

    fn vcpu_mut(&mut self) -> &mut Vcpu<'static, F, H> {
        // SAFETY: initialized.
        unsafe { self.vcpu.assume_init_mut() }
    }

    /// Its VM.
    pub fn vm(&self) -> &Arc<Vm<F, H>> {
        &self.vm
    }

    /// Its number.
    pub fn id(&self) -> VcpuId {
        self.vcpu().id()
    }

    /// See [`Vcpu::fault`].
    #[inline]
    pub fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Next, FaultError> {
        self.vcpu_mut().fault(idle, fault)
    }

    /// See [`Vcpu::run`].
    #[inline]
    pub fn run<P: Processor>(&mut self, idle: &mut Idle, processor: &mut P) -> P::Exit {
        self.vcpu_mut().run(idle, processor)
    }

    /// See [`Vcpu::enter`].
    #[inline]
    pub fn enter<'a>(&'a mut self, idle: &'a mut Idle, cache: &mut impl Translations) -> Ready<'a> {
        self.vcpu_mut().enter(idle, cache)
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::table::formats::Npt4;
    use crate::{Access, Emulate, Gpa, HostError, HostPage, Hva, Span};
    use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::OnceLock;

    /// A host that records its drop.
    struct Told(Arc<AtomicBool>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }

    impl Host for Told {
        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage::PLAIN)
        }
    }

    struct Tlb;

    impl Translations for Tlb {
        fn flush_all(&mut self) {}
        fn flush(&mut self, _: Span<crate::Gfn>) {}
    }

    fn vm() -> (Arc<Vm<Npt4, Told>>, Arc<AtomicBool>) {
        let gone = Arc::new(AtomicBool::new(false));
        (Arc::new(Vm::<Npt4, _>::builder(Told(gone.clone())).vcpus(2).build().unwrap()), gone)
    }

    #[test]
    #[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
    fn the_vm_lives_as_long_as_the_last_of_its_vcpus() {
        fn is_send<T: Send + 'static>(_: &T) {}
        let mut idle = Idle::take().unwrap();
        let (vm, gone) = vm();
        let [mut first, second] = [0, 1].map(|id| vm.owned_vcpu(VcpuId(id)).unwrap());
        is_send(&first);
        assert!(vm.owned_vcpu(VcpuId(0)).is_none() && vm.vcpu(VcpuId(0)).is_none(), "one at a time");
        drop((vm, second));
        assert_eq!(
            first.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Read }),
            Ok(Next::Emulate(Emulate::NoMemory))
        );
        let root = first.vm().memory().root();
        assert_eq!(first.enter(&mut idle, &mut Tlb).root(), root);
        // A leaked guard does not outlive it either.
        core::mem::forget(first.enter(&mut idle, &mut Tlb));
        assert!(!gone.load(SeqCst));
        drop(first);
        assert!(gone.load(SeqCst));
    }

    #[test]
    fn a_vcpu_that_is_put_in_its_place_is_one_of_the_same_vm() {
        let (vm, gone) = vm();
        let mut first = vm.owned_vcpu(VcpuId(0)).unwrap();
        drop(vm);
        first.with(|vcpu| {
            let second = vcpu.vm().vcpu(VcpuId(1)).unwrap();
            *vcpu = second;
        });
        assert_eq!(first.id(), VcpuId(1));
        assert!(first.vm().vcpu(VcpuId(0)).is_some(), "the number was given back");
        drop(first);
        assert!(gone.load(SeqCst));
    }

    #[test]
    #[should_panic(expected = "the vCPU is of another VM")]
    fn a_vcpu_of_another_vm_is_not_put_in_its_place() {
        static OTHER: OnceLock<Arc<Vm<Npt4, Told>>> = OnceLock::new();
        let other = OTHER.get_or_init(|| vm().0);
        vm().0.owned_vcpu(VcpuId(0)).unwrap().with(|vcpu| *vcpu = other.vcpu(VcpuId(0)).unwrap());
    }
}
