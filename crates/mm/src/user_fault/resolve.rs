//! How a handler resolves a fault, or a page ahead of faults.
//!
//! A page is filled first, then installed under its page lock, by the mapping at that moment. So no thread sees
//! a partly filled page. A range is processed in regions of 2 MiB; sleepers are woken after each region.

use super::UserFaults;
use crate::error::MmError;
use crate::file::Page;
use crate::held::Held;
use crate::lru::Kind;
use crate::pages::{hva_of, page_of, pages_of};
use crate::pte::Pte;
use crate::vma::{Backing, Prot, Vma, aligned};
use slat::{Gfn, Hva, Idle, Level, PAGE_SIZE, Pfn, Span};

/// Why a range was not resolved to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("stopped at {at}: {why}")]
pub struct Stopped {
    /// The page where it stopped. The pages before it are present, and their sleepers were woken.
    pub at: Hva,
    /// Why it stopped.
    pub why: MmError,
}

impl UserFaults {
    /// Installs `contents`, a multiple of 4 KiB, from `page` on, and wakes the sleepers. All pages must be
    /// registered here, and not present. In a shared mapping they become pages of the file.
    pub fn copy(&self, idle: &mut Idle, page: Hva, contents: &[u8]) -> Result<(), Stopped> {
        self.resolve(idle, Span::sized(page, contents.len() as u64), |idle, at| {
            let fresh = self.space.arena.page(Level::K4)?;
            let skip = (hva_of(at).0 - page.0) as usize;
            let bytes = &contents[skip..skip + PAGE_SIZE as usize];
            // SAFETY: only this function holds the frame; `bytes` has its length.
            unsafe {
                self.space.arena.frame(fresh.pfn()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            };
            self.give(idle, at, fresh)
        })
    }

    /// Installs pages of zeroes, under the conditions of [`copy`](Self::copy).
    pub fn zero_page(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), Stopped> {
        self.resolve(idle, hvas, |idle, at| self.give(idle, at, self.space.arena.zeroed(Level::K4)?))
    }

    /// Maps pages that are in the file, and wakes the sleepers. All pages must be registered here and in the
    /// file, and not mapped.
    pub fn continue_(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), Stopped> {
        self.resolve(idle, hvas, |idle, at| self.give_files(idle, at))
    }

    /// Calls `give` for each page, then wakes the sleepers. Stops at a page that is already present, and wakes
    /// its sleepers too.
    fn resolve(
        &self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        mut give: impl FnMut(&mut Idle, Gfn) -> Result<(), MmError>,
    ) -> Result<(), Stopped> {
        let pages = pages_of(aligned(hvas).map_err(|why| Stopped { at: hvas.start, why })?);
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min(at.base(Level::M2) + Level::M2.pages());
            let mut woken = Span::sized(at, 0);
            let result = (at.0..end.0).map(Gfn).try_for_each(|page| {
                let given = give(idle, page);
                if matches!(given, Ok(()) | Err(MmError::AlreadyThere(_))) {
                    woken.end = page + 1;
                }
                given.map_err(|why| Stopped { at: hva_of(page), why })
            });
            self.queue.wake(woken);
            at = match result {
                Err(stopped) if self.space.made_room(idle, stopped.why) => page_of(stopped.at),
                Err(stopped) => return Err(stopped),
                Ok(()) => end,
            };
        }
        Ok(())
    }

    /// Maps a new frame at `page`, which must be missing.
    fn give(&self, idle: &mut Idle, page: Gfn, fresh: Held<'_>) -> Result<(), MmError> {
        let mut fresh = Some(fresh);
        self.give_with(idle, page, |vma| {
            // `give_with` calls this once.
            let fresh = fresh.take().ok_or(MmError::AlreadyThere(hva_of(page)))?;
            match &vma.backing {
                Backing::Anonymous => Ok(fresh.keep()),
                Backing::Shared { file, offset } => {
                    let index = vma.file_page(page, *offset);
                    file.holds(index).ok_or(MmError::PastEnd(hva_of(page)))?;
                    let ours = file.add(index, fresh).ok_or(MmError::AlreadyThere(hva_of(page)))?;
                    Ok(ours.keep())
                }
                Backing::Private { .. } => Err(MmError::Unservable(vma.span)),
            }
        })
    }

    /// Maps the file's frame at `page`, which must be unmapped.
    fn give_files(&self, idle: &mut Idle, page: Gfn) -> Result<(), MmError> {
        let hva = hva_of(page);
        loop {
            let mut swapped = None;
            let given = self.give_with(idle, page, |vma| {
                let Backing::Shared { file, offset } = &vma.backing else {
                    return Err(MmError::NotInFile(hva));
                };
                let index = vma.file_page(page, *offset);
                match file.holds(index) {
                    Some(true) => {}
                    Some(false) => return Err(MmError::NotInFile(hva)),
                    None => return Err(MmError::PastEnd(hva)),
                }
                match file.page(index)? {
                    Page::There(held) => Ok(held.keep()),
                    Page::PastEnd => Err(MmError::PastEnd(hva)),
                    Page::Swapped => {
                        swapped = Some((file.clone(), index));
                        Err(MmError::NotInFile(hva))
                    }
                }
            });
            match swapped {
                Some((file, index)) => file.swap_in(idle, index, hva)?,
                None => return given,
            }
        }
    }

    /// Maps the frame that `frame` returns, with its reference, at the empty entry of `page`, whose faults are
    /// served here. Waits while the mapping is busy.
    fn give_with(
        &self,
        idle: &mut Idle,
        page: Gfn,
        mut frame: impl FnMut(&Vma) -> Result<Pfn, MmError>,
    ) -> Result<(), MmError> {
        let (space, hva) = (&*self.space, hva_of(page));
        loop {
            let lock = space.lock_region(page);
            let vma = lock.find(hva).filter(|vma| self.serves(vma)).ok_or(MmError::NotServed(hva))?;
            if space.mappings().is_busy(vma) {
                drop(lock);
                space.mappings().wait(idle, hva);
                continue;
            }
            let (level, entry) = space.map.find(page);
            if Pte::of(entry.load(), level) != Pte::Empty {
                return Err(MmError::AlreadyThere(hva));
            }
            space.may_take(Level::K4)?;
            let entry = space.map.reach(page, Level::K4)?;
            let pfn = frame(vma)?;
            space.lru_enter(page, Level::K4, pfn, Kind::of(vma));
            let pte = Pte::Mapped { pfn, writable: vma.prot == Prot::ReadWrite };
            let pte = if vma.prot == Prot::None { pte.parked() } else { pte };
            space.clean.remove(Span::sized(page, 1));
            entry.store(pte.word(Level::K4));
            return Ok(());
        }
    }
}
