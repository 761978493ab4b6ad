//! The layout of physical memory, and the memslots of a guest that owns nearly all of it.
//!
//! ```text
//! guest frames    0      640K      1M           64 MiB      128 MiB        end of RAM     0xfee00        4 GiB
//! memslot         RAM  │ video, ROMs │ RAM       │ none: ours │ RAM          │ devices │ controller │ devices
//! memory type     WB     UC            WB                       WB             UC        device       UC
//! ```
//! The hypervisor and its [`RESERVE`] are in no slot, so a guest that accesses them gets
//! [`Emulate::NoMemory`](slat::Emulate::NoMemory), as at any hole in memory.

use crate::apic;
use slat::{Gfn, Hva, Level, MemoryType, PAGE_SHIFT, PAGE_SIZE, Slot, SlotId, Span};
use slat_walker_x86::boot::{Boot, MemoryRange, image};

/// End of the device range of a PC without large devices.
const FOUR_GIB: u64 = 1 << 32;
/// RAM of a machine whose loader gave no memory map.
const RAM_WITHOUT_FIRMWARE: u64 = 512 << 20;
/// Bytes behind the hypervisor's image that belong to neither the hypervisor nor the guest: frames to which the host
/// moves pages.
pub const RESERVE: u64 = 16 << 20;
/// Video memory, and the firmware's memory and ROMs, which never move.
const LEGACY: (u64, u64) = (0xa_0000, 0x10_0000);

/// Makes a slot with equal guest and host addresses.
fn slot(id: u32, (start, end): (u64, u64)) -> Slot {
    Slot::new(SlotId(id), Gfn(start >> PAGE_SHIFT), (end - start) >> PAGE_SHIFT, Hva(start))
}

/// The layout of physical memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First byte of the hypervisor's own memory, and the first after its reserve.
    own: (u64, u64),
    /// The first byte after RAM.
    ram_end: u64,
}

impl Layout {
    /// Computes the layout from the loader's memory map.
    pub fn of(boot: Boot) -> Self {
        let low = |range: &&MemoryRange| range.kind == MemoryRange::USABLE && range.start < FOUR_GIB;
        let ends = boot.memory().iter().filter(low).map(|range| range.start + range.bytes);
        let end = ends.max().unwrap_or(RAM_WITHOUT_FIRMWARE);
        let own = image();
        Self { own: (own.start, own.end + RESERVE), ram_end: end.next_multiple_of(Level::M2.bytes()) }
    }

    /// Returns the hypervisor's own memory, for the guest's memory map.
    pub fn own(&self) -> MemoryRange {
        MemoryRange::new(self.own.0, self.own.1 - self.own.0, MemoryRange::RESERVED)
    }

    /// The reserve.
    pub fn reserve(&self) -> Span<Hva> {
        Span::new(Hva(self.own.1 - RESERVE), Hva(self.own.1))
    }

    /// The first byte after RAM.
    pub fn ram_end(&self) -> u64 {
        self.ram_end
    }

    /// Returns the guest's RAM: the ranges of its slots.
    fn stretches(&self) -> [(u64, u64); 3] {
        [(0, LEGACY.0), (LEGACY.1, self.own.0), (self.own.1, self.ram_end)]
    }

    /// Returns whether all of these addresses are the guest's RAM.
    pub fn is_ram(&self, hvas: Span<Hva>) -> bool {
        self.stretches().iter().any(|&(start, end)| start <= hvas.start.0 && hvas.end.0 <= end)
    }

    /// Returns the guest's memslots except the interrupt controller's; `log_dirty` says whether those of RAM log
    /// stores.
    pub fn slots(&self, log_dirty: bool) -> impl Iterator<Item = Slot> {
        let apic = apic::PAGE.gpa().0;
        let ram = (0..).zip(self.stretches()).map(|(id, stretch)| slot(id, stretch));
        let devices = [slot(3, LEGACY), slot(4, (self.ram_end, apic)), slot(5, (apic + PAGE_SIZE, FOUR_GIB))];
        ram.map(move |slot| if log_dirty { slot.log_dirty() } else { slot })
            .chain(devices.map(|slot| slot.memory(MemoryType::Uncached)))
    }

    /// The memslot of the interrupt controller.
    pub fn apic() -> Slot {
        let apic = apic::PAGE.gpa().0;
        slot(6, (apic, apic + PAGE_SIZE)).memory(MemoryType::Device).no_execute()
    }

    /// The slots of RAM.
    pub const RAM_SLOTS: [SlotId; 3] = [SlotId(0), SlotId(1), SlotId(2)];

    /// All guest frames that are RAM, and the holes between them.
    pub fn ram(&self) -> Span<Gfn> {
        Span::new(Gfn(0), Gfn(self.ram_end >> PAGE_SHIFT))
    }

    /// The same as host addresses.
    pub fn ram_hvas(&self) -> Span<Hva> {
        Span::new(Hva(0), Hva(self.ram_end))
    }
}
