//! Mappings: which ranges of addresses mean what. The page table is only a cache of what these say, filled by
//! faults.
//!
//! The set is ordered by address and its members do not overlap. An operation on a range cuts it out, mappings
//! that reach over an end divided, and puts back what remains. Neighbours are not merged.

use crate::error::MmError;
use crate::file::File;
use crate::pte::{hvas_of, page_of};
use crate::user_fault::Served;
use slat::{Access, Gfn, Hva, Level, PAGE_SIZE, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The addresses that may be mapped: all but the first 64 KiB, so that null pointers fault, up to 128 TiB.
pub(crate) const ADDRESSES: Span<Hva> = Span::new(Hva(0x1_0000), Hva(1 << 47));
/// All of them and those below: where whole regions are wanted.
pub(crate) const EVERYWHERE: Span<Hva> = Span::new(Hva(0), ADDRESSES.end);
/// Where mappings go whose place does not matter.
const ANYWHERE: Hva = Hva(0x7000_0000_0000);

/// What a mapping allows. Fetches count as reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prot {
    /// No access; the pages are kept.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    ReadWrite,
}

impl Prot {
    /// Whether it allows `access`.
    pub const fn allows(self, access: Access) -> bool {
        match self {
            Self::None => false,
            Self::Read => !matches!(access, Access::Write),
            Self::ReadWrite => true,
        }
    }
}

/// Where a mapping's contents come from.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Zeroes, of this address space alone.
    Anonymous,
    /// The file's own pages: every address space that maps them sees every write.
    Shared {
        /// The file.
        file: Arc<File>,
        /// Where in the file the mapping begins, in bytes.
        offset: u64,
    },
    /// The file's pages until one is written: that one is copied first.
    Private {
        /// The file.
        file: Arc<File>,
        /// Where in the file the mapping begins, in bytes.
        offset: u64,
    },
}

/// Where to put a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Exactly there, or nowhere. What is there already is not replaced.
    Fixed(Hva),
    /// There if the range is free, else above it, else anywhere.
    Near(Hva),
    /// Wherever there is room.
    Anywhere,
}

/// One mapping.
#[derive(Clone, Debug)]
pub(crate) struct Vma {
    pub(crate) span: Span<Hva>,
    pub(crate) prot: Prot,
    pub(crate) backing: Backing,
    /// Which faults a user's thread serves.
    pub(crate) served: Option<Served>,
    /// Whether its pages may be merged with others: said by [`Advice`](crate::Advice).
    pub(crate) mergeable: bool,
}

impl Vma {
    /// Whether its pages are a file's own, never copied.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::Shared { .. })
    }

    /// Whether KSM may touch its pages: it was said so, and they are its own.
    pub(crate) fn is_mergeable(&self) -> bool {
        self.mergeable && !self.is_shared()
    }

    /// The index of `page` in the file behind it.
    pub(crate) fn file_page(&self, page: Gfn, offset: u64) -> u64 {
        page.0 - page_of(self.span.start).0 + offset / PAGE_SIZE
    }

    /// Whether all of the 2 MiB around `page` belongs to it.
    pub(crate) fn covers_huge(&self, page: Gfn) -> bool {
        self.span.covers(&hvas_of(Span::sized(page.base(Level::M2), Level::M2.pages())))
    }

    /// The part of it in `span`, which it overlaps.
    fn part(&self, span: Span<Hva>) -> Self {
        let span = self.span.clamp(&span);
        let mut backing = self.backing.clone();
        if let Backing::Shared { offset, .. } | Backing::Private { offset, .. } = &mut backing {
            *offset += span.start.0 - self.span.start.0;
        }
        Self { span, backing, ..self.clone() }
    }
}

/// All mappings of an address space.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vmas(BTreeMap<Hva, Vma>);

impl Vmas {
    /// The mapping at `hva`.
    pub(crate) fn find(&self, hva: Hva) -> Option<&Vma> {
        self.0.range(..=hva).next_back().map(|(_, vma)| vma).filter(|vma| vma.span.contains(hva))
    }

    /// Every mapping, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.0.values()
    }

    /// The mappings that overlap `span`, in order.
    pub(crate) fn over(&self, span: Span<Hva>) -> impl Iterator<Item = &Vma> {
        let first = self.find(span.start).map_or(span.start, |vma| vma.span.start);
        self.0.range(first..span.end.max(first)).map(|(_, vma)| vma)
    }

    /// Adds a mapping where there is none.
    pub(crate) fn insert(&mut self, vma: Vma) {
        debug_assert!(self.over(vma.span).next().is_none(), "mappings do not overlap");
        self.0.insert(vma.span.start, vma);
    }

    /// Removes what is mapped in `span` and returns it, in order.
    pub(crate) fn cut(&mut self, span: Span<Hva>) -> Vec<Vma> {
        let starts: Vec<Hva> = self.over(span).map(|vma| vma.span.start).collect();
        let mut removed = Vec::with_capacity(starts.len());
        for start in starts {
            let Some(vma) = self.0.remove(&start) else { continue };
            for rest in [Span::new(vma.span.start, span.start), Span::new(span.end, vma.span.end)] {
                if !rest.is_empty() {
                    self.0.insert(rest.start, vma.part(rest));
                }
            }
            removed.push(vma.part(span));
        }
        removed
    }

    /// Whether every page of `span` is mapped, or the first that is not.
    pub(crate) fn covered(&self, span: Span<Hva>) -> Result<(), MmError> {
        let end =
            self.over(span).fold(span.start, |at, vma| if vma.span.start <= at { vma.span.end } else { at });
        if end >= span.end { Ok(()) } else { Err(MmError::NotMapped(end)) }
    }

    /// Where a mapping of `len` bytes goes.
    pub(crate) fn place(&self, place: Place, len: u64) -> Result<Span<Hva>, MmError> {
        let from = match place {
            Place::Fixed(hva) => {
                let span = aligned(Span::sized(hva, len))?;
                return match self.over(span).next() {
                    None => Ok(span),
                    Some(vma) => Err(MmError::Occupied(vma.span.clamp(&span))),
                };
            }
            Place::Near(hva) => hva.max(ADDRESSES.start),
            Place::Anywhere => ANYWHERE,
        };
        if len == 0 || !len.is_multiple_of(PAGE_SIZE) {
            return Err(MmError::BadRange(Span::sized(from, len)));
        }
        // Where a huge page fits in, let it.
        let unit = if len >= Level::M2.bytes() { Level::M2.bytes() } else { PAGE_SIZE };
        let exact = Span::sized(from, len);
        if matches!(place, Place::Near(_)) && aligned(exact).is_ok() && self.over(exact).next().is_none() {
            return Ok(exact);
        }
        let found = self.gap(from, len, unit).or_else(|| self.gap(ADDRESSES.start, len, unit));
        found.ok_or(MmError::NoRoom(len))
    }

    /// The first gap of `len` bytes from `from` on.
    fn gap(&self, from: Hva, len: u64, unit: u64) -> Option<Span<Hva>> {
        let up = |hva: Hva| hva.0.checked_next_multiple_of(unit).map(Hva);
        let mut at = up(from)?;
        for vma in self.over(Span::new(at, ADDRESSES.end)) {
            if at.0.checked_add(len)? <= vma.span.start.0 {
                break;
            }
            at = at.max(up(vma.span.end)?);
        }
        let span = Span::new(at, Hva(at.0.checked_add(len)?));
        ADDRESSES.covers(&span).then_some(span)
    }
}

/// The range, if it is one of whole pages that can be mapped.
pub(crate) fn aligned(span: Span<Hva>) -> Result<Span<Hva>, MmError> {
    let fits = !span.is_empty() && ADDRESSES.covers(&span);
    let whole = span.start.offset() == 0 && span.end.offset() == 0;
    if fits && whole { Ok(span) } else { Err(MmError::BadRange(span)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span<Hva> {
        Span::new(Hva(start * PAGE_SIZE), Hva(end * PAGE_SIZE))
    }

    fn vmas(spans: &[(u64, u64)]) -> Vmas {
        let mut vmas = Vmas::default();
        for &(start, end) in spans {
            let backing = Backing::Anonymous;
            vmas.insert(Vma {
                span: span(start, end),
                prot: Prot::Read,
                backing,
                served: None,
                mergeable: false,
            });
        }
        vmas
    }

    fn spans(vmas: &Vmas) -> Vec<Span<Hva>> {
        vmas.iter().map(|vma| vma.span).collect()
    }

    #[test]
    fn cutting_divides_what_reaches_over_an_end() {
        let mut set = vmas(&[(100, 110), (110, 120), (130, 140)]);
        let cut: Vec<_> = set.cut(span(105, 135)).iter().map(|vma| vma.span).collect();
        assert_eq!(cut, [span(105, 110), span(110, 120), span(130, 135)]);
        assert_eq!(spans(&set), [span(100, 105), span(135, 140)]);
        let mut hole = vmas(&[(100, 110)]);
        hole.cut(span(103, 104));
        assert_eq!(spans(&hole), [span(100, 103), span(104, 110)]);
    }

    #[test]
    fn parts_of_a_file_mapping_keep_their_place_in_the_file() {
        let arena = crate::Arena::builder().limit(2 << 20).build().unwrap();
        let file = File::zeroed(&arena, 1 << 20);
        let vma = Vma {
            span: span(100, 110),
            prot: Prot::Read,
            backing: Backing::Private { file, offset: 3 * PAGE_SIZE },
            served: None,
            mergeable: false,
        };
        let Backing::Private { offset, .. } = vma.part(span(104, 200)).backing else { unreachable!() };
        assert_eq!(offset, 7 * PAGE_SIZE);
        assert_eq!(vma.file_page(Gfn(104), 3 * PAGE_SIZE), 7);
    }

    #[test]
    fn the_first_unmapped_page_is_named() {
        let set = vmas(&[(100, 110), (110, 120), (130, 140)]);
        assert_eq!(set.covered(span(103, 120)), Ok(()));
        assert_eq!(set.covered(span(103, 131)), Err(MmError::NotMapped(Hva(120 * PAGE_SIZE))));
        assert_eq!(set.covered(span(99, 100)), Err(MmError::NotMapped(Hva(99 * PAGE_SIZE))));
    }

    #[test]
    fn places_are_found_or_refused() {
        let set = vmas(&[(100, 110), (112, 120)]);
        let at = |page: u64| Hva(page * PAGE_SIZE);
        assert_eq!(set.place(Place::Fixed(at(110)), 2 * PAGE_SIZE), Ok(span(110, 112)));
        assert_eq!(set.place(Place::Fixed(at(110)), 3 * PAGE_SIZE), Err(MmError::Occupied(span(112, 113))));
        assert_eq!(set.place(Place::Near(at(105)), 2 * PAGE_SIZE), Ok(span(110, 112)));
        assert_eq!(set.place(Place::Near(at(105)), 3 * PAGE_SIZE), Ok(span(120, 123)));
        assert_eq!(set.place(Place::Near(at(512)), 4 << 20), Ok(span(512, 1536)));
        assert_eq!(set.place(Place::Near(at(100)), 4 << 20), Ok(span(512, 1536)), "aligned for huge pages");
        assert_eq!(set.place(Place::Anywhere, 4096).unwrap().start, ANYWHERE);
        assert_eq!(set.place(Place::Anywhere, 1 << 48), Err(MmError::NoRoom(1 << 48)));
        for (place, len) in
            [(at(110), 0), (at(110), 5), (Hva(3), 4096), (Hva(0), 4096), (Hva(u64::MAX << 12), 8192)]
        {
            assert!(
                matches!(set.place(Place::Fixed(place), len), Err(MmError::BadRange(_))),
                "{place} {len}"
            );
        }
        assert!(set.place(Place::Near(Hva(5)), 3).is_err());
    }
}
