//! The limit of an address space: what counts towards it, and making room.
//!
//! A page is refused where it would go beyond ([`MmError::OutOfFrames`], as from an arena that is full), under whatever
//! locks its taker holds. The taker lets go of them, **reclaims** and asks again; if neither it nor another thread
//! could evict a page meanwhile, the refusal is the answer; and that of the next, while nothing changes ([`super::backoff`]). Threads
//! that ask at the same moment may each get one page too many.
//!
//! Tables count, and are not refused: the next thread that takes a page makes room for them too.
//!
//! **Generations begin ahead of need**: one for each quarter of the limit that has come in. Otherwise the first who needs
//! room would find all pages equally young, whatever was done with them since they came.

use super::stats::Counted;
use super::{Lru, LruError, ReclaimState};
use crate::error::MmError;
use crate::numa::Node;
use crate::space::AddressSpace;
use slat::table::memory::{CHUNK_BYTES, CHUNK_PAGES};
use slat::{Idle, Level, PAGE_SIZE};

/// Pages that are reclaimed at once by who needs one.
const CLUSTER: u64 = 32;

impl AddressSpace {
    /// Its LRU, if it has one.
    #[inline]
    pub fn lru(&self) -> Option<&Lru> {
        self.lru.as_deref()
    }

    /// For a command about a node.
    pub(super) fn lru_of(&self, node: Node) -> Result<&Lru, LruError> {
        let lru = self.lru().ok_or(LruError::Off)?;
        if node.0 < self.arena.nodes() { Ok(lru) } else { Err(LruError::NoSuchNode) }
    }

    /// Bytes that count towards the [limit](crate::AddressSpaceBuilder::limit): pages, page tables of this address
    /// space and of its VMs, and what its own copies take of the swap's memory: each its share of the frames that it lies in.
    /// Without an LRU pages and tables of VMs are not counted.
    pub fn charged(&self) -> u64 {
        self.charged_beside(self.lru().map_or(0, |lru| lru.charge.pages()))
    }

    fn charged_beside(&self, pages: u64) -> u64 {
        let stored = match &self.swap {
            Some(swap) if seeded!(PoolChargedToAll) => swap.pool_bytes(),
            _ => self.stored.bytes(),
        };
        pages * PAGE_SIZE + self.table_bytes() + stored
    }

    /// Whether a page of this level may be taken.
    #[inline]
    pub(crate) fn may_take(&self, level: Level) -> Result<(), MmError> {
        match self.lru() {
            Some(lru) if !self.has_room(lru, level.bytes()) || !self.group_has_room(level) => {
                Err(MmError::OutOfFrames(level))
            }
            _ => Ok(()),
        }
    }

    /// Whether a page may be mapped that is in a frame already, and charged.
    pub(crate) fn may_map(&self, level: Level) -> Result<(), MmError> {
        let has_room = self.lru().is_none_or(|lru| self.has_room(lru, level.bytes()));
        has_room.then_some(()).ok_or(MmError::OutOfFrames(level))
    }

    /// Whether so many pages may be taken, and there would be room for another.
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

    /// A table page chunk was lent to a VM, or came back.
    pub(crate) fn lru_lend(&self, chunks: i64) {
        if let Some(lru) = self.lru() {
            lru.charge.add_lent(chunks * CHUNK_PAGES as i64);
        }
        if let Some(member) = &self.member {
            member.lend(chunks * CHUNK_BYTES as i64);
        }
    }

    /// Runs `attempt` until it needs no memory that is not there, or none can be had. Nothing is locked. May sleep.
    pub(crate) fn with_room<T>(
        &self,
        idle: &mut Idle,
        mut attempt: impl FnMut(&mut Idle) -> Result<T, MmError>,
    ) -> Result<T, MmError> {
        if let Some(lru) = self.lru().filter(|lru| lru.charge.is_time()) {
            // Where it cannot be made, or was made just now, the next one comes.
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

    /// Direct reclaim, where memory is what was missing; whether it is worth another try.
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
            // Where pages have to get older first, time alone changes what may go.
            if lru.settings().min_ttl.is_zero() {
                lru.backoff.record_failure(before, state());
            }
        }
        made
    }

    /// What has to change before a page of its is evictable that was not.
    pub(crate) fn reclaim_state(&self) -> ReclaimState {
        let Some(lru) = self.lru() else { return ReclaimState::default() };
        let (stats, swappiness) = (lru.stats(), lru.settings().swappiness.into());
        let tried = stats.evicted + stats.promoted + stats.protected + stats.store_failed;
        ReclaimState { resident: self.resident_pages(), tried, swappiness, unshared: self.arena.unshared() }
    }

    /// Frees frames that only the swap cache has; how many.
    pub(super) fn drop_unmapped(&self) -> u64 {
        self.swap.as_ref().map_or(0, |swap| swap.drop_unmapped())
    }

    /// Pages that its LRU knows.
    pub(crate) fn resident_pages(&self) -> u64 {
        self.lru().map_or(0, |lru| lru.charge.pages())
    }

    /// Moves the oldest of its own copies out of memory, if that is what it pays for; how many.
    pub(crate) fn write_back_own(&self, copies: u64) -> usize {
        let swap = self.swap.as_ref().filter(|_| self.stored.bytes() > 0);
        swap.map_or(0, |swap| swap.write_back_of(copies as usize, Some(&self.stored)))
    }

    /// Evicts up to so many pages; how many. Others may hold more, which they are about to evict.
    pub(crate) fn reclaim_beside_others(&self, idle: &mut Idle, pages: u64) -> u64 {
        let Some(lru) = self.lru() else { return 0 };
        let _together = lru.reclaimers.read();
        self.reclaim(idle, pages)
    }

    /// The same, and waits for other reclaimers first, which may have held all pages that could go: with the lock held for writing,
    /// none does. Whether any page went meanwhile.
    pub(crate) fn reclaim_alone(&self, idle: &mut Idle, pages: u64) -> bool {
        let Some(lru) = self.lru() else { return false };
        let evicted = || lru.stats().evicted;
        let before = evicted();
        let _alone = lru.reclaimers.write();
        evicted() != before || self.reclaim(idle, pages) > 0
    }
}
