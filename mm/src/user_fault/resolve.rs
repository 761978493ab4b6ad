//! What a handler does about a fault, or before it happens: gives a page, whole and at once.
//!
//! Each page is filled first and then installed under its page lock, so no thread sees half of it. A range goes
//! region by region of 2 MiB: the state lock is let go and the sleepers are woken after each, so that no change
//! waits for the whole range.

use super::UserFaults;
use crate::error::MmError;
use crate::file::Page;
use crate::held::Held;
use crate::lru::Kind;
use crate::pte::{Pte, hva_of, page_of, pages_of};
use crate::space::AddressSpace;
use crate::vma::{Backing, Prot, Vma, aligned};
use slat::{Gfn, Hva, Idle, Level, PAGE_SIZE, Span};

/// Why a range was not resolved to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("stopped at {at}: {why}")]
pub struct Stopped {
    /// The page where it stopped. Everything before it is there, and its sleepers are awake.
    pub at: Hva,
    /// Why.
    pub why: MmError,
}

impl UserFaults {
    /// Installs pages with `contents`, whole pages of them, from `page` on, and wakes who sleeps there. All of them
    /// must be registered here, and none of them be there yet. In a shared mapping they become the file's.
    pub fn copy(&self, idle: &mut Idle, page: Hva, contents: &[u8]) -> Result<(), Stopped> {
        self.resolve(idle, Span::sized(page, contents.len() as u64), |_, vma, at| {
            let fresh = self.space.arena.page(Level::K4)?;
            let skip = (hva_of(at).0 - page.0) as usize;
            let bytes = &contents[skip..skip + PAGE_SIZE as usize];
            // SAFETY: a frame that only we hold, and as many bytes as it has.
            unsafe {
                self.space.arena.frame(fresh.pfn()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            };
            self.space.give(vma, at, fresh)
        })
    }

    /// Installs pages of zeroes, as [`copy`](Self::copy) would.
    pub fn zero_page(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), Stopped> {
        self.resolve(idle, hvas, |_, vma, at| self.space.give(vma, at, self.space.arena.zeroed(Level::K4)?))
    }

    /// Maps the pages that are in the file, and wakes who sleeps there. All of them must be registered here and be
    /// in the file, and none of them be mapped yet.
    pub fn continue_(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), Stopped> {
        self.resolve(idle, hvas, |idle, vma, at| self.space.give_files(idle, vma, at))
    }

    /// Calls `give` with each page, and wakes. A page that was there already ends it, and is woken too.
    fn resolve(
        &self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        mut give: impl FnMut(&mut Idle, &Vma, Gfn) -> Result<(), MmError>,
    ) -> Result<(), Stopped> {
        let pages = pages_of(aligned(hvas).map_err(|why| Stopped { at: hvas.start, why })?);
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min(at.base(Level::M2) + Level::M2.pages());
            let mut woken = Span::sized(at, 0);
            let state = self.space.state.read();
            let result = (at.0..end.0).map(Gfn).try_for_each(|page| {
                let vma = state.vmas.find(hva_of(page)).filter(|vma| self.serves(vma));
                let given = vma.ok_or(MmError::NotServed(hva_of(page))).and_then(|vma| give(idle, vma, page));
                if matches!(given, Ok(()) | Err(MmError::AlreadyThere(_))) {
                    woken.end = page + 1;
                }
                given.map_err(|why| Stopped { at: hva_of(page), why })
            });
            drop(state);
            self.queue.wake(woken);
            at = match result {
                Err(stopped) if self.space.made_room(idle, stopped.why) => page_of(stopped.at),
                Err(stopped) => return Err(stopped),
                Ok(()) => end,
            };
        }
        Ok(())
    }
}

impl AddressSpace {
    /// Gives `page`, which has to be missing, a frame.
    fn give(&self, vma: &Vma, page: Gfn, fresh: Held<'_>) -> Result<(), MmError> {
        self.give_with(vma, page, || match &vma.backing {
            Backing::Anonymous => Ok(fresh.keep()),
            Backing::Shared { file, offset } => {
                let index = vma.file_page(page, *offset);
                file.holds(index).ok_or(MmError::PastEnd(hva_of(page)))?;
                let ours = file.add(index, fresh).ok_or(MmError::AlreadyThere(hva_of(page)))?;
                Ok(ours.keep())
            }
            Backing::Private { .. } => Err(MmError::Unservable(vma.span)),
        })
    }

    /// Gives `page`, which has to be unmapped, the file's frame.
    fn give_files(&self, idle: &mut Idle, vma: &Vma, page: Gfn) -> Result<(), MmError> {
        let hva = hva_of(page);
        let Backing::Shared { file, offset } = &vma.backing else { return Err(MmError::NotInFile(hva)) };
        let index = vma.file_page(page, *offset);
        loop {
            let mut swapped = false;
            let given = self.give_with(vma, page, || {
                match file.holds(index) {
                    Some(true) => {}
                    Some(false) => return Err(MmError::NotInFile(hva)),
                    None => return Err(MmError::PastEnd(hva)),
                }
                match file.page(index)? {
                    Page::There(held) => Ok(held.keep()),
                    Page::PastEnd => Err(MmError::PastEnd(hva)),
                    Page::Swapped => {
                        swapped = true;
                        Err(MmError::NotInFile(hva))
                    }
                }
            });
            if !swapped {
                return given;
            }
            file.swap_in(idle, index, hva)?;
        }
    }

    /// Makes the empty entry of `page` map the frame that `frame` hands over a reference to.
    fn give_with(
        &self,
        vma: &Vma,
        page: Gfn,
        frame: impl FnOnce() -> Result<slat::Pfn, MmError>,
    ) -> Result<(), MmError> {
        let _lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        if Pte::of(entry.load(), level) != Pte::Empty {
            return Err(MmError::AlreadyThere(hva_of(page)));
        }
        self.may_take(Level::K4)?;
        let entry = self.map.reach(page, Level::K4)?;
        let pfn = frame()?;
        self.lru_enter(page, Level::K4, pfn, Kind::of(vma));
        let pte = Pte::Mapped { pfn, writable: vma.prot == Prot::ReadWrite };
        let pte = if vma.prot == Prot::None { pte.parked() } else { pte };
        entry.store(pte.word(Level::K4));
        Ok(())
    }
}
