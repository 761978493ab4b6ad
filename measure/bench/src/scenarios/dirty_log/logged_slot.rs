//! One memslot of mapped pages whose log is on or off: a test sets for each page whether it has been written.

use crate::scenarios::threads_prelude::*;
use crate::threads::mapped_slot::MappedSlot;
use slat::table::{Entry, Word};

/// See the module's header.
pub struct LoggedSlot {
    pub mapped: MappedSlot,
    /// The bit of a leaf that a store sets, or needs.
    noted_in: u64,
}

impl LoggedSlot {
    /// The slot whose log tracks by `track`: see [`MappedSlot::new`].
    pub fn new(log: DirtyLog, track: Track, idle: &mut Idle, bytes: [u64; 2]) -> Result<Self, Error> {
        let noted_in = match track {
            Track::Writes => Ept4::WRITE,
            Track::DirtyBits => Ept4::DIRTY,
        };
        Ok(Self { mapped: MappedSlot::new(log.track(track), idle, bytes, |_| ())?, noted_in })
    }

    /// Each page of which `written` says so has been stored to, and the others have not since they were last tracked.
    pub fn write(&self, written: impl Fn(Gfn) -> bool) {
        let all = Ept4::WRITE | Ept4::DIRTY | Ept4::ACCESSED;
        self.mapped.set_leaves(|gfn, word| {
            Word((word.0 | all) & if written(gfn) { u64::MAX } else { !self.noted_in })
        });
    }

    /// Clears Accessed and Dirty of each page.
    pub fn rest(&self) {
        self.mapped.set_leaves(|_, word| Word(word.0 & !(Ept4::DIRTY | Ept4::ACCESSED)));
    }

    /// Counts the pages whose next store would not be noticed.
    pub fn untracked(&self) -> u64 {
        let words = self.mapped.tables.linked().flat_map(|(_, table)| table).map(Entry::load);
        words.filter(|&word| Ept4::is_present(word) && word.0 & self.noted_in != 0).count() as u64
    }
}
