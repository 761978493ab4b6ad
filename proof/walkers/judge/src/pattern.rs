//! The memory of guest frames: each word has its own physical address, so a loaded word tells its address.

use crate::machine_trait::{CODE_OFFSET, Machine};
use core::ptr::with_exposed_provenance_mut;
use slat::{PAGE_SIZE, Pfn, Span};

/// The judge's view of [`Ram::pattern`](crate::Ram::pattern).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    frames: Span<Pfn>,
}

impl Pattern {
    /// Fills the whole pattern.
    pub(crate) fn fill<M: Machine>(machine: &M) -> Self {
        let this = Self { frames: machine.ram().pattern };
        (this.frames.start.0..this.frames.end.0).for_each(|pfn| this.fill_page(machine, Pfn(pfn)));
        this
    }

    pub(crate) fn fill_page<M: Machine>(self, machine: &M, pfn: Pfn) {
        for address in (pfn.address()..pfn.address() + PAGE_SIZE).step_by(8) {
            self.store(address, address);
        }
        machine.write_code(pfn);
    }

    pub(crate) fn frames(self) -> Span<Pfn> {
        self.frames
    }

    /// Returns a pointer to the word at a physical address, if it is in the pattern.
    fn at(self, address: u64) -> Option<*mut u64> {
        let inside = self.frames.contains(Pfn(address >> slat::PAGE_SHIFT)) && address.is_multiple_of(8);
        inside.then(|| with_exposed_provenance_mut(address as usize))
    }

    /// Loads the word at a physical address; `None` outside.
    pub(crate) fn load(self, address: u64) -> Option<u64> {
        // SAFETY: `Machine::ram` promises real memory at its physical addresses; the guest does not run now.
        self.at(address).map(|word| unsafe { word.read_volatile() })
    }

    /// Stores a word; does nothing outside.
    pub(crate) fn store(self, address: u64, value: u64) {
        if let Some(word) = self.at(address) {
            // SAFETY: as in `load`.
            unsafe { word.write_volatile(value) };
        }
    }

    /// Returns the first changed word, and its value.
    pub(crate) fn broken(self) -> Option<(u64, u64)> {
        let pages = self.frames.start.0..self.frames.end.0;
        let words = pages.flat_map(|pfn| (0..CODE_OFFSET).step_by(8).map(move |at| Pfn(pfn).address() + at));
        words
            .filter_map(|address| Some((address, self.load(address)?)))
            .find(|(address, word)| address != word)
    }
}
