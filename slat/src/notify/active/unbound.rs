//! A ticket without its active set, for a value that outlives the borrow of its VM.

use super::places::Unbound;
use super::taken::Taken;
use super::{Active, Ticket};
use crate::table::{Version, Word};
use core::cell::Cell;
use core::mem::ManuallyDrop;

/// See the module's header. The invalidation continues; dropping this does not end it.
#[derive(Debug)]
pub(crate) struct UnboundTicket {
    claim: Unbound,
    /// The first region, and the one after the last.
    regions: (u64, u64),
    wide: bool,
    version: Version,
    hole: Word,
}

impl Ticket<'_> {
    /// Detaches the ticket from its set.
    pub(crate) fn unbind(self) -> UnboundTicket {
        self.hide_nothing();
        let this = ManuallyDrop::new(self);
        UnboundTicket {
            claim: this.claim.unbound(),
            regions: this.regions.ends(),
            wide: this.wide.get(),
            version: this.version.get(),
            hole: this.hole.get(),
        }
    }
}

impl Active {
    /// Attaches the ticket to this set again; `None` if it belongs to another set.
    pub(crate) fn bind(&self, unbound: &UnboundTicket) -> Option<Ticket<'_>> {
        let &UnboundTicket { ref claim, regions, wide, version, hole } = unbound;
        Some(Ticket {
            active: self,
            claim: self.places.bind(claim)?,
            regions: self.lines.regions(regions),
            wide: Cell::new(wide),
            version: Cell::new(version),
            hole: Cell::new(hole),
            taken: Taken::default(),
        })
    }
}
