//! An access of L2 that its TLB does not answer.

use super::program::Nested;
use super::shadow::{EPOCH, SHADOW, Shared, THREADS, Word, entry};
use super::steps::{Flush, Pc, State};
use crate::bug::Bug;
use entry::{ACCESSED, DIRTY, FRAME, PRESENT, WRITE};

impl Nested {
    /// Returns the stamp of thread `i`'s fault.
    fn stamp(s: &State, i: usize) -> u8 {
        let met = if let Some(Word::Hole(number)) = s.threads[i].word { number } else { 0 };
        s.threads[i].lines.into_iter().fold(met, u8::max)
    }

    /// Returns the places, a bit each, of active invalidations that cover the fault's host page, its frame of L1, or
    /// T's own page.
    fn covering(s: &State, i: usize) -> u8 {
        let (hva, g1) = (s.threads[i].hva, s.threads[i].t & FRAME);
        let covers = |other: &usize| {
            let place = s.shared.places[*other];
            let needed = place.hvas >> hva & 1 != 0 || place.g1s >> g1 & 1 != 0 || place.tables;
            *other != i && place.listed && needed
        };
        (0..THREADS).filter(covers).fold(0, |places, other| places | 1 << other)
    }

    /// Reads T, and sets Accessed, and Dirty for a store. `None`: T refuses.
    fn read_t(s: &mut State, i: usize, write: bool) -> Option<u8> {
        let key = s.shared.vcpus[i].key;
        let t = s.shared.t[key as usize];
        if t & PRESENT == 0 || write && t & WRITE == 0 {
            return None;
        }
        let seen = t | ACCESSED | if write { DIRTY } else { 0 };
        if seen != t {
            s.shared.store(key, seen);
        }
        Some(seen)
    }

    /// L1 gets the fault. A leaf that was hit is checked again before this vCPU runs L2.
    fn refuse(&self, s: &mut State, i: usize) {
        // If something is unflushed, the access may have hit a translation that is in no table any more.
        let owed = s.others_unflushed(i, None) && !self.has(Bug::RefusedBesideDebt);
        let hit = owed || matches!(s.shared.walk(), Word::Leaf { .. } | Word::Frozen(_));
        let Shared { newest, vcpu_count, .. } = s.shared;
        if self.fresh {
            return self.refuse_built(s, i);
        }
        let vcpu = &mut s.shared.vcpus[i];
        vcpu.in_l2 = false;
        if hit && !self.has(Bug::RefusedLeafKept) {
            vcpu.pending = Some(newest);
        }
        // The violation itself has dropped the translation that it hit, so L1 need not flush. If it hit nothing, and
        // other vCPUs fill the same shadow, L1 must flush.
        if vcpu_count == 1 || hit {
            vcpu.allowed[vcpu.key as usize] = 0;
        }
        s.done(i);
    }

    /// One step. `None`: it waits.
    pub(super) fn access(&self, s: &mut State, i: usize, write: bool, near: bool) -> Option<()> {
        let me = s.threads[i];
        if !matches!(me.pc, Pc::Start | Pc::Wait) {
            s.shared.uses(me.root);
        }
        s.threads[i].pc = match me.pc {
            Pc::Start if !s.shared.vcpus[i].in_l2 => {
                s.done(i);
                return Some(());
            }
            Pc::Start => {
                let (root, word) = self.finds(s, i, near);
                (s.threads[i].root, s.threads[i].word) = (root, Some(word));
                if self.fresh {
                    // Before the walk.
                    s.threads[i].lines[2] = s.shared.lines[SHADOW];
                }
                s.threads[i].above = self.reclaims() && s.shared.trees[root as usize].upper != Word::Table;
                match word {
                    // Wait for its owner.
                    Word::Frozen(_) | Word::Condemned(_) => return None,
                    Word::Leaf { .. } if !self.fresh => Pc::Compare,
                    _ if self.has(Bug::TablesReadFirst) => Pc::ReadTables,
                    _ => Pc::Stamp,
                }
            }
            Pc::Wait if Self::covering(s, i) != 0 => return None,
            Pc::Wait => Pc::Start,
            Pc::Compare => {
                self.compare(s, i, write);
                return Some(());
            }
            pc => {
                let next = match pc {
                    Pc::Stamp
                    | Pc::ReadTables
                    | Pc::Slot
                    | Pc::Region
                    | Pc::List
                    | Pc::Confirm
                    | Pc::Lookup => self.ask(s, i, write),
                    Pc::Link | Pc::Freeze | Pc::Recheck | Pc::Row | Pc::Thaw | Pc::ThawBack if self.fresh => {
                        Some(self.install_built(s, i))
                    }
                    Pc::Add | Pc::AddLate | Pc::Recheck | Pc::Link | Pc::Freeze => {
                        Some(self.enter_and_freeze(s, i))
                    }
                    _ => self.thaw(s, i),
                };
                let Some(next) = next else { return Some(()) };
                next
            }
        };
        if s.threads[i].pc == Pc::Start {
            s.again(i);
        }
        Some(())
    }

    /// F1: returns the tree, and the word in it. Near the last access it is the remembered tree, while the line is
    /// unchanged.
    fn finds(&self, s: &mut State, i: usize, near: bool) -> (u8, Word) {
        let line = s.shared.lines[SHADOW];
        let stands = |&(_, then): &(u8, u8)| then == line || self.has(Bug::NearUnchecked);
        if let Some((root, _)) = s.shared.vcpus[i].near.filter(stands).filter(|_| near) {
            s.shared.uses(root);
            let word = s.shared.trees[root as usize].leaf;
            if matches!(word, Word::Hole(_)) {
                return (root, word);
            }
        }
        (s.shared.root, s.shared.walk())
    }

    /// F2 to F6. `None`: T refuses, and L1 has the fault.
    fn ask(&self, s: &mut State, i: usize, write: bool) -> Option<Pc> {
        let me = s.threads[i];
        let g1 = me.t & FRAME;
        Some(match me.pc {
            Pc::Stamp => {
                s.threads[i].lines[1] = s.shared.lines[EPOCH];
                if !self.fresh || self.has(Bug::TablesReadFirst) || self.has(Bug::LineReadLate) {
                    s.threads[i].lines[2] = s.shared.lines[SHADOW];
                }
                if self.has(Bug::TablesReadFirst) && !me.upgrades { Pc::Slot } else { Pc::ReadTables }
            }
            Pc::ReadTables => match Self::read_t(s, i, write) {
                Some(t) => {
                    s.threads[i].t = t;
                    if self.has(Bug::TablesReadFirst) && !me.upgrades { Pc::Stamp } else { Pc::Slot }
                }
                None if me.upgrades => Pc::ThawBack,
                None => {
                    self.refuse(s, i);
                    return None;
                }
            },
            Pc::Slot => {
                s.threads[i].hva = s.shared.slots[g1 as usize];
                s.threads[i].logs = s.shared.logs;
                if self.has(Bug::RowUnfrozen) && !me.upgrades {
                    s.row_changes(me.root, g1);
                }
                Pc::Region
            }
            Pc::Region => {
                s.threads[i].lines[0] = s.shared.lines[me.hva as usize];
                Pc::List
            }
            Pc::List => {
                s.threads[i].listed = Self::covering(s, i);
                Pc::Confirm
            }
            Pc::Confirm => {
                // A scan is not atomic: a listed invalidation is checked later, and may have ended.
                let covered = Self::covering(s, i) & me.listed != 0 && !self.has(Bug::ShadowFaultUnscanned);
                s.threads[i].listed = 0;
                match me.upgrades {
                    true if covered || s.shared.lines[EPOCH] != me.lines[1] => Pc::ThawBack,
                    false if covered => Pc::Wait,
                    false if s.shared.lines[EPOCH] != me.lines[1] => Pc::Start,
                    _ => Pc::Lookup,
                }
            }
            Pc::Lookup => {
                let page = me.hva as usize;
                s.threads[i].pfn = s.shared.versions[page] * 2 + me.hva;
                let given = s.shared.writable[page] && if me.logs { write } else { true };
                let dirty = me.t & DIRTY != 0 || self.has(Bug::WriteWithoutDirty);
                s.threads[i].write = given && dirty && me.t & WRITE != 0;
                match me.word {
                    Some(Word::Leaf { pfn, .. }) if me.upgrades => {
                        let same = pfn == s.threads[i].pfn && s.shared.trees[me.root as usize].row == g1;
                        if same && s.threads[i].write { Pc::ThawLeaf } else { Pc::ThawBack }
                    }
                    _ if self.has(Bug::EntryAfterLeaf) => Pc::Recheck,
                    _ => Pc::Add,
                }
            }
            pc => unreachable!("{pc:?} asks nothing"),
        })
    }

    /// F7 and F8.
    fn enter_and_freeze(&self, s: &mut State, i: usize) -> Pc {
        let me = s.threads[i];
        let g1 = me.t & FRAME;
        match me.pc {
            Pc::Add if !s.shared.chunk => {
                (s.shared.chunk, s.threads[i].made) = (true, true);
                s.shared.chunk_version = 0;
                Pc::Add
            }
            Pc::Add => {
                s.head_changes(g1, true);
                let fills = self.fresh && !matches!(me.word, Some(Word::Leaf { .. }));
                if fills && !self.has(Bug::CheckedBeforeFrozen) { Pc::Link } else { Pc::Recheck }
            }
            Pc::Recheck => {
                let lines = [s.shared.lines[me.hva as usize], s.shared.lines[EPOCH], s.shared.lines[SHADOW]];
                let stamp = Self::stamp(s, i);
                let stands = match self.bug {
                    Some(Bug::EntryUnchecked) => true,
                    Some(Bug::ShadowUnrechecked) => lines[..2] == me.lines[..2],
                    Some(Bug::ChunkAnswers) if me.made => s.shared.newest <= stamp,
                    Some(Bug::ChunkAnswers) => s.shared.chunk_version <= stamp,
                    _ => lines == me.lines,
                };
                if stands { Pc::Link } else { Pc::Start }
            }
            Pc::Link => {
                let tree = &mut s.shared.trees[me.root as usize];
                if let Word::Hole(number) = tree.upper {
                    let fill = if self.has(Bug::ShadowFillsZero) { 0 } else { number };
                    (tree.upper, tree.leaf) = (Word::Table, Word::Hole(fill));
                    let known = number <= Self::stamp(s, i);
                    if known || self.has(Bug::ShadowNumberUnchecked) {
                        s.threads[i].word = Some(Word::Hole(fill));
                    }
                }
                Pc::Freeze
            }
            Pc::Freeze => {
                let old = me.word.expect("met in the walk");
                let old_enough = matches!(old, Word::Hole(number) if number <= Self::stamp(s, i))
                    || self.has(Bug::ShadowNumberUnchecked);
                if !old_enough || !s.shared.swap(me.root, old, Word::Frozen(i as u8)) {
                    Pc::Start
                } else {
                    match self.bug {
                        Some(Bug::RowUnfrozen) => Pc::Thaw,
                        Some(Bug::RowStored) => Pc::Row,
                        _ => Pc::RowRead,
                    }
                }
            }
            Pc::AddLate => {
                s.shared.chunk = true;
                s.head_changes(g1, true);
                Pc::Mark
            }
            pc => unreachable!("{pc:?} enters nothing"),
        }
    }

    /// The second half of F9, F10; and the thaw of a leaf that was frozen for a permission. `None`: the access has
    /// ended.
    fn thaw(&self, s: &mut State, i: usize) -> Option<Pc> {
        let me = s.threads[i];
        let g1 = me.t & FRAME;
        Some(match me.pc {
            Pc::RowRead => {
                s.threads[i].row_stands = true;
                if self.has(Bug::RowUnowned) { Pc::Row } else { Pc::RowOwned }
            }
            Pc::RowOwned if s.shared.trees[me.root as usize].leaf == Word::Frozen(i as u8) => Pc::Row,
            Pc::RowOwned => Pc::Start,
            Pc::Row if me.row_stands || self.has(Bug::RowStored) => {
                s.row_changes(me.root, g1);
                Pc::Thaw
            }
            Pc::Row => Pc::RowRead,
            Pc::Thaw | Pc::ThawLeaf => {
                let new = Word::Leaf { pfn: me.pfn, write: me.write, armed: false, g1 };
                match s.shared.swap(me.root, Word::Frozen(i as u8), new) {
                    false => Pc::Start,
                    true if self.has(Bug::EntryAfterLeaf) && me.pc == Pc::Thaw => Pc::AddLate,
                    true => Pc::Mark,
                }
            }
            Pc::Mark => {
                if self.reclaims() {
                    s.shared.vcpus[i].near = Some((me.root, me.lines[2]));
                }
                if me.write && me.logs && !self.has(Bug::WriteUnmarked) {
                    s.shared.marks |= 1 << g1;
                }
                s.done(i);
                return None;
            }
            Pc::FreezeLeaf => {
                let old = me.word.expect("met in the walk");
                // As if the leaf's own word had the host's write permission.
                let at_once = self.has(Bug::UpgradeUncompared) && me.write;
                let given = Word::Leaf { pfn: me.pfn, write: true, armed: false, g1 };
                let new = if at_once { given } else { Word::Frozen(i as u8) };
                match s.shared.swap(me.root, old, new) {
                    false => Pc::Start,
                    true if at_once => Pc::Mark,
                    true => Pc::Stamp,
                }
            }
            Pc::ThawBack => {
                s.shared.swap(me.root, Word::Frozen(i as u8), me.word.expect("met in the walk"));
                if !s.shared.writable[me.hva as usize] {
                    // The fault asks the host outside the section, as always.
                    s.done(i);
                    return None;
                }
                Pc::Start
            }
            pc => unreachable!("{pc:?} in a fault"),
        })
    }

    /// A leaf is there: T decides whether it stays, is removed, or gets a permission.
    fn compare(&self, s: &mut State, i: usize, write: bool) {
        let me = s.threads[i];
        let Some(Word::Leaf { pfn, write: writes, .. }) = me.word else { unreachable!("a leaf") };
        let row = s.shared.trees[me.root as usize].row;
        let Some(t) = Self::read_t(s, i, write) else {
            self.refuse(s, i);
            return;
        };
        if t & FRAME != row {
            s.threads[i].flush = Flush::Revalidate;
            s.threads[i].word = None;
            s.threads[i].pc = Pc::Begin;
        } else if !write || writes {
            s.done(i);
        } else {
            let logs = s.shared.logs;
            let me = &mut s.threads[i];
            (me.upgrades, me.pc) = (true, Pc::FreezeLeaf);
            if self.has(Bug::UpgradeUncompared) {
                (me.pfn, me.write, me.logs, me.t) = (pfn, s.shared.writable[(pfn % 2) as usize], logs, t);
            }
        }
    }
}
