//! Reclaim of a shadow's tables, whichever vCPUs run on it, when table memory is short.
//!
//! ```text
//! unlinked                put down as a drop: under way before, numbered after
//! the line moves          a fault that remembers a table has read the line before it came to it, and looks at the line again first
//! flush of L2's tag       no link to it is cached any more
//! grace                   faults in a section, and walks that are inside, have ended
//! freed
//! ```

use super::program::{Nested, Op};
use super::shadow::{SHADOW, Tree, Word};
use super::steps::{L2, Pc, State, Thread};
use crate::bug::Bug;

impl Nested {
    /// One step. `None`: it waits.
    pub(super) fn reclaim(&self, s: &mut State, i: usize) -> Option<()> {
        assert!(self.fresh, "the first design replaces the root");
        let notes = !self.has(Bug::UnlinkUnnoted);
        match s.threads[i].pc {
            Pc::Start if s.shared.trees[s.shared.root as usize].upper != Word::Table => s.done(i),
            Pc::Start => {
                s.shared.dropping += u8::from(notes);
                s.threads[i].pc = Pc::Edit;
            }
            Pc::Edit => {
                assert_eq!(s.shared.root, 0, "there are two trees");
                s.shared.root = 1;
                s.shared.trees[1] = Tree { upper: Word::Hole(0), leaf: Word::Hole(0), row: 0 };
                s.shared.vcpus.iter_mut().for_each(|vcpu| (vcpu.root, vcpu.linked) = (1, true));
                s.threads[i].pc = Pc::Noted;
            }
            Pc::Noted => {
                if !self.has(Bug::ReclaimUnannounced) {
                    s.shared.announce([SHADOW]);
                }
                if notes {
                    s.shared.dropping -= 1;
                    s.shared.note_drop();
                }
                (s.threads[i].owes, s.threads[i].pc) = (L2, Pc::Kick(0));
                if self.has(Bug::FreedUnflushed) {
                    s.threads[i].pc = Pc::Remove;
                }
            }
            Pc::Kick(vcpu) => self.kick(s, i, vcpu),
            Pc::Remove => {
                for (other, thread) in s.threads.iter_mut().enumerate().filter(|(other, _)| *other != i) {
                    thread.awaited = self.is_awaited(other, thread);
                }
                s.threads[i].owes = 0;
                s.threads[i].pc = Pc::Grace;
            }
            Pc::Grace if s.threads.iter().any(|thread| thread.awaited) => return None,
            Pc::Grace => s.threads[i].pc = Pc::Change,
            _ => {
                s.shared.freed = true;
                s.done(i);
            }
        }
        Some(())
    }

    /// Returns whether a thread may be in an unlinked table: a fault in its section, or a walk inside the shadow's
    /// count.
    fn is_awaited(&self, i: usize, thread: &Thread) -> bool {
        match self.op(thread, i) {
            Some(Op::Access { .. } | Op::Near { .. }) if !self.has(Bug::FreedBesideFault) => {
                !matches!(thread.pc, Pc::Start | Pc::Wait)
            }
            Some(Op::Access { .. } | Op::Near { .. }) | None => false,
            Some(_) if self.has(Bug::FreedBesideWalk) => false,
            Some(_) => matches!(thread.pc, Pc::ReadRow | Pc::Note | Pc::Edit | Pc::Noted),
        }
    }
}
