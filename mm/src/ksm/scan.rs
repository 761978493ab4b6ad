//! The scan: pages in order, address space after address space, and what becomes of each.
//!
//! ```text
//! page ─▶ merged already?                   met
//!      ─▶ checksum moved since last pass?   volatile
//!      ─▶ zeroes?                           a share of the zero page, if that is set
//!      ─▶ in the stable tree?               a share of the frame found there
//!      ─▶ in the unstable tree?             both: that page becomes stable, this one a share of it
//!      ─▶                                   into the unstable tree
//! ```
//! The **unstable tree** holds pages that nobody protects: what it says was true when the page was looked at, this
//! pass. It is emptied at the end of each. Both trees are ordered by checksum, where the kernel's are by contents:
//! a look-up costs integer comparisons, not pages of memory, and the order stays true whatever guests write. Bytes
//! decide in the end, when they can no longer change ([`super::merge`]).

use super::contents;
use super::items::{Items, Kind};
use super::merge::Sight;
use super::settings::Settings;
use super::stable::{Stable, give_back, sharers};
use super::stats::KsmStats;
use crate::arena::Arena;
use crate::error::MmError;
use crate::space::AddressSpace;
use slat::{Gfn, Idle, Level, Pfn};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Everything that the scanner knows.
#[derive(Debug)]
pub(super) struct Scan {
    arena: Arc<Arena>,
    settings: Settings,
    spaces: BTreeMap<SpaceNumber, Member>,
    /// Where the pass goes on.
    at: (SpaceNumber, Gfn),
    stable: Stable,
    unstable: BTreeMap<u64, (SpaceNumber, Gfn)>,
    zero: Option<Zero>,
    full_scans: u64,
    merges: u64,
}

/// In the order of joining; never used again.
type SpaceNumber = u64;

#[derive(Debug)]
struct Member {
    space: Weak<AddressSpace>,
    items: Items,
}

/// The one page of zeroes. KSM holds a reference to it.
#[derive(Clone, Copy, Debug)]
struct Zero {
    pfn: Pfn,
    checksum: u64,
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

    /// Adds an address space, behind the others, if it is not there.
    pub(super) fn add(&mut self, space: &Arc<AddressSpace>) {
        let there = self.spaces.values().any(|member| member.space.as_ptr() == Arc::as_ptr(space));
        if !there {
            let number = self.spaces.last_key_value().map_or(0, |(last, _)| last + 1);
            let member = Member { space: Arc::downgrade(space), items: Items::default() };
            self.spaces.insert(number, member);
        }
    }

    /// Looks at up to `pages` pages; ends early at the end of a pass. Returns how many it merged.
    pub(super) fn scan(&mut self, idle: &mut Idle, pages: u64) -> u64 {
        let before = self.merges;
        let mut left = pages;
        while left > 0 {
            let (number, from) = self.at;
            let Some((&number, member)) = self.spaces.range(number..).next() else {
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
                    if let Some(space) = &space {
                        self.look(idle, number, space, page, &sight);
                    }
                }
                None => self.at = (number + 1, Gfn(0)),
            }
        }
        self.merges - before
    }

    /// What becomes of one page.
    fn look(&mut self, idle: &mut Idle, number: SpaceNumber, space: &AddressSpace, page: Gfn, sight: &Sight) {
        let Some(member) = self.spaces.get_mut(&number) else { return };
        let (pfn, checksum) = match *sight {
            Sight::Alone { pfn, checksum } => (pfn, checksum),
            Sight::Merged => {
                member.items.meet(page, 0);
                return member.items.set(page, Kind::Merged);
            }
            Sight::Nothing => return,
        };
        if !member.items.meet(page, checksum) {
            return;
        }
        let kind = if self.share_known(idle, space, page, pfn, checksum) {
            self.merges += 1;
            Kind::Merged
        } else if self.share_with_another(idle, space, page, checksum) {
            self.merges += 2;
            Kind::Merged
        } else {
            self.unstable.insert(checksum, (number, page));
            Kind::Unshared
        };
        if let Some(member) = self.spaces.get_mut(&number) {
            member.items.set(page, kind);
        }
    }

    /// Makes the page a share of the zero page, or of a stable one.
    fn share_known(&self, idle: &mut Idle, space: &AddressSpace, page: Gfn, pfn: Pfn, checksum: u64) -> bool {
        let zero = self.zero.filter(|zero| zero.checksum == checksum).map(|zero| zero.pfn);
        let stable = self.stable.find(&self.arena, checksum, self.settings.max_page_sharing);
        let sabotage = self.settings.sabotage;
        // A look at the bytes first: other contents with this checksum are not worth a write protection.
        zero.into_iter().chain(stable).any(|stable| {
            contents::equal(&self.arena, pfn, stable) && space.merge(idle, page, stable, sabotage)
        })
    }

    /// Makes the page a share of one in the unstable tree, which becomes stable by that. False where there is none, or
    /// it is not what it was.
    fn share_with_another(
        &mut self,
        idle: &mut Idle,
        space: &AddressSpace,
        page: Gfn,
        checksum: u64,
    ) -> bool {
        let Some((number, other)) = self.unstable.remove(&checksum) else { return false };
        let Some(member) = self.spaces.get_mut(&number) else { return false };
        let Some(owner) = member.space.upgrade() else { return false };
        let sabotage = self.settings.sabotage;
        let merged = owner.protect(idle, other, true, sabotage).is_some_and(|held| {
            let stable = held.pfn();
            let merged = space.merge(idle, page, stable, sabotage);
            if merged {
                self.stable.insert(checksum, held.keep());
            } else {
                self.arena.set_merged(stable, false);
            }
            merged
        });
        member.items.set(other, if merged { Kind::Merged } else { Kind::Volatile });
        merged
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
