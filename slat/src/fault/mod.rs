//! A fault, from the guest's access to the leaf: the pipeline on one screen.
//!
//! ```text
//! Vcpu::fault
//!  │  keep a page at hand for every level
//!  ▼
//! attempt ───────────────────────────── one section of the read side, no lock, no sleep
//!  │  walk down                          leaf there? ─▶ `present`: spurious, or permission by one CAS
//!  │                                      withdrawn? ─▶ `tracked`: given back by one CAS
//!  │  epoch
//!  │  slot: vCPU hint, table hint, tree  none? ─▶ MMIO, remembered in the table (`mmio`)
//!  │  stamp: before the host is asked     an invalidation covers it? ─▶ again when it has ended
//!  │  host.lookup                        it would have to sleep? ─▶ `ask`: epoch, slot, stamp, resolve, walk
//!  ▼
//! install: link what is missing; hole not newer than the stamp? CAS hole → leaf
//! ```
//! Where the slot logs writes, only 4 KiB are mapped, without write permission unless this is a store; a permission
//! that was given is logged ([`dirty`](crate::memslots::Memslots::dirty)), after it was given. A
//! store is not begun while its vCPU's ring is full.
//!
//! Whatever moved meanwhile, a CAS or the comparison with the stamp fails, and the fault starts again with a
//! new stamp: precise, per entry ([`crate::notify`] has the other side).

mod done;
pub(crate) mod leaf;
pub(crate) mod memo;
mod mmio;
mod pending;
mod plain;
mod population;
mod prefault;
mod present;
mod quick;
mod tracked;
mod visibility;

pub use done::{Done, FaultError};
pub use population::Population;
pub use prefault::Prefault;

use crate::addr::{Gfn, Gpa, Hva, Level, Span};
use crate::dirty::ring::Ring;
use crate::host::{Host, HostError, HostPage};
use crate::notify::active::{Epoch, Page, Stamp, Unconfirmed};
use crate::slots::Slot;
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::sync::prim::Patience;
use crate::sync::readside::Seat;
use crate::sync::tally::{Count, RetryCause};
use crate::table::entry::Word;
use crate::table::format::{Access, Format, Perms};
use crate::table::pool::{Cache, NoMemory};
use crate::table::radix::At;
use crate::trace::{FaultResult, TraceEvent};
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use crate::walk::Walk;

/// A guest access that the hardware could not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The guest-physical address.
    pub gpa: Gpa,
    /// What the guest wanted.
    pub access: Access,
}

/// Looks at who is active while an invalidation covers a fault's frame, before the fault is attempted again.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

/// How one attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done(Done),
    /// Something moved: again.
    Retry,
    /// A wide invalidation began or ended before the host was asked: nothing is lost, look again.
    Moved,
    /// An invalidation covers the frame: again when it has ended.
    Covered,
    /// The host has to be asked in a way that may sleep.
    Ask,
    /// What was mapped has gone, so that what the host offers can come: again.
    Replaced,
    /// The host has the page later.
    Pending,
}

/// What an access is made by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The guest, which is about to use the page, as private or as shared memory where that is known.
    Guest { private: Option<bool> },
    /// [`Vcpu::prefault`], ahead of the guest.
    Prefault,
}

impl<'vm, F: Format, H: Host> Vcpu<'vm, F, H> {
    /// Deals with a fault. May sleep in the host. Any number of vCPUs fault at once; none waits for another,
    /// except for an invalidation that covers its own frame.
    #[inline]
    pub fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Done, FaultError> {
        if self.quick(fault) {
            return Ok(Done::Mapped(Level::K4));
        }
        self.fault_in_full(idle, fault, By::GUEST).inspect_err(|_| self.observed(fault, FaultResult::Failed))
    }

    #[cold]
    #[inline(never)]
    fn fault_in_full(&mut self, idle: &mut Idle, fault: Fault, mut by: By) -> Result<Done, FaultError> {
        // First of all: a table that is taken back for its memory is flushed, and that waits for vCPUs in the guest.
        let seat = self.awake();
        // Asked once: what follows pushes one page at most.
        if fault.access == Access::Write && self.ring.is_some_and(Ring::is_full) {
            self.observed(fault, FaultResult::Deferred);
            return Ok(Done::RingFull);
        }
        let mut patience = Patience::default();
        let (mut waits, mut asked) = (None, false);
        loop {
            if self.cache.len() < usize::from(F::LEVELS) {
                // Not every fault needs a table: an error is one where a page is missed.
                let _ = self.vm.top_up(idle, &mut self.cache, self.vm.pages_at_hand());
            }
            let before = self.memo.listed(&self.vm.active, fault.gpa.gfn());
            let outcome = match self.attempt(idle, fault, (by, seat))? {
                Outcome::Ask => self.ask(idle, fault, (by, seat), &mut asked)?,
                outcome => outcome,
            };
            if seeded!(AgreedOnce) && by != By::Prefault {
                by = By::GUEST;
            }
            match outcome {
                Outcome::Done(done) => {
                    self.observed(fault, done.into());
                    return Ok(done);
                }
                Outcome::Replaced => {}
                Outcome::Pending => return self.pending(idle, fault, by),
                Outcome::Retry | Outcome::Ask => {
                    self.again(fault, RetryCause::Lost);
                    patience.wait();
                }
                Outcome::Moved => self.again(fault, RetryCause::Moved),
                // Rule 13. However often it looks, while the same ones are active it waits once.
                Outcome::Covered => {
                    if waits.replace(before) != Some(before) {
                        self.again(fault, RetryCause::Covered);
                    }
                    // Its end changes what is listed, a word that few write meanwhile and hundreds may look at: the whole
                    // attempt is made again when that happens; or now and then, for the one that was ending as it was read.
                    self.rest_while(|| {
                        for _ in 0..LOOKS {
                            patience.wait();
                            if self.memo.listed(&self.vm.active, fault.gpa.gfn()) != before {
                                break;
                            }
                        }
                    });
                }
            }
        }
    }

    /// One attempt without sleeping.
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
            return Ok(self.mmio());
        }
        let walk = Walk::<F, H, Shared>::on_seat(vm, self.space, idle, seat);
        let mut at = walk.descend(gfn);
        if let Some(private) = self.disagrees(&walk, at, gfn, by) {
            return Ok(Outcome::Done(Done::MemoryFault { private }));
        }
        if F::is_present(at.word) {
            return Ok(self.present(&walk, at, fault)?);
        }
        if at.word.is_tracked() {
            return Ok(self.tracked(&walk, at, fault, by)?);
        }
        let epoch = vm.active.epoch();
        if at.word.is_mmio() {
            let Some(now) = self.not_mmio(at) else { return Ok(self.mmio()) };
            at = now;
        }
        let Some(slot) = self.memo.slot(vm, self.space, seat, gfn, Some(at)) else {
            // Without a page for a table it is looked up again next time.
            let _ = self.remember_mmio(&walk, at, gfn, epoch);
            return Ok(self.mmio());
        };
        if let Some(private) = by.disagrees(&slot) {
            return Ok(Outcome::Done(Done::MemoryFault { private }));
        }
        if !leaf::allows(&slot, fault.access) {
            return Ok(self.mmio());
        }
        if fault.access == Access::Write && self.space.watched.has(gfn) {
            return Ok(Outcome::Done(Done::WriteTracked));
        }
        let hva = slot.hva_of(gfn);
        let stamp = match self.stamp(epoch, gfn, hva, at.word) {
            Ok(stamp) => stamp,
            Err(unconfirmed) => return Ok(unconfirmed.into()),
        };
        match vm.host.lookup(hva, fault.access) {
            Some(page) if serves::<F>(&page, fault.access) => {
                let page = self.page_for(fault, &slot, page);
                Ok(install(&walk, self.spare(by), at, (fault, &slot, page), stamp)?)
            }
            _ => Ok(Outcome::Ask),
        }
    }

    #[inline(always)]
    fn observed(&self, Fault { gpa, access }: Fault, result: FaultResult) {
        self.vm.host.observe(TraceEvent::Fault { vcpu: self.id, gfn: gpa.gfn(), access, result });
    }

    fn again(&self, fault: Fault, cause: RetryCause) {
        self.vm.counts_retry(self.id, fault.gpa.gfn(), cause);
    }

    /// Pages for missing tables; whether what is mapped is about to be used; and where its store is logged.
    #[inline(always)]
    fn spare(&mut self, by: By) -> (&mut Cache, bool, Option<&Ring>) {
        (&mut self.cache, by != By::Prefault, self.ring)
    }

    /// The same with the host asked outside of any section, where it may sleep (rule 3).
    #[cold]
    fn ask(
        &mut self,
        idle: &mut Idle,
        fault: Fault,
        (by, seat): (By, &'vm Seat),
        asked: &mut bool,
    ) -> Result<Outcome, FaultError> {
        let gfn = fault.gpa.gfn();
        let vm = self.vm;
        let epoch = vm.active.epoch();
        let Some(slot) = self.memo.slot(vm, self.space, seat, gfn, None) else {
            return Ok(self.mmio());
        };
        if let Some(private) = by.disagrees(&slot) {
            return Ok(Outcome::Done(Done::MemoryFault { private }));
        }
        let hva = slot.hva_of(gfn);
        // A newer hole has been seen: the attempt before has raised the number of the region to it.
        let stamp = match self.stamp(epoch, gfn, hva, Word::OLDEST) {
            Ok(stamp) => stamp,
            Err(unconfirmed) => return Ok(unconfirmed.into()),
        };
        if core::mem::replace(asked, true) {
            self.again(fault, RetryCause::Asked);
        }
        let page = match vm.host.resolve(idle, hva, fault.access) {
            Ok(page) => page,
            Err(HostError::Pending) => {
                self.waiting.ever = true;
                self.token = vm.host.token(hva);
                return Ok(Outcome::Pending);
            }
            Err(HostError::NeedsPage) => return Ok(Outcome::Done(Done::NeedsPage)),
            Err(error) => return Err(error.into()),
        };
        if !serves::<F>(&page, fault.access) {
            return Err(HostError::Fault.into());
        }
        let late = seeded!(StampLate).then(|| self.stamp(vm.active.epoch(), gfn, hva, Word::OLDEST).ok());
        let stamp = late.flatten().unwrap_or(stamp);
        let walk = Walk::<F, H, Shared>::on_seat(vm, self.space, idle, seat);
        let at = walk.descend(gfn);
        if self.memo.slot(vm, self.space, seat, gfn, Some(at)) != Some(slot) {
            // It may log by now; what it maps would not be noticed.
            return Ok(Outcome::Retry);
        }
        let page = self.page_for(fault, &slot, page);
        if F::is_present(at.word) {
            // Mapped meanwhile, or made writable in place: a host that says so of all that is mapped there, without
            // sleeping, gets an upgrade. One that has another page there now, and sent no invalidation, gets that.
            let upgrades = |page| self.upgraded(&slot, at, gfn, page).is_some();
            let answers =
                fault.access == Access::Write && vm.host.lookup(hva, fault.access).is_some_and(upgrades);
            if answers || F::read_leaf(at.word).perms.allows(fault.access) {
                return Ok(Outcome::Retry);
            }
            // No more than the host offers: the rest of a larger leaf stays.
            let level = page.level.min(at.level);
            drop(walk);
            vm.take_away(idle, self.space.id, Span::sized(gfn.base(level), level.pages()));
            return Ok(Outcome::Replaced);
        }
        Ok(install(&walk, self.spare(by), at, (fault, &slot, page), stamp)?)
    }
}

/// Whether the host's page does for the access, in a table of this format.
#[inline(always)]
pub(crate) fn serves<F: Format>(page: &HostPage, access: Access) -> bool {
    page.allows(access) && F::has_memory_type(page.memory)
}

impl From<Unconfirmed> for Outcome {
    fn from(unconfirmed: Unconfirmed) -> Self {
        match unconfirmed {
            Unconfirmed::Covered => Self::Covered,
            Unconfirmed::Moved => Self::Moved,
        }
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Table pages that a vCPU fetches at a time: one for each level is enough for a fault.
    fn pages_at_hand(&self) -> usize {
        usize::from(F::LEVELS) + if self.pool.has_budget() { 0 } else { 4 }
    }
}

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// A stamp for the page of `gfn`, and for as large a one as the host had for the last fault.
    fn stamp(&self, epoch: Epoch, gfn: Gfn, hva: Hva, seen: Word) -> Result<Stamp, Unconfirmed> {
        self.vm.active.stamp(epoch, Page::small(gfn, hva), self.memo.reach, seen)
    }
}

/// Rule 5. Spends the stamp: hole → leaf, by CAS from the very word that was read.
#[inline(always)]
fn install<'w, F: Format, H: Host>(
    walk: &'w Walk<'_, F, H, Shared>,
    (cache, young, ring): (&mut Cache, bool, Option<&Ring>),
    mut at: At<'w>,
    (fault, slot, page): (Fault, &Slot, HostPage),
    stamp: Stamp,
) -> Result<Outcome, NoMemory> {
    let gfn = fault.gpa.gfn();
    if page.level > stamp.reach {
        // The first of this vCPU's pages that is larger than a region: the next stamp is for such a one.
        return Ok(Outcome::Retry);
    }
    // Rule 11: no invalidation was active over any part of it. Where one was, a smaller page does.
    let level = if seeded!(LargeUnlooked) { page.level } else { page.level.min(stamp.free) };
    if at.level > level {
        at = walk.link_down(cache, gfn, at, level)?;
    }
    if !at.word.is_hole() || at.word > stamp.newest {
        return Ok(Outcome::Retry);
    }
    // Where writes are logged, and not by D bits, the first store to a page faults, whatever was mapped before it.
    let by_bits = walk.vm.logs_by_bits();
    let writable = page.writable && (!slot.log_dirty || by_bits || fault.access == Access::Write);
    let mut leaf = walk.vm.leaf(HostPage { level: at.level, ..page }, fault.access);
    leaf.accessed = young;
    leaf.dirty &= young;
    if !writable {
        (leaf.perms, leaf.dirty) = (leaf.perms.without(Perms::WRITE), false);
    }
    let logs = writable && slot.log_dirty && !by_bits;
    if logs && seeded!(MarkedTooEarly) {
        walk.space.log_store(&walk.vm.reads, walk.seat, gfn, ring);
    }
    if at.level > level || at.entry.cas(at.word, F::leaf(&leaf, at.level)).is_err() {
        return Ok(Outcome::Retry);
    }
    if logs && !seeded!(MarkedTooEarly) {
        // ORDER(bitmap): after the permission, which the harvest that takes the mark has to see.
        walk.space.log_store(&walk.vm.reads, walk.seat, gfn, ring);
    }
    walk.seat.tally.add(Count::installed(at.level));
    Ok(Outcome::Done(Done::Mapped(at.level)))
}
