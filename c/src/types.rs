//! What C and Rust hand to each other. Addresses are in bytes, sizes in bytes and multiples of 4096, unless their names say
//! frames or pages.

use slat::{Access, Gfn, Gpa, Hva, MemoryType, PAGE_SIZE, Slot, SlotId, Span, Stats};

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

/// How a fault was dealt with: the guest may try again after the first three. After the others nothing was done.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_done {
    /// A page was mapped.
    SLAT_MAPPED = 0,
    /// The permission was given back, in place.
    SLAT_FIXED = 1,
    /// Another vCPU had dealt with it already.
    SLAT_SPURIOUS = 2,
    /// No memslot is there, or the guest wrote to a read-only one, or fetched from one that does not execute: emulate the
    /// access.
    SLAT_MMIO = 3,
    /// A store, while this vCPU's dirty ring is full. Again when another thread has harvested or reset it.
    SLAT_RING_FULL = 4,
    /// A store to a frame whose stores are tracked: make it by `slat_emulate_store`.
    SLAT_WRITE_TRACKED = 5,
    /// The access meant private memory and the frame is shared, or the other way round. The VMM converts the frame, or ends the
    /// guest.
    SLAT_MEMORY_FAULT = 6,
    /// The host's page is on its way: the vCPU waits for `slat_vcpu_pending_token`, and may run something else of the guest.
    SLAT_PENDING = 7,
    /// The caller has to provide the page. Again when the host has it.
    SLAT_NEEDS_PAGE = 8,
}

/// How a page is cached. Each is narrower than the one before it; of memslot and host page the narrower one counts.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_memory {
    /// Ordinary memory: cached.
    SLAT_WRITE_BACK = 0,
    /// Not cached; stores may be combined, loads may be made ahead: a frame buffer.
    SLAT_WRITE_COMBINING = 1,
    /// Not cached, no loads ahead of their time; the guest may choose to combine stores.
    SLAT_UNCACHED = 2,
    /// Registers of a device: not cached, each access as it is written.
    SLAT_DEVICE = 3,
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
    /// Gives the slot of this id `flags`. All but `SLAT_SLOT_LOG_DIRTY` must be as they were created.
    SLAT_SLOT_FLAGS = 3,
    /// Takes [gpa, gpa + bytes) out of the slot of this id. It keeps what lies below; what lies above becomes slot `rest`, a free
    /// id, where both are left. What stays mapped is not touched; of a slot that logs all that stays
    /// counts as written from then on.
    SLAT_SLOT_CUT = 4,
    /// Adds the slot with two kinds of memory: shared at `hva`, and private at `private_hva`. All of it is shared at first. It
    /// neither moves nor logs, and is not read-only.
    SLAT_SLOT_CREATE_WITH_PRIVATE = 5,
    /// Makes [gpa, gpa + bytes) private, or shared again, in slots that have both; the id is not looked at. Frames that change
    /// lose what they map, by one flush; nothing is copied.
    SLAT_SLOT_SET_PRIVATE = 6,
    /// See `SLAT_SLOT_SET_PRIVATE`.
    SLAT_SLOT_SET_SHARED = 7,
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
/// See [`slat_format_raw`].
pub type slat_memory_raw = u32;

/// Flag of a memslot: writes are logged.
pub const SLAT_SLOT_LOG_DIRTY: u32 = 1;
/// Flag of a memslot: guest writes are refused, and come out as `SLAT_MMIO`.
pub const SLAT_SLOT_READONLY: u32 = 2;
/// Flag of a memslot: fetches are refused, and come out as `SLAT_MMIO`.
pub const SLAT_SLOT_NO_EXECUTE: u32 = 4;
/// Host addresses from here on name private memory, which has no address: `SLAT_PRIVATE_HVA + (number << 48) + offset`, of 16,384
/// memories of 2^48 bytes. Whatever takes a host address takes such a name; `resolve` and `lookup` are given them.
pub const SLAT_PRIVATE_HVA: u64 = 0x8000_0000_0000_0000;
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
/// Flag of a host's page: the guest may not execute it.
pub const SLAT_PAGE_NO_EXECUTE: u32 = 32;
/// Flag of a VM: stores are found by Dirty bits, where the format has them, and not by write protection.
pub const SLAT_VM_DIRTY_BITS: u32 = 1;
/// Flag of a VM: a fresh dirty log says of every page that it is dirty, and costs nothing to begin.
pub const SLAT_VM_DIRTY_INITIALLY_SET: u32 = 2;
/// Flag of a VM: large pages do not execute; a fetch splits its page down to 4 KiB.
pub const SLAT_VM_NX_HUGE_PAGES: u32 = 4;
/// Flag of a VM: large pages of slots that log are split by the first store to each, and not when the log begins.
pub const SLAT_VM_DIRTY_SPLIT_LAZILY: u32 = 8;

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
    /// How many address spaces there are, each with memslots and tables of its own, 255 at most; zero means one. They are
    /// numbered from 0, and vCPUs begin in number 0.
    pub address_spaces: u32,
    /// Zero: dirty logs are bitmaps. Else each vCPU has a dirty ring of so many bytes, 16 for a store: a power of two from 4096 to
    /// 1 MiB. `slat_set_dirty_log` gives rings later.
    pub ring_bytes: u32,
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
    /// `SLAT_PAGE_WRITE` where the guest may write to it now, `SLAT_PAGE_NO_EXECUTE` where it may not execute it; other bits are
    /// not looked at.
    pub flags: u32,
    /// How it is cached: zero is ordinary memory.
    pub memory: slat_memory_raw,
}

/// One operation of a memslot transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_slot_op {
    /// What to do.
    pub kind: slat_slot_op_kind_raw,
    /// The slot.
    pub slot: slat_slot,
    /// Of `SLAT_SLOT_CREATE_WITH_PRIVATE`: where its private memory begins (`SLAT_PRIVATE_HVA`).
    pub private_hva: u64,
    /// Of `SLAT_SLOT_CUT`: the id of what lies above.
    pub rest: u32,
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
    /// How its pages are cached, unless the host says something narrower of one: zero is ordinary memory.
    pub memory: slat_memory_raw,
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
    /// How it is cached.
    pub memory: slat_memory_raw,
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
        let flags = [
            (slot.log_dirty, SLAT_SLOT_LOG_DIRTY),
            (slot.readonly, SLAT_SLOT_READONLY),
            (!slot.execute, SLAT_SLOT_NO_EXECUTE),
        ];
        let (gpa, bytes) = (slot.gfns.start.gpa().0, slot.gfns.len() * PAGE_SIZE);
        let memory = slot.memory.bits() as u32;
        Self { id: slot.id.0, flags: all_of(flags), gpa, bytes, hva: slot.hva.0, memory }
    }
}

/// The flags that are on.
pub(crate) fn all_of(flags: impl IntoIterator<Item = (bool, u32)>) -> u32 {
    flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
}

impl slat_slot {
    /// The slot that it describes, or nothing where it is not sound by itself. Its host addresses are checked where it is
    /// created.
    pub(crate) fn read(&self) -> Option<Slot> {
        let is_known = self.flags & !(SLAT_SLOT_LOG_DIRTY | SLAT_SLOT_READONLY | SLAT_SLOT_NO_EXECUTE) == 0;
        let gfns = frames(self.gpa, self.bytes).filter(|_| is_known)?;
        Some(Slot {
            log_dirty: self.flags & SLAT_SLOT_LOG_DIRTY != 0,
            readonly: self.flags & SLAT_SLOT_READONLY != 0,
            execute: self.flags & SLAT_SLOT_NO_EXECUTE == 0,
            memory: memory(self.memory)?,
            ..Slot::new(SlotId(self.id), gfns.start, gfns.len(), Hva(self.hva))
        })
    }
}

/// An access that C names.
pub(crate) fn access(raw: slat_access_raw) -> Option<Access> {
    [Access::Read, Access::Write, Access::Fetch].get(raw as usize).copied()
}

/// A memory type that C names.
pub(crate) fn memory(raw: slat_memory_raw) -> Option<MemoryType> {
    MemoryType::ALL.get(raw as usize).copied()
}

/// Whole pages from an address on, at least one: first and end.
fn whole(start: u64, bytes: u64) -> Option<(u64, u64)> {
    let is_sound = (start | bytes).is_multiple_of(PAGE_SIZE) && bytes != 0;
    start.checked_add(bytes).filter(|_| is_sound).map(|end| (start, end))
}

/// Whole pages of host addresses, at least one.
pub(crate) fn pages(hva: u64, bytes: u64) -> Option<Span<Hva>> {
    whole(hva, bytes).map(|(start, end)| Span::new(Hva(start), Hva(end)))
}

/// Whole guest frames, at least one.
pub(crate) fn frames(gpa: u64, bytes: u64) -> Option<Span<Gfn>> {
    whole(gpa, bytes).map(|(start, end)| Span::new(Gpa(start).gfn(), Gpa(end).gfn()))
}
