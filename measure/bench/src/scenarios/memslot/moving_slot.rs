//! A memslot that moves while vCPUs use it: the figures.

use super::guest_tests::Ran;
use super::slot_design::{ACTIVE, Design, Machine};
use super::slot_guests::{Meeting, Round};
pub use crate::scenarios::memslot::slot_design::Layout;
use crate::scenarios::prelude::*;
use slat_series::scalable_memslots;

/// Slots in use, as the series has them. The figures are of the most of them, unless they say otherwise.
pub const SLOTS: [u32; 3] = [32_764, 509, 10];

/// Figures that are set against the series'.
pub const MOVE: &str = "ns per move";
/// The same.
pub const MOVE_FEW: &str = "ns per move, 10 slots";

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let run = |slots| Fixture::new(setting, slots, false)?.run(setting);
    let (most, some, few) = (run(SLOTS[0])?, run(SLOTS[1])?, run(SLOTS[2])?);
    let per_move = |count: u64| count as f64 / most.moves as f64;
    let figures = vec![
        Figure::new(MOVE, most.moved_ns[0], "ns"),
        Figure::new("ns per move of the slot beside", most.moved_ns[1], "ns"),
        Figure::new("ns per move, 509 slots", some.moved_ns[0], "ns"),
        Figure::new(MOVE_FEW, few.moved_ns[0], "ns"),
        Figure::new("ns per access", most.access_ns, "ns"),
        Figure::new("kicks per move", per_move(most.stats.kicks), "kicks"),
        Figure::new("retries per move", per_move(most.retries), "retries"),
        Figure::new("exits for want of memory per move", per_move(most.seen.absent), "exits"),
    ];
    Ok(Point {
        operations: most.moves,
        flushes: most.flushes,
        checks: [most.checks, some.checks, few.checks].concat(),
        ..Point::of(setting, figures, most.stats)
    })
}

// A machine whose slots move, once: its mover, and what must be true afterwards.

/// Pages of the area.
const AREA: u64 = (512 << 20) / PAGE_SIZE;
/// Rounds of four moves: so many with up to eight vCPUs; with more there are less, but as many as this.
const ROUNDS: [u64; 2] = [64, 4];
/// Rest after each move, on average.
const REST_NS: u64 = 20_000;
/// Accesses to a page in a row.
const ACCESSES: u64 = 10;

/// A machine to run on, once.
struct Fixture {
    layout: Layout,
    vm: Machine<SimHost>,
    /// After each move.
    rests: Vec<u64>,
    meeting: Meeting,
}

/// The result of a run.
struct Outcome {
    stats: RunStats,
    moves: u64,
    /// Nanoseconds of a move, on average: of the last slot, of the one beside it.
    moved_ns: [f64; 2],
    /// Nanoseconds of a vCPU's for one access.
    access_ns: f64,
    seen: Seen,
    retries: u64,
    flushes: u64,
    checks: Vec<Check>,
}

impl Fixture {
    /// With so many slots. Sabotaged, its flushes are left out.
    fn new(setting: &Setting<'_>, slots: u32, sabotaged: bool) -> Result<Self> {
        let layout = Layout::new(slots, AREA, ACTIVE);
        let memory = SimHost::filled(layout.end().0, &setting.work).silent(sabotaged);
        let vm = SimHost::machine(memory, setting, slots, |builder| builder)?;
        SimHost::populate(&vm, &mut idle()?, layout.slots())?;
        let rounds = (8 * ROUNDS[0] / u64::from(setting.vcpus)).clamp(ROUNDS[1], ROUNDS[0]);
        let rounds = if setting.quick { rounds / 4 } else { rounds };
        let rests = (0..4 * rounds).map(|nth| REST_NS / 2 + setting.lot(nth) % REST_NS).collect();
        Ok(Self { layout, vm, rests, meeting: Meeting::default() })
    }

    /// Runs it.
    fn run(&self, setting: &Setting<'_>) -> Result<Outcome> {
        let at = (&self.vm, &self.meeting);
        let guest = |number: u32| self.guest(setting.lot(number.into()));
        let ran = Ran::beside(setting, at, ACCESSES, guest, |idle| self.move_about(idle))?;
        if let Some(error) = ran.failed {
            return Err(error);
        }
        let (seen, stats, moves) = (ran.seen, self.vm.stats(), self.rests.len() as u64);
        Ok(Outcome {
            moves,
            moved_ns: ran.host.map(|ns| ns as f64 / (moves / 2) as f64),
            access_ns: setting.work.guest_ns as f64 + ran.lost_ns as f64 / (seen.uses * ACCESSES) as f64,
            retries: stats.retries,
            flushes: stats.flushes.paid,
            checks: self.checks(&seen, ran.mapped)?,
            seen,
            stats: ran.stats,
        })
    }

    fn guest(&self, lot: u64) -> Round<'_> {
        Round::area(&self.meeting, &self.layout, lot)
    }

    /// All moves; nanoseconds of those of the last slot, and of those of the one beside it.
    fn move_about(&self, idle: &mut Idle) -> Result<[u64; 2]> {
        let (last, beside, end) = (self.layout.last(), self.layout.beside(), self.layout.end());
        let mut timed = |slot: &Slot, to, rest_ns| {
            let began = now();
            SimHost::move_to(&self.vm, idle, slot.id, to)?;
            let ns = elapsed(began);
            rest(rest_ns);
            Ok::<_, String>(ns)
        };
        let (mut ns, away) = ([0; 2], &self.meeting.away);
        for rests in self.rests.as_chunks::<4>().0 {
            ns[0] += timed(&last, end, 0)?;
            away.store(true, Relaxed);
            rest(rests[0]);
            ns[1] += timed(&beside, end + last.gfns.len(), rests[1])?;
            away.store(false, Relaxed);
            ns[0] += timed(&last, last.gfns.start, rests[2])?;
            ns[1] += timed(&beside, beside.gfns.start, rests[3])?;
        }
        Ok(ns)
    }

    /// The conditions after a run in which guests have seen this, and before which so many pages were mapped.
    fn checks(&self, seen: &Seen, mapped: u64) -> Result<Vec<Check>> {
        let stats = self.vm.stats();
        let faults = stats.mapped_faults - mapped + stats.mmio_faults;
        let right = right(&self.vm, [Span::new(Gfn(0), self.layout.end())].into_iter())?;
        let at_home = self.layout.at_home(&self.vm, &mut idle()?);
        let mut checks = seen.checks().to_vec();
        checks.extend([
            Check::all("every fault was counted once", faults, seen.mapped + seen.absent),
            Check::all("what is mapped in the end is mapped right", right, stats.leaves[0]),
            Check::all("every slot is where it belongs", at_home, self.layout.slots().len() as u64),
            // One more: the slots themselves.
            Check::all("a version for each move", self.versions() - 1, self.rests.len() as u64),
        ]);
        Ok(checks)
    }

    fn versions(&self) -> u64 {
        self.vm.memory().generation().number()
    }
}

// The series' "move active" beside ours: microseconds of two moves, there and back, under a guest with one vCPU.

/// The series' figures beside these.
pub fn against(points: &[Point]) -> Vec<Against> {
    let of = |name| figure(points, 1, NONE, name);
    let Some((most, few)) = of(MOVE).zip(of(MOVE_FEW)) else { return Vec::new() };
    let rows = scalable_memslots::rows("move-active");
    let (Some((_, published_few)), Some((_, published_most))) = (rows.first(), rows.last()) else {
        return Vec::new();
    };
    let grows = most / few;
    let figures = |nth: usize| (published_most[nth] / published_few[nth], grows);
    let sides = || ratio("a move with 32,764 slots", "one with 10 slots");
    vec![
        Against::not(
            "a move with 32,764 slots over one with 10, after",
            figures(1),
            sides(),
            "agrees where it does not grow, to 10%: each of ten slots is long, and takes longer to unmap; of the \
             search virtual time sees nothing, of the copies some",
        )
        .unless(grows <= 1.1),
        Against::not(
            "a move with 32,764 slots over one with 10, before",
            figures(0),
            sides(),
            "an array of all slots was copied for each move, which this engine does not: nothing here is that array; \
             slat bench memslot-perf measures both",
        ),
        Against::not(
            "a move there and back, 32,764 slots, after",
            (published_most[1] * 1e6, 2.0 * most / 1e3),
            "us",
            "the series' moves are system calls, each of which waits twice for all readers in a kernel; ours are calls \
             in one process, and wait for a membarrier at most",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Negative control.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        let setting = setting(NONE);
        // Threads need not meet in so short a time.
        let noticed = || Fixture::new(&setting, 10, true).unwrap().run(&setting).unwrap().seen.stale > 0;
        assert!((0..100).any(|_| noticed()));
    }

    /// Negative controls of the other checks.
    #[test]
    fn whatever_is_not_as_it_should_be_is_noticed() {
        let setting = setting(NONE);
        let fixture = Fixture::new(&setting, 10, false).unwrap();
        fixture.run(&setting).unwrap();
        let (last, beside) = (fixture.layout.last().gfns.start, fixture.layout.beside().gfns.start);
        let mut idle = Idle::take().unwrap();
        fixture.vm.host().set(hva_of(beside), Some(first_page(last)));
        let fault = Fault { gpa: beside.gpa(), access: Access::Read };
        let _ = fixture.vm.vcpu(VcpuId(0)).unwrap().fault(&mut idle, fault).unwrap();
        let id = fixture.layout.last().id;
        SimHost::move_to(&fixture.vm, &mut idle, id, fixture.layout.end()).unwrap();
        drop(idle);
        let seen = Seen { absent: 1, astray: 1, uses: 1, foreign: 1, ..Seen::default() };
        let names = failing(&fixture.checks(&seen, 0).unwrap());
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
        let (guest, pfn) = (fixture.guest(0), first_page(last).pfn);
        assert_eq!((guest.judge(last, pfn), guest.judge(last, pfn + 1)), (Use::Right, Use::Foreign));
        fixture.meeting.away.store(true, Relaxed);
        assert_eq!(guest.judge(last, pfn), Use::Stale);
        assert!(guest.may_be_absent(last) && !guest.may_be_absent(beside));
    }
}
