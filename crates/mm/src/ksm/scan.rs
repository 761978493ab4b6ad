//! The scan: pages in order, one address space after the other.
//!
//! ```text
//! page ─▶ merged already?                       nothing to do
//!      ─▶ checksum changed since last pass?     volatile
//!      ─▶ zeroes?                               shares the zero page, if that is enabled
//!      ─▶ in the stable tree?                   shares the frame found there
//!      ─▶ in the unstable tree?                 that page becomes stable, this one shares its frame
//!      ─▶                                       inserted in the unstable tree
//! ```
//! The **unstable tree** holds pages that are not write-protected, with their checksums in this pass. It is
//! emptied after each pass. Both trees are ordered by checksum; the kernel's are ordered by contents. A look-up
//! compares integers, not pages, and the order stays valid whatever guests write. The final comparison of bytes
//! happens when they can no longer change ([`super::merge`]).

use super::contents;
use super::items::{Items, Kind};
use super::merge::{Batch, Sight};
use super::settings::Settings;
use super::stable::{Stable, give_back, sharers};
use super::stats::KsmStats;
use crate::arena::Arena;
use crate::error::MmError;
use crate::held::Held;
use crate::space::AddressSpace;
use slat::{Gfn, Idle, Level, Pfn, Span};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// State of the scanner.
#[derive(Debug)]
pub(super) struct Scan {
    arena: Arc<Arena>,
    settings: Settings,
    spaces: BTreeMap<SpaceNumber, Member>,
    /// Where the pass continues.
    at: (SpaceNumber, Gfn),
    stable: Stable,
    unstable: BTreeMap<u64, (SpaceNumber, Gfn)>,
    zero: Option<Zero>,
    full_scans: u64,
    merges: u64,
}

/// In the order of `add`.
type SpaceNumber = u64;

#[derive(Debug)]
struct Member {
    space: Weak<AddressSpace>,
    items: Items,
}

/// The shared page of zeroes. KSM holds a reference to it.
#[derive(Clone, Copy, Debug)]
struct Zero {
    pfn: Pfn,
    checksum: u64,
}

/// Pages collected to be merged together.
struct Gathered<'a> {
    number: SpaceNumber,
    space: Arc<AddressSpace>,
    batch: Batch<'a>,
}

impl Gathered<'_> {
    fn takes(&self, number: SpaceNumber, page: Gfn) -> bool {
        self.number == number && self.batch.takes(page)
    }
}

impl Scan {
    pub(super) fn new(arena: Arc<Arena>, settings: Settings) -> Result<Self, MmError> {
        let zero = if settings.use_zero_pages {
            let pfn = arena.zeroed(Level::K4)?.keep();
            arena.set_merged(pfn, true);
            Some(Zero { pfn, checksum: contents::checksum(&arena, pfn) })
        } else {
            None
        };
        Ok(Self {
            arena,
            settings,
            spaces: BTreeMap::new(),
            at: (0, Gfn(0)),
            stable: Stable::default(),
            unstable: BTreeMap::new(),
            zero,
            full_scans: 0,
            merges: 0,
        })
    }

    /// Adds an address space at the end, unless it is known.
    pub(super) fn add(&mut self, space: &Arc<AddressSpace>) {
        let there = self.spaces.values().any(|member| member.space.as_ptr() == Arc::as_ptr(space));
        if !there {
            let number = self.spaces.last_key_value().map_or(0, |(last, _)| last + 1);
            let member = Member { space: Arc::downgrade(space), items: Items::default() };
            self.spaces.insert(number, member);
        }
    }

    /// Scans up to `pages` pages; stops at the end of a pass. Returns how many it merged.
    pub(super) fn scan(&mut self, idle: &mut Idle, pages: u64) -> u64 {
        let arena = self.arena.clone();
        let before = self.merges;
        let mut gathered = None;
        let mut left = pages;
        while left > 0 {
            let (number, from) = self.at;
            let Some((&number, member)) = self.spaces.range(number..).next() else {
                self.merge(idle, &mut gathered);
                self.end_pass();
                break;
            };
            let from = if number == self.at.0 { from } else { Gfn(0) };
            let space = member.space.upgrade();
            match space.as_ref().and_then(|space| space.next_mergeable(from)) {
                Some((page, Sight::Nothing)) => self.at = (number, page),
                Some((page, sight)) => {
                    self.at = (number, page + 1);
                    left -= 1;
                    let found = space.zip(self.look(idle, &arena, (number, page), &sight));
                    if let Some((space, stable)) = found {
                        if !gathered.as_ref().is_some_and(|all: &Gathered<'_>| all.takes(number, page)) {
                            self.merge(idle, &mut gathered);
                        }
                        let all = gathered.get_or_insert_with(|| Gathered {
                            number,
                            batch: Batch::begin(&space, self.settings.merge_together),
                            space,
                        });
                        all.batch.push(page, stable);
                    }
                }
                None => self.at = (number + 1, Gfn(0)),
            }
        }
        self.merge(idle, &mut gathered);
        self.merges - before
    }

    /// Processes one page. Returns a frame, with a reference, if the page shall share it.
    fn look<'a>(
        &mut self,
        idle: &mut Idle,
        arena: &'a Arena,
        (number, page): (SpaceNumber, Gfn),
        sight: &Sight,
    ) -> Option<Held<'a>> {
        let member = self.spaces.get_mut(&number)?;
        let (pfn, checksum) = match *sight {
            Sight::Alone { pfn, checksum } => (pfn, checksum),
            Sight::Merged => {
                member.items.meet(page, 0);
                member.items.set(page, Kind::Merged);
                return None;
            }
            Sight::Nothing => return None,
        };
        if !member.items.meet(page, checksum) {
            return None;
        }
        let found = self.known(pfn, checksum).or_else(|| self.take_unstable(idle, checksum));
        if let Some(stable) = found {
            arena.share(Span::sized(stable, 1));
            return Some(Held::new(arena, stable, Level::K4));
        }
        self.unstable.insert(checksum, (number, page));
        self.items(number)?.set(page, Kind::Unshared);
        None
    }

    /// Returns the zero page, or a stable frame that is not shared too often, if its bytes are equal.
    fn known(&self, pfn: Pfn, checksum: u64) -> Option<Pfn> {
        let zero = self.zero.filter(|zero| zero.checksum == checksum).map(|zero| zero.pfn);
        let stable = self.stable.find(&self.arena, checksum, self.settings.max_page_sharing);
        // Compares bytes now: equal checksums alone are not worth a write protection.
        zero.into_iter().chain(stable).find(|&stable| contents::equal(&self.arena, pfn, stable))
    }

    /// Makes a page of the unstable tree stable, to be shared at once. `None` if there is none or it has
    /// changed.
    fn take_unstable(&mut self, idle: &mut Idle, checksum: u64) -> Option<Pfn> {
        let (number, page) = self.unstable.remove(&checksum)?;
        let owner = self.spaces.get(&number)?.space.upgrade()?;
        let held = owner.make_stable(idle, page, checksum);
        let kind = if held.is_some() { Kind::Merged } else { Kind::Volatile };
        self.items(number)?.set(page, kind);
        let pfn = held?.keep();
        self.stable.insert(checksum, pfn);
        self.merges += 1;
        Some(pfn)
    }

    /// Merges the collected pages.
    fn merge(&mut self, idle: &mut Idle, gathered: &mut Option<Gathered<'_>>) {
        let Some(Gathered { number, space, batch }) = gathered.take() else { return };
        for (page, merged) in space.merge(idle, &batch) {
            if merged {
                self.merges += 1;
                self.items(number).into_iter().for_each(|items| items.set(page, Kind::Merged));
            }
        }
    }

    fn items(&mut self, number: SpaceNumber) -> Option<&mut Items> {
        self.spaces.get_mut(&number).map(|member| &mut member.items)
    }

    fn end_pass(&mut self) {
        self.at = (0, Gfn(0));
        self.unstable.clear();
        self.spaces.retain(|_, member| member.space.strong_count() > 0);
        self.spaces.values_mut().for_each(|member| member.items.end_pass());
        self.stable.prune(&self.arena);
        self.full_scans += 1;
    }

    pub(super) fn stats(&self) -> KsmStats {
        let (shared, sharing) = self.stable.count(&self.arena);
        let count = |kind| self.spaces.values().map(|member| member.items.count(kind)).sum();
        KsmStats {
            pages_shared: shared,
            pages_sharing: sharing,
            pages_unshared: count(Kind::Unshared),
            pages_volatile: count(Kind::Volatile),
            zero_pages: self.zero.map_or(0, |zero| sharers(&self.arena, zero.pfn).into()),
            full_scans: self.full_scans,
            merges: self.merges,
        }
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.stable.clear(&self.arena);
        if let Some(zero) = self.zero {
            give_back(&self.arena, zero.pfn);
        }
    }
}
