//! All mappings of an address space: a copy-on-write tree, in versions.
//!
//! The mappings are ordered by address and do not overlap. An operation on a range cuts it out, splits mappings
//! that cross an end, and inserts what remains. Neighbours are not merged.
//!
//! [`Vmas`] is one version; [`VmaEdit`] makes the next ([`slat_slots::ranges`]). [`crate::mappings`] publishes
//! versions, and says which threads may read them.

use crate::error::MmError;
use crate::vma::{ADDRESSES, Place, Stage, Vma, aligned};
use slat::{Hva, Level, PAGE_SIZE, Span};
use slat_slots::ranges::{NoMemory, RangeEdit, RangeRoot, RangeView, RetiredRanges};
use std::alloc::{Layout, handle_alloc_error};
use std::mem;
use std::ptr::NonNull;

/// Where the search for a place begins by default.
const ANYWHERE: Hva = Hva(0x7000_0000_0000);

/// A mapping in the tree. It is freed after all readers of versions that contain it have finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VmaRef(NonNull<Vma>);

// SAFETY: a pointer to a value that is `Send` and `Sync`, and does not change while it is shared.
unsafe impl Send for VmaRef {}
// SAFETY: as above.
unsafe impl Sync for VmaRef {}

impl VmaRef {
    fn new(vma: Vma) -> Self {
        Self(NonNull::from(Box::leak(Box::new(vma))))
    }

    /// Frees the mapping.
    ///
    /// # Safety
    /// No current or later reader reads a version that contains it, and it was not freed before.
    pub(crate) unsafe fn free(self) {
        // SAFETY: from `new`; the caller frees it once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// One version of all mappings of an address space, protected during `'g`.
#[derive(Clone, Copy)]
pub(crate) struct Vmas<'g>(RangeView<'g, VmaRef>);

impl<'g> Vmas<'g> {
    pub(crate) fn new(view: RangeView<'g, VmaRef>) -> Self {
        Self(view)
    }

    /// Returns the mapping at `hva`.
    #[inline]
    pub(crate) fn find(self, hva: Hva) -> Option<&'g Vma> {
        let (_, vma) = self.0.find(hva)?;
        Some(Self::get(vma)).filter(|vma| vma.stage != Stage::Gone)
    }

    /// Returns the mappings that overlap `span`, in order.
    pub(crate) fn over(self, span: Span<Hva>) -> impl Iterator<Item = &'g Vma> {
        self.all_over(span).filter(|vma| vma.stage != Stage::Gone)
    }

    /// Returns the mappings and reserved ranges that overlap `span`, in order.
    pub(crate) fn all_over(self, span: Span<Hva>) -> impl Iterator<Item = &'g Vma> {
        let found = self.0.from(span.start).take_while(move |(range, _)| range.start < span.end);
        found.map(|(_, vma)| Self::get(vma))
    }

    fn get(vma: VmaRef) -> &'g Vma {
        // SAFETY: a mapping of a version that is protected during `'g`.
        unsafe { &*vma.0.as_ptr() }
    }

    /// Checks that every page of `span` is mapped; the error names the first that is not.
    pub(crate) fn covered(self, span: Span<Hva>) -> Result<(), MmError> {
        let end =
            self.over(span).fold(span.start, |at, vma| if vma.span.start <= at { vma.span.end } else { at });
        if end >= span.end { Ok(()) } else { Err(MmError::NotMapped(end)) }
    }

    /// Chooses a place for a mapping of `len` bytes.
    pub(crate) fn place(self, place: Place, len: u64) -> Result<Span<Hva>, MmError> {
        let from = match place {
            Place::Fixed(hva) => {
                let span = aligned(Span::sized(hva, len))?;
                return match self.all_over(span).next() {
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
        // Aligned for huge pages if one fits.
        let unit = if len >= Level::M2.bytes() { Level::M2.bytes() } else { PAGE_SIZE };
        let exact = Span::sized(from, len);
        if matches!(place, Place::Near(_)) && aligned(exact).is_ok() && self.all_over(exact).next().is_none()
        {
            return Ok(exact);
        }
        let found = self.gap(from, len, unit).or_else(|| self.gap(ADDRESSES.start, len, unit));
        found.ok_or(MmError::NoRoom(len))
    }

    /// Returns the first gap of `len` bytes from `from` on.
    fn gap(self, from: Hva, len: u64, unit: u64) -> Option<Span<Hva>> {
        let up = |hva: Hva| hva.0.checked_next_multiple_of(unit).map(Hva);
        let mut at = up(from)?;
        for vma in self.all_over(Span::new(at, ADDRESSES.end)) {
            if at.0.checked_add(len)? <= vma.span.start.0 {
                break;
            }
            at = at.max(up(vma.span.end)?);
        }
        let span = Span::new(at, Hva(at.0.checked_add(len)?));
        ADDRESSES.covers(&span).then_some(span)
    }
}

/// The next version under construction. Dropping it discards the changes.
pub(crate) struct VmaEdit<'m> {
    edit: RangeEdit<'m, VmaRef>,
    /// Mappings that only this version has.
    made: Made,
    /// Mappings that this version has removed.
    gone: Vec<VmaRef>,
}

/// Mappings that are freed on drop, unless taken out before.
#[derive(Default)]
struct Made(Vec<VmaRef>);

/// The nodes and mappings that a version has replaced: freed after all readers of older versions have finished.
#[derive(Debug)]
pub(crate) struct RetiredVmas {
    pub(crate) nodes: RetiredRanges<VmaRef>,
    pub(crate) vmas: Vec<VmaRef>,
}

impl Default for RetiredVmas {
    fn default() -> Self {
        Self { nodes: RetiredRanges::none(), vmas: Vec::new() }
    }
}

impl<'m> VmaEdit<'m> {
    pub(crate) fn new(edit: RangeEdit<'m, VmaRef>) -> Self {
        Self { edit, made: Made::default(), gone: Vec::new() }
    }

    /// Returns the version under construction.
    pub(crate) fn vmas(&self) -> Vmas<'_> {
        Vmas(self.edit.view())
    }

    /// Adds a mapping to a free range.
    pub(crate) fn insert(&mut self, vma: Vma) {
        let span = vma.span;
        let vma = VmaRef::new(vma);
        self.made.0.push(vma);
        self.edit.insert(span, vma).unwrap_or_else(|NoMemory| no_memory());
    }

    /// Removes mappings and reservations in `span`, and returns them in order.
    pub(crate) fn cut(&mut self, span: Span<Hva>) -> Vec<Vma> {
        let all: Vec<Vma> = self.vmas().all_over(span).cloned().collect();
        for vma in &all {
            self.gone.extend(self.edit.remove(vma.span.start).unwrap_or_else(|NoMemory| no_memory()));
            for rest in [Span::new(vma.span.start, span.start), Span::new(span.end, vma.span.end)] {
                if !rest.is_empty() {
                    self.insert(vma.part(rest));
                }
            }
        }
        all.iter().map(|vma| vma.part(span)).collect()
    }

    /// Applies `to` to each mapping in `span`.
    pub(crate) fn change(&mut self, span: Span<Hva>, mut to: impl FnMut(&mut Vma)) {
        for mut vma in self.cut(span) {
            to(&mut vma);
            self.insert(vma);
        }
    }

    /// Removes mappings and reservations in `span`.
    pub(crate) fn free(&mut self, span: Span<Hva>) {
        self.cut(span);
    }

    /// Returns the root of the new version and what it has replaced.
    pub(crate) fn publish(mut self) -> (RangeRoot<VmaRef>, RetiredVmas) {
        self.made.0.clear();
        let (root, nodes) = self.edit.publish();
        (root, RetiredVmas { nodes, vmas: mem::take(&mut self.gone) })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for vma in self.0.drain(..) {
            // SAFETY: the version was not published.
            unsafe { vma.free() };
        }
    }
}

/// Fails like the standard library's collections.
fn no_memory() -> ! {
    handle_alloc_error(Layout::new::<Vma>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::File;
    use crate::vma::{Backing, EVERYWHERE, Prot};
    use slat::Gfn;
    use slat_slots::ranges::RangeMap;

    fn span(start: u64, end: u64) -> Span<Hva> {
        Span::new(Hva(start * PAGE_SIZE), Hva(end * PAGE_SIZE))
    }

    /// Calls `with` with an edit that has these mappings.
    fn with_vmas(spans: &[(u64, u64)], with: impl FnOnce(&mut VmaEdit<'_>)) {
        let mut map = RangeMap::new();
        let mut edit = VmaEdit::new(map.edit());
        for &(start, end) in spans {
            edit.insert(Vma {
                span: span(start, end),
                prot: Prot::Read,
                backing: Backing::Anonymous,
                served: None,
                mergeable: false,
                stage: Stage::Here,
            });
        }
        with(&mut edit);
    }

    fn spans(edit: &VmaEdit<'_>) -> Vec<Span<Hva>> {
        edit.vmas().over(EVERYWHERE).map(|vma| vma.span).collect()
    }

    #[test]
    fn cutting_divides_what_reaches_over_an_end() {
        with_vmas(&[(100, 110), (110, 120), (130, 140)], |set| {
            let cut: Vec<_> = set.cut(span(105, 135)).iter().map(|vma| vma.span).collect();
            assert_eq!(cut, [span(105, 110), span(110, 120), span(130, 135)]);
            assert_eq!(spans(set), [span(100, 105), span(135, 140)]);
        });
        with_vmas(&[(100, 110)], |hole| {
            hole.cut(span(103, 104));
            assert_eq!(spans(hole), [span(100, 103), span(104, 110)]);
        });
    }

    #[test]
    fn a_place_that_is_kept_is_not_mapped_and_not_free() {
        with_vmas(&[(100, 110)], |set| {
            set.change(span(104, 106), |vma| vma.stage = Stage::Gone);
            let vmas = set.vmas();
            assert!(vmas.find(span(104, 105).start).is_none() && vmas.find(span(106, 107).start).is_some());
            assert_eq!(vmas.covered(span(100, 110)), Err(MmError::NotMapped(span(104, 105).start)));
            let place = vmas.place(Place::Fixed(span(104, 105).start), PAGE_SIZE);
            assert_eq!(place, Err(MmError::Occupied(span(104, 105))));
        });
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
            stage: Stage::Here,
        };
        let Backing::Private { offset, .. } = vma.part(span(104, 200)).backing else { unreachable!() };
        assert_eq!(offset, 7 * PAGE_SIZE);
        assert_eq!(vma.file_page(Gfn(104), 3 * PAGE_SIZE), 7);
    }

    #[test]
    fn the_first_unmapped_page_is_named() {
        with_vmas(&[(100, 110), (110, 120), (130, 140)], |set| {
            let set = set.vmas();
            assert_eq!(set.covered(span(103, 120)), Ok(()));
            assert_eq!(set.covered(span(103, 131)), Err(MmError::NotMapped(Hva(120 * PAGE_SIZE))));
            assert_eq!(set.covered(span(99, 100)), Err(MmError::NotMapped(Hva(99 * PAGE_SIZE))));
        });
    }

    #[test]
    fn places_are_found_or_refused() {
        with_vmas(&[(100, 110), (112, 120)], |set| check_places(set.vmas()));
    }

    fn check_places(set: Vmas<'_>) {
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
