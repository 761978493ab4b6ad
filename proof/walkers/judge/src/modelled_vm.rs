//! One VM of the real engine, and the judge's own model of it.
//!
//! The model is simple on purpose: a list of memslots, and the host that the judge itself changes
//! ([`Backing`](crate::backing::Backing)). It shares no code with the engine. For a guest frame it gives the host's
//! frame, and whether it is writable. It does not say whether the frame is mapped yet; the raw words do.

use crate::backing::{Backing, FIXED, GIB, REGIONS, SMALL};
use crate::machine_trait::{Fixed, Machine};
use crate::pattern::Pattern;
use crate::random::Random;
use crate::report::Report;
use crate::tables::{self, Excused};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use slat::{
    Access, Emulate, Fault, FaultError, Format, Gfn, Gpa, HostError, Hva, Idle, Leave, Level, MemoryType,
    Next, PAGE_SHIFT, Pfn, Slot, SlotId, SpaceId, Span, Vcpu, Vm,
};

/// Address spaces of each VM.
pub(crate) const SPACES: u8 = 2;
/// Most memslots of a space, besides the fixed ones.
const SLOTS: usize = 20;

/// A VM and its model.
pub(crate) struct ModelledVm<'vm, F: Format> {
    pub(crate) vm: &'vm Vm<F, Backing>,
    pub(crate) vcpu: Vcpu<'vm, F, Backing>,
    pub(crate) random: Random,
    pub(crate) pattern: Pattern,
    pub(crate) slots: Vec<Known>,
    /// Logged stores that no harvest has reported: space, slot and page.
    pub(crate) written: BTreeSet<(SpaceId, SlotId, u64)>,
    pub(crate) fixed: Vec<Fixed>,
    /// Number of guest frames that a guest can address.
    pub(crate) frames: u64,
    next_id: u32,
}

/// A memslot of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) space: SpaceId,
    pub(crate) slot: Slot,
    /// It has the guest's own frames, and stays.
    pub(crate) fixed: bool,
}

/// The host's page of a guest frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    pub(crate) pfn: Pfn,
    pub(crate) writable: bool,
    pub(crate) memory: MemoryType,
}

impl<'vm, F: Format> ModelledVm<'vm, F> {
    /// Makes a VM with the guest's own memslots in each space.
    pub(crate) fn new<M: Machine>(
        vm: &'vm Vm<F, Backing>,
        vcpu: Vcpu<'vm, F, Backing>,
        idle: &mut Idle,
        random: Random,
        (report, pattern): (&mut Report<'_, M>, Pattern),
    ) -> Self {
        let fixed = report.machine.fixed().to_vec();
        let bits = F::FRAME_BITS.min(report.machine.gpa_bits() - PAGE_SHIFT);
        let (slots, written, frames) = (Vec::new(), BTreeSet::new(), 1 << bits);
        let mut modelled = Self { vm, vcpu, random, pattern, slots, written, fixed, frames, next_id: 0 };
        for space in (0..SPACES).map(SpaceId) {
            for own in report.machine.fixed().to_vec() {
                let hva = FIXED + own.pfn.address();
                modelled.create(idle, report, (space, true), |id| Slot::new(id, own.gfn, own.pages, hva));
            }
        }
        modelled
    }

    fn create<M: Machine>(
        &mut self,
        idle: &mut Idle,
        report: &mut Report<'_, M>,
        (space, fixed): (SpaceId, bool),
        slot: impl FnOnce(SlotId) -> Slot,
    ) {
        let slot = slot(SlotId(self.next_id));
        self.next_id += 1;
        let Some(slots) = self.vm.space(space) else { return };
        match slots.commit(idle, |tx| tx.create(slot)) {
            Ok(()) => self.slots.push(Known { space, slot, fixed }),
            Err(error) => report.differ(format_args!("the engine refused a memslot: {error}")),
        }
    }

    /// Adds a memslot somewhere, if there is room.
    pub(crate) fn create_somewhere<M: Machine>(&mut self, idle: &mut Idle, report: &mut Report<'_, M>) {
        let space = SpaceId(self.random.below(u64::from(SPACES)) as u8);
        if self.slots.iter().filter(|known| known.space == space && !known.fixed).count() >= SLOTS {
            return;
        }
        let small = REGIONS * Level::M2.pages();
        let (pages, hva, align) = match self.random.below(8) {
            // The GiB, or its first half, congruent.
            0 | 1 => (Level::G1.pages() >> self.random.below(2), GIB, Level::G1),
            // Some regions, congruent.
            2..=4 => {
                let region = self.random.below(REGIONS - 2);
                (1 + self.random.below(3 * Level::M2.pages()), SMALL + region * Level::M2.bytes(), Level::M2)
            }
            // Any pages.
            _ => {
                let pages = 1 + self.random.below(700);
                (pages, SMALL + (self.random.below(small - pages) << PAGE_SHIFT), Level::K4)
            }
        };
        let Some(gfn) = self.place(space, pages, align) else { return };
        let (readonly, log_dirty) = (self.random.once_in(6), self.random.once_in(4));
        let memory =
            if self.random.once_in(3) { self.random.pick(&MemoryType::ALL) } else { MemoryType::WriteBack };
        // It is undefined what a processor does when it executes a device's registers.
        let execute = memory < MemoryType::Uncached && !self.random.once_in(6);
        self.create(idle, report, (space, false), |id| Slot {
            readonly,
            log_dirty,
            execute,
            memory,
            ..Slot::new(id, gfn, pages, hva)
        });
    }

    /// Returns a free place for a slot, near a boundary of the tables.
    pub(crate) fn place(&mut self, space: SpaceId, pages: u64, align: Level) -> Option<Gfn> {
        if pages > self.frames {
            return None;
        }
        for _ in 0..4 {
            let unit = 1 << self.random.below(u64::from(self.frames.trailing_zeros()));
            let edge = self.random.below(self.frames / unit) * unit;
            let first = match self.random.below(5) {
                0 => edge,
                1 => edge.saturating_sub(pages / 2),
                2 => edge.saturating_sub(pages),
                3 => self.frames - pages,
                _ => 0,
            };
            let first = first.min(self.frames - pages) & !(align.pages() - 1);
            let gfns = Span::sized(Gfn(first), pages);
            let taken = |known: &Known| known.space == space && known.slot.gfns.overlaps(&gfns);
            if !self.slots.iter().any(taken) {
                return Some(gfns.start);
            }
        }
        None
    }

    /// Returns the index of a removable slot.
    pub(crate) fn any_slot(&mut self) -> Option<usize> {
        let loose: Vec<usize> = (0..self.slots.len()).filter(|&index| !self.slots[index].fixed).collect();
        (!loose.is_empty()).then(|| self.random.pick(&loose))
    }

    /// Returns the slot of a frame, in the vCPU's space.
    pub(crate) fn slot(&self, gfn: Gfn) -> Option<Slot> {
        let here = |known: &&Known| known.space == self.vcpu.space() && known.slot.gfns.contains(gfn);
        self.slots.iter().find(here).map(|known| known.slot)
    }

    /// Returns the host's page of a frame, in the vCPU's space.
    pub(crate) fn behind(&self, gfn: Gfn) -> Option<Behind> {
        let slot = self.slot(gfn)?;
        let page = self.vm.host().page(slot.hva_of(gfn))?;
        let (writable, memory) = (page.writable && !slot.readonly, page.memory.max(slot.memory));
        Some(Behind { pfn: page.pfn, writable, memory })
    }

    /// Returns whether the guest may access the frame, whatever the walker does: of the GiB and of the guest's own
    /// frames only the pattern may be touched.
    pub(crate) fn is_safe(&self, gfn: Gfn) -> bool {
        self.behind(gfn).is_none_or(|behind| self.pattern.frames().contains(behind.pfn))
    }

    /// Lets the engine handle a fault, and compares the result with the model.
    pub(crate) fn fault<M: Machine>(
        &mut self,
        idle: &mut Idle,
        report: &mut Report<'_, M>,
        (gpa, access): (Gpa, Access),
    ) -> bool {
        let gfn = gpa.gfn();
        let (slot, behind) = (self.slot(gfn), self.behind(gfn));
        let store = access == Access::Write;
        let refuses = |slot: Slot| store && slot.readonly || access == Access::Fetch && !slot.execute;
        let done = self.vcpu.fault(idle, Fault { gpa, access });
        let (right, again) = match done {
            Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly)) => (slot.is_none_or(refuses), false),
            Ok(Next::Leave(Leave::RingFull)) => (false, false),
            Ok(_) => {
                (behind.is_some_and(|behind| behind.writable || !store) && !slot.is_some_and(refuses), true)
            }
            Err(FaultError::Host(HostError::Fault)) => {
                (slot.is_some() && behind.is_none_or(|behind| store && !behind.writable), false)
            }
            Err(_) => (false, false),
        };
        if !right {
            report.differ(format_args!("a fault, {access:?} at {gpa}: {done:?}, and {behind:?} in {slot:?}"));
        }
        again
    }

    /// Maps the guest's own frames again, if they were removed.
    pub(crate) fn map_fixed<M: Machine>(&mut self, idle: &mut Idle, report: &mut Report<'_, M>) {
        for gfn in self.fixed_gfns() {
            if let Some(root) = self.vm.space(self.vcpu.space()).map(|space| space.root()) {
                // SAFETY: a root that is linked; nothing of the engine runs beside this.
                let path = unsafe { tables::path::<F>(root, gfn) };
                let word = path[path.len() - 1].word;
                if F::is_present(word) && F::writable(word) && F::read_leaf(word).perms.allows(Access::Fetch)
                {
                    continue;
                }
            }
            for access in [Access::Write, Access::Fetch] {
                self.fault(idle, report, (gfn.gpa(), access));
            }
        }
    }

    /// Returns entries on the path to the guest's own frames, which walkers use in every look-up.
    ///
    /// # Safety
    /// `root` is in use, and the engine is not called meanwhile.
    pub(crate) unsafe fn excused(&self, root: Pfn) -> Excused {
        let mut excused = Excused::new();
        for gfn in self.fixed_gfns() {
            // SAFETY: the caller promises that `root` is in use, and does not call the engine meanwhile.
            for step in unsafe { tables::path::<F>(root, gfn) } {
                let link = F::is_table(step.word, step.level);
                let bits = if link { F::touch_link(step.level) } else { F::touch(Access::Write) };
                excused.insert((step.table.0, step.index), bits);
            }
        }
        excused
    }

    fn fixed_gfns(&self) -> Vec<Gfn> {
        self.fixed.iter().flat_map(|own| (0..own.pages).map(|page| own.gfn + page)).collect()
    }

    /// Returns a frame of the pattern that begins a page of `level`.
    pub(crate) fn any_frame(&mut self, level: Level) -> Pfn {
        let frames = self.pattern.frames();
        let blocks = frames.len() / level.pages();
        frames.start + self.random.below(blocks) * level.pages()
    }
}

/// Returns host addresses of `pages` pages of the small regions from `page` on.
pub(crate) fn hvas(page: u64, pages: u64) -> Span<Hva> {
    Span::sized(SMALL + (page << PAGE_SHIFT), pages << PAGE_SHIFT)
}
