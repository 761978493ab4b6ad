//! A window on physical memory: frames as this process sees them, for software vCPUs.

use slat::{PAGE_SIZE, Pfn};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Frames 0 to `frames`, contiguous in this process.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    base: NonNull<u8>,
    frames: u64,
}

// SAFETY: a window is an address range; translations decide which code may use which frame.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Creates a window of `frames` frames at `base`.
    ///
    /// # Safety
    /// The range is readable and writable memory while any copy of the window is used. No code holds Rust
    /// references into it: guests race there, like on real memory.
    pub unsafe fn new(base: NonNull<u8>, frames: u64) -> Self {
        Self { base, frames }
    }

    /// Returns the address of byte `offset` of frame `pfn`; `None` outside of the window.
    #[inline(always)]
    fn at(&self, pfn: Pfn, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let inside = pfn.0 < self.frames && offset + len as u64 <= (self.frames - pfn.0) * PAGE_SIZE;
        // SAFETY: checked to be inside the range.
        inside.then(|| unsafe { self.base.add((pfn.address() + offset) as usize) })
    }

    /// Copies out of memory. Without memory all bits read as one, like on an unanswered bus.
    #[inline(always)]
    pub fn read(&self, pfn: Pfn, offset: u64, into: &mut [u8]) {
        let Some(from) = self.at(pfn, offset, into.len()) else { return into.fill(0xff) };
        // SAFETY: `new` guarantees the memory; `into` is exclusive.
        unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// Copies into memory. Without memory the bytes are lost.
    #[inline(always)]
    pub fn write(&self, pfn: Pfn, offset: u64, from: &[u8]) {
        let Some(to) = self.at(pfn, offset, from.len()) else { return };
        // SAFETY: as in `read`.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Returns the word at this naturally aligned place.
    fn word(&self, pfn: Pfn, offset: u64) -> Option<&AtomicU64> {
        let at = self.at(pfn, offset & !7, 8)?;
        // SAFETY: `new` guarantees the memory, which is page-aligned. Other accesses race with this one, like
        // on real memory.
        Some(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// Atomically loads a little-endian word; all ones without memory.
    pub(crate) fn load_word(&self, pfn: Pfn, offset: u64) -> u64 {
        // ORDER(guest): Acquire, as on x86 and in a walker: memory that an entry names is read after the entry.
        self.word(pfn, offset).map_or(u64::MAX, |word| u64::from_le(word.load(Acquire)))
    }

    /// Atomically stores `new` if the word is `old`; otherwise returns the word.
    pub(crate) fn exchange_word(&self, pfn: Pfn, offset: u64, old: u64, new: u64) -> Result<u64, u64> {
        let Some(word) = self.word(pfn, offset) else { return Err(u64::MAX) };
        // ORDER(guest): AcqRel, like the guest's own locked instruction.
        let done = word.compare_exchange(old.to_le(), new.to_le(), AcqRel, Acquire);
        done.map(u64::from_le).map_err(u64::from_le)
    }
}
