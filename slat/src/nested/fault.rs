//! A fault of L2: T, then memslots and host, then the shadow. F1 to F10 are the steps of `protocol.md`.
//!
//! ```text
//! one section of the read side, no lock
//!   F2  the shadow's line
//!   F1  walk the shadow                                          a leaf that serves? spurious, after F8
//!   F2  the epoch
//!   F3  T, with A and D                                          refused? to L1, and the leaf is zapped
//!   F4  memslot of g1; no transaction has T's own frames
//!   F5  stamp: no invalidation covers page or g1
//!   F6  the host's page; rights = T ∧ memslot ∧ host ∧ log       would sleep? leave, ask, begin again
//!   F7  (shadow, g2) under g1 in the reverse map
//!   F8  link missing tables; hole ─▶ frozen
//!       fence; announced since F2 and F5? the hint replaced?     thaw, begin again
//!   F9  the row; frozen ─▶ leaf                                  condemned? thaw, begin again
//!   F10 stores allowed, and the memslot logs: mark g1
//! ```
//! **Level**: the smallest that T, host, memslot, format and policy allow. If a table is linked already, the table's
//! level.
//!
//! A host that may sleep is asked outside the section. Its answer counts if nothing was announced between F2 and F5 and
//! the next attempt's F6.

use super::freeze::Announced;
use super::outcome::{Found, Outcome, very_page};
use super::{L1Access, L1Fault, L1Format, L1Stop, L2, L2Next};
use crate::active::Listed;
use crate::dirty_log::ring::Ring;
use crate::fault::pursuit::{Again, Answer, Pursuer, Stop, Wanted};
use crate::shadows::drop_leaf;
use crate::sync::idle::NoIdle;
use crate::sync::tally::NestedCount;
use crate::table::{At, Cache, Kind};
use crate::{
    Access, Emulate, Fault, FaultError, Format, Gfn, Gpa, GuestSpace, Host, HostError, Hva, Idle, Leaf,
    Leave, Level, Next, Resume, Span, Word,
};
use alloc::vec::Vec;

/// The facts that a fault learns from one attempt to the next.
#[derive(Default)]
struct Learned {
    /// The host's answer.
    offered: Option<Answer>,
    /// Whether L1's own mapping of the frame, and all shadow entries made of it, were zapped.
    replaced: bool,
    /// Whether something was announced meanwhile, perhaps elsewhere: then maps at most 2 MiB.
    narrow: bool,
    /// The host address of the page.
    hva: Option<Hva>,
}

/// A vCPU that handles a fault of L2.
struct Faulting<'f, 'a, 'vm, F: Format, H: Host, T: L1Format> {
    l2: &'f mut L2<'a, 'vm, F, H, T>,
    idle: &'f mut Idle,
    access: L1Access,
    learned: Learned,
}

impl<F: Format, H: Host, T: L1Format> Pursuer for Faulting<'_, '_, '_, F, H, T> {
    type Done = L2Next;
    type Error = FaultError;

    fn attempt(&mut self) -> Result<Result<L2Next, Again>, FaultError> {
        let Self { l2, idle, access, learned } = self;
        l2.prepare(idle);
        let vm = l2.vcpu.vm;
        let late = match l2.attempt(access, learned)? {
            Outcome::Done(done) => return Ok(Ok(done)),
            Outcome::Changed => {
                learned.narrow = true;
                return Ok(Err(Again::Lost));
            }
            Outcome::Covered => return Ok(Err(Again::Covered)),
            Outcome::Table(L1Stop::Tracked { gpa, word }) => {
                l2.memory().tell_l1_store(idle, gpa, word);
                None
            }
            Outcome::Table(L1Stop::Ask { gpa, hva, access }) => match vm.host.resolve(idle, hva, access) {
                Ok(_) => None,
                Err(error) => l2.comes_late(idle, Fault { gpa, access }, error)?,
            },
            Outcome::Table(L1Stop::Unreadable { error, .. }) => return Err(error.into()),
            // L1 edits T meanwhile: L2 tries again.
            Outcome::Table(_) => Some(L2Next::Handled { next: Next::Resume(Resume::Spurious), gpa: Gpa(0) }),
            Outcome::AnotherPage(g1s) => {
                vm.take_away(idle, l2.vcpu.space(), g1s);
                learned.replaced = true;
                None
            }
            Outcome::Ask(pursuit, gpa) => match pursuit.ask::<F, _>(&vm.host, idle) {
                Ok(answer) => {
                    learned.offered = Some(answer);
                    None
                }
                Err(error) => l2.comes_late(idle, Fault { gpa, access: pursuit.access }, error)?,
            },
        };
        Ok(late.ok_or(Again::Now))
    }

    fn listed(&self) -> Listed {
        self.l2.vcpu.vm.active.listed_over(self.learned.hva)
    }

    fn park_while(&self, wait: impl FnOnce()) {
        self.l2.vcpu.park_while(wait);
    }
}

impl<F: Format, H: Host, T: L1Format> L2<'_, '_, F, H, T> {
    /// Handles an access of L2 that the hardware could not complete. May sleep in the host, and in listeners of stores
    /// to T. Any number of vCPUs fault at once. None waits for another; a fault waits for an invalidation that covers
    /// its own frame. See [`Vcpu::nested`](crate::Vcpu::nested).
    ///
    /// Maps pages of 1 GiB or 2 MiB if T, the memslot, the host and the format allow it, otherwise 4 KiB.
    pub fn fault(&mut self, idle: &mut Idle, access: L1Access) -> Result<L2Next, FaultError> {
        if let Some(done) = self.quick(&access) {
            self.count(NestedCount::Mapped);
            return Ok(done);
        }
        let done = self.fault_in_full(idle, access)?;
        match done {
            L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. } => self.count(NestedCount::Mapped),
            L2Next::Handled { next: Next::Resume(Resume::Spurious), .. } => self.count(NestedCount::Spurious),
            L2Next::Handled { next: Next::Emulate(Emulate::NoMemory), .. } => self.count(NestedCount::Mmio),
            L2Next::Handled { .. } => {}
            L2Next::ForL1(_) => self.count(NestedCount::Refused),
        }
        Ok(done)
    }

    #[inline(always)]
    fn count(&self, what: NestedCount) {
        self.vcpu.vm.tlb.vcpu(self.vcpu.id).attempts.add_nested(what);
    }

    /// Ensures table pages for the shadow and for the reverse map, rows for new tables, and a block for hints. The rows
    /// come first: this vCPU may split three pages for them, if other vCPUs take the second half of each.
    pub(super) fn prepare(&mut self, idle: &mut Idle) {
        let (vm, cache, want) = (self.vcpu.vm, &mut self.vcpu.cache, 2 * usize::from(F::LEVELS));
        // Not every fault needs a table: a missing page is an error only where one is needed.
        let mut top_up = |cache: &mut Cache| {
            if cache.len() < want {
                let _ = vm.top_up(idle, cache, want);
            }
        };
        if let Some(state) = &mut self.vcpu.nested
            && !state.spare.is_enough()
        {
            top_up(cache);
            self.shadows.refill(&mut state.spare, cache);
        }
        top_up(cache);
    }

    #[cold]
    #[inline(never)]
    fn fault_in_full(&mut self, idle: &mut Idle, access: L1Access) -> Result<L2Next, FaultError> {
        Faulting { l2: self, idle, access, learned: Learned::default() }.pursue()
    }

    /// Waits for a page of L1's that the host does not give at once. Returns `None` if it is there by now.
    fn comes_late(
        &mut self,
        idle: &mut Idle,
        fault: Fault,
        error: HostError,
    ) -> Result<Option<L2Next>, FaultError> {
        if !matches!(error, HostError::Pending | HostError::NeedsPage) {
            return Err(error.into());
        }
        let done = self.vcpu.fault(idle, fault)?;
        let waits = matches!(
            done,
            Next::Leave(Leave::Pending(_) | Leave::NeedsPage | Leave::RingFull | Leave::MemoryFault { .. })
        );
        Ok(waits.then_some(L2Next::Handled { next: done, gpa: fault.gpa }))
    }

    /// Returns what L2's tables map at `gpa` now, whatever T says. The frame is that of exactly the 4 KiB. A leaf that
    /// an aging pass has withdrawn counts as mapped and not accessed.
    pub fn translate(&self, gpa: Gpa) -> Option<Leaf> {
        let gfn = gpa.gfn();
        if gfn.0 >> F::FRAME_BITS != 0 {
            return None;
        }
        let vm = self.vcpu.vm;
        let _no_idle = NoIdle::new();
        let _section = vm.reads.enter(self.vcpu.awake());
        // SAFETY: in the section.
        let at = unsafe { self.shadow.radix.descend(vm.tables(), gfn) };
        at.word.leaf::<F>(at.level).map(|leaf| very_page(leaf, gfn, at.level))
    }

    fn memory(&self) -> GuestSpace<'_, F, H> {
        GuestSpace { vm: self.vcpu.vm, space: self.vcpu.space }
    }

    /// One attempt: F1 to F10.
    fn attempt(&mut self, access: &L1Access, learned: &mut Learned) -> Result<Outcome, FaultError> {
        let (vm, space, seat) = (self.vcpu.vm, self.vcpu.space, self.vcpu.awake());
        let (memory, active, g2) = (vm.tables(), &vm.active, access.gpa.gfn());
        let slots = GuestSpace { vm, space };
        let shadow = self.shadow;
        let is_ours = g2.0 >> F::FRAME_BITS == 0;
        let reading = space.memslots.read(&vm.reads, seat);
        // Read before the walk, which may reach an unlinked table and remember it.
        let line = shadow.line.now();
        // SAFETY: in the section of `reading`.
        let at = unsafe { shadow.radix.descend(memory, if is_ours { g2 } else { Gfn(0) }) };
        if let Kind::Frozen(_) = at.word.kind::<F>(at.level) {
            // The other fault completes soon.
            return Ok(Outcome::Changed);
        }
        let start = active.epoch();
        // Tables and pages of L1 are in few slots.
        let memo = &mut self.memo;
        let find = &mut |gfn| match *memo {
            Some((number, slot)) if number == reading.number() && slot.gfns.contains(gfn) => Some(slot),
            _ => {
                let slot = reading.version().find(gfn)?;
                *memo = Some((reading.number(), slot));
                Some(slot)
            }
        };
        let leaf = match slots.walk_l1_in((&reading, find), &self.table, access, true) {
            Ok(leaf) => leaf,
            Err(L1Stop::Fault(fault)) => {
                let moves = |table| !active.nowhere(start, Span::sized(table, 1));
                return Ok(if fault.table.is_some_and(moves) {
                    Outcome::Covered
                } else {
                    self.refused(at, fault)
                });
            }
            Err(stop) => return Ok(Outcome::Table(stop)),
        };
        if leaf.tables().iter().any(|&table| !active.nowhere(start, Span::sized(table, 1))) {
            return Ok(Outcome::Covered);
        }
        let g1 = leaf.gfn;
        let gpa = Gpa(g1.gpa().0 | access.gpa.offset());
        let handled = |done| Ok(Outcome::Done(L2Next::Handled { next: done, gpa }));
        let stores = self.table.demands(access).allows(Access::Write);
        let wants = if stores { Access::Write } else { access.access };
        let sought = start.find(Wanted::new(g1, wants), find);
        learned.hva = sought.ok().map(|sought| sought.hva());
        let levels = (Level::K4, Level::M2);
        let stamped = sought.and_then(|sought| sought.stamp((active, &space.watched), levels, Word::OLDEST));
        let pursuit = match stamped {
            Ok(pursuit) if is_ours => pursuit,
            Err(Stop::NoMemslot) if !active.nowhere(start, Span::sized(g1, 1)) => {
                return Ok(Outcome::Covered);
            }
            Ok(_) | Err(Stop::NoMemslot | Stop::OtherKind { .. }) => {
                return handled(Next::Emulate(Emulate::NoMemory));
            }
            Err(Stop::Forbidden) => return handled(Next::Emulate(Emulate::ReadOnly)),
            Err(Stop::Tracked) => return handled(Next::Emulate(Emulate::Tracked)),
            Err(Stop::Covered) => return Ok(Outcome::Covered),
            Err(Stop::Moved) => return Ok(Outcome::Changed),
        };
        if stores && self.vcpu.ring.is_some_and(Ring::is_full) {
            return handled(Next::Leave(Leave::RingFull));
        }
        let is_wide = leaf.level > Level::M2
            && at.level > Level::M2
            && (!learned.narrow || at.word.maps::<F>(at.level))
            && vm.large_page(space, &pursuit.slot, g1, Level::G1).is_some();
        let pursuit = if is_wide { pursuit.widen(active) } else { pursuit };
        let offered = learned.offered.take().and_then(|answer| answer.renewed(&pursuit));
        let Some(answer) = offered.or_else(|| pursuit.look::<F, _>(&vm.host)) else {
            return Ok(Outcome::Ask(pursuit, gpa));
        };
        let answer = answer.at_most(self.level(&answer, &leaf, access.access).min(at.level));
        let wide = pursuit.wide.filter(|_| answer.page().level > Level::M2);
        let announced = Announced { pursuit, line, wide };
        let found = Found { at, leaf, slots: &reading, answer, stores, gpa };
        self.install(access, &found, &announced, learned.replaced)
    }

    /// Handles a refusal by T. Hardware drops the translation that it hit, so L1 need not flush it: this zaps the leaf,
    /// and flushes this vCPU's TLB of it. It is zapped again when the vCPU returns: another vCPU may have read T before
    /// L1 changes it, and installed its leaf later.
    fn refused(&mut self, at: At<'_>, fault: L1Fault) -> Outcome {
        let active = &self.vcpu.vm.active;
        let is_ours = fault.access.gpa.gfn().0 >> F::FRAME_BITS == 0;
        self.quick = None;
        let is_leaf = at.word.maps::<F>(at.level);
        if is_ours && is_leaf {
            drop_leaf(&self.shadows.drops.taking(active), at.entry, at.word);
        }
        if let Some(state) = &mut self.vcpu.nested {
            if is_leaf || self.shadows.drops.since(state.forgot) {
                state.refused.push((self.index, fault.access.gpa.gfn()));
                state.forgot = active.now();
                self.vcpu.loaded.forget_l2();
            }
            let beside = state
                .tables()
                .filter(|(index, other)| *index != self.index && self.table.forgets_with(other));
            let beside: Vec<usize> = beside.map(|(index, _)| index).collect();
            state.refused.extend(beside.into_iter().map(|index| (index, fault.access.gpa.gfn())));
        }
        Outcome::Done(L2Next::ForL1(fault))
    }
}
