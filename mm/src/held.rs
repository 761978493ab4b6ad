//! References to frames, as values: what is neither in an entry nor in a file is in one of these, and comes
//! back by itself.

use crate::arena::Arena;
use crate::error::MmError;
use crate::numa::Node;
use slat::{Level, Pfn, Span};
use std::mem::ManuallyDrop;

/// One reference to each frame of a page. Dropping it gives them back.
#[derive(Debug)]
#[must_use]
pub struct Held<'a> {
    arena: &'a Arena,
    pfn: Pfn,
    level: Level,
}

impl<'a> Held<'a> {
    /// The caller hands over references that it has.
    pub(crate) fn new(arena: &'a Arena, pfn: Pfn, level: Level) -> Self {
        Self { arena, pfn, level }
    }

    /// Its first frame.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// The references live on in an entry or a file, which gives them back some day.
    pub(crate) fn keep(self) -> Pfn {
        ManuallyDrop::new(self).pfn
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.arena.put(Span::sized(self.pfn, self.level.pages()));
    }
}

/// References that were taken out of entries during a change. They are given back when this is dropped, which
/// must come after the change's invalidation has ended: until then the frames stay what they were.
#[derive(Debug)]
pub(crate) struct Released<'a> {
    arena: &'a Arena,
    /// Neighbours that were released one after another are one run.
    runs: Vec<Span<Pfn>>,
}

impl<'a> Released<'a> {
    pub(crate) fn new(arena: &'a Arena) -> Self {
        Self { arena, runs: Vec::new() }
    }

    /// Adds the references of the entry that mapped this page.
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
    /// A page of one level, 4 KiB or 2 MiB, with any contents and one reference to each of its frames; of this
    /// thread's node if it has one.
    pub fn page(&self, level: Level) -> Result<Held<'_>, MmError> {
        let pfn = self.nearest(|node| node.take_page(level, false)).ok_or(MmError::OutOfFrames(level))?;
        Ok(self.hold(pfn, level, false))
    }

    /// The same, filled with zeroes.
    pub fn zeroed(&self, level: Level) -> Result<Held<'_>, MmError> {
        let pfn = self.nearest(|node| node.take_page(level, true)).ok_or(MmError::OutOfFrames(level))?;
        Ok(self.hold(pfn, level, true))
    }

    /// The same as [`page`](Self::page), of this node and no other.
    pub fn page_on(&self, node: Node, level: Level) -> Result<Held<'_>, MmError> {
        let pfn = self.node(node).take_page(level, false).ok_or(MmError::OutOfFrames(level))?;
        Ok(self.hold(pfn, level, false))
    }

    /// The first reference to each frame of a page that was free.
    fn hold(&self, pfn: Pfn, level: Level, zero: bool) -> Held<'_> {
        for frame in 0..level.pages() {
            self.begin_use(pfn + frame, 0, zero);
        }
        Held::new(self, pfn, level)
    }

    /// Gives back references that were taken out of entries, when dropped.
    pub(crate) fn released(&self) -> Released<'_> {
        Released::new(self)
    }
}
