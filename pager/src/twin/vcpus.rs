//! The threads of a twin, and their oracle.

use super::image::{Versions, WORDS, is_page, mix};
use super::memory::Memory;
use crate::uffd::PAGE;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Report of a twin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Touched pages, counted each time.
    pub accesses: u64,
    /// Pages given back.
    pub removed: u64,
    /// Pages with a wrong byte, counted each time.
    pub wrong: u64,
    /// Description of the first wrong page.
    pub first: Option<String>,
    /// True if there was no access for a long time.
    pub frozen: bool,
    /// Longest access, in nanoseconds.
    pub longest: u64,
    /// Stored snapshots.
    #[serde(default)]
    pub stored: u64,
    /// Errors of snapshots that were not stored.
    #[serde(default)]
    pub refused: Vec<String>,
}

impl Report {
    /// Returns whether every byte was right, and the guest was not frozen.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && !self.frozen && self.accesses > 0
    }
}

/// Expected state of a page.
#[derive(Clone, Copy)]
struct Page {
    /// `None`: the page was given back, and is zero.
    version: Option<u32>,
    /// True if the page was present once. A page of shared memory stays present until it is removed.
    touched: bool,
}

/// State that the threads share.
pub struct Shared {
    memory: &'static Memory,
    oracle: Vec<Mutex<Page>>,
    versions: AtomicU32,
    pub accesses: AtomicU64,
    removed: AtomicU64,
    wrong: AtomicU64,
    longest: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Shared {
    /// `begin` has the initial versions of the pages, if not the template's.
    pub fn new(memory: &'static Memory, begin: Option<&Versions>) -> Self {
        let zero = || AtomicU64::new(0);
        let version = |page: usize| begin.map_or(Some(0), |versions| versions[page]);
        let last = begin.and_then(|versions| versions.iter().copied().flatten().max()).unwrap_or(0);
        Self {
            memory,
            oracle: (0..memory.image.pages)
                .map(|page| Mutex::new(Page { version: version(page), touched: false }))
                .collect(),
            versions: AtomicU32::new(last + 1),
            accesses: zero(),
            removed: zero(),
            wrong: zero(),
            longest: zero(),
            first: Mutex::new(None),
        }
    }

    /// Touches random pages and checks each byte; writes to a third of them.
    pub fn vcpu(&self, mut seed: u64, until: Instant) {
        while Instant::now() < until {
            seed = mix(seed);
            let page = (seed >> 8) as usize % self.oracle.len();
            self.touch(page, seed.is_multiple_of(3));
        }
    }

    /// Gives back stretches of up to 64 pages, or a huge page. Takes some stretches of shared memory out of the page
    /// table only, unless `only_removes` is set.
    pub fn balloon(&self, mut seed: u64, until: Instant, is_shared: bool, only_removes: bool) {
        while Instant::now() < until {
            seed = mix(seed);
            let mut page = (seed >> 8) as usize % self.oracle.len();
            let mut pages = ((seed >> 40) as usize % 64 + 1).min(self.memory.left(page));
            let unit = self.memory.page_size() / PAGE;
            if unit > 1 {
                (page, pages) = (page / unit * unit, unit);
            }
            // vCPUs hold one lock at a time, so these cannot wait for each other.
            let mut oracle: Vec<_> = self.oracle[page..page + pages].iter().map(Mutex::lock).collect();
            let removes = is_shared && (only_removes || seed & 1 == 0);
            if is_shared && !removes {
                // The pager gets the same event for both. A page that stays is already in the shared memory, or becomes
                // zero.
                let touched = oracle.iter().take_while(|page| page.touched).count();
                // A huge page is filled whole.
                oracle.truncate(if unit > 1 && oracle.iter().any(|page| page.touched) {
                    unit
                } else {
                    touched
                });
            }
            let pages = oracle.len();
            if pages == 0 {
                continue;
            }
            // SAFETY: their locks are held.
            let given = unsafe { self.memory.give_back(page, pages, removes) };
            given.expect("memory that is mapped can be given back");
            if removes || !is_shared {
                for page in &mut oracle {
                    page.version = None;
                }
            }
            drop(oracle);
            self.removed.fetch_add(pages as u64, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(seed % 2000));
        }
    }

    /// Stops all users of the memory, calls `instant` with the versions of its pages, and resumes the users.
    pub fn stopped<T>(&self, instant: impl FnOnce(Versions) -> T) -> T {
        // Threads that hold several locks take them in this order, too.
        let stopped: Vec<_> = self.oracle.iter().map(Mutex::lock).collect();
        instant(stopped.iter().map(|page| page.version).collect())
    }

    /// Checks every page.
    pub fn look_at_all(&self) {
        (0..self.oracle.len()).for_each(|page| self.touch(page, false));
    }

    pub fn report(&self) -> Report {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Report {
            accesses: read(&self.accesses),
            removed: read(&self.removed),
            wrong: read(&self.wrong),
            first: self.first.lock().clone(),
            longest: read(&self.longest),
            ..Report::default()
        }
    }

    fn touch(&self, page: usize, write: bool) {
        let mut oracle = self.oracle[page].lock();
        let began = Instant::now();
        // SAFETY: its lock is held.
        let words = unsafe { self.memory.read(page) };
        self.longest.fetch_max(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let (image, version) = (&self.memory.image, oracle.version);
        oracle.touched = true;
        if !is_page(image, page, version, &words) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
            let is = |other: Option<u32>| is_page(image, page, other, &words);
            let what = if is(Some(0)) {
                "the template's"
            } else if is(None) {
                "zero"
            } else {
                "something else"
            };
            self.first
                .lock()
                .get_or_insert_with(|| format!("page {page} is {what}, not of version {version:?}"));
        }
        if write {
            let next = self.versions.fetch_add(1, Ordering::Relaxed);
            let words: [u64; WORDS] = std::array::from_fn(|word| image.word(page, next, word));
            // SAFETY: its lock is held.
            unsafe { self.memory.write(page, &words) };
            oracle.version = Some(next);
        }
        drop(oracle);
        self.accesses.fetch_add(1, Ordering::Relaxed);
    }
}
