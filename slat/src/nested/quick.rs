//! The common case of a fault of L2: the last one was in the same 2 MiB of L2, and nothing that it found has changed but T's own entry.
//!
//! ```text
//! remembered   N, at a moment at which no invalidation was active; the shadow's line; a table of the shadow, with its rows;
//!              T's leaf table for the same addresses, and what the entries above it say; a memslot; the hints of 2 MiB of L1
//! a fault      entry: a hole; T's entry: read, A and D set; the memslot; the host's page, if it is small and plain
//!              the hint; frozen; N and line, as they were? the row; the leaf
//! ```
//! It is F1 to F9 of [`super::fault`], with all that did not change left out. **N** answers for memslots, for T's own memslots, for watched
//! frames and for the host, as for a fault of L1's own ([`crate::fault`]). **The line** answers for what T's upper entries say: a
//! processor keeps those in its paging-structure caches until L1 flushes. A refusal makes the vCPU forget; and moves the line when the
//! vCPU comes back, for what was refused may then be changed without a flush.
//!
//! No hint is ever unlinked, so they are remembered as they are. A table of a shadow may be ([`crate::shadows`]): the line moves when it was
//! unlinked, and its memory is used for something else after a grace period. So a fault looks at the line in its section, before the table.

use super::format::{L1Access, L1Format};
use super::freeze::{Announced, freeze, thaw_with};
use super::l2::L2;
use super::met::{Found, L2Done, Quick};
use super::stored::{nth, read};
use crate::addr::{Gfn, Gpa, Hva, Level};
use crate::fault::Done;
use crate::host::{Host, HostPage};
use crate::shadows::{HOLE, Hint, Row, RowsOf, frozen};
use crate::sync::prim::fence_after_rmw;
use crate::table::format::{Access, Format, Leaf, MemoryType, Perms};
use crate::table::radix::At;

impl<F: Format, H: Host, T: L1Format> L2<'_, '_, F, H, T> {
    /// Deals with the access, or does nothing.
    #[inline(always)]
    pub(super) fn quick(&mut self, access: &L1Access) -> Option<L2Done> {
        let quick = self.quick.as_mut()?;
        let (g2, vm) = (access.gpa.gfn(), self.vcpu.vm);
        if g2.0 >> Level::M2.shift() != quick.tag {
            return None;
        }
        let _section = self.vcpu.light_section()?;
        if self.shadow.line.now() != quick.line && !seeded!(NearUnchecked) {
            return None;
        }
        let index = F::index(g2, Level::K4);
        // SAFETY: in a section in which the line stood: not given back before it ends.
        let (entries, rows) = unsafe { (quick.table.entries(), quick.rows.rows()) };
        let entry = &entries[index];
        if entry.load() != HOLE {
            return None;
        }
        let t = read(&self.table, &vm.host, nth(&self.table, quick.of_t, index))?;
        let says = self.table.entry(t, Level::K4).ok()?;
        let (allowed, demanded) = (quick.upper.allows(&self.table, &says, t), self.table.demands(access));
        let is_enough = demanded.without(allowed) == Perms::NONE && allowed.allows(access.access);
        if !is_enough || says.memory != MemoryType::WriteBack {
            return None;
        }
        if !quick.slot.gfns.contains(says.gfn) {
            return None;
        }
        let stores = demanded.allows(Access::Write);
        let wants = if stores { Access::Write } else { access.access };
        let page = vm.host.lookup(quick.slot.hva_of(says.gfn), wants)?;
        if page != (HostPage { pfn: page.pfn, ..HostPage::PLAIN }) {
            return None;
        }
        let leaf = Leaf {
            pfn: page.pfn,
            perms: allowed,
            memory: MemoryType::WriteBack,
            host_writable: false,
            accessed: true,
            dirty: stores,
        };
        let new = F::leaf(&leaf, Level::K4);
        if F::decode(new).perms != allowed {
            return None;
        }
        let hinted = says.gfn.0 >> Level::M2.shift();
        let hints = match quick.hints {
            Some((tag, hints)) if tag == hinted => hints,
            _ => {
                let hints = self.shadows.reverse.beside(&vm.host, says.gfn)?;
                quick.hints = Some((hinted, hints));
                hints
            }
        };
        if !Hint::At(self.index, g2).enter(&hints[F::index(says.gfn, Level::K4)]) {
            return None;
        }
        let mine = frozen(self.vcpu.id());
        let stands = || {
            // ORDER(nested-hint): the hint, and the frozen entry, before the looks at N and at the line. As in `stands`.
            fence_after_rmw();
            vm.active.is_at(quick.number) && self.shadow.line.now() == quick.line || seeded!(QuickUnchecked)
        };
        let row = Row::new(says.gfn, says.memory);
        let is_done = freeze(entry, mine, stands) && thaw_with(entry, Some((rows, index)), (mine, new), row);
        if !is_done {
            self.quick = None;
            return None;
        }
        let gpa = Gpa(says.gfn.gpa().0 | access.gpa.offset());
        Some(L2Done::Handled { done: Done::Mapped(Level::K4), gpa })
    }

    /// The next fault is near this one, perhaps, which has mapped 4 KiB by the entry `down`.
    pub(super) fn remember(&mut self, g2: Gfn, found: &Found<'_>, announced: &Announced, down: &At<'_>) {
        self.quick = None;
        let (vm, space, slot, shadow) = (self.vcpu.vm, self.vcpu.space, found.slot, self.shadow);
        let is_plain =
            HostPage::PLAIN.through(&slot) == HostPage::PLAIN && !slot.log_dirty && !slot.is_private();
        if found.leaf.level > Level::K4 || !is_plain || !space.watched.is_empty() {
            return;
        }
        // Rule 15: N, and then the epoch under which the slot was found, and the line before T was read.
        let Some(number) = vm.active.quiet_number() else { return };
        if vm.active.epoch() != announced.epoch || shadow.line.now() != announced.line {
            return;
        }
        let index = F::index(g2, Level::K4);
        // SAFETY: in the section in which `down` was met.
        let Some(rows) = (unsafe { RowsOf::table::<H>(down.node) }) else { return };
        self.quick = Some(Quick {
            number,
            line: announced.line,
            tag: g2.0 >> Level::M2.shift(),
            table: down.node,
            rows,
            of_t: Hva(found.leaf.place.0 - nth(&self.table, Hva(0), index).0),
            upper: found.leaf.upper,
            slot,
            hints: None,
        });
    }
}
