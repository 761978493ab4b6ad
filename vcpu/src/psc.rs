//! A paging-structure cache: where a walk may begin, instead of at the root.
//!
//! One small array for each level below the root remembers which table serves a range of frames. Like the TLB it
//! holds what is stale until it is told to forget; so a table page that is freed too early is walked again.

use slat::{Gfn, Level, Pfn, Span};

const WAYS: usize = 8;
/// Levels whose tables are remembered: 1 (leaf tables) to 4.
const LEVELS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Link {
    /// The frames' common prefix; `u64::MAX` is nobody's.
    prefix: u64,
    table: Pfn,
}

/// See the module's header.
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

/// What the frames of one table of `level` have in common.
fn prefix(gfn: Gfn, level: Level) -> u64 {
    gfn.0 >> level.up().shift()
}

impl Psc {
    /// The deepest table known for `gfn`, and its level.
    #[inline]
    pub fn lookup(&self, gfn: Gfn) -> Option<(Level, Pfn)> {
        (1..).zip(&self.links).find_map(|(level, links)| {
            let prefix = prefix(gfn, Level(level));
            let link = links[prefix as usize % WAYS];
            (link.prefix == prefix).then_some((Level(level), link.table))
        })
    }

    /// A walk for `gfn` has read the link to its `table` of `level`.
    #[inline]
    pub fn insert(&mut self, gfn: Gfn, level: Level, table: Pfn) {
        if let Some(links) = self.links.get_mut(usize::from(level.0) - 1) {
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
        for (level, links) in (1..).zip(&mut self.links) {
            let shift = Level(level).up().shift();
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

    #[test]
    fn a_walk_begins_at_the_deepest_table_that_is_still_believed() {
        let mut psc = Psc::default();
        assert_eq!(psc.lookup(Gfn(0)), None);
        psc.insert(Gfn(700), Level(3), Pfn(3));
        psc.insert(Gfn(700), Level(1), Pfn(1));
        assert_eq!(psc.lookup(Gfn(1023)), Some((Level(1), Pfn(1))), "the same 2 MiB");
        assert_eq!(psc.lookup(Gfn(1024)), Some((Level(3), Pfn(3))), "the same 512 GiB");
        psc.flush(Span::new(Gfn(1023), Gfn(1024)));
        assert_eq!(psc.lookup(Gfn(700)), None, "both serve that frame");
        psc.insert(Gfn(700), Level(1), Pfn(1));
        psc.flush(Span::new(Gfn(1024), Gfn(4096)));
        assert_eq!(psc.lookup(Gfn(700)), Some((Level(1), Pfn(1))), "stale or not: nobody said otherwise");
        psc.flush_all();
        assert_eq!(psc.lookup(Gfn(700)), None);
    }
}
