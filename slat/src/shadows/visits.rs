//! What a vCPU keeps of shadows between its visits to L2.

use super::{AnyTable, Hold, Spare};
use crate::addr::Gfn;
use crate::table::entry::Version;
use alloc::vec::Vec;

/// What a vCPU has of shadows: see [`Vcpu::nested`](crate::Vcpu::nested).
#[derive(Debug, Default)]
pub(crate) struct VcpuShadows {
    /// The one that it ran L2 on last. No other table of L1 gets it meanwhile.
    pub(crate) held: Option<Held>,
    /// Those that it has ever been in.
    visited: Vec<Visited>,
    /// Entries whose leaf T has refused: L1 may have changed T since, without a flush.
    pub(crate) refused: Vec<(usize, Gfn)>,
    /// The newest number when it was told to forget all that is under L2's tag of this vCPU.
    pub(crate) forgot: Version,
    /// Rows for tables that its faults link.
    pub(crate) spare: Spare,
}

/// A shadow that no other table of L1 gets, and the table that it is for.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) hold: Hold,
    pub(crate) table: AnyTable,
}

#[derive(Debug)]
struct Visited {
    hold: Hold,
    /// The newest number when L1 flushed last on this vCPU; nothing where that has been carried out.
    asked: Option<Version>,
}

impl VcpuShadows {
    /// The vCPU enters L2 on this shadow. Returns what is to be flushed first, by the newest number when L1 asked for it: `first` where
    /// it has never been there.
    pub(crate) fn visits(&mut self, hold: Hold, first: Option<Version>) -> Option<Version> {
        let found = self.visited.iter_mut().find(|visited| visited.hold.index == hold.index);
        match found {
            Some(visited) if visited.hold == hold => visited.asked.take(),
            Some(visited) => {
                visited.hold = hold;
                first
            }
            None => {
                self.visited.push(Visited { hold, asked: None });
                first
            }
        }
    }

    /// L1 has flushed, on this vCPU, what it has of the table that the shadow is for.
    pub(crate) fn owes(&mut self, hold: Hold, asked: Version) {
        if let Some(visited) = self.visited.iter_mut().find(|visited| visited.hold == hold) {
            visited.asked = Some(asked);
        }
    }
}
