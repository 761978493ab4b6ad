//! Soft-dirty: which pages were written since the last clear.
//!
//! Clearing withdraws write permission, of this table and of every secondary MMU, and remembers the pages as **clean**.
//! The next write to one faults, and the code that gives write permission marks the page as no longer clean. What is not
//! remembered as clean counts as written, new pages and moved ones included.
//!
//! Only pages that are there, or swapped out, are clean: the code that takes one away removes its mark. So an entry that is
//! filled has no mark, and filling it costs nothing.

use crate::error::MmError;
use crate::pte::{Pte, hva_of, pages_of};
use crate::space::AddressSpace;
use crate::vma::aligned;
use slat::{Gfn, Hva, Idle, PAGE_SIZE, Span, Why};

impl AddressSpace {
    /// From now on the pages of the range count as not written, until they are (`clear_refs`). Their next writes
    /// fault. Writes through another mapping of the same file are not noticed. May sleep.
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

    /// The pages of the range that are there, or swapped out, and were written since [`clear_soft_dirty`](Self::clear_soft_dirty), or
    /// never cleared; neighbours as one span. Huge pages are written as one.
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
