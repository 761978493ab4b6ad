//! Arming: from here on the next store to the page is noticed.
//!
//! | leaf | [`Track::Writes`](super::Track) | [`Track::DirtyBits`](super::Track) |
//! |---|---|---|
//! | 4 KiB | W is taken: the store faults, and is logged | D is cleared: the walker sets it |
//! | larger | W is taken: the store faults, and splits it | W and D are cleared: as left |
//! | withdrawn, or frozen for a moment | the same, of the leaf that it becomes | |
//!
//! Arming changes tables. A store that a TLB still allows ends with the flush that arming owes; it belongs to the
//! harvest that took the page from the log.
//!
//! **A large leaf of a slot that logs** is armed, or all of its pages are marked already. Its D bit is not read.

use super::Splitting;
use crate::callbacks::Finally;
use crate::hooks::{Nested, NestedHooks};
use crate::slots::bitmap::WORD;
use crate::space::Space;
use crate::sync::mode::{Edits, Shared};
use crate::sync::prim::spin_loop;
use crate::table::{ENTRIES, Entry, Kind};
use crate::tlb::debt::Owed;
use crate::{Cause, FlushDebt, Format, Gfn, GuestSpace, Host, Idle, Level, Slot, Span, Vm, Walk, Word};

/// Returns the armed word; `None` if it is armed already, or is no leaf.
#[inline(always)]
fn armed<F: Format>(word: Word, level: Level, by_bits: bool) -> Option<Word> {
    if F::is_present(word) {
        if F::is_table(word, level) {
            return None;
        }
        let unwritable = if by_bits && level == Level::K4 { word } else { F::set_write(word, false) };
        let armed = Word(unwritable.0 & if by_bits { !F::DIRTY } else { u64::MAX });
        return (armed != word).then_some(armed);
    }
    (word.is_withdrawn() && F::decode(word).perms.allows(crate::Access::Write))
        .then(|| F::set_writable(word, false))
}

/// Arms one entry. Returns whether its D bit was set.
#[inline(always)]
pub(super) fn arm_entry<F: Format>(entry: &Entry, mut word: Word, level: Level, by_bits: bool) -> bool {
    loop {
        if let Some(new) = armed::<F>(word, level, by_bits) {
            match entry.cas(word, new) {
                Ok(()) => return by_bits && word.0 & F::DIRTY != 0,
                Err(found) => word = found,
            }
        } else if let Kind::Frozen(_) = word.kind::<F>(level) {
            // Another thread is about to thaw it, maybe to a writable leaf: arm the result.
            spin_loop();
            word = entry.load();
        } else {
            return false;
        }
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Arms slots of `gfns` that begin a log in which no page is dirty. The log is published, and each fault that did
    /// not know of it has ended.
    pub(crate) fn begin_logs(&self, idle: &mut Idle, space: &Space<F>, gfns: &[Span<Gfn>]) {
        if gfns.is_empty() {
            return;
        }
        // The host may panic while large pages are split. The published log is then armed all the same: otherwise stores
        // through writable leaves are not logged.
        let mut armed = Finally::with(idle, |idle| {
            let mut owed = Owed::default();
            for &gfns in gfns {
                Walk::<F, H, Shared>::on_any_seat(self, space, idle).arm_all(gfns, &mut owed);
            }
            FlushDebt::new(self, owed, Cause::DirtyLog).settle();
        });
        if self.splitting() == Splitting::Eager {
            // No new large page is mapped. The present ones are split here, without a fault each, as far as table
            // pages last.
            for &gfns in gfns {
                let _ = GuestSpace { vm: self, space }.split(&mut armed, gfns, Level::K4);
            }
        }
    }
}

impl<F: Format, H: Host, M: Edits> Walk<'_, F, H, M> {
    /// Arms every leaf of `gfns`, and owes the flush of all of them, whatever was found: a clear W does not prove that
    /// no TLB allows writes.
    pub(crate) fn arm_all(&mut self, gfns: Span<Gfn>, owed: &mut Owed) {
        let by_bits = self.vm.logs_by_bits();
        let mut steps = self.steps(gfns, Level::K4);
        while let Some((_, step)) = steps.next() {
            let at = step.at;
            arm_entry::<F>(at.entry, at.word, at.level, by_bits);
            let (_, (entries, _)) = steps.ahead();
            for entry in entries {
                arm_entry::<F>(entry, entry.load(), Level::K4, by_bits);
            }
            let row = entries.len() as u64;
            steps.advance(row);
        }
        owed.owe(gfns);
        Nested::withdraw_write(self, gfns, owed);
    }

    /// Arms the pages of `slot` whose bits are set in `words`, the first of which is word number `first` of the slot.
    /// Passes to `written` the pages whose D bit was set, as word index and bits.
    #[inline]
    pub(super) fn arm_words(
        &self,
        slot: &Slot,
        first: u64,
        words: &[u64],
        mut written: impl FnMut(usize, u64),
    ) {
        let by_bits = self.vm.logs_by_bits();
        // The leaf table that was needed last, with its first frame divided by 512.
        let mut table: (_, Option<&[Entry; ENTRIES]>) = (u64::MAX, None);
        for (index, &bits) in words.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            let base = slot.gfns.start + (first + index as u64) * WORD;
            let (mut left, mut dirty) = (bits, 0);
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let gfn = base + u64::from(bit);
                if gfn.0 / ENTRIES as u64 != table.0 {
                    table = (gfn.0 / ENTRIES as u64, self.table_of(gfn, by_bits));
                }
                if let Some(entries) = table.1 {
                    let entry = &entries[F::index(gfn, Level::K4)];
                    let set = arm_entry::<F>(entry, entry.load(), Level::K4, by_bits);
                    dirty |= u64::from(set) << bit;
                }
            }
            if dirty != 0 {
                written(index, dirty);
            }
        }
        // The flush of the log's pages covers nested guests.
        Nested::arm(self, slot.gfns.start + first * WORD, words);
    }

    /// Returns the leaf table of `gfn`; if there is none, arms whatever maps the frame.
    fn table_of(&self, gfn: Gfn, by_bits: bool) -> Option<&[Entry; ENTRIES]> {
        let mut at = self.descend(gfn);
        while at.level > Level::K4 {
            // Split, or recovered and thawed, meanwhile: the tables below count.
            arm_entry::<F>(at.entry, at.word, at.level, by_bits);
            let word = at.entry.load();
            if !F::is_table(word, at.level) {
                return None;
            }
            at = self.descend(gfn);
        }
        // SAFETY: reached by this walk, in whose section it stays allocated.
        Some(unsafe { at.node.entries() })
    }
}
