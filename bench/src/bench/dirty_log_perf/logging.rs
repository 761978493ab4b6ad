//! The ways to log: those of slat, and the one before them, each with the steps that the test times.
//!
//! | | enable | get | clear |
//! |---|---|---|---|
//! | before | large pages zapped, small ones write-protected | each leaf write-protected; bits copied | |
//! | auto | split; each page tracked | harvest: bits taken, those pages tracked again | |
//! | manual | all is dirty, nothing tracked | bits copied | split; what is cleared is tracked |
//! | ring | as auto | harvest of what is left: a full ring was emptied at once | |
//!
//! When the log is disabled large pages come back in place; before, all of the slot is zapped, and faults bring it back.
//!
//! **Before** stands behind one mutex, goes leaf by leaf over whole slots, and flushes once for each step. It has slat's
//! bitmap; what it takes to clear its bits, after the leaves have been protected, is not charged.

use super::logged_vm::{self, LoggedVm, Pages, set_log};
use slat::table::formats::Ept4;
use slat::{Builder, DirtyLog, Idle, Level, MmuLock, RingSize, Slot, Splitting, Track, Why};
use slat_cli::error::Error;
use std::ops::Range;

/// How a VM logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Before,
    Auto(Track),
    Manual(Track),
    Ring(RingSize),
}

/// A way, and when it splits large pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    pub way: Way,
    pub splitting: Splitting,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Auto(Track::Writes) => "write protection",
            Self::Auto(Track::DirtyBits) => "D bits",
            Self::Manual(Track::Writes) => "manual, write protection",
            Self::Manual(Track::DirtyBits) => "manual, D bits",
            Self::Ring(_) => "ring",
        }
    }

    /// Whether the first harvest may tell of pages that were not written since the log began: all of a fresh log that
    /// says so, all of a large page that was written before it was split.
    pub fn first_may_be_spurious(self, size: Level) -> bool {
        match self {
            Self::Manual(_) => true,
            Self::Auto(track) => track == Track::DirtyBits && size > Level::K4,
            Self::Before | Self::Ring(_) => false,
        }
    }
}

impl Entrant {
    fn log(self) -> DirtyLog {
        let log = match self.way {
            // Then the log begins without touching a leaf: what is done to them is done below.
            Way::Before => DirtyLog::bitmap().initially_set(),
            Way::Auto(track) => DirtyLog::bitmap().track(track),
            Way::Manual(track) => DirtyLog::bitmap().track(track).initially_set(),
            Way::Ring(size) => DirtyLog::ring(size),
        };
        log.splitting(self.splitting)
    }

    /// A VM for it, on pages of `size`.
    pub fn builder(self, size: Level, vcpus: u32) -> Builder<Ept4, Pages> {
        let lock = if self.way == Way::Before { MmuLock::Exclusive } else { MmuLock::None };
        logged_vm::builder(size).vcpus(vcpus).mmu_lock(lock).dirty_log(self.log())
    }

    /// Slot by slot, as a VMM does it.
    pub fn enable(self, vm: &LoggedVm, idle: &mut Idle, slots: &[Slot]) -> Result<(), Error> {
        for slot in slots {
            set_log(vm, idle, slot, true)?;
            if self.way == Way::Before && vm.host().level > Level::K4 {
                vm.invalidate_gfns(slot.gfns, Why::Clear).apply(idle).settle();
            } else if self.way == Way::Before {
                vm.write_protect(idle, slot.gfns).settle();
            }
        }
        Ok(())
    }

    /// What has been written, into `bits`: a bit a frame, from frame 0 on; slots begin with a word.
    pub fn get(self, vm: &LoggedVm, idle: &mut Idle, slots: &[Slot], bits: &mut [u64]) -> Result<(), Error> {
        match self.way {
            Way::Before => {
                for slot in slots {
                    vm.write_protect(idle, slot.gfns).settle();
                    vm.slots().dirty_bits(idle, slot.id, &mut bits[words(slot)])?;
                }
            }
            Way::Manual(_) => {
                for slot in slots {
                    vm.slots().dirty_bits(idle, slot.id, &mut bits[words(slot)])?;
                }
            }
            Way::Auto(_) | Way::Ring(_) => {
                let harvest = vm.slots().harvest_all(idle)?;
                harvest.words().for_each(|word| bits[(word.first.gfn.0 / 64) as usize] |= word.bits);
                harvest.commit();
            }
        }
        Ok(())
    }

    /// Tracks the pages that `get` reported again, unless `get` has done so.
    pub fn clear(self, vm: &LoggedVm, idle: &mut Idle, slots: &[Slot], bits: &[u64]) -> Result<(), Error> {
        if let Way::Before | Way::Manual(_) = self.way {
            for slot in slots {
                vm.slots().clear_dirty(idle, slot.id, 0, slot.gfns.len(), &bits[words(slot)])?;
            }
        }
        Ok(())
    }

    /// Slot by slot.
    pub fn disable(self, vm: &LoggedVm, idle: &mut Idle, slots: &[Slot]) -> Result<(), Error> {
        for slot in slots {
            if self.way == Way::Before && vm.host().level > Level::K4 {
                // Before the log ends: what is not there is not made large in place.
                vm.invalidate_gfns(slot.gfns, Why::Clear).apply(idle).settle();
            }
            set_log(vm, idle, slot, false)?;
        }
        Ok(())
    }
}

/// Where a slot's bits are.
fn words(slot: &Slot) -> Range<usize> {
    (slot.gfns.start.0 / 64) as usize..(slot.gfns.end.0 / 64) as usize
}
