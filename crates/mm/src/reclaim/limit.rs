//! The limit of an address space: the memory that counts towards it, and how a fault makes room.
//!
//! A page beyond the limit is refused with [`MmError::OutOfFrames`], as by a full arena, whatever locks the
//! caller holds. The caller releases its locks, **reclaims** and tries again. If neither it nor another thread
//! could evict a page meanwhile, the operation fails; later ones fail at once while nothing changes
//! ([`crate::lru::backoff`]). Concurrent callers may each exceed the limit by one page.
//!
//! Page tables count and are never refused: the next thread that takes a page makes room for them too.
//!
//! **Generations begin ahead of need**, one for each quarter of the limit brought in. Otherwise the first
//! reclaimer would find all pages equally young, however they were used.

use crate::error::MmError;
use crate::lru::stats::Counted;
use crate::lru::{Lru, LruError, ReclaimState};
use crate::nodes::Node;
use crate::space::AddressSpace;
use slat::table::memory::{CHUNK_BYTES, CHUNK_PAGES};
use slat::{Idle, Level, PAGE_SIZE};

/// Number of pages that a fault reclaims at once.
const CLUSTER: u64 = 32;

impl AddressSpace {
    /// Returns the LRU, if the address space has one.
    #[inline]
    pub fn lru(&self) -> Option<&Lru> {
        self.lru.as_deref()
    }

    /// Returns the LRU for a command about a node.
    pub(super) fn lru_of(&self, node: Node) -> Result<&Lru, LruError> {
        let lru = self.lru().ok_or(LruError::Off)?;
        if node.0 < self.arena.nodes() { Ok(lru) } else { Err(LruError::NoSuchNode) }
    }

    /// Returns the bytes that count towards the [limit](crate::AddressSpaceBuilder::limit): pages, page tables
    /// of this address space and of its VMs, and the share of the swap's memory that its own copies take.
    /// Without an LRU, pages and tables of VMs are not counted.
    pub fn charged(&self) -> u64 {
        self.charged_beside(self.lru().map_or(0, |lru| lru.charge.pages()))
    }

    fn charged_beside(&self, pages: u64) -> u64 {
        pages * PAGE_SIZE + self.table_bytes() + self.stored.bytes()
    }

    /// Checks the limits for a new page of this level.
    #[inline]
    pub(crate) fn may_take(&self, level: Level) -> Result<(), MmError> {
        match self.lru() {
            Some(lru) if !self.has_room(lru, level.bytes()) || !self.group_has_room(level) => {
                Err(MmError::OutOfFrames(level))
            }
            _ => Ok(()),
        }
    }

    /// Checks the address space's limit for a page whose frame exists and is charged already.
    pub(crate) fn may_map(&self, level: Level) -> Result<(), MmError> {
        let has_room = self.lru().is_none_or(|lru| self.has_room(lru, level.bytes()));
        has_room.then_some(()).ok_or(MmError::OutOfFrames(level))
    }

    /// Whether `pages` pages fit below the limits, with room for one more.
    pub(crate) fn has_room_for(&self, pages: u64) -> bool {
        self.lru().is_none_or(|lru| self.has_room(lru, (pages + 1) * PAGE_SIZE))
            && self.group_has_room(Level::K4)
    }

    pub(super) fn has_room(&self, lru: &Lru, bytes: u64) -> bool {
        let limit = lru.charge.limit;
        limit == u64::MAX
            || self.charged_beside(lru.charge.pages_at_most()) + bytes <= limit
            || self.charged() + bytes <= limit
    }

    /// Counts chunks of table pages that a VM has borrowed, or returned if negative.
    pub(crate) fn lru_lend(&self, chunks: i64) {
        if let Some(lru) = self.lru() {
            lru.charge.add_lent(chunks * CHUNK_PAGES as i64);
        }
        if let Some(member) = &self.member {
            member.lend(chunks * CHUNK_BYTES as i64);
        }
    }

    /// Runs `attempt` until it does not lack memory, or no room can be made. The caller holds no lock. May
    /// sleep.
    pub(crate) fn with_room<T>(
        &self,
        idle: &mut Idle,
        mut attempt: impl FnMut(&mut Idle) -> Result<T, MmError>,
    ) -> Result<T, MmError> {
        if let Some(lru) = self.lru().filter(|lru| lru.charge.is_time()) {
            // An error or a pass by another thread is harmless: the next pass comes later.
            let _ = self.make_pass(lru, idle, lru.generations.max_seq(), self.can_swap(), false);
        }
        loop {
            match attempt(idle) {
                Err(error) if self.made_room(idle, error) => {}
                done => {
                    if let Some(lru) = self.lru() {
                        self.wake_evictor(lru);
                    }
                    return done;
                }
            }
        }
    }

    /// Reclaims if `missing` is a lack of memory; returns whether the caller should try again.
    #[cold]
    pub(crate) fn made_room(&self, idle: &mut Idle, missing: MmError) -> bool {
        if !matches!(missing, MmError::OutOfFrames(_) | MmError::OutOfTables) {
            return false;
        }
        if self.drop_unmapped() > 0 {
            return true;
        }
        let Some(lru) = self.lru() else { return false };
        lru.counters.add(Counted::DirectReclaims, 1);
        let state = || self.reclaim_state_of_group().unwrap_or_else(|| self.reclaim_state());
        let before = state();
        let made = !lru.backoff.is_pending(before)
            && self.made_room_in_group(idle).unwrap_or_else(|| {
                self.reclaim_beside_others(idle, CLUSTER) > 0
                    || self.write_back_own(CLUSTER) > 0
                    || self.reclaim_alone(idle, CLUSTER)
            });
        if !made {
            lru.counters.add(Counted::Refused, 1);
            // With `min_ttl`, time alone makes pages evictable, so a failure is not recorded.
            if lru.settings().min_ttl.is_zero() {
                lru.backoff.record_failure(before, state());
            }
        }
        made
    }

    /// Returns the state on which the success of a reclaim depends.
    pub(crate) fn reclaim_state(&self) -> ReclaimState {
        let Some(lru) = self.lru() else { return ReclaimState::default() };
        let (stats, swappiness) = (lru.stats(), lru.settings().swappiness.into());
        let tried = stats.evicted + stats.promoted + stats.protected + stats.store_failed;
        ReclaimState { resident: self.resident_pages(), tried, swappiness, unshared: self.arena.unshared() }
    }

    /// Frees frames that only the swap cache holds; returns how many.
    pub(super) fn drop_unmapped(&self) -> u64 {
        self.swap.as_ref().map_or(0, |swap| swap.drop_unmapped())
    }

    /// Returns the pages that the LRU counts.
    pub(crate) fn resident_pages(&self) -> u64 {
        self.lru().map_or(0, |lru| lru.charge.pages())
    }

    /// Moves the oldest of its own copies out of memory, if it pays for them; returns how many.
    pub(crate) fn write_back_own(&self, copies: u64) -> usize {
        let swap = self.swap.as_ref().filter(|_| self.stored.bytes() > 0);
        swap.map_or(0, |swap| swap.write_back_of(copies as usize, Some(&self.stored)))
    }

    /// Evicts up to `pages` pages; returns how many. Other threads may hold further pages that they are about
    /// to evict.
    pub(crate) fn reclaim_beside_others(&self, idle: &mut Idle, pages: u64) -> u64 {
        let Some(lru) = self.lru() else { return 0 };
        let _together = lru.reclaimers.read();
        self.reclaim(idle, pages)
    }

    /// Waits until no other reclaimer holds pages, then evicts up to `pages` pages, with `reclaimers` held for
    /// writing. Returns whether any page was evicted meanwhile.
    pub(crate) fn reclaim_alone(&self, idle: &mut Idle, pages: u64) -> bool {
        let Some(lru) = self.lru() else { return false };
        let evicted = || lru.stats().evicted;
        let before = evicted();
        let _alone = lru.reclaimers.write();
        evicted() != before || self.reclaim(idle, pages) > 0
    }
}
