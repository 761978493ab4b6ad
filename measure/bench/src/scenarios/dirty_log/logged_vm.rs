//! The VM of tests with a guest, on a host without data memory, as `Arithmetic`, whose pages are as large as one likes.
//!
//! ```text
//! gfn 0 ─▶ logged memory, in pages of the size asked for          1 TiB ─▶ elsewhere, in pages of 4K
//! ```

use crate::scenarios::threads_prelude::*;
pub use crate::threads::arithmetic::Pages;
use slat::SlotError;

/// A VM whose format has D bits.
pub type LoggedVm = Vm<Ept4, Pages>;

/// Frames for a vCPU that faults beside logged memory.
pub const ELSEWHERE: Span<Gfn> = Span::new(Gfn(1 << 28), Gfn(1 << 29));

/// The most memory that is logged.
pub const MOST: u64 = ELSEWHERE.start.0 * PAGE_SIZE;

/// A host with pages of this size.
pub fn host(level: Level) -> Pages {
    Pages { level, small_from: hva_of(ELSEWHERE.start), sleeps_ns: 0, is_silent: false }
}

/// Builds the VM with these memslots, and brings in memory for their tables.
pub fn build(builder: Builder<Ept4, Pages>, slots: &[Slot]) -> Result<LoggedVm, Error> {
    let logged = slots.iter().filter(|slot| slot.gfns.end <= ELSEWHERE.start);
    let leaf_tables = logged.map(|slot| slot.gfns.len() / Level::M2.pages()).sum::<u64>();
    table_pool::reserve(leaf_tables * PAGE_SIZE * 65 / 64 + (64 << 20));
    let vm = builder.build().map_err(machine_error)?;
    vm.memory().commit(&mut idle()?, |tx| slots.iter().try_for_each(|&slot| tx.create(slot)))?;
    Ok(vm)
}

fn hva_of(gfn: Gfn) -> Hva {
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
pub fn set_log(vm: &Vm<Ept4, impl Host>, idle: &mut Idle, slot: &Slot, on: bool) -> Result<(), SlotError> {
    vm.memory().commit(idle, |tx| tx.set_log_dirty(slot.id, on)).map(drop)
}
