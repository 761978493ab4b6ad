//! The marks of one memslot: one bit for each page, in chunks that exist once one of their pages is dirty.
//!
//! ```text
//! directory   [ · | ● | · | ALL ]        a word for each 128 MiB of the slot
//!                   └──▶ 4 KiB of bits
//! ```
//! Marking never waits and never fails, because vCPUs mark inside a section of the read side. If memory for a chunk is
//! missing, the directory marks all of the chunk's pages dirty. The migration then copies more pages, and loses none. A
//! log in which every page starts dirty begins like that, at no cost.
//!
//! A harvest takes bits word by word, each by one swap. Of several concurrent harvests exactly one gets each mark.

use crate::fallible;
use crate::slots::takings::Takings;
use crate::sync::prim::{AtomicPtr, AtomicU64, Relaxed};
#[cfg(not(loom))]
use alloc::alloc::{Layout, dealloc};
use alloc::boxed::Box;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use slat_slots::{Log, Slot};

/// Number of pages in a word.
pub(crate) const WORD: u64 = 64;
/// Number of words in a chunk.
pub(crate) const CHUNK: usize = if cfg!(loom) { 1 } else { 512 };
/// Number of pages in a chunk.
pub(crate) const CHUNK_PAGES: u64 = WORD * CHUNK as u64;

/// The numbers of the set bits of a word, in order.
#[inline(always)]
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    })
}

/// The bits of word number `word` that stand for pages of a slot with `pages` pages.
pub(crate) fn existing(word: u64, pages: u64) -> u64 {
    ones(pages.saturating_sub(word * WORD).min(WORD) as u32)
}

/// The lowest `count` bits; all from 64 on.
#[inline(always)]
pub(crate) const fn ones(count: u32) -> u64 {
    if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 }
}

/// The bits of one chunk.
struct Chunk([AtomicU64; CHUNK]);

/// In the directory: all pages of the chunk are dirty. No chunk has this address.
const ALL: *mut Chunk = core::ptr::without_provenance_mut(1);

/// The dirty log of one memslot; see the module's header.
pub struct Bitmap {
    directory: Box<[AtomicPtr<Chunk>]>,
    pages: u64,
    serial: u64,
    takings: Takings,
}

impl Log for Bitmap {
    fn begin(slot: &Slot, serial: u64, set: bool) -> Option<Self> {
        Self::new(slot.gfns.len(), serial, set)
    }
}

impl Bitmap {
    /// A log in which all or none of `pages` pages are dirty. `None` if memory for the directory is missing.
    pub(crate) fn new(pages: u64, serial: u64, all: bool) -> Option<Self> {
        let chunks = pages.div_ceil(CHUNK_PAGES) as usize;
        let directory =
            fallible::boxed(chunks, || AtomicPtr::new(if all { ALL } else { null_mut() })).ok()?;
        Some(Self { directory, pages, serial, takings: Takings::default() })
    }

    /// A number that distinguishes successive logs of a slot.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// How often pages were taken from this log.
    pub(crate) fn takings(&self) -> &Takings {
        &self.takings
    }

    /// Number of pages of the slot.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    pub(crate) fn chunks(&self) -> usize {
        self.directory.len()
    }

    /// Returns the numbers of the chunk's words that represent pages.
    pub(crate) fn words_of(&self, chunk: usize) -> Range<u64> {
        let first = (chunk * CHUNK) as u64;
        first..(first + CHUNK as u64).min(self.pages.div_ceil(WORD))
    }

    /// Marks page number `page` of the slot as written, or writable from now on.
    #[inline]
    pub(crate) fn mark(&self, page: u64) {
        debug_assert!(page < self.pages);
        self.mark_word(page / WORD, 1 << (page % WORD));
    }

    /// Marks the pages `bits` of word number `word`. Sets bits that are already set, too: only a write synchronizes
    /// with the harvest that takes the mark.
    #[inline]
    pub(crate) fn mark_word(&self, word: u64, bits: u64) {
        if let Some(words) = self.chunk_at(word) {
            // The harvest that takes the mark sees what this thread did before.
            words[word as usize % CHUNK].fetch_or(bits, order!(bitmap.mark, Release));
        }
    }

    /// Marks all of these pages.
    pub(crate) fn mark_pages(&self, pages: Range<u64>) {
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min((at / WORD + 1) * WORD);
            self.mark_word(at / WORD, (u64::MAX >> (WORD - (end - at))) << (at % WORD));
            at = end;
        }
    }

    /// Returns the words of a chunk, and links it if needed. `None` if all of its pages are dirty already.
    #[inline]
    fn chunk_at(&self, word: u64) -> Option<&[AtomicU64; CHUNK]> {
        let place = &self.directory[word as usize / CHUNK];
        if let Dirty::Bits(words) = Dirty::at(place) { Some(words) } else { Self::other_chunk(place) }
    }

    #[cold]
    fn other_chunk(place: &AtomicPtr<Chunk>) -> Option<&[AtomicU64; CHUNK]> {
        if matches!(Dirty::at(place), Dirty::Nothing) {
            link_chunk(place, null_mut(), new_chunk().map_or(ALL, NonNull::as_ptr));
        }
        // Earlier marks before this load; pairs with the fence in `divide`. If all pages are dirty,
        // no mark is written. So either the thread that divides the chunk sees the earlier marks, or this load sees the
        // chunk divided.
        fence!(bitmap_all.mark);
        if let Dirty::Bits(words) = Dirty::at(place) { Some(words) } else { None }
    }

    /// Whether the directory marks the whole chunk dirty. Marks can be taken only after it is [divided](Self::divide).
    pub(crate) fn is_whole(&self, chunk: usize) -> bool {
        matches!(Dirty::at(&self.directory[chunk]), Dirty::All)
    }

    /// Whether no page of the chunk is marked.
    pub(crate) fn is_clean(&self, chunk: usize) -> bool {
        matches!(Dirty::at(&self.directory[chunk]), Dirty::Nothing)
    }

    /// Gives a chunk that is dirty as a whole its own bits, all set. `None` if memory is missing.
    pub(crate) fn divide(&self, chunk: usize) -> Option<()> {
        let fresh = new_chunk()?;
        // SAFETY: fresh, and linked nowhere.
        let words = unsafe { &fresh.as_ref().0 };
        for word in self.words_of(chunk) {
            // The link publishes it.
            words[word as usize % CHUNK].store(existing(word, self.pages), Relaxed);
        }
        // If this fails, another thread has linked a chunk.
        link_chunk(&self.directory[chunk], ALL, fresh.as_ptr());
        // The link before later loads of this thread; see `other_chunk`.
        fence!(bitmap_all.divide);
        Some(())
    }

    /// Takes the marks of word number `word` in `mask`; none if the chunk is [whole](Self::is_whole).
    #[inline]
    pub(crate) fn take(&self, word: u64, mask: u64) -> u64 {
        let Dirty::Bits(words) = Dirty::at(&self.directory[word as usize / CHUNK]) else { return 0 };
        let word = &words[word as usize % CHUNK];
        if word.load(Relaxed) & mask == 0 {
            return 0;
        }
        // Pairs with the Release of `mark`; a later mark finds the bit clear.
        word.fetch_and(!mask, order!(bitmap.take, AcqRel)) & mask
    }

    /// Takes all marks of the words from number `first` on, which are in one chunk, into `into`. Returns the number of
    /// pages; 0 if the chunk is [whole](Self::is_whole).
    pub(crate) fn take_all(&self, first: u64, into: &mut [u64]) -> u64 {
        let from = first as usize % CHUNK;
        let Dirty::Bits(words) = Dirty::at(&self.directory[first as usize / CHUNK]) else {
            into.fill(0);
            return 0;
        };
        let words = &words[from..][..into.len()];
        if words.iter().fold(0, |any, word| any | word.load(Relaxed)) == 0 {
            into.fill(0);
            return 0;
        }
        // The processor predicts badly which words have marks, and a locked instruction waits for the prediction. So
        // list them first.
        let (mut marked, mut len) = ([0_u16; CHUNK], 0);
        for (index, (word, into)) in words.iter().zip(&mut *into).enumerate() {
            *into = 0;
            marked[len % CHUNK] = index as u16;
            len += usize::from(word.load(Relaxed) != 0);
        }
        let mut pages = 0;
        for &index in &marked[..len] {
            let index = usize::from(index);
            into[index] = words[index].swap(0, order!(bitmap.take, AcqRel));
            pages += u64::from(into[index].count_ones());
        }
        pages
    }

    /// Returns the marks of word number `word` and keeps them.
    pub(crate) fn word(&self, word: u64) -> u64 {
        match Dirty::at(&self.directory[word as usize / CHUNK]) {
            Dirty::Nothing => 0,
            Dirty::All => existing(word, self.pages),
            // Orders nothing: the marks stay, and a harvest finds them again.
            Dirty::Bits(words) => words[word as usize % CHUNK].load(Relaxed),
        }
    }
}

fn new_chunk() -> Option<NonNull<Chunk>> {
    // SAFETY: a chunk's size is not zero, and all-zero is a valid chunk without marks.
    #[cfg(not(loom))]
    return unsafe { fallible::alloc_zeroed(Layout::new::<Chunk>()) }.map(NonNull::cast);
    #[cfg(loom)]
    Some(NonNull::from(Box::leak(Box::new(Chunk(core::array::from_fn(|_| AtomicU64::new(0)))))))
}

/// # Safety
/// `chunk` is from [`new_chunk`], no thread reaches it, and it is freed once.
unsafe fn free_chunk(chunk: *mut Chunk) {
    #[cfg(not(loom))]
    // SAFETY: the caller guarantees it; the layout is that of `new_chunk`.
    unsafe {
        dealloc(chunk.cast(), Layout::new::<Chunk>());
    }
    #[cfg(loom)]
    // SAFETY: as above; it is a box.
    drop(unsafe { Box::from_raw(chunk) });
}

/// Replaces `old` by a chunk or by [`ALL`]. Frees the chunk if another thread was faster.
#[cold]
fn link_chunk(place: &AtomicPtr<Chunk>, old: *mut Chunk, link: *mut Chunk) {
    // The words before the link; pairs with `Dirty::at`.
    let linked = place.compare_exchange(old, link, order!(bitmap.link, AcqRel), Relaxed).is_ok();
    if !linked && link != ALL {
        // SAFETY: from `new_chunk`, and never linked.
        unsafe { free_chunk(link) };
    }
}

/// The dirty pages of a chunk.
enum Dirty<'b> {
    Nothing,
    All,
    Bits(&'b [AtomicU64; CHUNK]),
}

impl<'b> Dirty<'b> {
    #[inline(always)]
    fn at(place: &'b AtomicPtr<Chunk>) -> Self {
        // Pairs with the Release of the thread that linked the chunk, so its words are visible.
        let chunk = place.load(order!(bitmap.follow, Acquire));
        match NonNull::new(chunk) {
            None => Self::Nothing,
            Some(_) if chunk == ALL => Self::All,
            // SAFETY: a linked chunk stays as long as the directory, which is borrowed.
            Some(chunk) => Self::Bits(unsafe { &chunk.as_ref().0 }),
        }
    }
}

impl Drop for Bitmap {
    fn drop(&mut self) {
        for place in &self.directory {
            if let Dirty::Bits(_) = Dirty::at(place) {
                // SAFETY: from `new_chunk`; `&mut self` means that no thread marks.
                unsafe { free_chunk(place.load(Relaxed)) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn dirty(bitmap: &Bitmap) -> Vec<u64> {
        let words = (0..bitmap.pages.div_ceil(WORD)).map(|word| (word, bitmap.word(word)));
        let bits =
            words.flat_map(|(word, bits)| (0..WORD).map(move |bit| (word * WORD + bit, bits >> bit & 1)));
        bits.filter(|(_, bit)| *bit != 0).map(|(page, _)| page).collect()
    }

    #[test]
    fn marks_are_found_again() {
        let bitmap = Bitmap::new(3 * CHUNK_PAGES + 5, 0, false).unwrap();
        let pages = [0, 63, 64, CHUNK_PAGES - 1, 2 * CHUNK_PAGES, 3 * CHUNK_PAGES + 4];
        for page in pages.iter().rev().chain(&pages) {
            bitmap.mark(*page);
        }
        assert_eq!(dirty(&bitmap), pages);
        assert!(bitmap.is_clean(1), "an untouched chunk costs nothing");
    }

    #[test]
    fn ranges_are_marked_to_the_page() {
        for pages in [0..0, 0..1, 5..64, 5..65, 63..129, 64..128, 0..300] {
            let bitmap = Bitmap::new(300, 0, false).unwrap();
            bitmap.mark_pages(pages.clone());
            assert!(dirty(&bitmap).into_iter().eq(pages));
        }
    }

    #[test]
    fn taken_marks_are_cleared_and_others_stay() {
        let bitmap = Bitmap::new(200, 0, false).unwrap();
        bitmap.mark_pages(10..140);
        assert_eq!((bitmap.take_all(2, &mut [7, 7]), bitmap.word(2)), (12, 0));
        bitmap.mark_pages(128..140);
        assert_eq!(bitmap.take(1, 0xff), 0xff);
        assert_eq!(bitmap.take(1, 0xff), 0);
        assert_eq!(bitmap.take(0, u64::MAX), u64::MAX << 10);
        assert!(dirty(&bitmap).into_iter().eq(72..140));
    }

    #[test]
    fn a_whole_chunk_is_divided_before_any_of_it_is_taken() {
        let bitmap = Bitmap::new(CHUNK_PAGES + 3, 0, true).unwrap();
        assert_eq!(dirty(&bitmap).len() as u64, CHUNK_PAGES + 3, "the slot's own pages, not the chunk's");
        bitmap.mark(CHUNK_PAGES + 1);
        assert!(bitmap.is_whole(1));
        assert_eq!(bitmap.take(CHUNK as u64, 1), 0);
        bitmap.divide(1).unwrap();
        bitmap.divide(1).unwrap();
        assert_eq!(bitmap.take(CHUNK as u64, 0b10), 0b10);
        assert_eq!(bitmap.word(CHUNK as u64), 0b101);
    }

    #[test]
    fn threads_that_make_the_same_chunk_lose_no_mark() {
        for _ in 0..50 {
            let bitmap = Bitmap::new(CHUNK_PAGES, 0, false).unwrap();
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
