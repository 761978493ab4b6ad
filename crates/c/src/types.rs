//! Types of the interface. Addresses are in bytes, sizes in bytes and multiples of 4096, unless their names say frames
//! or pages.

use slat::{
    Access, DirtyLog, Gfn, Gpa, Hva, MemoryType, PAGE_SIZE, RingSize, Slot, SlotId, Span, Splitting, Stats,
    Track, Unanswered,
};

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

/// Kind of an access.
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

/// Result of a fault. After the first three the guest may try again. The others have changed nothing.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_done {
    /// A page was mapped.
    SLAT_MAPPED = 0,
    /// A permission was restored in place.
    SLAT_FIXED = 1,
    /// Another vCPU had already resolved the fault.
    SLAT_SPURIOUS = 2,
    /// No memslot is there, or the guest wrote to a read-only one, or fetched from one that does not execute: emulate the
    /// access.
    SLAT_MMIO = 3,
    /// A store while this vCPU's dirty ring is full. Try again when another thread has harvested or reset the ring.
    SLAT_RING_FULL = 4,
    /// A store to a frame whose stores are tracked: make it by `slat_emulate_store`.
    SLAT_WRITE_TRACKED = 5,
    /// The access was to private memory and the frame is shared, or the reverse. The VMM converts the frame, or ends
    /// the guest.
    SLAT_MEMORY_FAULT = 6,
    /// The host's page is on its way: the vCPU waits for `slat_vcpu_pending_token`, and may run another task of the
    /// guest.
    SLAT_PENDING = 7,
    /// The caller must provide the page, and try again when the host has it.
    SLAT_NEEDS_PAGE = 8,
}

/// Memory type of a page. Each is narrower than the one before it; of memslot and host page the narrower one applies.
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

/// Reason why the host changes a range. It decides which edits are needed: `slat plan` prints the table.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_why {
    /// The mapping is removed: munmap.
    SLAT_UNMAP = 0,
    /// The mapping moves to another address: mremap, for the old range.
    SLAT_REMAP = 1,
    /// The address space is destroyed.
    SLAT_EXIT = 2,
    /// The pages are removed, the mapping stays.
    SLAT_CLEAR = 3,
    /// A page moves to another frame with its contents.
    SLAT_MIGRATE = 4,
    /// Some pages go to swap; page by page.
    SLAT_RECLAIM = 5,
    /// A mapping loses write permission.
    SLAT_PROTECT = 6,
    /// Pages lose write permission: fork, write-back.
    SLAT_WRITE_PROTECT = 7,
    /// Pages lose write permission, to see which pages are written from now on.
    SLAT_SOFT_DIRTY = 8,
    /// Some pages become inaccessible, to see which processor uses them; page by page.
    SLAT_NUMA = 9,
    /// Some pages are replaced by others with the same contents; page by page.
    SLAT_CHANGE_PTE = 10,
}

/// Operation on the Accessed bits of a range.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_young_how {
    /// Read them, until the first one that is set.
    SLAT_TEST_YOUNG = 0,
    /// Clear them. A TLB may keep a translation that sets no bit: the next access is then not seen.
    SLAT_CLEAR_YOUNG = 1,
    /// Clear them, and make every TLB forget: waits for vCPUs in the guest.
    SLAT_CLEAR_YOUNG_AND_FLUSH = 2,
}

/// Kind of a memslot operation.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_slot_op_kind {
    /// Adds the slot.
    SLAT_SLOT_CREATE = 0,
    /// Removes the slot of this id. Ignores the other fields.
    SLAT_SLOT_DELETE = 1,
    /// Moves the slot of this id to `gpa`. Ignores the other fields.
    SLAT_SLOT_MOVE = 2,
    /// Gives the slot of this id `flags`. All but `SLAT_SLOT_LOG_DIRTY` must be as they were created.
    SLAT_SLOT_FLAGS = 3,
    /// Cuts [gpa, gpa + bytes) out of the slot of this id. The slot keeps the part below. If both parts are left, the
    /// part above becomes slot `rest`, a free id. The remaining mappings stay. In a slot that logs, all remaining pages
    /// count as written from then on.
    SLAT_SLOT_CUT = 4,
    /// Adds the slot with two kinds of memory: shared at `hva`, and private at `private_hva`. All of it is shared at
    /// first. The slot neither moves nor logs, and is not read-only.
    SLAT_SLOT_CREATE_WITH_PRIVATE = 5,
    /// Makes [gpa, gpa + bytes) private in slots that have both kinds of memory. Ignores the id. Frames that change
    /// lose their mappings, by one flush; nothing is copied.
    SLAT_SLOT_SET_PRIVATE = 6,
    /// Makes [gpa, gpa + bytes) shared again, as `SLAT_SLOT_SET_PRIVATE` otherwise.
    SLAT_SLOT_SET_SHARED = 7,
}

/// A `slat_format` from C: any number. The types below are alike.
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
/// Flag of a memslot: guest writes are refused as `SLAT_MMIO`.
pub const SLAT_SLOT_READONLY: u32 = 2;
/// Flag of a memslot: fetches are refused as `SLAT_MMIO`.
pub const SLAT_SLOT_NO_EXECUTE: u32 = 4;
/// Host addresses from here on name private memory, which has no address: `SLAT_PRIVATE_HVA + (number << 48) + offset`,
/// for 16,384 memories of 2^48 bytes. Every function that takes a host address takes such a name; slat passes them to
/// `resolve` and `lookup`.
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
/// Flag of a VM: dirty logs use Dirty bits, if the format has them, instead of write protection.
pub const SLAT_VM_DIRTY_BITS: u32 = 1;
/// Flag of a VM: in a new dirty log every page is dirty, so it costs nothing to begin one.
pub const SLAT_VM_DIRTY_INITIALLY_SET: u32 = 2;
/// Flag of a VM: large pages have no execute permission; a fetch splits its page down to 4 KiB.
pub const SLAT_VM_NX_HUGE_PAGES: u32 = 4;
/// Flag of a VM: the first store to a large page of a slot that logs splits it; otherwise the begin of the log does.
pub const SLAT_VM_DIRTY_SPLIT_LAZILY: u32 = 8;

/// Options of a VM. Set `size`, and zero the rest for the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_config {
    /// `sizeof(struct slat_config)`: tells versions of this structure apart.
    pub size: usize,
    /// The page-table format.
    pub format: slat_format_raw,
    /// Number of vCPUs, 65,536 at most; zero means one.
    pub vcpus: u32,
    /// Bits of a guest-physical address; zero, or more than the format translates, means as many as that.
    pub address_bits: u32,
    /// The largest page to map: 1 for 4 KiB, 2 for 2 MiB, 3 or zero for 1 GiB.
    pub max_level: u32,
    /// Upper bound of memslot ids; zero means 32,764, as in KVM.
    pub max_slots: u32,
    /// `SLAT_VM_*`.
    pub flags: u32,
    /// Number of address spaces, each with memslots and tables of its own, 255 at most; zero means one. Numbers begin
    /// at 0, and vCPUs begin in number 0.
    pub address_spaces: u32,
    /// Zero: dirty logs are bitmaps. Otherwise the bytes of each vCPU's dirty ring, 16 for a store: a power of two from
    /// 4096 to 1 MiB. `slat_set_dirty_log` can add rings later.
    pub ring_bytes: u32,
    /// Most bytes of table pages in use; above it slat reclaims the coldest tables. Zero means no limit.
    pub table_budget: u64,
}

/// The host's page at an address.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct slat_page {
    /// The frame of the requested 4 KiB: physical address / 4096, as hardware sees it.
    pub pfn: u64,
    /// Size of the host's page there, with the same rights everywhere: zero or 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    pub level: u32,
    /// `SLAT_PAGE_WRITE` if the guest may write to it now, `SLAT_PAGE_NO_EXECUTE` if it may not execute it. Other bits
    /// are ignored.
    pub flags: u32,
    /// Memory type: zero is ordinary memory.
    pub memory: slat_memory_raw,
}

/// One operation of a memslot transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_slot_op {
    /// Kind of the operation.
    pub kind: slat_slot_op_kind_raw,
    /// The slot.
    pub slot: slat_slot,
    /// For `SLAT_SLOT_CREATE_WITH_PRIVATE`: start of its private memory (`SLAT_PRIVATE_HVA`).
    pub private_hva: u64,
    /// For `SLAT_SLOT_CUT`: id of the part above.
    pub rest: u32,
}

/// A memslot: guest memory, and the host address behind it.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_slot {
    /// Number of the slot.
    pub id: u32,
    /// `SLAT_SLOT_*`.
    pub flags: u32,
    /// Guest-physical address.
    pub gpa: u64,
    /// Size.
    pub bytes: u64,
    /// The host address of its first byte.
    pub hva: u64,
    /// Memory type of its pages, which the host may narrow for a page: zero is ordinary memory.
    pub memory: slat_memory_raw,
}

/// A mapping of a VM at a frame.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_mapping {
    /// The first guest frame of the page.
    pub gfn: u64,
    /// The first frame of the page: frame gfn + n of the guest is frame pfn + n.
    pub pfn: u64,
    /// Its size, in frames of 4 KiB.
    pub frames: u64,
    /// `SLAT_PAGE_*`: the permissions, and the Accessed and Dirty bits.
    pub flags: u32,
    /// Memory type.
    pub memory: slat_memory_raw,
}

/// Counters of a VM. Sums over all threads, each read at a slightly different moment.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_stats {
    /// Faults that mapped a page.
    pub mapped_faults: u64,
    /// Faults that restored a permission.
    pub permission_faults: u64,
    /// Faults that found nothing wrong any more.
    pub spurious_faults: u64,
    /// Faults on no memslot, or writes to a read-only one.
    pub mmio_faults: u64,
    /// Repeated attempts at a fault.
    pub retries: u64,
    /// Currently mapped leaves of 4 KiB, 2 MiB and 1 GiB.
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

/// A vCPU in the guest that has not answered a flush: see `slat_vm_unanswered`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slat_unanswered {
    /// The vCPU.
    pub vcpu: u32,
    /// The number of the first flush that it has not answered; the first flush of a VM has number 1. While this stays
    /// the same, the vCPU has answered nothing.
    pub since: u64,
    /// Number of flushes that it has not answered.
    pub flushes: u64,
}

impl From<Unanswered> for slat_unanswered {
    fn from(Unanswered { vcpu, since, flushes }: Unanswered) -> Self {
        Self { vcpu: vcpu.0, since, flushes }
    }
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

/// Combines the flags that are set.
pub(crate) fn all_of(flags: impl IntoIterator<Item = (bool, u32)>) -> u32 {
    flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
}

impl slat_slot {
    /// Converts the slot. `None` if its fields contradict each other. The creation checks its host addresses.
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

/// Converts an access from C.
pub(crate) fn access(raw: slat_access_raw) -> Option<Access> {
    [Access::Read, Access::Write, Access::Fetch].get(raw as usize).copied()
}

/// Converts a memory type from C.
pub(crate) fn memory(raw: slat_memory_raw) -> Option<MemoryType> {
    MemoryType::ALL.get(raw as usize).copied()
}

/// Returns first and end of at least one whole page from an address on.
fn whole(start: u64, bytes: u64) -> Option<(u64, u64)> {
    let is_sound = (start | bytes).is_multiple_of(PAGE_SIZE) && bytes != 0;
    start.checked_add(bytes).filter(|_| is_sound).map(|end| (start, end))
}

/// Returns whole pages of host addresses, at least one.
pub(crate) fn pages(hva: u64, bytes: u64) -> Option<Span<Hva>> {
    whole(hva, bytes).map(|(start, end)| Span::new(Hva(start), Hva(end)))
}

/// Returns whole guest frames, at least one.
pub(crate) fn frames(gpa: u64, bytes: u64) -> Option<Span<Gfn>> {
    whole(gpa, bytes).map(|(start, end)| Span::new(Gpa(start).gfn(), Gpa(end).gfn()))
}

/// Flags of dirty logs.
pub(crate) const DIRTY_FLAGS: u32 =
    SLAT_VM_DIRTY_BITS | SLAT_VM_DIRTY_INITIALLY_SET | SLAT_VM_DIRTY_SPLIT_LAZILY;

/// Converts the settings of dirty logs. Rings ignore `SLAT_VM_DIRTY_BITS`.
pub(crate) fn dirty_log(flags: u32, ring_bytes: u32) -> Option<DirtyLog> {
    let has = |flag| flags & flag != 0;
    let mut log = match ring_bytes {
        0 => DirtyLog::bitmap(),
        bytes => DirtyLog::ring(RingSize::new(bytes).ok()?),
    };
    if has(SLAT_VM_DIRTY_BITS) {
        log = log.track(Track::DirtyBits);
    }
    if has(SLAT_VM_DIRTY_INITIALLY_SET) {
        log = log.initially_set();
    }
    Some(if has(SLAT_VM_DIRTY_SPLIT_LAZILY) { log.splitting(Splitting::Lazy) } else { log })
}
