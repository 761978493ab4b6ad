//! Changes that move: a range to another address, or pages to other frames. The contents go along.

use crate::error::MmError;
use crate::pte::{Pte, page_of, pages_of};
use crate::space::{AddressSpace, Found, State};
use crate::stats::Counted;
use crate::vma::{Place, Vma, aligned};
use parking_lot::RwLockWriteGuard;
use slat::{Gfn, Hva, Idle, Level, Pfn, Span, Why};

impl AddressSpace {
    /// Makes the range, which must lie in one mapping, `new_len` bytes long, and returns where it is now. With
    /// [`Place::Anywhere`] it stays where it is if it can; with the others it goes there. Only the old range is
    /// invalidated ([`Why::Remap`]; what is cut off: [`Why::Unmap`]). May sleep.
    pub fn mremap(
        &self,
        idle: &mut Idle,
        old: Span<Hva>,
        new_len: u64,
        place: Place,
    ) -> Result<Span<Hva>, MmError> {
        let old = aligned(old)?;
        let mut state = self.state.write();
        let vma = state.vmas.find(old.start).ok_or(MmError::NotMapped(old.start))?;
        if !vma.span.covers(&old) {
            return Err(MmError::NotMapped(vma.span.end));
        }
        let kept = Span::new(old.start, old.end.min(Span::sized(old.start, new_len).end));
        let tail = Span::new(kept.end, old.end);
        if place == Place::Anywhere {
            let stays = aligned(Span::sized(old.start, new_len))?;
            if !tail.is_empty() || stays == old {
                return self.unmap_tail(&mut state, idle, tail).map(|()| stays);
            }
            let more = Span::new(old.end, stays.end);
            if vma.span.end == old.end && state.vmas.over(more).next().is_none() {
                for vma in state.vmas.cut(old) {
                    state.vmas.insert(Vma { span: stays, ..vma });
                }
                return Ok(stays);
            }
        }
        let new = state.vmas.place(place, new_len)?;
        let shift = page_of(new.start).0.wrapping_sub(page_of(old.start).0);
        let pages = pages_of(kept);
        self.split_ends(pages)?;
        self.prepare_move(pages, shift)?;
        self.unmap_tail(&mut state, idle, tail)?;
        for mut vma in state.vmas.cut(kept) {
            vma.end_service();
            state.vmas.insert(Vma { span: new, ..vma });
        }
        let mut result = Ok(());
        self.around(&state, idle, pages, Why::Remap, &mut |_, _| {
            result = self.each_filled(pages, |filled| {
                // Linked by `prepare_move`: this cannot fail.
                self.map
                    .reach(shifted(filled.page, shift), filled.level)?
                    .store(filled.pte.word(filled.level));
                filled.set(Pte::Empty);
                self.lru_move(filled.page, shifted(filled.page, shift), filled.level);
                self.no_longer_same(Span::sized(filled.page, filled.level.pages()));
                Ok(())
            });
        });
        result.map(|()| new)
    }

    fn unmap_tail(
        &self,
        state: &mut RwLockWriteGuard<'_, State>,
        idle: &mut Idle,
        tail: Span<Hva>,
    ) -> Result<(), MmError> {
        if tail.is_empty() { Ok(()) } else { self.unmap(state, idle, tail) }
    }

    /// Links the tables that the new place needs, and splits what cannot be huge there: where the two places
    /// lie differently in their 2 MiB, or small pages were mapped there before.
    fn prepare_move(&self, pages: Span<Gfn>, shift: u64) -> Result<(), MmError> {
        self.each_filled(pages, |filled| {
            let to = shifted(filled.page, shift);
            let fits = to == to.base(filled.level) && self.map.find(to).0 >= filled.level;
            if fits {
                self.map.reach(to, filled.level)?;
                return Ok(());
            }
            // The walk goes on with the small entries.
            self.split(filled.level, filled.entry)
        })
    }

    /// Moves the pages of the range to other frames, as compaction does, and returns how many moved (a huge
    /// page is one). Shared frames stay: this address space does not know all their addresses. Huge pages stay huge while the
    /// arena has huge pages left. May sleep. Where memory runs out, some have moved.
    pub fn migrate(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<u64, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let state = self.state.read();
        let mut moved = 0;
        let mut at = pages.start;
        while at < pages.end {
            // One region at a time: the copying is done while faults on the region wait.
            let part = Span::new(at, pages.end.min(at.base(Level::M2) + Level::M2.pages()));
            at = part.end;
            let mut movable = false;
            self.each_page(part, |found| {
                movable |= self.is_sole(found.pfn, found.level);
                Ok(())
            })?;
            if !movable {
                continue;
            }
            let mut released = self.arena.released();
            let mut result = Ok(());
            self.around(&state, idle, part, Why::Migrate, &mut |_, _| {
                result = self.each_page(part, |found| {
                    if let Some(old) = self.move_page(&found)? {
                        released.add(old, found.level);
                        moved += 1;
                    }
                    Ok(())
                });
            });
            result?;
        }
        Ok(moved)
    }

    /// Gives an entry a new frame with the same contents, and returns the old one; `None` where it has to stay,
    /// or has been split so that its parts can move.
    fn move_page(&self, found: &Found<'_>) -> Result<Option<Pfn>, MmError> {
        if !self.is_sole(found.pfn, found.level) {
            return Ok(None);
        }
        let fresh = match self.arena.page(found.level) {
            Err(MmError::OutOfFrames(Level::M2)) => {
                self.split(found.level, found.entry)?;
                return Ok(None);
            }
            fresh => fresh?,
        };
        self.arena.copy(found.pfn, fresh.pfn(), found.level);
        self.lru_replace(found.page, found.level, fresh.pfn(), None);
        found.set(found.pte.with_frame(fresh.keep()));
        self.counters.add(Counted::Migrated);
        Ok(Some(found.pfn))
    }
}

fn shifted(page: Gfn, shift: u64) -> Gfn {
    Gfn(page.0.wrapping_add(shift))
}
