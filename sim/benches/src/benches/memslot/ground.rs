//! A machine whose slots move, once: its mover, and what must be true afterwards.

use super::layout::Layout;
use super::roam::Roam;
use crate::benches::crew::Crew;
use crate::benches::machine::{Machine, builder, idle, right};
use crate::benches::program::Seen;
use crate::benches::{Check, Setting};
use crate::host::SimHost;
use crate::world::{self, Job, Told};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use slat::slots::Transaction;
use slat::{Gfn, Slot, Span};

/// Rounds of four moves: so many with up to eight vCPUs; with more there are less, but as many as this.
const ROUNDS: [u64; 2] = [64, 4];
/// Rest after each move, on average.
const REST_NS: u64 = 20_000;
/// Accesses to a page in a row.
const ACCESSES: u64 = 10;

/// A machine to run on, once.
pub struct Ground {
    pub layout: Layout,
    vm: Machine,
    /// After each move.
    rests: Vec<u64>,
    /// Guests may go.
    pub over: AtomicBool,
    /// The last slot has moved away, and not begun to come back.
    pub away: AtomicBool,
}

/// What a run told.
pub struct Outcome {
    pub told: Told,
    pub moves: u64,
    /// Nanoseconds of a move, on average: of the last slot, of the one beside it.
    pub moved_ns: [f64; 2],
    /// Nanoseconds of a vCPU's for one access.
    pub access_ns: f64,
    pub seen: Seen,
    pub retries: u64,
    pub flushes: u64,
    pub checks: Vec<Check>,
}

impl Ground {
    /// With so many slots. Sabotaged, its flushes are left out.
    pub fn new(setting: &Setting<'_>, slots: u32, sabotaged: bool) -> Result<Self, String> {
        let layout = Layout::new(slots);
        let builder = builder(SimHost::filled(layout.end().0, &setting.work), setting, setting.policy.lock());
        let builder = if sabotaged { builder.sabotage_flushes() } else { builder };
        let vm = builder.build().map_err(|error| error.to_string())?;
        let create = |tx: &mut Transaction<'_>| layout.slots().try_for_each(|slot| tx.create(slot));
        vm.slots().commit(&mut idle()?, create).map_err(|error| error.to_string())?;
        let rounds = (8 * ROUNDS[0] / u64::from(setting.vcpus)).clamp(ROUNDS[1], ROUNDS[0]);
        let rounds = if setting.quick { rounds / 4 } else { rounds };
        let rests = (0..4 * rounds).map(|nth| REST_NS / 2 + setting.lot(nth) % REST_NS).collect();
        Ok(Self { layout, vm, rests, over: AtomicBool::new(false), away: AtomicBool::new(false) })
    }

    /// Runs it.
    pub fn run(&self, setting: &Setting<'_>) -> Result<Outcome, String> {
        let roam = |number: u32| Roam::new(self, setting.lot(number.into()));
        let mut crew = Crew::warm(&self.vm, setting, ACCESSES, roam)?;
        let mapped = self.vm.stats().mapped_faults;
        let mut moved = Ok([0; 2]);
        let mut jobs = crew.jobs(|idle, cpu, roam| cpu.run(idle, roam));
        jobs.push(Job::new("mover", || {
            moved = self.move_about();
            self.over.store(true, Relaxed);
        }));
        let told = world::run(setting.costs, jobs);
        let (seen, stats) = (crew.seen()?, self.vm.stats());
        let moves = self.rests.len() as u64;
        Ok(Outcome {
            moves,
            moved_ns: moved?.map(|ns| ns as f64 / (moves / 2) as f64),
            access_ns: setting.work.guest_ns as f64
                + crew.lost_ns(&told, &seen) as f64 / (seen.uses * ACCESSES) as f64,
            retries: stats.retries,
            flushes: stats.flushes.paid,
            checks: self.checks(&seen, mapped)?,
            seen,
            told,
        })
    }

    /// All moves; nanoseconds of those of the last slot, and of those of the one beside it.
    fn move_about(&self) -> Result<[u64; 2], String> {
        let mut idle = idle()?;
        let (last, beside, end) = (self.layout.last(), self.layout.beside(), self.layout.end());
        let mut timed = |slot: &Slot, to, rest_ns| {
            let began = world::now();
            let moved = self.vm.slots().commit(&mut idle, |tx| tx.move_to(slot.id, to));
            let ns = world::now() - began;
            world::rest(rest_ns);
            moved.map(|_| ns).map_err(|error| error.to_string())
        };
        let mut ns = [0; 2];
        for rests in self.rests.as_chunks::<4>().0 {
            ns[0] += timed(&last, end, 0)?;
            self.away.store(true, Relaxed);
            world::rest(rests[0]);
            ns[1] += timed(&beside, end + last.gfns.len(), rests[1])?;
            self.away.store(false, Relaxed);
            ns[0] += timed(&last, last.gfns.start, rests[2])?;
            ns[1] += timed(&beside, beside.gfns.start, rests[3])?;
        }
        Ok(ns)
    }

    /// What must be true after a run in which guests have seen this, and before which so many pages were mapped.
    fn checks(&self, seen: &Seen, mapped: u64) -> Result<Vec<Check>, String> {
        let stats = self.vm.stats();
        let faults = stats.mapped_faults - mapped + stats.mmio_faults;
        let right = right(&self.vm, [Span::new(Gfn(0), self.layout.end())].into_iter())?;
        let mut checks = seen.checks().to_vec();
        checks.extend([
            Check::all("every fault was counted once", faults, seen.mapped + seen.absent),
            Check::all("what is mapped in the end is mapped right", right, stats.leaves[0]),
            Check::all("every slot is where it belongs", self.at_home()?, self.layout.slots().len() as u64),
            // One more: the slots themselves.
            Check::all("a version for each move", self.versions() - 1, self.rests.len() as u64),
        ]);
        Ok(checks)
    }

    fn versions(&self) -> u64 {
        self.vm.slots().generation().number()
    }

    /// Slots that are where they were at first.
    fn at_home(&self) -> Result<u64, String> {
        let (slots, mut idle) = (self.vm.slots(), idle()?);
        let slots = slots.snapshot(&mut idle);
        Ok(self.layout.slots().filter(|slot| slots.get(slot.id) == Some(*slot)).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Policy;
    use crate::benches::program::{Program as _, Use};
    use crate::benches::tests::{failing, setting};
    use crate::host::{first_page, hva_of};
    use slat::{Access, Fault, Idle, VcpuId};

    /// Negative control.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        let setting = setting(Policy::None);
        // Threads need not meet in so short a time.
        let noticed = || Ground::new(&setting, 10, true).unwrap().run(&setting).unwrap().seen.stale > 0;
        assert!((0..100).any(|_| noticed()));
    }

    /// Negative controls of the other checks.
    #[test]
    fn whatever_is_not_as_it_should_be_is_noticed() {
        let setting = setting(Policy::None);
        let ground = Ground::new(&setting, 10, false).unwrap();
        ground.run(&setting).unwrap();
        let (last, beside) = (ground.layout.last().gfns.start, ground.layout.beside().gfns.start);
        let mut idle = Idle::take().unwrap();
        ground.vm.host().set(hva_of(beside), Some(first_page(last)));
        let fault = Fault { gpa: beside.gpa(), access: Access::Read };
        ground.vm.vcpu(VcpuId(0)).unwrap().fault(&mut idle, fault).unwrap();
        let id = ground.layout.last().id;
        ground.vm.slots().commit(&mut idle, |tx| tx.move_to(id, ground.layout.end())).unwrap();
        drop(idle);
        let seen = Seen { absent: 1, astray: 1, uses: 1, foreign: 1, ..Seen::default() };
        let names = failing(&ground.checks(&seen, 0).unwrap());
        assert_eq!(
            names,
            [
                "guests used no frames but their pages'",
                "no memory only where there is none",
                "every fault was counted once",
                "what is mapped in the end is mapped right",
                "every slot is where it belongs",
                "a version for each move",
            ]
        );
        let roam = Roam::new(&ground, 0);
        let pfn = first_page(last).pfn;
        assert_eq!((roam.judge(last, pfn), roam.judge(last, pfn + 1)), (Use::Right, Use::Foreign));
        ground.away.store(true, Relaxed);
        assert_eq!(roam.judge(last, pfn), Use::Stale);
        assert!(roam.may_be_absent(last) && !roam.may_be_absent(beside));
    }
}
