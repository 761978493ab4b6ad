//! A TLB that forgets nothing but what it is told to: whatever it still holds after an operation must be true.

use slat::{Gfn, Level, Pfn, Span, Translations};

/// One translation, of a page of any size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    pub first: Gfn,
    pub level: Level,
    pub pfn: Pfn,
    pub write: bool,
    /// Stores set no D bit any more.
    pub dirty: bool,
}

impl Cached {
    pub fn span(&self) -> Span<Gfn> {
        Span::sized(self.first, self.level.pages())
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Tlb(pub Vec<Cached>);

impl Tlb {
    const MOST: usize = 64;

    /// Instead of whatever else it has for these frames.
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
