//! F7 to F10: a fault of L2 installs its leaf in the shadow. See [`super::fault`] for the order.

use super::freeze::{Announced, freeze, stands, thaw_with};
use super::outcome::{Found, Outcome, very_page};
use super::{L1Access, L1Format, L1Leaf, L2, L2Next};
use crate::dirty::mark::KnownLogs;
use crate::fault::pursuit::Answer;
use crate::shadows::{HOLE, LeafRow, RmapHint, Rows, drop_leaf, frozen};
use crate::table::radix::{At, Radix, Reached};
use crate::{
    Access, Emulate, FaultError, Format, Gfn, Gpa, Host, Leaf, Level, Next, Perms, Pfn, Resume, Span,
    TableMemory,
};

impl<F: Format, H: Host, T: L1Format> L2<'_, '_, F, H, T> {
    /// F7 to F10.
    pub(super) fn install(
        &mut self,
        access: &L1Access,
        found: &Found<'_>,
        announced: &Announced,
        replaced: bool,
    ) -> Result<Outcome, FaultError> {
        let (vm, space) = (self.vcpu.vm, self.vcpu.space);
        let (memory, active, g2) = (vm.tables(), &vm.active, access.gpa.gfn());
        let &Found { at, leaf, slots, answer, stores, gpa } = found;
        let (page, slot) = (answer.page(), answer.pursuit().slot);
        let (g1, level) = (leaf.gfn, page.level);
        let composed = self.compose(&answer, &leaf, stores);
        let new = F::leaf(&composed, level);
        // The format cannot encode the rights, or T does not allow them all.
        if F::decode(new).perms != composed.perms || !composed.perms.allows(access.access) {
            return Ok(done(Next::Emulate(Emulate::NoMemory), gpa));
        }
        let old = at.word.leaf::<F>(at.level);
        let is_row = old.is_some()
            && rows_of::<F>(memory, &at, g2).is_none_or(|(rows, index)| {
                rows.get(index).may_be(LeafRow::new(g1.base(at.level), leaf.memory))
            });
        let is_page = |old| very_page(old, g2, at.level).pfn == page.pfn;
        if is_row && !old.is_some_and(is_page) && !replaced {
            return Ok(Outcome::AnotherPage(Span::sized(g1.base(at.level), at.level.pages())));
        }
        if level > Level::K4 {
            vm.will_map_a_large_page();
        }
        let Some(state) = &mut self.vcpu.nested else { return Ok(Outcome::Changed) };
        let (hint, spare) = (RmapHint { shadow: self.index, g2: g2.base(level) }, &mut state.spare);
        let hint = self.shadows.enter_hint(memory, (&mut self.vcpu.cache, spare), (g1, level), hint)?;
        if let Some(old) = old {
            return Ok(self.met_leaf(found, announced, (old, composed), is_row));
        }
        if at.level > level && !state.spare.has_rows() {
            return Err(FaultError::NoMemory);
        }
        let (cache, beside) = (&mut self.vcpu.cache, &mut state.spare.beside(memory, F::MAX_LEAF));
        // SAFETY: in the section of `seat`.
        let down = unsafe { Radix::<F>::link_down(memory, cache, beside, g2, at, level) }?;
        let Reached::Level(down) = down else { return Ok(Outcome::Changed) };
        if down.word != HOLE {
            return Ok(Outcome::Changed);
        }
        let (mine, line) = (frozen(self.vcpu.id()), &self.shadow.line);
        let part = (self.table.pages(leaf.level) > level.pages()).then_some(line);
        let all_stand = || {
            stands(active, &announced.pursuit)
                // All regions of a page of 1 GiB, after the fence in `stands`.
                && announced.wide.is_none_or(|newest| active.now() == newest.version())
                && line.now() == announced.line
                && hint.stands()
        };
        let Some(frozen) = freeze(down.entry, mine, part, all_stand) else { return Ok(Outcome::Changed) };
        let (rows, row) = (rows_of::<F>(memory, &down, g2), LeafRow::new(g1.base(level), leaf.memory));
        let thaw = || thaw_with(frozen, rows, new, row);
        let thawed = if composed.perms.allows(Access::Write) && slot.log_dirty {
            let ring = (self.vcpu.ring, space.id);
            KnownLogs::of(slots.version()).allow(ring, Span::sized(g1, 1), thaw)
        } else {
            thaw()
        };
        if !thawed {
            return Ok(Outcome::Changed);
        }
        if level == Level::K4 {
            self.remember(g2, found, announced, &down);
        }
        Ok(done(Next::Resume(Resume::Mapped(level)), gpa))
    }

    /// F8 for a leaf that F1 has met: keeps it if it serves, otherwise drops it.
    fn met_leaf(
        &self,
        found: &Found<'_>,
        announced: &Announced,
        (old, composed): (Leaf, Leaf),
        is_row: bool,
    ) -> Outcome {
        let (active, &Found { at, answer, stores, gpa, .. }) = (&self.vcpu.vm.active, found);
        if !stands(active, &announced.pursuit) {
            return Outcome::Changed;
        }
        let serves = answer.page().level == at.level && is_row && serves_still(old, composed, stores);
        if serves && at.word.is_withdrawn() {
            // An aging pass withdrew it: this is the access that the pass waits for.
            let given = at.entry.cas(at.word, F::restore(at.word, at.level)).is_ok();
            let done = L2Next::Handled { next: Next::Resume(Resume::Mapped(at.level)), gpa };
            return if given { Outcome::Done(done) } else { Outcome::Changed };
        }
        if serves && at.entry.load() == at.word {
            return Outcome::Done(L2Next::Handled { next: Next::Resume(Resume::Spurious), gpa });
        }
        drop_leaf(&self.shadows.drops.taking(active), at.entry, at.word);
        Outcome::Changed
    }

    /// Returns the largest page around the frame that T, host, memslot, format and policy allow, and that no invalidation
    /// is active over.
    pub(super) fn level(&self, answer: &Answer, l1: &L1Leaf, access: Access) -> Level {
        let (vm, space, page) = (self.vcpu.vm, self.vcpu.space, answer.page());
        let small = vm.policy.nx_huge_pages && (access == Access::Fetch || !page.execute);
        let mut level = answer.free().min(l1.level);
        if small {
            return Level::K4;
        }
        while level > Level::K4 && vm.large_page(space, &answer.pursuit().slot, l1.gfn, level).is_none() {
            level = level.down();
        }
        level
    }

    /// Composes the leaf: what T, memslot and host allow together, without stores that must be noticed.
    fn compose(&self, answer: &Answer, l1: &L1Leaf, stores: bool) -> Leaf {
        let page = answer.page();
        let (perms, both) = (l1.rights.perms, l1.rights.of_both());
        let writable = page.writable && (!answer.pursuit().slot.log_dirty || stores);
        let memory = page.memory.max(l1.memory);
        let withheld = page.level > Level::K4 && self.vcpu.vm.policy.nx_huge_pages;
        Leaf {
            pfn: Pfn(page.pfn.0 & !(page.level.pages() - 1)),
            perms: Perms::of(
                perms.allows(Access::Read),
                writable && perms.allows(Access::Write),
                page.execute && !withheld && both.allows(Access::Fetch),
            ),
            memory: if F::has_memory_type(memory) { memory } else { page.memory },
            // T has a say in write permission, so nothing restores it in place.
            host_writable: false,
            accessed: true,
            dirty: stores,
        }
    }
}

fn done(done: Next, gpa: Gpa) -> Outcome {
    Outcome::Done(L2Next::Handled { next: done, gpa })
}

/// Returns the rows beside an entry of a shadow, and the index of its own row.
fn rows_of<'a, F: Format>(memory: &impl TableMemory, at: &At<'a>, g2: Gfn) -> Option<(Rows<'a>, usize)> {
    // SAFETY: `at` was met in a section that goes on.
    let rows = unsafe { Rows::of(memory, at.node) };
    rows.map(|rows| (rows, F::index(g2, at.level)))
}

/// Whether the present leaf serves the access, and allows no more than a new one would. It may lack a store permission
/// that the access does not need.
fn serves_still(old: Leaf, new: Leaf, stores: bool) -> bool {
    let missing = new.perms.without(old.perms);
    let serves = missing.without(Perms::WRITE) == Perms::NONE && (!stores || old.perms.allows(Access::Write));
    let same = Leaf { perms: old.perms, accessed: old.accessed, dirty: old.dirty, ..new } == old;
    serves && same && old.perms.without(new.perms) == Perms::NONE
}
