//! The marks of one memslot: a bit a page, in chunks that exist once something in them is dirty.
//!
//! ```text
//! directory   [ · | ● | · | ALL ]        a word for each 128 MiB of the slot
//!                   └──▶ 4 KiB of bits
//! ```
//! Marking never waits and never fails: vCPUs mark inside a section of the read side. Where no memory can be had
//! for a chunk, the directory says that all of its pages are dirty: more work for whoever copies them, and no
//! page lost.

use crate::sync::prim::{Acquire, AtomicPtr, AtomicU64, Relaxed, Release};
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::{NonNull, null_mut};

/// Pages of one chunk.
const PAGES: u64 = 1 << 15;
const WORDS: usize = PAGES as usize / 64;

/// The bits of one chunk.
struct Chunk([AtomicU64; WORDS]);

/// In the directory: every page of the chunk is dirty. An address that no chunk has.
const ALL: *mut Chunk = core::ptr::without_provenance_mut(1);

/// See the module's header.
pub(crate) struct Bitmap {
    directory: Box<[AtomicPtr<Chunk>]>,
    pages: u64,
}

impl Bitmap {
    /// No page of `pages` is dirty. `None` where there is no memory for the directory.
    pub(crate) fn new(pages: u64) -> Option<Self> {
        let chunks = pages.div_ceil(PAGES) as usize;
        let mut directory = Vec::new();
        directory.try_reserve_exact(chunks).ok()?;
        directory.resize_with(chunks, || AtomicPtr::new(null_mut()));
        Some(Self { directory: directory.into_boxed_slice(), pages })
    }

    /// Page number `page` of the slot has been written, or may be from now on.
    pub(crate) fn mark(&self, page: u64) {
        debug_assert!(page < self.pages);
        let place = &self.directory[(page / PAGES) as usize];
        let mut dirty = Dirty::at(place);
        if matches!(dirty, Dirty::Nothing) {
            Self::link_chunk(place);
            dirty = Dirty::at(place);
        }
        if let Dirty::Bits(words) = dirty {
            let (word, bit) = (&words[(page % PAGES / 64) as usize], 1 << (page % 64));
            // A page that is dirty already is the common case: then the line stays shared.
            if word.load(Relaxed) & bit == 0 {
                // ORDER(bitmap): Release: whoever reads the mark sees what made this thread set it.
                word.fetch_or(bit, Release);
            }
        }
    }

    #[cold]
    fn link_chunk(place: &AtomicPtr<Chunk>) {
        // SAFETY: a chunk has a size; all-zero is 512 atomics of no bits.
        let fresh = NonNull::new(unsafe { alloc_zeroed(Layout::new::<Chunk>()) });
        let link = fresh.map_or(ALL, |fresh| fresh.cast().as_ptr());
        // ORDER(bitmap): Release: the zeroes before the link; pairs with `Dirty::at`.
        let lost = place.compare_exchange(null_mut(), link, Release, Relaxed).is_err();
        if let (true, Some(fresh)) = (lost, fresh) {
            // SAFETY: allocated above with this layout, and linked nowhere.
            unsafe { dealloc(fresh.as_ptr(), Layout::new::<Chunk>()) };
        }
    }

    /// Calls `visit` with the number of each dirty page, in order.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u64)) {
        for (first, place) in (0..).step_by(PAGES as usize).zip(&self.directory) {
            match Dirty::at(place) {
                Dirty::Nothing => {}
                Dirty::All => (first..(first + PAGES).min(self.pages)).for_each(&mut visit),
                Dirty::Bits(words) => {
                    for (base, word) in (first..).step_by(64).zip(words) {
                        // ORDER(bitmap): Acquire; see `mark`.
                        let mut ahead = word.load(Acquire);
                        while ahead != 0 {
                            visit(base + u64::from(ahead.trailing_zeros()));
                            ahead &= ahead - 1;
                        }
                    }
                }
            }
        }
    }
}

/// What is dirty of a chunk.
enum Dirty<'b> {
    Nothing,
    All,
    Bits(&'b [AtomicU64; WORDS]),
}

impl<'b> Dirty<'b> {
    fn at(place: &'b AtomicPtr<Chunk>) -> Self {
        // ORDER(bitmap): Acquire pairs with the Release of whoever linked the chunk: its zeroes are seen.
        let chunk = place.load(Acquire);
        match NonNull::new(chunk) {
            None => Self::Nothing,
            Some(_) if chunk == ALL => Self::All,
            // SAFETY: linked once and for all; it lives as long as the directory, which is borrowed.
            Some(chunk) => Self::Bits(unsafe { &chunk.as_ref().0 }),
        }
    }
}

impl Drop for Bitmap {
    fn drop(&mut self) {
        for place in &self.directory {
            if let Dirty::Bits(_) = Dirty::at(place) {
                // SAFETY: allocated by `link_chunk` with this layout; nobody marks any more (`&mut self`).
                unsafe { dealloc(place.load(Relaxed).cast(), Layout::new::<Chunk>()) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn dirty(bitmap: &Bitmap) -> Vec<u64> {
        let mut pages = Vec::new();
        bitmap.for_each(|page| pages.push(page));
        pages
    }

    #[test]
    fn marks_are_found_again_in_order() {
        let bitmap = Bitmap::new(3 * PAGES + 5).unwrap();
        let pages = [0, 63, 64, PAGES - 1, 2 * PAGES, 3 * PAGES + 4];
        for page in pages.iter().rev().chain(&pages) {
            bitmap.mark(*page);
        }
        assert_eq!(dirty(&bitmap), pages);
        assert!(bitmap.directory[1].load(Relaxed).is_null(), "an untouched chunk costs nothing");
    }

    #[test]
    fn a_chunk_without_memory_is_dirty_as_a_whole() {
        let bitmap = Bitmap::new(PAGES + 3).unwrap();
        bitmap.directory[1].store(ALL, Relaxed);
        bitmap.mark(PAGES + 1);
        assert_eq!(dirty(&bitmap), [PAGES, PAGES + 1, PAGES + 2], "the slot's own pages, not the chunk's");
    }

    #[test]
    fn threads_that_make_the_same_chunk_lose_no_mark() {
        for _ in 0..50 {
            let bitmap = Bitmap::new(PAGES).unwrap();
            std::thread::scope(|scope| {
                for part in 0..3 {
                    let bitmap = &bitmap;
                    scope.spawn(move || (0..300).for_each(|at| bitmap.mark(at * 3 + part)));
                }
            });
            assert!(dirty(&bitmap).into_iter().eq(0..900));
        }
    }
}
