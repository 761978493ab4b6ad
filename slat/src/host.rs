//! What the engine asks of the world: one trait.
//!
//! A host turns a host-virtual address into a frame, kicks vCPUs out of the guest, and lends memory for tables.
//! `slat-mm` is such a host; `examples/embed.rs` shows the smallest one.

use crate::addr::{Gfn, Hva, Level, PAGE_SIZE, Pfn, Span};
use crate::sync::idle::Idle;
use crate::table::entry::Word;
use crate::table::format::Access;
use crate::table::memory::TableMemory;
use crate::table::retire::TableEvents;
use crate::trace::TraceEvent;
pub use crate::trace::VcpuId;
use slat_slots::MemoryType;

/// What the host maps at an address.
///
/// ```
/// use slat::{HostPage, Hva, Level, Pfn};
/// /// The host maps 2 MiB at `HUGE` to frames 0x8_0000 and up.
/// const HUGE: Hva = Hva(0x4000_0000);
/// let page = |hva: Hva| {
///     let offset = (hva.0 - HUGE.0) >> 12;
///     HostPage { pfn: Pfn(0x8_0000 + offset), level: Level::M2, ..HostPage::PLAIN }
/// };
/// assert_eq!(page(HUGE + 0x3000).pfn, Pfn(0x8_0003), "the frame of these 4 KiB, not of the whole page");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPage {
    /// The frame of the very 4 KiB that was asked for; one that the table's format can name.
    pub pfn: Pfn,
    /// How large a page the host maps there: frame and address are congruent, and all of it is mapped alike.
    /// [`Level::K4`] where the host does not know. A page larger than any leaf of the format is mapped in smaller ones.
    pub level: Level,
    /// Whether the guest may write to it now.
    pub writable: bool,
    /// Whether the guest may execute it. The memslot may forbid it, too.
    pub execute: bool,
    /// How it is cached, unless the memslot says something narrower.
    pub memory: MemoryType,
}

impl HostPage {
    /// Frame 0: 4 KiB of ordinary memory, which the guest may write and execute. A host says what is different:
    /// `HostPage { pfn, ..HostPage::PLAIN }`.
    pub const PLAIN: Self =
        Self { pfn: Pfn(0), level: Level::K4, writable: true, execute: true, memory: MemoryType::WriteBack };

    /// Whether a leaf of the page would allow the access.
    #[inline(always)]
    pub(crate) fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => true,
            Access::Write => self.writable,
            Access::Fetch => self.execute,
        }
    }
}

/// What a host calls a page that it has not got yet: see [`Host::token`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Why the host has no page to give, or not now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum HostError {
    /// Nothing is mapped there, or not for this kind of access.
    Fault,
    /// Out of memory.
    NoMemory,
    /// The page's memory is broken.
    Poisoned,
    /// The page could not be read back from where the host had put it. Another try may succeed.
    Io,
    /// The page is on its way, and the host does not make the vCPU's thread wait: the fault returns
    /// [`Done::Pending`](crate::Done::Pending) at once. When the page is there, the thread that brought it calls
    /// [`Vm::ready`](crate::Vm::ready). (KVM's asynchronous page faults.)
    ///
    /// The vCPU waits for the page's [token](Host::token) from then on, and then the host is asked for the page **once
    /// more**: an answer that came in between is not missed. So a host looks whether it has asked for the page already.
    Pending,
    /// The code that runs the vCPU has to provide the page: the fault returns
    /// [`Done::NeedsPage`](crate::Done::NeedsPage). (`KVM_EXIT_MEMORY_FAULT` of a user fault.)
    NeedsPage,
}

errors! { HostError:
    Self::Fault => "the host maps nothing there for this access";
    Self::NoMemory => "the host is out of memory";
    Self::Poisoned => "the host's memory is broken there";
    Self::Io => "the host could not read the page back";
    Self::Pending => "the page is on its way to the host";
    Self::NeedsPage => "the VMM has to provide the page";
}

/// The primary MMU under a VM, and the machine around it.
///
/// **The contract.** Before the host takes a page away from an address, moves it, or withdraws a
/// permission, it calls [`Vm::invalidate`](crate::Vm::invalidate) for the range, settles the debt, changes its
/// own entry, and only then ends the invalidation; it frees the frame after that. What
/// [`lookup`](Self::lookup) and [`resolve`](Self::resolve) return must be what its entry says *now*. Under
/// that contract no vCPU ever uses a page that the host has taken back.
///
/// A page whose memory type changes, or that is not to be executed any more, is told as one that moves: by
/// [`Why::Migrate`](crate::Why::Migrate), or page by page.
///
/// **Dirty.** The engine does not report the Dirty bits of what it unmaps: a host takes a page that it has given as
/// writable for written.
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// use std::{collections::BTreeMap, sync::Mutex};
///
/// /// Frames by host page. A page is allocated when it is first touched.
/// #[derive(Default)]
/// struct Lazy(Mutex<BTreeMap<u64, Pfn>>);
///
/// unsafe impl TableMemory for Lazy {} // table pages from the global allocator
///
/// impl Host for Lazy {
///     fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
///         let mut frames = self.0.lock().unwrap();
///         let next = Pfn(0x9000 + frames.len() as u64);
///         let pfn = *frames.entry(hva.0 >> 12).or_insert(next);
///         Ok(HostPage { pfn, ..HostPage::PLAIN })
///     }
/// }
///
/// let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Lazy::default()).build()?;
/// vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000))))?;
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Read })?;
///
/// // To take the page away again: invalidate, settle, change the host's own table, end.
/// let page = Hva(0x7000_5000);
/// let mut change = vm.invalidate(Span::sized(page, 4096), Why::Unmap);
/// change.apply(&mut idle).settle();
/// let frame = vm.host().0.lock().unwrap().remove(&(page.0 >> 12));
/// drop(change);
/// assert_eq!(frame, Some(Pfn(0x9000)), "free for another use");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Host: TableMemory {
    /// What is mapped at `hva` for this access, if that can be said without sleeping. The engine asks inside a
    /// section of the read side: no lock that can be held while notify is called, no allocation. The default
    /// sends every fault to [`resolve`](Self::resolve).
    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let _ = (hva, access);
        None
    }

    /// Makes the page at `hva` present for this access and says where it is. May sleep, and may itself invalidate
    /// (breaking a copy-on-write share does). A page returned for [`Access::Write`] is writable. A host that does not want the
    /// thread to wait for the page answers [`HostError::Pending`], or [`HostError::NeedsPage`].
    ///
    /// Where a memslot has [`PrivateMemory`](crate::PrivateMemory), `hva` may name a place there ([`Hva::private_memory`]): then the frame is
    /// private to the guest.
    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError>;

    /// The eight bytes of guest memory at `hva`, a multiple of eight, as a little-endian number, by one atomic load (Acquire); `None`
    /// where the page is not there without sleeping. Asked inside a section, as [`lookup`](Self::lookup) is. Tables of a hypervisor in
    /// the guest are read so ([`nested`](crate::nested)); the default says that none can be.
    fn read(&self, hva: Hva) -> Option<Word> {
        let _ = hva;
        None
    }

    /// As many words from `hva` on, all in one page: each as by [`read`](Self::read). False where the page is not there without sleeping;
    /// what `words` hold then means nothing. A flush by a hypervisor in the guest reads whole tables of it. A host that looks an address up
    /// in tables of its own does that once here; the default calls `read` for each.
    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        (0..).zip(words).all(|(nth, word)| {
            let read = self.read(hva + nth * 8);
            *word = read.unwrap_or(*word);
            read.is_some()
        })
    }

    /// The same bytes, where they are `current`, become `new`: a store of the guest's, by one atomic exchange. `Ok` with what they were,
    /// or `Err` with what they are; `None` where the page is not there, or not writable, without sleeping. It is resolved then, and asked for
    /// again, for as long as it takes: a host that answers [`read`](Self::read) has to answer this, too.
    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let _ = (hva, current, new);
        None
    }

    /// What the page at `hva` is called, of which [`resolve`](Self::resolve) has just said that it is
    /// [pending](HostError::Pending): a number of the host's own choice, for each page or for each request. A page keeps it until
    /// it is [ready](crate::Vm::ready). The page's address, unless said otherwise.
    fn token(&self, hva: Hva) -> Token {
        Token(hva.0 & !(PAGE_SIZE - 1))
    }

    /// Makes vCPU `vcpu` leave the guest, or answer from inside it, soon: an IPI, a signal. Software vCPUs poll
    /// [`InGuest::kicked`](crate::InGuest::kicked) and need nothing more. It is called for a flush; and for a token that
    /// is [ready](crate::Vm::ready), then also where the vCPU is out of the guest: one that sleeps is to be woken.
    ///
    /// Whatever this thread stored before the call is visible on the vCPU's processor when the interrupt is taken there,
    /// as an operating system's IPI has it. On bare metal that may take a fence before the interrupt is sent (x2APIC's
    /// WRMSR, Arm's SGI registers). An interrupt that finds the vCPU on its way into the guest may be lost:
    /// [`Ready::go`](crate::Ready::go) deals with that.
    ///
    /// A panic here loses no flush: the other vCPUs are kicked, and all of them are waited for, this one included, before
    /// the panic goes on to the caller. Without the crate's feature `std` a panic that unwinds from here aborts.
    fn kick(&self, vcpu: VcpuId) {
        let _ = vcpu;
    }

    /// Makes every processor forget, by a broadcast of the hardware, what it holds of these frames, and says whether that is
    /// done. Called by the thread that pays a flush, when its edits are in the tables, before any vCPU is kicked; within a
    /// section never. The default says no. Arm has TLBI in the inner-shareable domain, AMD has INVLPGB, and RISC-V's
    /// firmware has remote fences.
    ///
    /// **True**: the flush is complete. No processor holds a translation of these frames, at any page size, nor a link
    /// above one, from before the call, under any tag that this VM's vCPUs have, in any address space; not even where the
    /// vCPU has left. Accesses by what was forgotten are over, and the Accessed and Dirty bits that they set are in the
    /// tables (Arm: DSB ISH; AMD: TLBSYNC). Walks that begin afterwards see the edits. Nothing is owed any more: no vCPU is
    /// kicked, and none catches up when it enters.
    ///
    /// **False**: nothing is assumed. All of the flush is still owed, and vCPUs are kicked for it.
    ///
    /// It may wait for processors, but not for a vCPU's thread, and does not sleep: an event that may not block pays
    /// flushes, too. It is not asked while [`Vm::zap_all`](crate::Vm::zap_all) replaces a root, which vCPUs must load. Where
    /// it panics, vCPUs are kicked as if it had said no, and then the panic goes on.
    ///
    /// ```
    /// use slat::{table::formats::Arm64L48, *};
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    ///
    /// /// A machine whose processors hear broadcasts.
    /// #[derive(Default)]
    /// struct Machine {
    ///     broadcasts: AtomicU64,
    /// }
    /// # unsafe impl TableMemory for Machine {}
    /// impl Host for Machine {
    ///     fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
    ///         // DSB ISHST; TLBI IPAS2E1IS for each of `gfns`; DSB ISH; TLBI VMALLE1IS; DSB ISH
    ///         self.broadcasts.fetch_add(1, Relaxed);
    ///         true
    ///     }
    ///     fn kick(&self, vcpu: VcpuId) {
    ///         unreachable!("{vcpu:?} runs on");
    ///     }
    ///     // …
    /// #   fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #       Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #   }
    /// }
    /// # struct Tlb;
    /// # impl Translations for Tlb {
    /// #     fn flush_all(&mut self) {}
    /// #     fn flush(&mut self, _: Span<Gfn>) { unreachable!() }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Arm64L48, _>::builder(Machine::default()).build()?;
    /// # let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
    /// # vm.slots().commit(&mut idle, |tx| tx.create(slot))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// # vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
    /// # std::thread::scope(|scope| scope.spawn(|| {
    /// # let mut idle = Idle::take().unwrap();
    /// # let guest = vcpu.enter(&mut idle, &mut Tlb);
    /// # std::thread::scope(|scope| scope.spawn(|| {
    /// # let mut idle = Idle::take().unwrap();
    /// // A vCPU is in the guest, and stays there.
    /// vm.invalidate(slot.hvas(), Why::Unmap).apply(&mut idle).settle();
    /// assert_eq!(vm.host().broadcasts.load(Relaxed), 1);
    /// # }).join().unwrap());
    /// # drop(guest);
    /// # drop(vcpu.enter(&mut idle, &mut Tlb));
    /// # }).join().unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        let _ = gfns;
        false
    }

    /// Is told what the VM has just done: see [`TraceEvent`], and [`Observer`](crate::trace::Observer) for a host that hands it
    /// on. The default does nothing, and costs nothing.
    ///
    /// Called by the thread that did it, maybe inside a section of the read side: what holds for [`lookup`](Self::lookup)
    /// holds here. No lock is taken that can be held while this VM is called; grace periods wait for it. A panic
    /// goes on to the caller of the VM, as one of `lookup` does; nothing is lost but the event.
    #[inline(always)]
    fn observe(&self, event: TraceEvent) {
        let _ = event;
    }
}

impl<H: Host> TableEvents for H {
    fn grace_period_ended(&self) {
        self.observe(TraceEvent::GracePeriod);
    }

    fn tables_freed(&self, level: Level, leaves: u64) {
        self.observe(TraceEvent::TablesFreed { level, leaves });
    }
}

/// Dropped by unwinding alone, where a second panic aborts.
#[cfg(not(feature = "std"))]
struct Unwound;

#[cfg(not(feature = "std"))]
impl Drop for Unwound {
    fn drop(&mut self) {
        panic!("a host panicked while it flushed: the flush cannot be finished");
    }
}

/// The kicks of one flush. A panic of the host must not cut them short: vCPUs that were not kicked yet would keep stale
/// translations, and the next flush of the same pages would find nothing to flush. So it is kept until the flush is over.
pub(crate) struct Kicks<'h, H> {
    host: &'h H,
    #[cfg(feature = "std")]
    panic: core::cell::Cell<Option<alloc::boxed::Box<dyn core::any::Any + Send>>>,
}

impl<'h, H: Host> Kicks<'h, H> {
    pub(crate) fn new(host: &'h H) -> Self {
        Self {
            host,
            #[cfg(feature = "std")]
            panic: core::cell::Cell::new(None),
        }
    }

    pub(crate) fn kick(&self, vcpu: VcpuId) {
        if seeded!(KicksCutShort) {
            return self.host.kick(vcpu);
        }
        self.kept(|| self.host.kick(vcpu));
    }

    /// Whether the host has broadcast the flush. One that panics has not.
    pub(crate) fn broadcast(&self, gfns: Span<Gfn>) -> bool {
        self.kept(|| self.host.broadcast_flush(gfns)) == Some(true)
    }

    /// What the host answers; its panic is kept.
    #[cfg(feature = "std")]
    fn kept<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let answer = std::panic::catch_unwind(core::panic::AssertUnwindSafe(call));
        answer.map_err(|panic| self.panic.set(Some(panic))).ok()
    }

    /// The same. A panic that unwinds from here has edited tables and flushed nothing.
    #[cfg(not(feature = "std"))]
    fn kept<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let unwound = Unwound;
        let answer = call();
        core::mem::forget(unwound);
        Some(answer)
    }

    /// The flush is over: the panic of a kick goes on, if there was one, unless this thread unwinds already.
    #[inline(always)]
    pub(crate) fn end(self) {
        #[cfg(feature = "std")]
        if let Some(panic) = self.panic.take().filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::seeded::{self, Bug};
    use crate::sync::prim::{AtomicU64, Relaxed};
    use core::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// Panics for the first vCPU; counts the others.
    #[derive(Default)]
    struct First(AtomicU64);

    // SAFETY: the defaults keep the contract.
    unsafe impl TableMemory for First {}

    impl Host for First {
        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            Err(HostError::Fault)
        }

        fn kick(&self, vcpu: VcpuId) {
            if vcpu == VcpuId(0) {
                resume_unwind(std::boxed::Box::new("on purpose"));
            }
            self.0.fetch_add(1, Relaxed);
        }

        fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
            resume_unwind(std::boxed::Box::new("on purpose"));
        }
    }

    /// How many vCPUs were kicked after the one whose kick panics, and whether the panic went on, and after them all.
    fn kicked() -> (u64, bool, bool) {
        let (host, finished) = (First::default(), Cell::new(false));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let kicks = Kicks::new(&host);
            (0..3).for_each(|id| kicks.kick(VcpuId(id)));
            finished.set(true);
            kicks.end();
        }));
        (host.0.load(Relaxed), panicked.is_err(), finished.get())
    }

    #[test]
    fn a_kick_that_panics_keeps_no_other_vcpu_from_being_kicked() {
        assert_eq!(kicked(), (2, true, true));
    }

    #[test]
    fn a_broadcast_that_panics_leaves_the_flush_to_kicks() {
        let host = First::default();
        let kicks = Kicks::new(&host);
        assert!(!kicks.broadcast(Span::new(Gfn(0), Gfn(1))));
        kicks.kick(VcpuId(1));
        assert!(catch_unwind(AssertUnwindSafe(|| kicks.end())).is_err(), "the panic goes on");
        assert_eq!(host.0.load(Relaxed), 1);
    }

    #[test]
    fn mistake_a_kick_that_panics_ends_the_flush() {
        assert_eq!(seeded::with(Bug::KicksCutShort, kicked), (0, true, false));
        seeded::found(Bug::KicksCutShort, 1);
    }
}
