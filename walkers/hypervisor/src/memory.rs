//! The machine's memory as the engine sees it: a host without a primary MMU, and the memslots of a guest that owns
//! nearly all of it.
//!
//! ```text
//! gfn       0 ─────────── 64 MiB ───── 112 MiB ──────────── end of RAM ──────────── 0xfee00 ─────────── 4 GiB
//! memslot   low RAM        none: we     high RAM              devices                `apic`   devices, ROMs
//! ```
//! "Host address" means physical address here: what is behind guest frame n is frame n. The hypervisor lies in no slot,
//! so a guest that reaches for it meets [`Done::Mmio`](slat::Done::Mmio), as at any hole in memory.

use crate::apic;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::{
    Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Slot, SlotId, Span,
    TableMemory, VcpuId,
};
use slat_walker_x86::boot::{Boot, MemoryRange, image};
use slat_walker_x86::smp;

/// Where devices end that a PC without large ones has.
const FOUR_GIB: u64 = 1 << 32;
/// The RAM of a machine whose loader told of none.
const RAM_WITHOUT_FIRMWARE: u64 = 512 << 20;

/// The host: every physical page is present, writable, and stays where it is.
#[derive(Debug)]
pub struct Machine {
    /// How large its pages are.
    pub page: Level,
    /// How often one processor has made another leave its guest.
    pub kicks: AtomicU64,
}

// SAFETY: the defaults take table pages from the global allocator; memory is mapped one to one, so their addresses are
// what the walker must be told.
unsafe impl TableMemory for Machine {}

impl Host for Machine {
    /// Nothing here ever sleeps, so faults are served from here alone.
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: self.page, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    /// Who kicks is out of its own guest, so the other processor is meant.
    fn kick(&self, _: VcpuId) {
        self.kicks.fetch_add(1, Relaxed);
        smp::kick_other();
    }
}

/// Guest frames, and the same addresses behind them.
fn slot(id: u32, (start, end): (u64, u64)) -> Slot {
    Slot::new(SlotId(id), Gfn(start >> PAGE_SHIFT), (end - start) >> PAGE_SHIFT, Hva(start))
}

/// Where in physical memory things are, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First byte of the hypervisor's own memory, and the first after it.
    own: (u64, u64),
    /// The first byte after RAM.
    ram_end: u64,
}

impl Layout {
    /// As the loader tells it.
    pub fn of(boot: Boot) -> Self {
        let low = |range: &&MemoryRange| range.kind == MemoryRange::USABLE && range.start < FOUR_GIB;
        let ends = boot.memory().iter().filter(low).map(|range| range.start + range.bytes);
        let end = ends.max().unwrap_or(RAM_WITHOUT_FIRMWARE);
        let own = image();
        Self { own: (own.start, own.end), ram_end: end.next_multiple_of(Level::M2.bytes()) }
    }

    /// The hypervisor's own memory, for the guest's memory map.
    pub fn own(&self) -> MemoryRange {
        MemoryRange::new(self.own.0, self.own.1 - self.own.0, MemoryRange::RESERVED)
    }

    /// The first byte after RAM.
    pub fn ram_end(&self) -> u64 {
        self.ram_end
    }

    /// The guest's memslots but the interrupt controller's; those of RAM log stores, or not.
    pub fn slots(&self, log_dirty: bool) -> impl Iterator<Item = Slot> {
        let apic = apic::PAGE.gpa().0;
        let ram = [slot(0, (0, self.own.0)), slot(1, (self.own.1, self.ram_end))];
        let devices = [slot(2, (self.ram_end, apic)), slot(3, (apic + PAGE_SIZE, FOUR_GIB))];
        ram.into_iter().map(move |slot| if log_dirty { slot.log_dirty() } else { slot }).chain(devices)
    }

    /// The memslot of the interrupt controller.
    pub fn apic() -> Slot {
        let apic = apic::PAGE.gpa().0;
        slot(4, (apic, apic + PAGE_SIZE))
    }

    /// The slots of RAM.
    pub const RAM_SLOTS: [SlotId; 2] = [SlotId(0), SlotId(1)];

    /// All guest frames that are RAM, and the hole between them.
    pub fn ram(&self) -> Span<Gfn> {
        Span::new(Gfn(0), Gfn(self.ram_end >> PAGE_SHIFT))
    }

    /// The same as host addresses.
    pub fn ram_hvas(&self) -> Span<Hva> {
        Span::new(Hva(0), Hva(self.ram_end))
    }
}
