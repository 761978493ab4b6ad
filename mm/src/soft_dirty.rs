//! Soft-dirty: which pages were written since the last clear.
//!
//! Clearing write-protects the pages, in this table and in every secondary MMU, and records them as **clean**.
//! The next write to one faults, and the fault removes the record when it grants write permission. A page
//! without a record counts as written, including new and moved pages.
//!
//! Only pages that are present or swapped out are recorded: a change that takes a page away removes its record.
//! So an empty entry has no record, and filling it costs nothing.

use crate::error::MmError;
use crate::pte::{Pte, hva_of, pages_of};
use crate::space::AddressSpace;
use crate::vma::aligned;
use slat::{Gfn, Hva, Idle, PAGE_SIZE, Span, Why};

impl AddressSpace {
    /// Marks the pages of the range as not written (`clear_refs`); their next writes fault. Writes through
    /// another mapping of the same file are not noticed. May sleep.
    ///
    /// ```
    /// # use slat_mm::*;
    /// # use slat::{Hva, Idle, PAGE_SIZE, Span};
    /// # let mut idle = Idle::take().unwrap();
    /// # let arena = Arena::builder().limit(64 << 20).build()?;
    /// # let space = AddressSpace::builder(&arena).build()?;
    /// let memory = space.mmap(Place::Fixed(Hva(0x10_0000)), 1 << 20, Prot::ReadWrite, Backing::Anonymous)?;
    /// space.write(&mut idle, memory.start, &[1; 9 * PAGE_SIZE as usize])?;
    /// space.clear_soft_dirty(&mut idle, memory)?;
    /// assert_eq!(space.soft_dirty(memory)?, []);
    /// let page = memory.start + 5 * PAGE_SIZE;
    /// space.write(&mut idle, page, b"!")?;
    /// assert_eq!(space.soft_dirty(memory)?, [Span::sized(page, PAGE_SIZE)]);
    /// # Ok::<(), MmError>(())
    /// ```
    pub fn clear_soft_dirty(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        let pages = pages_of(aligned(hvas)?);
        let state = self.state.read();
        let mut result = Ok(());
        self.around(&state, idle, pages, Why::SoftDirty, &mut |_, _| {
            result = self.each_filled(pages, |filled| {
                filled.set(filled.pte.read_only());
                self.clean.insert(Span::sized(filled.page, filled.level.pages()));
                Ok(())
            });
        });
        result
    }

    /// Returns the present or swapped pages of the range that were written since
    /// [`clear_soft_dirty`](Self::clear_soft_dirty), or never cleared; neighbours as one span. A write dirties
    /// a whole huge page.
    pub fn soft_dirty(&self, hvas: Span<Hva>) -> Result<Vec<Span<Hva>>, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let mut written: Vec<Span<Hva>> = Vec::new();
        self.map.for_each(pages, |covers, level, entry| {
            if Pte::of(entry.load(), level) == Pte::Empty {
                return;
            }
            let there = covers.clamp(&pages);
            for page in (there.start.0..there.end.0).map(Gfn).filter(|&page| !self.clean.contains(page)) {
                match written.last_mut() {
                    Some(last) if last.end == hva_of(page) => last.end = hva_of(page + 1),
                    _ => written.push(Span::sized(hva_of(page), PAGE_SIZE)),
                }
            }
        });
        Ok(written)
    }
}
