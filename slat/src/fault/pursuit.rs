//! The pursuit of a page: the steps from the epoch to the host's answer, in their one order. Rules 2, 3, 5 and 11 of
//! [`crate::notify`].
//!
//! ```text
//! Active::epoch          the epoch
//! Epoch::find            the memslot; whether it has the kind of memory that is meant; what it allows
//! Sought::stamp          region's number, lists, the epoch again; then whether stores to the frame are tracked
//! Pursuit::look, ask     the host: without sleep, or with
//! Answer                 the page as the guest may use it, how much of it may be mapped, and into which holes
//! ```
//! Each step needs the value of the one before, so no other order compiles. An answer keeps the stamp that was taken
//! before the host was asked.
//!
//! | pursuer | its entry | how it looks again |
//! |---|---|---|
//! | a fault or a prefault ([`super`]) | a hole | CAS from the word that was read before the stamp |
//! | the same, after the host has slept | a hole | the memslot is the same; the hole is not newer than the stamp |
//! | an upgrade ([`super::present`]) | a leaf, frozen | pursues again under the frozen entry: [`Answer::renewed`] |
//! | a fault of L2 ([`crate::nested`]) | a hole, frozen | [`Pursuit::stands`]; after a sleep also [`Answer::renewed`] |
//! | a held frame ([`crate::held`]) | a cell, asking | the cell is still asking |
//!
//! [`Pursuer::pursue`] repeats attempts, for all of them.
//!
//! **The short paths** ([`super::quick`], and that of L2) take no steps of their own: they check that nothing has
//! happened since the vCPU took them for another page of the same memslot ([`crate::memo`]). A step costs them more
//! than all of their work.

use crate::active::{Active, Epoch, Listed, Page, RegionLine, Stamp, Unconfirmed};
use crate::slots::watched::Watched;
use crate::sync::prim::{Patience, full_path};
use crate::sync::tally::RetryCause;
use crate::{Access, Format, Gfn, Host, HostError, HostPage, Hva, Idle, Level, Slot, Word};
use core::ops::Deref;

/// A page, and the access for which it is sought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) gfn: Gfn,
    pub(crate) access: Access,
    /// Whether private memory is meant, if that is known.
    pub(crate) private: Option<bool>,
}

/// Why a pursuit ended before it asked the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    NoMemslot,
    /// The memslot has memory of the other kind than the one that is meant.
    OtherKind {
        private: bool,
    },
    /// The memslot does not allow the access.
    Forbidden,
    /// A store, and stores to the frame are tracked.
    Tracked,
    /// An active invalidation covers the page: wait for it.
    Covered,
    /// Memslots may have changed meanwhile: look again.
    Moved,
}

/// A page that a memslot has, and that nothing has confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sought {
    /// Private: only [`Epoch::find`] makes one.
    start: Epoch,
    pub(crate) slot: Slot,
    pub(crate) gfn: Gfn,
    pub(crate) access: Access,
}

/// A page whose memslot is confirmed, with a stamp: the host may be asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pursuit {
    sought: Sought,
    /// Private: only [`Sought::stamp`] makes one.
    stamp: Stamp,
    /// N, if it has confirmed more than a region.
    pub(crate) wide: Option<Word>,
    /// Stores to the frame are tracked, so the guest gets it as if the host had it read-only.
    is_tracked: bool,
}

/// The host's answer to a pursuit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Private: no answer gets a later stamp.
    pursuit: Pursuit,
    page: HostPage,
}

impl Wanted {
    pub(crate) const fn new(gfn: Gfn, access: Access) -> Self {
        Self { gfn, access, private: None }
    }

    /// The kind of memory that was meant, if the slot has the other one.
    #[inline(always)]
    pub(crate) fn disagrees(&self, slot: &Slot) -> Option<bool> {
        self.private.filter(|&private| private != slot.is_private())
    }
}

impl From<Unconfirmed> for Stop {
    fn from(unconfirmed: Unconfirmed) -> Self {
        match unconfirmed {
            Unconfirmed::Covered => Self::Covered,
            Unconfirmed::Moved => Self::Moved,
        }
    }
}

impl Epoch {
    /// Looks the memslot up.
    #[inline(always)]
    pub(crate) fn find(self, wanted: Wanted, look: impl FnOnce(Gfn) -> Option<Slot>) -> Result<Sought, Stop> {
        let Wanted { gfn, access, .. } = wanted;
        let slot = look(gfn).ok_or(Stop::NoMemslot)?;
        if let Some(private) = wanted.disagrees(&slot) {
            return Err(Stop::OtherKind { private });
        }
        if allows(&slot, access) {
            Ok(Sought { start: self, slot, gfn, access })
        } else {
            Err(Stop::Forbidden)
        }
    }
}

impl Sought {
    pub(crate) fn start(&self) -> Epoch {
        self.start
    }

    #[inline(always)]
    pub(crate) fn hva(&self) -> Hva {
        self.slot.hva_of(self.gfn)
    }

    /// Rule 2: takes the stamp for a page of at least the level `least`, and for pages up to `most`. `seen` is the word
    /// that is to be filled, if it is known and a hole.
    #[inline(always)]
    pub(crate) fn stamp(
        self,
        (active, watched): (&Active, &Watched),
        (least, most): (Level, Level),
        seen: Word,
    ) -> Result<Pursuit, Stop> {
        let page = Page { gfn: self.gfn, hva: self.hva(), level: least };
        let stamp = active.stamp(self.start, page, most, seen)?;
        // After the stamp: a later watch begins an invalidation after it is counted.
        let is_tracked = watched.has(self.gfn);
        if is_tracked && self.access == Access::Write {
            return Err(Stop::Tracked);
        }
        Ok(Pursuit { sought: self, stamp, wide: None, is_tracked })
    }
}

impl Deref for Pursuit {
    type Target = Sought;
    #[inline(always)]
    fn deref(&self) -> &Sought {
        &self.sought
    }
}

impl Pursuit {
    /// Looks for invalidations of a page of 1 GiB, which has more than one region.
    pub(crate) fn widen(self, active: &Active) -> Self {
        let page = Page::small(self.gfn, self.hva());
        match active.stamp(self.start, page, Level::G1, Word::OLDEST) {
            Ok(wide) if wide.free > Level::M2 => {
                let stamp = Stamp { newest: self.stamp.newest, ..wide };
                Self { stamp, wide: Some(wide.newest), ..self }
            }
            _ => self,
        }
    }

    /// Whether nothing was announced to the region or to the epoch since the stamp.
    #[inline(always)]
    pub(crate) fn stands(&self, active: &Active) -> bool {
        active.newest_of(RegionLine::of(self.hva())) == self.stamp.newest && active.epoch() == self.start
    }

    /// Asks the host for a page that it has at hand. `None` if it would sleep, or has none that serves.
    #[inline(always)]
    pub(crate) fn look<F: Format, H: Host>(self, host: &H) -> Option<Answer> {
        let page = host.lookup(self.hva(), self.access)?;
        self.answered::<F>(page).ok()
    }

    /// Asks the host, which may sleep. The caller is in no section.
    pub(crate) fn ask<F: Format, H: Host>(self, host: &H, idle: &mut Idle) -> Result<Answer, HostError> {
        let page = host.resolve(idle, self.hva(), self.access)?;
        self.answered::<F>(page)
    }

    #[inline(always)]
    fn answered<F: Format>(self, page: HostPage) -> Result<Answer, HostError> {
        let page = served::<F>(page, self.hva(), self.access)?.through(&self.slot);
        let page =
            if self.is_tracked { HostPage { writable: false, level: Level::K4, ..page } } else { page };
        Ok(Answer { pursuit: self, page })
    }
}

impl Answer {
    #[inline(always)]
    pub(crate) fn pursuit(&self) -> &Pursuit {
        &self.pursuit
    }

    /// The host's page, as the guest may use it.
    #[inline(always)]
    pub(crate) fn page(&self) -> HostPage {
        self.page
    }

    /// The answer about a smaller page.
    #[inline(always)]
    pub(crate) fn at_most(self, level: Level) -> Self {
        Self { page: HostPage { level: self.page.level.min(level), ..self.page }, ..self }
    }

    /// Rule 11: the largest page that may be mapped: no invalidation is active over any part of it.
    #[inline(always)]
    pub(crate) fn free(&self) -> Level {
        self.page.level.min(self.pursuit.stamp.free)
    }

    /// Whether the host's page is larger than the stamp has looked.
    #[inline(always)]
    pub(crate) fn reaches_out(&self) -> bool {
        self.page.level > self.pursuit.stamp.reach
    }

    /// Rule 5: whether the page may replace `word`.
    #[inline(always)]
    pub(crate) fn fills(&self, word: Word) -> bool {
        word.is_hole() && word <= self.pursuit.stamp.newest
    }

    /// The answer, if nothing was announced between its own pursuit and `later`, another one of the same page. It is
    /// about no more than its own stamp was.
    pub(crate) fn renewed(self, later: &Pursuit) -> Option<Self> {
        let (old, is_wide) = (self.pursuit, self.pursuit.wide == later.wide);
        let about = if is_wide { old.stamp.free } else { old.stamp.free.min(Level::M2) };
        let stands = old.sought == later.sought && old.stamp.newest == later.stamp.newest;
        stands.then(|| Self { pursuit: *later, ..self.at_most(about) })
    }
}

/// How often a thread checks the active invalidations, while one covers its page, before it makes another attempt.
const CHECKS: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

/// Why an attempt is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Again {
    /// The attempt has made room for the next one.
    Now,
    /// Another thread has changed something.
    Lost,
    /// As [`Stop::Moved`]: no work was lost.
    Moved,
    /// As [`Stop::Covered`].
    Covered,
}

/// A thread that pursues a page by attempts.
pub(crate) trait Pursuer {
    type Done;
    type Error;

    /// Makes one attempt.
    fn attempt(&mut self) -> Result<Result<Self::Done, Again>, Self::Error>;

    /// The lists that change when an invalidation of the page ends.
    fn listed(&self) -> Listed;

    /// Counts a repeated attempt.
    fn count(&self, _: RetryCause) {}

    /// Waits outside any section.
    fn park_while(&self, wait: impl FnOnce()) {
        wait();
    }

    /// Makes attempts until one succeeds or fails. Waits for no other pursuer, and only for invalidations that cover the
    /// page.
    #[inline(always)]
    fn pursue(&mut self) -> Result<Self::Done, Self::Error> {
        let (mut patience, mut waits) = (Patience::default(), None);
        loop {
            full_path();
            let before = self.listed();
            match self.attempt()? {
                Ok(done) => return Ok(done),
                Err(Again::Now) => {}
                Err(Again::Moved) => self.count(RetryCause::Moved),
                Err(Again::Lost) => {
                    self.count(RetryCause::Lost);
                    patience.wait();
                }
                // Rule 13. However often it looks, one wait counts as one while the same invalidations are active.
                Err(Again::Covered) => {
                    if waits.replace(before) != Some(before) {
                        self.count(RetryCause::Covered);
                    }
                    // The end of an invalidation changes the list. Few threads write that word, and hundreds may read
                    // it. The next attempt begins when it changes, and also after some checks, in case the invalidation
                    // ended while `before` was read.
                    self.park_while(|| {
                        for _ in 0..CHECKS {
                            patience.wait();
                            if self.listed() != before {
                                break;
                            }
                        }
                    });
                }
            }
        }
    }
}

/// Returns the host's page at `hva` if it serves the access, in a table of this format.
#[inline(always)]
pub(crate) fn served<F: Format>(page: HostPage, hva: Hva, access: Access) -> Result<HostPage, HostError> {
    if page.allows(access) && F::has_memory_type(page.memory) && page.fits::<F>(hva) {
        Ok(page)
    } else {
        Err(if page.fits::<F>(hva) { HostError::Fault } else { HostError::BadFrame })
    }
}

/// Whether the guest may make this access through `slot`.
#[inline(always)]
pub(crate) fn allows(slot: &Slot, access: Access) -> bool {
    HostPage::PLAIN.through(slot).allows(access)
}

impl HostPage {
    /// The page as the guest may use it through `slot`.
    #[inline(always)]
    pub(crate) fn through(self, slot: &Slot) -> Self {
        Self {
            writable: self.writable && !slot.readonly,
            execute: self.execute && slot.execute,
            memory: self.memory.max(slot.memory),
            ..self
        }
    }
}
