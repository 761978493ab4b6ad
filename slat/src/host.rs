//! The trait that the embedder implements.
//!
//! A host translates a host-virtual address to a frame, kicks vCPUs out of the guest, and lends memory for tables.
//! `slat-mm` is such a host; `examples/embed.rs` shows the smallest one.
//!
#![doc = include_str!("host/examples.md")]

mod forward;

use crate::callbacks::Caught;
use crate::table::memory::{Heap, TablesOf};
use crate::table::retire::TableEvents;
use crate::trace::TraceEvent;
pub use crate::trace::VcpuId;
use crate::{Access, Format, Gfn, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span, TableMemory, Word};
use slat_slots::MemoryType;

/// The page that the host maps at an address.
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
    /// The frame of the 4 KiB at the given address. If the table's format cannot hold it, the access fails
    /// ([`HostError::BadFrame`]).
    pub pfn: Pfn,
    /// The size of the page that the host maps there. Frame and address are congruent modulo this size; otherwise the
    /// access fails ([`HostError::BadFrame`]). The whole page has the same attributes. A host that does not know the
    /// size says [`Level::K4`]. A page larger than any leaf of the format is mapped in smaller pages.
    pub level: Level,
    /// Whether the guest may write to it now.
    pub writable: bool,
    /// Whether the guest may execute it. The memslot may still forbid it.
    pub execute: bool,
    /// The memory type, unless the memslot has a more restrictive one.
    pub memory: MemoryType,
}

impl HostPage {
    /// Frame 0: 4 KiB of write-back memory, writable and executable. A host sets the fields that differ: `HostPage {
    /// pfn, ..HostPage::PLAIN }`.
    pub const PLAIN: Self =
        Self { pfn: Pfn(0), level: Level::K4, writable: true, execute: true, memory: MemoryType::WriteBack };

    /// Whether an entry of this format can hold the frame. If not, another frame would be mapped.
    #[inline(always)]
    pub(crate) fn is_held<F: Format>(&self) -> bool {
        self.pfn <= F::pfn(Word(F::ADDRESS))
    }

    /// Whether a table of this format can map the page at `hva`: an entry can hold the frame, and frame and address are
    /// congruent modulo the page's size.
    #[inline(always)]
    pub(crate) fn fits<F: Format>(&self, hva: Hva) -> bool {
        let apart = (self.pfn.0 ^ hva.0 >> PAGE_SHIFT) & (self.level.pages() - 1);
        self.is_held::<F>() && apart == 0
    }

    /// Whether a leaf for this page allows the access.
    #[inline(always)]
    pub(crate) fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => true,
            Access::Write => self.writable,
            Access::Fetch => self.execute,
        }
    }
}

/// A host's name for a page that it does not have yet: see [`Host::token`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Why the host returns no page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum HostError {
    /// Nothing is mapped there, or the mapping forbids this kind of access.
    Fault,
    /// Out of memory.
    NoMemory,
    /// The page's memory is broken.
    Poisoned,
    /// Reading the page from its backing store failed. A retry may succeed.
    Io,
    /// The page is on its way. The vCPU's thread does not wait: the fault returns
    /// [`Leave::Pending`](crate::Leave::Pending) at once. When the page has arrived, the thread that brought it calls
    /// [`Vm::ready`](crate::Vm::ready). (KVM's asynchronous page faults.)
    ///
    /// The vCPU first registers for the page's [token](Host::token). Then the engine asks the host for the page **a
    /// second time**, so that an arrival in between is not missed. The host must therefore check whether it has already
    /// requested the page.
    Pending,
    /// The code that runs the vCPU must provide the page: the fault returns
    /// [`Leave::NeedsPage`](crate::Leave::NeedsPage). (`KVM_EXIT_MEMORY_FAULT` of a user fault.)
    NeedsPage,
    /// The host's [page](HostPage) is impossible: the table's format cannot hold its frame, or frame and address differ
    /// modulo the page's size. The engine finds this; nothing was mapped. The host has an error.
    BadFrame,
}

errors! { HostError, errno:
    Self::Fault => 14, "the host maps nothing there for this access";
    Self::NoMemory => 12, "the host is out of memory";
    Self::Poisoned => 133, "the host's memory is broken there";
    Self::Io => 5, "the host could not read the page back";
    Self::Pending => 11, "the page is on its way to the host";
    Self::NeedsPage => 14, "the VMM has to provide the page";
    Self::BadFrame => 22, "the host named a frame that does not fit the page-table format or the page's size: correct the host";
}

/// The primary MMU under a VM, with the processors and the table memory.
///
/// **The contract.** Before the host takes a page away from an address, moves it, or withdraws a permission, it calls
/// [`Vm::invalidate`](crate::Vm::invalidate) for the range and settles the debt. Then it changes its own entry, and
/// then it ends the invalidation. After that it may free the frame. [`lookup`](Self::lookup) and
/// [`resolve`](Self::resolve) must return what the host's entry says *now*. Under this contract no vCPU ever uses a
/// page that the host has taken back.
///
/// A host that changes the memory type of a page, or withdraws its execute permission, reports a move: by
/// [`Reason::Migrate`](crate::Reason::Migrate), or page by page.
///
/// # Panics
/// A function of this trait or of [`TableMemory`] may panic. The panic continues in the caller of the VM. If the caller
/// catches it, the VM is whole: nothing is mapped that the host did not return, no dirty page is lost, every flush is
/// paid, and no lock or count is left behind. The operation itself took place or not, or in part, as after an error:
/// repeat it. A transaction of memslots took place if the published slots say so. An invalidation whose
/// [`apply`](crate::Invalidation::apply) panicked has not protected its range: begin it again.
///
/// Exceptions: [`TableMemory::at`] must not panic. If [`compare_exchange`](Self::compare_exchange) panics, it must not
/// have stored. If a function that takes memory back panics, that memory is lost, because the engine cannot know how
/// far the function came. Without the feature `std` a second panic while the first one unwinds aborts, as does a panic
/// of [`kick`](Self::kick), of [`broadcast_flush`](Self::broadcast_flush), or while a VM is dropped.
///
/// **Dirty.** The engine does not report the Dirty bits of pages that it unmaps. The host must treat each page that it
/// returned as writable as written.
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// use std::{collections::BTreeMap, sync::Mutex};
///
/// /// Frames by host page. A page is allocated when it is first touched.
/// #[derive(Default)]
/// struct Lazy(Mutex<BTreeMap<u64, Pfn>>);
///
/// impl Host for Lazy {
///     fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
///         let mut frames = self.0.lock().unwrap();
///         // Each page has a frame of its own; a real host asks its frame allocator.
///         let pfn = *frames.entry(hva.0 >> 12).or_insert(Pfn(hva.0 >> 12));
///         Ok(HostPage { pfn, ..HostPage::PLAIN })
///     }
/// }
///
/// let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Lazy::default()).build()?;
/// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000))))?;
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Read })?;
///
/// // To take the page away again: invalidate, settle, change the host's own table, end the invalidation.
/// let page = Hva(0x7000_5000);
/// let change = vm.invalidate(Span::sized(page, 4096), Why::Unmap).apply(&mut idle).settle();
/// let frame = vm.host().0.lock().unwrap().remove(&(page.0 >> 12));
/// drop(change);
/// assert_eq!(frame, Some(Pfn(0x7_0005)), "free for another use");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[allow(unused_variables, reason = "the documentation has their names")]
pub trait Host: Send + Sync {
    /// Where the tables of the host's VMs are. By default they are on the [`Heap`], and a frame number is an address:
    /// for software walkers, and for machines that map memory one to one. Any other hypervisor implements
    /// [`TableMemory`] for its host, and returns [`Own`](crate::table::Own). Only the type of the result counts: the
    /// engine never calls this.
    fn tables() -> impl TablesOf<Self> {
        Heap
    }

    /// Returns the page at `hva` for this access, if the host can do so without sleeping. The engine calls this inside
    /// a section of the read side: take no lock that may be held during an invalidation, and do not allocate. The
    /// thread's token is in use, or cannot be [taken](Idle::take). The default sends every fault to
    /// [`resolve`](Self::resolve). A fault of a [nested guest](crate::nested) also asks for reads of pages beside its own,
    /// which the guest may not access soon.
    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        None
    }

    /// Makes the page at `hva` present for this access and returns it. May sleep, and may itself invalidate, for
    /// example to break a copy-on-write share. A page returned for [`Access::Write`] must be writable. If the thread
    /// must not wait for the page, the host answers [`HostError::Pending`] or [`HostError::NeedsPage`].
    ///
    /// If a memslot has [`PrivateMemory`](crate::PrivateMemory), `hva` may be an address in it
    /// ([`Hva::private_memory`]). The frame is then private to the guest.
    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError>;

    /// Reads eight bytes of guest memory at `hva`, a multiple of eight, as a little-endian number, by one atomic
    /// Acquire load. Returns `None` if the page is not available without sleeping, and for [private
    /// memory](Hva::private_memory): a guest may have its page table there. Called inside a section, as
    /// [`lookup`](Self::lookup) is. The engine reads the tables of a hypervisor in the guest this way
    /// ([`nested`](crate::nested)), and so does [`GuestSpace::read_bytes`](crate::GuestSpace::read_bytes). The default
    /// returns `None`.
    fn read(&self, hva: Hva) -> Option<Word> {
        None
    }

    /// Reads `words` from `hva` on, all in one page, each as [`read`](Self::read) does. Returns false if the page is
    /// not available without sleeping; `words` are then meaningless. A flush by a hypervisor in the guest reads whole
    /// tables this way. The default calls `read` for each word; a host with its own tables can look the address up
    /// once.
    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        (0..).zip(words).all(|(nth, word)| {
            let read = self.read(hva + nth * 8);
            *word = read.unwrap_or(*word);
            read.is_some()
        })
    }

    /// Replaces the eight bytes at `hva` by `new` if they equal `current`, by one atomic compare-and-swap. It counts as
    /// a store by the guest. Returns `Ok` with the old value, or `Err` with the actual one. Returns `None` if the page
    /// is not available, or not writable, without sleeping; the engine then resolves the page and calls again until it
    /// gets an answer. A host that implements [`read`](Self::read) must implement this, too.
    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        None
    }

    /// Names the page at `hva` that [`resolve`](Self::resolve) has just declared [pending](HostError::Pending). The
    /// host may choose one number for each page or for each request. A page keeps its token until it is
    /// [ready](crate::Vm::ready). The default is the page's address.
    fn token(&self, hva: Hva) -> Token {
        Token(hva.0 & !(PAGE_SIZE - 1))
    }

    /// Makes vCPU `vcpu` leave the guest soon, or answer from inside it: an IPI, a signal. Software vCPUs poll
    /// [`InGuest::kicked`](crate::InGuest::kicked) and need nothing more. The engine kicks for a flush, and for a token
    /// that is [ready](crate::Vm::ready). For a token it also kicks a vCPU outside the guest; the host must wake it if
    /// it sleeps.
    ///
    /// Stores by this thread before the call must be visible on the vCPU's processor when it takes the interrupt, as
    /// with an operating system's IPI. On bare metal this may need a fence before the interrupt is sent (x2APIC's
    /// WRMSR, Arm's SGI registers). An interrupt that arrives while the vCPU enters the guest may be lost;
    /// [`Ready::go`](crate::entry::Ready::go) handles that.
    ///
    /// A panic here loses no flush. The engine kicks the other vCPUs and waits for all of them, this one included; then
    /// the panic continues in the caller.
    fn kick(&self, vcpu: VcpuId) {}

    /// Makes every processor forget its translations of these frames, by a hardware broadcast. Returns whether that is
    /// done. The thread that pays a flush calls this after its edits are in the tables and before it kicks any vCPU,
    /// never inside a section. The default returns false. Arm has TLBI in the inner-shareable domain, AMD has INVLPGB,
    /// and RISC-V's firmware has remote fences.
    ///
    /// **True** means that the flush is complete. No processor holds a translation of these frames from before the
    /// call, at any page size, nor a link above one. This covers every tag of this VM's vCPUs, in every address space,
    /// and processors that the vCPU has left. Accesses by the old translations are over, and their Accessed and Dirty
    /// bits are in the tables (Arm: DSB ISH; AMD: TLBSYNC). Later walks see the edits. The engine then kicks no vCPU,
    /// and no vCPU catches up when it enters.
    ///
    /// **False** guarantees nothing. The whole flush is still owed, and the engine kicks vCPUs for it.
    ///
    /// The call may wait for processors, but not for a vCPU's thread, and must not sleep, because events that must not
    /// block also pay flushes. [`Vm::zap_all`](crate::Vm::zap_all) does not call it while it replaces a root, because
    /// vCPUs must load the new root. If it panics, the engine kicks vCPUs as after false, and then the panic continues.
    ///
    /// ```
    /// use slat::{table::formats::Arm64L48, *};
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    ///
    /// /// A machine whose processors receive broadcasts.
    /// #[derive(Default)]
    /// struct Machine {
    ///     broadcasts: AtomicU64,
    /// }
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
    /// # vm.memory().commit(&mut idle, |tx| tx.create(slot))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// # vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
    /// # std::thread::scope(|scope| scope.spawn(|| {
    /// # let mut idle = Idle::take().unwrap();
    /// # let guest = vcpu.enter(&mut idle, &mut Tlb);
    /// # std::thread::scope(|scope| scope.spawn(|| {
    /// # let mut idle = Idle::take().unwrap();
    /// // A vCPU is in the guest, and stays there.
    /// vm.change(&mut idle, slot.hvas(), Why::Unmap, |_| { /* the host changes its own table */ });
    /// assert_eq!(vm.host().broadcasts.load(Relaxed), 1);
    /// # }).join().unwrap());
    /// # drop(guest);
    /// # drop(vcpu.enter(&mut idle, &mut Tlb));
    /// # }).join().unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        false
    }

    /// Reports an event of the VM: see [`TraceEvent`], and [`Observer`](crate::trace::Observer) for a host that
    /// forwards events. The default does nothing and costs nothing.
    ///
    /// The thread that caused the event calls this, possibly inside a section of the read side. The rules of
    /// [`lookup`](Self::lookup) apply: take no lock that may be held while this VM is called, because grace periods
    /// wait for the section.
    ///
    /// A panic loses only the event, and what the operation would have returned: see [panics](#panics).
    #[inline(always)]
    fn observe(&self, event: TraceEvent) {}
}

impl<H: Host> TableEvents for H {
    fn grace_period_ended(&self) {
        self.observe(TraceEvent::GracePeriod);
    }

    fn tables_freed(&self, level: Level, leaves: u64) {
        self.observe(TraceEvent::TablesFreed { level, leaves });
    }
}

/// Returns the memory of the host's tables.
#[inline(always)]
pub(crate) fn tables_of<H: Host>(host: &H) -> &impl TableMemory {
    #[inline(always)]
    fn of<H, T: TablesOf<H>>(host: &H, _: impl FnOnce() -> T) -> &T::Memory {
        T::memory(host)
    }
    of(host, H::tables)
}

/// The kicks of one flush, and its event. A panic of the host must not stop them: the remaining vCPUs would keep stale
/// translations, and the next flush of the same pages would find nothing to flush. The panic continues when the flush
/// is over.
pub(crate) struct Kicks<'h, H> {
    host: &'h H,
    panics: Caught,
}

impl<'h, H: Host> Kicks<'h, H> {
    pub(crate) fn new(host: &'h H) -> Self {
        Self { host, panics: Caught::new() }
    }

    pub(crate) fn kick(&self, vcpu: VcpuId) {
        self.panics.call(|| self.host.kick(vcpu));
    }

    /// Whether the host has broadcast the flush; false if it panicked.
    pub(crate) fn broadcast(&self, gfns: Span<Gfn>) -> bool {
        self.panics.call(|| self.host.broadcast_flush(gfns)) == Some(true)
    }

    /// Reports the flush, also after a kick has panicked.
    #[inline(always)]
    pub(crate) fn report(&self, flush: TraceEvent) {
        self.panics.call_last(|| self.host.observe(flush));
    }

    /// Ends the flush. Resumes the stored panic, if any, unless this thread already unwinds.
    #[inline(always)]
    pub(crate) fn end(self) {
        self.panics.end();
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests;
