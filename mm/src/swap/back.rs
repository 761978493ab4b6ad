//! The way back: a fault on a swapped entry.
//!
//! ```text
//! under the page lock          entry says swapped(copy)? ─▶ hold the copy
//! no lock                      read it into a fresh frame, check it: sleeps, may fail
//! under the page lock again    entry says the same still? ─▶ parked; its reference to the copy goes
//! ```
//! While we hold the copy its number is not used again, so an entry that says the same means the same page, also if it was
//! moved away and back meanwhile. Where it says something else another thread was faster, and the fault looks again.
//!
//! Where a frame holds what the copy holds ([the swap cache](super::cache)), that is mapped, and nothing is read.
//!
//! With it come neighbours, as far as they are [read ahead](super::ahead), in the same way.
//!
//! A page is only given, so no MMU is notified. It is parked at first: what the mapping allows may have changed while nothing
//! was locked, so the fault looks at that again before it maps the page, not writable as any that was parked.

use super::{HeldCopy, Shadow, SwapError};
use crate::error::MmError;
use crate::held::{Held, Released};
use crate::lru::Kind;
use crate::pte::{Pte, hva_of};
use crate::space::AddressSpace;
use crate::stats::Counted;
use slat::{Gfn, Hva, Idle, Level};

impl AddressSpace {
    /// Reads the copy that the entry of `page` was found to say, and maps it if the entry says so still. The caller
    /// holds no lock. May sleep.
    pub(crate) fn swap_in(
        &self,
        _idle: &mut Idle,
        page: Gfn,
        copy: &HeldCopy<'_>,
        shadow: Shadow,
    ) -> Result<(), MmError> {
        if let Some(cached) = copy.swap().frame_of(copy) {
            self.may_map(Level::K4)?;
            let _lock = self.lock_region(page);
            if self.bring_back(page, copy, shadow, cached, &mut self.arena.released()) {
                self.lru_refaulted(page, shadow);
            }
            return Ok(());
        }
        self.may_take(Level::K4)?;
        let fresh = self.arena.page(Level::K4)?;
        let ahead = self.neighbours(page, copy);
        let mut wanted = vec![(copy, fresh.pfn())];
        wanted.extend(ahead.iter().map(|one| (&one.copy, one.frame.pfn())));
        let mut loaded = copy.swap().load_all(&wanted).into_iter();
        loaded.next().unwrap_or(Err(SwapError::Corrupt)).map_err(|error| error.at(hva_of(page)))?;
        let mut released = self.arena.released();
        let _lock = self.lock_region(page);
        let fresh = copy.swap().share_loaded(copy, fresh);
        if self.bring_back(page, copy, shadow, fresh, &mut released) {
            self.lru_refaulted(page, shadow);
        }
        for (one, _) in ahead.into_iter().zip(loaded).filter(|(_, loaded)| loaded.is_ok()) {
            let frame = one.copy.swap().share_loaded(&one.copy, one.frame);
            let pfn = frame.pfn();
            if self.bring_back(one.page, &one.copy, one.shadow, frame, &mut released) {
                self.arena.mark_ahead(pfn);
            }
        }
        Ok(())
    }

    /// The page is in `fresh` from now on, if its entry still says the copy. Under its page lock.
    fn bring_back(
        &self,
        page: Gfn,
        copy: &HeldCopy<'_>,
        shadow: Shadow,
        fresh: Held<'_>,
        released: &mut Released<'_>,
    ) -> bool {
        let (level, entry) = self.map.find(page);
        let found = Pte::of(entry.load(), level);
        let is_out = found == (Pte::Swapped { entry: copy.entry(), shadow }) || !copy.swap().looks_again();
        if is_out {
            self.lru_enter(page, level, fresh.pfn(), Kind::Anon);
            if seeded!(RefaultUncharged) {
                self.arena.credit(fresh.pfn());
            }
            entry.store(Pte::Parked(fresh.keep()).word(level));
            if copy.swap().keeps(copy.entry()) {
                self.kept.insert(page, copy.swap().hold(copy.entry()));
            }
            // The entry's reference to the copy; ours goes by itself.
            self.release(found, level, released);
            self.counters.add(Counted::SwappedIn);
        }
        is_out
    }
}

impl SwapError {
    /// The same as the error of an access to `hva`.
    pub(super) fn at(self, hva: Hva) -> MmError {
        match self {
            Self::Io { errno } => MmError::SwapIo { hva, errno },
            Self::Corrupt | Self::Full | Self::NoFrame | Self::Incompressible | Self::NoSwap => {
                MmError::SwapCorrupt(hva)
            }
        }
    }
}
