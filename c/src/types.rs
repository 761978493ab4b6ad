//! What C and Rust hand to each other. Addresses are in bytes, sizes in bytes and multiples of 4096, unless their names say
//! frames or pages.

use crate::{slat_status_raw, slat_thread};
use core::ffi::c_void;
use slat::{Access, PAGE_SIZE, Slot, SlotId, Span, Stats};
use slat::{Gpa, Hva};

/// A page-table format.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_format {
    /// Intel's EPT, 4 levels.
    SLAT_EPT4 = 0,
    /// Intel's EPT, 5 levels.
    SLAT_EPT5 = 1,
    /// EPT of a processor that sets no Accessed and Dirty bits.
    SLAT_EPT4_NO_AD = 2,
    /// AMD's nested tables, 4 levels.
    SLAT_NPT4 = 3,
    /// AMD's nested tables, 5 levels.
    SLAT_NPT5 = 4,
    /// PAE: AMD's nested tables of a 32-bit host.
    SLAT_PAE = 5,
    /// Arm's stage 2, 39 bits of guest address.
    SLAT_ARM64_39 = 6,
    /// Arm's stage 2, 40 bits.
    SLAT_ARM64_40 = 7,
    /// Arm's stage 2, 48 bits.
    SLAT_ARM64_48 = 8,
    /// Arm's stage 2, 48 bits, of a processor that sets no Access flag and dirty state.
    SLAT_ARM64_48_NO_AD = 9,
    /// RISC-V's G-stage, 3 levels.
    SLAT_SV39X4 = 10,
    /// RISC-V's G-stage, 4 levels.
    SLAT_SV48X4 = 11,
    /// RISC-V's G-stage, 5 levels.
    SLAT_SV57X4 = 12,
    /// RISC-V's G-stage, 3 levels, of a processor without Svadu.
    SLAT_SV39X4_NO_AD = 13,
}

/// What an access wants.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_access {
    /// A data load.
    SLAT_READ = 0,
    /// A data store.
    SLAT_WRITE = 1,
    /// An instruction fetch.
    SLAT_FETCH = 2,
}

/// How a fault was dealt with: the guest may try again, except after `SLAT_MMIO`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_done {
    /// A page was mapped.
    SLAT_MAPPED = 0,
    /// The permission was given back, in place.
    SLAT_FIXED = 1,
    /// Another vCPU had dealt with it already.
    SLAT_SPURIOUS = 2,
    /// No memslot is there, or the guest wrote to a read-only one: emulate the access.
    SLAT_MMIO = 3,
}

/// Why the host changes a range. The reason decides how little is done: slat's ARCHITECTURE.md has the table.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_why {
    /// The mapping goes away: munmap.
    SLAT_UNMAP = 0,
    /// The mapping moves to another address: mremap, for the old range.
    SLAT_REMAP = 1,
    /// The address space itself goes away.
    SLAT_EXIT = 2,
    /// The pages go away, the mapping stays.
    SLAT_CLEAR = 3,
    /// A page moves to another frame with its contents.
    SLAT_MIGRATE = 4,
    /// Some pages go to swap; page by page.
    SLAT_RECLAIM = 5,
    /// A mapping loses write permission.
    SLAT_PROTECT = 6,
    /// Pages lose write permission: fork, write-back.
    SLAT_WRITE_PROTECT = 7,
    /// The same, to learn which pages are written from now on.
    SLAT_SOFT_DIRTY = 8,
    /// Some pages become inaccessible, to learn who uses them; page by page.
    SLAT_NUMA = 9,
    /// Some pages are replaced by others with the same contents; page by page.
    SLAT_CHANGE_PTE = 10,
}

/// What to do with the Accessed bits of a range.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_young_how {
    /// Only look; the first one found ends it.
    SLAT_TEST_YOUNG = 0,
    /// Clear them. A TLB may keep a copy that says accessed: the next access is then not noticed.
    SLAT_CLEAR_YOUNG = 1,
    /// Clear them, and make every TLB forget: waits for vCPUs in the guest.
    SLAT_CLEAR_YOUNG_AND_FLUSH = 2,
}

/// What a memslot operation does.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_slot_op_kind {
    /// Adds the slot.
    SLAT_SLOT_CREATE = 0,
    /// Removes the slot of this id; the other fields are not looked at.
    SLAT_SLOT_DELETE = 1,
    /// Moves the slot of this id to `gpa`; the other fields are not looked at.
    SLAT_SLOT_MOVE = 2,
    /// Gives the slot of this id `flags`. `SLAT_SLOT_READONLY` must be as it was created.
    SLAT_SLOT_FLAGS = 3,
}

/// A `slat_format` that C hands over, and so on: any number.
pub type slat_format_raw = u32;
/// See [`slat_format_raw`].
pub type slat_access_raw = u32;
/// See [`slat_format_raw`].
pub type slat_why_raw = u32;
/// See [`slat_format_raw`].
pub type slat_young_how_raw = u32;
/// See [`slat_format_raw`].
pub type slat_slot_op_kind_raw = u32;

/// Flag of a memslot: writes are logged.
pub const SLAT_SLOT_LOG_DIRTY: u32 = 1;
/// Flag of a memslot: guest writes are refused, and come out as `SLAT_MMIO`.
pub const SLAT_SLOT_READONLY: u32 = 2;
/// Flag of a page: loads are allowed.
pub const SLAT_PAGE_READ: u32 = 1;
/// Flag of a page: stores are allowed.
pub const SLAT_PAGE_WRITE: u32 = 2;
/// Flag of a page: fetches are allowed.
pub const SLAT_PAGE_EXECUTE: u32 = 4;
/// Flag of a mapping: its Accessed bit.
pub const SLAT_PAGE_ACCESSED: u32 = 8;
/// Flag of a mapping: its Dirty bit.
pub const SLAT_PAGE_DIRTY: u32 = 16;
/// Flag of a VM: stores are found by Dirty bits, where the format has them, and not by write protection.
pub const SLAT_VM_DIRTY_BITS: u32 = 1;
/// Flag of a VM: a fresh dirty log says of every page that it is dirty, and costs nothing to begin.
pub const SLAT_VM_DIRTY_INITIALLY_SET: u32 = 2;
/// Flag of a VM: large pages do not execute; a fetch splits its page down to 4 KiB.
pub const SLAT_VM_NX_HUGE_PAGES: u32 = 4;

/// How a VM is made. Zero in a field means what its comment says; set `size`, and zero the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_config {
    /// `sizeof(struct slat_config)`: tells versions of this structure apart.
    pub size: usize,
    /// The page-table format.
    pub format: slat_format_raw,
    /// How many vCPUs it can have, 65,536 at most; zero means one.
    pub vcpus: u32,
    /// Bits of a guest-physical address; zero, or more than the format translates, means as many as that.
    pub address_bits: u32,
    /// The largest page to map: 1 for 4 KiB, 2 for 2 MiB, 3 or zero for 1 GiB.
    pub max_level: u32,
    /// Memslot ids are below this; zero means 32,764, as in KVM.
    pub max_slots: u32,
    /// `SLAT_VM_*`.
    pub flags: u32,
    /// Bytes of table pages that may be in use; beyond, the coldest tables are taken back. Zero means no limit.
    pub table_budget: u64,
}

/// What the host maps at an address.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct slat_page {
    /// The frame of the very 4 KiB that was asked for: physical address / 4096, as hardware sees it.
    pub pfn: u64,
    /// How large a page the host maps there, all of it alike: zero or 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    pub level: u32,
    /// `SLAT_PAGE_WRITE` where the guest may write to it now; other bits are not looked at.
    pub flags: u32,
}

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
    /// May be null, where vCPUs poll `slat_vcpu_kicked`. Makes the vCPU leave the guest soon, or call `slat_vcpu_answer`: an
    /// IPI, a signal. Does not call slat.
    pub kick: Option<unsafe extern "C" fn(user: *mut c_void, vcpu: u32)>,
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

/// One operation of a memslot transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_slot_op {
    /// What to do.
    pub kind: slat_slot_op_kind_raw,
    /// The slot.
    pub slot: slat_slot,
}

/// A memslot: guest memory, and the host address behind it.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_slot {
    /// Its name.
    pub id: u32,
    /// `SLAT_SLOT_*`.
    pub flags: u32,
    /// Where the guest sees it.
    pub gpa: u64,
    /// Its size.
    pub bytes: u64,
    /// The host address of its first byte.
    pub hva: u64,
}

/// What a VM maps at a frame.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_mapping {
    /// The first guest frame of the page.
    pub gfn: u64,
    /// The first frame of the page: frame gfn + n of the guest is frame pfn + n.
    pub pfn: u64,
    /// Its size, in frames of 4 KiB.
    pub frames: u64,
    /// `SLAT_PAGE_*`: what the hardware lets through, and its Accessed and Dirty bits.
    pub flags: u32,
}

/// Up to 64 pages of a slot, some of which are dirty.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_dirty_word {
    /// The number in the slot of the page that bit 0 stands for: a multiple of 64.
    pub first_page: u64,
    /// The guest frame that it was when it was harvested. Slots move.
    pub gfn: u64,
    /// The host address behind it.
    pub hva: u64,
    /// Bit n stands for the nth page from it on.
    pub bits: u64,
}

/// What a VM has done and holds. Sums over all threads, each read at a slightly different moment.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_stats {
    /// Faults that mapped a page.
    pub mapped_faults: u64,
    /// Faults that gave a permission back.
    pub permission_faults: u64,
    /// Faults that found nothing wrong any more.
    pub spurious_faults: u64,
    /// Faults on no memslot, or writes to a read-only one.
    pub mmio_faults: u64,
    /// Attempts at a fault that were made again.
    pub retries: u64,
    /// Leaves mapped now, of 4 KiB, 2 MiB and 1 GiB.
    pub leaves: [u64; 3],
    /// Shootdowns made.
    pub flushes: u64,
    /// Frames that lost a translation by them.
    pub flushed_frames: u64,
    /// Bytes of table pages in use.
    pub table_bytes: u64,
    /// Bytes that the host lends for tables.
    pub lent_bytes: u64,
}

impl From<Stats> for slat_stats {
    fn from(stats: Stats) -> Self {
        let Stats { mapped_faults, permission_faults, spurious_faults, mmio_faults, retries, leaves, .. } =
            stats;
        Self {
            mapped_faults,
            permission_faults,
            spurious_faults,
            mmio_faults,
            retries,
            leaves,
            flushes: stats.flushes.paid,
            flushed_frames: stats.flushes.pages,
            table_bytes: stats.table_bytes,
            lent_bytes: stats.lent_bytes,
        }
    }
}

impl From<Slot> for slat_slot {
    fn from(slot: Slot) -> Self {
        let log = if slot.log_dirty { SLAT_SLOT_LOG_DIRTY } else { 0 };
        let readonly = if slot.readonly { SLAT_SLOT_READONLY } else { 0 };
        let (gpa, bytes) = (slot.gfns.start.gpa().0, slot.gfns.len() * PAGE_SIZE);
        Self { id: slot.id.0, flags: log | readonly, gpa, bytes, hva: slot.hva.0 }
    }
}

impl slat_slot {
    /// The slot that it describes, or nothing where it is not sound by itself. Its host addresses are checked where it is
    /// created.
    pub(crate) fn read(&self) -> Option<Slot> {
        let is_known = self.flags & !(SLAT_SLOT_LOG_DIRTY | SLAT_SLOT_READONLY) == 0;
        let is_aligned = (self.gpa | self.bytes).is_multiple_of(PAGE_SIZE);
        let is_sound = is_known && is_aligned && self.gpa.checked_add(self.bytes).is_some();
        is_sound.then(|| Slot {
            log_dirty: self.flags & SLAT_SLOT_LOG_DIRTY != 0,
            readonly: self.flags & SLAT_SLOT_READONLY != 0,
            ..Slot::new(SlotId(self.id), Gpa(self.gpa).gfn(), self.bytes / PAGE_SIZE, Hva(self.hva))
        })
    }
}

/// An access that C names.
pub(crate) fn access(raw: slat_access_raw) -> Option<Access> {
    [Access::Read, Access::Write, Access::Fetch].get(raw as usize).copied()
}

/// Whole pages of host addresses, at least one.
pub(crate) fn pages(hva: u64, bytes: u64) -> Option<Span<Hva>> {
    let is_sound = (hva | bytes).is_multiple_of(PAGE_SIZE) && bytes != 0;
    hva.checked_add(bytes).filter(|_| is_sound).map(|end| Span::new(Hva(hva), Hva(end)))
}
