//! The schedule of a world, and the moments of the oracle's checks: after each write to a table page, before any
//! other access.

use super::{ENDLESS, STRAYED, World};
use crate::plan::schedule::Pace;
use slat::Format;
use slat::inject::GIVEN_BACK;
use slat_machine::explore::{Access, Act, Explorer};
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;

/// Step limits of a world: per CPU, for all CPUs, and per nanosecond by which an operation may be delayed, because a
/// waiting CPU polls.
const STEPS_EACH: u64 = 200_000;
const STEPS: u64 = 400_000;

/// Watches a world.
pub struct Observer<'w, 'p, F: Format> {
    pub world: &'w World<'p, F>,
    pace: RefCell<Pace>,
    /// True if the last access wrote to a table page.
    written: Cell<bool>,
    hash: RefCell<DefaultHasher>,
    bound: u64,
    /// The place of each CPU's last access.
    sites: RefCell<Vec<Option<&'static Location<'static>>>>,
}

impl<'w, 'p, F: Format> Observer<'w, 'p, F> {
    pub fn new(world: &'w World<'p, F>) -> Self {
        let cpus = world.plan.cpus.len() as u32;
        let operations: usize = world.plan.cpus.iter().map(|cpu| cpu.ops.len()).sum();
        let held_up = operations as u64 * world.plan.schedule.longest_hold();
        let pace = Pace::new(world.plan.schedule, world.plan.seed ^ world.plan.turn << 48, cpus);
        Self {
            world,
            pace: RefCell::new(pace),
            written: Cell::new(false),
            hash: RefCell::new(DefaultHasher::new()),
            bound: STEPS + STEPS_EACH * u64::from(cpus) + held_up,
            sites: RefCell::new(vec![None; cpus as usize]),
        }
    }

    /// The place of each CPU's last access.
    pub fn sites(&self) -> String {
        let sites = self.sites.borrow();
        let at = sites.iter().zip(0..).filter_map(|(site, cpu): (_, u32)| Some((cpu, (*site)?)));
        at.map(|(cpu, site)| format!("CPU {cpu} at {site}")).collect::<Vec<_>>().join(", ")
    }

    /// A hash that tells whether two runs were the same.
    pub fn hash(&self) -> u64 {
        self.hash.borrow().finish()
    }
}

impl<F: Format> Explorer for Observer<'_, '_, F> {
    fn delay(&self, act: Act) -> u64 {
        self.pace.borrow_mut().delay(act)
    }

    fn sees(&self, act: Act) -> bool {
        let (world, memory) = (self.world, &self.world.host.memory);
        world.steps.set(world.steps() + 1);
        if self.written.take() {
            world.check();
        }
        (act.cpu, act.access as u8, act.site.line(), act.site.column(), slat_machine::now())
            .hash(&mut *self.hash.borrow_mut());
        if memory.holds(act.address) {
            self.written.set(act.access != Access::Load);
            // A fault fills a page that is not in a table yet without an access before.
            if act.access != Access::Store && memory.is_word(act.address, GIVEN_BACK.0) {
                world.wrong(STRAYED, || format!("in {}", act.site));
            }
            if act.access == Access::Rmw {
                world.story(|| format!("  writes an entry, in {}", act.site));
            }
        }
        self.sites.borrow_mut()[act.cpu as usize] = Some(act.site);
        if world.steps() > self.bound {
            world.wrong(ENDLESS, || self.sites());
        }
        !world.is_wrong()
    }
}
