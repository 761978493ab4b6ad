//! The shootdown: `Tlb::shoot_down`, against vCPUs that enter the guest, leave it and answer kicks.
//!
//! ```text
//! flusher                                vCPU
//! number: generation + 1, its range      enter: in guest; catch up; again, if the generation has moved
//! kick vCPUs in guest and behind     catch up: the kick is off; generation; flush; seen := generation
//! wait for those                         load the root; the guest runs
//! ```
//! In other scenarios a flush is one step: every vCPU is in the guest, and answers at once. In these scenarios a vCPU
//! leaves a given number of times and then stays in the guest forever, so a lost kick is a flusher that waits forever.
//! A vCPU out of the guest keeps its caches and does not use them.
//!
//! A software vCPU polls for kicks. A vCPU on hardware gets an interrupt. The interrupt brings the guest out; it is
//! lost if the vCPU is out, unless its processor holds interrupts. So the last step of an entry (`Ready::go`) holds
//! interrupts, and then checks for a kick.
//!
//! If hardware broadcasts, one step makes every TLB forget, including that of a vCPU out of the guest, without kicks. A
//! broadcast reloads no root, so flushes kick while a root is being replaced.

use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{Caches, Interrupts, Op, Pc, Shared, State, VcpuPc, VcpuTlb};

/// The flusher's part.
impl Scenario {
    /// The first step of a flush.
    pub(crate) fn first_of_flush(&self, shared: &Shared) -> Pc {
        match self.bug {
            _ if shared.tlb.broadcasts => Pc::LookForFlips,
            _ => self.first_of_kicks(shared),
        }
    }

    /// The same where hardware does not broadcast it.
    fn first_of_kicks(&self, shared: &Shared) -> Pc {
        match self.bug {
            _ if !shared.tlb.kicks => Pc::ShootDown(0),
            Some(Bug::ModesBeforeNumber) => Pc::Kick(0),
            _ => Pc::Number,
        }
    }

    /// One step of a flush. `None`: a vCPU has not answered yet.
    pub(crate) fn shoot_down(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        let (owed, generation) = (s.threads[i].flush.owed, s.threads[i].flush.generation);
        let last = s.shared.vcpu_count - 1;
        let early = self.bug == Some(Bug::ModesBeforeNumber);
        let kicks = s.threads[i].change.took_held && self.bug != Some(Bug::HeldBroadcast);
        let tlb = &mut s.shared.tlb;
        s.threads[i].pc = match s.threads[i].pc {
            Pc::LookForFlips if kicks => self.first_of_kicks(&s.shared),
            Pc::LookForFlips if tlb.flips == 0 || self.bug == Some(Bug::BroadcastBesideFlip) => Pc::Broadcast,
            Pc::LookForFlips => self.first_of_kicks(&s.shared),
            Pc::Broadcast => {
                for vcpu in 0..=last.into() {
                    if s.shared.tlb.runs(vcpu) || self.bug != Some(Bug::BroadcastToGuests) {
                        s.shared.forget(vcpu, owed, self.bug);
                    }
                }
                self.flushed(s, i, op);
                return Some(());
            }
            Pc::ShootDown(vcpu) => {
                s.shared.flush(vcpu as usize, owed, op == Op::ZapAll, self.bug);
                if vcpu == last {
                    self.flushed(s, i, op);
                    return Some(());
                }
                Pc::ShootDown(vcpu + 1)
            }
            Pc::Number => {
                tlb.generation += 1;
                s.threads[i].flush.generation = tlb.generation;
                Pc::RingClaim
            }
            // A reader that finds another number, or a write under way, forgets everything.
            Pc::RingClaim if tlb.ring_number.is_none() && self.bug != Some(Bug::RingShared) => Pc::Kick(0),
            Pc::RingClaim => {
                tlb.ring_number = None;
                Pc::RingWrite
            }
            Pc::RingWrite => {
                tlb.ring_gfns = owed;
                Pc::RingNumber
            }
            Pc::RingNumber => {
                tlb.ring_number = Some(generation);
                if early { Pc::Await(0) } else { Pc::Kick(0) }
            }
            Pc::Kick(vcpu) => {
                let behind =
                    if early { tlb.vcpus[vcpu as usize].in_guest } else { tlb.behind(vcpu, generation) };
                if behind {
                    tlb.vcpus[vcpu as usize].kick(tlb.interrupts && self.bug == Some(Bug::InterruptedFirst));
                    s.threads[i].flush.kicked |= 1 << vcpu;
                }
                match vcpu == last {
                    _ if behind && tlb.interrupts => Pc::Interrupt(vcpu),
                    false => Pc::Kick(vcpu + 1),
                    true if early => Pc::Number,
                    true => Pc::Await(0),
                }
            }
            // Here the number comes in time.
            Pc::Interrupt(vcpu) => {
                tlb.vcpus[vcpu as usize].kick(self.bug != Some(Bug::InterruptedFirst));
                if vcpu == last { Pc::Await(0) } else { Pc::Kick(vcpu + 1) }
            }
            Pc::Await(vcpu) => {
                let asked = !early || s.threads[i].flush.kicked >> vcpu & 1 != 0;
                if asked && tlb.behind(vcpu, generation) && self.bug != Some(Bug::KicksAndGoesOn) {
                    return None;
                }
                if vcpu == last {
                    (s.threads[i].flush.generation, s.threads[i].flush.kicked) = (0, 0);
                    self.flushed(s, i, op);
                    return Some(());
                }
                Pc::Await(vcpu + 1)
            }
            pc => unreachable!("{pc:?} in a flush"),
        };
        Some(())
    }
}

/// The vCPU's part.
impl Scenario {
    /// One step of a vCPU. `None`: it runs its guest.
    pub(crate) fn vcpu(&self, s: &mut State, index: usize) -> Option<()> {
        let generation = s.shared.tlb.generation;
        let (bug, interrupts) = (self.bug, s.shared.tlb.interrupts);
        let mut vcpu = s.shared.tlb.vcpus[index];
        let VcpuTlb { now, seen, entering, .. } = vcpu;
        // The step after `catch_up`.
        let back = match bug {
            Some(Bug::RootBeforeCatchUp) => VcpuPc::Guest,
            _ if entering => VcpuPc::EnterAgain,
            _ => VcpuPc::ReloadRoot,
        };
        let begins = match bug {
            Some(Bug::KickClearedLate) => VcpuPc::Generation,
            Some(Bug::RootBeforeCatchUp) => VcpuPc::ReloadRoot,
            _ => VcpuPc::CatchUp,
        };
        let flushes = if now == seen { back } else { VcpuPc::Flush };
        // The step after the last check of an entry.
        let ready = self.ready(interrupts);
        let last = if bug == Some(Bug::LookedBeforeHeld) { VcpuPc::Hold } else { VcpuPc::Guest };
        vcpu.pc = match vcpu.pc {
            VcpuPc::Guest if interrupts && vcpu.interrupts == Interrupts::Pending => {
                vcpu.leave();
                VcpuPc::Enter
            }
            VcpuPc::Guest if interrupts => return None,
            VcpuPc::Guest if vcpu.kicked => {
                vcpu.entering = false;
                begins
            }
            VcpuPc::Guest => return None,
            VcpuPc::Enter if bug == Some(Bug::HeldBeforeEntry) && !vcpu.entering => {
                (vcpu.held, vcpu.entering) = (s.shared.held.current(), true);
                VcpuPc::Enter
            }
            VcpuPc::Enter => {
                vcpu.in_guest = bug != Some(Bug::EnterLooksFirst);
                vcpu.entering = true;
                if bug == Some(Bug::EnterWithoutCatchUp) { VcpuPc::ReloadRoot } else { begins }
            }
            VcpuPc::CatchUp => {
                vcpu.kicked = false;
                if bug == Some(Bug::KickClearedLate) { flushes } else { VcpuPc::Generation }
            }
            VcpuPc::Generation => {
                vcpu.now = generation;
                match bug {
                    Some(Bug::KickClearedLate) => VcpuPc::CatchUp,
                    _ if generation == seen => back,
                    _ => VcpuPc::Flush,
                }
            }
            VcpuPc::Flush => {
                // The ranges from the one after `seen` on: no more than the last can be in the ring.
                let tlb = &s.shared.tlb;
                let named = tlb.ring_number == Some(now) && now - seen == 1;
                if named || bug == Some(Bug::RingUnchecked) {
                    s.shared.forget(index, tlb.ring_gfns, bug);
                } else {
                    let caches = &mut s.shared.vcpus[index];
                    *caches = Caches { root: caches.root, ..Caches::default() };
                }
                VcpuPc::Seen
            }
            VcpuPc::Seen => {
                vcpu.seen = now;
                back
            }
            VcpuPc::EnterAgain if bug == Some(Bug::EnterLooksFirst) => {
                vcpu.in_guest = true;
                VcpuPc::ReloadRoot
            }
            VcpuPc::EnterAgain if generation == seen => VcpuPc::ReloadRoot,
            VcpuPc::EnterAgain => VcpuPc::CatchUp,
            VcpuPc::ReloadRoot => {
                if s.shared.vcpus[index].root != s.shared.root {
                    s.shared.vcpus[index] = Caches { root: s.shared.root, ..Caches::default() };
                }
                match bug {
                    Some(Bug::RootBeforeCatchUp) => VcpuPc::CatchUp,
                    Some(Bug::HeldBeforeEntry) => ready,
                    _ if s.shared.held.hardware => VcpuPc::Current,
                    _ => ready,
                }
            }
            VcpuPc::Current => {
                vcpu.held = s.shared.held.current();
                ready
            }
            VcpuPc::Hold => {
                vcpu.interrupts = Interrupts::Held;
                match bug {
                    Some(Bug::LookedBeforeHeld | Bug::GoUnlooked) => VcpuPc::Guest,
                    _ => VcpuPc::Go,
                }
            }
            VcpuPc::Go if vcpu.kicked => {
                vcpu.leave();
                VcpuPc::Enter
            }
            VcpuPc::Go => last,
        };
        s.shared.tlb.vcpus[index] = vcpu;
        Some(())
    }

    /// Returns the step after the root was loaded and the held frame was checked.
    fn ready(&self, interrupts: bool) -> VcpuPc {
        match self.bug {
            Some(Bug::LookedBeforeHeld) if interrupts => VcpuPc::Go,
            _ if interrupts => VcpuPc::Hold,
            _ => VcpuPc::Guest,
        }
    }

    /// `Tlb::leave`.
    pub(crate) fn vcpu_leaves(s: &mut State, index: usize) {
        let vcpu = &mut s.shared.tlb.vcpus[index];
        vcpu.leave();
        vcpu.leaves -= 1;
    }
}
