//! Swap-out: pages become copies.
//!
//! ```text
//! around(Reclaim)              { under the page lock: take a reference to the frame; entry := parked; notify }
//! no notification, no lock     store the frame's contents: may sleep, may fail
//! under the page lock          entry still parked? ─▶ swapped(copy); if the store failed, mapped without write permission
//! ```
//! **No lock is held while the device writes**, not even [`State`]'s: registering a VM would wait for the
//! device. So mappings may change meanwhile. An entry that is still parked has the same frame, whose contents
//! cannot have changed. So it may become swapped, at whatever address it is now and whatever its mapping
//! allows. To become mapped again, it needs another look at the mapping.
//!
//! **Why the contents do not change while they are stored.** After the notification no MMU maps the page. A
//! fault on it meanwhile maps it again, read-only. The swap-out notices that, since the entry is no longer
//! parked, and the page stays. A write finds a frame with two references, one of them the swap-out's, and goes
//! to a copy. So neither guest nor fault waits for the device. The frame is marked as leaving until the
//! swap-out ends: another thread could otherwise park the entry again, and this thread would take that entry
//! for its own before the other's flush.
//!
//! **A page that forks share** is swapped out of one address space at a time; others may map it while it is
//! stored ([`crate::swap::cache`]). They cannot write to it. Their entries lost write permission at the fork. The
//! fork's notification ended before the child had a mapping there, and only a mapping makes the page a share.
//! No entry gets permission while the frame has the swap-out's reference. One of this address space's forks may
//! still owe a flush to its vCPUs. Their stores have ended with the swap-out's notification, as above.
//!
//! **Which pages**: pages of 4 KiB whose entry is the only owner, or that forks share; huge pages are split
//! first. Also file pages that nothing else maps: their entry becomes empty, and the [file](crate::file::eviction) drops
//! them. Merged pages (KSM would keep the frame), pinned pages, and file pages that are mapped twice are
//! skipped.

use crate::error::MmError;
use crate::file::File;
use crate::held::Held;
use crate::lru::Kind;
use crate::page_lock::RegionLock;
use crate::pages::{hva_of, hvas_of, pages_of};
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::state::{Reading, State};
use crate::stats::Counted;
use crate::swap::{HeldCopy, Shadow, SwapError};
use crate::vma::{Backing, Vma, aligned};
use slat::{Access, Gfn, Hva, Idle, Level, Pfn, Reason, Span};
use std::sync::Arc;

/// Largest batch. Each page takes a reference to a frame and a place in a list.
const BATCH: usize = 64;

/// A page to swap out, and the shadow for its entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub(crate) page: Gfn,
    pub(crate) shadow: Shadow,
}

/// Result of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwappedOut {
    /// Pages that were swapped out. The others were not changed.
    pub(crate) gone: Vec<Gfn>,
    /// Pages among these whose frame other entries still map.
    pub(crate) shared: Vec<(Gfn, Pfn)>,
    /// A page found no room, and no later page was stored.
    pub(crate) full: bool,
}

/// A page that is being swapped out.
struct Outgoing<'a> {
    space: &'a AddressSpace,
    leaving: Leaving,
    /// Its entry before.
    was: Pte,
    /// Its entry for now.
    now: Pte,
    /// The swap-out's own reference. For a file page it was the entry's.
    frame: Held<'a>,
    /// The file and the index of the page, for a file page.
    file: Option<(Arc<File>, u64)>,
    /// For other pages: a copy that already holds the same contents.
    copy: Option<HeldCopy<'a>>,
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        self.space.arena.end_leaving(self.frame.pfn());
    }
}

impl AddressSpace {
    /// Swaps out the pages of the range that are neither shared nor pinned (`MADV_PAGEOUT`), and returns how
    /// many (of 4 KiB). A file page that equals the file's initial contents is dropped without a copy. Pages
    /// come back at their next access. Stops when no room is left; pages that cannot be stored stay. May sleep.
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
    /// [`MmError::BadRange`]; [`MmError::OutOfTables`] if a huge page cannot be split.
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

    /// Returns the pages of `part`, which lies in one region, that may be swapped out. Splits huge ones.
    fn evictable(&self, part: Span<Gfn>) -> Result<Vec<Leaving>, MmError> {
        let mut found = Vec::new();
        self.each_page(part, |at| {
            if at.level > Level::K4 {
                // The walk continues with the small entries.
                return if self.is_sole(at.pfn, at.level) { self.split(at.level, at.entry) } else { Ok(()) };
            }
            if self.may_leave(at.lock, at.page, at.pfn, at.level) {
                found.push(Leaving { page: at.page, shadow: Shadow::default() });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Whether the page in this frame can be swapped out and probably no other address space has it.
    fn may_leave(&self, lock: &RegionLock<'_>, page: Gfn, pfn: Pfn, level: Level) -> bool {
        let cached = || self.arena.is_cached(pfn) && self.arena.references(pfn) == 2;
        self.is_sole(pfn, level)
            || level == Level::K4
                && (file_of(lock, page, pfn).is_some() || cached() && self.is_share(lock, page, pfn, level))
    }

    /// Whether the page can be swapped out, also if others have it.
    pub(crate) fn may_be_evicted(&self, lock: &RegionLock<'_>, page: Gfn, pfn: Pfn, level: Level) -> bool {
        // The thread that has the page in hand reports it.
        (!self.arena.is_leaving(pfn) || level > Level::K4)
            && (self.may_leave(lock, page, pfn, level) || self.is_share(lock, page, pfn, level))
    }

    /// Whether forks share the page in this frame, and neither a device nor KSM uses the frame.
    fn is_share(&self, lock: &RegionLock<'_>, page: Gfn, pfn: Pfn, level: Level) -> bool {
        let is_own = lock.find(hva_of(page)).is_some_and(|vma| {
            !vma.is_shared() && file_behind(vma, page).is_none_or(|(file, index)| !file.has(index, pfn))
        });
        is_own && !self.arena.is_merged(pfn) && !self.is_pinned(pfn, level)
    }

    /// Swaps out these pages of one region, which are in order. Skips pages that may not be swapped out any
    /// more. May sleep.
    ///
    /// Releases `state` before it stores anything.
    pub(crate) fn swap_out(&self, state: Reading<'_>, idle: &mut Idle, pages: &[Leaving]) -> SwappedOut {
        let mut outgoing = Vec::new();
        let scattered = state.listeners.heed_pages();
        // A notification without page-by-page calls takes away its whole range, so the range may hold no other
        // page.
        for run in pages.chunk_by(|one, next| scattered || one.page + 1 == next.page) {
            self.unmap_run(&state, idle, run, &mut outgoing);
        }
        drop(state);
        let mut out = SwappedOut::default();
        let mut left = self.store_all(outgoing, &mut out);
        // Room is better used for pages without a copy than for kept copies of mapped pages.
        let is_full = left.iter().any(|(_, error)| *error == SwapError::Full);
        if is_full && self.swap.as_ref().is_some_and(|swap| self.kept.clear(swap)) {
            out.full = false;
            let again = std::mem::take(&mut left);
            left = self.store_all(again.into_iter().map(|(one, _)| one).collect(), &mut out);
        }
        for (one, _) in left {
            self.restore_entry(&one);
        }
        out
    }

    /// Stores these pages, and finishes those that were stored. Returns the others, with their errors.
    fn store_all<'a>(
        &'a self,
        mut outgoing: Vec<Outgoing<'a>>,
        out: &mut SwappedOut,
    ) -> Vec<(Outgoing<'a>, SwapError)> {
        let swap = self.swap.as_ref();
        // Some pages need no store: a copy exists already, or a thread wants the page.
        let mut needs: Vec<Option<bool>> = Vec::new();
        for one in &outgoing {
            needs.push(match &one.file {
                Some((file, index)) => file.begin_to_evict((*index, one.frame.pfn())),
                None => Some(one.copy.is_none()),
            });
        }
        let pages: Vec<Pfn> = outgoing
            .iter()
            .zip(&needs)
            .filter(|(_, needs)| **needs == Some(true))
            .map(|(one, _)| one.frame.pfn())
            .collect();
        let mut copies =
            swap.map_or_else(Vec::new, |swap| swap.store(&pages, &self.stored).wait()).into_iter();
        let mut left = Vec::new();
        for (mut one, needs) in outgoing.drain(..).zip(needs) {
            let copy = match (needs, one.copy.take()) {
                (None, _) => continue,
                (Some(false), copy) => Ok(copy),
                (Some(true), _) => copies.next().unwrap_or(Err(SwapError::NoSwap)).map(Some),
            };
            let page = one.leaving.page;
            let gone = match (&one.file, copy) {
                (Some((file, index)), copy) => file.evict((*index, one.frame.pfn()), swap, copy),
                (None, Ok(Some(copy))) => Ok(self.point_to_copy(&one, copy, out)),
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

    /// Takes the pages of `run` that may be swapped out away from all MMUs, with one notification.
    fn unmap_run<'a>(
        &'a self,
        state: &State,
        idle: &mut Idle,
        run: &[Leaving],
        outgoing: &mut Vec<Outgoing<'a>>,
    ) {
        let [first, ..] = run else { return };
        let pages = Span::new(first.page, run[run.len() - 1].page + 1);
        self.around(state, idle, pages, Reason::Reclaim, &mut |idle, told| {
            let lock = self.lock_region(pages.start);
            for &leaving in run {
                let (level, entry) = self.map.find(leaving.page);
                let was = Pte::of(entry.load(), level);
                let Some(pfn) = was.pfn().filter(|_| level == Level::K4) else { continue };
                let page = Span::sized(leaving.page, 1);
                // Checked once: another address space may map the file's page at any time.
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
                outgoing.push(Outgoing { space: self, leaving, was, now, frame, file, copy });
                told.changed(idle, hvas_of(page), None);
            }
        });
    }

    /// Makes the page's entry point to the copy, unless a fault has taken the page back meanwhile.
    fn point_to_copy(&self, one: &Outgoing<'_>, copy: HeldCopy<'_>, out: &mut SwappedOut) -> bool {
        let _lock = self.lock_region(one.leaving.page);
        let (level, entry) = self.map.find(one.leaving.page);
        let found = Pte::of(entry.load(), level);
        let leaves = found == one.now;
        if leaves {
            if copy.swap().keep_for_others(&copy, one.frame.pfn()) {
                out.shared.push((one.leaving.page, one.frame.pfn()));
            }
            entry.store(Pte::Swapped { entry: copy.keep(), shadow: one.leaving.shadow }.word(level));
            self.lru_leave(one.leaving.page, level);
            // The entry's reference to the frame. The notification has ended, so the frame may be freed as soon
            // as `one` is dropped.
            self.release(found, level, &mut self.arena.released());
        }
        leaves
    }

    /// Restores the page's entry, unless a fault has done so, or the mapping no longer allows it.
    ///
    /// Without write permission, so that a write is noticed: soft-dirty may have been cleared meanwhile.
    fn restore_entry(&self, one: &Outgoing<'_>) {
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
                // The entry's reference.
                self.arena.share(Span::sized(one.frame.pfn(), 1));
            }
        }
    }
}

/// Returns the file and index of the page, if the frame mapped at `page` is a file's and nothing else maps it.
fn file_of<'a>(lock: &'a RegionLock<'_>, page: Gfn, pfn: Pfn) -> Option<(&'a Arc<File>, u64)> {
    let (file, index) = file_behind(lock.find(hva_of(page))?, page)?;
    file.is_last(index, pfn).then_some((file, index))
}

/// Returns the file and index that the mapping shows at `page`.
fn file_behind(vma: &Vma, page: Gfn) -> Option<(&Arc<File>, u64)> {
    match &vma.backing {
        Backing::Shared { file, offset } | Backing::Private { file, offset } => {
            Some((file, vma.file_page(page, *offset)))
        }
        Backing::Anonymous => None,
    }
}
