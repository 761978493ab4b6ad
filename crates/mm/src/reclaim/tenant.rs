//! An address space as a member of a group.

use crate::group::{Group, Member, Tenant};
use crate::lru::{Lru, LruStats, ReclaimState};
use crate::space::AddressSpace;
use slat::{Idle, Level};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Tenant for AddressSpace {
    fn count_tables(&self) {
        if let Some(member) = &self.member {
            member.count_tables(self.table_bytes());
        }
    }

    fn resident(&self) -> u64 {
        self.resident_pages()
    }

    fn evict(&self, idle: &mut Idle, pages: u64) -> u64 {
        self.reclaim_beside_others(idle, pages)
    }

    fn write_back(&self, pages: u64) -> u64 {
        self.write_back_own(pages) as u64
    }

    fn reclaim(&self, idle: &mut Idle, pages: u64) -> bool {
        self.reclaim_alone(idle, pages)
    }

    fn reclaim_state(&self) -> ReclaimState {
        self.reclaim_state()
    }

    fn events(&self) -> (u64, LruStats) {
        (self.stats().faults, self.lru().map(Lru::stats).unwrap_or_default())
    }
}

impl AddressSpace {
    /// Returns its group, if it has one.
    pub fn group(&self) -> Option<&Arc<Group>> {
        self.member.as_ref().map(Member::group)
    }

    /// Whether its group, if any, has room for a page of this level.
    pub(crate) fn group_has_room(&self, level: Level) -> bool {
        self.group_has_bytes(level.bytes())
    }

    /// Returns its group's limit in bytes; `u64::MAX` without a group.
    pub(crate) fn group_limit(&self) -> u64 {
        let ledger = self.member.as_ref().and_then(|member| member.ledger());
        ledger.map_or(u64::MAX, |ledger| ledger.limit.load(Relaxed))
    }

    /// Whether its group, if any, has room for `bytes` bytes.
    pub(crate) fn group_has_bytes(&self, bytes: u64) -> bool {
        let Some(ledger) = self.member.as_ref().and_then(|member| member.ledger()) else { return true };
        self.count_tables();
        ledger.has_room(bytes)
    }

    /// Returns the sum of [`reclaim_state`](Self::reclaim_state) over its group, if the group has no room.
    pub(crate) fn reclaim_state_of_group(&self) -> Option<ReclaimState> {
        let member = self.member.as_ref().filter(|_| !self.group_has_room(Level::K4))?;
        Some(member.group().members().iter().map(|space| space.reclaim_state()).sum())
    }

    /// Makes room in its group, and returns whether the caller should try again. `None` if the group has room.
    pub(crate) fn made_room_in_group(&self, idle: &mut Idle) -> Option<bool> {
        let member = self.member.as_ref().filter(|_| !self.group_has_room(Level::K4))?;
        Some(member.group().make_room(idle))
    }
}
