//! Soft-dirty: which pages have changed since the last clear.
//!
//! Clearing write-protects the pages, in this table and in every secondary MMU, and records them as **clean**, whether a
//! page is there or not. Each way in which an address can get other contents removes the record:
//!
//! | way | what removes it |
//! |---|---|
//! | a write | the fault that grants write permission |
//! | the contents are dropped: `dontneed`, `reap`, a file's page that leaves for swap | the change that empties the entry |
//! | an empty entry is filled, by a fault or a handler | the filling: the page may be writable at once |
//! | a device stores to a pinned page, without a fault | the clear leaves pinned pages without a record |
//! | a mapping is new: `mmap` in place of another, `mremap` that moves or grows | the change of the mappings |
//!
//! A page without a record counts as changed, so a way that is forgotten here is copied once too often. Changes that keep
//! the contents keep the record: migration, swap, protection, a fork, a merge.
//!
//! At the first question to an address space nothing has a record. An anonymous page that is not there then reads as
//! zeroes, as in any fresh copy, and does not count as changed.

use crate::clean::Changed;
use crate::error::MmError;
use crate::pages::{hvas_of, pages_of};
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::state::Reading;
use crate::unwound::IfUnwound;
use crate::vma::{Backing, aligned};
use slat::{Hva, Idle, Reason, Span};

impl AddressSpace {
    /// Marks the pages of the range as not changed (`clear_refs`); their next writes fault. Writes through another
    /// mapping of the same file are not noticed. May sleep.
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
        self.take_soft_dirty(idle, hvas).map(drop)
    }

    /// Returns the pages of the range that have changed since their last clear, as [`soft_dirty`](Self::soft_dirty) does,
    /// and clears them in the same step: a page that is written meanwhile is returned by this call or by the next one. Copy
    /// the pages afterwards. May sleep.
    ///
    /// ```
    /// # use slat_mm::*;
    /// # use slat::{Hva, Idle, PAGE_SIZE, Span};
    /// # let mut idle = Idle::take().unwrap();
    /// # let arena = Arena::builder().limit(64 << 20).build()?;
    /// # let space = AddressSpace::builder(&arena).build()?;
    /// let memory = space.mmap(Place::Fixed(Hva(0x10_0000)), 1 << 20, Prot::ReadWrite, Backing::Anonymous)?;
    /// space.write(&mut idle, memory.start, &[1; 9 * PAGE_SIZE as usize])?;
    /// assert_eq!(space.take_soft_dirty(&mut idle, memory)?, [Span::sized(memory.start, 9 * PAGE_SIZE)]);
    /// let first = Span::sized(memory.start, PAGE_SIZE);
    /// space.dontneed(&mut idle, first)?;
    /// assert_eq!(space.take_soft_dirty(&mut idle, memory)?, [first], "it is zero now");
    /// # Ok::<(), MmError>(())
    /// ```
    pub fn take_soft_dirty(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<Vec<Span<Hva>>, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let state = self.state.read();
        let (mut taken, mut result) = (Vec::new(), Ok(()));
        // A panic drops `taken`.
        let changed = IfUnwound::run(|| self.clean.remove(pages));
        self.around(&state, idle, pages, Reason::SoftDirty, &mut |_, _| {
            let changed = self.clean.insert(pages);
            // A fault that has not seen the records has filled its entry when this returns.
            self.page_locks.outlast(pages);
            taken = self.mapped_and_changed(&state, &changed);
            result = self.each_filled(pages, |filled| {
                filled.set(filled.pte.read_only());
                // A fault may have removed a record of this clear.
                let page = Span::sized(filled.page, filled.level.pages());
                let meanwhile = self.clean.insert(page);
                taken.extend(meanwhile.pages.into_iter().map(hvas_of));
                if filled.found().is_some_and(|found| self.is_pinned(found.pfn, found.level)) {
                    self.clean.remove(page);
                }
                Ok(())
            });
        });
        changed.disarm();
        // The walk has ended early: the rest may be writable.
        result.inspect_err(|_| self.clean.remove(pages))?;
        Ok(joined(taken))
    }

    /// Returns the mapped pages of the range that have changed since [`clear_soft_dirty`](Self::clear_soft_dirty), or were
    /// never cleared; neighbours as one span. They include pages whose contents were dropped, and pages of new mappings. The
    /// first call for an address space leaves out anonymous pages that are not there: they read as zeroes. A write changes a
    /// whole huge page. Writes by other threads between this and a clear are not noticed:
    /// [`take_soft_dirty`](Self::take_soft_dirty) does both in one step.
    pub fn soft_dirty(&self, hvas: Span<Hva>) -> Result<Vec<Span<Hva>>, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let state = self.state.read();
        Ok(joined(self.mapped_and_changed(&state, &self.clean.changed(pages))))
    }

    /// Returns the parts of `changed` that are mapped. At the first question: those that need not read as zeroes.
    fn mapped_and_changed(&self, state: &Reading<'_>, changed: &Changed) -> Vec<Span<Hva>> {
        let mut mapped = Vec::new();
        for &pages in &changed.pages {
            for vma in state.vmas().over(hvas_of(pages)) {
                let part = vma.span.clamp(&hvas_of(pages));
                if changed.used || !matches!(vma.backing, Backing::Anonymous) || vma.served.is_some() {
                    mapped.push(part);
                    continue;
                }
                self.map.for_each(pages_of(part), |covers, level, entry| {
                    if Pte::of(entry.load(), level) != Pte::Empty {
                        mapped.push(hvas_of(covers.clamp(&pages_of(part))));
                    }
                });
            }
        }
        mapped
    }
}

/// Returns the spans in order, without overlaps, neighbours as one.
fn joined(mut spans: Vec<Span<Hva>>) -> Vec<Span<Hva>> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut joined: Vec<Span<Hva>> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}
