//! Random operations of the engine on a VM between look-ups.

use crate::backing::{GIB, REGIONS, SMALL};
use crate::machine_trait::Machine;
use crate::modelled_vm::{Known, ModelledVm, SPACES, hvas};
use crate::report::Report;
use alloc::collections::BTreeSet;
use slat::{Access, Format, Gfn, HostPage, Idle, Level, Prefault, Reason, SlotId, SpaceId, Span};

impl<F: Format> ModelledVm<'_, F> {
    /// Does one operation of a host, a VMM or a migration.
    pub(crate) fn change<M: Machine>(&mut self, idle: &mut Idle, report: &mut Report<'_, M>) {
        match self.random.below(24) {
            0..=2 => self.create_somewhere(idle, report),
            3 => self.change_slot(idle, report),
            4 => self.toggle_log(idle, report),
            5..=7 => self.change_small_page(idle, report),
            8 | 9 => self.change_region(idle),
            10 => self.change_permission(idle),
            11 => self.replace_page(idle),
            12 => self.harvest(idle, report),
            13 => {
                if self.random.once_in(3) && self.vm.zap_all(idle).is_err() {
                    report.differ(format_args!("no page for a fresh root"));
                }
            }
            14 => {
                let (gfns, to) = (self.range(), self.random.pick(&[Level::K4, Level::M2]));
                if self.vm.memory().split(idle, gfns, to).is_err() {
                    report.differ(format_args!("no page to split into"));
                }
            }
            15 => _ = self.vm.memory().recover(idle, Span::new(Gfn(0), Gfn(self.frames))),
            16 => _ = self.vm.memory().write_protect(idle, self.range()).settle(),
            17 | 18 => {
                let gfns = self.range();
                self.vm.memory().lockless(idle).age(gfns, |_| ());
                // A walker with a cached entry sets no bit, so aging is approximate. Flush, so that it is exact here.
                report.machine.flush();
            }
            19 => {
                let gfns = self.range();
                let _ = self.vcpu.prefault(idle, Span::sized(gfns.start, gfns.len().min(600)), Prefault::OLD);
            }
            20 => _ = self.vcpu.switch_to(SpaceId(self.random.below(u64::from(SPACES)) as u8)),
            _ => self.touch_much(idle, report),
        }
    }

    /// Draws guest frames around a slot, a part of one, or all frames.
    fn range(&mut self) -> Span<Gfn> {
        let everything = Span::new(Gfn(0), Gfn(self.frames));
        let Some(index) = self.any_slot().filter(|_| !self.random.once_in(8)) else { return everything };
        let gfns = self.slots[index].slot.gfns;
        if self.random.once_in(2) {
            return gfns;
        }
        let first = gfns.start + self.random.below(gfns.len());
        Span::sized(first, 1 + self.random.below(600)).clamp(&everything)
    }

    /// Deletes or moves a slot.
    fn change_slot<M: Machine>(&mut self, idle: &mut Idle, report: &mut Report<'_, M>) {
        let Some(index) = self.any_slot() else { return };
        let (space, slot) = (self.slots[index].space, self.slots[index].slot);
        let Some(slots) = self.vm.space(space) else { return };
        let congruent = [Level::K4, Level::M2, Level::G1][self.random.below(3) as usize];
        let place = if self.random.once_in(2) { self.place(space, slot.gfns.len(), congruent) } else { None };
        let done = if let Some(gfn) = place {
            self.slots[index].slot.gfns = Span::sized(gfn, slot.gfns.len());
            slots.commit(idle, |tx| tx.move_to(slot.id, gfn))
        } else {
            self.slots.remove(index);
            self.forget_written(space, slot.id);
            slots.commit(idle, |tx| tx.delete(slot.id))
        };
        if let Err(error) = done {
            report.differ(format_args!("the engine refused to move or delete a memslot: {error}"));
        }
    }

    fn toggle_log<M: Machine>(&mut self, idle: &mut Idle, report: &mut Report<'_, M>) {
        let Some(index) = self.any_slot() else { return };
        let known = &mut self.slots[index];
        known.slot.log_dirty ^= true;
        let (space, slot) = (known.space, known.slot);
        self.forget_written(space, slot.id);
        let Some(slots) = self.vm.space(space) else { return };
        if let Err(error) = slots.commit(idle, |tx| tx.set_log_dirty(slot.id, slot.log_dirty)) {
            report.differ(format_args!("the engine refused to switch a log: {error}"));
        }
    }

    fn forget_written(&mut self, space: SpaceId, id: SlotId) {
        self.written.retain(|&(other, slot, _)| (other, slot) != (space, id));
    }

    /// Harvests a dirty log, which must have every page that the guest has stored to.
    fn harvest<M: Machine>(&mut self, idle: &mut Idle, report: &mut Report<'_, M>) {
        let logging = |known: &&Known| known.slot.log_dirty;
        let Some(&known) = self.slots.iter().find(logging) else { return };
        // Another slot each time.
        self.slots.rotate_left(1);
        let Some(slots) = self.vm.space(known.space) else { return };
        let harvest = match slots.harvest(idle, known.slot.id) {
            Ok(harvest) => harvest,
            Err(error) => return report.differ(format_args!("the engine refused a harvest: {error}")),
        };
        let told: BTreeSet<u64> = harvest.iter().map(|page| page.page).collect();
        let mine = |&&(space, id, _): &&(SpaceId, SlotId, u64)| (space, id) == (known.space, known.slot.id);
        for (_, _, page) in self.written.iter().filter(mine).filter(|(_, _, page)| !told.contains(page)) {
            report.differ(format_args!("lost: a store to page {page} of {:?}", known.slot));
        }
        if self.random.once_in(3) {
            harvest.give_back();
        } else {
            harvest.commit();
            self.forget_written(known.space, known.slot.id);
        }
    }

    /// Replaces or removes a page of the host.
    fn change_small_page<M: Machine>(&mut self, idle: &mut Idle, _: &mut Report<'_, M>) {
        let most = if self.random.once_in(4) { 80 } else { 3 };
        let pages = 1 + self.random.below(most);
        let first = self.random.below(REGIONS * Level::M2.pages() - pages);
        let goes = self.random.once_in(3);
        let why = if goes {
            self.random.pick(&[Reason::Unmap, Reason::Clear, Reason::Remap])
        } else {
            self.random.pick(&[Reason::Migrate, Reason::Clear])
        };
        let _change = self.vm.invalidate(hvas(first, pages), why).apply(idle).settle();
        for page in first..first + pages {
            let to = (!goes).then(|| (self.any_frame(Level::K4), !self.random.once_in(4)));
            self.vm.host().set(page, to);
        }
    }

    /// Makes a region a huge page, or small pages.
    fn change_region(&mut self, idle: &mut Idle) {
        let region = self.random.below(REGIONS);
        let change = self.vm.invalidate(hvas(region * Level::M2.pages(), Level::M2.pages()), Reason::Migrate);
        let _change = change.apply(idle).settle();
        if self.random.once_in(3) {
            for page in region * Level::M2.pages()..(region + 1) * Level::M2.pages() {
                let frame = self.any_frame(Level::K4);
                self.vm.host().set(page, (!self.random.once_in(8)).then_some((frame, true)));
            }
        } else {
            let (frame, writable) = (self.any_frame(Level::M2), !self.random.once_in(4));
            self.vm.host().set_huge(region, frame, writable);
        }
    }

    /// Changes a write permission of the host. A grant needs no invalidation.
    fn change_permission(&mut self, idle: &mut Idle) {
        let (region, gives) = (self.random.below(REGIONS + 1), self.random.once_in(2));
        let gib = region == REGIONS;
        let hvas = if gib {
            Span::sized(GIB, Level::G1.bytes())
        } else {
            Span::sized(SMALL + region * Level::M2.bytes(), Level::M2.bytes())
        };
        let change = (!gives).then(|| {
            let why = self.random.pick(&[Reason::Protect, Reason::WriteProtect, Reason::SoftDirty]);
            self.vm.invalidate(hvas, why).apply(idle).settle()
        });
        if gib {
            self.vm.host().set_gib_writable(gives);
        } else {
            self.vm.host().set_region_writable(region, gives);
        }
        drop(change);
    }

    /// Replaces or removes pages that the host reports one by one.
    fn replace_page(&mut self, idle: &mut Idle) {
        let pages = 1 + self.random.below(4);
        let first = self.random.below(REGIONS * Level::M2.pages() - pages);
        if self.vm.host().is_huge(first / Level::M2.pages()) {
            return;
        }
        let why = self.random.pick(&[Reason::ChangePte, Reason::ChangePte, Reason::Reclaim, Reason::Numa]);
        let mut change = self.vm.invalidate(hvas(first, pages + 2), why);
        for page in first..first + pages {
            let to = (why == Reason::ChangePte).then(|| (self.any_frame(Level::K4), self.random.once_in(2)));
            self.vm.host().set(page, to);
            let now = to.map(|(pfn, writable)| HostPage { pfn, writable, ..HostPage::PLAIN });
            change.changed(idle, hvas(page, 1), now).settle();
        }
    }

    /// Makes faults all over a slot.
    fn touch_much<M: Machine>(&mut self, idle: &mut Idle, report: &mut Report<'_, M>) {
        let here = self.vcpu.space();
        let Some(index) = self.any_slot().filter(|&index| self.slots[index].space == here) else { return };
        let gfns = self.slots[index].slot.gfns;
        for _ in 0..40 {
            let gfn = gfns.start + self.random.below(gfns.len());
            let access = self.random.pick(&[Access::Read, Access::Read, Access::Write, Access::Fetch]);
            self.fault(idle, report, (gfn.gpa(), access));
        }
    }
}
