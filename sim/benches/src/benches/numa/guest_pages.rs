//! Which pages guests use, and which of them become inaccessible.

use crate::benches::Setting;
use crate::host::first_page;
use slat::{Gfn, HostPage, Span};

/// Ranges of 2 MiB, each scanned once.
const RANGES: u64 = 2;
/// Pages in one.
pub const PAGES: u64 = 512;
/// Of a range, those that a scan makes inaccessible: 10,037 in 35 ranges.
const HINTED: u64 = 10_037 / 35;
/// Of those, the ones that guests use: 4,610 in 35 ranges. Of the others it is the same part.
const USED: u64 = 4_610 / 35;
/// A page that comes back after a hint has another frame, so far from its first: who still uses that one is found out.
const MOVED: u64 = 1 << 20;

/// All pages of a machine.
pub struct GuestPages {
    hinted: Vec<bool>,
    used: Vec<Gfn>,
}

impl GuestPages {
    /// In each range drawn by lot.
    pub fn new(setting: &Setting<'_>) -> Self {
        let ranges = if setting.quick { 1 } else { RANGES };
        let places: Vec<u64> = (0..ranges).flat_map(|range| shuffled(setting, range)).collect();
        let is_used = |place: u64| match place.checked_sub(HINTED) {
            None => place < USED,
            Some(place) => place * HINTED < (PAGES - HINTED) * USED,
        };
        let used = (0..).zip(&places).filter(|&(_, &place)| is_used(place)).map(|(page, _)| Gfn(page));
        Self { used: used.collect(), hinted: places.iter().map(|&place| place < HINTED).collect() }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.hinted.len() as u64
    }

    /// How many ranges.
    pub fn ranges(&self) -> u64 {
        self.len() / PAGES
    }

    /// Of one range.
    pub fn of(range: u64) -> Span<Gfn> {
        Span::sized(Gfn(range * PAGES), PAGES)
    }

    /// Whether its scan makes it inaccessible.
    pub fn is_hinted(&self, gfn: Gfn) -> bool {
        self.hinted[gfn.0 as usize]
    }

    /// Those that guests use.
    pub fn used(&self) -> &[Gfn] {
        &self.used
    }

    /// Of these, those that are taken from them.
    pub fn taken(&self) -> u64 {
        self.used.iter().filter(|&&gfn| self.is_hinted(gfn)).count() as u64
    }

    /// What the host has there when all is over.
    pub fn page(&self, gfn: Gfn) -> HostPage {
        let page = first_page(gfn);
        if self.is_hinted(gfn) { HostPage { pfn: page.pfn + MOVED, ..page } } else { page }
    }
}

/// The numbers of a range's pages, in an order drawn by lot.
fn shuffled(setting: &Setting<'_>, range: u64) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..PAGES).collect();
    pages.sort_by_cached_key(|page| setting.lot(range * PAGES + page));
    pages
}

/// Runs of neighbours in `pages` that are wanted, each of so many at most.
pub fn runs(pages: Span<Gfn>, wanted: impl Fn(Gfn) -> bool, most: u64) -> Vec<Span<Gfn>> {
    let mut runs: Vec<Span<Gfn>> = Vec::new();
    for gfn in (pages.start.0..pages.end.0).map(Gfn).filter(|&gfn| wanted(gfn)) {
        match runs.last_mut() {
            Some(run) if run.end == gfn && run.len() < most => run.end = gfn + 1,
            _ => runs.push(Span::sized(gfn, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Policy;
    use crate::benches::tests::setting;

    #[test]
    fn as_many_pages_are_drawn_as_the_seed_says() {
        let pages = GuestPages::new(&Setting { quick: false, ..setting(Policy::Page) });
        let hinted = (0..pages.len()).filter(|&page| pages.is_hinted(Gfn(page))).count() as u64;
        assert_eq!((hinted, pages.taken()), (RANGES * HINTED, RANGES * USED));
        let others = pages.used().len() as u64 - pages.taken();
        let part = |some: u64, all: u64| some as f64 / all as f64;
        assert!((part(others, pages.len() - hinted) - part(USED, HINTED)).abs() < 0.01);
    }

    #[test]
    fn neighbours_that_are_wanted_run_together() {
        let found = |most| {
            let runs = runs(Span::sized(Gfn(0), 8), |gfn| ![1, 5].contains(&gfn.0), most);
            runs.iter().map(|run| (run.start.0, run.end.0)).collect::<Vec<_>>()
        };
        assert_eq!(found(1), [(0, 1), (2, 3), (3, 4), (4, 5), (6, 7), (7, 8)]);
        assert_eq!(found(2), [(0, 1), (2, 4), (4, 5), (6, 8)]);
        assert_eq!(found(8), [(0, 1), (2, 5), (6, 8)]);
    }
}
