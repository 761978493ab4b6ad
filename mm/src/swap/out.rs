//! The way out: pages become copies.
//!
//! ```text
//! around(Reclaim)              { under the page lock: one more reference to the frame; entry := parked; told }
//! no notification, no lock     the frame's contents are stored: sleeps, may fail
//! under the page lock          entry parked still? ─▶ swapped(copy), or, where that failed, what it was
//! ```
//! **Why the contents stand still while they are stored.** Once the notification is over nobody has the page mapped.
//! Whoever wants it meanwhile maps it again, read-only, and is heard: the entry is not parked any more, and the page
//! stays. Who writes to it finds a frame with two references, ours is one, and writes to a copy. So nobody waits for the
//! device, neither guests nor faults.
//!
//! **What goes**: pages of 4 KiB of which the entry is the only owner. Huge ones are split first. Passed over is what
//! has more references: a fork's share, a merged page, a file's own, a pinned one.

use super::{HeldCopy, Shadow, SwapError};
use crate::error::MmError;
use crate::held::Held;
use crate::pte::{Pte, hvas_of, pages_of};
use crate::space::{AddressSpace, State};
use crate::stats::Counted;
use crate::vma::aligned;
use slat::{Gfn, Hva, Idle, Level, Span, Why};

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
    /// There was no room for one of them, and no other was tried after it.
    pub(crate) full: bool,
}

/// A page on its way out.
struct Parked<'a> {
    leaving: Leaving,
    /// What its entry said.
    was: Pte,
    /// Our own reference.
    frame: Held<'a>,
}

impl AddressSpace {
    /// Swaps out what it can of the range, and returns how many pages (of 4 KiB): those of anonymous memory and of
    /// private files' own copies that nobody shares or pins (`MADV_PAGEOUT`). They come back when they are used. Ends
    /// early where there is no room left; pages that could not be stored stay. May sleep.
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
    /// [`MmError::NoSwap`]; [`MmError::OutOfTables`] where a huge page cannot be split.
    pub fn pageout(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<u64, MmError> {
        let pages = pages_of(aligned(hvas)?);
        if self.swap.is_none() {
            return Err(MmError::NoSwap);
        }
        let state = self.state.read();
        let (mut at, mut gone) = (pages.start, 0);
        while at < pages.end {
            let part = Span::new(at, pages.end.min(at.base(Level::M2) + Level::M2.pages()));
            at = part.end;
            for batch in self.evictable(part)?.chunks(BATCH) {
                let out = self.swap_out(&state, idle, batch);
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
            if !self.is_sole(at.pfn, at.level) {
                return Ok(());
            }
            if at.level > Level::K4 {
                // The walk goes on with the small entries.
                return self.split(at.level, at.entry);
            }
            found.push(Leaving { page: at.page, shadow: Shadow::default() });
            Ok(())
        })?;
        Ok(found)
    }

    /// Swaps out these pages, which lie in one region, in order. Those that may not go, or not any more, stay. May sleep.
    ///
    /// `state` is held all the while, so that what may be done with a page stays what it was: one that comes back as it
    /// was must still be allowed to be that.
    pub(crate) fn swap_out(&self, state: &State, idle: &mut Idle, pages: &[Leaving]) -> SwappedOut {
        let Some(swap) = &self.swap else { return SwappedOut::default() };
        let mut parked = Vec::new();
        let scattered = state.listeners.heed_pages();
        // Where somebody takes away all of a range, nothing else may lie in it.
        for run in pages.chunk_by(|one, next| scattered || one.page + 1 == next.page) {
            self.park(state, idle, run, &mut parked);
        }
        let mut out = SwappedOut::default();
        for one in parked {
            let stored = if out.full { Err(SwapError::Full) } else { swap.store(one.frame.pfn()) };
            out.full |= matches!(stored, Err(SwapError::Full));
            let page = one.leaving.page;
            if self.leave(one, stored.ok()) {
                out.gone.push(page);
            }
        }
        out
    }

    /// Takes those of `run` that may go away from everybody, with one notification.
    fn park<'a>(&'a self, state: &State, idle: &mut Idle, run: &[Leaving], parked: &mut Vec<Parked<'a>>) {
        let [first, ..] = run else { return };
        let pages = Span::new(first.page, run[run.len() - 1].page + 1);
        self.around(state, idle, pages, Why::Reclaim, &mut |idle, told| {
            let _lock = self.lock_region(pages.start);
            for &leaving in run {
                let (level, entry) = self.map.find(leaving.page);
                let was = Pte::of(entry.load(), level);
                let Some(pfn) = was.pfn().filter(|&pfn| level == Level::K4 && self.is_sole(pfn, level))
                else {
                    continue;
                };
                let page = Span::sized(leaving.page, 1);
                self.arena.share(Span::sized(pfn, 1));
                parked.push(Parked { leaving, was, frame: Held::new(&self.arena, pfn, level) });
                entry.store(Pte::Parked(pfn).word(level));
                told.changed(idle, hvas_of(page), None);
            }
        });
    }

    /// The page's entry says the copy from now on, or without one what it said before, unless the page was wanted
    /// meanwhile; whether it is gone. Our reference to the frame is given back, and with it the frame.
    fn leave(&self, Parked { leaving, was, frame }: Parked<'_>, copy: Option<HeldCopy<'_>>) -> bool {
        let _lock = self.lock_region(leaving.page);
        let (level, entry) = self.map.find(leaving.page);
        let found = Pte::of(entry.load(), level);
        let parked = found == Pte::Parked(frame.pfn());
        let Some(copy) = copy else {
            if parked {
                entry.store(was.word(level));
            }
            return false;
        };
        if !parked && copy.swap().looks_again() {
            return false;
        }
        entry.store(Pte::Swapped { entry: copy.keep(), shadow: leaving.shadow }.word(level));
        self.lru_leave(leaving.page, level);
        // The entry's own reference. It ended with the notification.
        self.release(found, level, &mut self.arena.released());
        self.counters.add(Counted::SwappedOut);
        true
    }
}
