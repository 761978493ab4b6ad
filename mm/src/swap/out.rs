//! The way out: pages become copies.
//!
//! ```text
//! around(Reclaim)              { under the page lock: a reference to the frame is ours; entry := parked; told }
//! no notification, no lock     the frame's contents are stored: sleeps, may fail
//! under the page lock          entry parked still? ─▶ swapped(copy), or, where that failed, mapped, not writable yet
//! ```
//! **No lock is held while the device writes**, [`State`]'s neither: a VM that registers would wait for the device. So
//! mappings may change meanwhile. An entry that still says parked has the same frame, of which the contents cannot have changed,
//! wherever it lies and whatever the mapping allows by now; so it may say swapped. To say mapped again, the mapping is
//! looked at again.
//!
//! **Why the contents stand still while they are stored.** Once the notification is over no MMU maps the page.
//! A fault on it meanwhile maps it again, read-only, and is noticed: the entry is not parked any more, and the page
//! stays. A write to it finds a frame with two references, ours is one, and goes to a copy. So no thread waits for the
//! device, neither guest nor fault. And the frame is marked as leaving until we are done: no other thread parks it again, whose entry
//! we would take for ours before its flush.
//!
//! **A fork's share** goes from one address space at a time, and others may map it while it is stored ([`super::cache`]). They cannot write to
//! it: their entries have been without permission since the fork, whose notification ended before the child had a mapping
//! there, without which nothing goes as a share; and none of them gets permission while the frame has our reference. What our
//! own vCPUs could write by a flush that a fork of ours still owes is over with our notification, as above.
//!
//! **What goes**: pages of 4 KiB of which the entry is the only owner, or which forks share. Huge ones are split first. And pages of files
//! that nothing else maps: their entry becomes empty, the way is the [file's](super::files). Passed over is a merged page (KSM would keep
//! its frame), a pinned one, a file's page that is mapped twice.

use super::{HeldCopy, Shadow, SwapError};
use crate::error::MmError;
use crate::file::File;
use crate::held::Held;
use crate::lru::Kind;
use crate::page_lock::RegionLock;
use crate::pte::{Pte, hva_of, hvas_of, pages_of};
use crate::space::AddressSpace;
use crate::state::{Reading, State};
use crate::stats::Counted;
use crate::vma::{Backing, Vma, aligned};
use slat::{Access, Gfn, Hva, Idle, Level, Pfn, Span, Why};
use std::sync::Arc;

/// Pages that go together, at most: for each there is a reference to a frame and a place in a list.
const BATCH: usize = 64;

/// A page that is to go, and what its entry shall remember.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub(crate) page: Gfn,
    pub(crate) shadow: Shadow,
}

/// What became of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwappedOut {
    /// Those that are gone. The others are where they were.
    pub(crate) gone: Vec<Gfn>,
    /// Of these, those whose frame other entries map still.
    pub(crate) shared: Vec<(Gfn, Pfn)>,
    /// There was no room for one of them, and no other was stored after it.
    pub(crate) full: bool,
}

/// A page on its way out.
struct Parting<'a> {
    space: &'a AddressSpace,
    leaving: Leaving,
    /// What its entry said.
    was: Pte,
    /// What it says for now.
    now: Pte,
    /// Ours: one more than the entry has, or had, where its page is a file's.
    frame: Held<'a>,
    /// The file, and which of its pages it is.
    file: Option<(Arc<File>, u64)>,
    /// Of a page that is not a file's: what it holds is there already.
    copy: Option<HeldCopy<'a>>,
}

impl Drop for Parting<'_> {
    fn drop(&mut self) {
        self.space.arena.end_leaving(self.frame.pfn());
    }
}

impl AddressSpace {
    /// Takes the pages of the range out of memory and returns how many (of 4 KiB), as far as they are neither shared nor pinned
    /// (`MADV_PAGEOUT`): into swap, or, where a file was made with them, without. They come back when they are used. Ends
    /// early where there is no room left; pages that cannot be stored stay. May sleep.
    ///
    /// ```
    /// use slat::{Hva, Idle};
    /// use slat_mm::*;
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let arena = Arena::builder().limit(16 << 20).build()?;
    /// let swap = Swap::builder().memory(1 << 20).build(&arena)?;
    /// let space = AddressSpace::builder(&arena).swap(&swap).build()?;
    /// let span = space.mmap(Place::Fixed(Hva(0x10_0000)), 8192, Prot::ReadWrite, Backing::Anonymous)?;
    /// space.write(&mut idle, span.start, b"hello")?;
    ///
    /// assert_eq!(space.pageout(&mut idle, span)?, 1, "the other page was never used");
    /// let mut hello = [0; 5];
    /// space.read(&mut idle, span.start, &mut hello)?;
    /// assert_eq!((&hello, swap.stats().loaded), (b"hello", 1));
    /// # Ok::<(), MmError>(())
    /// ```
    ///
    /// # Errors
    /// [`MmError::BadRange`]; [`MmError::OutOfTables`] where a huge page cannot be split.
    pub fn pageout(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<u64, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let (mut at, mut gone) = (pages.start, 0);
        while at < pages.end {
            let part = Span::new(at, pages.end.min(at.base(Level::M2) + Level::M2.pages()));
            at = part.end;
            let evictable = self.evictable(part)?;
            for batch in evictable.chunks(BATCH) {
                let out = self.swap_out(self.state.read(), idle, batch);
                gone += out.gone.len() as u64;
                if out.full {
                    return Ok(gone);
                }
            }
        }
        Ok(gone)
    }

    /// The pages of `part`, which lies in one region, that may go. Huge ones among them are split.
    fn evictable(&self, part: Span<Gfn>) -> Result<Vec<Leaving>, MmError> {
        let mut found = Vec::new();
        self.each_page(part, |at| {
            if at.level > Level::K4 {
                // The walk goes on with the small entries.
                return if self.is_sole(at.pfn, at.level) { self.split(at.level, at.entry) } else { Ok(()) };
            }
            if self.may_leave(at.lock, at.page, at.pfn, at.level) {
                found.push(Leaving { page: at.page, shadow: Shadow::default() });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Whether the page, which has this frame, can be swapped out, and no other address space has it, as far as one can tell.
    fn may_leave(&self, lock: &RegionLock<'_>, page: Gfn, pfn: Pfn, level: Level) -> bool {
        let cached = || self.arena.is_cached(pfn) && self.arena.references(pfn) == 2;
        self.is_sole(pfn, level)
            || level == Level::K4
                && (file_of(lock, page, pfn).is_some() || cached() && self.is_share(lock, page, pfn, level))
    }

    /// The same where others may have it too.
    pub(crate) fn may_be_evicted(&self, lock: &RegionLock<'_>, page: Gfn, pfn: Pfn, level: Level) -> bool {
        // What another thread has in hand is told of by that.
        (!self.arena.is_leaving(pfn) || level > Level::K4)
            && (self.may_leave(lock, page, pfn, level) || self.is_share(lock, page, pfn, level))
    }

    /// Whether forks share the page, which has this frame; no device uses it, and KSM has no part in it.
    fn is_share(&self, lock: &RegionLock<'_>, page: Gfn, pfn: Pfn, level: Level) -> bool {
        let is_own = lock.find(hva_of(page)).is_some_and(|vma| {
            !vma.is_shared() && file_behind(vma, page).is_none_or(|(file, index)| !file.has(index, pfn))
        });
        is_own && !self.arena.is_merged(pfn) && !self.is_pinned(pfn, level)
    }

    /// Swaps out these pages, which lie in one region, in order. Those that may not go, or not any more, stay. May sleep.
    ///
    /// `state` is let go of before anything is stored.
    pub(crate) fn swap_out(&self, state: Reading<'_>, idle: &mut Idle, pages: &[Leaving]) -> SwappedOut {
        let mut parting = Vec::new();
        let scattered = state.listeners.heed_pages();
        // Where another thread takes away all of a range, nothing else may lie in it.
        for run in pages.chunk_by(|one, next| scattered || one.page + 1 == next.page) {
            self.part(&state, idle, run, &mut parting);
        }
        let _held = if seeded!(StoredUnderLock) {
            Some(state)
        } else {
            drop(state);
            None
        };
        let mut out = SwappedOut::default();
        let mut left = self.store_all(parting, &mut out);
        // Room is better used for pages that have none than for those that are mapped.
        let is_full = left.iter().any(|(_, error)| *error == SwapError::Full);
        if is_full && self.swap.as_ref().is_some_and(|swap| self.kept.clear(swap)) {
            out.full = false;
            let again = std::mem::take(&mut left);
            left = self.store_all(again.into_iter().map(|(one, _)| one).collect(), &mut out);
        }
        for (one, _) in left {
            self.come_back(&one);
        }
        out
    }

    /// Stores these pages, and lets go of those of which that has been done. Returns the others, with why.
    fn store_all<'a>(
        &'a self,
        mut parting: Vec<Parting<'a>>,
        out: &mut SwappedOut,
    ) -> Vec<(Parting<'a>, SwapError)> {
        let swap = self.swap.as_ref();
        // Pages that have to be stored: the others are where they go already, or are wanted by a thread.
        let mut needs: Vec<Option<bool>> = Vec::new();
        for one in &parting {
            needs.push(match &one.file {
                Some((file, index)) => file.begin_to_evict((*index, one.frame.pfn())),
                None => Some(one.copy.is_none()),
            });
        }
        let pages: Vec<Pfn> = parting
            .iter()
            .zip(&needs)
            .filter(|(_, needs)| **needs == Some(true))
            .map(|(one, _)| one.frame.pfn())
            .collect();
        let mut copies =
            swap.map_or_else(Vec::new, |swap| swap.store(&pages, &self.stored).wait()).into_iter();
        let mut left = Vec::new();
        for (mut one, needs) in parting.drain(..).zip(needs) {
            let copy = match (needs, one.copy.take()) {
                (None, _) => continue,
                (Some(false), copy) => Ok(copy),
                (Some(true), _) => copies.next().unwrap_or(Err(SwapError::NoSwap)).map(Some),
            };
            let page = one.leaving.page;
            let gone = match (&one.file, copy) {
                (Some((file, index)), copy) => file.evict((*index, one.frame.pfn()), swap, copy),
                (None, Ok(Some(copy))) => Ok(self.leave_behind(&one, copy, out)),
                (None, Ok(None)) => Ok(false),
                (None, Err(error)) => Err(error),
            };
            match gone {
                Ok(true) => {
                    self.counters.add(Counted::SwappedOut);
                    out.gone.push(page);
                }
                Ok(false) => {}
                Err(error) => {
                    out.full |= matches!(error, SwapError::Full | SwapError::NoFrame);
                    left.push((one, error));
                }
            }
        }
        left
    }

    /// Takes those of `run` that may go out of all MMUs, with one notification.
    fn part<'a>(&'a self, state: &State, idle: &mut Idle, run: &[Leaving], parting: &mut Vec<Parting<'a>>) {
        let [first, ..] = run else { return };
        let pages = Span::new(first.page, run[run.len() - 1].page + 1);
        self.around(state, idle, pages, Why::Reclaim, &mut |idle, told| {
            let lock = self.lock_region(pages.start);
            for &leaving in run {
                let (level, entry) = self.map.find(leaving.page);
                let was = Pte::of(entry.load(), level);
                let Some(pfn) = was.pfn().filter(|_| level == Level::K4) else { continue };
                let page = Span::sized(leaving.page, 1);
                // Looked at once: another address space may map the file's page next.
                let file = file_of(&lock, leaving.page, pfn);
                let is_own = || self.is_sole(pfn, level) || self.is_share(&lock, leaving.page, pfn, level);
                if file.is_none() && !is_own() || !self.arena.begin_leaving(pfn) {
                    continue;
                }
                let (now, file, copy) = if let Some((file, index)) = file {
                    self.no_longer_same(page);
                    self.lru_leave(leaving.page, level);
                    (Pte::Empty, Some((file.clone(), index)), None)
                } else {
                    self.arena.share(Span::sized(pfn, 1));
                    let known = |swap| self.kept.take(swap, leaving.page).or_else(|| swap.copy_of(pfn));
                    (Pte::Parked(pfn), None, self.swap.as_deref().and_then(known))
                };
                entry.store(now.word(level));
                let frame = Held::new(&self.arena, pfn, level);
                parting.push(Parting { space: self, leaving, was, now, frame, file, copy });
                told.changed(idle, hvas_of(page), None);
            }
        });
    }

    /// The page's entry says the copy from now on, unless the page was wanted meanwhile.
    fn leave_behind(&self, one: &Parting<'_>, copy: HeldCopy<'_>, out: &mut SwappedOut) -> bool {
        let _lock = self.lock_region(one.leaving.page);
        let (level, entry) = self.map.find(one.leaving.page);
        let found = Pte::of(entry.load(), level);
        let leaves = found == one.now || !copy.swap().looks_again();
        if leaves {
            if copy.swap().keep_for_others(&copy, one.frame.pfn()) {
                out.shared.push((one.leaving.page, one.frame.pfn()));
            }
            entry.store(Pte::Swapped { entry: copy.keep(), shadow: one.leaving.shadow }.word(level));
            self.lru_leave(one.leaving.page, level);
            // The entry's reference. The notification is over: the frame may go as soon as we let go of it.
            self.release(found, level, &mut self.arena.released());
        }
        leaves
    }

    /// The page's entry says what it said before, unless the page was wanted meanwhile, or the mapping does not allow it any
    /// more.
    ///
    /// Not writable, so that who writes is noticed: soft-dirty may have been cleared while it was on its way.
    fn come_back(&self, one: &Parting<'_>) {
        let lock = self.lock_region(one.leaving.page);
        let allowed = lock.find(hva_of(one.leaving.page)).is_some_and(|vma| {
            let same = |(file, index): &(Arc<File>, u64)| {
                file_behind(vma, one.leaving.page)
                    .is_some_and(|(now, at)| Arc::ptr_eq(now, file) && at == *index)
            };
            vma.prot.allows(Access::Read) && one.file.as_ref().is_none_or(same)
        });
        let (level, entry) = self.map.find(one.leaving.page);
        if allowed && Pte::of(entry.load(), level) == one.now {
            entry.store(one.was.read_only().word(level));
            if one.file.is_some() {
                self.lru_enter(one.leaving.page, level, one.frame.pfn(), Kind::File);
                // The entry's again.
                self.arena.share(Span::sized(one.frame.pfn(), 1));
            }
        }
    }
}

/// The file, and which of its pages it is, where the frame that is mapped at `page` is a file's that nothing else maps.
fn file_of<'a>(lock: &'a RegionLock<'_>, page: Gfn, pfn: Pfn) -> Option<(&'a Arc<File>, u64)> {
    let (file, index) = file_behind(lock.find(hva_of(page))?, page)?;
    file.is_last(index, pfn).then_some((file, index))
}

/// The file that the mapping shows at `page`, and which of its pages.
fn file_behind(vma: &Vma, page: Gfn) -> Option<(&Arc<File>, u64)> {
    match &vma.backing {
        Backing::Shared { file, offset } | Backing::Private { file, offset } => {
            Some((file, vma.file_page(page, *offset)))
        }
        Backing::Anonymous => None,
    }
}
