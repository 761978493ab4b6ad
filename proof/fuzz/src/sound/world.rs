//! The VMs, their open and leaked guards, and the steps.
//!
//! | after | until | calls that wait forever by contract, and are left out |
//! |---|---|---|
//! | a leaked [`InGuest`](slat::InGuest) | the vCPU's next operation, which `prepare` takes | flushes |
//! | an open or leaked invalidation | its end | faults in its range |
//! | a leaked snapshot or walk | for ever | grace periods |

use super::cpus::{Cached, Cpu, Tag};
use super::panicking_host::{Crafty, Fuse, bytes, pfn_in, take_back};
use super::step::{Back, End, Step, TWO, What};
use crate::Input;
use slat::slots::Hint;
use slat::{
    Event, Fault, Format, Gfn, Harvest, Hva, Idle, Invalidation, Level, PAGE_SIZE, Pfn, Prefault, Reason,
    SpaceId, Span, Vcpu, VcpuId, Vm,
};
use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most open or leaked invalidations of one VM; there is room for a few more.
const MOST_OPEN: usize = 48;
/// Most leaked sections of one VM; each takes a seat of 64.
const MOST_SECTIONS: usize = 8;

/// A VM and its history.
pub struct VmState<'vm, F: Format> {
    pub vm: &'vm Vm<F, Crafty<F>>,
    pub vcpus: [Option<Vcpu<'vm, F, Crafty<F>>>; TWO],
    /// vCPUs in the guest by a leaked guard.
    leaked: [bool; TWO],
    /// Number of sections that never end.
    pub sections: usize,
    /// Ranges in which faults wait forever.
    dead: Vec<Covers>,
    /// Ranges in which faults wait.
    open: Vec<(Invalidation<'vm, F, Crafty<F>>, Covers)>,
}

/// The range of an invalidation.
#[derive(Clone, Copy, Debug)]
enum Covers {
    Gfns(Span<Gfn>),
    Hvas(Span<Hva>),
}

/// The VMs and their host.
pub struct World<'vm, F: Format> {
    pub idle: Idle,
    pub fuse: &'vm Fuse,
    pub vms: [VmState<'vm, F>; TWO],
    pub harvests: Vec<Harvest<'vm, F, Crafty<F>>>,
    pub hints: [Hint; TWO],
    cpus: [Cpu; TWO],
    /// Whether a processor's tags are those of vCPUs, or of address spaces.
    by_vcpu: bool,
}

impl<'vm, F: Format> World<'vm, F> {
    pub fn new(vms: &'vm [Arc<Vm<F, Crafty<F>>>; TWO], fuse: &'vm Fuse, idle: Idle, by_vcpu: bool) -> Self {
        let state = |vm: &'vm Arc<Vm<F, Crafty<F>>>| VmState {
            vm,
            vcpus: [0, 1].map(|id| vm.vcpu(VcpuId(id))),
            leaked: [false; TWO],
            sections: 0,
            dead: Vec::new(),
            open: Vec::new(),
        };
        let vms = [state(&vms[0]), state(&vms[1])];
        Self {
            idle,
            fuse,
            vms,
            harvests: Vec::new(),
            hints: Default::default(),
            cpus: Default::default(),
            by_vcpu,
        }
    }

    /// Makes the first slots.
    pub fn furnish(&mut self, vm: usize, input: &mut Input<'_>) {
        for space in 0..TWO {
            let pages = input.pick(&[2048, 8, 513]);
            let hva = crate::vm::plain_host::hva(input.pick(&[0, 512, 1]));
            let slot = slat::Slot::new(slat::SlotId(0), Gfn(0), pages, hva);
            self.take(&What::Create { vm, space, slot });
        }
    }

    /// Before a step, ends the guards that it must not meet.
    pub fn prepare(&mut self, step: &Step) {
        for at in 0..TWO {
            for vcpu in 0..TWO {
                // One vCPU in each VM may stay there for steps that do not flush.
                let stays = vcpu == 0 && !self.vms[at].leaked[1] && step.what.flushes_nothing();
                if self.vms[at].leaked[vcpu] && !stays {
                    self.bring_back(at, vcpu, if vcpu == 0 { Back::Enter } else { step.back });
                }
            }
        }
        let quiet = self.vms.iter().all(|state| {
            state.leaked == [false; TWO]
                && state.sections == 0
                && state.dead.is_empty()
                && state.open.is_empty()
        });
        for state in &self.vms {
            state.vm.host().quiet.store(quiet, Relaxed);
            *state.vm.host().next.lock().unwrap() = step.nested;
        }
    }

    /// Brings a vCPU with a leaked guard out of the guest by an operation.
    fn bring_back(&mut self, at: usize, id: usize, back: Back) {
        let state = &mut self.vms[at];
        state.leaked[id] = false;
        let waits = state.may_wait();
        // Memory may be short while dead tables wait for a grace period.
        let back = if state.sections > 0 { Back::Enter } else { back };
        let Some(vcpu) = &mut state.vcpus[id] else { return };
        match back {
            // A frame without a slot: the prefault does not wait for any invalidation.
            Back::Prefault(gfn) => {
                let gfn = if waits { Gfn(1 << 30) } else { gfn };
                let _ = vcpu.prefault(
                    &mut self.idle,
                    Span::new(gfn, Gfn(gfn.0.saturating_add(1))),
                    Prefault::OLD,
                );
            }
            Back::Enter => {
                let mut cpu = Cpu::default();
                let tag = Tag { vm: at, number: id };
                // The caches of a new processor: the vCPU trusts no translation afterwards.
                drop(vcpu.enter(&mut self.idle, &mut cpu.tlb(TWO, tag, self.fuse)));
            }
            Back::Drop => {
                state.vcpus[id] = None;
                state.vcpus[id] = state.vm.vcpu(VcpuId(id as u32));
            }
        }
    }

    /// Takes a step. It may unwind.
    pub fn take(&mut self, what: &What) {
        let idle = &mut self.idle;
        match *what {
            What::Fault { vm, vcpu, gpa, access } => {
                let state = &mut self.vms[vm];
                if state.waits_at(idle, vcpu, gpa.gfn()) {
                    return;
                }
                state.leaked[vcpu] = false;
                if let Some(vcpu) = &mut state.vcpus[vcpu] {
                    let _ = vcpu.fault(idle, Fault { gpa, access });
                }
            }
            What::Prefault { vm, vcpu, gfns } => {
                let state = &mut self.vms[vm];
                // The range is mapped where it has slots.
                let end = gfns.start.0.saturating_add(2048).min(gfns.end.0);
                if state.may_wait() || state.sections > 0 {
                    return;
                }
                state.leaked[vcpu] = false;
                if let Some(vcpu) = &mut state.vcpus[vcpu] {
                    let _ = vcpu.prefault(idle, Span::new(gfns.start, Gfn(end)), Prefault::OLD);
                }
            }
            What::Enter { vm, vcpu, cpu, gfn, answers, end } => {
                self.enter((vm, vcpu), cpu, gfn, (answers, end));
            }
            What::Switch { vm, vcpu, space } => {
                if let Some(vcpu) = &mut self.vms[vm].vcpus[vcpu] {
                    assert_eq!(vcpu.switch_to(space), usize::from(space.0) < TWO);
                }
            }
            What::Number { vm, vcpu, end } => {
                let state = &mut self.vms[vm];
                match end {
                    // Its number is lost, unless only one vCPU would be left.
                    End::Leaked if state.vcpus.iter().all(Option::is_some) => {
                        forget(state.vcpus[vcpu].take());
                    }
                    _ => state.vcpus[vcpu] = None,
                }
                if end != End::Kept {
                    self.number(vm, vcpu);
                }
            }
            What::TakeBack { vm, pages, why, to_nothing, debt, end } => {
                self.take_back(vm, (pages, why, to_nothing), debt, end);
            }
            What::Told { vm, pages, may_block, to_nothing } => {
                let event = Event { may_block, ..Event::new(bytes(pages), Reason::ChangePte) };
                let vm = self.vms[vm].vm;
                if self.vms.iter().all(|state| state.sections == 0) {
                    Crafty::change_told(vm, idle, event, pages, to_nothing);
                }
            }
            What::InvalidateGfns { vm, gfns, why, end } => {
                if self.vms[vm].has_room() {
                    let change = self.vms[vm].vm.memory().invalidate(gfns, why);
                    self.invalidate(vm, change, Covers::Gfns(gfns), end);
                }
            }
            What::InvalidateHvas { vm, hvas, why, end } => {
                if self.vms[vm].has_room() {
                    let change = self.vms[vm].vm.invalidate(hvas, why);
                    self.invalidate(vm, change, Covers::Hvas(hvas), end);
                }
            }
            What::EndOne { nth, end } => {
                let state = &mut self.vms[nth % TWO];
                let most = state.open.len();
                if most > 0 {
                    let (change, covers) = state.open.remove(nth % most);
                    if end == End::Leaked {
                        forget(change);
                        state.dead.push(covers);
                    }
                }
            }
            What::ZapAll { vm } if self.vms[vm].sections == 0 => {
                let _ = self.vms[vm].vm.zap_all(idle);
            }
            What::Collect { vm } if self.vms[vm].sections == 0 => self.vms[vm].vm.collect(idle),
            What::Budget { vm, bytes } if self.vms[vm].sections == 0 => {
                self.vms[vm].vm.set_table_budget(idle, bytes);
            }
            What::LeakSection { vm, space, snapshot } => self.leak_section(vm, space, snapshot),
            What::ZapAll { .. } | What::Collect { .. } | What::Budget { .. } => {}
            _ => self.take_about_memory(what),
        }
    }

    fn number(&mut self, vm: usize, vcpu: usize) {
        let state = &mut self.vms[vm];
        if state.vcpus[vcpu].is_none() {
            state.vcpus[vcpu] = state.vm.vcpu(VcpuId(vcpu as u32));
        }
    }

    /// The guest uses its processor's translations, and caches one more.
    fn enter(&mut self, (at, id): (usize, usize), cpu: usize, gfn: Gfn, (answers, end): (bool, End)) {
        self.number(at, id);
        let state = &mut self.vms[at];
        let Some(vcpu) = &mut state.vcpus[id] else { return };
        state.leaked[id] = false;
        let space = vcpu.space();
        let number = if self.by_vcpu { id } else { usize::from(space.0) };
        let more = cached(state.vm, &mut self.idle, space, gfn);
        let mut tlb = self.cpus[cpu].tlb(cpu, Tag { vm: at, number }, self.fuse);
        let mut guest = vcpu.enter(&mut self.idle, &mut tlb).poll();
        assert!(!guest.kicked(), "nothing is flushed meanwhile");
        let found = tlb.cached.clone();
        tlb.cached.extend(more);
        if answers {
            guest.answer(&mut tlb);
        }
        if end == End::Leaked {
            state.leaked[id] = true;
            forget(guest);
        } else {
            drop(guest);
        }
        let root = if space.0 == 0 {
            Some(state.vm.memory().root())
        } else {
            state.vm.space(space).map(|space| space.root())
        };
        assert!(root.is_some());
        for old in found {
            let now = cached(state.vm, &mut self.idle, old.space, old.gfn);
            let there = page(state.vm, &mut self.idle, old.space, old.gfn);
            assert_eq!(old.space, space, "{old:x?}: of another address space");
            assert_eq!(there, Some((old.hva, old.pfn)), "{old:x?} is stale; the tables say {now:x?}");
        }
    }

    fn take_back(
        &mut self,
        at: usize,
        (pages, why, to_nothing): (Span<Gfn>, Reason, bool),
        debt: End,
        end: End,
    ) {
        let state = &mut self.vms[at];
        let (vm, covers) = (state.vm, Covers::Hvas(bytes(pages)));
        if !state.has_room() || state.sections > 0 {
            return;
        }
        if debt == End::Proper && end == End::Proper {
            return take_back(vm, &mut self.idle, pages, why, to_nothing);
        }
        let mut change = vm.invalidate(bytes(pages), why);
        let forgotten = debt == End::Leaked;
        if forgotten {
            forget(change.changed(&mut self.idle, bytes(pages), None));
        } else {
            change = change.apply(&mut self.idle).settle();
        }
        vm.host().change(pages, to_nothing);
        match end {
            // If its debt was leaked, its pages are not free before it ends.
            End::Leaked if !forgotten => {
                forget(change);
                state.dead.push(covers);
            }
            End::Kept if !forgotten => state.open.push((change, covers)),
            _ => drop(change),
        }
    }

    /// An invalidation without a change of the host.
    fn invalidate(&mut self, at: usize, change: Invalidation<'vm, F, Crafty<F>>, covers: Covers, end: End) {
        let (mut change, state) = (change, &mut self.vms[at]);
        if end != End::Dropped && state.sections == 0 {
            change = change.apply(&mut self.idle).settle();
        }
        match end {
            End::Leaked => {
                forget(change);
                state.dead.push(covers);
            }
            End::Kept => state.open.push((change, covers)),
            End::Proper | End::Dropped => drop(change),
        }
    }

    fn leak_section(&mut self, at: usize, space: usize, snapshot: bool) {
        let state = &mut self.vms[at];
        if state.sections == MOST_SECTIONS {
            return;
        }
        state.sections += 1;
        // End the open invalidations first, because they might wait for its pages.
        state.open.clear();
        let slots = state.vm.space(SpaceId(space as u8)).expect("there are two");
        if snapshot {
            forget(slots.snapshot(&mut self.idle));
        } else {
            forget(state.vm.memory().lockless(&mut self.idle));
        }
    }

    /// Checks every leaf after a step.
    pub fn check(&mut self) {
        for at in 0..TWO {
            let vm = self.vms[at].vm;
            for space in 0..TWO {
                let space = SpaceId(space as u8);
                let mut leaves = Vec::new();
                if space.0 == 0 {
                    let all = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
                    vm.memory()
                        .lockless(&mut self.idle)
                        .for_each(all, |leaf| leaves.push((leaf.gfns, leaf.leaf.pfn)));
                } else {
                    let probes = [0, 1, 5, 7, 8, 63, 511, 512, 513, 1023, 1024, 1536];
                    for gfn in probes.map(Gfn) {
                        let found = vm.space(space).unwrap().translate(&mut self.idle, gfn);
                        leaves.extend(found.map(|leaf| (leaf.gfns, leaf.leaf.pfn)));
                    }
                }
                for (gfns, pfn) in leaves {
                    for gfn in [gfns.start, Gfn(gfns.start.0.midpoint(gfns.end.0)), Gfn(gfns.end.0 - 1)] {
                        let there = page(vm, &mut self.idle, space, gfn).map(|(_, pfn)| pfn);
                        assert_eq!(
                            Some(pfn_in(pfn, gfns, gfn)),
                            there,
                            "VM {at}, {space:?}, {gfn:?} of {gfns:?}"
                        );
                    }
                }
            }
        }
    }
}

impl<F: Format> VmState<'_, F> {
    fn has_room(&self) -> bool {
        self.open.len() + self.dead.len() < MOST_OPEN
    }

    /// Returns whether faults may wait forever in some range.
    fn may_wait(&self) -> bool {
        !self.open.is_empty() || !self.dead.is_empty()
    }

    /// Returns whether a fault would, or might, wait at this frame.
    fn waits_at(&self, idle: &mut Idle, id: usize, gfn: Gfn) -> bool {
        if self.sections > 0 {
            return true; // it may need a grace period
        }
        if !self.may_wait() {
            return false;
        }
        let Some(vcpu) = &self.vcpus[id] else { return true };
        let here = page_behind(self.vm, idle, vcpu.space(), gfn);
        // A large leaf, and tables that the budget reclaims, widen the covered range.
        let near = Span::new(Gfn(gfn.base(Level::G1).0), Gfn(gfn.base(Level::G1).0 + Level::G1.pages()));
        let large = self.vm.host().largest > Level::K4;
        let covers = self.open.iter().map(|(_, covers)| covers).chain(&self.dead);
        covers.copied().any(|covers| match covers {
            Covers::Gfns(gfns) => gfns.overlaps(&near),
            Covers::Hvas(hvas) => {
                large || here.is_some_and(|hva| hvas.overlaps(&Span::sized(hva, PAGE_SIZE)))
            }
        })
    }
}

/// Returns the host address behind a frame.
fn page_behind<F: Format>(vm: &Vm<F, Crafty<F>>, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Option<Hva> {
    let slot = vm.space(space)?.find(idle, gfn)?;
    Some(slot.hva + (gfn.0 - slot.gfns.start.0) * PAGE_SIZE)
}

/// Returns the same, and the host's page there.
fn page<F: Format>(vm: &Vm<F, Crafty<F>>, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Option<(Hva, Pfn)> {
    let hva = page_behind(vm, idle, space, gfn)?;
    Some((hva, vm.host().page(hva)?.pfn))
}

/// Returns the translation that a processor caches for this frame now.
fn cached<F: Format>(vm: &Vm<F, Crafty<F>>, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Option<Cached> {
    let leaf = vm.space(space)?.translate(idle, gfn)?;
    let hva = page_behind(vm, idle, space, gfn).expect("a mapped frame has a memslot");
    Some(Cached { space, gfn, hva, pfn: pfn_in(leaf.leaf.pfn, leaf.gfns, gfn) })
}

impl What {
    /// Returns whether the step can run beside a vCPU that is in the guest by a leaked guard.
    fn flushes_nothing(&self) -> bool {
        match *self {
            Self::Look { .. } | Self::Switch { .. } | Self::Enter { .. } | Self::LeakSection { .. } => true,
            // The vCPU in the guest comes back itself.
            Self::Fault { vcpu, .. } | Self::Prefault { vcpu, .. } => vcpu == 0,
            _ => false,
        }
    }
}
