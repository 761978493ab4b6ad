//! Changes that move a range to another address, or pages to other frames, with their contents.

use crate::change::end_service;
use crate::error::MmError;
use crate::mappings::Claim;
use crate::pages::{page_of, pages_of};
use crate::pte::Pte;
use crate::space::{AddressSpace, Found};
use crate::stats::Counted;
use crate::table::Reserve;
use crate::unwound::IfUnwound;
use crate::vma::{Place, Stage, Vma, aligned};
use slat::{Gfn, Hva, Idle, Level, Pfn, Reason, Span};
use std::cell::Cell;

/// The effect of `mremap` on a range.
enum Remap {
    /// The range stays, and is as long as before or shorter.
    Shrink,
    /// The range stays and gets longer.
    Grow,
    /// The range moves to this one.
    Move(Span<Hva>),
}

impl AddressSpace {
    /// Makes the range, which must lie in one mapping, `new_len` bytes long, and returns the range afterwards.
    /// With [`Place::Anywhere`] it stays in place if it can; with other places it moves there. Only the old
    /// range is invalidated ([`Reason::Remap`]; a part that is cut off: [`Reason::Unmap`]). May sleep.
    pub fn mremap(
        &self,
        idle: &mut Idle,
        old: Span<Hva>,
        new_len: u64,
        place: Place,
    ) -> Result<Span<Hva>, MmError> {
        let old = aligned(old)?;
        let stays = Span::sized(old.start, new_len);
        let kept = Span::new(old.start, old.end.min(stays.end));
        let tail = Span::new(kept.end, old.end);
        let mut first = vec![old];
        if let Place::Fixed(hva) = place {
            first.push(Span::sized(hva, new_len));
        }
        let (claim, remap) = self.claim(&first, |vmas| {
            let vma = vmas.find(old.start).ok_or(MmError::NotMapped(old.start))?;
            if !vma.span.covers(&old) {
                return Err(MmError::NotMapped(vma.span.end));
            }
            if place == Place::Anywhere {
                let stays = aligned(stays)?;
                if stays.end <= old.end {
                    return Ok((vec![old], Remap::Shrink));
                }
                let more = Span::new(old.end, stays.end);
                if vma.span.end == old.end && vmas.all_over(more).next().is_none() {
                    return Ok((vec![stays], Remap::Grow));
                }
            }
            let new = vmas.place(place, new_len)?;
            let both = if old.start < new.start { vec![old, new] } else { vec![new, old] };
            Ok((both, Remap::Move(new)))
        })?;
        match remap {
            Remap::Shrink if tail.is_empty() => Ok(stays),
            Remap::Shrink => self.unmap(&claim, idle, tail).map(|()| stays),
            Remap::Grow => {
                self.edit(&claim, |edit| {
                    for vma in edit.cut(old) {
                        edit.insert(Vma { span: stays, ..vma });
                    }
                });
                // Another mapping may have been behind the old end.
                self.clean.remove(Span::new(page_of(old.end), page_of(stays.end)));
                Ok(stays)
            }
            Remap::Move(new) => {
                self.edit(&claim, |edit| {
                    edit.change(old, |vma| vma.stage = Stage::Busy);
                    edit.insert(Vma::kept(new));
                });
                self.outlast(pages_of(old));
                // On an error, and while a panic unwinds.
                let stays = IfUnwound::run(|| {
                    self.edit(&claim, |edit| {
                        edit.change(old, |vma| vma.stage = Stage::Here);
                        edit.free(new);
                    });
                });
                let pages = pages_of(kept);
                let shift = page_of(new.start).0.wrapping_sub(page_of(kept.start).0);
                self.split_ends(pages)?;
                let reserve = self.prepare_move(pages, shift)?;
                if !tail.is_empty() {
                    self.unmap(&claim, idle, tail)?;
                }
                stays.disarm();
                self.move_mapping(&claim, idle, kept, (new, shift), reserve);
                Ok(new)
            }
        }
    }

    /// Moves `kept`, which is busy, to the reserved range `new`.
    fn move_mapping<'a>(
        &'a self,
        claim: &Claim<'_>,
        idle: &mut Idle,
        kept: Span<Hva>,
        (new, shift): (Span<Hva>, u64),
        mut reserve: Reserve<'a>,
    ) {
        let pages = pages_of(kept);
        let mut ended = Vec::new();
        self.edit(claim, |edit| {
            edit.free(new);
            for mut vma in edit.cut(kept) {
                ended.extend(vma.end_service());
                edit.insert(Vma { span: new, ..vma });
            }
            edit.insert(Vma::kept(kept));
        });
        end_service(ended.into_iter());
        // The entries are all at the new place, or all at the old one.
        let moved = Cell::new(false);
        let finish = || {
            self.edit(claim, |edit| {
                edit.free(kept);
                if moved.get() {
                    edit.change(new, |vma| vma.stage = Stage::Here);
                } else {
                    for vma in edit.cut(new) {
                        edit.insert(Vma { span: kept, stage: Stage::Here, ..vma });
                    }
                }
            });
            if moved.get() {
                self.clean.remove(pages_of(new));
            }
        };
        let unwound = IfUnwound::run(finish);
        self.around(&self.state.read(), idle, pages, Reason::Remap, &mut |_, _| {
            self.move_entries(pages, shift, &mut reserve);
            moved.set(true);
        });
        drop(unwound);
    }

    /// Moves entries under the page locks of both places. Faults wait at both places; threads that do not read
    /// the mappings may find entries at either.
    fn move_entries<'a>(&'a self, pages: Span<Gfn>, shift: u64, reserve: &mut Reserve<'a>) {
        let mut at = pages.start;
        while at < pages.end {
            let to = shifted(at, shift);
            let (level, _) = self.map.find(at);
            if level > Level::M2 {
                at = at.base(level) + level.pages();
                continue;
            }
            // The part ends where either place leaves its 2 MiB region.
            let rest = |page: Gfn| (page.base(Level::M2) + Level::M2.pages()).0 - page.0;
            let part = Span::new(at, pages.end.min(at + rest(at).min(rest(to))));
            let _locks = self.page_locks.lock_two(at, to);
            self.map.for_each(part, |covers, level, entry| {
                let (from, pte) = (covers.start, Pte::of(entry.load(), level));
                if pte == Pte::Empty {
                    return;
                }
                let to = shifted(from, shift);
                // Linked by `prepare_move`, or from the reserve.
                let place = self.map.reach_with(to, level, reserve);
                place.store(pte.word(level));
                entry.store(Pte::Empty.word(level));
                self.lru_move(from, to, level);
                self.no_longer_same(Span::sized(from, level.pages()));
            });
            at = part.end;
        }
    }

    /// Links the tables that the new place needs. Splits huge pages that cannot be huge there: their offset in
    /// 2 MiB differs, or the new place has a table of small pages. Returns a spare table for each huge page
    /// that moves whole, since other threads may split it before it moves.
    fn prepare_move(&self, pages: Span<Gfn>, shift: u64) -> Result<Reserve<'_>, MmError> {
        let mut huge = 0;
        self.each_filled(pages, |filled| {
            let to = shifted(filled.page, shift);
            let fits = to == to.base(filled.level) && self.map.find(to).0 >= filled.level;
            if fits {
                self.map.reach(to, filled.level)?;
                huge += usize::from(filled.level > Level::K4);
                return Ok(());
            }
            // The walk continues with the small entries.
            self.split(filled.level, filled.entry)
        })?;
        Ok(self.map.reserve(huge)?)
    }

    /// Moves the pages of the range to other frames, like compaction, and returns how many moved (a huge page
    /// counts as one). Shared frames stay, since this address space does not know all addresses that map them.
    /// Huge pages stay huge while the arena has huge pages left. May sleep. If memory runs out, some pages have
    /// moved.
    pub fn migrate(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<u64, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let state = self.state.read();
        let mut moved = 0;
        let mut at = pages.start;
        while at < pages.end {
            // One region per notification, since faults on it wait while its pages are copied.
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
            self.around(&state, idle, part, Reason::Migrate, &mut |_, _| {
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

    /// Gives an entry a new frame with the same contents, and returns the old frame. `None` if the page has to
    /// stay, or was split so that its parts can move.
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
