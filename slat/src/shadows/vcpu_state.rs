//! A vCPU's state of shadows between its visits to L2.

use super::{AnyTable, Pin, Spare};
use crate::addr::Gfn;
use crate::table::entry::Version;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A vCPU's state of shadows: see [`Vcpu::nested`](crate::Vcpu::nested).
#[derive(Debug, Default)]
pub(crate) struct VcpuShadows {
    /// The shadow on which it last ran L2. No other table of L1 gets it meanwhile.
    pub(crate) held: Option<Pin>,
    /// The shadows that it has ever run on.
    visited: Vec<Visited>,
    /// Entries whose leaf T has refused: L1 may have changed T since, without a flush.
    pub(crate) refused: Vec<(usize, Gfn)>,
    /// The newest number when this vCPU's L2 tag was last told to flush.
    pub(crate) forgot: Version,
    /// Rows for tables that its faults link.
    pub(crate) spare: Spare,
}

/// A shadow that a vCPU has run on, with its table at that time.
#[derive(Debug)]
struct Visited {
    hold: Pin,
    table: AnyTable,
    /// The newest number at L1's last flush on this vCPU; `None` once it is carried out.
    asked: Option<Version>,
}

impl VcpuShadows {
    /// Returns the held shadow, if it is for this table.
    pub(crate) fn pins<T: Copy + Eq + 'static>(&self, table: T) -> Option<Pin> {
        let held = self.held?;
        let named = self.visited.iter().find(|visited| visited.hold == held)?;
        (named.table.downcast_ref::<T>() == Some(&table)).then_some(held)
    }

    /// Records that the vCPU enters L2 on this shadow. Returns the flush that is due first, as the newest number when
    /// L1 requested it; `now` on a first visit. It stays due until [`flushed`](Self::flushed): the host, whose memory a
    /// flush reads, may panic.
    pub(crate) fn visits<T: Send + Sync + 'static>(
        &mut self,
        hold: Pin,
        table: T,
        now: Version,
    ) -> Option<Version> {
        let asked = Some(now);
        let found = self.visited.iter_mut().find(|visited| visited.hold.index == hold.index);
        match found {
            Some(visited) if visited.hold == hold => return visited.asked,
            Some(visited) => *visited = Visited { hold, table: Box::new(table), asked },
            None => self.visited.push(Visited { hold, table: Box::new(table), asked }),
        }
        asked
    }

    /// Records that the flush that was due on this shadow is carried out.
    pub(crate) fn flushed(&mut self, hold: Pin) {
        for visited in self.visited.iter_mut().filter(|visited| visited.hold == hold) {
            visited.asked = None;
        }
    }

    /// Records a flush by L1, on this vCPU, of its tables for which `covers` is true.
    pub(crate) fn owes<T: 'static>(&mut self, covers: impl Fn(&T) -> bool, asked: Version) {
        for visited in &mut self.visited {
            if visited.table.downcast_ref().is_some_and(&covers) {
                visited.asked = Some(asked);
            }
        }
    }

    /// Returns the shadows that it has run on, with their tables of this format. They may serve other tables by now.
    pub(crate) fn tables<T: Copy + 'static>(&self) -> impl Iterator<Item = (usize, T)> {
        self.visited.iter().filter_map(|visited| Some((visited.hold.index, *visited.table.downcast_ref()?)))
    }
}
