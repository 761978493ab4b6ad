//! The probe: it waits for the zapper's section or lock to end.

use super::super::arithmetic::Arithmetic;
use super::super::onlooker::Busy;
use super::ground::{Machine, spare};
use slat::Idle;
use slat::memslots::Memslots;
use slat::table::formats::Npt4;

/// Makes a memslot and deletes it: that takes the baseline's lock, and ends in a grace period, so it waits for
/// threads that are inside. The longest wait is the longest hold.
pub struct Probe<'vm> {
    slots: Memslots<'vm, Npt4, Arithmetic>,
    idle: Idle,
}

impl<'vm> Probe<'vm> {
    /// On the VM's spare memslot.
    pub fn new(vm: &'vm Machine) -> Self {
        Self { slots: vm.slots(), idle: Idle::take().expect("this thread runs no vCPU") }
    }
}

impl Busy for Probe<'_> {
    fn act(&mut self) -> bool {
        let slot = spare();
        let made = self.slots.commit(&mut self.idle, |tx| tx.create(slot));
        made.is_ok() && self.slots.commit(&mut self.idle, |tx| tx.delete(slot.id)) == Ok(slot)
    }
}
