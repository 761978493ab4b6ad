//! The tables of one address space, as a map of leaves and a set of tables: no entry, no version, no bit.

use slat::table::Word;
use slat::{Access, Format, Gfn, Level, Pfn, Span};
use std::collections::{BTreeMap, BTreeSet};

/// A leaf, from its first frame on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    pub level: Level,
    pub pfn: Pfn,
    /// Whether stores go through.
    pub write: bool,
    /// Whether the host allowed them when it was asked.
    pub host_write: bool,
    /// Whether it was accessed since the last aging.
    pub young: bool,
}

impl Leaf {
    pub fn span(&self, first: u64) -> Span<Gfn> {
        Span::sized(Gfn(first), self.level.pages())
    }
}

/// Converts a leaf to the model's form.
pub fn leaf<F: Format>(word: Word, level: Level) -> Leaf {
    let slat::Leaf { pfn, perms, host_writable, accessed, .. } = F::decode(word);
    let write = perms.allows(Access::Write);
    Leaf { level, pfn, write, host_write: host_writable, young: accessed && !word.is_withdrawn() }
}

/// The tables of one address space.
#[derive(Debug)]
pub struct Tables {
    /// The level of the root, which is not counted.
    top: Level,
    pub leaves: BTreeMap<u64, Leaf>,
    /// Linked tables, by the level of their entries, and the first frame that they cover.
    linked: BTreeSet<(Level, u64)>,
}

impl Tables {
    pub fn new(top: Level) -> Self {
        Self { top, leaves: BTreeMap::new(), linked: BTreeSet::new() }
    }

    /// Returns the number of tables, including the root.
    pub fn count(&self) -> u64 {
        1 + self.linked.len() as u64
    }

    /// Returns the leaf that maps `gfn`, and its first frame.
    pub fn leaf(&self, gfn: u64) -> Option<(u64, Leaf)> {
        let (&first, &leaf) = self.leaves.range(..=gfn).next_back()?;
        leaf.span(first).contains(Gfn(gfn)).then_some((first, leaf))
    }

    /// Returns the first frames of the leaves that map any of `gfns`.
    pub fn over(&self, gfns: Span<Gfn>) -> Vec<u64> {
        if gfns.is_empty() {
            return Vec::new();
        }
        let from = self.leaf(gfns.start.0).map_or(gfns.start.0, |(first, _)| first);
        self.leaves.range(from..gfns.end.0).map(|(&first, _)| first).collect()
    }

    /// Returns the level of the lowest entry for `gfn`.
    pub fn lowest(&self, gfn: u64) -> Level {
        let mut level = self.top;
        while level > Level::K4 && self.linked.contains(&table(gfn, level.down())) {
            level = level.down();
        }
        level
    }

    /// Links the tables that an entry of `level` for `gfn` needs.
    pub fn link_down(&mut self, gfn: u64, level: Level) {
        let mut at = self.lowest(gfn);
        while at > level {
            at = at.down();
            self.linked.insert(table(gfn, at));
        }
    }

    /// Removes leaves with a frame in `gfns`; with `tables`, also tables with all frames in `gfns`.
    pub fn zap(&mut self, gfns: Span<Gfn>, tables: bool) {
        for first in self.over(gfns) {
            self.leaves.remove(&first);
        }
        if tables {
            self.linked.retain(|&(level, first)| !gfns.covers(&covered(level, first)));
        }
    }

    /// Removes everything but the root.
    pub fn clear(&mut self) {
        self.leaves.clear();
        self.linked.clear();
    }

    /// Splits the large leaf from `first` on into 512 smaller ones.
    pub fn split(&mut self, first: u64) {
        let Some(large) = self.leaves.remove(&first) else { return };
        let level = large.level.down();
        self.linked.insert((level, first));
        for nth in 0..512 {
            let ahead = nth * level.pages();
            self.leaves.insert(first + ahead, Leaf { level, pfn: large.pfn + ahead, ..large });
        }
    }

    /// Replaces tables of entries of `below` or lower by the leaf `leaf`, from `first` on.
    pub fn recover(&mut self, first: u64, leaf: Leaf) {
        self.zap(leaf.span(first), true);
        self.leaves.insert(first, leaf);
    }

    /// Returns whether the entry of `level` from `first` on links a table.
    pub fn links(&self, first: u64, level: Level) -> bool {
        self.linked.contains(&(level.down(), first))
    }

    /// Returns first frames of entries that link tables whose frames all lie in `gfns`; higher levels first.
    pub fn links_in(&self, gfns: Span<Gfn>) -> Vec<(u64, Level)> {
        let inside = |&&(level, first): &&(Level, u64)| gfns.covers(&covered(level, first));
        let mut links: Vec<_> =
            self.linked.iter().filter(inside).map(|&(level, first)| (first, level.up())).collect();
        links.sort_by_key(|&(first, level)| (first, std::cmp::Reverse(level)));
        links
    }
}

/// Returns the table with the entry of `level` for `gfn`.
fn table(gfn: u64, level: Level) -> (Level, u64) {
    (level, Gfn(gfn).base(level.up()).0)
}

fn covered(level: Level, first: u64) -> Span<Gfn> {
    Span::sized(Gfn(first), level.up().pages())
}
