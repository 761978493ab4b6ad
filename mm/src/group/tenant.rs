//! An address space in its group.

use super::{Group, Member, Tenant};
use crate::ledger::Ledger;
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
    /// The group that it is in.
    pub fn group(&self) -> Option<&Arc<Group>> {
        self.member.as_ref().map(Member::group)
    }

    /// Whether the group, if there is one, has room for a page of this level.
    pub(crate) fn group_has_room(&self, level: Level) -> bool {
        self.group_has_bytes(level.bytes())
    }

    /// Its group's limit in bytes; the end of numbers where there is none.
    pub(crate) fn group_limit(&self) -> u64 {
        let ledger = self.member.as_ref().and_then(|member| member.ledger());
        ledger.map_or(u64::MAX, |ledger| ledger.limit.load(Relaxed))
    }

    /// Whether the group, if there is one, has room for so much.
    pub(crate) fn group_has_bytes(&self, bytes: u64) -> bool {
        let Some(ledger) = self.member.as_ref().and_then(|member| member.ledger()) else { return true };
        self.count_tables();
        if seeded!(GroupsTogether) {
            let all: u64 = self.arena.ledgers().iter().map(Ledger::charged).sum();
            return all + bytes <= ledger.limit.load(Relaxed);
        }
        ledger.has_room(bytes)
    }

    /// [`reclaim_state`](Self::reclaim_state) of all of its group, if it is that which has no room.
    pub(crate) fn reclaim_state_of_group(&self) -> Option<ReclaimState> {
        let member = self.member.as_ref().filter(|_| !self.group_has_room(Level::K4))?;
        Some(member.group().members().iter().map(|space| space.reclaim_state()).sum())
    }

    /// Makes room in the group, if it is that which is missing; whether it is worth another try. `None`: it is not.
    pub(crate) fn made_room_in_group(&self, idle: &mut Idle) -> Option<bool> {
        let member = self.member.as_ref().filter(|_| !self.group_has_room(Level::K4))?;
        Some(member.group().make_room(idle))
    }
}
