//! A dirty log of one region: one bit per page.

use slat_slots::PAGE_SIZE;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use vm_memory::bitmap::{Bitmap, BitmapSlice, NewBitmap, WithBitmapSlice};

const PAGE: usize = PAGE_SIZE as usize;

/// The dirty log of a region: one bit per page of 4 KiB. Devices may mark during a harvest.
///
/// ```
/// use slat_vm_memory::Marks;
/// use vm_memory::bitmap::{Bitmap, NewBitmap};
/// let marks = Marks::with_len(0x10_0004); // the last page has four bytes
/// marks.mark_dirty(0xffe, 4);
/// marks.mark_dirty(0x10_0000, 1);
/// let mut pages = Vec::new();
/// marks.take(|page| pages.push(page));
/// assert_eq!(pages, [0, 1, 0x100]);
/// assert!(!marks.dirty_at(0), "taken");
/// ```
#[derive(Debug, Default)]
pub struct Marks(Box<[AtomicU64]>);

/// [`Marks`] from an offset on.
#[derive(Clone, Copy, Debug)]
pub struct MarksFrom<'a> {
    marks: &'a Marks,
    offset: usize,
}

impl Marks {
    /// Takes all marks: calls `visit` with the number of each dirty page of the region, in order. Stores before
    /// a taken mark are visible then. A mark set meanwhile is taken now or by the next call.
    pub fn take(&self, mut visit: impl FnMut(u64)) {
        for (n, word) in self.0.iter().enumerate() {
            // Most words are zero. A mark set concurrently with this load is left for the next call.
            if word.load(Relaxed) == 0 {
                continue;
            }
            // Acquire: sees the stores before each mark.
            let mut bits = word.swap(0, Acquire);
            while bits != 0 {
                visit(n as u64 * 64 + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
    }

    #[inline]
    fn mark_page(&self, page: usize) {
        if let Some(word) = self.0.get(page / 64) {
            // A read-modify-write even if the mark is set: it orders the store before the harvest that takes
            // the mark.
            word.fetch_or(1 << (page % 64), Release);
        }
    }
}

impl NewBitmap for Marks {
    fn with_len(bytes: usize) -> Self {
        Self((0..bytes.div_ceil(PAGE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }
}

impl<'a> WithBitmapSlice<'a> for Marks {
    type S = MarksFrom<'a>;
}

impl Bitmap for Marks {
    #[inline]
    fn mark_dirty(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (first, last) = (offset / PAGE, offset.saturating_add(len - 1) / PAGE);
        // Pages past the end do not exist.
        for page in first..=last.min(self.0.len() * 64) {
            self.mark_page(page);
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        let page = offset / PAGE;
        self.0.get(page / 64).is_some_and(|word| word.load(Acquire) >> (page % 64) & 1 != 0)
    }

    #[inline]
    fn slice_at(&self, offset: usize) -> MarksFrom<'_> {
        MarksFrom { marks: self, offset }
    }
}

impl WithBitmapSlice<'_> for MarksFrom<'_> {
    type S = Self;
}

impl BitmapSlice for MarksFrom<'_> {}

impl Bitmap for MarksFrom<'_> {
    #[inline]
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.marks.mark_dirty(self.offset.saturating_add(offset), len);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.marks.dirty_at(self.offset.saturating_add(offset))
    }

    #[inline]
    fn slice_at(&self, offset: usize) -> Self {
        Self { offset: self.offset.saturating_add(offset), ..*self }
    }
}
