//! A fault on a tracked leaf: mapped, but withdrawn from the hardware to learn of this very access.
//!
//! | saved permissions | access | what happens |
//! |---|---|---|
//! | allow it | any | the leaf is present again: one CAS |
//! | the host allowed writes, W is taken | write | the same, with W: a tracked write beside ([`super::present`]) |
//! | do not allow it | any | the leaf is present again, and what [`super::present`] does with such a one comes next |
//!
//! No stamp is taken and nobody is asked: unlike an upgrade this spends no right but the one in the word. Whoever takes
//! the page away, or a permission, edits the word itself, as it would a present leaf; so the CAS gives back
//! what stands at that moment. Should the page have gone and come back meanwhile, to the same frame with the same
//! permissions, then those are what it gives. No flush either: a translation that a TLB still has is as true as before.

use super::present::fixed;
use super::{Done, Fault, Outcome};
use crate::host::Host;
use crate::sync::mode::Shared;
use crate::sync::tally::Count;
use crate::table::format::{Access, Format};
use crate::table::pool::NoMemory;
use crate::table::radix::At;
use crate::table::walk::Walk;
use crate::vcpu::Vcpu;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// See the module's header.
    #[cold]
    pub(super) fn tracked<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        at: At<'w>,
        fault: Fault,
    ) -> Result<Outcome, NoMemory> {
        if self.prefetching {
            // It is there, and nobody accesses it.
            walk.seat.tally.add(Count::Spurious);
            return Ok(Outcome::Done(Done::Spurious));
        }
        let leaf = at.word.tracked_leaf();
        let store = fault.access == Access::Write;
        let gives_write = store && leaf.host_writable;
        let word = if gives_write { F::set_writable(at.word, true) } else { at.word };
        let mut given = F::restore(word, at.level);
        let allowed = gives_write || leaf.perms.allows(fault.access);
        if allowed {
            given.0 |= F::touch(fault.access);
        }
        if at.entry.cas(at.word, given).is_err() {
            return Ok(Outcome::Retry);
        }
        if !allowed {
            return self.present(walk, At { word: given, ..at }, fault);
        }
        if store {
            return Ok(fixed(walk, fault));
        }
        // W that comes back with a load was logged when it was first given, or will be taken again by whoever
        // begins to log: that walk meets this leaf, tracked or present.
        walk.seat.tally.add(Count::Permission);
        Ok(Outcome::Done(Done::Fixed))
    }
}
