//! The short path for a fault of L2 in the same 2 MiB as the last one, while only T's own entry may have changed.
//!
//! ```text
//! remembered   N, read while no invalidation was active; the shadow's line; a table of the shadow, with its rows; T's leaf
//!              table for the same addresses, and the entries above it; a memslot; the hints of 2 MiB of L1
//! a fault      entry: a hole; T's entry: read, A and D set; the memslot; the host's page, if it is small and plain
//!              the hint; frozen; N and line, as they were? the row; the leaf
//!              the same for its neighbours, as far as L2 may access them without a change of T
//! ```
//! It is F1 to F9 of [`super::fault`], without the steps whose result is unchanged. An unchanged **N** confirms the
//! memslots, T's own memslots, watched frames and the host's answer, as for a fault of L1's own ([`crate::fault`]). An
//! unchanged **line** confirms T's upper entries: a processor keeps those in its paging-structure caches until L1
//! flushes. After a refusal by T the vCPU forgets this state. When it returns, it moves the line, since L1 may change a
//! refused entry without a flush.
//!
//! The tables of hints are never unlinked, so they need no check. A table of a shadow may be unlinked ([`crate::shadows`]): the
//! line then moves, and its memory is reused after a grace period. A fault reads the line first, in its section.

use super::entry_words::{GuestWords, nth};
use super::freeze::{Announced, freeze, thaw_with};
use super::outcome::{Around, Found, Quick};
use super::{L1Access, L1Format, L2, L2Next};
use crate::shadows::{HOLE, LeafRow, RmapHint, RowsOf, frozen};
use crate::sync::prim::fence_after_rmw;
use crate::sync::readside::Section;
use crate::table::radix::At;
use crate::{Access, Format, Gfn, Gpa, Host, HostPage, Hva, Leaf, Level, MemoryType, Next, Perms, Resume};

impl<F: Format, H: Host, T: L1Format> L2<'_, '_, F, H, T> {
    /// Handles the access, or returns `None` with nothing done.
    #[inline(always)]
    pub(super) fn quick(&mut self, access: &L1Access) -> Option<L2Next> {
        let (quick, g2) = (self.quick.as_ref()?, access.gpa.gfn());
        if g2.0 >> Level::M2.shift() != quick.tag {
            return None;
        }
        let section = self.vcpu.light_section()?;
        if self.shadow.line.now() != quick.line {
            return None;
        }
        let g1 = self.map_near(&section, g2, Some(access))?;
        if F::HARDWARE_AD {
            self.map_neighbours(&section, g2);
        }
        let gpa = Gpa(g1.gpa().0 | access.gpa.offset());
        Some(L2Next::Handled { next: Next::Resume(Resume::Mapped(Level::K4)), gpa })
    }

    /// Maps the pages around `g2` that L2 may access without a change of T: their leaves are not young, and not dirty.
    /// Any of them may fail. Without Accessed in the format, an aging pass would take them for young.
    #[inline(never)]
    fn map_neighbours(&mut self, section: &Section<'_>, g2: Gfn) {
        let Some(quick) = &mut self.quick else { return };
        let together = quick.around.next(g2);
        for other in (together.start.0..together.end.0).map(Gfn).filter(|&other| other != g2) {
            let _ = self.map_near(section, other, None);
        }
    }

    /// Maps a page of the remembered 2 MiB, for an access or beside one. Returns its frame of L1, or `None` with nothing
    /// done.
    #[inline(always)]
    fn map_near(&mut self, section: &Section<'_>, g2: Gfn, access: Option<&L1Access>) -> Option<Gfn> {
        let (quick, vm) = (self.quick.as_mut()?, self.vcpu.vm);
        let index = F::index(g2, Level::K4);
        // SAFETY: the line stood in this section, so the table is not freed before the section ends.
        let (entries, rows) = unsafe { (quick.table.entries(), quick.rows.rows()) };
        let entry = &entries[index];
        if entry.load() != HOLE {
            return None;
        }
        let memory = GuestWords::new(vm.host(), section.within());
        let t = memory.read(&self.table, nth(&self.table, quick.of_t, index))?;
        let says = self.table.entry(t, Level::K4).ok()?;
        let allowed = quick.upper.allows(&self.table, &says, t);
        // A page beside the access: its first store must not fault because D is clear in T.
        let is_clean = access.is_none() && says.touch_store & !t.0 != 0;
        let demanded = access.map_or(Perms::READ, |access| self.table.demands(access));
        let kind = access.map_or(Access::Read, |access| access.access);
        let is_enough = demanded.without(allowed) == Perms::NONE && allowed.allows(kind) && !is_clean;
        if !is_enough || says.memory != MemoryType::WriteBack {
            return None;
        }
        if !quick.slot.gfns.contains(says.gfn) {
            return None;
        }
        let stores = demanded.allows(Access::Write);
        let wants = if stores { Access::Write } else { kind };
        let page = vm.host.lookup(quick.slot.hva_of(says.gfn), wants)?;
        if page != (HostPage { pfn: page.pfn, ..HostPage::PLAIN }) || !page.is_held::<F>() {
            return None;
        }
        let leaf = Leaf {
            pfn: page.pfn,
            perms: allowed,
            memory: MemoryType::WriteBack,
            host_writable: false,
            accessed: access.is_some(),
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
                let hints = self.shadows.reverse.beside(vm.tables(), says.gfn)?;
                quick.hints = Some((hinted, hints));
                hints
            }
        };
        let hint = RmapHint { shadow: self.index, g2 }.enter(&hints[F::index(says.gfn, Level::K4)])?;
        let mine = frozen(self.vcpu.id());
        let stands = || {
            // The hint, and the frozen entry, before N and the line are read. As in `stands`.
            fence_after_rmw();
            vm.active.is_at(quick.number) && self.shadow.line.now() == quick.line && hint.stands()
        };
        let row = LeafRow::new(says.gfn, says.memory);
        let is_done = freeze(entry, mine, None, stands)
            .is_some_and(|frozen| thaw_with(frozen, Some((rows, index)), new, row));
        if !is_done {
            self.quick = None;
            return None;
        }
        Some(says.gfn)
    }

    /// Remembers a fault that has mapped 4 KiB by the entry `down`: the next one may be near it.
    pub(super) fn remember(&mut self, g2: Gfn, found: &Found<'_>, announced: &Announced, down: &At<'_>) {
        let around = self.quick.take().map_or(Around::default(), |quick| quick.around.beyond(g2));
        let (vm, space, shadow) = (self.vcpu.vm, self.vcpu.space, self.shadow);
        let pursuit = announced.pursuit;
        let slot = pursuit.slot;
        let is_plain =
            HostPage::PLAIN.through(&slot) == HostPage::PLAIN && !slot.log_dirty && !slot.is_private();
        if found.leaf.level > Level::K4 || !is_plain || !space.watched.is_empty() {
            return;
        }
        // Rule 15: N, then the epoch under which the slot was found, and the line before T was read.
        let Some(number) = vm.active.quiet_number() else { return };
        if vm.active.epoch() != pursuit.start() || shadow.line.now() != announced.line {
            return;
        }
        let index = F::index(g2, Level::K4);
        // SAFETY: in the section in which `down` was met.
        let Some(rows) = (unsafe { RowsOf::table(vm.tables(), down.node) }) else { return };
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
            around,
        });
    }
}
