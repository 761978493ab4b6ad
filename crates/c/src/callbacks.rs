//! Functions of the embedder and their arguments: the host, a vCPU's TLB, listeners of stores, events.

use crate::{slat_access_raw, slat_page, slat_status_raw, slat_thread};
use core::ffi::{c_char, c_void};

/// Functions of the host, each with `user` as its first argument. Any thread that calls slat may call them, several at
/// once. They return normally: a longjmp or a C++ exception out of one is undefined behaviour.
///
/// The contract: before the host takes a page away from an address, moves it, or withdraws write permission, it begins
/// an invalidation of the range and applies it. Then it changes its own tables, and then it ends the invalidation. The
/// answers of `resolve` and `lookup` must match those tables at that moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_host {
    /// `sizeof(struct slat_host)`: tells versions of this structure apart.
    pub size: usize,
    /// First argument of each function.
    pub user: *mut c_void,
    /// Makes the page at `hva` present for this access and describes it in `page`, which is zeroed before. A page for
    /// `SLAT_WRITE` is writable. May sleep. May call slat with `thread`, which is valid until this returns, but may not
    /// enter a guest with it. Returns `SLAT_OK`, or `SLAT_EFAULT`, `SLAT_ENOMEM`, `SLAT_EPOISONED`, `SLAT_EIO`; any
    /// other number counts as `SLAT_EFAULT`.
    ///
    /// Two answers avoid waiting for the page. `SLAT_EINPROGRESS`: the page is on its way, and the fault returns
    /// `SLAT_PENDING`; the thread that brings the page calls `slat_ready`. After this answer slat asks for the page
    /// **once more**, so that it does not miss a page that came in between. `SLAT_ENODATA`: the caller of the fault
    /// must provide the page, and the fault returns `SLAT_NEEDS_PAGE`.
    pub resolve: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            thread: *const slat_thread,
            hva: u64,
            access: slat_access_raw,
            page: *mut slat_page,
        ) -> slat_status_raw,
    >,
    /// May be null. Does the same without sleeping. After any answer but `SLAT_OK` the fault calls `resolve`. Takes no
    /// lock that is held while slat is called, allocates nothing, and does not call slat.
    pub lookup: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            hva: u64,
            access: slat_access_raw,
            page: *mut slat_page,
        ) -> slat_status_raw,
    >,
    /// May be null: then a page's token is its address. Returns the token of the page at `hva`, for which `resolve` has
    /// just answered `SLAT_EINPROGRESS`. A token may stand for a page or for a request. Does not call slat.
    pub token: Option<unsafe extern "C" fn(user: *mut c_void, hva: u64) -> u64>,
    /// May be null if vCPUs poll `slat_vcpu_kicked`. Makes the vCPU leave the guest soon, or call `slat_vcpu_answer`,
    /// by an IPI or a signal. slat calls it for flushes, and for a ready token, then also for a vCPU out of the guest.
    /// Does not call slat.
    pub kick: Option<unsafe extern "C" fn(user: *mut c_void, vcpu: u32)>,
    /// May be null. Makes every processor forget these frames, at any page size and under any tag of the VM's vCPUs, by
    /// a broadcast of the hardware (TLBI in the inner-shareable domain, INVLPGB and TLBSYNC, remote fences). Returns
    /// whether the broadcast is complete. If it returns false, slat kicks vCPUs. Does not call slat.
    pub broadcast_flush: Option<unsafe extern "C" fn(user: *mut c_void, first_gfn: u64, frames: u64) -> bool>,
    /// May be null. Receives an event of the VM, on the thread that caused it. `event` is valid until this returns.
    /// Does not wait, takes no lock that is held while slat is called, and does not call slat.
    pub observe: Option<unsafe extern "C" fn(user: *mut c_void, event: *const slat_event)>,
    /// May be null together with `free_tables`: then tables come from the global allocator. Returns memory of `bytes`
    /// bytes, aligned to `bytes`, that nothing else uses until it is freed; or null. May sleep.
    pub alloc_tables: Option<unsafe extern "C" fn(user: *mut c_void, bytes: usize) -> *mut c_void>,
    /// Frees memory of `alloc_tables`. May sleep.
    pub free_tables: Option<unsafe extern "C" fn(user: *mut c_void, tables: *mut c_void, bytes: usize)>,
    /// slat accesses table memory at physical address p through p + `table_offset`, modulo 2^64: a kernel's direct map,
    /// a multiple of 4096. Zero if they are the same, as for a software walker. slat refuses memory whose physical
    /// address the format cannot express.
    pub table_offset: u64,
}

/// Functions that make a processor forget translations: a TLB in software, or INVEPT, INVLPGA, TLBI, HFENCE on the
/// processor of the calling thread. They do not call slat, and return normally.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_tlb {
    /// First argument of each function.
    pub user: *mut c_void,
    /// Forgets all translations of this vCPU, including paging-structure caches.
    pub flush_all: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// May be null, which means `flush_all`. Forgets at least every translation of these frames, at every page size,
    /// and every cached link above them.
    pub flush: Option<unsafe extern "C" fn(user: *mut c_void, first_gfn: u64, frames: u64)>,
}

/// A store to tracked frames, for its listeners.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_store {
    /// Guest address.
    pub gpa: u64,
    /// The stored bytes; the store lies in one page.
    pub bytes: *const c_void,
    /// Number of bytes.
    pub count: usize,
    /// The address space.
    pub space: u32,
}

/// Functions for stores to tracked frames, each with `user` as its first argument. The storing thread calls them,
/// several threads at once. They may sleep. They may call slat with `thread`, which is valid until they return, but may
/// not enter a guest with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_listener {
    /// First argument of each function.
    pub user: *mut c_void,
    /// May be null. Called before the store, when memory still has the old bytes.
    pub before:
        Option<unsafe extern "C" fn(user: *mut c_void, thread: *const slat_thread, store: *const slat_store)>,
    /// May be null. Called after the store, and after its mark in the dirty log.
    pub after:
        Option<unsafe extern "C" fn(user: *mut c_void, thread: *const slat_thread, store: *const slat_store)>,
    /// May be null. Called once, when no more calls follow: `user` may be freed. The thread that ends the last use
    /// calls it, maybe some time after `slat_untrack_writes`. Does not call slat.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// Kind of an event of a VM.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_event_kind {
    /// A fault, or one page of a prefault, has mapped a page of `level`.
    SLAT_EVENT_MAPPED = 0,
    /// A fault has restored a permission.
    SLAT_EVENT_FIXED = 1,
    /// A fault found nothing wrong any more.
    SLAT_EVENT_SPURIOUS = 2,
    /// A fault is an access to a device.
    SLAT_EVENT_MMIO = 3,
    /// A fault has done nothing: a dirty ring is full, a page is pending, or the VMM must provide, convert or emulate.
    SLAT_EVENT_DEFERRED = 4,
    /// A fault has ended with an error.
    SLAT_EVENT_FAILED = 5,
    /// An attempt at a fault is repeated.
    SLAT_EVENT_RETRY = 6,
    /// `count` leaves of `level` were taken out of the tables; their flush is owed.
    SLAT_EVENT_ZAP = 7,
    /// A leaf of `level` became a table of smaller ones.
    SLAT_EVENT_SPLIT = 8,
    /// A table became one leaf of `level`.
    SLAT_EVENT_RECOVERED = 9,
    /// A flush was made, for `count` edits.
    SLAT_EVENT_FLUSH = 10,
    /// A grace period has ended.
    SLAT_EVENT_GRACE_PERIOD = 11,
    /// Dead tables were taken apart: `count` leaves of `level` are counted off.
    SLAT_EVENT_TABLES_FREED = 12,
    /// `count` cold tables were reclaimed, because the budget is used up.
    SLAT_EVENT_RECLAIMED = 13,
}

/// An event of a VM. Fields that its kind does not mention are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_event {
    /// A `slat_event_kind`. Later versions may know more.
    pub kind: u32,
    /// The vCPU of faults and retries.
    pub vcpu: u32,
    /// The first frame.
    pub gfn: u64,
    /// Number of frames: one for a fault.
    pub frames: u64,
    /// Meaning depends on the kind.
    pub count: u64,
    /// 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    pub level: u32,
    /// For faults, a `slat_access`.
    pub access: u32,
    /// The cause of retries, zaps and flushes: a static string of `cause_bytes` bytes without a terminating zero.
    /// Otherwise null.
    pub cause: *const c_char,
    /// Length of `cause` in bytes.
    pub cause_bytes: usize,
}
