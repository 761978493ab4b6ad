//! The probe: it waits for the zapper's section or lock to end.

use super::super::arithmetic::Arithmetic;
use super::zapped_range::spare;
use slat::Idle;
use slat::memslots::Memslots;
use slat::table::formats::Npt4;
use slat_threads::benches::onlooker::Busy;

/// Makes the VM's spare memslot and deletes it: that takes the baseline's lock, and ends in a grace period, so it waits for
/// threads that are inside. The longest wait is the longest hold.
pub struct Probe<'vm>(pub Memslots<'vm, Npt4, Arithmetic>);

impl Busy for Probe<'_> {
    fn act(&mut self, idle: &mut Idle) -> bool {
        let slot = spare();
        let made = self.0.commit(idle, |tx| tx.create(slot));
        made.is_ok() && self.0.commit(idle, |tx| tx.delete(slot.id)) == Ok(slot)
    }
}
