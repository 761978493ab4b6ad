//! A machine whose slots move, once: its mover, and what must be true afterwards.

use super::guest_tests::Ran;
use crate::scenarios::memslot::slot_design::{Design, Machine};
use crate::scenarios::memslot::slot_guests::{Meeting, Round};
use crate::scenarios::memslot::slot_layout::{ACTIVE, Layout};
use crate::scenarios::prelude::*;

/// Pages of the area.
const AREA: u64 = (512 << 20) / PAGE_SIZE;
/// Rounds of four moves: so many with up to eight vCPUs; with more there are less, but as many as this.
const ROUNDS: [u64; 2] = [64, 4];
/// Rest after each move, on average.
const REST_NS: u64 = 20_000;
/// Accesses to a page in a row.
const ACCESSES: u64 = 10;

/// A machine to run on, once.
pub struct Fixture {
    layout: Layout,
    vm: Machine<SimHost>,
    /// After each move.
    rests: Vec<u64>,
    meeting: Meeting,
}

/// The result of a run.
pub struct Outcome {
    pub stats: RunStats,
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

impl Fixture {
    /// With so many slots. Sabotaged, its flushes are left out.
    pub fn new(setting: &Setting<'_>, slots: u32, sabotaged: bool) -> Result<Self, String> {
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
    pub fn run(&self, setting: &Setting<'_>) -> Result<Outcome, String> {
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
    fn move_about(&self, idle: &mut Idle) -> Result<[u64; 2], String> {
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
    fn checks(&self, seen: &Seen, mapped: u64) -> Result<Vec<Check>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    use crate::parts::test_settings::{failing, setting};

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
