//! L1's memory, and the host behind it. The host uses each frame once.

use slat::table::Word;
use slat::{Access, Host, HostError, HostPage, Hva, Idle, PAGE_SIZE, Pfn};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of L1's frames.
pub const FRAMES: u64 = 32;
const BASE: Hva = Hva(1 << 40);
const WRITABLE: u64 = 1 << 63;

/// Returns the host address of a page.
pub fn hva(page: u64) -> Hva {
    BASE + page * PAGE_SIZE
}

/// L1's memory and its host.
#[derive(Debug)]
pub struct Ram {
    words: Vec<AtomicU64>,
    frames: Vec<AtomicU64>,
    next: AtomicU64,
    /// Pages for which the host must sleep, a bit each.
    sleeps: u64,
}

impl Ram {
    pub fn new(sleeps: u64) -> Self {
        Self {
            words: (0..FRAMES * 512).map(|_| AtomicU64::new(0)).collect(),
            frames: (0..FRAMES).map(|page| AtomicU64::new(0x1000 + page | WRITABLE)).collect(),
            next: AtomicU64::new(0x2000),
            sleeps,
        }
    }

    fn number(hva: Hva) -> u64 {
        (hva.0 - BASE.0) / PAGE_SIZE
    }

    /// Returns a word of L1's memory, by page of the host.
    pub fn word(&self, page: u64, entry: u64) -> &AtomicU64 {
        &self.words[(page * 512 + entry) as usize]
    }

    /// Returns the host's page.
    pub fn now(&self, page: u64) -> HostPage {
        let frame = self.frames[page as usize].load(Relaxed);
        HostPage { pfn: Pfn(frame & !WRITABLE), writable: frame & WRITABLE != 0, ..HostPage::PLAIN }
    }

    /// Moves a page to another frame.
    pub fn moves(&self, page: u64) {
        self.frames[page as usize].store(self.next.fetch_add(1, Relaxed) | WRITABLE, Relaxed);
    }

    /// Makes a page read-only until the host is asked for write access.
    pub fn protect(&self, page: u64) {
        self.frames[page as usize].fetch_and(!WRITABLE, Relaxed);
    }

    fn there(&self, hva: Hva, access: Access) -> bool {
        let page = Self::number(hva);
        self.sleeps >> page & 1 == 0 && (access != Access::Write || self.now(page).writable)
    }
}

impl Host for Ram {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.there(hva, access).then(|| self.now(Self::number(hva)))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let page = Self::number(hva);
        if access == Access::Write {
            self.frames[page as usize].fetch_or(WRITABLE, Relaxed);
        }
        Ok(self.now(page))
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.words[((hva.0 - BASE.0) / 8) as usize].load(Relaxed)))
    }

    fn compare_exchange(&self, hva: Hva, old: Word, new: Word) -> Option<Result<Word, Word>> {
        if !self.now(Self::number(hva)).writable {
            return None;
        }
        let word = &self.words[((hva.0 - BASE.0) / 8) as usize];
        Some(word.compare_exchange(old.0, new.0, Relaxed, Relaxed).map(Word).map_err(Word))
    }
}
