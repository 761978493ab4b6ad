//! What a vCPU keeps of shadows between its visits to L2.

use super::{AnyTable, Hold, Spare};
use crate::addr::Gfn;
use crate::table::entry::Version;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a vCPU has of shadows: see [`Vcpu::nested`](crate::Vcpu::nested).
#[derive(Debug, Default)]
pub(crate) struct VcpuShadows {
    /// The one that it ran L2 on last. No other table of L1 gets it meanwhile.
    pub(crate) held: Option<Hold>,
    /// Those that it has ever been in.
    visited: Vec<Visited>,
    /// Entries whose leaf T has refused: L1 may have changed T since, without a flush.
    pub(crate) refused: Vec<(usize, Gfn)>,
    /// The newest number when it was told to forget all that is under L2's tag of this vCPU.
    pub(crate) forgot: Version,
    /// Rows for tables that its faults link.
    pub(crate) spare: Spare,
}

/// A shadow that a vCPU has been in, as the shadow of a table.
#[derive(Debug)]
struct Visited {
    hold: Hold,
    table: AnyTable,
    /// The newest number when L1 flushed last on this vCPU; nothing where that has been carried out.
    asked: Option<Version>,
}

impl VcpuShadows {
    /// The one that it holds, if it is for this table.
    pub(crate) fn holds<T: Copy + Eq + 'static>(&self, table: T) -> Option<Hold> {
        let held = self.held?;
        let named = self.visited.iter().find(|visited| visited.hold == held)?;
        (named.table.downcast_ref::<T>() == Some(&table)).then_some(held)
    }

    /// The vCPU enters L2 on this shadow. Returns what is to be flushed first, by the newest number when L1 asked for it: `first` where
    /// it has never been there.
    pub(crate) fn visits<T: Send + Sync + 'static>(
        &mut self,
        hold: Hold,
        table: T,
        first: Option<Version>,
    ) -> Option<Version> {
        let found = self.visited.iter_mut().find(|visited| visited.hold.index == hold.index);
        match found {
            Some(visited) if visited.hold == hold => return visited.asked.take(),
            Some(visited) => *visited = Visited { hold, table: Box::new(table), asked: None },
            None => self.visited.push(Visited { hold, table: Box::new(table), asked: None }),
        }
        first
    }

    /// L1 has flushed, on this vCPU, what it has of its tables for which `covers` says so.
    pub(crate) fn owes<T: 'static>(&mut self, covers: impl Fn(&T) -> bool, asked: Version) {
        for visited in &mut self.visited {
            if visited.table.downcast_ref().is_some_and(&covers) {
                visited.asked = Some(asked);
            }
        }
    }

    /// The shadows that it has been in for tables of this format. They may be for others by now: then it has not been in those.
    pub(crate) fn tables<T: Copy + 'static>(&self) -> impl Iterator<Item = (usize, T)> {
        self.visited.iter().filter_map(|visited| Some((visited.hold.index, *visited.table.downcast_ref()?)))
    }
}
