//! A host without data memory, as [`Arithmetic`], whose pages are as large as one likes; and where things lie on it.
//!
//! ```text
//! gfn 0 ─▶ logged memory, in pages of the size asked for          1 TiB ─▶ elsewhere, in pages of 4K
//! ```

use super::super::arithmetic::Arithmetic;
use slat::table::formats::Ept4;
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SIZE, Slot, SlotError, SlotId};
use slat::{Span, TableMemory, Vm};
use std::ptr::NonNull;

/// The VM of all tests here. Its format has D bits.
pub type Machine = Vm<Ept4, Pages>;

/// Frames for a vCPU that faults beside logged memory.
pub const ELSEWHERE: Span<Gfn> = Span::new(Gfn(1 << 28), Gfn(1 << 29));

/// The most memory that is logged.
pub const MOST: u64 = ELSEWHERE.start.0 * PAGE_SIZE;

/// See the module's header: the size of its pages.
pub struct Pages(pub Level);

// SAFETY: all of it is `Arithmetic`'s.
unsafe impl TableMemory for Pages {
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        Arithmetic.alloc_chunk()
    }

    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        // SAFETY: the caller's promise is the same.
        unsafe { Arithmetic.free_chunk(chunk) };
    }
}

impl Host for Pages {
    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let level = if hva < hva_of(ELSEWHERE.start) { self.0 } else { Level::K4 };
        Arithmetic.lookup(hva, access).map(|page| HostPage { level, ..page })
    }

    fn resolve(&self, _idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
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
