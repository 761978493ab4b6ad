//! A vCPU as the engine sees it: a seat on the read side, spare table pages, and a place in shootdowns.

use crate::addr::Pfn;
use crate::dirty::ring::Ring;
use crate::fault::memo::Memo;
use crate::host::{Host, Token, VcpuId};
use crate::loaded::{Entered, Loaded, Root, Tag};
use crate::shadows::VcpuShadows;
use crate::slots::SpaceId;
use crate::space::Space;
use crate::sync::gate::MmuLock;
use crate::sync::idle::Idle;
use crate::sync::readside::{Borrowed, ReadSide, Seat, Section};
use crate::sync::tally::Tally;
use crate::table::format::Format;
use crate::table::pool::Cache;
use crate::table::radix::RootWord;
use crate::tlb::shootdown::{Tlb, Translations, VcpuTlb};
use crate::vm::Vm;
use alloc::boxed::Box;
use core::marker::PhantomData;

/// One vCPU of a VM, in the hands of the thread that runs it. See [`Vm::vcpu`]; dropping it gives the number
/// back.
///
/// [`fault`](Self::fault) deals with an access that the hardware could not complete; [`enter`](Self::enter) begins the
/// time in the guest, which ends when its guard is dropped.
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// let store = Fault { gpa: Gpa(0x5123), access: Access::Write }; // as the hardware reports it
/// assert_eq!(vcpu.fault(&mut idle, store)?, Done::Mapped(Level::K4)); // enter the guest again
/// let beyond = Fault { gpa: Gpa(0x20_0000), access: Access::Read };
/// assert_eq!(vcpu.fault(&mut idle, beyond)?, Done::Mmio); // no memslot: emulate a device
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Vcpu<'vm, F: Format, H: Host> {
    pub(crate) vm: &'vm Vm<F, H>,
    pub(crate) space: &'vm Space<F>,
    pub(crate) id: VcpuId,
    /// Private to this file: sections begin by way of [`awake`](Self::awake) or [`light_section`](Self::light_section).
    seat: Borrowed<'vm>,
    pub(crate) cache: Cache,
    pub(crate) memo: Memo,
    /// Where its stores are logged, in a VM with rings.
    pub(crate) ring: Option<&'vm Ring>,
    pub(crate) loaded: Loaded,
    /// What it has of shadows, once it has run L2.
    pub(crate) nested: Option<Box<VcpuShadows>>,
    pub(crate) waiting: Waiting,
    /// What the page is called that was pending last, if [any](Waiting::ever) was.
    pub(crate) token: Token,
    /// How it enters sections: see [`Vm::enters_lightly`].
    light: bool,
}

/// How a vCPU waits for pages that its host said are pending: see [`HostError::Pending`](crate::HostError::Pending).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Waiting {
    /// It has waited for a token once.
    pub(crate) ever: bool,
    /// The host is being asked for the second time, now that it waits for the token that was answered.
    pub(crate) asks_again: bool,
}

impl<F: Format, H: Host> core::fmt::Debug for Vcpu<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vcpu").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// vCPU number `id`, for the thread that will run it. `None` past the number that the VM was built for, and
    /// while another thread has it.
    pub fn vcpu(&self, id: VcpuId) -> Option<Vcpu<'_, F, H>> {
        if id.0 >= self.policy.vcpus {
            return None;
        }
        self.reads.claim(id.0 as usize).map(|seat| Vcpu::new(self, id, seat))
    }

    /// Whether its vCPUs enter sections by one store: no lock is to be taken, and barriers are asymmetric.
    fn enters_lightly(&self) -> bool {
        self.lock.policy() == MmuLock::None && self.reads.barrier.is_asymmetric()
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
        Self { vm, space, id, seat, cache, memo, ring, loaded, nested: None, waiting, token: Token(0), light }
    }

    /// Its number.
    pub fn id(&self) -> VcpuId {
        self.id
    }

    /// The VM that it belongs to.
    pub fn vm(&self) -> &'vm Vm<F, H> {
        self.vm
    }

    /// The address space that it is in.
    pub fn space(&self) -> SpaceId {
        self.space.id
    }

    /// Goes over to another address space, whose root it loads when it enters the guest. False, and nothing is changed,
    /// where the VM was built without it.
    pub fn switch_to(&mut self, space: SpaceId) -> bool {
        let Some(found) = self.vm.space(space) else { return false };
        if space != self.space.id {
            self.forget_shadows();
            (self.space, self.memo) = (found, Memo::new());
        }
        true
    }

    /// Its seat, to begin a section on. A vCPU whose [`InGuest`] was leaked is still in the guest, and its seat looks at
    /// rest, which grace periods pass over: it comes back first.
    #[inline(always)]
    pub(crate) fn awake(&self) -> &'vm Seat {
        if self.seat.is_resting() && !seeded!(LeakedGuardBelieved) {
            self.come_back();
        }
        self.seat.seat()
    }

    /// A section begun by one store, where the seat is [light](Seat::is_light): so it is awake.
    #[inline(always)]
    pub(crate) fn light_section(&self) -> Option<Section<'vm>> {
        self.seat.is_light().then(|| ReadSide::enter_light(self.seat.seat()))
    }

    /// Waits in no section: grace periods pass over this vCPU meanwhile.
    pub(crate) fn rest_while(&self, wait: impl FnOnce()) {
        self.seat.rest();
        wait();
        self.seat.wake(self.light);
    }

    /// Gives the table pages that it has at hand back to the VM: for a vCPU that will not run for long, before
    /// [`Vm::shrink`]. The next fault that needs a table gets others.
    pub fn give_tables_back(&mut self) {
        self.vm.pool.give_back(self.cache.drain());
    }

    /// What it has counted.
    pub(crate) fn tally(&self) -> &Tally {
        &self.seat.tally
    }

    #[cold]
    fn come_back(&self) {
        Tlb::leave(self.vm.tlb.vcpu(self.id));
        self.seat.wake(self.light);
    }

    /// The first step into the guest: from here until the guard is dropped, flushes reach this vCPU by a kick. In the guest
    /// the thread is not idle: it owes answers. The last step is [`Ready::go`], or [`Ready::poll`] for a software vCPU.
    ///
    /// `cache` stands for the TLB of the processor that this thread is on. The thread stays on that processor until the
    /// guard is dropped. Before this returns, `cache` forgets what was flushed while the vCPU was out. It forgets
    /// everything where the root is another one now (load [`Ready::root`]); on another processor than at the last
    /// entry ([`Translations::cpu`]); and on the first entry after [`Vm::vcpu`], since the last holder of the number
    /// may have left translations.
    ///
    /// A guard that is leaked leaves the vCPU in the guest until its next operation. Until then flushes wait for it.
    pub fn enter<'a>(&'a mut self, idle: &'a mut Idle, cache: &mut impl Translations) -> Ready<'a> {
        self.enter_under(idle, cache, Tag::L1, self.space.radix.root_word())
    }

    /// The same under either tag, on the tables below `root`.
    #[inline(always)]
    pub(crate) fn enter_under<'a>(
        &'a mut self,
        _idle: &'a mut Idle,
        cache: &mut impl Translations,
        tag: Tag,
        root: &'a RootWord,
    ) -> Ready<'a> {
        let (vcpu, seat) = (self.vm.tlb.vcpu(self.id), self.seat.seat());
        seat.rest();
        let root = Root { now: root, loaded: &mut self.loaded };
        let entered = Entered::new(self.light, tag);
        // Before `cache` is called: where it panics, the guard takes the vCPU out of the guest again.
        let mut guest = InGuest { tlb: &self.vm.tlb, vcpu, seat, root, entered, _idle: PhantomData };
        guest.tlb.enter(vcpu, cache);
        guest.root.reload(tag, cache);
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
        self.let_go_of_shadow();
    }
}

/// A vCPU that has forgotten what it had to, one step before the guest. Dropping it goes back.
///
/// A kick may arrive between [`Vcpu::enter`] and the instruction that enters the guest. Its interrupt is then taken by the
/// hypervisor, brings no guest out, and is gone; the flusher waits for a guest that is not interrupted again. So the last
/// step, [`go`](Self::go), holds interrupts first, and then says whether to go in.
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # use std::cell::Cell;
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
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
/// /// Interrupts are off while it lives: one that arrives waits, and takes the guest out at once.
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
///         /* STI: what waited is taken now */
///     }
/// }
///
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # let hardware_enters = |_: Pfn| assert!(!ON.get());
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// loop {
///     let ready = vcpu.enter(&mut idle, &mut Tlb); // INVEPT, where it is needed; interrupts may be on
///     let root = ready.root(); // into the control block
///     match ready.go(Off::new) {
///         Go::In(guest, off) => {
///             hardware_enters(root); // VMLAUNCH, ERET … until an exit
///             drop(guest); // out of the guest: no flush waits for this vCPU any more
///             drop(off);
///             break; // deal with the exit
///         }
///         Go::Back => {} // a kick was here first: enter again, and forget what it was about
///     }
/// }
/// # assert!(ON.get());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it leaves the guest again"]
pub struct Ready<'a>(InGuest<'a>);

/// What the last step into the guest says: see [`Ready::go`].
#[derive(Debug)]
#[must_use = "dropping it leaves the guest again"]
pub enum Go<'a, K = ()> {
    /// Into the guest. With it what holds interrupts: drop that after the exit.
    In(InGuest<'a>, K),
    /// A kick has come since [`Vcpu::enter`]: enter again. The vCPU is out, and interrupts are not held any more. Where the
    /// host answers [pending](crate::HostError::Pending), a token may be ready: [take](Vcpu::take_ready) it first. Until it is
    /// taken, each entry comes back.
    Back,
}

impl<'a> Ready<'a> {
    /// Where the hardware is to walk from: for CR3, EPTP, VTTBR, hgatp.
    #[inline(always)]
    pub fn root(&self) -> Pfn {
        self.0.root()
    }

    /// The last step before the hardware enters the guest. `hold` makes interrupts wait on this processor, until what it
    /// returns is dropped. After that, and not before, this looks for a kick. An interrupt that came earlier has left its
    /// kick to be seen here, so [`Go::Back`]. One that comes later waits, and brings the guest out as soon as it is in.
    ///
    /// Nothing sleeps. `hold` is a barrier to the compiler (an `asm!` without `nomem`). Where interrupts wait in any case,
    /// as NMIs do while AMD's GIF is clear, `hold` is `|| ()`. A VMM that runs `KVM_RUN`-like calls blocks the signal of
    /// its kicks in `hold`, and has the call unblock it.
    #[inline(always)]
    pub fn go<K>(self, hold: impl FnOnce() -> K) -> Go<'a, K> {
        match Tlb::go(self.0.vcpu, hold) {
            Some(held) => Go::In(self.0, held),
            None => Go::Back,
        }
    }

    /// The last step of a software vCPU, which asks [`InGuest::kicked`] before its first access and between accesses: it
    /// finds a kick that has come already as it finds any other.
    #[inline(always)]
    pub fn poll(self) -> InGuest<'a> {
        self.0
    }
}

/// A vCPU in guest mode. Dropping it leaves the guest.
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// struct Tlb; // stands for the processor's
/// impl Translations for Tlb {
///     fn flush_all(&mut self) { /* INVEPT */ }
///     fn flush(&mut self, _: Span<Gfn>) { /* INVEPT */ }
/// }
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// let mut guest = vcpu.enter(&mut idle, &mut Tlb).poll();
/// assert_eq!(guest.root(), vm.root());
/// // … the guest runs, in software: it polls between accesses …
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
    /// Whether it is of the VM that flushes by `tlb`.
    pub(crate) fn is_flushed_by(&self, tlb: &Tlb) -> bool {
        core::ptr::eq(self.tlb, tlb)
    }

    /// Where the hardware is to walk from: for CR3, EPTP, VTTBR, hgatp. May be another one after each
    /// [`answer`](Self::answer); then everything cached has been forgotten.
    #[inline(always)]
    pub fn root(&self) -> Pfn {
        self.root.pfn(self.entered.tag())
    }

    /// Whether a flush waits for this vCPU, or a page that it waits for is [ready](Self::has_ready). A software vCPU asks
    /// between accesses; one load of its own line.
    #[inline(always)]
    pub fn kicked(&self) -> bool {
        Tlb::kicked(self.vcpu)
    }

    /// Whether a token that this vCPU waits for is ready ([`Vm::ready`](crate::Vm::ready)): leave the guest, and
    /// [take](Vcpu::take_ready) it. One load. It may be one that has been taken already.
    #[inline(always)]
    pub fn has_ready(&self) -> bool {
        self.vcpu.is_woken()
    }

    /// Forgets what has been flushed, and says so to the operations that wait; the guest goes on. On the processor of
    /// the [entry](Vcpu::enter). Where `cache` panics, nothing is answered: answer again, or drop the guard, before the
    /// guest goes on.
    pub fn answer(&mut self, cache: &mut impl Translations) {
        self.tlb.catch_up(self.vcpu, cache);
        if !seeded!(RootKept) {
            self.root.reload(self.entered.tag(), cache);
        }
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
