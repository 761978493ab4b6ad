//! Operations of L1: it writes its table, flushes, enters L2. And a flush of the shadow, which an entry carries out.

use super::program::{Nested, Op};
use super::shadow::{Place, SHADOW, Tree, Word};
use super::steps::{Flush, L2, Pc, State, Thread};
use crate::bug::Bug;

impl Nested {
    /// One step. `None`: it waits.
    pub(super) fn l1(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        match op {
            Op::Store { key, t } => s.shared.store(key, t),
            Op::Flush => {
                s.shared.vcpus[i].in_l2 = false;
                s.shared.vcpus[i].pending = Some(s.shared.newest);
                s.shared.forgets_t(i, s.shared.vcpus[i].key);
            }
            Op::Leave => s.shared.vcpus[i].in_l2 = false,
            Op::Enter { key } => return self.enter(s, i, key),
            Op::Broadcast => {
                self.broadcast(s, i);
                return Some(());
            }
            op => unreachable!("{op:?} is L0's"),
        }
        s.done(i);
        Some(())
    }

    /// A flush that must not wait for the entries of other vCPUs, because they are in L2 and stay there.
    fn broadcast(&self, s: &mut State, i: usize) {
        match s.threads[i].pc {
            Pc::Start => {
                s.shared.vcpus[i].in_l2 = false;
                s.shared.since[i] = 1 << s.shared.t[s.shared.key as usize];
                s.threads[i].pc = Pc::Begin;
                if self.has(Bug::BroadcastDeferred) {
                    let newest = s.shared.newest;
                    s.shared.vcpus.iter_mut().for_each(|vcpu| vcpu.pending = Some(newest));
                    s.threads[i].pc = Pc::Entered;
                }
            }
            Pc::Entered => {
                let key = s.shared.key;
                let since = core::mem::take(&mut s.shared.since[i]);
                s.shared.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed[key as usize] &= since);
                s.done(i);
            }
            _ => self.flush(s, i, Op::Broadcast, Pc::Entered),
        }
    }

    /// The vCPU enters L2 after its pending flush.
    fn enter(&self, s: &mut State, i: usize, key: u8) -> Option<()> {
        let newest = s.shared.newest;
        match s.threads[i].pc {
            Pc::Start => {
                let vcpu = &mut s.shared.vcpus[i];
                if !vcpu.known || vcpu.key != key {
                    vcpu.pending = (!self.has(Bug::FirstEntryUnflushed)).then_some(newest);
                    (vcpu.known, vcpu.key) = (true, key);
                    s.shared.forgets_t(i, key);
                } else if vcpu.allowed[key as usize] == 0 {
                    s.shared.forgets_t(i, key);
                }
                s.threads[i].pc = if s.shared.vcpus[i].refused { Pc::Comeback } else { Pc::Enter };
            }
            Pc::Comeback => {
                Self::comeback(s, i);
                s.threads[i].pc = Pc::Enter;
            }
            Pc::Enter if s.shared.key != key => {
                // The shadow of another root: recycle it when no vCPU is in it.
                let enters = |thread: &Thread| thread.pc == Pc::Entered || Self::is_in_flush(thread.pc);
                let vcpus = &s.shared.vcpus[..s.shared.vcpu_count];
                if vcpus.iter().any(|vcpu| vcpu.in_l2) || s.threads.iter().any(enters) {
                    return None;
                }
                s.shared.key = key;
                // As built, leaves that the other root also has may stay.
                let flush = if self.fresh { Flush::Revalidate } else { Flush::Zap };
                (s.threads[i].flush, s.threads[i].pc) = (flush, Pc::Begin);
            }
            Pc::Enter => {
                let under_way = s.shared.places.iter().filter(|place| place.listed && place.shadow);
                let begun = under_way.map(|place| place.number).max();
                match s.shared.vcpus[i].pending {
                    None => s.threads[i].pc = Pc::Entered,
                    Some(_)
                        if self.has(Bug::CoalescedWithOlder) && (begun.is_some() || s.shared.flushed > 0) =>
                    {
                        if begun.is_some() {
                            return None;
                        }
                        s.threads[i].pc = Pc::Entered;
                    }
                    // A flush that began after this request serves both when it has ended.
                    Some(asked) if s.shared.flushed > asked => s.threads[i].pc = Pc::Entered,
                    // As built, one at a time.
                    Some(_) if self.fresh && begun.is_some() && !self.has(Bug::CoalescedUnwaited) => {
                        return None;
                    }
                    Some(asked) if begun > Some(asked) => {
                        if !self.has(Bug::CoalescedUnwaited) {
                            return None;
                        }
                        s.threads[i].pc = Pc::Entered;
                    }
                    Some(_) => s.threads[i].pc = Pc::Begin,
                }
            }
            Pc::Entered => {
                let root = s.shared.root;
                let vcpu = &s.shared.vcpus[i];
                if self.fresh && vcpu.pending.is_some() && !self.has(Bug::ServedUnforgotten) {
                    // Its own TLB must forget even if another vCPU's flush served it.
                    s.shared.forget_dropped(i);
                }
                let vcpu = &mut s.shared.vcpus[i];
                (vcpu.pending, vcpu.in_l2, vcpu.root) = (None, true, root);
                s.done(i);
            }
            _ => self.flush(s, i, Op::Enter { key }, Pc::Entered),
        }
        Some(())
    }

    /// A flush of the shadow removes every leaf that T no longer has.
    pub(super) fn flush(&self, s: &mut State, i: usize, op: Op, back: Pc) {
        match s.threads[i].pc {
            Pc::Begin => {
                let number = s.shared.announce([SHADOW]);
                s.shared.places[i] =
                    Place { listed: true, unflushed: true, number, shadow: true, ..Place::default() };
                s.threads[i].pc = Pc::Load;
                if self.drops && !matches!(op, Op::Access { .. }) {
                    assert_eq!(s.shared.root, 0, "there are two trees");
                    s.shared.root = 1;
                    s.shared.trees[1] = Tree { upper: Word::Hole(number), leaf: Word::Hole(0), row: 0 };
                    (s.threads[i].owes, s.threads[i].pc) = (L2, Pc::Settle);
                    if self.has(Bug::DroppedWithEntries) {
                        s.shared.heads = [false; 2];
                    }
                }
            }
            Pc::Head => {
                if self.has(Bug::RecycledUnflushed) && s.threads[i].flush == Flush::Zap {
                    s.threads[i].owes = 0;
                }
                s.threads[i].pc = Pc::Settle;
            }
            Pc::Settle if self.fresh => self.settle_built(s, i, op),
            Pc::Settle => {
                if self.has(Bug::FlushRemovesFirst) {
                    self.remove(s, i);
                }
                self.settle(s, i);
            }
            Pc::Kick(vcpu) => self.kick(s, i, vcpu),
            Pc::Remove => {
                self.remove(s, i);
                s.threads[i].pc = Pc::End;
            }
            Pc::End => {
                let number = s.shared.places[i].number;
                s.shared.places[i] = Place::default();
                // A flush of one page for a fault does not count as one of the whole shadow.
                if !matches!(op, Op::Access { .. }) {
                    s.shared.flushed = s.shared.flushed.max(number);
                }
                if self.fresh && matches!(op, Op::Broadcast) {
                    s.shared.settled = s.shared.settled.max(s.threads[i].row);
                }
                s.threads[i].row = 0;
                s.threads[i].flush = Flush::Revalidate;
                s.threads[i].pc = back;
            }
            _ => self.visit(s, i, op),
        }
    }

    /// Returns whether a thread is in a flush.
    pub(super) fn is_in_flush(pc: Pc) -> bool {
        use Pc::{Begin, Edit, End, Head, Kick, Load, Note, Noted, ReadRow, Remove, Settle};
        matches!(pc, Begin | Load | ReadRow | Note | Edit | Noted | Head | Settle | Kick(_) | Remove | End)
    }
}
