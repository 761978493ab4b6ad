//! A paging-structure cache: where a walk may begin instead of at the root.
//!
//! A small array for each level below the root stores which table serves a range of frames. Like the TLB it
//! keeps stale entries until it is flushed, so a table page that is freed too early is walked again.

use slat::{Gfn, Level, Pfn, Span};

const WAYS: usize = 8;
/// Levels whose tables are cached: 1 (leaf tables) to 4.
const LEVELS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Link {
    /// The common prefix of the table's frames; `u64::MAX` if unused.
    prefix: u64,
    table: Pfn,
}

/// A paging-structure cache.
#[derive(Debug)]
pub struct Psc {
    links: [[Link; WAYS]; LEVELS],
}

const NOTHING: Link = Link { prefix: u64::MAX, table: Pfn(0) };

impl Default for Psc {
    fn default() -> Self {
        Self { links: [[NOTHING; WAYS]; LEVELS] }
    }
}

/// Returns all levels, from the lowest.
fn levels() -> impl Iterator<Item = Level> {
    (1..).map_while(Level::new)
}

/// Returns the common prefix of the frames of a table of `level`.
fn prefix(gfn: Gfn, level: Level) -> u64 {
    gfn.0 >> level.up().shift()
}

impl Psc {
    /// Returns the deepest cached table for `gfn`, and its level.
    #[inline]
    pub fn lookup(&self, gfn: Gfn) -> Option<(Level, Pfn)> {
        levels().zip(&self.links).find_map(|(level, links)| {
            let prefix = prefix(gfn, level);
            let link = links[prefix as usize % WAYS];
            (link.prefix == prefix).then_some((level, link.table))
        })
    }

    /// Records that a walk for `gfn` has read the link to `table` of `level`.
    #[inline]
    pub fn insert(&mut self, gfn: Gfn, level: Level, table: Pfn) {
        if let Some(links) = self.links.get_mut(usize::from(level.number()).wrapping_sub(1)) {
            let prefix = prefix(gfn, level);
            links[prefix as usize % WAYS] = Link { prefix, table };
        }
    }

    /// Forgets everything.
    pub fn flush_all(&mut self) {
        *self = Self::default();
    }

    /// Forgets every table that serves any of these frames.
    pub fn flush(&mut self, gfns: Span<Gfn>) {
        for (level, links) in levels().zip(&mut self.links) {
            let shift = level.up().shift();
            for link in links.iter_mut().filter(|link| link.prefix != NOTHING.prefix) {
                if Span::sized(Gfn(link.prefix << shift), 1 << shift).overlaps(&gfns) {
                    *link = NOTHING;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_walk_begins_at_the_deepest_cached_table() {
        let mut psc = Psc::default();
        assert_eq!(psc.lookup(Gfn(0)), None);
        psc.insert(Gfn(700), Level::G1, Pfn(3));
        psc.insert(Gfn(700), Level::K4, Pfn(1));
        assert_eq!(psc.lookup(Gfn(1023)), Some((Level::K4, Pfn(1))), "the same 2 MiB");
        assert_eq!(psc.lookup(Gfn(1024)), Some((Level::G1, Pfn(3))), "the same 512 GiB");
        psc.flush(Span::new(Gfn(1023), Gfn(1024)));
        assert_eq!(psc.lookup(Gfn(700)), None, "both flushed tables map that frame");
        psc.insert(Gfn(700), Level::K4, Pfn(1));
        psc.flush(Span::new(Gfn(1024), Gfn(4096)));
        assert_eq!(psc.lookup(Gfn(700)), Some((Level::K4, Pfn(1))), "kept, since no flush covers it");
        psc.flush_all();
        assert_eq!(psc.lookup(Gfn(700)), None);
        for level in levels().skip(4) {
            psc.insert(Gfn(700), level, Pfn(9));
        }
        assert_eq!(psc.lookup(Gfn(700)), None, "tables of these levels are not cached");
    }

    /// Compares with a map, over random links. The cache may lose entries; it may not invent them, nor keep
    /// them after a flush, and it must return the deepest link that it has. Returns the number of hits.
    fn against_a_map(flush: impl Fn(&mut Psc, Span<Gfn>)) -> Result<usize, Gfn> {
        let (mut psc, mut map, mut hits) = (Psc::default(), HashMap::new(), 0);
        let mut random = fastrand::Rng::with_seed(7);
        let covers =
            |level: Level, prefix: u64| Span::sized(Gfn(prefix << level.up().shift()), level.up().pages());
        for round in 0..100_000 {
            let state = random.u64(..);
            // Some tables of every level, 2 × 4 × 4 × 16, and frames in them.
            let gfn = Gfn((state >> 32 & 1) << 36 | (state >> 33 & 3) << 27 | (state >> 35 & 3) << 18)
                + ((state >> 37 & 15) << 9 | state >> 41 & 511);
            match state >> 58 {
                0..2 => {
                    let gfns = Span::sized(gfn, 1 << (state >> 50 & 31));
                    flush(&mut psc, gfns);
                    map.retain(|&(level, prefix), _| !covers(level, prefix).overlaps(&gfns));
                }
                2..24 => {
                    let level = levels().nth((state >> 54) as usize % 4).unwrap();
                    psc.insert(gfn, level, Pfn(round));
                    map.insert((level, prefix(gfn, level)), Pfn(round));
                    assert!(psc.lookup(gfn).is_some_and(|(found, _)| found <= level), "the deepest first");
                }
                _ => {
                    if let Some((level, table)) = psc.lookup(gfn) {
                        if map.get(&(level, prefix(gfn, level))) != Some(&table) {
                            return Err(gfn);
                        }
                        hits += 1;
                    }
                }
            }
        }
        Ok(hits)
    }

    #[test]
    fn the_cache_may_forget_links_but_never_invents_one() {
        assert!(against_a_map(Psc::flush).unwrap() > 10_000, "the cache has too few hits");
    }

    #[test]
    fn negative_control_a_careless_flush_is_found() {
        // Flushes leaf tables only: links above stay, to tables that may be freed.
        let shallow = |psc: &mut Psc, gfns: Span<Gfn>| {
            let above = psc.links;
            psc.flush(gfns);
            psc.links[1..].copy_from_slice(&above[1..]);
        };
        assert!(against_a_map(shallow).is_err(), "the tables above");
        let first_missed = |psc: &mut Psc, gfns: Span<Gfn>| psc.flush(Span::new(gfns.start + 512, gfns.end));
        assert!(against_a_map(first_missed).is_err(), "the first table of each span");
    }
}
