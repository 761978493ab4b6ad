//! The meddlers: each makes every change that a VM offers, one after the other, and its own sort of change twice as
//! often.

use crate::VCPUS;
use crate::chaos;
use crate::hazards::{self, caught, often};
use crate::host::{Change, PAGES, REGION, REGIONS, some_page};
use crate::memslots;
use crate::nested;
use crate::progress::Share;
use crate::random::Random;
use crate::slot_places::{frame_of, frames_of};
use crate::vm_under_test::{Mistake, World, count};
use slat::*;

/// Budgets for tables, in pages for each level: from never enough to almost always enough.
const BUDGETS: [u64; 4] = [5, 9, 14, 20];
/// Table pages for L2 and its reverse map.
const SHADOWS: u64 = 80;
/// One change of the host in this many is several at once.
const AT_ONCE: u64 = 64;
/// Number of regions in a change that is announced to all faults.
const WIDE: u64 = 18;
/// Maximum number of steps that all vCPUs make together before a meddler's next one.
const PACE: u64 = 400;

/// Runs meddler number `index` until every thread has done its share.
pub fn run<F: Format>(world: &World<F>, index: usize) {
    let share = world.watch.share(VCPUS + index);
    let idle = Idle::take().unwrap();
    let random = Random::new(world.setting.seed ^ !(index as u64));
    let mut meddler = Meddler { world, share, idle, random };
    hazards::seed(world.setting.seed << 8 | 0x80 | index as u64);
    while meddler.share.next() {
        // A callback that panics ends the step.
        caught(|| meddler.step(index));
    }
}

impl<F: Format> Meddler<'_, F> {
    fn step(&mut self, index: usize) {
        self.let_guests_run();
        if self.world.setting.chaos && self.random.one_in(2) {
            return chaos::change(self);
        }
        if self.world.setting.nested && self.random.one_in(4) {
            self.share.about_to("change a table of L1's, or flush it");
            nested::edit(self.world, &mut self.idle, &mut self.random);
        }
        let sort = if self.random.one_in(5) { index as u64 } else { self.random.below(4) };
        match sort {
            0 => self.change_the_host(),
            1 => self.reshape(),
            2 => memslots::change(self),
            _ => self.manage_memory(),
        }
    }
}

/// One meddler.
pub struct Meddler<'w, F: Format> {
    pub world: &'w World<F>,
    pub share: Share<'w>,
    pub idle: Idle,
    pub random: Random,
}

impl<F: Format> Meddler<'_, F> {
    /// Guests use what they have been given before it is taken away again; at times the meddler does not wait.
    fn let_guests_run(&mut self) {
        self.share.about_to("let the guests run");
        let watch = &self.world.watch;
        let steps = || (0..VCPUS).map(|vcpu| watch.steps(vcpu)).sum::<u64>();
        let until = steps() + if self.random.one_in(3) { 0 } else { self.random.below(PACE) };
        while steps() < until && watch.goes_on() {
            std::thread::yield_now();
        }
    }

    fn change_the_host(&mut self) {
        let (random, host) = (&mut self.random, self.world.vm.host());
        let region = random.below(REGIONS);
        let page = some_page(random);
        let some = |random: &mut Random, most| page..(page + 1 + random.below(most)).min(PAGES);
        let whole = region * REGION..(region + 1 + random.below(2)).min(REGIONS) * REGION;
        if random.one_in(if self.world.setting.mistake == Mistake::EndsFirst { 2 } else { AT_ONCE }) {
            return self.change_at_once();
        }
        let (pages, change, why) = match random.below(16) {
            0..4 => (page..page + 1, Change::Move, Reason::Migrate),
            4 => (whole, Change::Move, Reason::Remap),
            5..7 => (some(random, 64), Change::Protect, Reason::Protect),
            7 => (whole, Change::Protect, Reason::Protect),
            8..10 => (some(random, 1200), Change::Drop, Reason::Clear),
            10 => (whole, Change::Drop, Reason::Unmap),
            11..14 => (whole, Change::Collapse, Reason::Migrate),
            14 => {
                self.share.about_to("make a huge page small, and huge again, in place");
                host.demote(region);
                std::thread::yield_now();
                return host.promote(region);
            }
            _ => return host.demote(region),
        };
        self.share.about_to("change the host");
        host.change(&mut self.idle, &self.world.vm, pages, (change, why));
        count(&self.world.counts.host_changes);
    }

    /// A page, its neighbours, two regions, or so many that the change is wide.
    fn change_at_once(&mut self) {
        let random = &mut self.random;
        let page = some_page(random);
        let first = (page / REGION).min(REGIONS - 2) * REGION;
        let wide = random.below(REGIONS - WIDE);
        let (change, why) = random.pick(&[(Change::Drop, Reason::Unmap), (Change::Protect, Reason::Protect)]);
        let mut changes = vec![
            (page..page + 1, Change::Move, Reason::Migrate),
            (page..(page + 8).min(PAGES), Change::Protect, Reason::Protect),
            (first..first + 2 * REGION, Change::Drop, Reason::Clear),
            (wide * REGION..(wide + WIDE) * REGION, change, why),
        ];
        let from = random.below(4) as usize;
        changes.rotate_left(from);
        self.share.about_to("change the host in several places at once");
        self.world.vm.host().change_at_once(&mut self.idle, &self.world.vm, &changes);
        count(&self.world.counts.wide_changes);
    }

    fn reshape(&mut self) {
        let (vm, random) = (&self.world.vm, &mut self.random);
        let page = random.below(PAGES);
        let first = frame_of(&self.world.places, SpaceId(0), page);
        let gfns = Span::sized(first, 1 + random.below(4 * REGION));
        let tables = gfns.widen(REGION);
        match random.below(16) {
            0 => {
                self.share.about_to("zap all");
                if often(self.random.one_in(3), || vm.zap_all(&mut self.idle)).is_ok() {
                    count(&self.world.counts.zaps);
                }
            }
            1..6 => {
                self.share.about_to("split");
                // If the budget refuses, the pages split so far stay.
                let _ = vm.memory().split(&mut self.idle, gfns, Level::K4);
                if self.random.one_in(2) {
                    self.let_guests_run();
                    self.share.about_to("recover what was split");
                    vm.memory().recover(&mut self.idle, tables);
                }
            }
            6..12 => {
                self.share.about_to("recover");
                vm.memory().recover(&mut self.idle, tables);
            }
            12 => {
                self.share.about_to("zap frames");
                let why = self.random.pick(&[Reason::Clear, Reason::Unmap]);
                drop(vm.memory().invalidate(gfns, why).apply(&mut self.idle).settle());
            }
            _ => {
                self.share.about_to("write-protect");
                vm.memory().write_protect(&mut self.idle, gfns).settle();
            }
        }
    }

    fn manage_memory(&mut self) {
        let (vm, random) = (&self.world.vm, &mut self.random);
        match random.below(10) {
            0..4 => {
                self.share.about_to("set the budget");
                // Shadows keep their tables.
                let shadows = if self.world.setting.nested { SHADOWS } else { 0 };
                let pages = random.pick(&BUDGETS) * u64::from(F::LEVELS) + shadows;
                vm.set_table_budget(&mut self.idle, pages * PAGE_SIZE);
            }
            4 => {
                self.share.about_to("lift the budget");
                vm.set_table_budget(&mut self.idle, u64::MAX);
            }
            5 => {
                self.share.about_to("collect");
                vm.collect(&mut self.idle);
            }
            6..8 => self.hold(),
            _ => {
                self.share.about_to("look at all leaves");
                let mut end = Gfn(0);
                vm.memory().lockless(&mut self.idle).for_each(frames_of(SpaceId(0)), |mapping| {
                    assert!(mapping.gfns.end > end, "in order, nothing twice: {mapping:?} after {end:?}");
                    end = mapping.gfns.end;
                });
            }
        }
    }

    /// Holds a frame and uses it now and then, while others change its page.
    fn hold(&mut self) {
        self.share.about_to("hold a frame");
        let gfn = frame_of(&self.world.places, SpaceId(0), some_page(&mut self.random));
        // The frame may have no slot now, or the host no memory.
        let Ok(mut held) = self.world.vm.memory().hold(&mut self.idle, gfn, Access::Read) else { return };
        for _ in 0..4 {
            self.let_guests_run();
            self.share.about_to("use a frame that is held");
            if let Some(page) = held.read(&mut self.idle) {
                (0..8).for_each(|_| self.world.judge_held(gfn, page.pfn()));
                count(&self.world.counts.held);
            } else if held.refresh(&mut self.idle).is_err() {
                return;
            }
        }
    }
}
