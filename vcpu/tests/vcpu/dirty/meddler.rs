//! What is done to the VM meanwhile: whatever takes a leaf away, or changes it, must not take a store's trace with it.

use super::collector::Way;
use super::random::Random;
use super::world::{Around, HVA, NEIGHBOUR, Other, PAGES, PLACES, SLOT, VCPUS, World, neighbour};
use slat::*;
use slat_mm::{AddressSpace, Balancer, HostView, Prot, Settings};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Reasons that are decided when they begin: telling them with nothing changed is allowed, and takes as much.
const REASONS: [Why; 8] = [
    Why::Unmap,
    Why::Remap,
    Why::Exit,
    Why::Clear,
    Why::Migrate,
    Why::Protect,
    Why::WriteProtect,
    Why::SoftDirty,
];
/// Steps that the guests make before the next thing is done to them; at most.
const PACE: u64 = 300;

/// See the module's header.
pub struct Meddler<'w, F: Format> {
    world: &'w World<F>,
    random: Random,
    /// Whose pages are shared with the guests' memory, until they are written.
    snapshot: Option<Arc<AddressSpace>>,
    neighbour_logs: bool,
    /// What it took from the log, and gives back.
    stolen: Option<Harvest<'w, F, HostView>>,
}

impl<'w, F: Format> Meddler<'w, F> {
    pub fn new(world: &'w World<F>) -> Self {
        Self {
            world,
            random: Random::new(!world.setting.seed),
            snapshot: None,
            neighbour_logs: false,
            stolen: None,
        }
    }

    /// Meddles while guests are at work.
    pub fn round(&mut self, idle: &mut Idle) {
        let world = self.world;
        if world.setting.around == Around::Nothing {
            return;
        }
        while world.guests_at_work.load(SeqCst) > 0 && !world.is_over() {
            match world.setting.around {
                Around::Zaps => self.zap_what_is_used(idle),
                _ => self.meddle(idle),
            }
            world.had_a_turn(Other::Meddler);
            world.let_guests_run(self.random.below(PACE));
        }
        self.stolen = None;
    }

    fn zap_what_is_used(&mut self, idle: &mut Idle) {
        let used = Span::sized(HVA, self.world.setting.pages_in_use() * PAGE_SIZE);
        self.world.vm.invalidate(used, Why::Clear).apply(idle).settle();
    }

    fn meddle(&mut self, idle: &mut Idle) {
        let (world, random) = (self.world, &mut self.random);
        let first = random.below(PAGES);
        let most = random.pick(&[1, 8, 64, PAGES]);
        let pages = first..PAGES.min(first + 1 + random.below(most));
        let hvas = Span::new(HVA + pages.start * PAGE_SIZE, HVA + pages.end * PAGE_SIZE);
        let base = Gfn(world.base.load(SeqCst));
        let gfns = Span::new(base + pages.start, base + pages.end);
        let vm = &world.vm;
        match random.below(30) {
            0..5 => {
                let why = random.pick(&REASONS);
                vm.invalidate(hvas, why).apply(idle).settle();
            }
            5..7 => _ = world.space.migrate(idle, hvas).unwrap(),
            // Every page is shared, and the next store to each breaks that.
            7 => self.snapshot = Some(world.space.fork(idle).unwrap()),
            8 => self.snapshot = None,
            9 => world.space.clear_soft_dirty(idle, hvas).unwrap(),
            10..12 => vm.lockless(idle).age(gfns, |_| {}),
            12 => {
                let young = random.pick(&[Young::Test, Young::Clear, Young::ClearAndFlush]);
                SecondaryMmu::young(&**vm, idle, hvas, young);
            }
            13 => _ = vm.write_protect(idle, gfns).settle(),
            14 => vm.zap_all(idle).unwrap(),
            // In place, whatever they are; a slot that logs keeps its small pages.
            15 if random.one_in(2) => _ = vm.split(idle, gfns, Level::K4).unwrap(),
            15 => _ = vm.recover(idle, gfns),
            16 => {
                // Tables are taken back with all that is in them.
                vm.set_table_budget(idle, random.below(12) * PAGE_SIZE);
                std::thread::yield_now();
                vm.set_table_budget(idle, u64::MAX);
            }
            17..19 => self.move_slot(idle),
            19 => {
                // Ahead of the guests: what is mapped for a store that was never made is not dirty.
                let mut vcpu =
                    vm.vcpu(VcpuId(VCPUS as u32)).expect("it is free between the rounds' beginnings");
                // It ends where the slot has moved, or table pages run short.
                let _ = vcpu.prefault(idle, gfns);
            }
            20..23 => self.steal(idle),
            23 => {
                for prot in [Prot::Read, Prot::ReadWrite] {
                    world.space.mprotect(idle, hvas, prot).unwrap();
                }
            }
            24 => _ = world.space.pageout(idle, hvas).unwrap(),
            25..27 => _ = world.ksm.scan(idle, 1 + random.below(2 * PAGES)),
            27 => Balancer::new(&world.space, Settings::default()).scan(idle, 1 << 24).unwrap(),
            _ => self.change_the_neighbour(idle),
        }
    }

    /// Takes what the log has, while others harvest it, and gives it back later. Where it is got and cleared in parts, it
    /// would be missed.
    fn steal(&mut self, idle: &mut Idle) {
        if matches!(self.world.setting.way, Way::Harvest | Way::HarvestAll) && self.stolen.take().is_none() {
            // In the middle of a round the log may not be on yet.
            self.stolen = self.world.vm.slots().harvest(idle, SLOT).ok();
        }
    }

    fn move_slot(&mut self, idle: &mut Idle) {
        let to = self.random.pick(&PLACES);
        self.world.vm.slots().commit(idle, |tx| tx.move_to(SLOT, to).map(drop)).unwrap();
        self.world.base.store(to.0, SeqCst);
    }

    /// Its log is switched on or off, or it goes, and comes back without one.
    fn change_the_neighbour(&mut self, idle: &mut Idle) {
        let slots = self.world.vm.slots();
        if self.random.one_in(3) {
            slots.commit(idle, |tx| tx.delete(NEIGHBOUR).map(drop)).unwrap();
            slots.commit(idle, |tx| tx.create(neighbour())).unwrap();
            self.neighbour_logs = false;
        } else {
            self.neighbour_logs = !self.neighbour_logs;
            slots.commit(idle, |tx| tx.set_log_dirty(NEIGHBOUR, self.neighbour_logs)).unwrap();
        }
    }
}
