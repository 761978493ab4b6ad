//! Builds address spaces.

use super::AddressSpace;
use crate::arena::Arena;
use crate::clean::Clean;
use crate::error::MmError;
use crate::group::{Group, Member};
use crate::lru::{ForkFamily, Lru, LruSettings};
use crate::page_lock::PageLocks;
use crate::state::Shared;
use crate::stats::{Counters, numa};
use crate::swap::{Account, KeptCopies, Readahead, Swap};
use crate::table::Table;
use std::sync::Arc;

/// Builds an [`AddressSpace`].
#[derive(Clone, Debug)]
#[must_use]
pub struct AddressSpaceBuilder {
    arena: Arc<Arena>,
    thp: bool,
    swap: Option<Arc<Swap>>,
    lru: Option<LruSettings>,
    limit: Option<u64>,
    group: Option<Arc<Group>>,
    family: Arc<ForkFamily>,
}

impl AddressSpaceBuilder {
    /// Whether anonymous memory gets huge pages of 2 MiB where a mapping covers one. Off by default.
    pub fn thp(mut self, on: bool) -> Self {
        self.thp = on;
        self
    }

    /// Tracks which pages are cold, so that they can be evicted ([`crate::Lru`]). Off by default.
    pub fn lru(mut self, settings: LruSettings) -> Self {
        self.lru = Some(settings);
        self
    }

    /// Limits the bytes that the address space may [use](AddressSpace::charged). A fault that needs more evicts
    /// cold pages first. Adds an [LRU](Self::lru) with default settings if none is set.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Charges the address space and its forks to this group ([`crate::Group`]), and keeps the group's limit.
    /// Adds an [LRU](Self::lru) with default settings if none is set.
    pub fn group(mut self, group: &Arc<Group>) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Swaps pages out to this swap ([`AddressSpace::pageout`]); forks use it too. Without swap no page is
    /// swapped out.
    pub fn swap(mut self, swap: &Arc<Swap>) -> Self {
        self.swap = Some(swap.clone());
        self
    }

    /// Builds the address space, with nothing mapped. Its tables need 256 KiB of the arena.
    pub fn build(self) -> Result<Arc<AddressSpace>, MmError> {
        if self.swap.as_ref().is_some_and(|swap| !Arc::ptr_eq(swap.arena(), &self.arena)) {
            return Err(MmError::ForeignSwap);
        }
        if self.group.as_ref().is_some_and(|group| !Arc::ptr_eq(group.arena(), &self.arena)) {
            return Err(MmError::ForeignGroup);
        }
        let is_limited = self.limit.is_some() || self.group.is_some();
        let settings = self.lru.or(is_limited.then(LruSettings::default));
        let lru = |settings| Box::new(Lru::new(settings, self.limit, self.arena.nodes()));
        let member = self.group.map(Member::new);
        let space = Arc::new(AddressSpace {
            lru: settings.map(lru),
            map: Table::new(&self.arena)?,
            arena: self.arena,
            state: Shared::new(),
            page_locks: PageLocks::new(),
            thp: self.thp,
            clean: Clean::default(),
            swap: self.swap,
            stored: Arc::new(Account::new(member.as_ref().map(Member::owner).unwrap_or_default())),
            member,
            kept: KeptCopies::default(),
            family: self.family,
            ahead: Readahead::default(),
            counters: Counters::new(),
            numa: numa::Counters::new(),
        });
        let weak = Arc::downgrade(&space);
        space.family.add(weak.clone());
        if let Some(member) = &space.member {
            member.join(weak);
        }
        Ok(space)
    }
}

impl AddressSpace {
    /// Starts building an address space on `arena`.
    pub fn builder(arena: &Arc<Arena>) -> AddressSpaceBuilder {
        AddressSpaceBuilder {
            arena: arena.clone(),
            thp: false,
            swap: None,
            lru: None,
            limit: None,
            group: None,
            family: Arc::default(),
        }
    }

    /// A builder with the same settings for a fork, but without a limit.
    pub(crate) fn builder_of_same(&self) -> AddressSpaceBuilder {
        let (lru, group) = (self.lru().map(Lru::settings), self.group().cloned());
        AddressSpaceBuilder {
            swap: self.swap.clone(),
            lru,
            group,
            family: self.family.clone(),
            ..Self::builder(&self.arena).thp(self.thp)
        }
    }
}
