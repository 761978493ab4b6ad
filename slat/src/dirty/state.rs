//! `LogState`: which log a slot has, and how often pages were taken from it.

use super::DirtyError;
use crate::callbacks::Finally;
use crate::slots::bitmap::Bitmap;
use crate::slots::takings::Takings;
use crate::{Format, GuestSpace, Host, SlotId};

/// Identity of one log: a slot may have another log later.
#[derive(Clone, Copy)]
pub(super) struct LogId {
    pub(super) slot: SlotId,
    pub(super) serial: u64,
}

/// Which log a slot has, and how often pages were taken from it: by a harvest, by
/// [`clear_dirty`](crate::guest_space::GuestSpace::clear_dirty), or from a ring. From
/// [`GuestSpace::log_state`](crate::guest_space::GuestSpace::log_state). For a harvester that must be the only one of its log,
/// such as a migration: marks that another takes are missing in its own harvests.
///
/// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Identity;
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # let ram = SlotId(0);
/// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(ram, Gfn(0), 512, Hva(1 << 30)).log_dirty()))?;
/// let before = vm.memory().log_state(ram)?;
/// vm.memory().harvest(&mut idle, ram)?.commit();
/// assert_eq!(vm.memory().log_state(ram)?.takings_since(before), Some(1));
///
/// vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(ram, false))?;
/// vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(ram, true))?;
/// assert_eq!(vm.memory().log_state(ram)?.takings_since(before), None, "another log");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct LogState {
    serial: u64,
    takings: u64,
    settled: bool,
}

impl LogState {
    /// How often pages were taken from the log since `earlier`. `None` if the slot has another log since, or if pages were
    /// being taken when one of the two states was read. Giving a harvest back does not undo its taking.
    pub fn takings_since(self, earlier: Self) -> Option<u64> {
        let same = self.serial == earlier.serial && self.settled && earlier.settled;
        same.then(|| self.takings.checked_sub(earlier.takings)).flatten()
    }
}

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Returns the state of the log of slot `id`. Changes nothing.
    pub fn log_state(&self, id: SlotId) -> Result<LogState, DirtyError> {
        let (_, log) = self.look_up(id)?;
        // Of the rings, which have marks of every log.
        let (ringed, rings_settled) = self.vm.rings.takings().count();
        let (taken, settled) = self.in_log(log, |bitmap| bitmap.takings().count()).unwrap_or((0, false));
        Ok(LogState { serial: log.serial, takings: taken + ringed, settled: settled && rings_settled })
    }

    /// Counts one taking from a log, until the result is dropped.
    pub(super) fn taking(&self, log: LogId) -> Finally<(), impl FnMut(&mut ())> {
        let count = move |count: fn(&Takings)| _ = self.in_log(log, |bitmap| count(bitmap.takings()));
        count(Takings::begin);
        Finally::with((), move |()| count(Takings::end))
    }

    /// Calls `f` with a log, unless it has ended.
    pub(super) fn in_log<R>(&self, log: LogId, f: impl FnOnce(&Bitmap) -> R) -> Option<R> {
        let seat = self.vm.borrow_seat_without_idle();
        let reading = self.space.memslots.read(&self.vm.reads, &seat);
        reading.version().log(log.slot).filter(|bitmap| bitmap.serial() == log.serial).map(f)
    }
}

/// Counts one taking from the rings, until the result is dropped.
pub(super) fn taking_from_rings(takings: &Takings) -> Finally<(), impl FnMut(&mut ())> {
    takings.begin();
    Finally::with((), |()| takings.end())
}

#[cfg(all(test, not(loom)))]
mod tests;
