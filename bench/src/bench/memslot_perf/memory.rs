//! The primary MMU of this bench: as little of one as will do, the same for both designs of memslots.
//!
//! Every page of a host range is always there, in one of two frames of its own; taking it away means that from now on
//! it lies in the other one. So a host look-up is arithmetic and one byte, and a guest that goes on using a page
//! that it has lost is found out: it misses in the page what it wrote there two losses ago.

use slat::{HostPage, Hva, PAGE_SHIFT, PAGE_SIZE, Pfn, Span};
use slat_vcpu::Window;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Host memory behind a range of host addresses.
pub struct Memory {
    hvas: Span<Hva>,
    /// Which of its two frames each page lies in.
    which: Box<[AtomicU8]>,
    frames: NonNull<u8>,
}

// SAFETY: the frames are reached through windows only, whose users race there as on real memory.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("hvas", &self.hvas).finish_non_exhaustive()
    }
}

impl Memory {
    /// Zeroed memory behind `hvas`: whole pages, one at least.
    pub fn new(hvas: Span<Hva>) -> Self {
        let pages = (hvas.len() / PAGE_SIZE) as usize;
        assert!(pages > 0, "memory of no pages");
        // SAFETY: the layout is not of size zero.
        let frames = unsafe { alloc_zeroed(Self::layout(pages)) };
        let frames = NonNull::new(frames).unwrap_or_else(|| handle_alloc_error(Self::layout(pages)));
        Self { hvas, which: (0..pages).map(|_| AtomicU8::new(0)).collect(), frames }
    }

    fn layout(pages: usize) -> Layout {
        let page = PAGE_SIZE as usize;
        Layout::from_size_align(2 * pages * page, page).expect("far below the end of the address space")
    }

    /// Makes every page hold zero in its first word, which is the only one that guests here use. Between samples,
    /// while no vCPU runs.
    pub fn reset(&self) {
        let window = self.window();
        for frame in 0..2 * self.which.len() as u64 {
            window.write(Pfn(frame), 0, &0_u64.to_le_bytes());
        }
    }

    /// Where vCPUs see the frames. Used while the memory lives.
    pub fn window(&self) -> Window {
        // SAFETY: mapped until the drop. The code that runs vCPUs on it keeps it alive, and holds no references into it.
        unsafe { Window::new(self.frames, 2 * self.which.len() as u64) }
    }

    /// What is at `hva` now.
    #[inline(always)]
    pub fn page(&self, hva: Hva) -> Option<HostPage> {
        let page = hva.0.wrapping_sub(self.hvas.start.0) >> PAGE_SHIFT;
        let which = self.which.get(page as usize)?.load(Relaxed);
        Some(HostPage { pfn: Pfn(2 * page + u64::from(which)), ..HostPage::PLAIN })
    }

    /// Takes the pages of `hvas` away: each comes back as its other frame. One thread at a time, inside an
    /// invalidation of the range.
    pub fn take_away(&self, hvas: Span<Hva>) {
        let page = |hva: Hva| ((hva.0 - self.hvas.start.0) >> PAGE_SHIFT) as usize;
        for which in &self.which[page(hvas.start)..page(hvas.end)] {
            which.store(which.load(Relaxed) ^ 1, Relaxed);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.frames.as_ptr(), Self::layout(self.which.len())) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_taken_away_comes_back_as_another() {
        let memory = Memory::new(Span::sized(Hva(0x10_0000), 4 * PAGE_SIZE));
        let frame = |nth: u64| memory.page(Hva(0x10_0000) + nth * PAGE_SIZE).map(|page| page.pfn.0);
        assert_eq!([0, 1, 2, 3, 4].map(frame), [Some(0), Some(2), Some(4), Some(6), None]);
        assert_eq!(memory.page(Hva(0xf_f000)), None);
        memory.take_away(Span::sized(Hva(0x10_1000), 2 * PAGE_SIZE));
        assert_eq!([0, 1, 2, 3].map(frame), [Some(0), Some(3), Some(5), Some(6)]);
        memory.take_away(Span::sized(Hva(0x10_2000), PAGE_SIZE));
        assert_eq!(frame(2), Some(4));
    }

    #[test]
    fn a_reset_forgets_what_was_written() {
        let memory = Memory::new(Span::sized(Hva(0), PAGE_SIZE));
        let mut word = [1; 8];
        memory.window().write(Pfn(1), 0, &word);
        memory.reset();
        memory.window().read(Pfn(1), 0, &mut word);
        assert_eq!(word, [0; 8]);
    }
}
