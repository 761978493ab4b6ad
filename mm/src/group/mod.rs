//! Groups of address spaces with one limit, as memory cgroups: what is charged to which, and making room.
//!
//! | what | is charged to |
//! |---|---|
//! | a page, of 4 KiB or 2 MiB | the group whose address space had it first, until no entry and no file has it any more |
//! | a page that a fork shares | as before: the parent's. A fork is in its parent's group |
//! | a copy of a shared page, after a write | the group that wrote |
//! | a page that forks share, once some of their entries say its copy in swap | as before, as long as an entry, or the swap cache, has its frame; the copy is counted once |
//! | that page read back | the group that reads it first; the others share the frame again |
//! | a page of a file | the group that mapped it first, whichever others map it later |
//! | a merged page | the group whose page it was before others became the same |
//! | tables of an address space and of its VMs | its group |
//! | a compressed copy in memory | the group of the address space that swapped the page out, also while only forks refer to it: its share of the frames |
//! | a copy on a device | no group; it is counted |
//!
//! So each frame is charged once, and the sums are exact. What a group has to pay for does not change because another group uses
//! the same: it never gets more. As in Linux it pays for a page that it had first as long as others use it.
//!
//! **Making room.** A page is refused where it would go beyond the limit, as from an arena that is full. The thread that takes it
//! evicts from the address spaces of its own group, in proportion to what they have, and asks again. What forks share goes from
//! all of them, unless one uses it. Where all that can go is
//! compressed, the oldest copies of the group move to a device. Another group is never asked: it keeps its working set.

mod stat;
mod tenant;

pub use stat::GroupStats;

use crate::arena::Arena;
use crate::error::MmError;
use crate::ledger::{Ledger, Owner};
use crate::lru::{LruStats, ReclaimState};
use parking_lot::Mutex;
use slat::Idle;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Pages that are reclaimed at once by a thread that needs one.
const CLUSTER: u64 = 32;

/// What a group asks of each of its address spaces.
pub(crate) trait Tenant: Send + Sync + std::fmt::Debug {
    /// Charges the tables that it has by now.
    fn count_tables(&self);
    /// Pages that it has in frames.
    fn resident(&self) -> u64;
    /// Evicts so many pages, while others of the group do; how many went.
    fn evict(&self, idle: &mut Idle, pages: u64) -> u64;
    /// Moves so many of its compressed copies to a device; how many went.
    fn write_back(&self, pages: u64) -> u64;
    /// Makes room whatever it takes; whether it is worth another try.
    fn reclaim(&self, idle: &mut Idle, pages: u64) -> bool;
    /// What has to change before a page of its is evictable that was not.
    fn reclaim_state(&self) -> ReclaimState;
    /// Faults, and what its LRU did.
    fn events(&self) -> (u64, LruStats);
}

/// See the module's header. Address spaces are [built into](crate::AddressSpaceBuilder::group) one, and stay there.
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
    /// A group of address spaces on this arena, with nothing in it, and a limit in bytes, if there is to be one.
    ///
    /// # Errors
    /// [`MmError::TooManyGroups`] beyond 4096.
    pub fn new(arena: &Arc<Arena>, limit: Option<u64>) -> Result<Arc<Self>, MmError> {
        let owner = arena.ledgers().take()?;
        let group = Self { arena: arena.clone(), owner, members: Mutex::default() };
        group.set_limit(limit);
        Ok(Arc::new(group))
    }

    /// Another limit, from the next page on that is taken.
    pub fn set_limit(&self, limit: Option<u64>) {
        if let Some(ledger) = self.ledger() {
            ledger.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// Bytes that are charged to it. Exact where no thread takes pages meanwhile.
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

    /// Those of its address spaces that are there.
    fn members(&self) -> Vec<Arc<dyn Tenant>> {
        let mut members = self.members.lock();
        members.retain(|space| space.strong_count() > 0);
        // Not dropped under the lock, should one be the last.
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Evicts pages of its address spaces; whether it is worth another try.
    fn make_room(&self, idle: &mut Idle) -> bool {
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

/// An address space's place in its group.
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

    fn ledger(&self) -> Option<&Ledger> {
        self.group.ledger()
    }

    /// So many bytes of tables were lent to a VM.
    pub(crate) fn lend(&self, bytes: i64) {
        if let Some(ledger) = self.group.ledger() {
            ledger.lent.fetch_add(bytes, Relaxed);
        }
    }

    /// Its own tables are of so many bytes now.
    fn count_tables(&self, bytes: u64) {
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
