//! A translation cache that really holds stale translations until it is told to forget them.
//!
//! Three arrays, one for each page size, set-associative as in hardware: 4 KiB 128 × 8, 2 MiB 16 × 8,
//! 1 GiB 1 × 8. A new entry takes the place of the oldest of its set. Forgetting everything is one addition:
//! every entry carries the **era** in which it was made, and only those of the present era count.
//!
//! An entry made by a load does not allow stores until a walk has set Dirty in the table, as on real hardware: a
//! store through it is a miss.

use slat::{Access, Gfn, Level, Perms, Pfn, Span};

/// What a walk has found out about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// First frame of the page.
    pub pfn: Pfn,
    /// Its size.
    pub level: Level,
    /// What is allowed.
    pub perms: Perms,
    /// Whether Dirty is set in the table.
    pub dirty: bool,
}

const WAYS: usize = 8;
const LEVELS: [Level; 3] = [Level::K4, Level::M2, Level::G1];

/// See the module's header.
#[derive(Debug)]
pub struct Tlb {
    arrays: [Array; 3],
    era: u64,
    hits: u64,
    misses: u64,
}

/// The entries for one page size.
#[derive(Debug)]
struct Array {
    level: Level,
    sets: Box<[Set]>,
    /// Whether anything was inserted in this era: most machines use one or two sizes.
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    ways: [Way; WAYS],
    /// The way to replace next.
    oldest: u8,
}

#[derive(Clone, Copy, Debug)]
struct Way {
    /// Page number, and the era that it counts in; no era is 0.
    page: u64,
    era: u64,
    translation: Translation,
}

const NOTHING: Way = Way {
    page: 0,
    era: 0,
    translation: Translation { pfn: Pfn(0), level: Level::K4, perms: Perms::NONE, dirty: false },
};

impl Array {
    fn new(level: Level, sets: usize) -> Self {
        debug_assert!(sets.is_power_of_two());
        Self { level, sets: vec![Set { ways: [NOTHING; WAYS], oldest: 0 }; sets].into(), used: 0 }
    }

    /// The page's number at this size, and its set.
    #[inline(always)]
    fn place(&self, gfn: Gfn) -> (u64, usize) {
        let page = gfn.0 >> self.level.shift();
        (page, page as usize & (self.sets.len() - 1))
    }

    #[inline(always)]
    fn find(&self, gfn: Gfn, era: u64) -> Option<&Way> {
        let (page, set) = self.place(gfn);
        self.sets[set].ways.iter().find(|way| way.page == page && way.era == era)
    }

    fn insert(&mut self, gfn: Gfn, era: u64, translation: Translation) {
        let (page, set) = self.place(gfn);
        let Set { ways, oldest } = &mut self.sets[set];
        // The page's own entry first (a store after a load), then one that counts no more, then the oldest.
        let at = ways
            .iter()
            .position(|way| way.page == page && way.era == era)
            .or_else(|| ways.iter().position(|way| way.era != era))
            .unwrap_or_else(|| {
                let at = usize::from(*oldest);
                *oldest = (*oldest + 1) % WAYS as u8;
                at
            });
        ways[at] = Way { page, era, translation };
        self.used = era;
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        for way in self.sets.iter_mut().flat_map(|set| &mut set.ways) {
            let covers = Span::sized(Gfn(way.page << self.level.shift()), self.level.pages());
            if covers.overlaps(&gfns) {
                way.era = 0;
            }
        }
    }

    /// The same for a range of at most this many of its pages: only their sets are looked at.
    fn flush_few(&mut self, gfns: Span<Gfn>, era: u64) {
        let last = Gfn(gfns.end.0 - 1);
        for page in self.place(gfns.start).0..=self.place(last).0 {
            let set = page as usize & (self.sets.len() - 1);
            for way in &mut self.sets[set].ways {
                if way.page == page && way.era == era {
                    way.era = 0;
                }
            }
        }
    }
}

impl Default for Tlb {
    fn default() -> Self {
        let sets = [128, 16, 1];
        let arrays = std::array::from_fn(|size| Array::new(LEVELS[size], sets[size]));
        Self { arrays, era: 1, hits: 0, misses: 0 }
    }
}

impl Tlb {
    /// The translation of `gfn`, if one is cached that allows `access`.
    #[inline]
    pub fn lookup(&mut self, gfn: Gfn, access: Access) -> Option<Translation> {
        let era = self.era;
        for array in &self.arrays {
            if array.used != era {
                continue;
            }
            if let Some(way) = array.find(gfn, era) {
                let found = way.translation;
                if found.perms.allows(access) && (access != Access::Write || found.dirty) {
                    self.hits += 1;
                    return Some(found);
                }
            }
        }
        self.misses += 1;
        None
    }

    /// Caches what a walk for `gfn` has found.
    pub fn insert(&mut self, gfn: Gfn, translation: Translation) {
        self.arrays[usize::from(translation.level.0) - 1].insert(gfn, self.era, translation);
    }

    /// Forgets everything.
    pub fn flush_all(&mut self) {
        self.era += 1;
    }

    /// Forgets every translation, at every size, of any of these frames.
    pub fn flush(&mut self, gfns: Span<Gfn>) {
        if gfns.is_empty() {
            return;
        }
        for array in &mut self.arrays {
            let pages = gfns.len() / array.level.pages() + 2;
            if pages < array.sets.len() as u64 {
                array.flush_few(gfns, self.era);
            } else {
                array.flush(gfns);
            }
        }
    }

    /// Look-ups that found what they needed.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Look-ups that did not.
    pub fn misses(&self) -> u64 {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn page(pfn: u64, level: Level) -> Translation {
        Translation { pfn: Pfn(pfn), level, perms: Perms::RWX, dirty: true }
    }

    #[test]
    fn it_holds_what_it_was_told_until_it_is_told_to_forget() {
        let mut tlb = Tlb::default();
        tlb.insert(Gfn(5), page(50, Level::K4));
        tlb.insert(Gfn(1024), page(512, Level::M2));
        assert_eq!(tlb.lookup(Gfn(5), Access::Read).unwrap().pfn, Pfn(50), "whatever the tables say by now");
        tlb.flush(Span::new(Gfn(6), Gfn(1024)));
        assert!(tlb.lookup(Gfn(5), Access::Read).is_some() && tlb.lookup(Gfn(1500), Access::Read).is_some());
        tlb.flush(Span::new(Gfn(1500), Gfn(1501)));
        assert!(tlb.lookup(Gfn(1024), Access::Read).is_none(), "one frame of a large page: all of it");
        tlb.flush_all();
        assert!(tlb.lookup(Gfn(5), Access::Read).is_none());
    }

    #[test]
    fn a_store_needs_permission_and_a_walk_that_set_dirty() {
        let mut tlb = Tlb::default();
        tlb.insert(Gfn(1), Translation { dirty: false, ..page(1, Level::K4) });
        assert!(tlb.lookup(Gfn(1), Access::Read).is_some() && tlb.lookup(Gfn(1), Access::Write).is_none());
        tlb.insert(Gfn(1), page(1, Level::K4));
        assert!(tlb.lookup(Gfn(1), Access::Write).is_some());
        tlb.insert(Gfn(2), Translation { perms: Perms::RX, ..page(2, Level::K4) });
        assert!(tlb.lookup(Gfn(2), Access::Write).is_none());
    }

    /// A TLB may forget; it may not invent, nor remember past a flush. Returns how much it forgot.
    fn against_a_map(flush: impl Fn(&mut Tlb, Span<Gfn>)) -> Result<usize, Gfn> {
        let (mut tlb, mut map, mut state, mut forgotten) = (Tlb::default(), HashMap::new(), 7_u64, 0);
        for round in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let gfn = Gfn(state >> 33 & 0xfff);
            match state >> 60 {
                0 => {
                    let gfns = Span::sized(gfn, 1 + (state >> 50 & 0x1f));
                    flush(&mut tlb, gfns);
                    map.retain(|&gfn, _| !gfns.contains(gfn));
                }
                1..8 => {
                    tlb.insert(gfn, page(round, Level::K4));
                    map.insert(gfn, Pfn(round));
                }
                _ => match tlb.lookup(gfn, Access::Write) {
                    Some(found) if map.get(&gfn) != Some(&found.pfn) => return Err(gfn),
                    Some(_) => {}
                    None => forgotten += usize::from(map.contains_key(&gfn)),
                },
            }
        }
        Ok(forgotten)
    }

    #[test]
    fn it_forgets_but_never_invents() {
        assert!(against_a_map(Tlb::flush).unwrap() > 0, "it is smaller than the map");
    }

    #[test]
    fn negative_control_a_flush_that_misses_a_page_is_found() {
        let careless = |tlb: &mut Tlb, gfns: Span<Gfn>| tlb.flush(Span::new(gfns.start + 1, gfns.end));
        assert!(against_a_map(careless).is_err());
    }
}
