//! Leases, and the clock by which they end.

use super::shared::{Host, Lease};
use super::{Fleet, PATIENCE, State};
use crate::bug::Bug;

impl Fleet {
    /// Writes the host's lease.
    pub(super) fn write_lease(&self, s: &mut State, i: usize) {
        let host = &mut s.hosts[i];
        // The lease may have ended: a collection that has seen that may delete it at any later time.
        if host.since >= PATIENCE && !self.makes(Bug::FleetLeaseRevived) {
            host.lease += 1;
        }
        host.since = 0;
        let (name, pins) = ((i as u8, host.lease), host.pins.clone());
        s.leases.retain(|lease| lease.name != name);
        s.leases.push(Lease { name, age: 0, pins });
        s.leases.sort_unstable_by_key(|lease| lease.name);
        s.hosts.iter_mut().for_each(|host| host.gc.seen.retain(|seen| *seen != name));
    }

    /// Removes a pin of the host.
    pub(super) fn unpin(s: &mut State, i: usize) {
        let host = &s.hosts[i];
        if host.pins.is_empty() && !host.works {
            let name = (i as u8, host.lease);
            s.leases.retain(|lease| lease.name != name);
        }
    }

    /// Advances the store's clock by a tick.
    pub(super) fn tick(s: &mut State) {
        s.leases.iter_mut().for_each(|lease| lease.age = (lease.age + 1).min(PATIENCE));
        for host in &mut s.hosts {
            host.since = (host.since + 1).min(PATIENCE);
            host.lapsed |= host.since == PATIENCE && !host.pins.is_empty();
        }
    }

    /// Stalls the host until its lease has ended.
    pub(super) fn stall(s: &mut State, i: usize) {
        let host = &mut s.hosts[i];
        (host.has_stalled, host.since) = (true, PATIENCE);
        host.lapsed |= !host.pins.is_empty();
        let name = (i as u8, host.lease);
        s.leases.iter_mut().filter(|lease| lease.name == name).for_each(|lease| lease.age = PATIENCE);
    }

    /// Kills the host.
    pub(super) fn die(&self, s: &mut State, i: usize) {
        Self::stall(s, i);
        let (op, lease) = (self.programs[i].len() as u8, s.hosts[i].lease);
        s.hosts[i] = Host { op, lease, has_stalled: true, ..Host::default() };
    }
}
