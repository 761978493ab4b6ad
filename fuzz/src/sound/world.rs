//! The VMs, what is open in them, what was leaked, and each step taken.
//!
//! | after | until | what waits for ever by contract, and is left out |
//! |---|---|---|
//! | a leaked [`InGuest`](slat::InGuest) | the vCPU's next operation, which `prepare` takes | flushes |
//! | an open or leaked invalidation | its end | faults in its range |
//! | a leaked snapshot or walk | for ever | grace periods |

use super::TWO;
use super::cpus::{Cached, Cpu, Tag};
use super::host::{Crafty, Fuse, bytes, pfn_in, take_back};
use super::step::{Back, End, Step, What};
use crate::Input;
use slat::slots::Hint;
use slat::{
    Event, Fault, Format, Gfn, Harvest, Hva, Idle, Invalidation, Level, PAGE_SIZE, Pfn, SpaceId, Span, Vcpu,
    VcpuId, Vm, Why,
};
use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Invalidations that are open or leaked at once, in one VM: there is room for a few more.
const MOST_OPEN: usize = 48;
/// Sections leaked in one VM: each has a seat of 64.
const MOST_SECTIONS: usize = 8;

/// A VM, and what was done to it.
pub struct Ground<'vm, F: Format> {
    pub vm: &'vm Vm<F, Crafty<F>>,
    pub vcpus: [Option<Vcpu<'vm, F, Crafty<F>>>; TWO],
    /// vCPUs in the guest by a leaked guard.
    leaked: [bool; TWO],
    /// Sections that never end.
    pub sections: usize,
    /// Ranges in which faults wait for ever.
    dead: Vec<Covers>,
    /// Ranges in which they wait.
    open: Vec<(Invalidation<'vm, F, Crafty<F>>, Covers)>,
}

/// What an invalidation covers.
#[derive(Clone, Copy, Debug)]
enum Covers {
    Gfns(Span<Gfn>),
    Hvas(Span<Hva>),
}

/// See the module's header.
pub struct World<'vm, F: Format> {
    pub idle: Idle,
    pub fuse: &'vm Fuse,
    pub vms: [Ground<'vm, F>; TWO],
    pub harvests: Vec<Harvest<'vm, F, Crafty<F>>>,
    pub hints: [Hint; TWO],
    cpus: [Cpu; TWO],
    /// A processor tells vCPUs apart, or else address spaces.
    by_vcpu: bool,
}

impl<'vm, F: Format> World<'vm, F> {
    pub fn new(vms: &'vm [Arc<Vm<F, Crafty<F>>>; TWO], fuse: &'vm Fuse, idle: Idle, by_vcpu: bool) -> Self {
        let ground = |vm: &'vm Arc<Vm<F, Crafty<F>>>| Ground {
            vm,
            vcpus: [0, 1].map(|id| vm.vcpu(VcpuId(id))),
            leaked: [false; TWO],
            sections: 0,
            dead: Vec::new(),
            open: Vec::new(),
        };
        let vms = [ground(&vms[0]), ground(&vms[1])];
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

    /// Slots to begin with.
    pub fn furnish(&mut self, vm: usize, input: &mut Input<'_>) {
        for space in 0..TWO {
            let pages = input.pick(&[2048, 8, 513]);
            let hva = crate::vm::ground::hva(input.pick(&[0, 512, 1]));
            let slot = slat::Slot::new(slat::SlotId(0), Gfn(0), pages, hva);
            self.take(&What::Create { vm, space, slot });
        }
    }

    /// Before a step: what it must not meet is put away.
    pub fn prepare(&mut self, step: &Step) {
        for at in 0..TWO {
            for vcpu in 0..TWO {
                // One in each VM may stay there for steps that flush nothing.
                let stays = vcpu == 0 && !self.vms[at].leaked[1] && step.what.flushes_nothing();
                if self.vms[at].leaked[vcpu] && !stays {
                    self.bring_back(at, vcpu, if vcpu == 0 { Back::Enter } else { step.back });
                }
            }
        }
        let quiet = self.vms.iter().all(|ground| {
            ground.leaked == [false; TWO]
                && ground.sections == 0
                && ground.dead.is_empty()
                && ground.open.is_empty()
        });
        for ground in &self.vms {
            ground.vm.host().quiet.store(quiet, Relaxed);
            *ground.vm.host().next.lock().unwrap() = step.nested;
        }
    }

    /// A vCPU whose guard was leaked does something: it is in the guest no more.
    fn bring_back(&mut self, at: usize, id: usize, back: Back) {
        let ground = &mut self.vms[at];
        ground.leaked[id] = false;
        let waits = ground.may_wait();
        // Memory may be short, and dead tables wait for a grace period.
        let back = if ground.sections > 0 { Back::Enter } else { back };
        let Some(vcpu) = &mut ground.vcpus[id] else { return };
        match back {
            // A frame that no slot has: it does not wait, whatever is invalidated.
            Back::Prefault(gfn) => {
                let gfn = if waits { Gfn(1 << 30) } else { gfn };
                let _ = vcpu.prefault(&mut self.idle, Span::new(gfn, Gfn(gfn.0.saturating_add(1))));
            }
            Back::Enter => {
                let mut cpu = Cpu::default();
                let tag = Tag { vm: at, number: id };
                // The caches of a processor that it was on never: nothing is believed afterwards.
                drop(vcpu.enter(&mut self.idle, &mut cpu.tlb(TWO, tag, self.fuse)));
            }
            Back::Drop => {
                ground.vcpus[id] = None;
                ground.vcpus[id] = ground.vm.vcpu(VcpuId(id as u32));
            }
        }
    }

    /// Takes a step. It may unwind.
    pub fn take(&mut self, what: &What) {
        let idle = &mut self.idle;
        match *what {
            What::Fault { vm, vcpu, gpa, access } => {
                let ground = &mut self.vms[vm];
                if ground.waits_at(idle, vcpu, gpa.gfn()) {
                    return;
                }
                ground.leaked[vcpu] = false;
                if let Some(vcpu) = &mut ground.vcpus[vcpu] {
                    let _ = vcpu.fault(idle, Fault { gpa, access });
                }
            }
            What::Prefault { vm, vcpu, gfns } => {
                let ground = &mut self.vms[vm];
                // All of it is mapped, as far as there are slots.
                let end = gfns.start.0.saturating_add(2048).min(gfns.end.0);
                if ground.may_wait() || ground.sections > 0 {
                    return;
                }
                ground.leaked[vcpu] = false;
                if let Some(vcpu) = &mut ground.vcpus[vcpu] {
                    let _ = vcpu.prefault(idle, Span::new(gfns.start, Gfn(end)));
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
                let ground = &mut self.vms[vm];
                match end {
                    // Its number is lost for good, unless the other vCPU is all there is.
                    End::Leaked if ground.vcpus.iter().all(Option::is_some) => {
                        forget(ground.vcpus[vcpu].take());
                    }
                    _ => ground.vcpus[vcpu] = None,
                }
                if end != End::Kept {
                    self.number(vm, vcpu);
                }
            }
            What::TakeBack { vm, pages, why, to_nothing, debt, end } => {
                self.take_back(vm, (pages, why, to_nothing), debt, end);
            }
            What::Told { vm, pages, may_block, to_nothing } => {
                let event = Event { may_block, ..Event::new(bytes(pages), Why::ChangePte) };
                let vm = self.vms[vm].vm;
                if self.vms.iter().all(|ground| ground.sections == 0) {
                    Crafty::change_told(vm, idle, event, pages, to_nothing);
                }
            }
            What::InvalidateGfns { vm, gfns, why, end } => {
                if self.vms[vm].has_room() {
                    let change = self.vms[vm].vm.invalidate_gfns(gfns, why);
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
                let ground = &mut self.vms[nth % TWO];
                let most = ground.open.len();
                if most > 0 {
                    let (change, covers) = ground.open.remove(nth % most);
                    if end == End::Leaked {
                        forget(change);
                        ground.dead.push(covers);
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
        let ground = &mut self.vms[vm];
        if ground.vcpus[vcpu].is_none() {
            ground.vcpus[vcpu] = ground.vm.vcpu(VcpuId(vcpu as u32));
        }
    }

    /// The guest uses what its processor has cached, and caches one more translation.
    fn enter(&mut self, (at, id): (usize, usize), cpu: usize, gfn: Gfn, (answers, end): (bool, End)) {
        self.number(at, id);
        let ground = &mut self.vms[at];
        let Some(vcpu) = &mut ground.vcpus[id] else { return };
        ground.leaked[id] = false;
        let space = vcpu.space();
        let number = if self.by_vcpu { id } else { usize::from(space.0) };
        let more = cached(ground.vm, &mut self.idle, space, gfn);
        let mut tlb = self.cpus[cpu].tlb(cpu, Tag { vm: at, number }, self.fuse);
        let mut guest = vcpu.enter(&mut self.idle, &mut tlb).poll();
        assert!(!guest.kicked(), "nothing is flushed meanwhile");
        let found = tlb.cached.clone();
        tlb.cached.extend(more);
        if answers {
            guest.answer(&mut tlb);
        }
        if end == End::Leaked {
            ground.leaked[id] = true;
            forget(guest);
        } else {
            drop(guest);
        }
        let root = if space.0 == 0 {
            Some(ground.vm.root())
        } else {
            ground.vm.guest_space(space).map(|space| space.root())
        };
        assert!(root.is_some());
        for old in found {
            let now = cached(ground.vm, &mut self.idle, old.space, old.gfn);
            let there = page(ground.vm, &mut self.idle, old.space, old.gfn);
            assert_eq!(old.space, space, "{old:x?}: of another address space");
            assert_eq!(there, Some((old.hva, old.pfn)), "{old:x?} is stale; the tables say {now:x?}");
        }
    }

    fn take_back(
        &mut self,
        at: usize,
        (pages, why, to_nothing): (Span<Gfn>, Why, bool),
        debt: End,
        end: End,
    ) {
        let ground = &mut self.vms[at];
        let (vm, covers) = (ground.vm, Covers::Hvas(bytes(pages)));
        if !ground.has_room() || ground.sections > 0 {
            return;
        }
        if debt == End::Proper && end == End::Proper {
            return take_back(vm, &mut self.idle, pages, why, to_nothing);
        }
        let mut change = vm.invalidate(bytes(pages), why);
        let owed = change.apply(&mut self.idle);
        let forgotten = debt == End::Leaked;
        if forgotten {
            forget(owed);
        } else {
            drop(owed);
        }
        vm.host().change(pages, to_nothing);
        match end {
            // The pages are not free before it ends, if its debt was forgotten.
            End::Leaked if !forgotten => {
                forget(change);
                ground.dead.push(covers);
            }
            End::Kept if !forgotten => ground.open.push((change, covers)),
            _ => drop(change),
        }
    }

    /// The host changes nothing.
    fn invalidate(&mut self, at: usize, change: Invalidation<'vm, F, Crafty<F>>, covers: Covers, end: End) {
        let (mut change, ground) = (change, &mut self.vms[at]);
        if end != End::Dropped && ground.sections == 0 {
            change.apply(&mut self.idle).settle();
        }
        match end {
            End::Leaked => {
                forget(change);
                ground.dead.push(covers);
            }
            End::Kept => ground.open.push((change, covers)),
            End::Proper | End::Dropped => drop(change),
        }
    }

    fn leak_section(&mut self, at: usize, space: usize, snapshot: bool) {
        let ground = &mut self.vms[at];
        if ground.sections == MOST_SECTIONS {
            return;
        }
        ground.sections += 1;
        // What is open would wait for its pages, now and then: it ends first.
        ground.open.clear();
        let slots = ground.vm.guest_space(SpaceId(space as u8)).expect("there are two").slots();
        if snapshot {
            forget(slots.snapshot(&mut self.idle));
        } else {
            forget(ground.vm.lockless(&mut self.idle));
        }
    }

    /// After a step: every leaf is true.
    pub fn check(&mut self) {
        for at in 0..TWO {
            let vm = self.vms[at].vm;
            for space in 0..TWO {
                let space = SpaceId(space as u8);
                let mut leaves = Vec::new();
                if space.0 == 0 {
                    let all = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
                    vm.lockless(&mut self.idle).for_each(all, |leaf| leaves.push((leaf.gfns, leaf.leaf.pfn)));
                } else {
                    let probes = [0, 1, 5, 7, 8, 63, 511, 512, 513, 1023, 1024, 1536];
                    for gfn in probes.map(Gfn) {
                        let found = vm.guest_space(space).unwrap().translate(&mut self.idle, gfn);
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

impl<F: Format> Ground<'_, F> {
    fn has_room(&self) -> bool {
        self.open.len() + self.dead.len() < MOST_OPEN
    }

    /// Whether faults may wait for ever, in some range.
    fn may_wait(&self) -> bool {
        !self.open.is_empty() || !self.dead.is_empty()
    }

    /// Whether one would, or might, at this frame.
    fn waits_at(&self, idle: &mut Idle, id: usize, gfn: Gfn) -> bool {
        if self.sections > 0 {
            return true; // it may need a grace period
        }
        if !self.may_wait() {
            return false;
        }
        let Some(vcpu) = &self.vcpus[id] else { return true };
        let here = page_behind(self.vm, idle, vcpu.space(), gfn);
        // A large leaf, and the tables that a budget takes back, widen what is covered.
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

/// The host address behind a frame.
fn page_behind<F: Format>(vm: &Vm<F, Crafty<F>>, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Option<Hva> {
    let slot = vm.guest_space(space)?.slots().find(idle, gfn)?;
    Some(slot.hva + (gfn.0 - slot.gfns.start.0) * PAGE_SIZE)
}

/// The same, and the host's page there.
fn page<F: Format>(vm: &Vm<F, Crafty<F>>, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Option<(Hva, Pfn)> {
    let hva = page_behind(vm, idle, space, gfn)?;
    Some((hva, vm.host().page(hva)?.pfn))
}

/// What a processor caches that uses this frame now.
fn cached<F: Format>(vm: &Vm<F, Crafty<F>>, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Option<Cached> {
    let leaf = vm.guest_space(space)?.translate(idle, gfn)?;
    let hva = page_behind(vm, idle, space, gfn).expect("what is mapped has a memslot");
    Some(Cached { space, gfn, hva, pfn: pfn_in(leaf.leaf.pfn, leaf.gfns, gfn) })
}

impl What {
    /// Beside a vCPU that is in the guest by a leaked guard.
    fn flushes_nothing(&self) -> bool {
        match *self {
            Self::Look { .. } | Self::Switch { .. } | Self::Enter { .. } | Self::LeakSection { .. } => true,
            // The vCPU that is left there comes back by itself.
            Self::Fault { vcpu, .. } | Self::Prefault { vcpu, .. } => vcpu == 0,
            _ => false,
        }
    }
}
