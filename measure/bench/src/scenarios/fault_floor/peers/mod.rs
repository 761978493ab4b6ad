//! The peers: mappers that others publish, made to take faults from many vCPUs.
//!
//! All of them map through `&mut`, so concurrent faults need a lock around the whole table, taken once per
//! fault because faults arrive one at a time. Each peer runs behind a mutex and behind a reader-writer lock;
//! the latter's read side cannot map, so a fault takes its write side, and only look-ups would share.
//!
//! Each maps with its own best call for one 4K page, in a 4-level table, on the common pool of table memory
//! ([`tables`](crate::scenarios::fault_floor::tables)), and keeps its tables when pages go.

mod aarch64;
#[cfg(target_arch = "x86_64")]
mod multiarch;
mod x86_64;

use super::fault_race::{Contender, Entrant, Peer, Vcpu};
use crate::scenarios::threads_prelude::*;
use parking_lot::RwLock;
use std::ops::DerefMut;

/// Every peer behind every lock.
pub fn entrants() -> Vec<Entrant> {
    let mut entrants = Vec::new();
    #[cfg(target_arch = "x86_64")]
    entrants.extend(locked::<multiarch::Multiarch>());
    entrants.extend(locked::<x86_64::Offset>());
    entrants.extend(locked::<aarch64::Stage2>());
    entrants
}

fn locked<P: Peer>() -> [Entrant; 2] {
    [
        Entrant::new(format!("Mutex<{}>", P::NAME), |_| Mutex::new(P::new())),
        Entrant::new(format!("RwLock<{}>, write side", P::NAME), |_| RwLock::new(P::new())),
    ]
}

/// A lock around a mapper.
trait Lock: Sync {
    type Peer: Peer;
    /// The mapper, for a thread that has it alone.
    fn alone(&self) -> impl DerefMut<Target = Self::Peer>;
}

impl<P: Peer> Lock for Mutex<P> {
    type Peer = P;

    #[inline]
    fn alone(&self) -> impl DerefMut<Target = P> {
        self.lock()
    }
}

impl<P: Peer> Lock for RwLock<P> {
    type Peer = P;

    #[inline]
    fn alone(&self) -> impl DerefMut<Target = P> {
        self.write()
    }
}

impl<L: Lock> Contender for L {
    fn vcpu(&self, _thread: usize) -> impl Vcpu {
        self
    }
}

impl<L: Lock> Vcpu for &L {
    #[inline]
    fn fault(&mut self, gfn: Gfn) -> bool {
        self.alone().map(gfn)
    }

    fn clear(&mut self, gfns: Span<Gfn>) {
        let mut peer = self.alone();
        (gfns.start.0..gfns.end.0).for_each(|gfn| peer.unmap(Gfn(gfn)));
    }

    fn translate(&mut self, gfn: Gfn) -> Option<Pfn> {
        self.alone().translate(gfn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::fault_floor::fault_race::backing;

    fn maps_and_unmaps<P: Peer>() {
        let mut peer = P::new();
        let gfns = [0, 1, 511, 512, 1 << 18, (1 << 35) - 1].map(Gfn);
        for gfn in gfns {
            assert_eq!(peer.translate(gfn), None, "{}", P::NAME);
            assert!(peer.map(gfn), "{}", P::NAME);
        }
        for gfn in gfns {
            assert_eq!(peer.translate(gfn), Some(backing(gfn)), "{}", P::NAME);
            peer.unmap(gfn);
            assert_eq!(peer.translate(gfn), None, "{}", P::NAME);
        }
    }

    #[test]
    fn every_peer_maps_where_it_is_told() {
        #[cfg(target_arch = "x86_64")]
        maps_and_unmaps::<multiarch::Multiarch>();
        maps_and_unmaps::<x86_64::Offset>();
        maps_and_unmaps::<aarch64::Stage2>();
    }
}
