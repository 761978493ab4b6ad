//! The fault path, from the guest's access to the installed leaf.
//!
//! ```text
//! Vcpu::fault
//!  │  ensure one spare page for each level
//!  ▼
//! attempt ───────────────────────────── one section of the read side, no lock, no sleep
//!  │  walk down                          leaf present? ─▶ `present`: spurious, or permission by one CAS
//!  │                                      leaf tracked? ─▶ `tracked`: restored by one CAS
//!  │  epoch
//!  │  slot: vCPU hint, table hint, tree  none? ─▶ MMIO, remembered in the table (`mmio`)
//!  │  stamp, before the host is asked    covered by an invalidation? ─▶ retry after its end
//!  │  host.lookup                        would sleep? ─▶ `ask`: epoch, slot, stamp, resolve, walk
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
mod alone;
mod fillable;
pub(crate) mod leaf;
pub(crate) mod memo;
mod mmio;
mod next;
mod pending;
mod population;
mod prefault;
mod present;
mod quick;
mod quick_frames;
mod tracked;
mod visibility;

use alone::Alone;
pub use next::{Emulate, FaultError, Leave, Next, Resume};
pub use population::Population;
pub use prefault::Prefault;

use crate::addr::{Gfn, Gpa, Hva, Level, Span};
use crate::dirty::ring::Ring;
use crate::host::{Host, HostError, HostPage};
use crate::notify::active::{Epoch, Page, Stamp, Unconfirmed};
use crate::slots::Slot;
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::sync::prim::{Patience, full_path};
use crate::sync::readside::Seat;
use crate::sync::tally::{Count, RetryCause};
use crate::table::entry::Word;
use crate::table::format::{Access, Format, Perms};
use crate::table::pool::{Cache, NoMemory};
use crate::table::radix::{At, Reached};
use crate::trace::{FaultResult, TraceEvent};
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use crate::walk::Walk;

/// A guest access that the hardware could not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The guest-physical address.
    pub gpa: Gpa,
    /// The kind of access.
    pub access: Access,
}

/// How often a fault checks the active invalidations, while one covers its frame, before it makes a full attempt again.
const CHECKS_BEFORE_RETRY: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

/// How one attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done(Next),
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
    /// The host will have the page later.
    Pending,
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
        self.fault_in_full(idle, fault, By::GUEST).inspect_err(|_| self.observed(fault, FaultResult::Failed))
    }

    #[cold]
    #[inline(never)]
    fn fault_in_full(&mut self, idle: &mut Idle, fault: Fault, by: By) -> Result<Next, FaultError> {
        // Before everything else: reclaiming a table flushes, and the flush waits for vCPUs in the guest.
        let seat = self.awake();
        // Checked once, because one fault pushes at most one page.
        if fault.access == Access::Write && self.ring.is_some_and(Ring::is_full) {
            self.observed(fault, FaultResult::Deferred);
            return Ok(Next::Leave(Leave::RingFull));
        }
        let mut patience = Patience::default();
        let (mut waits, mut asked) = (None, false);
        loop {
            full_path();
            if self.cache.len() < usize::from(F::LEVELS) {
                // The result is ignored, because not every fault needs a table. A fault that misses a page returns the
                // error.
                let _ = self.vm.top_up(idle, &mut self.cache, self.vm.pages_at_hand());
            }
            let before = self.memo.listed(&self.vm.active, fault.gpa.gfn());
            let outcome = match self.attempt(idle, fault, (by, seat))? {
                Outcome::Ask => self.ask(idle, fault, (by, seat), &mut asked)?,
                outcome => outcome,
            };
            match outcome {
                Outcome::Done(done) => {
                    self.observed(fault, done.into());
                    return Ok(done);
                }
                Outcome::Replaced => {}
                Outcome::Pending => return self.pending(idle, fault, by),
                Outcome::Retry | Outcome::Ask => {
                    self.count_retry(fault, RetryCause::Lost);
                    patience.wait();
                }
                Outcome::Moved => self.count_retry(fault, RetryCause::Moved),
                // Rule 13. However often it looks, one wait counts as one while the same invalidations are active.
                Outcome::Covered => {
                    if waits.replace(before) != Some(before) {
                        self.count_retry(fault, RetryCause::Covered);
                    }
                    // The end of an invalidation changes the list. Few threads write that word, and hundreds may read
                    // it. The fault makes a full attempt when it changes, and also after some checks, in case the
                    // invalidation ended while `before` was read.
                    self.rest_while(|| {
                        for _ in 0..CHECKS_BEFORE_RETRY {
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
            return Ok(self.emulated(Emulate::NoMemory));
        }
        let walk = Walk::<F, H, Shared>::on_seat(vm, self.space, idle, seat);
        let mut at = walk.descend(gfn);
        if let Some(private) = self.disagrees(&walk, at, gfn, by) {
            return Ok(Outcome::Done(Next::Leave(Leave::MemoryFault { private })));
        }
        if F::is_present(at.word) {
            return Ok(self.present(&walk, at, fault)?);
        }
        if at.word.is_tracked() {
            return Ok(self.tracked(&walk, at, fault, by)?);
        }
        let epoch = vm.active.epoch();
        if at.word.is_mmio() {
            let Some(now) = self.not_mmio(at) else { return Ok(self.emulated(Emulate::NoMemory)) };
            at = now;
        }
        let Some(slot) = self.memo.slot(vm, self.space, seat, gfn, Some(at)) else {
            // If no page for a table is left, the next fault looks the slot up again.
            let _ = self.remember_mmio(&walk, at, gfn, epoch);
            return Ok(self.emulated(Emulate::NoMemory));
        };
        if let Some(private) = by.disagrees(&slot) {
            return Ok(Outcome::Done(Next::Leave(Leave::MemoryFault { private })));
        }
        if !leaf::allows(&slot, fault.access) {
            return Ok(self.emulated(Emulate::ReadOnly));
        }
        if fault.access == Access::Write && self.space.watched.has(gfn) {
            return Ok(Outcome::Done(Next::Emulate(Emulate::Tracked)));
        }
        let hva = slot.hva_of(gfn);
        let stamp = match self.stamp(epoch, gfn, hva, at.word) {
            Ok(stamp) => stamp,
            Err(unconfirmed) => return Ok(unconfirmed.into()),
        };
        match vm.host.lookup(hva, fault.access) {
            Some(page) if leaf::serves::<F>(&page, hva, fault.access) => {
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

    fn count_retry(&self, fault: Fault, cause: RetryCause) {
        self.vm.counts_retry(self.id, fault.gpa.gfn(), cause);
    }

    /// The spare table pages; whether the access follows at once; and the ring for a store.
    #[inline(always)]
    fn spare(&mut self, by: By) -> (&mut Cache, bool, Option<&Ring>) {
        (&mut self.cache, by != By::Prefault, self.ring)
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
        let gfn = fault.gpa.gfn();
        let vm = self.vm;
        let epoch = vm.active.epoch();
        let Some(slot) = self.memo.slot(vm, self.space, seat, gfn, None) else {
            return Ok(self.emulated(Emulate::NoMemory));
        };
        if let Some(private) = by.disagrees(&slot) {
            return Ok(Outcome::Done(Next::Leave(Leave::MemoryFault { private })));
        }
        let hva = slot.hva_of(gfn);
        // If the attempt saw a newer hole, it has already raised the region's number to that hole's.
        let stamp = match self.stamp(epoch, gfn, hva, Word::OLDEST) {
            Ok(stamp) => stamp,
            Err(unconfirmed) => return Ok(unconfirmed.into()),
        };
        if core::mem::replace(asked, true) {
            self.count_retry(fault, RetryCause::Asked);
        }
        let page = match vm.host.resolve(idle, hva, fault.access) {
            Ok(page) => page,
            Err(HostError::Pending) => {
                self.waiting.ever = true;
                self.token = vm.host.token(hva);
                return Ok(Outcome::Pending);
            }
            Err(HostError::NeedsPage) => return Ok(Outcome::Done(Next::Leave(Leave::NeedsPage))),
            Err(error) => return Err(error.into()),
        };
        let page = leaf::served::<F>(page, hva, fault.access)?;
        let walk = Walk::<F, H, Shared>::on_seat(vm, self.space, idle, seat);
        let at = walk.descend(gfn);
        if self.memo.slot(vm, self.space, seat, gfn, Some(at)) != Some(slot) {
            // The slot may log writes by now, and the log would miss a leaf installed for the old slot.
            return Ok(Outcome::Retry);
        }
        let (answer, page) = (page, self.page_for(fault, &slot, page));
        if F::is_present(at.word) {
            if F::read_leaf(at.word).perms.allows(fault.access) || slot.log_dirty && at.level > Level::K4 {
                // Another vCPU was faster; or the leaf must be split first.
                return Ok(Outcome::Retry);
            }
            // If the host has the page that is mapped, the leaf is upgraded. If the host has another page there, and
            // sent no invalidation, or if it cannot confirm its answer without sleeping, a retry installs that.
            if fault.access == Access::Write
                && let Some(page) = self.upgraded(&slot, at, gfn, answer)
            {
                // The answer is about all of the leaf if no invalidation covered any of it.
                let is_whole = stamp.free >= at.level;
                let before = is_whole.then_some(Alone { slot, epoch, newest: stamp.newest });
                match self.upgrade_to(&walk, at, fault, (before, page)) {
                    Outcome::Ask => {}
                    outcome => return Ok(outcome),
                }
            }
            // Only as much as the host's page covers: the rest of a larger leaf stays.
            let level = page.level.min(at.level);
            drop(walk);
            vm.take_away(idle, self.space.id, Span::sized(gfn.base(level), level.pages()));
            return Ok(Outcome::Replaced);
        }
        Ok(install(&walk, self.spare(by), at, (fault, &slot, page), stamp)?)
    }
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
    /// Number of table pages that a vCPU fetches at a time. One for each level is enough for a fault.
    fn pages_at_hand(&self) -> usize {
        usize::from(F::LEVELS) + if self.pool.has_budget() { 0 } else { 4 }
    }
}

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Takes a stamp for the page of `gfn`, as large as the host's page of the last fault was.
    fn stamp(&self, epoch: Epoch, gfn: Gfn, hva: Hva, seen: Word) -> Result<Stamp, Unconfirmed> {
        self.vm.active.stamp(epoch, Page::small(gfn, hva), self.memo.reach, seen)
    }
}

/// Rule 5. Spends the stamp: replaces the hole by a leaf, by CAS from the word that was read.
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
        // This page is larger than a region, the first such page of this vCPU. The next stamp covers one.
        return Ok(Outcome::Retry);
    }
    // Rule 11: no invalidation may be active over any part of the page. If one was, map a smaller page.
    let level = page.level.min(stamp.free);
    if at.level > level {
        let Reached::Level(reached) = walk.link_down(cache, gfn, at, level)? else {
            return Ok(Outcome::Retry);
        };
        at = reached;
    }
    if !at.word.is_hole() || at.word > stamp.newest {
        return Ok(Outcome::Retry);
    }
    // If the slot logs writes, and not by D bits, the first store to a page must fault, whatever was mapped before.
    let by_bits = walk.vm.logs_by_bits();
    let writable = page.writable && (!slot.log_dirty || by_bits || fault.access == Access::Write);
    let mut leaf = walk.vm.leaf(HostPage { level: at.level, ..page }, fault.access);
    leaf.accessed = young;
    leaf.dirty &= young;
    if !writable {
        (leaf.perms, leaf.dirty) = (leaf.perms.without(Perms::WRITE), false);
    }
    let fill = || at.entry.cas(at.word, F::leaf(&leaf, at.level)).is_ok();
    let logs = writable && slot.log_dirty && !by_bits;
    if !(if logs { walk.allow_stores(Span::sized(gfn, 1), ring, fill) } else { fill() }) {
        return Ok(Outcome::Retry);
    }
    walk.seat.tally.add(Count::installed(at.level));
    Ok(Outcome::Done(Next::Resume(Resume::Mapped(at.level))))
}
