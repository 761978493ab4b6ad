//! Tests of a reader that stays in its version, beside more new versions than there are cells.

use super::CELLS;
use crate::seeded::{self, Bug};
use crate::table::{TableMemory, formats::Npt4};
use crate::*;
use std::thread;

struct Nowhere;

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Nowhere {}

impl Host for Nowhere {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// Returns whether a writer overwrites a reader's cell during the read. The writer only creates, so it waits only when
/// the cells run out.
fn is_overwritten(mistake: Option<Bug>) -> bool {
    let vm = Vm::<Npt4, _>::builder(Nowhere).build().unwrap();
    let (sets, seat) = (&vm.spaces[0].memslots, vm.reads.borrow(0));
    thread::scope(|scope| {
        let reading = sets.read(&vm.reads, &seat);
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            let mut create = |id: u64| {
                let slot = Slot::new(SlotId(id as u32), Gfn(id), 1, Hva(id << PAGE_SHIFT));
                vm.slots().commit(&mut idle, |tx| tx.create(slot)).unwrap();
            };
            let mut work = || (0..CELLS).for_each(&mut create);
            match mistake {
                Some(bug) => seeded::with(bug, work),
                None => work(),
            }
        });
        // Either the writer asks this seat because it waits, or it has published its last version.
        while !seat.is_asked() && sets.number() < reading.number() + CELLS {
            thread::yield_now();
        }
        sets.number() >= reading.number() + CELLS
    })
}

#[test]
fn a_version_outlives_every_newer_one_while_it_is_read() {
    assert!(!is_overwritten(None));
}

#[test]
fn mistake_cells_are_reused_without_a_wait() {
    assert!(is_overwritten(Some(Bug::CellReusedEarly)));
    seeded::found(Bug::CellReusedEarly, 1);
}
