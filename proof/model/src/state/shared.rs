//! The shared state: entries, tables, the active set with its words, and the host.
//!
//! Two pages are a **region** (2 MiB in the engine), so a table has two entries. There are four pages. In a state of
//! two levels the root links the regions; in one of three levels a table of links stands between.

use super::active::{Line, Numbers, Slot, THREADS};
use super::bad::Bad;
use super::held::Held;
use super::pages::{NONE, PAGES, Span, bits, frame};
use super::slots::{Log, Sets, Track};
use super::table::{FREE, Leaf, NODES, Node, Word};
use super::vcpu::{Caches, Tlb};

/// Dead tables before they are free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Grace {
    /// Waiting for a thread that collects.
    pub queue: u8,
    /// Being collected.
    pub taken: u8,
    /// Threads whose section began before that.
    pub sections: u8,
}

/// The shared state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shared {
    /// Whether a table of links stands between root and leaf tables.
    pub deep: bool,
    pub(crate) numbers: Numbers,
    /// Number of short invalidations elsewhere in region 0 that may still begin and end.
    pub(crate) shorts: u8,
    /// The lines of the two regions of host pages, and the epoch.
    pub(crate) lines: [Line; 3],
    pub(crate) slots: [Slot; THREADS],
    pub(crate) nodes: [Node; NODES],
    pub(crate) root: u8,
    /// The generation of each host page's frame, and whether it may be written.
    pub(crate) frames: [u8; PAGES as usize],
    pub(crate) writable: [bool; PAGES as usize],
    /// The oldest generation that has not been freed.
    pub(crate) kept: [u8; PAGES as usize],
    /// The thread that holds the lock of the host's pages, or [`NONE`].
    pub(crate) locked: u8,
    /// Parked host pages, a bit each: being written to swap, or merged.
    pub(crate) parked: u8,
    /// Guest frames, a bit each, that are counted as tracked; and those whose begin of tracking has returned.
    pub(crate) watched: u8,
    pub(crate) tracked: u8,
    /// The host page behind each guest frame in the published slots; and the number of that version.
    pub(crate) memslots: [u8; PAGES as usize],
    pub(crate) published: u8,
    /// The versions of the slots, if a look-up takes two steps; and the thread that makes the next one.
    pub(crate) sets: Sets,
    pub(crate) writer: u8,
    /// The frame that the VMM holds.
    pub(crate) held: Held,
    /// The log of region 0, which is a slot of its own where there is a log.
    pub(crate) log: Log,
    /// Modes, kicks and numbered flushes, if vCPUs do not answer at once.
    pub(crate) tlb: Tlb,
    pub(crate) vcpus: [Caches; 2],
    pub(crate) vcpu_count: u8,
    pub(crate) grace: Grace,
    /// Frames written by the guest; frames that the host was told are dirty.
    pub(crate) written: u16,
    pub(crate) told: u16,
    /// Number of mapped pages.
    pub(crate) leaves: i8,
    pub(crate) bad: Option<Bad>,
}

impl Shared {
    /// Makes an empty state with `levels` levels: a root of holes, every guest frame backed by the host page of its
    /// number.
    pub fn new(levels: u8, vcpus: u8) -> Self {
        let mut nodes = [FREE; NODES];
        nodes[0] = Node { free: false, level: levels - 1, ..FREE };
        Self {
            deep: levels == 3,
            numbers: Numbers::default(),
            shorts: 0,
            lines: [Line::default(); 3],
            slots: [Slot::default(); THREADS],
            nodes,
            root: 0,
            frames: [0; PAGES as usize],
            writable: [true; PAGES as usize],
            kept: [0; PAGES as usize],
            locked: NONE,
            parked: 0,
            watched: 0,
            tracked: 0,
            memslots: [0, 1, 2, 3],
            published: 0,
            sets: Sets::default(),
            writer: NONE,
            held: Held::default(),
            log: Log::default(),
            tlb: Tlb::default(),
            vcpus: [Caches::default(); 2],
            vcpu_count: vcpus,
            grace: Grace::default(),
            written: 0,
            told: 0,
            leaves: 0,
            bad: None,
        }
    }

    /// The level of the root: 0 has leaves of one page, 1 of a region.
    pub(crate) fn top(&self) -> u8 {
        if self.deep { 2 } else { 1 }
    }

    /// Pages below one entry of `level`.
    pub(crate) fn pages(level: u8) -> u8 {
        1 << level
    }

    /// The frames that the entry for `gfn` at `level` covers.
    pub(crate) fn extent(level: u8, gfn: u8) -> Span {
        let start = gfn & !(Self::pages(level) - 1);
        Span::new(start, start + Self::pages(level))
    }

    /// The entry for `gfn` in `node`, a table of `level`.
    pub(crate) fn load(&mut self, node: u8, level: u8, gfn: u8) -> Word {
        if self.nodes[node as usize].free {
            self.bad = Some(Bad::FreedTable);
        }
        self.nodes[node as usize].entries[(gfn >> level & 1) as usize]
    }

    /// Writes an entry, and updates the counts as a function of the old word and the new one.
    pub(crate) fn set(&mut self, node: u8, level: u8, gfn: u8, new: Word) {
        let old = self.load(node, level, gfn);
        self.nodes[node as usize].entries[(gfn >> level & 1) as usize] = new;
        if old.version().zip(new.version()).is_some_and(|(old, new)| new < old) {
            self.bad = Some(Bad::VersionFell);
        }
    }

    /// Whether stores to any of `gfns` are tracked.
    pub(crate) fn watches(&self, gfns: Span) -> bool {
        bits(self.watched).any(|gfn| gfns.has(gfn))
    }

    /// A free node of `level`, filled with `entries`.
    pub(crate) fn new_node(&mut self, level: u8, entries: [Word; 2]) -> Option<u8> {
        let index = self.nodes.iter().position(|node| node.free)?;
        self.nodes[index] = Node { free: false, level, entries };
        Some(index as u8)
    }

    pub(crate) fn free_node(&mut self, node: u8) {
        self.nodes[node as usize] = FREE;
    }

    /// Adds or subtracts the pages of a leaf of `level`.
    pub(crate) fn book(&mut self, level: u8, sign: i8) {
        self.leaves += sign * Self::pages(level) as i8;
    }

    /// Reports the pages of `leaf` to the host as dirty, if they are.
    pub(crate) fn tell(&mut self, leaf: Leaf, level: u8) {
        if leaf.dirty && self.log.track == Track::Nothing {
            for page in 0..Self::pages(level) {
                self.told |= 1 << (leaf.pfn + page);
            }
        }
    }

    /// Reports to the host that these pages may be dirty.
    pub(crate) fn tell_all(&mut self, gfns: Span) {
        for gfn in gfns.start..gfns.end {
            if let Some(&generation) = self.frames.get(self.memslots[gfn as usize] as usize) {
                self.told |= 1 << frame(generation, self.memslots[gfn as usize]);
            }
        }
    }

    pub(crate) fn alive(&self, frame: u8) -> bool {
        let page = (frame % PAGES) as usize;
        (self.kept[page]..=self.frames[page]).contains(&(frame / PAGES))
    }

    /// Gives the page a read-only copy of its frame; the old frame is freed later. Limited by the number of frames.
    pub(crate) fn replace(&mut self, page: u8) {
        if self.frames[page as usize] < 3 {
            self.frames[page as usize] += 1;
        }
    }

    /// The host takes the frame of `page` back and will return another one.
    pub(crate) fn take_back(&mut self, page: u8) {
        let old = frame(self.frames[page as usize], page);
        if self.written >> old & 1 != 0 && self.told >> old & 1 == 0 {
            self.bad = Some(Bad::DirtyLost);
        }
        // Four frames to a page: the last one stays.
        if self.frames[page as usize] < 3 {
            self.frames[page as usize] += 1;
            self.kept[page as usize] = self.frames[page as usize];
            self.writable[page as usize] = true;
        }
    }

    /// Every leaf below `node`, with its level, and every table, itself first.
    pub(crate) fn below(&self, node: u8) -> (Vec<(Leaf, u8)>, Vec<u8>) {
        let (mut leaves, mut tables) = (Vec::new(), vec![node]);
        let mut next = 0;
        while let Some(&table) = tables.get(next) {
            next += 1;
            let Node { level, entries, .. } = self.nodes[table as usize];
            for word in entries {
                match word {
                    Word::Leaf(leaf) => leaves.push((leaf, level)),
                    Word::Table(child) => tables.push(child),
                    Word::Hole(_) | Word::Mmio(_) | Word::Frozen(_) => {}
                }
            }
        }
        (leaves, tables)
    }
}
