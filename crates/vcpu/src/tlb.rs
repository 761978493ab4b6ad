//! A TLB that keeps stale translations until it is flushed.
//!
//! It has three arrays, one per page size, set-associative like hardware: 4 KiB 128 × 8, 2 MiB 16 × 8, 1 GiB 1
//! × 8. A new entry replaces the oldest of its set. Flushing everything is one addition: every entry has the
//! **era** in which it was made, and is valid only in that era.
//!
//! A look-up begins with a **hint**: the index of the entry that last served a frame with this hash. The
//! look-up compares the entry itself, so hints need no invalidation.
//!
//! ```text
//! gfn ──▶ hint ──▶ entry: this page, this era, this access?  ─ yes ─▶ hit
//!                    └─ no ─▶ the sets of 4 KiB, 2 MiB, 1 GiB ─▶ hit, new hint
//!                                                └────────────▶ miss: walk
//! ```
//! Like on hardware, an entry made by a load does not allow stores until a walk has set Dirty in the table: a
//! store through it misses. Pages of two sizes may be cached for one frame; until a flush either may be used.

use slat::{Access, Gfn, Level, Perms, Pfn, Span};

/// Result of a walk for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// First frame of the page.
    pub pfn: Pfn,
    /// Size of the page.
    pub level: Level,
    /// Allowed accesses.
    pub perms: Perms,
    /// Whether Dirty is set in the table.
    pub dirty: bool,
}

impl Translation {
    /// Whether `access` needs no walk.
    #[inline(always)]
    fn serves(&self, access: Access) -> bool {
        self.perms.allows(access) && (access != Access::Write || self.dirty)
    }
}

const WAYS: usize = 8;
/// Sets for pages of 4 KiB, 2 MiB, 1 GiB; powers of two.
const SETS: [usize; 3] = [128, 16, 1];
const ENTRIES: usize = (SETS[0] + SETS[1] + SETS[2]) * WAYS;
const HINTS: usize = 512;
const _: () = assert!(ENTRIES <= 1 << 16, "a hint has 16 bits");

/// A TLB.
#[derive(Debug)]
pub struct Tlb {
    hints: Box<[u16; HINTS]>,
    entries: Box<[Entry]>,
    arrays: [Array; 3],
    era: u64,
    hits: u64,
    misses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Page number at the translation's size, and the era in which it is valid; 0 for none.
    page: u64,
    era: u64,
    translation: Translation,
}

const NOTHING: Entry = Entry {
    page: 0,
    era: 0,
    translation: Translation { pfn: Pfn(0), level: Level::K4, perms: Perms::NONE, dirty: false },
};

/// The entries of one page size.
#[derive(Debug)]
struct Array {
    level: Level,
    /// Index of its first entry in [`Tlb::entries`]; its sets are consecutive.
    first: usize,
    /// The way to replace next, for each set.
    oldest: Box<[u8]>,
    /// Era of its latest entry. Most machines use one or two sizes; unused arrays are skipped.
    used: u64,
}

impl Array {
    fn page(&self, gfn: Gfn) -> u64 {
        gfn.0 >> self.level.shift()
    }

    fn set_of(&self, page: u64) -> usize {
        page as usize & (self.oldest.len() - 1)
    }

    /// Returns the indices of the entries that may hold `page`.
    fn ways(&self, page: u64) -> std::ops::Range<usize> {
        let first = self.first + self.set_of(page) * WAYS;
        first..first + WAYS
    }

    /// Returns the indices of all its entries.
    fn all(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.oldest.len() * WAYS
    }
}

/// Large pages begin at multiples of 512 frames, so the hash includes higher bits.
#[inline(always)]
fn hint_of(gfn: Gfn) -> usize {
    (gfn.0 ^ gfn.0 >> 9) as usize % HINTS
}

impl Default for Tlb {
    fn default() -> Self {
        let mut first = 0;
        let arrays = std::array::from_fn(|size| {
            let level = [Level::K4, Level::M2, Level::G1][size];
            let array = Array { level, first, oldest: vec![0; SETS[size]].into(), used: 0 };
            first = array.all().end;
            array
        });
        let (hints, entries) = (Box::new([0; HINTS]), vec![NOTHING; ENTRIES].into());
        Self { hints, entries, arrays, era: 1, hits: 0, misses: 0 }
    }
}

impl Tlb {
    /// Returns a cached translation of `gfn` that allows `access`.
    #[inline(always)]
    pub fn lookup(&mut self, gfn: Gfn, access: Access) -> Option<Translation> {
        let Entry { page, era, translation } = self.entries[usize::from(self.hints[hint_of(gfn)])];
        if page == gfn.0 >> translation.level.shift() && era == self.era && translation.serves(access) {
            self.hits += 1;
            return Some(translation);
        }
        self.search(gfn, access)
    }

    #[inline(never)]
    fn search(&mut self, gfn: Gfn, access: Access) -> Option<Translation> {
        for array in self.arrays.iter().filter(|array| array.used == self.era) {
            let page = array.page(gfn);
            for at in array.ways(page) {
                let entry = &self.entries[at];
                if entry.page == page && entry.era == self.era && entry.translation.serves(access) {
                    self.hints[hint_of(gfn)] = at as u16;
                    self.hits += 1;
                    return Some(entry.translation);
                }
            }
        }
        self.misses += 1;
        None
    }

    /// Caches the result of a walk for `gfn`, and replaces an earlier entry for that page. Pages above 1 GiB
    /// are not cached.
    pub fn insert(&mut self, gfn: Gfn, translation: Translation) {
        let size = usize::from(translation.level.number()).wrapping_sub(1);
        let Some(array) = self.arrays.get_mut(size) else { return };
        let (page, era) = (array.page(gfn), self.era);
        let mut ways = array.ways(page);
        let first = ways.start;
        // The page's own entry first (a store after a load), then an invalid one, then the oldest.
        let at = ways
            .clone()
            .find(|&at| self.entries[at].page == page && self.entries[at].era == era)
            .or_else(|| ways.find(|&at| self.entries[at].era != era))
            .unwrap_or_else(|| {
                let set = array.set_of(page);
                let oldest = &mut array.oldest[set];
                let at = first + usize::from(*oldest);
                *oldest = (*oldest + 1) % WAYS as u8;
                at
            });
        array.used = era;
        self.entries[at] = Entry { page, era, translation };
        self.hints[hint_of(gfn)] = at as u16;
    }

    /// Forgets everything.
    pub fn flush_all(&mut self) {
        self.era += 1;
    }

    /// Forgets every translation, of every size, for any of these frames, and no other.
    pub fn flush(&mut self, gfns: Span<Gfn>) {
        if gfns.is_empty() {
            return;
        }
        for array in self.arrays.iter().filter(|array| array.used == self.era) {
            let (first, last) = (array.page(gfns.start), array.page(Gfn(gfns.end.0 - 1)));
            let mut forget = |ways: std::ops::Range<usize>| {
                for entry in &mut self.entries[ways] {
                    if (first..=last).contains(&entry.page) {
                        entry.era = 0;
                    }
                }
            };
            // For few pages, their sets; for many, every set once.
            if last - first < array.oldest.len() as u64 {
                (first..=last).for_each(|page| forget(array.ways(page)));
            } else {
                forget(array.all());
            }
        }
    }

    /// Returns the number of look-ups that hit.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns the number of look-ups that missed.
    pub fn misses(&self) -> u64 {
        self.misses
    }
}

#[cfg(test)]
#[path = "tlb_tests.rs"]
mod tests;
