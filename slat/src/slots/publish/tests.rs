//! Tests of a reader that stays in its version, beside more new versions than there are cells.

use super::CELLS;
use crate::table::formats::Npt4;
use crate::*;
use std::thread;

struct Nowhere;

impl Host for Nowhere {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// A writer does not overwrite a reader's cell during the read. It only creates, so it waits only when the cells run
/// out.
#[test]
fn a_version_outlives_every_newer_one_while_it_is_read() {
    let vm = Vm::<Npt4, _>::builder(Nowhere).build().unwrap();
    let (sets, seat) = (&vm.spaces[0].memslots, vm.reads.borrow(0));
    thread::scope(|scope| {
        let reading = sets.read(&vm.reads, &seat);
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            for id in 0..CELLS {
                let slot = Slot::new(SlotId(id as u32), Gfn(id), 1, Hva(id << PAGE_SHIFT));
                vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
            }
        });
        // Either the writer asks this seat because it waits, or it has published its last version.
        while !seat.is_asked() && sets.number() < reading.number() + CELLS {
            thread::yield_now();
        }
        assert!(sets.number() < reading.number() + CELLS, "a cell is overwritten while it is read");
    });
}
