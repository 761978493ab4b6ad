//! A host without data memory, as `Arithmetic`, whose pages are as large as one likes; and where things lie on it.
//!
//! ```text
//! gfn 0 ─▶ logged memory, in pages of the size asked for          1 TiB ─▶ elsewhere, in pages of 4K
//! ```

pub use super::super::arithmetic::Pages;
use slat::table::formats::Ept4;
use slat::{Gfn, Hva, Idle, Level, PAGE_SIZE, Slot, SlotError, SlotId, Span, Vm};

/// The VM of all tests here. Its format has D bits.
pub type Machine = Vm<Ept4, Pages>;

/// Frames for a vCPU that faults beside logged memory.
pub const ELSEWHERE: Span<Gfn> = Span::new(Gfn(1 << 28), Gfn(1 << 29));

/// The most memory that is logged.
pub const MOST: u64 = ELSEWHERE.start.0 * PAGE_SIZE;

/// See the module's header, with pages of this size.
pub fn pages(level: Level) -> Pages {
    Pages { level, small_from: hva_of(ELSEWHERE.start), sleeps_ns: 0 }
}

/// The host address behind a frame.
pub fn hva_of(gfn: Gfn) -> Hva {
    Hva(gfn.gpa().0 + (1 << 36))
}

/// The memslot of `gfns`.
pub fn slot(id: u32, gfns: Span<Gfn>) -> Slot {
    Slot::new(SlotId(id), gfns.start, gfns.len(), hva_of(gfns.start))
}

/// So much memory from frame 0 on.
pub fn memory(bytes: u64) -> Span<Gfn> {
    Span::sized(Gfn(0), bytes / PAGE_SIZE)
}

/// Switches a slot's log on or off.
pub fn set_log(vm: &Machine, idle: &mut Idle, slot: &Slot, on: bool) -> Result<(), SlotError> {
    vm.slots().commit(idle, |tx| tx.set_log_dirty(slot.id, on)).map(drop)
}
