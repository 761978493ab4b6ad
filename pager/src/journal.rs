//! The state that outlives a killed daemon: which pages are settled, so that their content is no longer the template's.

use crate::layout::Layout;
use crate::uffd::abi::Message;
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most threads that read events of one guest.
pub const MOST_READERS: usize = 16;
/// Most events that one of them reads at a time.
pub const MESSAGES: usize = 16;

/// Offset of the bits.
const HEAD: usize = MOST_READERS * MESSAGES * size_of::<Message>();

/// Bits for each page of the image, in memory with a descriptor, so that another process can keep it. A page's bit is
/// set once the page was served or removed, and never cleared: a page with that bit that faults is zero. The exception
/// is a page that is *away*, in the swap file.
///
/// The kernel considers a removal as known as soon as the event is read. A daemon that is killed between its read and
/// its note would lose it. Therefore events are read into the journal itself: the system call that takes an event also
/// writes it here. A new daemon finds the last events of the old one, and notes them. To note one twice does no harm.
#[derive(Debug)]
pub struct Journal {
    memory: OwnedFd,
    start: NonNull<u8>,
    size: usize,
    pages: usize,
    taken: [AtomicBool; MOST_READERS],
}

// SAFETY: the bits are atomics, and an event buffer has one owner: `taken`.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl Journal {
    /// Makes an empty journal.
    pub fn new(layout: &Layout) -> io::Result<Self> {
        let memory = memfd_create("slat-pager-journal", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, size(layout.image_pages()) as u64)?;
        Self::open(memory, layout)
    }

    /// Opens a journal that another process of the same guest made.
    pub fn open(memory: OwnedFd, layout: &Layout) -> io::Result<Self> {
        let pages = layout.image_pages();
        let size = size(pages);
        if fstat(&memory)?.st_size != size as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the journal is of another guest"));
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, where the kernel finds room.
        let start = unsafe { mmap(std::ptr::null_mut(), size, prot, flags, &memory, 0) }?;
        // The kernel must not wait for the pages of event buffers while it writes an event, or a kill could come between.
        // Without the right to lock them they are still present, unless they are swapped out, because the loop below writes
        // to each. The pages of the bits come when they are used.
        // SAFETY: the range was just mapped.
        _ = unsafe { mlock(start, HEAD) };
        let start = NonNull::new(start.cast()).expect("a mapping is not at 0");
        let journal = Self { memory, start, size, pages, taken: Default::default() };
        for reader in 0..MOST_READERS {
            let mut last = journal.reader(reader).expect("nothing reads yet");
            journal.note_all(MESSAGES, &mut last, layout);
        }
        Ok(journal)
    }

    /// Returns a second descriptor of its memory, for the keeper.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(fcntl_dupfd_cloexec(self.memory.as_fd(), 3)?)
    }

    /// Notes the removals in the first events of a buffer, each once: the next daemon must not note a removal again
    /// after the page was used again and went to the swap file.
    pub(crate) fn note_all(&self, count: usize, reader: &mut Reader, layout: &Layout) {
        for message in &mut reader.0[..count] {
            if let Some(range) = message.removed() {
                for pages in layout.pages(range.start, range.end) {
                    self.settle(pages.clone());
                    self.come_back(pages);
                }
            }
            *message = Message::default();
        }
    }

    /// Settles these pages.
    pub fn settle(&self, pages: Range<usize>) {
        self.each(pages, |word, mask| _ = self.word(word).fetch_or(mask, Ordering::Relaxed));
    }

    /// Notes that these pages are only in the swap file.
    pub(crate) fn leave(&self, pages: Range<usize>) {
        self.each(pages, |word, mask| _ = self.away_word(word).fetch_or(mask, Ordering::Relaxed));
    }

    /// Notes that these pages are not only in the swap file.
    pub(crate) fn come_back(&self, pages: Range<usize>) {
        self.each(pages, |word, mask| _ = self.away_word(word).fetch_and(!mask, Ordering::Relaxed));
    }

    /// Returns whether a page is only in the swap file.
    pub(crate) fn is_away(&self, page: usize) -> bool {
        page < self.pages && self.away_word(page / 64).load(Ordering::Relaxed) >> (page % 64) & 1 != 0
    }

    /// Returns the number of pages that are only in the swap file.
    pub(crate) fn away(&self) -> usize {
        let count = |word| self.away_word(word).load(Ordering::Relaxed).count_ones() as usize;
        (0..self.pages.div_ceil(64)).map(count).sum()
    }

    /// Calls `change` for each word with bits of these pages.
    fn each(&self, pages: Range<usize>, change: impl Fn(usize, u64)) {
        let end = pages.end.min(self.pages);
        let mut page = pages.start;
        while page < end {
            let bits = (64 - page % 64).min(end - page);
            change(page / 64, (u64::MAX >> (64 - bits)) << (page % 64));
            page += bits;
        }
    }

    /// Returns whether a page is settled.
    pub fn is_settled(&self, page: usize) -> bool {
        page >= self.pages || self.word(page / 64).load(Ordering::Relaxed) >> (page % 64) & 1 != 0
    }

    /// Returns the number of settled pages.
    pub fn settled(&self) -> usize {
        (0..self.pages.div_ceil(64))
            .map(|word| self.word(word).load(Ordering::Relaxed).count_ones() as usize)
            .sum()
    }

    /// Returns the buffer into which a thread reads events. `None`: it is taken.
    pub fn reader(&self, number: usize) -> Option<Reader<'_>> {
        if number >= MOST_READERS || self.taken[number].swap(true, Ordering::Acquire) {
            return None;
        }
        let at = number * MESSAGES * size_of::<Message>();
        // SAFETY: inside of the mapping, aligned (it begins at a page), any bytes are messages, and `taken` gives each part to one
        // owner at a time, which borrows the journal. A daemon of the same guest that still ran would write there too; the keeper
        // starts one only when the last one has ended.
        let messages = unsafe {
            std::slice::from_raw_parts_mut(self.start.add(at).cast::<Message>().as_ptr(), MESSAGES)
        };
        Some(Reader(messages, &self.taken[number]))
    }

    fn away_word(&self, index: usize) -> &AtomicU64 {
        self.word(self.pages.div_ceil(64) + index)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.pages.div_ceil(64) * 2);
        // SAFETY: inside of the mapping, aligned, and used as an atomic only.
        unsafe { self.start.add(HEAD + index * 8).cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`; every borrow of it has ended.
        _ = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// A thread's event buffer.
pub struct Reader<'a>(pub &'a mut [Message], &'a AtomicBool);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.1.store(false, Ordering::Release);
    }
}

fn size(pages: usize) -> usize {
    (HEAD + pages.div_ceil(64) * 2 * 8).next_multiple_of(crate::uffd::PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Region;
    use crate::uffd::abi;

    fn layout() -> Layout {
        Layout::new(vec![Region { base: 1 << 30, size: 200 * 4096, offset: 0 }], 200 * 4096).unwrap()
    }

    #[test]
    fn bits_are_set_by_ranges() {
        let journal = Journal::new(&layout()).unwrap();
        for (range, sum) in [(3..4, 1), (60..70, 11), (64..128, 69), (190..1000, 79), (7..7, 79)] {
            journal.settle(range);
            assert_eq!(journal.settled(), sum);
        }
        let settled: Vec<usize> = (0..200).filter(|page| journal.is_settled(*page)).collect();
        assert!(settled.iter().all(|page| *page == 3 || (60..128).contains(page) || *page >= 190));
        assert!(journal.is_settled(200), "what is beyond is not the template's");
    }

    #[test]
    fn an_event_that_was_read_and_not_noted_is_noted_by_the_next_daemon() {
        let journal = Journal::new(&layout()).unwrap();
        journal.settle(0..1);
        let reader = journal.reader(5).unwrap();
        assert!(journal.reader(5).is_none() && journal.reader(MOST_READERS).is_none());
        let words = [(1 << 30) + 10 * 4096, (1 << 30) + 12 * 4096, 0];
        reader.0[1] = Message { event: abi::EVENT_REMOVE, words, ..Message::default() };
        drop(reader);
        assert!(journal.reader(5).is_some());
        let next = Journal::open(journal.share().unwrap(), &layout()).unwrap();
        let settled: Vec<usize> = (0..200).filter(|page| next.is_settled(*page)).collect();
        assert_eq!(settled, [0, 10, 11]);
    }

    #[test]
    fn a_journal_of_another_size_is_refused() {
        let journal = Journal::new(&layout()).unwrap();
        let other = Layout::new(vec![Region { base: 0, size: 1 << 30, offset: 0 }], 1 << 30).unwrap();
        assert!(Journal::open(journal.share().unwrap(), &other).is_err());
    }
}
