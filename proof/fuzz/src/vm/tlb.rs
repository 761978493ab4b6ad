//! A TLB that forgets only on a flush: every translation that it still has after an operation must be right.

use slat::{Gfn, Level, Pfn, Span, Translations};

/// One translation, of a page of any size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    pub first: Gfn,
    pub level: Level,
    pub pfn: Pfn,
    pub write: bool,
    /// D was set, so stores set it no more.
    pub dirty: bool,
}

impl Cached {
    pub fn span(&self) -> Span<Gfn> {
        Span::sized(self.first, self.level.pages())
    }
}

/// A TLB.
#[derive(Debug, Default)]
pub struct Tlb(pub Vec<Cached>);

impl Tlb {
    const MOST: usize = 64;

    /// Adds a translation, and drops others of the same frames.
    pub fn fill(&mut self, cached: Cached) {
        self.0.retain(|other| !other.span().overlaps(&cached.span()));
        if self.0.len() == Self::MOST {
            self.0.remove(0);
        }
        self.0.push(cached);
    }
}

impl Translations for Tlb {
    fn flush_all(&mut self) {
        self.0.clear();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0.retain(|cached| !cached.span().overlaps(&gfns));
    }
}
