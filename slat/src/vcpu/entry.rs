//! The entry into the guest in single steps, for a hypervisor that does not use [`Vcpu::run`]: one that takes interrupts
//! between the steps, or a software vCPU.
//!
//! ```text
//! Vcpu::enter ─▶ Ready ─▶ go, with interrupts blocked ─▶ Go::In(InGuest) ─▶ dropped: out of the guest
//!                   │                                └─▶ Go::Back: a kick came first; enter again
//!                   └─▶ poll, for a software vCPU ─▶ InGuest ─▶ kicked, answer, between accesses
//! ```

use super::Vcpu;
use crate::callbacks::Finally;
use crate::loaded::{Entered, Root, Tag};
use crate::oracle::Stay;
use crate::sync::readside::Seat;
use crate::table::radix::RootWord;
use crate::tlb::shootdown::{Tlb, VcpuTlb};
use crate::{Format, Host, Idle, Pfn, Translations};
use core::marker::PhantomData;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Takes the first step into the guest. Until the guard is dropped, flushes kick this vCPU, and its thread is not
    /// idle, because it must answer them. The last step is [`Ready::go`], or [`Ready::poll`] for a software vCPU.
    ///
    /// `cache` stands for the TLB of the current processor. The thread must stay on this processor until the guard is
    /// dropped. Before this function returns, `cache` forgets what was flushed while the vCPU was outside the guest. It
    /// forgets everything in three cases:
    ///
    /// * The root has changed; load [`Ready::root`].
    /// * The processor differs from that of the last entry ([`Translations::cpu`]).
    /// * This is the first entry after [`Vm::vcpu`](crate::Vm::vcpu), because the previous owner of the number may
    ///   have left translations.
    ///
    /// A leaked guard leaves the vCPU in the guest until its next operation. Flushes wait for it until then.
    pub fn enter<'a>(&'a mut self, idle: &'a mut Idle, cache: &mut impl Translations) -> Ready<'a> {
        self.enter_under(idle, cache, Tag::L1, self.space.radix.root_word())
    }

    /// Enters under the given tag, on the tables below `root`.
    #[inline(always)]
    pub(crate) fn enter_under<'a>(
        &'a mut self,
        _idle: &'a mut Idle,
        cache: &mut impl Translations,
        tag: Tag,
        root: &'a RootWord,
    ) -> Ready<'a> {
        let (vcpu, seat) = (self.vm.tlb.vcpu(self.id), self.seat.for_owner());
        seat.park();
        let root = Root { now: root, loaded: &mut self.loaded };
        let entered = Entered::new(self.light, tag);
        let stay = Stay::begin(&self.vm.host, (self.id, self.space.id, tag));
        // Made before the call of `cache`: if that panics, the guard takes the vCPU out of the guest again.
        let mut guest = InGuest { tlb: &self.vm.tlb, vcpu, seat, root, entered, stay, _idle: PhantomData };
        let moved = guest.root.arrive(cache);
        guest.tlb.enter(vcpu, cache);
        guest.root.reload(tag, moved, cache);
        Ready(guest)
    }
}

/// A vCPU one step before the guest, whose TLB has forgotten what was flushed. Dropping it leaves the guest.
///
/// A kick may arrive between [`Vcpu::enter`] and the instruction that enters the guest. The hypervisor then takes its
/// interrupt, which is lost without a VM exit, and the flusher waits for a guest that nothing interrupts. Therefore the
/// last step, [`go`](Self::go), first blocks interrupts and then checks for a kick.
///
/// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
///
/// ```
/// use slat::entry::Go;
/// # use slat::{*, table::formats::Npt4};
/// # use std::cell::Cell;
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
/// # thread_local!(static ON: Cell<bool> = const { Cell::new(true) });
/// /// Interrupts are off while this lives. One that arrives waits, and then causes a VM exit.
/// struct Off;
/// impl Off {
///     fn new() -> Self {
///         # ON.set(false);
///         Off // CLI; MSR DAIFSet; CSRC sstatus
///     }
/// }
/// impl Drop for Off {
///     fn drop(&mut self) {
///         # ON.set(true);
///         /* STI: waiting interrupts are taken now */
///     }
/// }
///
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # let hardware_enters = |_: Pfn| assert!(!ON.get());
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// loop {
///     let ready = vcpu.enter(&mut idle, &mut Tlb); // INVEPT, if needed; interrupts may be on
///     let root = ready.root(); // into the control block
///     match ready.go(Off::new) {
///         Go::In(guest, off) => {
///             hardware_enters(root); // VMLAUNCH, ERET … until an exit
///             drop(guest); // out of the guest: flushes no longer wait for this vCPU
///             drop(off);
///             break; // handle the exit
///         }
///         Go::Back => {} // a kick came first: enter again, which flushes
///     }
/// }
/// # assert!(ON.get());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it leaves the guest again"]
pub struct Ready<'a>(InGuest<'a>);

/// The result of the last step into the guest: see [`Ready::go`].
#[derive(Debug)]
#[must_use = "dropping it leaves the guest again"]
pub enum Go<'a, K = ()> {
    /// Enter the guest. The second value blocks interrupts; drop it after the exit.
    In(InGuest<'a>, K),
    /// A kick has come since [`Vcpu::enter`]: enter again. The vCPU is outside the guest, and interrupts are no longer
    /// blocked. If the host answers [pending](crate::HostError::Pending), the kick may mean that a token is ready. Then
    /// [take](Vcpu::take_ready) it first; every entry returns `Back` until it is taken.
    Back,
}

impl<'a> Ready<'a> {
    /// The root from which the hardware walks: for CR3, EPTP, VTTBR, hgatp.
    #[inline(always)]
    pub fn root(&self) -> Pfn {
        self.0.root()
    }

    /// Takes the last step before the hardware enters the guest. `hold` blocks interrupts on this processor until its
    /// result is dropped. Then `go` checks for a kick. A kick whose interrupt came before the block is visible here,
    /// and `go` returns [`Go::Back`]. A later interrupt waits, and causes a VM exit right after the entry.
    ///
    /// Never sleeps. `hold` must be a compiler barrier (an `asm!` without `nomem`). If interrupts are blocked anyway,
    /// as NMIs are while AMD's GIF is clear, `hold` is `|| ()`. A VMM that makes calls like `KVM_RUN` blocks the signal
    /// of its kicks in `hold`, and lets the call unblock it.
    #[inline(always)]
    pub fn go<K>(self, hold: impl FnOnce() -> K) -> Go<'a, K> {
        match Tlb::go(self.0.vcpu, hold) {
            Ok(held) => {
                self.0.stay.runs(self.0.root.pfn(self.0.entered.tag()));
                Go::In(self.0, held)
            }
            Err(held) => {
                // Out of the guest before an interrupt is taken: its handler may wait for a flush.
                drop(self);
                drop(held);
                Go::Back
            }
        }
    }

    /// Takes the last step of a software vCPU. Such a vCPU calls [`InGuest::kicked`] before its first access and
    /// between accesses, so it also finds a kick that has already come.
    #[inline(always)]
    pub fn poll(self) -> InGuest<'a> {
        self.0
    }
}

/// A vCPU in guest mode. Dropping it leaves the guest.
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
/// struct Tlb; // stands for the processor's TLB
/// impl Translations for Tlb {
///     fn flush_all(&mut self) { /* INVEPT */ }
///     fn flush(&mut self, _: Span<Gfn>) { /* INVEPT */ }
/// }
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// let mut guest = vcpu.enter(&mut idle, &mut Tlb).poll();
/// assert_eq!(guest.root(), vm.memory().root());
/// // … the software guest runs, and polls between accesses …
/// if guest.kicked() {
///     guest.answer(&mut Tlb);
/// }
/// drop(guest); // out of the guest: the vCPU may fault
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct InGuest<'a> {
    tlb: &'a Tlb,
    vcpu: &'a VcpuTlb,
    seat: &'a Seat,
    root: Root<'a>,
    entered: Entered,
    pub(crate) stay: Stay<'a>,
    _idle: PhantomData<&'a mut Idle>,
}

impl<'a> AsRef<InGuest<'a>> for Ready<'a> {
    fn as_ref(&self) -> &InGuest<'a> {
        &self.0
    }
}

impl AsRef<Self> for InGuest<'_> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl InGuest<'_> {
    /// Whether the vCPU belongs to the VM that owns `tlb`.
    pub(crate) fn is_flushed_by(&self, tlb: &Tlb) -> bool {
        core::ptr::eq(self.tlb, tlb)
    }

    /// The root from which the hardware walks: for CR3, EPTP, VTTBR, hgatp. It may change at each
    /// [`answer`](Self::answer), which then makes the cache forget everything.
    #[inline(always)]
    pub fn root(&self) -> Pfn {
        self.stay.loads(self.root.pfn(self.entered.tag()))
    }

    /// Whether a flush waits for this vCPU, or a token that it waits for is [ready](Self::has_ready). A software vCPU
    /// calls this between accesses. Costs one load of the vCPU's own cache line.
    #[inline(always)]
    pub fn kicked(&self) -> bool {
        self.stay.polls(Tlb::kicked(self.vcpu))
    }

    /// Whether a token that this vCPU waits for is ready ([`Vm::ready`](crate::Vm::ready)): leave the guest, and
    /// [take](Vcpu::take_ready) it. Costs one load. May still report a token that the vCPU has already taken.
    #[inline(always)]
    pub fn has_ready(&self) -> bool {
        self.vcpu.is_woken()
    }

    /// Makes `cache` forget what was flushed, and reports that to the waiting operations; the guest goes on. Call it on
    /// the processor of the [entry](Vcpu::enter). If `cache` panics, nothing is answered: call again or drop the guard
    /// before the guest continues.
    pub fn answer(&mut self, cache: &mut impl Translations) {
        // If `cache` panics, a vCPU that stays in the guest still owes the answer.
        let unanswered = Finally::with(self.vcpu, |vcpu| vcpu.has_not_answered());
        let moved = self.root.arrive(cache);
        self.tlb.catch_up(self.vcpu, cache);
        self.root.reload(self.entered.tag(), moved, cache);
        core::mem::forget(unanswered);
        self.stay.answers(moved);
    }
}

impl Drop for InGuest<'_> {
    fn drop(&mut self) {
        Tlb::leave(self.vcpu);
        self.seat.unpark(self.entered.is_light());
    }
}
