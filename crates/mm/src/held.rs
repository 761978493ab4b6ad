//! References to frames, as values: a reference that neither an entry nor a file holds is owned by one of
//! these, and dropped with it.

use crate::arena::Arena;
use crate::error::MmError;
use crate::nodes::Node;
use slat::{Level, Pfn, Span};
use std::mem::ManuallyDrop;

/// A reference to each frame of a page. Dropping it drops them.
#[derive(Debug)]
#[must_use]
pub struct Held<'a> {
    arena: &'a Arena,
    pfn: Pfn,
    level: Level,
}

impl<'a> Held<'a> {
    /// Takes over references that the caller holds.
    pub(crate) fn new(arena: &'a Arena, pfn: Pfn, level: Level) -> Self {
        Self { arena, pfn, level }
    }

    /// Returns the first frame of the page.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Hands the references over to an entry or a file, which drops them later.
    pub(crate) fn keep(self) -> Pfn {
        ManuallyDrop::new(self).pfn
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.arena.put(Span::sized(self.pfn, self.level.pages()));
    }
}

/// References taken out of entries by a change. Drop this after the change's invalidation has ended: until then
/// the frames must stay in use.
#[derive(Debug)]
pub(crate) struct Released<'a> {
    arena: &'a Arena,
    /// Neighbours that were released in a row form one run.
    runs: Vec<Span<Pfn>>,
}

impl<'a> Released<'a> {
    pub(crate) fn new(arena: &'a Arena) -> Self {
        Self { arena, runs: Vec::new() }
    }

    /// Adds the references of an entry that mapped this page.
    pub(crate) fn add(&mut self, pfn: Pfn, level: Level) {
        let page = Span::sized(pfn, level.pages());
        match self.runs.last_mut() {
            Some(run) if run.end == page.start => run.end = page.end,
            Some(run) if page.end == run.start => run.start = page.start,
            _ => self.runs.push(page),
        }
    }
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        for &run in &self.runs {
            self.arena.put(run);
        }
    }
}

impl Arena {
    /// Allocates a page of 4 KiB or 2 MiB with arbitrary contents; prefers this thread's node.
    pub fn page(&self, level: Level) -> Result<Held<'_>, MmError> {
        let pfn = self.nearest(|node| node.take_page(level, false)).ok_or(MmError::OutOfFrames(level))?;
        Ok(self.hold(pfn, level, false))
    }

    /// Like [`page`](Self::page), filled with zeroes.
    pub fn zeroed(&self, level: Level) -> Result<Held<'_>, MmError> {
        let pfn = self.nearest(|node| node.take_page(level, true)).ok_or(MmError::OutOfFrames(level))?;
        Ok(self.hold(pfn, level, true))
    }

    /// Like [`page`](Self::page), from this node only.
    pub fn page_on(&self, node: Node, level: Level) -> Result<Held<'_>, MmError> {
        let pfn = self.node(node).take_page(level, false).ok_or(MmError::OutOfFrames(level))?;
        Ok(self.hold(pfn, level, false))
    }

    /// Takes the first reference to each frame of a free page.
    fn hold(&self, pfn: Pfn, level: Level, zero: bool) -> Held<'_> {
        for frame in 0..level.pages() {
            self.begin_use(pfn + frame, 0, zero);
        }
        Held::new(self, pfn, level)
    }

    /// Starts collecting references that a change takes out of entries.
    pub(crate) fn released(&self) -> Released<'_> {
        Released::new(self)
    }
}
