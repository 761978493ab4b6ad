//! A vCPU: a seat on the read side, spare table pages, and a slot in shootdowns.

mod run;

pub use run::Processor;

use crate::addr::Pfn;
use crate::callbacks::Finally;
use crate::dirty::ring::Ring;
use crate::fault::memo::Memo;
use crate::hooks::{Nested, NestedHooks, NestedState};
use crate::host::{Host, Token, VcpuId};
use crate::loaded::{Entered, Loaded, Root, Tag};
use crate::oracle::{self, Stay};
use crate::slots::SpaceId;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::readside::{Borrowed, ReadSide, Seat, Section};
use crate::sync::tally::Tally;
use crate::table::format::Format;
use crate::table::pool::Cache;
use crate::table::radix::RootWord;
use crate::tlb::shootdown::{Tlb, Translations, VcpuTlb};
use crate::vm::Vm;
use core::marker::PhantomData;

/// One vCPU of a VM, owned by the thread that runs it. See [`Vm::vcpu`]. Dropping it frees the number for another
/// thread.
///
/// [`fault`](Self::fault) handles an access that the hardware could not complete. [`enter`](Self::enter) returns a
/// guard; the vCPU is in the guest until the guard is dropped.
///
/// ```
/// use slat::{*, table::formats::Npt4};
///
/// /// A host whose frame is always the address.
/// struct Identity;
/// impl Host for Identity {
///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
///     }
/// }
///
/// let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// let store = Fault { gpa: Gpa(0x5123), access: Access::Write }; // as the hardware reports it
/// assert_eq!(vcpu.fault(&mut idle, store)?, Next::Resume(Resume::Mapped(Level::K4))); // enter the guest again
/// let beyond = Fault { gpa: Gpa(0x20_0000), access: Access::Read };
/// assert_eq!(vcpu.fault(&mut idle, beyond)?, Next::Emulate(Emulate::NoMemory)); // no memslot: emulate a device
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Vcpu<'vm, F: Format, H: Host> {
    pub(crate) vm: &'vm Vm<F, H>,
    pub(crate) space: &'vm Space<F>,
    pub(crate) id: VcpuId,
    /// Private to this file: sections begin through [`awake`](Self::awake) or [`light_section`](Self::light_section).
    seat: Borrowed<'vm>,
    pub(crate) cache: Cache,
    pub(crate) memo: Memo,
    /// The ring that logs the vCPU's stores, in a VM with rings.
    pub(crate) ring: Option<&'vm Ring>,
    pub(crate) loaded: Loaded,
    pub(crate) nested: <Nested as NestedState>::OfVcpu,
    pub(crate) waiting: Waiting,
    /// The token of the last pending page, if there was [one](Waiting::ever).
    pub(crate) token: Token,
    /// Whether sections begin by one store: see [`Vm::enters_lightly`].
    light: bool,
}

/// The state of a wait for pending pages: see [`HostError::Pending`](crate::HostError::Pending).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Waiting {
    /// The vCPU has waited for a token before.
    pub(crate) ever: bool,
    /// The vCPU waits for the token that the host returned, and now asks the host a second time.
    pub(crate) asks_again: bool,
}

impl<F: Format, H: Host> core::fmt::Debug for Vcpu<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vcpu").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Claims vCPU `id` for the thread that will run it. Returns `None` if the VM has fewer vCPUs, or if another thread
    /// has this one.
    pub fn vcpu(&self, id: VcpuId) -> Option<Vcpu<'_, F, H>> {
        if id.0 >= self.policy.vcpus {
            return None;
        }
        self.reads.claim(id.0 as usize).map(|seat| Vcpu::new(self, id, seat))
    }

    /// Whether vCPUs enter sections by one store: the VM has no lock, and barriers are asymmetric.
    fn enters_lightly(&self) -> bool {
        !self.policy.baseline.has_lock() && self.reads.barrier.is_asymmetric()
    }
}

impl<'vm, F: Format, H: Host> Vcpu<'vm, F, H> {
    pub(crate) fn new(vm: &'vm Vm<F, H>, id: VcpuId, seat: Borrowed<'vm>) -> Self {
        let space = &vm.spaces[0];
        let loaded = Loaded::UNKNOWN;
        let light = vm.enters_lightly();
        if light {
            seat.lighten();
        }
        let ring = vm.rings.all().get(id.0 as usize);
        let (cache, memo, waiting) = (Cache::default(), Memo::new(), Waiting::default());
        let token = Token(0);
        let nested = <Nested as NestedState>::OfVcpu::default;
        Self { vm, space, id, seat, cache, memo, ring, loaded, nested: nested(), waiting, token, light }
    }

    /// The vCPU's number.
    pub fn id(&self) -> VcpuId {
        self.id
    }

    /// The VM that the vCPU belongs to.
    pub fn vm(&self) -> &'vm Vm<F, H> {
        self.vm
    }

    /// The address space that the vCPU is in.
    pub fn space(&self) -> SpaceId {
        self.space.id
    }

    /// Moves the vCPU to another address space; the next entry into the guest loads that space's root. Returns false
    /// and changes nothing if the VM has no such space.
    pub fn switch_to(&mut self, space: SpaceId) -> bool {
        let Some(found) = self.vm.space(space) else { return false };
        if space != self.space.id {
            Nested::leave(self);
            (self.space, self.memo) = (found.space, Memo::new());
        }
        true
    }

    /// The vCPU's seat, to begin a section on. A vCPU whose [`InGuest`] was leaked is still in the guest. Its seat is
    /// at rest, so grace periods skip it. This function first takes the vCPU out of the guest.
    #[inline(always)]
    pub(crate) fn awake(&self) -> &'vm Seat {
        if self.seat.is_resting() {
            self.leave_leaked_guest();
        }
        self.seat.for_owner()
    }

    /// Begins a section by one store, if the seat is [light](Seat::is_light). A light seat is awake.
    #[inline(always)]
    pub(crate) fn light_section(&self) -> Option<Section<'vm>> {
        self.seat.is_light().then(|| ReadSide::enter_light(self.seat.for_owner()))
    }

    /// Runs `wait` outside any section; grace periods skip this vCPU meanwhile.
    #[inline(always)]
    pub(crate) fn rest_while(&self, wait: impl FnOnce()) {
        self.seat.rest();
        wait();
        self.seat.wake(self.light);
    }

    /// Returns the vCPU's spare table pages to the VM. For a vCPU that will stay idle, before [`Vm::shrink`]. The next
    /// fault that needs a table fetches new pages.
    pub fn give_tables_back(&mut self) {
        self.vm.pool.give_back(self.cache.drain());
    }

    /// The vCPU's counters.
    pub(crate) fn tally(&self) -> &Tally {
        &self.seat.tally
    }

    #[cold]
    fn leave_leaked_guest(&self) {
        Tlb::leave(self.vm.tlb.vcpu(self.id));
        self.seat.wake(self.light);
        oracle::guest_was_leaked(&self.vm.host, self.id);
    }

    /// Takes the first step into the guest. Until the guard is dropped, flushes kick this vCPU, and its thread is not
    /// idle, because it must answer them. The last step is [`Ready::go`], or [`Ready::poll`] for a software vCPU.
    ///
    /// `cache` stands for the TLB of the current processor. The thread must stay on this processor until the guard is
    /// dropped. Before this function returns, `cache` forgets what was flushed while the vCPU was outside the guest. It
    /// forgets everything in three cases:
    ///
    /// * The root has changed; load [`Ready::root`].
    /// * The processor differs from that of the last entry ([`Translations::cpu`]).
    /// * This is the first entry after [`Vm::vcpu`], because the previous owner of the number may have left
    ///   translations.
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
        seat.rest();
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

impl<F: Format, H: Host> Drop for Vcpu<'_, F, H> {
    fn drop(&mut self) {
        self.awake();
        self.vm.pool.give_back(self.cache.drain());
        if self.waiting.ever {
            self.vm.waits.forget_all(self.id);
        }
        Nested::leave(self);
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
        Tlb::kicked(self.vcpu)
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
        self.seat.wake(self.entered.is_light());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
