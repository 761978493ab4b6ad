//! A fault on a present leaf, `fault::present`: it restores a permission, splits a large leaf of a slot that logs, or
//! upgrades the leaf.

use crate::bug::Bug;
use crate::fault::{Access, pair};
use crate::scenario::Scenario;
use crate::state::{Fault, Leaf, Pc, Shared, Span, State, Thread, Track, Walk, Word, frame};

impl Scenario {
    /// One step. `None`: no memory for a table.
    pub(crate) fn present(&self, s: &mut State, i: usize) -> Option<()> {
        let thread = s.threads[i];
        match thread.pc {
            Pc::GiveBack | Pc::Thaw if self.knows_logs(s, i) => {}
            Pc::GiveBack => {
                let Word::Leaf(leaf) = thread.walk.word else { unreachable!("it was a leaf") };
                let given = Word::Leaf(Leaf { write: true, dirty: true, ..leaf });
                if self.bug == Some(Bug::MarkBeforePermission) && thread.log.late == 0 {
                    s.threads[i].log.late = 1;
                    s.shared.log.log_writes(extent(&thread));
                } else if s.cas(i, thread.walk.word, given) {
                    self.fixed(s, i);
                } else {
                    s.again(i);
                }
            }
            Pc::SplitDown => Self::split_down(s, i)?,
            Pc::KeepDirty => {
                self.keep_dirty(s, extent(&thread));
                s.threads[i].pc = Pc::Freeze;
            }
            Pc::LogStore => {
                self.mark_stores(s, i, extent(&thread));
                s.done(i);
            }
            Pc::Freeze => self.freeze(s, i),
            Pc::Thaw => self.thaw_leaf(s, i),
            pc => unreachable!("{pc:?} on a leaf"),
        }
        Some(())
    }

    /// `present::fixed`: the leaf is writable now, and the fault marks it.
    pub(crate) fn fixed(&self, s: &mut State, i: usize) {
        if s.shared.log.track == Track::Writes && self.bug != Some(Bug::MarkBeforePermission) {
            s.threads[i].pc = Pc::LogStore;
        } else {
            s.done(i);
        }
    }

    /// `present::split_down`: a large leaf of a slot that logs is split by the store. By D bits, all of it may be written
    /// then. `None`: no memory for the table.
    fn split_down(s: &mut State, i: usize) -> Option<()> {
        let Word::Leaf(leaf) = s.threads[i].walk.word else { unreachable!("it was a leaf") };
        let write = s.shared.log.track == Track::DirtyBits && leaf.host_write;
        let dirty = leaf.dirty && !write;
        let halves = [0, 1].map(|half| Word::Leaf(Leaf { pfn: leaf.pfn + half, write, dirty, ..leaf }));
        let table = s.shared.new_node(0, halves)?;
        if s.cas(i, s.threads[i].walk.word, Word::Table(table)) {
            if write { s.done(i) } else { s.again(i) }
        } else {
            s.shared.free_node(table);
            s.again(i);
        }
        Some(())
    }

    /// `present::upgrade`, its first half.
    pub(crate) fn freeze(&self, s: &mut State, i: usize) {
        let word = s.threads[i].walk.word;
        if self.bug != Some(Bug::UpgradeWithoutFreeze) && !s.cas(i, word, Word::Frozen(i as u8)) {
            s.again(i);
        } else if self.bug == Some(Bug::UpgradeStampsFirst) {
            s.threads[i].pc = Pc::Thaw;
        } else {
            s.threads[i].pc = Pc::Stamp;
            s.threads[i].walk.thawed = Some(word);
        }
    }

    /// Its second half: thaws to the chosen leaf, unless another thread replaced the frozen entry.
    pub(crate) fn thaw_leaf(&self, s: &mut State, i: usize) {
        let thread = s.threads[i];
        let bare = self.bug == Some(Bug::UpgradeWithoutFreeze);
        let mine = if bare { thread.walk.word } else { Word::Frozen(i as u8) };
        let thawed = thread.walk.thawed.expect("decided");
        let won = s.cas(i, mine, thawed);
        if !won && !bare {
            // The thread that replaced it cannot know the old leaf.
            s.shared.book(thread.walk.level, -1);
        }
        if won && thawed != thread.walk.word {
            self.fixed(s, i);
            return;
        }
        s.again(i);
        if won && thread.fault.asking {
            s.threads[i].fault.asking = true;
            Self::first(s, i);
        }
    }

    /// Returns whether an upgrade has not frozen yet, by a seeded mistake.
    pub(crate) fn upgrades_first(&self, thread: &Thread) -> bool {
        self.bug == Some(Bug::UpgradeStampsFirst) && matches!(thread.walk.word, Word::Leaf(_))
    }

    /// Chooses the leaf to which the frozen entry is thawed.
    pub(crate) fn decide(&self, s: &mut State, i: usize, Access { gfn, .. }: Access) {
        let Thread { walk: Walk { word, level, .. }, fault: Fault { hva, .. }, .. } = s.threads[i];
        let Word::Leaf(leaf) = word else { unreachable!() };
        let mine = leaf.pfn + (gfn & (Shared::pages(level) - 1));
        if s.shared.watches(Shared::extent(level, gfn)) && self.bug != Some(Bug::WatchUnasked) {
            (s.threads[i].walk.thawed, s.threads[i].pc) = (Some(word), Pc::Thaw);
            return;
        }
        let here = frame(s.shared.frames[hva as usize], hva) == mine;
        let whole = level == 0 || pair(&s.shared, gfn, hva);
        let offered = s.threads[i].fault.offered.take().is_some();
        if offered || here && whole && s.shared.writable[hva as usize] {
            let new = Leaf { write: true, host_write: true, dirty: true, ..leaf };
            s.threads[i].walk.thawed = Some(Word::Leaf(new));
        } else {
            s.threads[i].walk.thawed = Some(word);
            s.threads[i].fault.asking = true;
        }
        s.threads[i].pc = if self.bug == Some(Bug::UpgradeStampsFirst) { Pc::Freeze } else { Pc::Thaw };
        if s.threads[i].pc == Pc::Freeze && s.threads[i].fault.asking {
            s.again(i);
            s.threads[i].fault.asking = true;
            Self::first(s, i);
        }
    }
}

/// Returns the pages of the thread's current entry.
fn extent(thread: &Thread) -> Span {
    Shared::extent(thread.walk.level, thread.gfn)
}
