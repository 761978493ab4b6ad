//! Changes of the VM while guests run. A change that removes or alters a leaf must not lose the trace of a
//! store.

use super::collector::Way;
use super::random::Random;
use super::world::{Around, HVA, NEIGHBOUR, Other, PAGES, PLACES, SLOT, VCPUS, World, neighbour};
use slat::*;
use slat_mm::{AddressSpace, Balancer, HostView, Prot, Settings};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Reasons whose effect is decided at the beginning. They may be told when nothing changed, and still remove as
/// much.
const REASONS: [Reason; 8] = [
    Reason::Unmap,
    Reason::Remap,
    Reason::Exit,
    Reason::Clear,
    Reason::Migrate,
    Reason::Protect,
    Reason::WriteProtect,
    Reason::SoftDirty,
];
/// The most steps of the guests before the next change.
const PACE: u64 = 300;

/// The thread that makes the changes.
pub struct Meddler<'w, F: Format> {
    world: &'w World<F>,
    random: Random,
    /// A fork that shares its pages with the guests' memory until they are written.
    snapshot: Option<Arc<AddressSpace>>,
    neighbour_logs: bool,
    /// A harvest that the meddler took from the log, and will give back.
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

    /// Makes changes while guests run.
    pub fn round(&mut self, idle: &mut Idle) {
        let world = self.world;
        if world.setting.around == Around::Nothing {
            return;
        }
        while world.guests_at_work.load(SeqCst) > 0 && !world.is_over() {
            match world.setting.around {
                Around::Zaps => self.zap_pages_in_use(idle),
                _ => self.meddle(idle),
            }
            world.had_a_turn(Other::Meddler);
            world.let_guests_run(self.random.below(PACE));
        }
        self.stolen = None;
    }

    fn zap_pages_in_use(&mut self, idle: &mut Idle) {
        let used = Span::sized(HVA, self.world.setting.pages_in_use() * PAGE_SIZE);
        drop(self.world.vm.invalidate(used, Reason::Clear).apply(idle).settle());
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
                drop(vm.invalidate(hvas, why).apply(idle).settle());
            }
            5..7 => _ = world.space.migrate(idle, hvas).unwrap(),
            // Every page is shared, and the next store to each breaks its share.
            7 => self.snapshot = Some(world.space.fork(idle).unwrap()),
            8 => self.snapshot = None,
            9 => world.space.clear_soft_dirty(idle, hvas).unwrap(),
            10..12 => vm.memory().lockless(idle).age(gfns, |_| {}),
            12 => {
                let young = random.pick(&[Young::Test, Young::Clear, Young::ClearAndFlush]);
                SecondaryMmu::young(&**vm, idle, hvas, young);
            }
            13 => _ = vm.memory().write_protect(idle, gfns).settle(),
            14 => vm.zap_all(idle).unwrap(),
            // In place, whatever the sizes are. A slot that logs keeps its small pages.
            15 if random.one_in(2) => _ = vm.memory().split(idle, gfns, Level::K4).unwrap(),
            15 => _ = vm.memory().recover(idle, gfns),
            16 => {
                // The budget frees tables with all that is in them.
                vm.set_table_budget(idle, random.below(12) * PAGE_SIZE);
                std::thread::yield_now();
                vm.set_table_budget(idle, u64::MAX);
            }
            17..19 => self.move_slot(idle),
            19 => {
                // Maps ahead of the guests. A page mapped for a store that never came is not dirty.
                let mut vcpu =
                    vm.vcpu(VcpuId(VCPUS as u32)).expect("it is used only at the beginning of a round");
                // The prefault ends where the slot has moved or table pages run out.
                let _ = vcpu.prefault(idle, gfns, Prefault::OLD);
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

    /// Takes the log while others harvest it, and gives it back later. Not where bits are read and cleared in
    /// parts: they would be missed there.
    fn steal(&mut self, idle: &mut Idle) {
        if matches!(self.world.setting.way, Way::Harvest | Way::HarvestAll) && self.stolen.take().is_none() {
            // In the middle of a round the log may still be off.
            self.stolen = self.world.vm.memory().harvest(idle, SLOT).ok();
        }
    }

    fn move_slot(&mut self, idle: &mut Idle) {
        let to = self.random.pick(&PLACES);
        self.world.vm.memory().commit(idle, |tx| tx.move_to(SLOT, to).map(drop)).unwrap();
        self.world.base.store(to.0, SeqCst);
    }

    /// Switches the neighbour's log on or off, or deletes the neighbour and creates it without a log.
    fn change_the_neighbour(&mut self, idle: &mut Idle) {
        let slots = self.world.vm.memory();
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
