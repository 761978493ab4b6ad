//! The host: a plain map from pages to frames.
//!
//! Frames follow addresses, in the largest possible pages. Changed pages are the exception: they are small, and have
//! their current frame.

use slat::{Access, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SIZE, Pfn, Span};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of the host's pages.
pub const PAGES: u64 = 3 << 18;
/// First address of the pages.
const BASE: Hva = Hva(1 << 40);
/// Frame of the first page before any change, aligned for the largest page.
const FRAMES: u64 = 1 << 20;

/// Returns the address of page number `page`.
pub fn hva(page: u64) -> Hva {
    BASE + page * PAGE_SIZE
}

/// Returns the number of the page at `hva`.
pub fn number(hva: Hva) -> u64 {
    (hva.0 - BASE.0) / PAGE_SIZE
}

/// A changed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    pub pfn: Pfn,
    pub writable: bool,
}

/// The host.
#[derive(Debug)]
pub struct PlainHost {
    largest: Level,
    /// Whether every answer may sleep, so that the engine gets none inside its sections.
    sleeps: bool,
    changed: Mutex<BTreeMap<u64, Option<Changed>>>,
    fresh: AtomicU64,
}

impl PlainHost {
    pub fn new(largest: Level, sleeps: bool) -> Self {
        Self { largest, sleeps, changed: Mutex::default(), fresh: AtomicU64::new(1 << 30) }
    }

    /// Returns page number `page`.
    pub fn page(&self, page: u64) -> Option<HostPage> {
        let changed = self.changed.lock().unwrap();
        if let Some(now) = changed.get(&page) {
            return now.map(|Changed { pfn, writable }| HostPage { pfn, writable, ..HostPage::PLAIN });
        }
        let mut level = self.largest;
        while level > Level::K4 {
            let first = page & !(level.pages() - 1);
            if changed.range(first..first + level.pages()).next().is_none() {
                break;
            }
            level = level.down();
        }
        Some(HostPage { pfn: Pfn(FRAMES + page), level, ..HostPage::PLAIN })
    }

    /// Returns the answer without sleep.
    pub fn at_once(&self, page: u64, access: Access) -> Option<HostPage> {
        self.page(page).filter(|page| !self.sleeps && (page.writable || access != Access::Write))
    }

    /// Returns the final answer.
    pub fn in_the_end(&self, page: u64, access: Access) -> Option<HostPage> {
        self.page(page).filter(|page| page.writable || access != Access::Write)
    }

    /// Changes one page; `None` removes it.
    pub fn change(&self, page: u64, to: Option<Changed>) {
        self.changed.lock().unwrap().insert(page, to);
    }

    /// Returns a frame that was never used.
    pub fn frame(&self) -> Pfn {
        Pfn(self.fresh.fetch_add(1, Relaxed))
    }

    /// Restores the initial state of `pages`.
    pub fn restore(&self, pages: Span<slat::Gfn>) {
        self.changed.lock().unwrap().retain(|&page, _| !pages.contains(slat::Gfn(page)));
    }
}

impl Host for PlainHost {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.at_once(number(hva), access)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.in_the_end(number(hva), access).ok_or(HostError::Fault)
    }
}
