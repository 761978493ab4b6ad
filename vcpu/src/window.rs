//! A window on physical memory: where this process sees frames, for software vCPUs that have no other way to it.

use slat::{PAGE_SIZE, Pfn};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Frames 0 up to `frames`, contiguous in this process.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    base: NonNull<u8>,
    frames: u64,
}

// SAFETY: a window is an address range; who may use which frame when is decided by translations.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// A window of `frames` frames at `base`.
    ///
    /// # Safety
    /// The range is readable and writable memory for as long as any copy of the window is used, and no code holds
    /// Rust references into it: guests race there, as on real memory.
    pub unsafe fn new(base: NonNull<u8>, frames: u64) -> Self {
        Self { base, frames }
    }

    /// Where byte `offset` of frame `pfn` is; `None` outside of the window.
    #[inline(always)]
    fn at(&self, pfn: Pfn, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let inside = pfn.0 < self.frames && offset + len as u64 <= (self.frames - pfn.0) * PAGE_SIZE;
        // SAFETY: inside the range, checked.
        inside.then(|| unsafe { self.base.add((pfn.address() + offset) as usize) })
    }

    /// Copies out of memory. Where there is none, all bits read as one, as on a bus without an answer.
    #[inline(always)]
    pub fn read(&self, pfn: Pfn, offset: u64, into: &mut [u8]) {
        let Some(from) = self.at(pfn, offset, into.len()) else { return into.fill(0xff) };
        // SAFETY: `new` promised the memory; `into` is ours alone.
        unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// Copies into memory. Where there is none, the bytes are lost.
    #[inline(always)]
    pub fn write(&self, pfn: Pfn, offset: u64, from: &[u8]) {
        let Some(to) = self.at(pfn, offset, from.len()) else { return };
        // SAFETY: as in `read`.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// The word there, whose place is a multiple of its size.
    fn word(&self, pfn: Pfn, offset: u64) -> Option<&AtomicU64> {
        let at = self.at(pfn, offset & !7, 8)?;
        // SAFETY: `new` promised the memory, which is page-aligned. Other accesses race with this one, as on real memory.
        Some(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// Loads a little-endian word at once; all ones where there is no memory.
    pub(crate) fn load_word(&self, pfn: Pfn, offset: u64) -> u64 {
        // ORDER(guest): Acquire, as x86 and a walker have it: what an entry names is read after the entry.
        self.word(pfn, offset).map_or(u64::MAX, |word| u64::from_le(word.load(Acquire)))
    }

    /// Stores `new` where there is `old`, at once; else says what is there.
    pub(crate) fn exchange_word(&self, pfn: Pfn, offset: u64, old: u64, new: u64) -> Result<u64, u64> {
        let Some(word) = self.word(pfn, offset) else { return Err(u64::MAX) };
        // ORDER(guest): AcqRel, as the guest's own locked instruction.
        let done = word.compare_exchange(old.to_le(), new.to_le(), AcqRel, Acquire);
        done.map(u64::from_le).map_err(u64::from_le)
    }
}
