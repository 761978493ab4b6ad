//! The threads of the host and of the VMM.

use super::{HIDDEN, World, primary_mmu};
use crate::plan::op::{Change, Op, Telling};
use crate::plan::{Cpu, layout};
use slat::inject::PausedFault;
use slat::{
    Access, Event, Format, Gfn, HostPage, Hva, Idle, Level, Reason, SecondaryMmu as _, SlotId, Span, VcpuId,
    WriteListener, Young,
};
use slat_machine::{now, pause, rest};
use std::cell::RefCell;
use std::sync::Arc;

/// Runs a thread through its program.
pub fn run<F: Format>(world: &World<F>, cpu: &Cpu) {
    let mut idle = Idle::take().expect("one on each CPU");
    for (number, op) in &cpu.ops {
        world.story(|| format!("{number}: {op:?}"));
        world.operate(&mut idle, op);
        world.story(|| format!("{number}: done"));
        world.check();
    }
}

impl<F: Format> World<'_, F> {
    fn operate(&self, idle: &mut Idle, op: &Op) {
        let vm = &self.vm;
        match op {
            Op::Rest(ns) => rest(*ns),
            Op::Align(ns) => rest(ns - now() % ns),
            &Op::Change { first, pages, change, why, telling, sleeps } => {
                self.change(idle, first..first + pages, (change, why, telling), sleeps);
            }
            &Op::Replace(page, sleeps) => self.replace(idle, page, sleeps),
            Op::Zap(gfns, why) => {
                drop(vm.memory().invalidate(*gfns, *why).apply(idle).settle());
            }
            Op::WriteProtect(gfns) => {
                vm.memory().write_protect(idle, *gfns).settle();
            }
            Op::Track(gfns, ns) => self.track(idle, *gfns, *ns),
            &Op::Keep(gfn, access, ns) => self.keep(idle, gfn, access, ns),
            Op::Age(gfns) => vm.memory().lockless(idle).age(*gfns, |_| {}),
            &Op::Young(first, pages, flushes) => {
                let young = if flushes { Young::ClearAndFlush } else { Young::Clear };
                vm.young(idle, primary_mmu::hvas(&(first..first + pages)), young);
                if !flushes {
                    vm.forget(idle, primary_mmu::hvas(&(first..first + pages)));
                }
            }
            // Without memory for tables fewer pages are split.
            Op::Split(gfns) => drop(vm.memory().split(idle, *gfns, Level::K4)),
            Op::Recover(gfns) => drop(vm.memory().recover(idle, *gfns)),
            // Without memory for tables the root stays.
            Op::ZapAll => drop(vm.zap_all(idle)),
            Op::Collect => vm.collect(idle),
            Op::Budget(pages) => {
                vm.set_table_budget(idle, pages << 12);
                pause();
                vm.set_table_budget(idle, self.plan.budget.map_or(u64::MAX, |pages| pages << 12));
            }
            Op::Harvest(commits) => self.harvest(idle, *commits),
            Op::HarvestSlot(slot, commits) => {
                self.take(vm.memory().harvest(idle, SlotId(*slot)), *commits);
            }
            Op::HarvestRing(vcpu, commits) => self.take(vm.harvest_ring(idle, VcpuId(*vcpu)), *commits),
            Op::Hold(ns) => {
                let slots = vm.memory();
                let _snapshot = slots.snapshot(idle);
                rest(*ns);
            }
            Op::Device(page) => self.device(*page),
            Op::Walk(gfns) => vm.memory().lockless(idle).for_each(*gfns, |_| {}),
            Op::Create(..) | Op::Delete(_) | Op::Move(..) | Op::Exchange(..) | Op::Log(..) => {
                let _ = self.slots_op(idle, op);
            }
            // An operation of a vCPU.
            Op::Touch(..) | Op::Compute(_) | Op::Linger(_) | Op::Leave | Op::Prefault(_) => {}
        }
    }

    /// The host changes pages of one region as a primary MMU does: announce, wait, change, end, free the frames.
    fn change(
        &self,
        idle: &mut Idle,
        pages: std::ops::Range<u64>,
        (change, why, telling): (Change, Reason, Telling),
        sleeps: u64,
    ) {
        let overlaps = telling == Telling::Overlapping;
        let held = (!overlaps).then(|| self.host.lock(pages.start));
        let hvas = primary_mmu::hvas(&pages);
        let sleep = || {
            if sleeps > 0 {
                rest(sleeps);
            }
        };
        let edit = || {
            let freed = self.host.edit(&pages, change);
            if change == Change::Drop {
                // The VMM knows which pages it has discarded.
                self.copies.borrow_mut().retain(|page, _| !pages.contains(page));
            }
            self.story(|| format!("  the host has changed {pages:#x?}"));
            self.check();
            freed
        };
        let mut freed = Vec::new();
        if matches!(telling, Telling::Invalidate | Telling::Overlapping) {
            let paused = self.vm.paused_fault(idle, self.frames_of(&pages));
            let _invalidation = self.vm.invalidate(hvas, why).apply(idle).settle();
            sleep();
            let _held = overlaps.then(|| self.host.lock(pages.start));
            self.continue_fault(idle, paused, &pages);
            freed = edit();
        } else {
            let may_block = telling == Telling::Around;
            let event = Event { may_block, ..Event::new(hvas, why) };
            let told = self.vm.around(idle, event, &mut |idle, told| {
                if why.page_by_page() {
                    told.changed(idle, hvas, None);
                    told.flush(idle);
                }
                sleep();
                freed = edit();
            });
            self.story(|| format!("  told: {told:?}"));
        }
        self.host.free(freed);
        drop(held);
    }

    /// The frames behind which these pages are, of those that guests use, and the addresses of the pages.
    fn frames_of(&self, pages: &std::ops::Range<u64>) -> impl Iterator<Item = (Gfn, Hva)> {
        layout::used_in(pages).filter_map(|page| Some((self.windows.frame_of(page)?, primary_mmu::hva(page))))
    }

    /// The fault that paused before an invalidation of these pages began continues. The host is about to change the
    /// pages. The fault may map none of those that it has now.
    fn continue_fault(&self, idle: &mut Idle, paused: Option<PausedFault>, pages: &std::ops::Range<u64>) {
        let filled = paused.and_then(|fault| self.vm.may_fill(idle, &fault, self.frames_of(pages)));
        if let Some(gfn) = filled {
            self.wrong(HIDDEN, || format!("frame {:#x}", gfn.0));
        }
    }

    /// Replaces a page by one with the same contents: first the guests lose write permission.
    fn replace(&self, idle: &mut Idle, page: u64, sleeps: u64) {
        let held = self.host.lock(page);
        let hvas = primary_mmu::hvas(&(page..page + 1));
        let protecting = self.vm.invalidate(hvas, Reason::WriteProtect).apply(idle).settle();
        self.host.edit(&(page..page + 1), Change::Protect);
        self.check();
        drop(protecting);
        let Some([old, new]) = self.host.replacement(page) else { return };
        let told = self.vm.around(idle, Event::new(hvas, Reason::ChangePte), &mut |idle, pages| {
            self.host.replace(page, new);
            pages.changed(idle, hvas, Some(HostPage { writable: false, ..new }));
            if sleeps > 0 {
                rest(sleeps);
            }
            pages.flush(idle);
            self.host.replaced(page, old);
            self.check();
        });
        told.expect("it may wait");
        drop(held);
    }

    /// Tracks stores to frames for a while. Without memory for tables, nothing is tracked.
    fn track(&self, idle: &mut Idle, gfns: Span<Gfn>, ns: u64) {
        struct Unheard;
        impl WriteListener for Unheard {}
        let Ok(tracking) = self.vm.memory().track_writes(idle, gfns, Arc::new(Unheard)) else { return };
        self.rest_with(&self.tracked, gfns, ns);
        drop(tracking);
    }

    /// Rests with `item` in `list`.
    fn rest_with<T: Copy + PartialEq>(&self, list: &RefCell<Vec<T>>, item: T, ns: u64) {
        list.borrow_mut().push(item);
        self.check();
        rest(ns);
        let mut list = list.borrow_mut();
        let mine = list.iter().position(|of| *of == item).expect("it was put there");
        list.remove(mine);
    }

    /// Holds a frame and uses it for a while, three times. Without a memslot or a host page, nothing is held.
    fn keep(&self, idle: &mut Idle, gfn: Gfn, access: Access, ns: u64) {
        let Ok(mut held) = self.vm.memory().hold(idle, gfn, access) else { return };
        for _ in 0..3 {
            if let Some(page) = held.read(idle) {
                self.rest_with(&self.kept, (gfn, page.pfn(), access), ns);
            } else if held.refresh(idle).is_err() {
                return;
            }
            rest(ns);
        }
    }

    /// A device writes to a page.
    fn device(&self, page: u64) {
        let held = self.host.lock(page);
        if self.host.device(page) {
            self.vm.mark_dirty(primary_mmu::hvas(&(page..page + 1)));
        }
        drop(held);
    }

    /// Harvests all logs.
    pub fn harvest(&self, idle: &mut Idle, commits: bool) {
        self.take(self.vm.memory().harvest_all(idle), commits);
    }

    /// Copies the pages of a harvest and commits it, or copies some and returns the rest.
    fn take(
        &self,
        harvest: Result<slat::Harvest<'_, F, primary_mmu::Handle>, slat::DirtyError>,
        commits: bool,
    ) {
        // The slot does not log, the VM has no rings, or memory ran out: nothing was taken.
        let Ok(harvest) = harvest else { return };
        for page in harvest.iter() {
            pause();
            self.story(|| format!("  copies page {:#x}", primary_mmu::page_of(page.hva)));
            self.copied(primary_mmu::page_of(page.hva));
            if !commits {
                break;
            }
        }
        if commits { harvest.commit() } else { harvest.give_back() }
    }
}
