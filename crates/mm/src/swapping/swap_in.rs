//! Swap-in: a fault on a swapped entry.
//!
//! ```text
//! under the page lock          entry says swapped(copy)? ─▶ take a reference to the copy
//! no lock                      read it into a new frame, check it: may sleep, may fail
//! under the page lock          entry still the same? ─▶ parked; drop the entry's reference to the copy
//! ```
//! The reference keeps the copy's number from being reused. So an entry with the same number means the same
//! page, even if it was moved away and back meanwhile. If the entry differs, another thread was faster, and the
//! fault looks again.
//!
//! If a frame equals the copy ([the swap cache](crate::swap::cache)), the fault maps it and reads nothing.
//!
//! Neighbours that are [read ahead](crate::swap::readahead) come back in the same way.
//!
//! A swap-in only gives a page, so it notifies no MMU. The page is parked at first, since the mapping may have
//! changed while no lock was held. The fault reads the mapping again before it maps the page, without write
//! permission like every parked page.

use crate::error::MmError;
use crate::held::{Held, Released};
use crate::lru::Kind;
use crate::pages::hva_of;
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::stats::Counted;
use crate::swap::{HeldCopy, Shadow, SwapError};
use slat::{Gfn, Idle, Level};

impl AddressSpace {
    /// Reads the copy that the entry of `page` pointed to, and maps it if the entry still points to it. The
    /// caller holds no lock. May sleep.
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

    /// Makes the entry map `fresh` if it still points to the copy; returns whether it did. The caller holds the
    /// page lock.
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
        let is_out = found == (Pte::Swapped { entry: copy.entry(), shadow });
        if is_out {
            self.lru_enter(page, level, fresh.pfn(), Kind::Anon);
            entry.store(Pte::Parked(fresh.keep()).word(level));
            if copy.swap().keeps(copy.entry()) {
                self.kept.insert(page, copy.swap().hold(copy.entry()));
            }
            // The entry's reference to the copy; the caller drops its own.
            self.release(found, level, released);
            self.counters.add(Counted::SwappedIn);
        }
        is_out
    }
}
