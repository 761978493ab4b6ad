//! A memslot moves while vCPUs fault and use it: seed 001.
//!
//! ```text
//! area       512 MiB, cut into 10, 509 or 32,764 memslots    │ … │ beside │ last │ ← where they move to, and back →
//! vCPUs      of four pages that each uses: one new to it, from the whole area; that one twice more; one of the last slot
//! mover      last slot away, the one beside it away; last slot back, the one beside it back; and again
//! ```
//! While the last slot is away the guests find no memory there: exits, which are counted. After each move the mover rests a
//! little, so that guests meet what has changed, fault, and cache it again.
//!
//! **What is not simulated**: how long it takes to search and to copy. Virtual time goes on where CPUs share something; a
//! tree of 32,764 slots and one of 10 are alike. That difference is what `slat bench memslot-perf` measures.

use super::against::{Against, figure};
use super::machine::{Machine, builder, idle, right};
use super::program::{self, Guest, Next, Program, Seen};
use super::{Bench, Check, Figure, Point, Policy, Setting};
use crate::host::{SimHost, first_page, hva_of};
use crate::world::{self, Job, Told};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use slat::{Gfn, Pfn, Slot, SlotId, Span};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct MemslotPerf;

/// Pages of the area.
const AREA: u64 = (512 << 20) / slat::PAGE_SIZE;
/// Pages of the last slot that guests use, as in the seed's test.
const ACTIVE: u64 = 25;
/// Rounds of four moves.
const ROUNDS: u64 = 8;
/// Rest after each of them.
const REST_NS: u64 = 20_000;
/// Accesses to a page in a row, of which a TLB answers all but the first: a guest computes that often between two pages.
const ACCESSES: u64 = 10;
/// Turns before the run begins: each page of the last slot was used by then.
const WARM: u64 = 4 * ACTIVE + 1;
/// Slots in use, as the seed has them; the most of them is what the first figures are of.
const SLOTS: [u32; 3] = [32_764, 509, 10];

/// Figures that are set against the seed's.
const MOVE: &str = "ns per move";
const MOVE_FEW: &str = "ns per move, 10 slots";

impl Bench for MemslotPerf {
    fn name(&self) -> &'static str {
        "memslot-perf"
    }

    fn about(&self) -> &'static str {
        "a memslot moves while vCPUs fault and use it"
    }

    fn seed(&self) -> &'static str {
        "001"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::Exclusive, Policy::ReadWrite, Policy::None]
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let run = |slots| Ground::new(setting, slots, false)?.run(setting);
        let (most, some, few) = (run(SLOTS[0])?, run(SLOTS[1])?, run(SLOTS[2])?);
        let of = |name, value, unit| Figure { name, value, unit };
        let figures = vec![
            of(MOVE, most.moved_ns[0], "ns"),
            of("ns per move of the slot beside", most.moved_ns[1], "ns"),
            of("ns per move, 509 slots", some.moved_ns[0], "ns"),
            of(MOVE_FEW, few.moved_ns[0], "ns"),
            of("ns per access", most.access_ns(), "ns"),
            of("kicks per move", most.told.kicks as f64 / most.moves as f64, "kicks"),
            of("retries per move", most.retries as f64 / most.moves as f64, "retries"),
            of("exits for want of memory per move", most.seen.none as f64 / most.moves as f64, "exits"),
        ];
        let checks = [&most, &some, &few].map(|outcome| outcome.checks.clone()).concat();
        Ok(Point {
            vcpus: setting.vcpus,
            policy: setting.policy,
            figures,
            operations: most.moves,
            waiting: most.told.waiting(),
            flushes: most.flushes,
            kicks: most.told.kicks,
            told: most.told,
            checks,
        })
    }

    /// The seed's "move active": microseconds of two moves, there and back, of a guest with one vCPU.
    fn against_seed(&self, points: &[Point]) -> Vec<Against> {
        const FEW: [f64; 2] = [110.0, 94.8];
        const MOST: [f64; 2] = [1420.0, 78.6];
        let of = |name| figure(points, 1, Policy::None, name);
        let Some((most, few)) = of(MOVE).zip(of(MOVE_FEW)) else { return Vec::new() };
        let grows = most / few;
        vec![
            Against::within(0.25, "a move with 32,764 slots over one with 10, after", (MOST[1] / FEW[1], grows), "ratio")
                .saying("of searching and copying virtual time sees nothing, and what slat bench memslot-perf measures of them grows little"),
            Against::not(
                "the same, before",
                (MOST[0] / FEW[0], grows),
                "ratio",
                "an array of all slots was copied for each move; that is work of one CPU alone, which is not simulated, and slat bench memslot-perf measures it",
            ),
            Against::not(
                "a move there and back, 32,764 slots, after",
                (MOST[1], 2.0 * most / 1e3),
                "us",
                "the seed's are system calls, each of which waits twice for the readers of a kernel's whole VM; ours are calls in one process, which wait for a membarrier at most",
            ),
        ]
    }
}

/// An area cut into memslots: of one length but the last, which has the rest and [`ACTIVE`] pages at least.
#[derive(Clone, Copy, Debug)]
struct Layout {
    slots: u32,
    each: u64,
}

impl Layout {
    fn slot(&self, nth: u32) -> Slot {
        let first = u64::from(nth) * self.each;
        let pages = if nth + 1 == self.slots { (AREA - first).max(ACTIVE) } else { self.each };
        Slot::new(SlotId(nth), Gfn(first), pages, hva_of(Gfn(first)))
    }

    fn last(&self) -> Slot {
        self.slot(self.slots - 1)
    }

    fn beside(&self) -> Slot {
        self.slot(self.slots - 2)
    }

    fn end(&self) -> Gfn {
        self.last().gfns.end
    }
}

/// A machine to run on, once.
struct Ground {
    layout: Layout,
    vm: Machine,
    rounds: u64,
    /// Guests may go.
    over: AtomicBool,
    /// The last slot has moved away, and not begun to come back.
    away: AtomicBool,
}

/// What a run told.
struct Outcome {
    told: Told,
    moves: u64,
    /// Of the slot in use, of the one beside it: nanoseconds of one move, on average.
    moved_ns: [f64; 2],
    seen: Seen,
    retries: u64,
    flushes: u64,
    checks: Vec<Check>,
}

impl Outcome {
    /// Nanoseconds of the vCPUs' time for one access.
    fn access_ns(&self) -> f64 {
        program::vcpus_ns(&self.told) as f64 / (self.seen.uses * ACCESSES) as f64
    }
}

impl Ground {
    fn new(setting: &Setting<'_>, slots: u32, sabotaged: bool) -> Result<Self, String> {
        let layout = Layout { slots, each: AREA / u64::from(slots) };
        let builder = builder(SimHost::filled(layout.end().0, &setting.work), setting, setting.policy.lock());
        let builder = if sabotaged { builder.sabotage_flushes() } else { builder };
        let vm = builder.build().map_err(|error| error.to_string())?;
        let mut idle = idle()?;
        let create = |tx: &mut slat::slots::Transaction<'_>| {
            (0..slots).try_for_each(|nth| tx.create(layout.slot(nth)))
        };
        vm.slots().commit(&mut idle, create).map_err(|error| error.to_string())?;
        let rounds = if setting.quick { ROUNDS.div_ceil(4) } else { ROUNDS };
        Ok(Self { layout, vm, rounds, over: AtomicBool::new(false), away: AtomicBool::new(false) })
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Outcome, String> {
        let compute = (setting, ACCESSES * setting.work.guest_ns);
        let guests = (0..setting.vcpus)
            .map(|number| Guest::new(&self.vm, number, compute, Roam::new(self, setting.lot(number.into()))));
        let mut guests = guests.collect::<Result<Vec<_>, _>>()?;
        program::warm(&mut guests)?;
        let before = self.vm.stats().mapped_faults;
        let mut moved = Ok([0; 2]);
        let mut jobs = program::jobs(&mut guests, |idle, cpu, roam| cpu.run(idle, roam));
        jobs.push(Job::new("mover", || {
            moved = self.move_about();
            self.over.store(true, Relaxed);
        }));
        let told = world::run(setting.costs, jobs);
        let seen = program::seen(&guests)?;
        let moves = 4 * self.rounds;
        let stats = self.vm.stats();
        let sum = |of: fn(&Roam<'_>) -> u64| guests.iter().map(|guest| of(&guest.program)).sum::<u64>();
        let right = right(&self.vm, [Span::new(Gfn(0), self.layout.end())].into_iter())?;
        let checks = vec![
            Check::all(
                "no guest used a slot's page after the slot had gone",
                seen.uses - sum(|roam| roam.stale),
                seen.uses,
            ),
            Check::all(
                "guests used the frames that belong to their pages",
                seen.uses - sum(|roam| roam.wrong),
                seen.uses,
            ),
            Check::all(
                "no memory only where the slot was away",
                seen.none - sum(|roam| roam.astray),
                seen.none,
            ),
            Check::all(
                "every fault was counted once",
                stats.mapped_faults + stats.mmio_faults - before,
                seen.mapped + seen.none,
            ),
            Check::all("what is mapped in the end is mapped right", right, stats.leaves[0]),
            Check::all("every slot is where it belongs", self.at_home()?, u64::from(self.layout.slots)),
            // One for the slots themselves.
            Check::all("a version for each move", self.vm.slots().generation().number(), moves + 1),
        ];
        Ok(Outcome {
            told,
            moves,
            moved_ns: moved?.map(|ns| ns as f64 / (moves / 2) as f64),
            seen,
            retries: stats.retries,
            flushes: stats.flushes.paid,
            checks,
        })
    }

    /// All moves; nanoseconds of those of the last slot, and of those of the one beside it.
    fn move_about(&self) -> Result<[u64; 2], String> {
        let mut idle = idle()?;
        let (last, beside, end) = (self.layout.last(), self.layout.beside(), self.layout.end());
        let mut timed = |slot: &Slot, to| {
            let began = world::now();
            let moved = self.vm.slots().commit(&mut idle, |tx| tx.move_to(slot.id, to));
            let ns = world::now() - began;
            world::rest(REST_NS);
            moved.map(|_| ns).map_err(|error| error.to_string())
        };
        let mut ns = [0; 2];
        for _ in 0..self.rounds {
            ns[0] += timed(&last, end)?;
            self.away.store(true, Relaxed);
            ns[1] += timed(&beside, end + last.gfns.len())?;
            self.away.store(false, Relaxed);
            ns[0] += timed(&last, last.gfns.start)?;
            ns[1] += timed(&beside, beside.gfns.start)?;
        }
        Ok(ns)
    }

    /// Slots that are where they were at first.
    fn at_home(&self) -> Result<u64, String> {
        let mut idle = idle()?;
        let slots = self.vm.slots();
        let slots = slots.snapshot(&mut idle);
        let home = |&nth: &u32| slots.get(SlotId(nth)) == Some(self.layout.slot(nth));
        Ok((0..self.layout.slots).filter(home).count() as u64)
    }
}

/// What a guest does: see the module's header.
struct Roam<'g> {
    ground: &'g Ground,
    /// The last page of the area that it has used, and how many times it was a page's turn.
    at: u64,
    turns: u64,
    /// Uses of a page of the last slot while that was away.
    stale: u64,
    /// Uses of another page's frame.
    wrong: u64,
    /// Exits for want of memory where there was some.
    astray: u64,
}

impl<'g> Roam<'g> {
    fn new(ground: &'g Ground, lot: u64) -> Self {
        let at = lot % ground.layout.beside().gfns.start.0;
        Self { ground, at, turns: 0, stale: 0, wrong: 0, astray: 0 }
    }
}

impl Program for Roam<'_> {
    fn next(&mut self) -> Next {
        self.turns += 1;
        if self.turns == WARM || self.ground.over.load(Relaxed) {
            return Next::Leave;
        }
        let layout = &self.ground.layout;
        match self.turns % 4 {
            0 => return Next::Load(layout.last().gfns.start + (self.turns / 4 + self.at) % ACTIVE),
            1 => self.at = (self.at + 1) % layout.beside().gfns.start.0,
            _ => {}
        }
        Next::Load(Gfn(self.at))
    }

    fn used(&mut self, gfn: Gfn, pfn: Pfn) {
        let last = self.ground.layout.last().gfns.contains(gfn);
        self.stale += u64::from(last && self.ground.away.load(Relaxed));
        self.wrong += u64::from(pfn != first_page(gfn).pfn);
    }

    fn none(&mut self, gfn: Gfn) {
        self.astray += u64::from(!self.ground.layout.last().gfns.contains(gfn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Work;
    use crate::world::Costs;

    fn setting(policy: Policy) -> Setting<'static> {
        Setting { costs: &Costs::SERVER, vcpus: 2, policy, quick: true, seed: 1, work: Work::default() }
    }

    /// Negative control.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        let setting = setting(Policy::None);
        // Threads need not meet in so short a time.
        let noticed = || !Ground::new(&setting, 10, true).unwrap().run(&setting).unwrap().checks[0].ok;
        assert!((0..100).any(|_| noticed()));
    }
}
