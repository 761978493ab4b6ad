//! The fault path, from the guest's access to the installed leaf.
//!
//! ```text
//! Vcpu::fault
//!  │  ensure one spare page for each level
//!  ▼
//! attempt ───────────────────────────── one section of the read side, no lock, no sleep
//!  │  walk down                          leaf present? ─▶ `present`: spurious, or permission by one CAS
//!  │                                      leaf withdrawn? ─▶ `withdrawn`: restored by one CAS
//!  │  the steps of `pursuit`             no memslot? ─▶ MMIO, remembered in the table (`mmio`)
//!  │                                      covered by an invalidation? ─▶ again after its end
//!  │                                      the host would sleep? ─▶ `ask`: the same steps, outside the section
//!  ▼
//! install: link missing tables; hole not newer than the stamp? CAS hole → leaf
//! ```
//! If the slot logs writes, the fault maps only 4 KiB, and without write permission unless it is a store. It logs a
//! write permission after it has granted it ([`dirty`](crate::guest_space::GuestSpace::dirty)). A store does not begin while
//! its vCPU's ring is full.
//!
//! After any concurrent change, a CAS or the comparison with the stamp fails, and the fault retries with a new stamp.
//! The check is precise to one entry. [`crate::notify`] describes the invalidation's side.

mod access;
pub(crate) mod leaf;
mod mmio;
mod next;
mod pending;
mod population;
mod prefault;
mod present;
pub(crate) mod pursuit;
mod quick;
mod visibility;
mod withdrawn;

use crate::active::{Epoch, Listed};
use crate::dirty_log::ring::Ring;
use crate::sync::{Count, RetryCause, Seat, Shared};
use crate::table::{At, Kind, Reached};
use crate::trace::{FaultResult, TraceEvent};
use crate::{
    Access, Format, Gpa, Host, HostError, HostPage, Idle, Level, NoMemory, Perms, Span, Vcpu, Vm, Walk, Word,
};
use next::Done;
pub use next::{Emulate, FaultError, Leave, Next, Resume};
pub use population::Population;
pub use prefault::Prefault;
use pursuit::{Again, Answer, Pursuer, Pursuit, Stop, Wanted};

/// A guest access that the hardware could not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The guest-physical address.
    pub gpa: Gpa,
    /// The kind of access.
    pub access: Access,
}

/// How one attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done(Done),
    /// Something changed: retry.
    Retry,
    /// A wide invalidation began or ended before the host was asked. No work was lost: retry.
    Moved,
    /// An invalidation covers the frame: retry after its end.
    Covered,
    /// The host must be asked in a way that may sleep.
    Ask,
    /// The fault has unmapped the old page to make room for the host's new one: retry.
    Replaced,
}

/// The origin of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The guest, which is about to use the page: as private or shared memory, if the guest said so.
    Guest { private: Option<bool> },
    /// [`Vcpu::prefault`], ahead of the guest.
    Prefault,
}

impl<'vm, F: Format, H: Host> Vcpu<'vm, F, H> {
    /// Handles a fault. May sleep in the host. Any number of vCPUs may fault at once. A fault waits for no other fault,
    /// and only for an invalidation that covers its own frame. That wait has no bound: while invalidations of the frame
    /// follow each other without a gap, the fault waits (rule 13 of [`crate::notify`]).
    ///
    /// # Errors
    /// [`FaultError`] if the host has no page, or memory for a table is missing.
    #[inline]
    pub fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Next, FaultError> {
        if self.quick(fault) {
            return Ok(Next::Resume(Resume::Mapped(Level::K4)));
        }
        let done = self.fault_in_full(idle, fault, By::GUEST);
        self.answered(fault, done)
    }

    /// Reports a fault that failed. Otherwise returns the next step.
    #[inline(always)]
    fn answered(&self, fault: Fault, done: Result<Done, FaultError>) -> Result<Next, FaultError> {
        match done {
            Ok(done) => Ok(done.next(self.token)),
            Err(error) => {
                self.observed(fault, FaultResult::Failed);
                Err(error)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn fault_in_full(&mut self, idle: &mut Idle, fault: Fault, by: By) -> Result<Done, FaultError> {
        // Before everything else: reclaiming a table flushes, and the flush waits for vCPUs in the guest.
        let seat = self.awake();
        // Checked once, because one fault pushes at most one page.
        if fault.access == Access::Write && self.ring.is_some_and(Ring::is_full) {
            self.observed(fault, FaultResult::Deferred);
            return Ok(Done::RingFull);
        }
        let mut faulting = Faulting { vcpu: self, idle, fault, by, seat, asked: false };
        let done = faulting.pursue()?;
        if done == Done::Pending {
            return self.pending(idle, fault, by);
        }
        self.observed(fault, done.into());
        Ok(done)
    }

    /// Makes one attempt, without sleeping.
    #[inline]
    fn attempt(
        &mut self,
        idle: &mut Idle,
        fault: Fault,
        (by, seat): (By, &'vm Seat),
    ) -> Result<Outcome, FaultError> {
        let gfn = fault.gpa.gfn();
        let vm = self.vm;
        if gfn.0 >> F::FRAME_BITS != 0 {
            return Ok(self.without_memslot(by));
        }
        let walk = Walk::<F, H, Shared>::on_seat(vm, self.space, idle, seat);
        let at = walk.descend(gfn);
        if let Some(private) = self.disagrees(&walk, at, &by.wanted(fault)) {
            return Ok(Outcome::Done(Done::MemoryFault { private }));
        }
        Ok(match at.word.kind::<F>(at.level) {
            Kind::Leaf | Kind::Table(_) => self.present(&walk, at, fault)?,
            Kind::Withdrawn => self.withdrawn(&walk, at, fault, by)?,
            Kind::Hole(_) | Kind::Mmio(_) | Kind::Frozen(_) => self.absent(&walk, at, fault, by)?,
        })
    }

    /// Maps the page at `at`, which maps none, unless the host would sleep.
    #[inline(never)]
    fn absent<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        mut at: At<'w>,
        fault: Fault,
        by: By,
    ) -> Result<Outcome, NoMemory> {
        let (vm, gfn) = (self.vm, fault.gpa.gfn());
        let start = vm.active.epoch();
        if at.word.is_mmio() {
            let Some(now) = self.not_mmio(at) else { return Ok(self.without_memslot(by)) };
            at = now;
        }
        let levels = (Level::K4, self.memo.reach);
        let pursuit = match self.pursue((start, by.wanted(fault)), walk, at, levels) {
            Ok(pursuit) => pursuit,
            Err(stop) => {
                if stop == Stop::NoMemslot {
                    // If no page for a table is left, the next fault looks the slot up again.
                    let _ = self.remember_mmio(walk, at, gfn, start);
                }
                return Ok(self.stopped(stop, by));
            }
        };
        let Some(answer) = pursuit.look::<F, _>(&vm.host) else { return Ok(Outcome::Ask) };
        let answer = self.allowed(answer);
        self.install(walk, at, by, answer)
    }

    /// The steps before the host is asked, for the page at the lowest entry `at`, and of the `levels` of a stamp.
    #[inline(always)]
    fn pursue(
        &mut self,
        (start, wanted): (Epoch, Wanted),
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        levels: (Level, Level),
    ) -> Result<Pursuit, Stop> {
        let sought = start.find(wanted, |gfn| self.memo.slot(walk, at, gfn))?;
        sought.stamp((&self.vm.active, &self.space.watched), levels, at.word)
    }

    fn stopped(&self, stop: Stop, by: By) -> Outcome {
        match stop {
            Stop::NoMemslot => self.without_memslot(by),
            Stop::Forbidden => self.emulated(Emulate::ReadOnly),
            Stop::OtherKind { private } => Outcome::Done(Done::MemoryFault { private }),
            Stop::Tracked => Outcome::Done(Done::Emulate(Emulate::Tracked)),
            Stop::Covered => Outcome::Covered,
            Stop::Moved => Outcome::Moved,
        }
    }

    #[inline(always)]
    fn observed(&self, Fault { gpa, access }: Fault, result: FaultResult) {
        self.vm.host.observe(TraceEvent::Fault { vcpu: self.id, gfn: gpa.gfn(), access, result });
    }

    fn count_retry(&self, fault: Fault, cause: RetryCause) {
        self.vm.counts_retry(self.id, fault.gpa.gfn(), cause);
    }

    /// Asks the host outside any section, where it may sleep, and then installs (rule 3).
    #[cold]
    fn ask(
        &mut self,
        idle: &mut Idle,
        fault: Fault,
        (by, seat): (By, &'vm Seat),
        asked: &mut bool,
    ) -> Result<Outcome, FaultError> {
        let (vm, gfn) = (self.vm, fault.gpa.gfn());
        let (levels, watched) = ((Level::K4, self.memo.reach), &self.space.watched);
        let sought = vm.active.epoch().find(by.wanted(fault), |gfn| {
            self.memo.remembered(self.space, gfn).or_else(|| {
                let reading = self.space.memslots.read(&vm.reads, seat);
                self.memo.slot_in::<F, H>(vm, reading.published(), gfn)
            })
        });
        // If the attempt saw a newer hole, it has already raised the region's number to that hole's.
        let pursuit =
            match sought.and_then(|sought| sought.stamp((&vm.active, watched), levels, Word::OLDEST)) {
                Ok(pursuit) => pursuit,
                Err(stop) => return Ok(self.stopped(stop, by)),
            };
        if core::mem::replace(asked, true) {
            self.count_retry(fault, RetryCause::Asked);
        }
        let answer = match pursuit.ask::<F, _>(&vm.host, idle) {
            Ok(answer) => answer,
            Err(HostError::Pending) => {
                self.waiting.ever = true;
                self.token = vm.host.token(pursuit.hva());
                return Ok(Outcome::Done(Done::Pending));
            }
            Err(HostError::NeedsPage) => return Ok(Outcome::Done(Done::NeedsPage)),
            Err(error) => return Err(error.into()),
        };
        let walk = Walk::<F, H, Shared>::on_seat(vm, self.space, idle, seat);
        let at = walk.descend(gfn);
        if self.memo.slot(&walk, at, gfn) != Some(pursuit.slot) {
            // The slot may log writes by now, and the log would miss a leaf installed for the old slot.
            return Ok(Outcome::Retry);
        }
        let allowed = self.allowed(answer);
        let Kind::Leaf = at.word.kind::<F>(at.level) else {
            return Ok(self.install(&walk, at, by, allowed)?);
        };
        let logs = pursuit.slot.log_dirty && at.level > Level::K4;
        if F::decode(at.word).perms.allows(fault.access) || logs {
            // Another vCPU was faster; or the leaf must be split first.
            return Ok(Outcome::Retry);
        }
        // If the host has the page that is mapped, the leaf is upgraded. If the host has another page there, and sent no
        // invalidation, or if it cannot confirm its answer without sleeping, a retry installs that.
        if fault.access == Access::Write && self.upgraded(&answer, at).is_some() {
            match self.upgrade_to(&walk, at, fault, answer) {
                Outcome::Ask => {}
                outcome => return Ok(outcome),
            }
        }
        // Only as much as the host's page covers: the rest of a larger leaf stays.
        let level = allowed.page().level.min(at.level);
        drop(walk);
        vm.take_away(idle, self.space.id, Span::sized(gfn.base(level), level.pages()));
        Ok(Outcome::Replaced)
    }

    /// Rules 5 and 11. Spends the answer: replaces the hole by a leaf, by CAS from the word that was read.
    #[inline(always)]
    fn install<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        mut at: At<'w>,
        by: By,
        answer: Answer,
    ) -> Result<Outcome, NoMemory> {
        let (page, pursuit) = (answer.page(), answer.pursuit());
        let (gfn, access, slot) = (pursuit.gfn, pursuit.access, pursuit.slot);
        if answer.reaches_out() {
            // The first page of this vCPU that is larger than a region. The next stamp covers one.
            return Ok(Outcome::Retry);
        }
        let level = answer.free();
        if at.level > level {
            let Reached::Level(reached) = walk.link_down(&mut self.cache, gfn, at, level)? else {
                return Ok(Outcome::Retry);
            };
            at = reached;
        }
        if !answer.fills(at.word) {
            return Ok(Outcome::Retry);
        }
        // If the slot logs writes, and not by D bits, the first store to a page must fault, whatever was mapped before.
        let by_bits = walk.vm.logs_by_bits();
        let writable = page.writable && (!slot.log_dirty || by_bits || access == Access::Write);
        let mut leaf = walk.vm.leaf(HostPage { level: at.level, ..page }, access);
        let is_young = by != By::Prefault;
        leaf.accessed = is_young;
        leaf.dirty &= is_young;
        if !writable {
            (leaf.perms, leaf.dirty) = (leaf.perms.without(Perms::WRITE), false);
        }
        let fill = || at.entry.cas(at.word, F::leaf(&leaf, at.level)).is_ok();
        let logs = writable && slot.log_dirty && !by_bits;
        if !(if logs { walk.allow_stores(Span::sized(gfn, 1), self.ring, fill) } else { fill() }) {
            return Ok(Outcome::Retry);
        }
        walk.seat.tally.add(Count::installed(at.level));
        Ok(Outcome::Done(Done::Mapped(at.level)))
    }
}

/// A vCPU that handles a fault.
struct Faulting<'a, 'vm, F: Format, H: Host> {
    vcpu: &'a mut Vcpu<'vm, F, H>,
    idle: &'a mut Idle,
    fault: Fault,
    by: By,
    seat: &'vm Seat,
    /// Whether the host was asked in a way that may sleep.
    asked: bool,
}

impl<F: Format, H: Host> Pursuer for Faulting<'_, '_, F, H> {
    type Done = Done;
    type Error = FaultError;

    #[inline(always)]
    fn attempt(&mut self) -> Result<Result<Done, Again>, FaultError> {
        let Self { vcpu, idle, fault, by, seat, .. } = self;
        if vcpu.cache.len() < usize::from(F::LEVELS) {
            // The result is ignored, because not every fault needs a table. A fault that misses a page returns the
            // error.
            let _ = vcpu.vm.top_up(idle, &mut vcpu.cache, vcpu.vm.pages_at_hand());
        }
        let outcome = match vcpu.attempt(idle, *fault, (*by, seat))? {
            Outcome::Ask => {
                // A copy, so that the pursuer needs no memory.
                let mut asked = self.asked;
                let outcome = vcpu.ask(idle, *fault, (*by, seat), &mut asked)?;
                self.asked = asked;
                outcome
            }
            outcome => outcome,
        };
        Ok(match outcome {
            Outcome::Done(done) => Ok(done),
            Outcome::Replaced => Err(Again::Now),
            Outcome::Retry | Outcome::Ask => Err(Again::Lost),
            Outcome::Moved => Err(Again::Moved),
            Outcome::Covered => Err(Again::Covered),
        })
    }

    #[inline(always)]
    fn listed(&self) -> Listed {
        self.vcpu.memo.listed(&self.vcpu.vm.active, self.fault.gpa.gfn())
    }

    #[inline(always)]
    fn count(&self, cause: RetryCause) {
        self.vcpu.count_retry(self.fault, cause);
    }

    #[inline(always)]
    fn park_while(&self, wait: impl FnOnce()) {
        self.vcpu.park_while(wait);
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Number of table pages that a vCPU fetches at a time. One for each level is enough for a fault.
    fn pages_at_hand(&self) -> usize {
        usize::from(F::LEVELS) + if self.pool.has_budget() { 0 } else { 4 }
    }
}
