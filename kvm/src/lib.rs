//! Real KVM on [`slat`]: the memory of an unmodified guest moves, is swapped, merged, aged and dirty-logged from user space.
//!
//! ```no_run
//! use slat_kvm::{KvmVm, kvm_ioctls::{Kvm, VcpuExit}};
//! use slat::{Gpa, Idle, SlotId, slots::Region};
//! use slat_mm::{AddressSpace, Arena, Backing, Place, Prot, Swap};
//!
//! // Guest memory is slat-mm's.
//! let mut idle = Idle::take().unwrap();
//! let arena = Arena::builder().limit(512 << 20).build()?;
//! let swap = Swap::builder().memory(256 << 20).build(&arena)?;
//! let space = AddressSpace::builder(&arena).swap(&swap).build()?;
//! let ram = space.mmap(Place::Anywhere, 256 << 20, Prot::ReadWrite, Backing::Anonymous)?;
//!
//! // A VM of KVM's, and one of slat's, with the same memslots.
//! let vm = KvmVm::builder(&space).build(Kvm::new()?.create_vm()?)?;
//! vm.set(&mut idle, Region { slot: SlotId(0), flags: Region::LOG_DIRTY, gpa: Gpa(0), bytes: 256 << 20, hva: ram.start })?;
//! vm.write(&mut idle, Gpa(0x1000), &[0xf4])?;
//!
//! // The guest runs, while its memory goes to swap, and comes back page by page.
//! let mut vcpu = vm.fd().create_vcpu(0)?;
//! space.pageout(&mut idle, ram)?;
//! loop {
//!     match vcpu.run() {
//!         Ok(VcpuExit::Hlt) => break,
//!         Ok(exit) => println!("{exit:?}"),
//!         Err(error) if KvmVm::is_transient(&error) => vm.take_error().map_or(Ok(()), Err)?,
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! println!("{} pages written", vm.harvest(&mut idle, SlotId(0))?.pages());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! `examples/one_guest.rs` is a whole VMM with a guest.
//!
//! # How it works
//! **All of KVM is the TLB of slat's vCPUs.** KVM's memslots point at a *view*: a second mapping of slat-mm's frames, in which
//! pages appear when they are touched.
//! ```text
//! guest ── KVM's tables ── the view ── userfaultfd ─▶ pager thread: a vCPU of slat's faults; slot → slat-mm → leaf;
//!              ▲               ▲                        the page is shown as the leaf says
//!              │ MMU notifiers │ madvise(DONTNEED)
//!              └───────────────┴──────────────────────── a flush of slat's: before a page moves, is merged, swapped, logged, aged
//! ```
//! * A guest that touches a page which the view does not show sleeps in the kernel. So does a store to a page that is
//!   shown for reading, which is how the dirty log sees it. Neither needs a change of the guest, or an exit to the VMM.
//! * A flush is [broadcast](slat::Host::broadcast_flush): the thread that pays it empties the view, and the kernel's MMU notifiers make
//!   KVM forget. No vCPU is kicked.
//! * slat's tables have no Accessed bits ([`Tables`]): a page that has been aged leaves the view, and its next use is a fault.
//!
//! # What to know
//! * **The arena's file** must be a memfd ([`Arena::memfd`](slat_mm::Arena::memfd)), and userfaultfd must be allowed for faults of the kernel: as
//!   root, with `CAP_SYS_PTRACE`, with `vm.unprivileged_userfaultfd` 1, or by `/dev/userfaultfd`. Linux 6.4 or later.
//! * **Frames that are not neighbours cost a mapping each**, of which a process has `vm.max_map_count` (65,530). The view keeps to a
//!   [budget](Builder::mappings), and forgets pages where there are more. Huge pages ([`thp`](slat_mm::AddressSpaceBuilder::thp)) need few.
//! * **A page that is just being mapped may fail** a `KVM_RUN` with `EFAULT`: run it again ([`KvmVm::is_transient`]). Where KVM walks the
//!   guest's page tables in software (no EPT or NPT), it shows such a failure to the guest. There, put page tables and
//!   descriptor tables in a memslot whose memory is [pinned](slat_mm::AddressSpace::pin), without a log, and [kept](KvmVm::keep_mapped).
//! * **An instruction that KVM emulates** may find such a page missing, and end in an MMIO exit for an address in a memslot. Answer it
//!   by [`KvmVm::read`] and [`KvmVm::write`].
//! * KVM is told of memslots by [`KvmVm::set`] alone. Devices write by [`KvmVm::write`], which the dirty log sees.
//!
//! | module | idea |
//! |---|---|
//! | `slots` | memslots of both, changed together |
//! | `window` | the addresses of one memslot, and the mappings there |
//! | `view` | showing and forgetting pages, under one lock; the budget |
//! | `pager` | threads that fault as vCPUs of slat's |
//! | `uffd` | userfaultfd |
//! | `error` | [`KvmError`]: why an operation was refused |
#![deny(missing_docs)]
#![cfg(target_os = "linux")]

mod error;
mod pager;
mod slots;
mod uffd;
mod view;
mod window;

pub use error::KvmError;
pub use kvm_bindings;
pub use kvm_ioctls;
#[doc(hidden)]
pub use view::Sabotage;

use kvm_ioctls::VmFd;
use pager::Pagers;
use parking_lot::Mutex;
use slat::memslots::Memslots;
use slat::table::formats::Ept4NoAd;
use slat::walk::Mapping;
use slat::{Gfn, Gpa, Harvest, Idle, PAGE_SIZE, SlotId, Span, Stats, Vm};
use slat_mm::{AddressSpace, HostView};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use view::View;

/// The format of slat's tables, which no hardware walks: one without Accessed and Dirty bits, since nothing sets them.
pub type Tables = Ept4NoAd;

/// A VM of KVM's with slat below it. See the crate's page.
///
/// Dropping it takes KVM's memslots away: vCPUs that still run find no memory. Stop them before.
#[derive(Debug)]
pub struct KvmVm {
    /// Stopped first: its threads use all the rest.
    pagers: Option<Pagers>,
    view: Arc<View>,
    vm: Arc<Vm<Tables, HostView>>,
    space: Arc<AddressSpace>,
    kvm: VmFd,
    kvm_log: bool,
    /// Held while memslots change.
    changes: Mutex<()>,
    trouble: Arc<Mutex<Option<KvmError>>>,
}

/// Builds a [`KvmVm`].
#[derive(Debug)]
#[must_use]
pub struct Builder {
    space: Arc<AddressSpace>,
    pagers: u32,
    mappings: Option<usize>,
    kvm_log: bool,
    sabotage: Option<Sabotage>,
}

/// What a [`KvmVm`] has done, and holds. Exact when nothing runs meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ViewStats {
    /// Faults that userfaultfd has told.
    pub faults: u64,
    /// Faults that could not be served: see [`KvmVm::take_error`].
    pub errors: u64,
    /// Pages that were shown.
    pub filled: u64,
    /// How often frames had to be mapped for that: the others were behind their addresses already.
    pub mapped: u64,
    /// Flushes that slat asked for.
    pub flushes: u64,
    /// Pieces of 2 MiB whose mappings were taken away to keep the [budget](Builder::mappings).
    pub evicted: u64,
    /// Mappings that the view has.
    pub mappings: u64,
}

impl Builder {
    /// How many threads serve faults, each one at a time; 2 unless said otherwise, and at least one.
    pub fn pagers(mut self, pagers: u32) -> Self {
        self.pagers = pagers.max(1);
        self
    }

    /// How many mappings the view may have, which is how many runs of neighbouring frames it shows; half of `vm.max_map_count`
    /// unless said otherwise. Where there are more, it forgets pages. A VM has one at least for each memslot, and a page in use.
    pub fn mappings(mut self, mappings: usize) -> Self {
        self.mappings = Some(mappings);
        self
    }

    /// Whether KVM logs stores, too, in memslots that log; it does not unless said otherwise, since userfaultfd tells slat of every
    /// store. [`KvmVm::harvest`] merges what it has.
    pub fn kvm_log(mut self, on: bool) -> Self {
        self.kvm_log = on;
        self
    }

    /// Negative control.
    #[doc(hidden)]
    pub fn sabotage(mut self, what: Sabotage) -> Self {
        self.sabotage = Some(what);
        self
    }

    /// Puts slat below `kvm`, a VM without memslots.
    ///
    /// # Errors
    /// [`KvmError::NoFile`], [`KvmError::NoMemory`], or [`KvmError::Os`] where the kernel offers no such userfaultfd.
    pub fn build(self, kvm: VmFd) -> Result<KvmVm, KvmError> {
        let budget = self.mappings.unwrap_or_else(|| max_map_count() / 2);
        let view = Arc::new(View::new(self.space.arena(), budget, self.sabotage)?);
        let flushed = view.clone();
        let host = HostView::new(&self.space).with_broadcast(move |gfns| {
            flushed.flush(gfns);
            true
        });
        let vm = Arc::new(Vm::<Tables, _>::builder(host).vcpus(self.pagers).build()?);
        self.space.register(&vm);
        let trouble = Arc::new(Mutex::new(None));
        let pagers = Some(Pagers::start(&vm, &view, self.pagers, &trouble)?);
        let Self { space, kvm_log, .. } = self;
        Ok(KvmVm { pagers, view, vm, space, kvm, kvm_log, changes: Mutex::default(), trouble })
    }
}

fn max_map_count() -> usize {
    const USUAL: usize = 65_530;
    let said = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    said.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
}

impl KvmVm {
    /// Starts building one whose guest memory is of `space`.
    pub fn builder(space: &Arc<AddressSpace>) -> Builder {
        Builder { space: space.clone(), pagers: 2, mappings: None, kvm_log: false, sabotage: None }
    }

    /// KVM's VM, for vCPUs and all else but memory.
    pub fn fd(&self) -> &VmFd {
        &self.kvm
    }

    /// Where guest memory is.
    pub fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }

    /// slat's memslots, for looking at them and for their dirty logs. They are changed by [`set`](Self::set), which tells KVM.
    pub fn slots(&self) -> Memslots<'_, Tables, HostView> {
        self.vm.slots()
    }

    /// What slat maps at `gfn` at this moment. KVM has it, or can have it without slat.
    pub fn translate(&self, idle: &mut Idle, gfn: Gfn) -> Option<Mapping> {
        self.vm.translate(idle, gfn)
    }

    /// What slat has done, and holds.
    pub fn stats(&self) -> Stats {
        self.vm.stats()
    }

    /// What the view has done, and holds.
    pub fn view_stats(&self) -> ViewStats {
        let counters = &self.view.counters;
        ViewStats {
            faults: counters.faults.load(Relaxed),
            errors: counters.errors.load(Relaxed),
            filled: counters.filled.load(Relaxed),
            mapped: counters.mapped.load(Relaxed),
            flushes: counters.flushes.load(Relaxed),
            evicted: counters.evicted.load(Relaxed),
            mappings: self.view.mappings() as u64,
        }
    }

    /// The last error of a pager thread since this was asked. The vCPU that waited for a page which cannot be had (memory has run
    /// out, or swap cannot be read) gets `EFAULT` from `KVM_RUN`. Ask then. Run again, the vCPU asks for the page again, after some
    /// milliseconds.
    pub fn take_error(&self) -> Option<KvmError> {
        self.trouble.lock().take()
    }

    /// Whether `KVM_RUN` failed for a reason that goes away: a signal (`EINTR`), `EAGAIN`, or `EFAULT`, which says that a page was
    /// just being mapped, or cannot be had ([`take_error`](Self::take_error)). Run the vCPU again.
    pub fn is_transient(error: &kvm_ioctls::Error) -> bool {
        [libc::EINTR, libc::EAGAIN, libc::EFAULT].contains(&error.errno())
    }

    /// The pages of a memslot that were written since the last harvest, by the guest or by [`write`](Self::write): see
    /// [`Memslots::harvest`]. Where KVM [logs](Builder::kvm_log), too, what it has is among them.
    pub fn harvest(&self, idle: &mut Idle, id: SlotId) -> Result<Harvest<'_, Tables, HostView>, KvmError> {
        if self.kvm_log {
            // KVM's first: what is written in between slat has.
            let len = self.slots().get(idle, id).map_or(0, |slot| slot.gpas().len());
            let bits = self.kvm.get_dirty_log(id.0, len as usize);
            self.slots().mark_dirty_bits(id, 0, &bits.map_err(|error| KvmError::Kvm { id, error })?)?;
        }
        Ok(self.slots().harvest(idle, id)?)
    }

    /// The view does not forget pages of this memslot to keep its [budget](Builder::mappings), until the memslot is deleted: for page
    /// tables, where KVM walks them in software. A memslot that there is not is passed over.
    pub fn keep_mapped(&self, id: SlotId) {
        self.view.keep(id);
    }

    /// Reads guest memory, as a device does. May sleep. Bytes that are read beside a store of the guest are the old ones or the
    /// new ones.
    pub fn read(&self, idle: &mut Idle, gpa: Gpa, buffer: &mut [u8]) -> Result<(), KvmError> {
        let mut done = 0;
        while done < buffer.len() {
            let (hva, len) = self.part(idle, Gpa(gpa.0 + done as u64), buffer.len() - done)?;
            self.space.read(idle, hva.start, &mut buffer[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// Writes guest memory, as a device does, and marks it in the dirty log. May sleep. A read-only memslot is written, too: it is
    /// so for the guest alone.
    pub fn write(&self, idle: &mut Idle, gpa: Gpa, bytes: &[u8]) -> Result<(), KvmError> {
        let mut done = 0;
        while done < bytes.len() {
            let (hvas, len) = self.part(idle, Gpa(gpa.0 + done as u64), bytes.len() - done)?;
            self.space.write(idle, hvas.start, &bytes[done..done + len])?;
            self.vm.mark_dirty(hvas);
            done += len;
        }
        Ok(())
    }

    /// The host addresses of at most `len` bytes at `gpa`, all of one memslot.
    fn part(&self, idle: &mut Idle, gpa: Gpa, len: usize) -> Result<(Span<slat::Hva>, usize), KvmError> {
        let slot = self.slots().find(idle, gpa.gfn()).ok_or(KvmError::NoSlot(gpa))?;
        let len = (len as u64).min(slot.gpas().end.0 - gpa.0);
        let hva = slot.hva_of(gpa.gfn()) + gpa.0 % PAGE_SIZE;
        Ok((Span::sized(hva, len), len as usize))
    }
}

impl Drop for KvmVm {
    fn drop(&mut self) {
        // A memslot goes while faults are served: KVM waits for vCPUs that sleep in one.
        self.forget_slots();
        self.pagers.take();
    }
}
