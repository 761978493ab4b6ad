//! Real KVM on [`slat`]: the memory of an unmodified guest is migrated, swapped, merged, aged and dirty-logged
//! from user space.
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
//! // A VM of KVM and a VM of slat with the same memslots.
//! let vm = KvmVm::builder(&space).build(Kvm::new()?.create_vm()?)?;
//! vm.set(&mut idle, Region { slot: SlotId(0), flags: Region::LOG_DIRTY, gpa: Gpa(0), bytes: 256 << 20, hva: ram.start })?;
//! vm.write(&mut idle, Gpa(0x1000), &[0xf4])?;
//!
//! // Run the guest after its memory was swapped out: it comes back page by page.
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
//! `examples/one_guest.rs` is a complete VMM with a guest.
//!
//! # How it works
//! **KVM as a whole is the TLB of slat's vCPUs.** KVM's memslots point to a *view*: a second mapping of
//! slat-mm's frames, whose pages are filled when they are touched.
//! ```text
//! guest ── KVM's tables ── the view ── userfaultfd ─▶ pager thread: a slat vCPU faults; slot → slat-mm → leaf;
//!              ▲               ▲                        the view maps the page as the leaf says
//!              │ MMU notifiers │ madvise(DONTNEED)
//!              └───────────────┴──────────────────────── a slat flush: before a page is migrated, merged, swapped, logged, aged
//! ```
//! * A vCPU that touches a page which the view does not map sleeps in the kernel. So does a vCPU that stores to
//!   a read-only page, which is how the dirty log sees stores. Neither needs a change of the guest, or an exit
//!   to the VMM.
//! * A flush is [broadcast](slat::Host::broadcast_flush): the thread that owes it empties the view, and the
//!   kernel's MMU notifiers make KVM flush. No vCPU is kicked.
//! * slat's tables have no Accessed bits ([`Tables`]): aging removes a page from the view, and its next use is
//!   a fault.
//!
//! # Requirements and limits
//! * **The arena's file** must be a memfd ([`Arena::memfd`](slat_mm::Arena::memfd)), and userfaultfd must be
//!   allowed for kernel faults: as root, with `CAP_SYS_PTRACE`, with `vm.unprivileged_userfaultfd` 1, or by
//!   `/dev/userfaultfd`. Linux 6.4 or later.
//! * **Each run of neighbouring frames needs a mapping**, and a process has at most `vm.max_map_count`
//!   (65,530). The view keeps to a [budget](Builder::mappings), and drops pages above it. Huge pages
//!   ([`thp`](slat_mm::AddressSpaceBuilder::thp)) need few mappings.
//! * **`KVM_RUN` may fail with `EFAULT`** while a page is being mapped: run the vCPU again
//!   ([`KvmVm::is_transient`]). If KVM walks the guest's page tables in software (no EPT or NPT), it reports
//!   this failure to the guest. In that case put page tables and descriptor tables in a memslot whose memory is
//!   [pinned](slat_mm::AddressSpace::pin), without a log, and [kept](KvmVm::keep_mapped).
//! * **An instruction that KVM emulates** may find such a page missing, and cause an MMIO exit for an address
//!   in a memslot. Answer it with [`KvmVm::read`] and [`KvmVm::write`].
//! * Change KVM's memslots only with [`KvmVm::set`]. Devices write with [`KvmVm::write`], which marks the dirty
//!   log.
//!
//! | module | contents |
//! |---|---|
//! | `slots` | memslots of both VMs, changed together |
//! | `window` | the addresses of one memslot, and its mappings |
//! | `view` | mapping and dropping pages, under one lock; the budget |
//! | `pager` | threads that fault as slat vCPUs |
//! | `uffd` | userfaultfd |
//! | `error` | [`KvmError`] |
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
pub use view::Tables;

use kvm_ioctls::VmFd;
use pager::Pagers;
use parking_lot::Mutex;
use slat::GuestSpace;
use slat::walk::Mapping;
use slat::{Gfn, Gpa, Harvest, Idle, PAGE_SIZE, SlotId, Span, Stats, Vm};
use slat_mm::{AddressSpace, HostView};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use view::View;

/// A KVM VM whose memory slat manages. See the crate's page.
///
/// Dropping it deletes KVM's memslots: vCPUs that still run find no memory, so stop them first.
#[derive(Debug)]
pub struct KvmVm {
    /// Dropped first: its threads use the other fields.
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
}

/// Counts of a [`KvmVm`]'s events and pages. Exact if nothing runs meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ViewStats {
    /// Faults reported by userfaultfd.
    pub faults: u64,
    /// Faults that could not be served: see [`KvmVm::take_error`].
    pub errors: u64,
    /// Pages that the view has mapped.
    pub filled: u64,
    /// Calls that mapped new frames for that; otherwise the frames were mapped already.
    pub mapped: u64,
    /// Flushes that slat requested.
    pub flushes: u64,
    /// Pieces of 2 MiB whose mappings were removed to keep the [budget](Builder::mappings).
    pub evicted: u64,
    /// Current mappings of the view.
    pub mappings: u64,
}

impl Builder {
    /// Sets the number of pager threads, at least 1; 2 by default. Each serves one fault at a time.
    pub fn pagers(mut self, pagers: u32) -> Self {
        self.pagers = pagers.max(1);
        self
    }

    /// Sets the most mappings of the view, one for each run of neighbouring frames; half of `vm.max_map_count`
    /// by default. Above it, the view drops pages. A VM has at least one mapping for each memslot, and the page
    /// in use.
    pub fn mappings(mut self, mappings: usize) -> Self {
        self.mappings = Some(mappings);
        self
    }

    /// Whether KVM also logs stores in logging memslots; off by default, since userfaultfd reports every store
    /// to slat. [`KvmVm::harvest`] merges KVM's log.
    pub fn kvm_log(mut self, on: bool) -> Self {
        self.kvm_log = on;
        self
    }

    /// Puts slat below `kvm`, a VM without memslots.
    ///
    /// # Errors
    /// [`KvmError::NoFile`], [`KvmError::NoMemory`], or [`KvmError::Os`] if the kernel lacks the userfaultfd
    /// features.
    pub fn build(self, kvm: VmFd) -> Result<KvmVm, KvmError> {
        let budget = self.mappings.unwrap_or_else(|| max_map_count() / 2);
        let view = Arc::new(View::new(self.space.arena(), budget)?);
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
    /// Starts building a VM whose guest memory is in `space`.
    pub fn builder(space: &Arc<AddressSpace>) -> Builder {
        Builder { space: space.clone(), pagers: 2, mappings: None, kvm_log: false }
    }

    /// Returns KVM's VM, for vCPUs and everything but memory.
    pub fn fd(&self) -> &VmFd {
        &self.kvm
    }

    /// Returns the address space with the guest memory.
    pub fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }

    /// Returns slat's memslots, for look-ups and dirty logs. Change them with [`set`](Self::set), which also
    /// changes KVM's.
    pub fn memory(&self) -> GuestSpace<'_, Tables, HostView> {
        self.vm.memory()
    }

    /// Returns what slat maps at `gfn` now. KVM maps it too, or can without asking slat.
    pub fn translate(&self, idle: &mut Idle, gfn: Gfn) -> Option<Mapping> {
        self.vm.memory().translate(idle, gfn)
    }

    /// Returns slat's counters.
    pub fn stats(&self) -> Stats {
        self.vm.stats()
    }

    /// Returns the view's counters.
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

    /// Returns the last error of a pager thread, and clears it. A vCPU that needs a page which cannot be
    /// brought in (memory is full, or swap cannot be read) gets `EFAULT` from `KVM_RUN`; then call this. If the
    /// vCPU runs again, it asks for the page again, after some milliseconds.
    pub fn take_error(&self) -> Option<KvmError> {
        self.trouble.lock().take()
    }

    /// Whether `KVM_RUN` failed for a transient reason: a signal (`EINTR`), `EAGAIN`, or `EFAULT` since a page
    /// was just being mapped, or cannot be brought in ([`take_error`](Self::take_error)). Run the vCPU again.
    pub fn is_transient(error: &kvm_ioctls::Error) -> bool {
        [libc::EINTR, libc::EAGAIN, libc::EFAULT].contains(&error.errno())
    }

    /// Harvests the pages of a memslot that the guest or [`write`](Self::write) has written since the last
    /// harvest: see [`GuestSpace::harvest`]. Includes KVM's log if KVM [logs](Builder::kvm_log) too.
    pub fn harvest(&self, idle: &mut Idle, id: SlotId) -> Result<Harvest<'_, Tables, HostView>, KvmError> {
        if self.kvm_log {
            // KVM's log first: slat's log has stores in between.
            let len = self.memory().get(idle, id).map_or(0, |slot| slot.gpas().len());
            let bits = self.kvm.get_dirty_log(id.0, len as usize);
            self.memory().mark_dirty_bits(id, 0, &bits.map_err(|error| KvmError::Kvm { id, error })?)?;
        }
        Ok(self.memory().harvest(idle, id)?)
    }

    /// Exempts this memslot's pages from the [budget](Builder::mappings), until the memslot is deleted: for
    /// page tables, if KVM walks them in software. Does nothing if the memslot does not exist.
    pub fn keep_mapped(&self, id: SlotId) {
        self.view.keep(id);
    }

    /// Reads guest memory, like a device. May sleep. A byte that the guest stores meanwhile is the old or the
    /// new one.
    pub fn read(&self, idle: &mut Idle, gpa: Gpa, buffer: &mut [u8]) -> Result<(), KvmError> {
        let mut done = 0;
        while done < buffer.len() {
            let (hva, len) = self.part(idle, Gpa(gpa.0 + done as u64), buffer.len() - done)?;
            self.space.read(idle, hva.start, &mut buffer[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// Writes guest memory, like a device, and marks it in the dirty log. May sleep. Also writes read-only
    /// memslots: they are read-only for the guest.
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

    /// Returns the host addresses of at most `len` bytes at `gpa`, all in one memslot.
    fn part(&self, idle: &mut Idle, gpa: Gpa, len: usize) -> Result<(Span<slat::Hva>, usize), KvmError> {
        let slot = self.memory().find(idle, gpa.gfn()).ok_or(KvmError::NoSlot(gpa))?;
        let len = (len as u64).min(slot.gpas().end.0 - gpa.0);
        let hva = slot.hva_of(gpa.gfn()) + gpa.0 % PAGE_SIZE;
        Ok((Span::sized(hva, len), len as usize))
    }
}

impl Drop for KvmVm {
    fn drop(&mut self) {
        // The pagers serve faults while memslots are deleted: KVM waits for vCPUs that sleep in one.
        self.forget_slots();
        self.pagers.take();
    }
}
