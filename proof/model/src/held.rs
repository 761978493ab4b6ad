//! A frame that the VMM, or hardware, uses beside the tables: models `held.rs` and `notify/holds.rs`.
//!
//! ```text
//! hold, refresh                          invalidation k
//! epoch; slot                            listed, numbered, announced
//! the page is published; asking          over the page, or the frame?  taken; hardware: a flush is owed
//! stamp: nothing covers it               walk, flush
//! host                                   a use has begun?  wait for its end
//! asking → valid; if taken: again        the host changes; end
//!
//! use                                    vCPU
//! inside                                 in the guest; catch up
//! valid?  the frame; else refused        valid?  the frame, for hardware; else none
//! outside                                last look for a kick
//! ```
//! The model has one such frame. It is like a leaf: everything that takes a leaf away takes it. So the stamp only has
//! to find the invalidations that began before the page was published; later ones find the page.
//!
//! # Steps that are one here and several in the engine
//! * *An invalidation reads which page is held, and marks it taken*: in the engine the held page may change in between,
//!   and is then taken without need.
//! * *A use that is refused ends*: it does nothing in between.

use crate::active::Look;
use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{
    Bad, EPOCH, HeldState, NONE, Op, PAGES, Page, Pc, Range, Shared, Span, State, Why, frame,
};

impl Shared {
    /// Checks that a used frame is the one that the host and the slots say.
    pub(crate) fn held_is_current(&self) -> Option<Bad> {
        let running = (0..self.vcpu_count.into()).filter(|&vcpu| self.tlb.runs(vcpu));
        let used = running.filter_map(|vcpu| self.tlb.vcpus[vcpu].held).chain(self.held.using);
        let stale = |frame: u8| {
            let page = frame % PAGES;
            !self.alive(frame)
                || self.memslots[self.held.gfn as usize] != page
                || self.held.write && !self.writable[page as usize]
        };
        used.into_iter().any(stale).then_some(Bad::StaleHeld)
    }
}

impl Scenario {
    /// One step of a thread that holds frame `gfn`, and uses it once unless hardware does. `None`: it waits.
    pub(crate) fn hold(&self, s: &mut State, i: usize, gfn: u8, write: bool) -> Option<()> {
        let thread = s.threads[i];
        let first_look = if self.bug == Some(Bug::HeldUnconfirmed) { Pc::Resolve } else { Pc::ScanRegion };
        match thread.pc {
            Pc::Start if s.shared.held.state == HeldState::Valid => self.held(s, i),
            Pc::Start => {
                (s.shared.held.gfn, s.shared.held.write) = (gfn, write);
                s.threads[i].pc = Pc::Stamp;
            }
            Pc::Stamp => {
                s.threads[i].fault.epoch = s.shared.lines[EPOCH].newest;
                s.threads[i].fault.hva = s.shared.memslots[gfn as usize];
                s.threads[i].fault.large = false;
                match (s.threads[i].fault.hva, self.bug) {
                    (NONE, _) => s.done(i),
                    (_, Some(Bug::HeldPublishedLate)) => {
                        s.shared.held.state = HeldState::Asking;
                        s.threads[i].pc = first_look;
                    }
                    _ => s.threads[i].pc = Pc::HoldPublish,
                }
            }
            Pc::HoldPublish => {
                s.shared.held.hva = thread.fault.hva;
                if self.bug == Some(Bug::HeldPublishedLate) {
                    s.threads[i].pc = Pc::HoldValid;
                } else {
                    s.shared.held.state = HeldState::Asking;
                    s.threads[i].pc = first_look;
                }
            }
            Pc::ScanRegion | Pc::LookRegion | Pc::ScanEpoch | Pc::LookEpoch => match self.look(s, i, gfn) {
                Look::Unfinished => {}
                Look::Covered | Look::Moved => s.threads[i].pc = Pc::Stamp,
                Look::Confirmed => s.threads[i].pc = Pc::Resolve,
            },
            Pc::Resolve if write && s.shared.locked != NONE => return None,
            Pc::Resolve => {
                let at = thread.fault.hva as usize;
                s.shared.writable[at] |= write;
                let pfn = frame(s.shared.frames[at], thread.fault.hva);
                s.threads[i].fault.page = Some(Page { pfn, write, large: false });
                let late = self.bug == Some(Bug::HeldPublishedLate);
                s.threads[i].pc = if late { Pc::HoldPublish } else { Pc::HoldValid };
            }
            Pc::HoldValid => {
                let asked =
                    s.shared.held.state == HeldState::Asking || self.bug == Some(Bug::HeldTakenMissed);
                let page = s.threads[i].fault.page.take().expect("the host answered");
                if asked {
                    (s.shared.held.state, s.shared.held.pfn) = (HeldState::Valid, page.pfn);
                    self.held(s, i);
                } else {
                    s.threads[i].pc = Pc::Stamp;
                }
            }
            Pc::HoldEnter if self.bug == Some(Bug::HeldLookedFirst) => {
                s.shared.held.using = s.shared.held.current();
                s.threads[i].pc = Pc::HoldUse;
            }
            Pc::HoldEnter => {
                s.shared.held.inside = true;
                s.threads[i].pc = Pc::HoldUse;
            }
            Pc::HoldUse if self.bug == Some(Bug::HeldLookedFirst) => {
                s.shared.held.inside = true;
                s.threads[i].pc = Pc::HoldLeave;
            }
            Pc::HoldUse => {
                s.shared.held.using = s.shared.held.current();
                s.threads[i].pc = Pc::HoldLeave;
                if s.shared.held.using.is_none() {
                    s.shared.held.inside = false;
                    s.threads[i].pc = Pc::Stamp;
                }
            }
            Pc::HoldLeave => {
                (s.shared.held.inside, s.shared.held.using) = (false, None);
                s.done(i);
            }
            pc => unreachable!("{pc:?} in a hold"),
        }
        Some(())
    }

    /// Uses the valid frame.
    #[allow(clippy::unused_self, reason = "a step like the others")]
    fn held(&self, s: &mut State, i: usize) {
        if s.shared.held.hardware {
            s.done(i);
        } else {
            (s.threads[i].fault.hva, s.threads[i].fault.epoch, s.threads[i].pc) = (NONE, 0, Pc::HoldEnter);
        }
    }

    /// Takes the frame back if the range of `op` has it.
    pub(crate) fn take_held(&self, s: &mut State, i: usize, op: Op) {
        let held = s.shared.held;
        let covered = match op {
            _ if held.gfn == NONE => false,
            Op::Invalidate { range: Range::Hvas(_), why: Why::ChangePte, .. } => {
                held.hva == s.threads[i].change.telling
            }
            Op::Invalidate { why, .. } if why.withdraws() && !held.write => false,
            Op::Invalidate { range: Range::Hvas(hvas), .. } => hvas.has(held.hva),
            Op::Invalidate { range: Range::Gfns(gfns), .. } => gfns.has(held.gfn),
            Op::Commit { gfns, .. } => s.threads[i].commit.takes && gfns.has(held.gfn),
            _ => false,
        };
        let before = held.state == HeldState::Taken && self.bug == Some(Bug::HeldUnadopted);
        if !covered || before {
            return;
        }
        if self.bug != Some(Bug::HeldKept) {
            s.shared.held.state = HeldState::Taken;
        }
        s.threads[i].change.took_held = true;
        if held.hardware && self.bug != Some(Bug::HeldUnflushed) {
            s.threads[i].owe(Span::new(held.gfn, held.gfn + 1));
        }
    }

    /// Returns whether an invalidation that took the frame back must wait for the end of a use.
    pub(crate) fn awaits_use(&self, s: &State, i: usize) -> bool {
        s.threads[i].change.took_held && s.shared.held.inside && self.bug != Some(Bug::HeldUnwaited)
    }
}
