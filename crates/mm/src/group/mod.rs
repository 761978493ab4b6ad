//! Groups of address spaces with one limit, like memory cgroups: the charges of each group, and how a group
//! makes room.
//!
//! | memory | is charged to |
//! |---|---|
//! | a page of 4 KiB or 2 MiB | the group whose address space had it first, until no entry and no file has it |
//! | a page that a fork shares | the parent's group, as before; a fork is in its parent's group |
//! | a copy of a shared page, after a write | the writer's group |
//! | a page that forks share, some of whose entries point to its copy in swap | as before, while an entry or the swap cache has its frame; the copy is counted once |
//! | that page, read back | the group that reads it first; the others share the frame again |
//! | a page of a file | the group that mapped it first |
//! | a merged page | the group whose page was first |
//! | tables of an address space and of its VMs | its group |
//! | a compressed copy in memory: its share of the frames | the group of the address space that swapped the page out, even while only forks refer to it |
//! | a copy on a device | no group; it is counted |
//!
//! Each frame is charged once, so the sums are exact. A group's charge does not grow because another group uses
//! the same page. As in Linux, a group pays for a page that it had first while others use it.
//!
//! **Making room.** A page beyond the limit is refused, as by a full arena. The thread evicts from the address
//! spaces of its own group, in proportion to their sizes, and tries again. Pages that forks share are evicted
//! from all of them, unless one has accessed the page. When everything evictable is compressed, the group's
//! oldest copies move to a device. Other groups keep their working sets.

mod stat;

pub use stat::GroupStats;

use crate::arena::Arena;
use crate::error::MmError;
use crate::ledger::{Ledger, Owner};
use crate::lru::{LruStats, ReclaimState};
use parking_lot::Mutex;
use slat::Idle;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Number of pages that a thread reclaims at once.
const CLUSTER: u64 = 32;

/// A group's view of each of its address spaces.
pub(crate) trait Tenant: Send + Sync + std::fmt::Debug {
    /// Charges the tables that it has now.
    fn count_tables(&self);
    /// Returns the number of its present pages.
    fn resident(&self) -> u64;
    /// Evicts up to `pages` pages, concurrently with other threads; returns how many.
    fn evict(&self, idle: &mut Idle, pages: u64) -> u64;
    /// Moves up to `pages` of its compressed copies to a device; returns how many.
    fn write_back(&self, pages: u64) -> u64;
    /// Waits for other reclaimers, then evicts; returns whether the caller should try again.
    fn reclaim(&self, idle: &mut Idle, pages: u64) -> bool;
    /// Returns the state on which the success of a reclaim depends.
    fn reclaim_state(&self) -> ReclaimState;
    /// Returns the number of faults, and counts of its LRU.
    fn events(&self) -> (u64, LruStats);
}

/// Address spaces with a common limit. An address space is [built into](crate::AddressSpaceBuilder::group) a
/// group and stays in it.
///
/// ```
/// use slat::*;
/// use slat_mm::*;
/// let mut idle = Idle::take().unwrap();
/// let arena = Arena::builder().limit(64 << 20).build()?;
/// let swap = Swap::builder().memory(16 << 20).build(&arena)?;
/// let group = Group::new(&arena, Some(2 << 20))?;
/// let space = AddressSpace::builder(&arena).swap(&swap).group(&group).build()?;
/// let memory = space.mmap(Place::Anywhere, 8 << 20, Prot::ReadWrite, Backing::Anonymous)?;
/// space.write(&mut idle, memory.start, &vec![7; 8 << 20])?;
/// assert!(group.charged() <= 2 << 20);
/// println!("{}", group.stats()); // anon 1269760 …
/// # Ok::<(), MmError>(())
/// ```
#[derive(Debug)]
pub struct Group {
    arena: Arc<Arena>,
    owner: Owner,
    members: Mutex<Vec<Weak<dyn Tenant>>>,
}

impl Group {
    /// Creates an empty group of address spaces on this arena, with an optional limit in bytes.
    ///
    /// # Errors
    /// [`MmError::TooManyGroups`] above 4096 groups.
    pub fn new(arena: &Arc<Arena>, limit: Option<u64>) -> Result<Arc<Self>, MmError> {
        let owner = arena.ledgers().take()?;
        let group = Self { arena: arena.clone(), owner, members: Mutex::default() };
        group.set_limit(limit);
        Ok(Arc::new(group))
    }

    /// Sets the limit in bytes, from the next page on.
    pub fn set_limit(&self, limit: Option<u64>) {
        if let Some(ledger) = self.ledger() {
            ledger.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// Returns the bytes charged to it. Exact if no thread takes pages meanwhile.
    pub fn charged(&self) -> u64 {
        self.members().iter().for_each(|space| space.count_tables());
        self.ledger().map_or(0, Ledger::charged)
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn ledger(&self) -> Option<&Ledger> {
        self.arena.ledgers().get(self.owner)
    }

    /// Returns its address spaces that still exist.
    pub(crate) fn members(&self) -> Vec<Arc<dyn Tenant>> {
        let mut members = self.members.lock();
        members.retain(|space| space.strong_count() > 0);
        // The clones are dropped after the lock is released, since one may be the last reference.
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Evicts pages of its address spaces; returns whether the caller should try again.
    pub(crate) fn make_room(&self, idle: &mut Idle) -> bool {
        let members = self.members();
        let sizes = members.iter().map(|space| space.resident()).collect::<Vec<_>>();
        let all = sizes.iter().sum::<u64>().max(1);
        let mut evicted = 0;
        for (space, size) in members.iter().zip(sizes) {
            evicted += space.evict(idle, (CLUSTER * size).div_ceil(all));
        }
        evicted > 0
            || members.iter().any(|space| space.write_back(CLUSTER) > 0)
            || members.iter().any(|space| space.reclaim(idle, CLUSTER))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.arena.ledgers().give(self.owner);
    }
}

/// An address space's membership in its group.
#[derive(Debug)]
pub(crate) struct Member {
    group: Arc<Group>,
    /// Bytes of its own tables that are charged.
    tables: AtomicU64,
}

impl Member {
    pub(crate) fn new(group: Arc<Group>) -> Self {
        Self { group, tables: AtomicU64::new(0) }
    }

    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    pub(crate) fn owner(&self) -> Owner {
        self.group.owner
    }

    pub(crate) fn join(&self, space: Weak<dyn Tenant>) {
        self.group.members.lock().push(space);
    }

    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        self.group.ledger()
    }

    /// Counts bytes of tables lent to a VM, or returned if negative.
    pub(crate) fn lend(&self, bytes: i64) {
        if let Some(ledger) = self.group.ledger() {
            ledger.lent.fetch_add(bytes, Relaxed);
        }
    }

    /// Sets the bytes of its own tables.
    pub(crate) fn count_tables(&self, bytes: u64) {
        if self.tables.load(Relaxed) != bytes
            && let Some(ledger) = self.group.ledger()
        {
            let before = self.tables.swap(bytes, Relaxed);
            ledger.tables.fetch_add(bytes as i64 - before as i64, Relaxed);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.count_tables(0);
    }
}
