//! The memory of L1's hypervisor: free frames, its tables, and the state of each page of L2.

use super::code::{L1Code, Platform};
use super::tables::{L1Tables, Nest};
use slat::{Format, Gfn, Gpa, Host, Level, PAGE_SIZE, Span};
use std::collections::{HashMap, HashSet};

/// Fills frames that L1 has taken from L2 or from its tables. As an entry it is invalid in each format, or
/// points to no memory.
const POISON: u8 = 0xdd;

/// A page of L2.
#[derive(Debug)]
pub(super) enum Page {
    /// Never written: reads see L1's zero page.
    Zero,
    /// Has its own frame.
    Own(Gfn, Watch),
    /// Swapped out by L1.
    Out(Box<[u8; PAGE_SIZE as usize]>),
}

/// L1's expectation of a page's contents, as a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    /// No expectation.
    Open,
    /// No store is allowed since the checksum was taken.
    Protected(u64),
    /// D was clear and flushed when the checksum was taken; while it is clear, the page must not change.
    Clean(u64),
}

/// L1's memory.
#[derive(Debug)]
pub(super) struct Memory<T> {
    pub(super) table: T,
    pub(super) pages: HashMap<u64, Page>,
    /// L2's frames in the order of their first access, for random choices.
    pub(super) order: Vec<u64>,
    /// Tables below the root, by level and first frame of L2.
    pub(super) tables: HashMap<(Level, u64), Gfn>,
    /// First frames of leaves of 2 MiB.
    pub(super) large: HashSet<u64>,
    zero: Option<Gfn>,
    free: Vec<Gfn>,
    fresh: Span<Gfn>,
}

impl<T: L1Tables> Memory<T> {
    /// Creates a root without tables below it.
    pub(super) fn new<F: Nest<Table = T>, H: Host, P: Platform>(
        code: &mut L1Code<'_, '_, F, H, P>,
    ) -> Result<Self, P::Error> {
        let fresh = code.platform.memory(code.idle)?;
        let mut memory = Self {
            table: F::l1_table(fresh.start),
            pages: HashMap::new(),
            order: Vec::new(),
            tables: HashMap::new(),
            large: HashSet::new(),
            zero: None,
            free: Vec::new(),
            fresh,
        };
        memory.fresh.start = memory.fresh.start + F::ROOT_PAGES as u64;
        Ok(memory)
    }

    /// Returns unused frames, aligned to their number, which is a power of two.
    pub(super) fn fresh<F: Format, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
        frames: u64,
    ) -> Result<Gfn, P::Error> {
        let first = Gfn(self.fresh.start.0.next_multiple_of(frames));
        if first + frames <= self.fresh.end {
            self.free.extend((self.fresh.start.0..first.0).map(Gfn));
            self.fresh.start = first + frames;
            return Ok(first);
        }
        self.free.extend((self.fresh.start.0..self.fresh.end.0).map(Gfn));
        self.fresh = code.platform.memory(code.idle)?;
        let first = self.fresh.start;
        self.fresh.start = first + frames;
        Ok(first)
    }

    /// Returns a zeroed frame.
    pub(super) fn frame<F: Format, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
    ) -> Result<Gfn, P::Error> {
        // Recently freed frames first, so that stale uses show.
        if let Some(gfn) = self.free.pop() {
            code.fill(gfn, 0)?;
            return Ok(gfn);
        }
        self.fresh(code, 1)
    }

    /// Frees a frame. The caller ensures that no vCPU uses it.
    pub(super) fn free<F: Format, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
        gfn: Gfn,
    ) -> Result<(), P::Error> {
        code.fill(gfn, POISON)?;
        self.free.push(gfn);
        Ok(())
    }

    /// Returns the zero frame, shared by all pages that were never written.
    pub(super) fn zero<F: Format, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
    ) -> Result<Gfn, P::Error> {
        if let Some(zero) = self.zero {
            return Ok(zero);
        }
        let zero = self.frame(code)?;
        self.zero = Some(zero);
        Ok(zero)
    }

    /// Returns the address of the entry of `level` for `g2`, if its table exists.
    pub(super) fn entry(&self, g2: u64, level: Level) -> Option<Gpa> {
        let (root, top) = self.table.root();
        let table = if level == top { root } else { self.tables.get(&(level, first_of(g2, level)))?.gpa() };
        Some(table + 8 * self.table.index(Gfn(g2).gpa(), level) as u64)
    }

    /// Returns the address of the entry, and links missing tables.
    pub(super) fn entry_for<F: Format, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
        g2: u64,
        level: Level,
    ) -> Result<Gpa, P::Error> {
        if let Some(at) = self.entry(g2, level) {
            return Ok(at);
        }
        let above = self.entry_for(code, g2, level.up())?;
        let table = self.frame(code)?;
        self.tables.insert((level, first_of(g2, level)), table);
        let link = self.table.link(table, level.up());
        code.change(above, |_| link)?;
        Ok(table.gpa() + 8 * self.table.index(Gfn(g2).gpa(), level) as u64)
    }

    /// Maps a page of 4 KiB where TLBs cannot have an older mapping.
    pub(super) fn map<F: Format, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
        g2: u64,
        (gfn, stores): (Gfn, bool),
    ) -> Result<(), P::Error> {
        let at = self.entry_for(code, g2, Level::K4)?;
        let leaf = self.table.leaf(gfn, Level::K4, stores);
        code.change(at, |_| leaf)?;
        Ok(())
    }

    /// Maps a new frame of zeroes.
    pub(super) fn map_own<F: Nest<Table = T>, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
        g2: u64,
    ) -> Result<(), P::Error> {
        let gfn = self.frame(code)?;
        self.map(code, g2, (gfn, true))?;
        self.set(g2, Page::Own(gfn, Watch::Open));
        Ok(())
    }

    /// Maps the 2 MiB around `g2`, if L2 has no page in them yet.
    pub(super) fn map_large<F: Nest<Table = T>, H: Host, P: Platform>(
        &mut self,
        code: &mut L1Code<'_, '_, F, H, P>,
        g2: u64,
    ) -> Result<bool, P::Error> {
        let (first, pages) = (Gfn(g2).base(Level::M2).0, Level::M2.pages());
        if self.tables.contains_key(&(Level::K4, first)) || Level::M2 > self.table.root().1 {
            return Ok(false);
        }
        let gfn = self.fresh(code, pages)?;
        let at = self.entry_for(code, first, Level::M2)?;
        let leaf = self.table.leaf(gfn, Level::M2, true);
        code.change(at, |_| leaf)?;
        self.large.insert(first);
        for page in 0..pages {
            self.set(first + page, Page::Own(gfn + page, Watch::Open));
        }
        Ok(true)
    }

    /// Records the state of a page of L2.
    pub(super) fn set(&mut self, g2: u64, page: Page) {
        if self.pages.insert(g2, page).is_none() {
            self.order.push(g2);
        }
    }

    /// Returns the frame of a page that has one.
    pub(super) fn own(&self, g2: u64) -> Option<(Gfn, Watch)> {
        match self.pages.get(&g2) {
            Some(&Page::Own(gfn, watch)) => Some((gfn, watch)),
            _ => None,
        }
    }

    pub(super) fn watch(&mut self, g2: u64, now: Watch) {
        if let Some(Page::Own(_, watch)) = self.pages.get_mut(&g2) {
            *watch = now;
        }
    }
}

/// Returns the first frame of L2 that a table of `level` serves.
pub(super) fn first_of(g2: u64, level: Level) -> u64 {
    Gfn(g2).base(level.up()).0
}
