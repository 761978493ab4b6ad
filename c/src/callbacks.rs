//! Functions of the embedder, and what they are told: the host, a vCPU's TLB, listeners of stores, events.

use crate::{slat_access_raw, slat_page, slat_status_raw, slat_thread};
use core::ffi::{c_char, c_void};

/// What slat asks of the host: functions, each with `user` as its first argument. Any thread that calls slat may be in any of
/// them, several at once. They return: a longjmp or a C++ exception out of one is undefined behaviour.
///
/// The contract: before the host takes a page away from an address, moves it, or withdraws write permission, it begins an
/// invalidation of the range, applies it, changes its own tables, and then ends it. What `resolve` and `lookup` say must be
/// what those tables say at that moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_host {
    /// `sizeof(struct slat_host)`: tells versions of this structure apart.
    pub size: usize,
    /// Given to each function.
    pub user: *mut c_void,
    /// Makes the page at `hva` present for this access and describes it in `page`, which comes zeroed. A page for `SLAT_WRITE`
    /// is writable. May sleep, and may call slat with `thread`, which is good until this returns, but for entering a guest.
    /// Answers `SLAT_OK`, or `SLAT_EFAULT`, `SLAT_ENOMEM`, `SLAT_EPOISONED`, `SLAT_EIO`; any other number counts as
    /// `SLAT_EFAULT`.
    ///
    /// It need not make the thread wait for the page. `SLAT_EINPROGRESS`: the page is on its way, and the fault returns
    /// `SLAT_PENDING`; the thread that brings the page calls `slat_ready`. After this answer slat asks for the page **once
    /// more**, so that a page which came in between is not missed. `SLAT_ENODATA`: the caller of the fault has to provide the
    /// page, and the fault returns `SLAT_NEEDS_PAGE`.
    pub resolve: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            thread: *const slat_thread,
            hva: u64,
            access: slat_access_raw,
            page: *mut slat_page,
        ) -> slat_status_raw,
    >,
    /// May be null. The same where it can be said without sleeping; anything but `SLAT_OK` sends the fault to `resolve`. Takes
    /// no lock that is held while slat is called, allocates nothing, and does not call slat.
    pub lookup: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            hva: u64,
            access: slat_access_raw,
            page: *mut slat_page,
        ) -> slat_status_raw,
    >,
    /// May be null: then a page's token is its address. What the page at `hva` is called, of which `resolve` has just said that
    /// it is on its way: for each page, or for each request, as long as it is. Does not call slat.
    pub token: Option<unsafe extern "C" fn(user: *mut c_void, hva: u64) -> u64>,
    /// May be null, where vCPUs poll `slat_vcpu_kicked`. Makes the vCPU leave the guest soon, or call `slat_vcpu_answer`: an
    /// IPI, a signal. Called for flushes, and for a token that is ready: then also where the vCPU is out of the guest. Does not
    /// call slat.
    pub kick: Option<unsafe extern "C" fn(user: *mut c_void, vcpu: u32)>,
    /// May be null. Makes every processor forget these frames, at any page size and under any tag that the VM's vCPUs have, by a
    /// broadcast of the hardware (TLBI in the inner-shareable domain, INVLPGB and TLBSYNC, remote fences), and says whether
    /// that is done. Where it answers false, vCPUs are kicked. Does not call slat.
    pub broadcast_flush: Option<unsafe extern "C" fn(user: *mut c_void, first_gfn: u64, frames: u64) -> bool>,
    /// May be null. Is told what the VM has just done, by the thread that did it: `event` is good until this returns. Waits for
    /// nothing, takes no lock that is held while slat is called, and does not call slat.
    pub observe: Option<unsafe extern "C" fn(user: *mut c_void, event: *const slat_event)>,
    /// May be null together with `free_tables`: then tables come from the global allocator. Memory of `bytes`, aligned to as
    /// much, that nothing else uses until it is freed; or null. May sleep.
    pub alloc_tables: Option<unsafe extern "C" fn(user: *mut c_void, bytes: usize) -> *mut c_void>,
    /// Takes such memory back. May sleep.
    pub free_tables: Option<unsafe extern "C" fn(user: *mut c_void, tables: *mut c_void, bytes: usize)>,
    /// Table memory at physical address p is seen at p + `table_offset`, modulo 2^64: a kernel's direct map, a multiple of
    /// 4096. Zero where they are the same, as for a software walker. Memory whose physical address the format cannot name is
    /// refused.
    pub table_offset: u64,
}

/// What a processor caches, told what to forget: a TLB in software, or INVEPT, INVLPGA, TLBI, HFENCE on the processor that
/// the calling thread is on. The functions do not call slat, and return.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_tlb {
    /// Given to each function.
    pub user: *mut c_void,
    /// Forget everything of this vCPU, paging-structure caches included.
    pub flush_all: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// May be null, which means `flush_all`. Forget at least every translation of these frames, at every page size, and every
    /// cached link above them.
    pub flush: Option<unsafe extern "C" fn(user: *mut c_void, first_gfn: u64, frames: u64)>,
}

/// A store to tracked frames, as its listeners are told of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_store {
    /// Where.
    pub gpa: u64,
    /// What is stored; it lies in one page.
    pub bytes: *const c_void,
    /// How many bytes.
    pub count: usize,
    /// The address space.
    pub space: u32,
}

/// What is told of the stores to tracked frames, by the thread that makes the store: functions, each with `user` as its first
/// argument, several at once. They may sleep, and may call slat with `thread`, which is good until they return, but for entering a
/// guest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_listener {
    /// Given to each function.
    pub user: *mut c_void,
    /// May be null. The store is about to be made: what is there still stands.
    pub before:
        Option<unsafe extern "C" fn(user: *mut c_void, thread: *const slat_thread, store: *const slat_store)>,
    /// May be null. The store has been made, and marked dirty where the memslot logs.
    pub after:
        Option<unsafe extern "C" fn(user: *mut c_void, thread: *const slat_thread, store: *const slat_store)>,
    /// May be null. The listener is told of nothing more: `user` may be freed. Called once, by the thread that ends the last use,
    /// maybe some time after `slat_untrack_writes`. Does not call slat.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// What has happened in a VM.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_event_kind {
    /// A fault, or one page of a prefault, has mapped a page of `level`.
    SLAT_EVENT_MAPPED = 0,
    /// A fault has given a permission back.
    SLAT_EVENT_FIXED = 1,
    /// A fault found nothing wrong any more.
    SLAT_EVENT_SPURIOUS = 2,
    /// A fault is a device's.
    SLAT_EVENT_MMIO = 3,
    /// A fault has done nothing: a dirty ring is full, a page is pending, or the VMM has to provide, convert or emulate.
    SLAT_EVENT_DEFERRED = 4,
    /// A fault has ended with an error.
    SLAT_EVENT_FAILED = 5,
    /// An attempt at a fault is made again.
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
    /// `count` cold tables were taken back, since the budget is used up.
    SLAT_EVENT_RECLAIMED = 13,
}

/// Something that has happened in a VM. Fields that its kind does not mention are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_event {
    /// A `slat_event_kind`. Later versions may know more.
    pub kind: u32,
    /// Of faults and retries: whose.
    pub vcpu: u32,
    /// The first frame.
    pub gfn: u64,
    /// How many frames: one for a fault.
    pub frames: u64,
    /// What the kind says.
    pub count: u64,
    /// 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    pub level: u32,
    /// Of faults: a `slat_access`.
    pub access: u32,
    /// Of retries, zaps and flushes: why, in a word of `cause_bytes` bytes that lives for ever, with no zero behind it. Else null.
    pub cause: *const c_char,
    /// See `cause`.
    pub cause_bytes: usize,
}
