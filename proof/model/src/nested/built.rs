//! The design as built, where it differs from the first design. A fault freezes its entry, checks the three lines, and
//! only then writes the row and the leaf. An invalidation condemns a frozen entry instead of taking it. A flush by L1
//! does not number holes, and flushes a TLB only if something was dropped since.

use super::program::{Nested, Op};
use super::shadow::{EPOCH, SHADOW, Word};
use super::steps::{Flush, L2, Pc, State};
use crate::bug::Bug;

/// All holes are alike: none has a number.
const HOLE: Word = Word::Hole(0);

impl Nested {
    /// F8 and F9. `None`: the access has ended.
    pub(super) fn install_built(&self, s: &mut State, i: usize) -> Pc {
        let me = s.threads[i];
        let g1 = me.t & super::shadow::entry::FRAME;
        let early = self.has(Bug::CheckedBeforeFrozen);
        match me.pc {
            Pc::Link => {
                // Links a table where none was found, in the current tree.
                let root = if me.above { s.shared.root } else { me.root };
                s.threads[i].root = root;
                let tree = &mut s.shared.trees[root as usize];
                if tree.upper == HOLE {
                    (tree.upper, tree.leaf) = (Word::Table, HOLE);
                }
                Pc::Freeze
            }
            Pc::Freeze => {
                let old = me.word.expect("met in the walk");
                match s.shared.swap(me.root, old, Word::Frozen(i as u8)) {
                    false => Pc::Start,
                    true if early => Pc::Row,
                    true => Pc::Recheck,
                }
            }
            Pc::Recheck => {
                let lines = [s.shared.lines[me.hva as usize], s.shared.lines[EPOCH], s.shared.lines[SHADOW]];
                let is_leaf = matches!(me.word, Some(Word::Leaf { .. }));
                // The flush has already judged an existing leaf.
                let shadow = !is_leaf && !self.has(Bug::LineUnrechecked);
                let checked = if shadow { 3 } else { 2 };
                let stands = lines[..checked] == me.lines[..checked] || self.has(Bug::EntryUnchecked);
                match stands {
                    true if is_leaf => Self::leaf_met(s, i),
                    true if early => Pc::Link,
                    true if self.has(Bug::RowAfterLeaf) => Pc::Thaw,
                    true => Pc::Row,
                    false if is_leaf || early => Pc::Start,
                    false => Pc::ThawBack,
                }
            }
            Pc::Row => {
                s.row_changes(me.root, g1);
                if self.has(Bug::RowAfterLeaf) { Pc::Mark } else { Pc::Thaw }
            }
            Pc::Thaw => {
                let new = Word::Leaf { pfn: me.pfn, write: me.write, armed: false, g1 };
                match s.shared.swap(me.root, Word::Frozen(i as u8), new) {
                    false => Pc::ThawBack,
                    true if self.has(Bug::RowAfterLeaf) => Pc::Row,
                    true => Pc::Mark,
                }
            }
            _ => {
                let leaf = s.shared.trees[me.root as usize].leaf;
                if leaf == Word::Frozen(i as u8) || leaf == Word::Condemned(i as u8) {
                    s.shared.swap(me.root, leaf, HOLE);
                }
                Pc::Start
            }
        }
    }

    /// Keeps or removes the leaf that the fault has met.
    fn leaf_met(s: &mut State, i: usize) -> Pc {
        let me = s.threads[i];
        let Some(old @ Word::Leaf { pfn, write, .. }) = me.word else { unreachable!("a leaf") };
        let row = s.shared.trees[me.root as usize].row;
        let is_it = row == me.t & super::shadow::entry::FRAME;
        let serves = pfn == me.pfn && write == me.write && is_it && s.shared.walk().same(old);
        if serves {
            // Nothing to mark, and nothing to write.
            return Pc::Mark;
        }
        s.shared.note_drop();
        s.shared.swap(me.root, old, HOLE);
        Pc::Start
    }

    /// T refuses: removes the leaf that was hit at once, and again with the vCPU's translations when the vCPU comes
    /// back.
    pub(super) fn refuse_built(&self, s: &mut State, i: usize) {
        let (met, forgot) = (s.threads[i].word, s.shared.vcpus[i].forgot);
        let dropped = s.shared.dropping > 0 || s.shared.dropped > forgot;
        let hit = dropped || matches!(met, Some(Word::Leaf { .. }));
        if let (Some(old @ Word::Leaf { .. }), false) = (met, self.has(Bug::RefusedLeafKept)) {
            s.shared.note_drop();
            s.shared.swap(s.threads[i].root, old, HOLE);
        }
        let (vcpu_count, newest) = (s.shared.vcpu_count, s.shared.newest);
        let vcpu = &mut s.shared.vcpus[i];
        vcpu.in_l2 = false;
        if hit && self.has(Bug::RefusedOnce) {
            vcpu.forget_l2();
        } else if hit && !self.has(Bug::RefusedLeafKept) {
            (vcpu.refused, vcpu.forgot) = (true, newest);
        }
        if vcpu_count == 1 || hit {
            vcpu.allowed[vcpu.key as usize] = 0;
        }
        s.done(i);
    }

    /// The vCPU comes back: removes the refused leaf once more.
    pub(super) fn comeback(s: &mut State, i: usize) {
        let root = s.shared.root as usize;
        if s.shared.trees[root].upper == Word::Table {
            let word = s.shared.trees[root].leaf;
            if matches!(word, Word::Leaf { .. }) {
                s.shared.note_drop();
            }
            s.shared.trees[root].leaf = Self::zapped(word);
        }
        // And faults under way do not install what they have read of T.
        s.shared.announce([SHADOW]);
        s.shared.vcpus[i].refused = false;
        s.shared.vcpus[i].forget_l2();
    }

    /// Returns whether the begin of a drop is not recorded.
    fn unnoted(&self, harvests: bool) -> bool {
        self.has(Bug::DropNotedLate) || self.has(Bug::DropNotedEarly) || harvests && self.has(Bug::ArmUnnoted)
    }

    /// Returns the edited word. A hole stays: a fault that fills it checks the lines after it has frozen it.
    fn zapped(word: Word) -> Word {
        match word {
            Word::Frozen(owner) | Word::Condemned(owner) => Word::Condemned(owner),
            _ => HOLE,
        }
    }

    /// The walk over (shadow, g2).
    pub(super) fn visit_built(&self, s: &mut State, i: usize, harvests: bool, flushes: bool) {
        let me = s.threads[i];
        // L0 empties an entry whatever T says.
        let flushes = flushes && me.flush == Flush::Revalidate;
        let root = s.shared.root;
        if me.pc != Pc::Load {
            s.shared.uses(me.root);
        }
        let next = match me.pc {
            Pc::Load => {
                let tree = s.shared.trees[root as usize];
                let linked = tree.upper == Word::Table;
                let seen = if linked { tree.leaf } else { tree.upper };
                let new = match seen {
                    Word::Leaf { .. } => {
                        (s.threads[i].root, s.threads[i].word) = (root, Some(seen));
                        s.threads[i].pc = if flushes { Pc::ReadRow } else { Pc::Note };
                        return;
                    }
                    Word::Frozen(_) if flushes && self.has(Bug::FrozenPassedBy) => seen,
                    Word::Frozen(_) if !harvests && self.has(Bug::FrozenTaken) => HOLE,
                    Word::Hole(_) | Word::Table => seen,
                    _ if harvests => seen,
                    _ => Self::zapped(seen),
                };
                let tree = &mut s.shared.trees[root as usize];
                *(if linked { &mut tree.leaf } else { &mut tree.upper }) = new;
                Pc::Head
            }
            Pc::ReadRow => {
                s.threads[i].row = s.shared.trees[me.root as usize].row;
                Pc::Note
            }
            Pc::Note => {
                let Some(Word::Leaf { write, .. }) = me.word else { unreachable!("a leaf") };
                let keeps = flushes && self.agrees(&s.shared, me.row, write);
                if !keeps && !self.unnoted(harvests) {
                    s.shared.dropping += 1;
                }
                if !keeps && self.has(Bug::DropNotedEarly) {
                    s.shared.note_drop();
                }
                if keeps { Pc::Head } else { Pc::Edit }
            }
            Pc::Noted => {
                if !self.unnoted(harvests) {
                    s.shared.dropping -= 1;
                    s.shared.note_drop();
                } else if self.has(Bug::DropNotedLate) {
                    s.shared.note_drop();
                }
                Pc::Head
            }
            _ => {
                let old = me.word.expect("read before");
                let Word::Leaf { pfn, g1, .. } = old else { unreachable!("a leaf") };
                let armed = Word::Leaf { pfn, write: false, armed: false, g1 };
                let new = if harvests { armed } else { HOLE };
                if s.shared.swap(me.root, old, new) {
                    Pc::Noted
                } else {
                    s.shared.dropping -= u8::from(!self.unnoted(harvests));
                    Pc::Load
                }
            }
        };
        s.threads[i].pc = next;
        if next != Pc::Head {
            return;
        }
        (s.threads[i].word, s.threads[i].root, s.threads[i].row) = (None, 0, 0);
        s.threads[i].awaited = false;
        if !flushes {
            s.threads[i].owes |= L2;
            s.threads[i].bumped |= 1;
            // The next head.
            s.threads[i].g1 += 1;
        }
    }

    /// After a flush by L1 has visited the shadow: finds the TLBs that have something to forget. An entry checks its
    /// own TLB when this has ended.
    pub(super) fn settle_built(&self, s: &mut State, i: usize, op: Op) {
        let dropped = s.shared.dropped;
        let owes = matches!(op, Op::Broadcast) && (s.shared.dropping > 0 || dropped > s.shared.settled);
        s.threads[i].row = dropped;
        if owes && self.has(Bug::SettledEarly) {
            s.shared.settled = dropped;
        }
        s.threads[i].owes = if owes { L2 } else { 0 };
        s.threads[i].pc = if owes { Pc::Kick(0) } else { Pc::Remove };
    }
}
