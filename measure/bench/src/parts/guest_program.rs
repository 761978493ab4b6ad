//! A guest that uses pages again and again, and the vCPU that runs it: computes, uses a page, answers kicks.
//!
//! ```text
//! in the guest   compute ─▶ use a page ── in the TLB ─────────────────────▶ its frame
//!                   ▲ kicked: answer  └── a miss: walk ─ leaf: remember ──▶ its frame
//!                                                  └─ none: leave, fault, enter, again
//! ```
//! Whether a frame is the page's still, each program knows ([`Program::judge`]), by what it keeps in atomics of `core`'s: what
//! checks need costs no time in any world.

use crate::parts::point::Check;
pub use crate::parts::processor::NoFrame;
use crate::parts::processor::{OfProcessor, Tlb, walk};
use crate::parts::sim_host::SimHost;
use crate::world::{compute, guest, pause};
use slat::table::formats::Ept4;
use slat::{
    Access, Emulate, Fault, FaultError, Gfn, Host, HostError, Idle, InGuest, Next, Pfn, Resume, Translations,
    Vcpu,
};

/// The next step of a guest.
pub enum Step {
    /// Computes, then loads from a page.
    Load(Gfn),
    /// The same for a store.
    Store(Gfn),
    /// Waits a little for another CPU.
    Wait,
    /// Leaves the guest, to the host thread that runs it.
    Leave,
}

/// The verdict on the use of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// In order.
    Right,
    /// Of one that had been taken away: a flush came too late, or not at all.
    Stale,
    /// Of one that was never the page's.
    Foreign,
}

/// The program of a guest, and the errors that it detects.
pub trait Program {
    /// The next step.
    fn next(&mut self) -> Step;
    /// It has used frame `pfn` as page `gfn`, and its vCPU has not answered any flush since it found it there.
    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use;
    /// Whether there may be no memory at `gfn`. The guest goes on past it.
    fn may_be_absent(&self, gfn: Gfn) -> bool {
        let _ = gfn;
        false
    }
    /// Has a fault served, for this want of a frame. A program that looks at its faults does so here.
    fn fault<H: Host>(
        &mut self,
        vcpu: &mut Vcpu<'_, Ept4, H>,
        idle: &mut Idle,
        fault: Fault,
        _why: NoFrame,
    ) -> Result<Next, FaultError> {
        vcpu.fault(idle, fault)
    }
}

/// The counts of a vCPU and its guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Pages used.
    pub uses: u64,
    /// Of these, [`Use::Stale`].
    pub stale: u64,
    /// Of these, [`Use::Foreign`].
    pub foreign: u64,
    /// Faults that mapped a page.
    pub mapped: u64,
    /// Faults that found one mapped meanwhile.
    pub spurious: u64,
    /// Exits for want of memory.
    pub absent: u64,
    /// Of these, where there had to be some.
    pub astray: u64,
}

impl Seen {
    /// Both together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            uses: self.uses + other.uses,
            stale: self.stale + other.stale,
            foreign: self.foreign + other.foreign,
            mapped: self.mapped + other.mapped,
            spurious: self.spurious + other.spurious,
            absent: self.absent + other.absent,
            astray: self.astray + other.astray,
        }
    }

    /// Faults of all kinds.
    pub fn faults(&self) -> u64 {
        self.mapped + self.spurious + self.absent
    }

    /// That guests had what is theirs, and nothing else.
    pub fn checks(&self) -> [Check; 3] {
        [
            Check::all(
                "no guest used a frame after it had been taken away",
                self.uses - self.stale,
                self.uses,
            ),
            Check::all("guests used no frames but their pages'", self.uses - self.foreign, self.uses),
            Check::all("no memory only where there is none", self.absent - self.astray, self.absent),
        ]
    }
}

/// A vCPU.
pub struct Cpu<'vm, H: Host = SimHost, T = Tlb> {
    vcpu: Vcpu<'vm, Ept4, H>,
    tlb: T,
    /// The guest's computation before it uses a page, in nanoseconds.
    pub compute_ns: u64,
    /// The time to leave the guest for a fault and to enter it again.
    pub exit_ns: u64,
    /// Its counts.
    pub seen: Seen,
}

impl<'vm, H: Host, T: OfProcessor> Cpu<'vm, H, T> {
    /// A vCPU with an empty TLB.
    pub fn new(vcpu: Vcpu<'vm, Ept4, H>, tlb: T) -> Self {
        Self { vcpu, tlb, compute_ns: 0, exit_ns: 0, seen: Seen::default() }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.vcpu.id().0
    }

    /// Runs the guest until it leaves by itself.
    pub fn run(&mut self, idle: &mut Idle, program: &mut impl Program) -> Result<(), String> {
        let mut again = None;
        while let Some((gfn, access, why)) = self.run_to_fault(idle, program, again) {
            compute(self.exit_ns);
            let fault = Fault { gpa: gfn.gpa(), access };
            again = Some((gfn, access));
            match program.fault(&mut self.vcpu, idle, fault, why) {
                Ok(Next::Resume(Resume::Mapped(_) | Resume::Fixed)) => self.seen.mapped += 1,
                // No memory: said by the VM's slots, or by a host that has slots of its own.
                Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly))
                | Err(FaultError::Host(HostError::Fault)) => {
                    again = None;
                    self.seen.absent += 1;
                    self.seen.astray += u64::from(!program.may_be_absent(gfn));
                }
                Ok(_) => self.seen.spurious += 1,
                Err(error) => return Err(format!("at {}: {error}", fault.gpa)),
            }
        }
        Ok(())
    }

    /// In the guest until an access finds no frame: to which page, and why; `None`: until the guest leaves. It begins with the
    /// page `again`, whose turn it still is.
    fn run_to_fault(
        &mut self,
        idle: &mut Idle,
        program: &mut impl Program,
        mut again: Option<(Gfn, Access)>,
    ) -> Option<(Gfn, Access, NoFrame)> {
        let memory = self.vcpu.vm().tables();
        let mut inside = self.vcpu.enter(idle, &mut self.tlb).poll();
        loop {
            let (gfn, access) = if let Some(again) = again.take() {
                again
            } else {
                let next = match program.next() {
                    Step::Load(gfn) => (gfn, Access::Read),
                    Step::Store(gfn) => (gfn, Access::Write),
                    Step::Wait => {
                        pause();
                        compute_inside(&mut inside, &mut self.tlb, 0);
                        continue;
                    }
                    Step::Leave => return None,
                };
                compute_inside(&mut inside, &mut self.tlb, self.compute_ns);
                next
            };
            let root = inside.root();
            let used = self.tlb.with(|tlb| {
                let pfn = if let Some(pfn) = tlb.find(gfn, access) {
                    pfn
                } else {
                    // SAFETY: in guest mode, and with every flush that is answered or broadcast `tables` forgets.
                    let found = unsafe { walk(memory, root, &mut tlb.tables, (gfn, access)) };
                    tlb.remember(gfn, found?, access)
                };
                Ok(program.judge(gfn, pfn))
            });
            let used = match used {
                Ok(used) => used,
                Err(why) => return Some((gfn, access, why)),
            };
            self.seen.uses += 1;
            self.seen.stale += u64::from(used == Use::Stale);
            self.seen.foreign += u64::from(used == Use::Foreign);
        }
    }
}

/// The guest computes for so long, and whatever kicks take.
fn compute_inside(inside: &mut InGuest<'_>, tlb: &mut impl Translations, ns: u64) {
    let mut left = ns;
    loop {
        left = guest(left, || inside.kicked());
        if inside.kicked() {
            inside.answer(tlb);
        }
        if left == 0 {
            return;
        }
    }
}
