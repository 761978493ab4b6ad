//! The scenarios of KVM's `memslot_perf_test`: what the host does to the slots while the guest uses them.
//!
//! ```text
//!               guest (vCPU)                          host's thread
//! map           writes every page of one half         takes the other half away, slot by slot       meet, swap
//! unmap         writes one page of one half           takes the other half away, page by page       meet, swap
//! unmap-2m      the same                              2 MiB at a time                               meet, swap
//! move-active   goes round 50 pages, 25 in the last slot     moves the last slot behind the end, and back
//! move-inactive goes round the 50 pages below the last slot  the same
//! setup         runs, and touches nothing             creates all slots, one request each
//! ```
//! An iteration of the first three is both halves once, of the moves there and back, of the set-up all of it. In
//! `move-active` the guest's accesses meet no memory while the slot is away: exits, which are counted and skipped.
//!
//! Each sample is a VM of its own.

use crate::scenarios::memslot::slot_design::{ACTIVE, Design, Layout, Machine};
use crate::scenarios::memslot::slot_guests::{Laps, Meeting, Round};
use crate::scenarios::prelude::*;

/// The operation on the slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// See the module's header.
    Map,
    /// See above.
    Unmap,
    /// See above.
    Unmap2m,
    /// See above.
    MoveActive,
    /// See above.
    MoveInactive,
    /// See above.
    Setup,
    /// All slots in one transaction: slat alone.
    SetupAtOnce,
}

impl Test {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Unmap2m => "unmap-2m",
            Self::MoveActive => "move-active",
            Self::MoveInactive => "move-inactive",
            Self::Setup => "setup",
            Self::SetupAtOnce => "setup, one transaction",
        }
    }

    fn is_setup(self) -> bool {
        matches!(self, Self::Setup | Self::SetupAtOnce)
    }

    fn is_move(self) -> bool {
        matches!(self, Self::MoveActive | Self::MoveInactive)
    }
}

/// Pages of the area that are used, at most, however large it is: 128 MiB.
const USED: u64 = (128 << 20) / PAGE_SIZE;

/// A scenario with its area.
pub struct GuestTest {
    test: Test,
    layout: Layout,
    /// The part of the area that guest and host use.
    used: Span<Gfn>,
}

/// The result of one sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Nanoseconds of one iteration, on average.
    pub ns: f64,
    /// The conditions that must hold.
    pub tally: Vec<Tally>,
}

impl GuestTest {
    /// `test` over `slots` slots, two at least.
    pub fn new(test: Test, slots: u32) -> Self {
        let layout = match test {
            Test::Map => Layout::new(slots, (32 << 20) / PAGE_SIZE, 1),
            Test::Unmap | Test::Unmap2m => Layout::new(slots, USED, 1),
            _ => Layout::new(slots, 4 * USED, ACTIVE),
        };
        let last = layout.last().gfns;
        let around = |first: u64| Span::sized(Gfn(first), 2 * ACTIVE);
        let used = match test {
            Test::MoveActive => around(last.start.0 - ACTIVE),
            Test::MoveInactive => around(last.start.0 - 2 * ACTIVE),
            Test::Setup | Test::SetupAtOnce => Span::sized(Gfn(0), 0),
            _ => Span::sized(Gfn(0), layout.end().0.min(USED)),
        };
        Self { test, layout, used }
    }

    /// One sample of `D`, beside one vCPU, with as many iterations as begin within so many nanoseconds; one at least.
    pub fn sample<D: Design>(&self, setting: &Setting<'_>, ns: u64) -> Result<Sample> {
        let memory = SimHost::filled(self.layout.end().0, &setting.work);
        let vm = &D::machine(memory, setting, self.layout.slots().len() as u32, |builder| builder)?;
        if !self.test.is_setup() {
            D::populate(vm, &mut idle()?, self.layout.slots())?;
        }
        let meeting = &Meeting::default();
        let host = |idle: &mut Idle| self.host::<D>(vm, idle, meeting, ns);
        let ran = if self.test.is_setup() || self.test.is_move() {
            let round = |_| Round::few(meeting, &self.layout, self.used);
            Ran::beside(setting, (vm, meeting), 1, round, host)?
        } else {
            Ran::beside(setting, (vm, meeting), 1, |_| Laps::new(meeting, self.touched()), host)?
        };
        let Host { ns, iterations, found } = ran.host;
        // Leaves that went with whole tables are counted off when those are taken apart.
        vm.collect(&mut idle()?);
        let stats = vm.stats();
        let (mapped, left) = match self.test {
            Test::Map | Test::Unmap | Test::Unmap2m => {
                let [even, odd] = self.touched().map(|half| half.len());
                ((iterations + 1) * even + iterations * odd, even)
            }
            Test::MoveActive | Test::MoveInactive => (stats.mapped_faults, self.used.len()),
            Test::Setup | Test::SetupAtOnce => (0, 0),
        };
        let Seen { uses, stale, foreign, absent, astray, .. } = ran.seen;
        let tally = vec![
            ("the guest came to its end", [u64::from(ran.failed.is_none()), 1]),
            ("the guest found in each page what belongs there", [uses - stale - foreign, uses]),
            ("no memory only where the slot was away", [absent - astray, absent]),
            ("each page was mapped once for each time that it was taken away", [stats.mapped_faults, mapped]),
            ("what the host took is mapped no more, and all else is", [stats.leaves[0], left]),
            ("every slot is where it belongs", found),
        ];
        Ok(Sample { ns: ns as f64 / iterations as f64, tally })
    }

    fn host<D: Design>(&self, vm: &Machine<D>, idle: &mut Idle, meeting: &Meeting, ns: u64) -> Result<Host> {
        let (began, mut iterations) = (now(), 0);
        let elapsed = loop {
            self.iterate::<D>(vm, idle, meeting, iterations)?;
            iterations += 1;
            let elapsed = now() - began;
            if elapsed >= ns || self.test.is_setup() {
                break elapsed;
            }
        };
        Ok(Host { ns: elapsed, iterations, found: self.find::<D>(vm, idle)? })
    }

    /// How many slots are found where they belong, of all; where the test moves one, away from home as well.
    fn find<D: Design>(&self, vm: &Machine<D>, idle: &mut Idle) -> Result<[u64; 2]> {
        let (mut found, mut all) = (0, self.layout.slots().len() as u64);
        if self.test.is_move() {
            let home = self.layout.last();
            let away = Slot::new(home.id, home.gfns.end, home.gfns.len(), home.hva);
            D::move_to(vm, idle, home.id, away.gfns.start)?;
            found += u64::from(D::get(vm, idle, home.id) == Some(away));
            all += 1;
            D::move_to(vm, idle, home.id, home.gfns.start)?;
        }
        Ok([found + self.layout.at_home::<D>(vm, idle), all])
    }

    /// One iteration, after `nth` others.
    fn iterate<D: Design>(
        &self,
        vm: &Machine<D>,
        idle: &mut Idle,
        meeting: &Meeting,
        nth: u64,
    ) -> Result<()> {
        match self.test {
            Test::Map | Test::Unmap | Test::Unmap2m => {
                for (lap, half) in (2 * nth + 2..).zip(self.halves()) {
                    meeting.host.finish(lap);
                    self.take_away::<D>(vm, idle, half);
                    meeting.guest.wait_for(lap);
                }
                Ok(())
            }
            Test::MoveActive | Test::MoveInactive => {
                let last = self.layout.last();
                D::move_to(vm, idle, last.id, last.gfns.end)?;
                D::move_to(vm, idle, last.id, last.gfns.start)
            }
            Test::Setup => self.layout.slots().try_for_each(|slot| D::create(vm, idle, slot)),
            Test::SetupAtOnce => D::populate(vm, idle, self.layout.slots()),
        }
    }

    /// Takes half of the used pages away, in pieces as the test wants.
    fn take_away<D: Design>(&self, vm: &Machine<D>, idle: &mut Idle, half: Span<Gfn>) {
        let piece = match self.test {
            Test::Unmap => 1,
            Test::Unmap2m => Level::M2.pages(),
            _ => half.len(),
        };
        for start in (half.start.0..half.end.0).step_by(piece as usize) {
            let piece = Span::sized(Gfn(start), piece).clamp(&half);
            for part in self.layout.by_slot(piece) {
                D::take_away(vm, idle, hvas_of(part));
            }
        }
    }

    fn halves(&self) -> [Span<Gfn>; 2] {
        let middle = self.used.start + self.used.len() / 2;
        [Span::new(self.used.start, middle), Span::new(middle, self.used.end)]
    }

    /// The pages of each half that the guest touches.
    fn touched(&self) -> [Span<Gfn>; 2] {
        let all = self.test == Test::Map;
        self.halves().map(|half| if all { half } else { Span::sized(half.start, 1) })
    }
}

/// The work of the host's thread.
struct Host {
    ns: u64,
    iterations: u64,
    found: [u64; 2],
}

/// The result of guests beside the host's thread.
pub struct Ran<H> {
    /// The run.
    pub stats: RunStats,
    /// The result of the host's thread.
    pub host: H,
    /// The accesses of all guests.
    pub seen: Seen,
    /// Why one of them did not come to its end.
    pub failed: Option<String>,
    /// Nanoseconds of all vCPUs together in which their guests did not compute.
    pub lost_ns: u64,
    /// Faults that had mapped a page before.
    pub mapped: u64,
}

impl<H: Send> Ran<H> {
    /// Each vCPU has run its `guest` until it left for the first time, and goes on while the host's thread does `host`; a guest makes
    /// so many accesses to a page in a row.
    pub fn beside<D: Design, P: Program + Send>(
        setting: &Setting<'_>,
        (vm, meeting): (&Machine<D>, &Meeting),
        accesses: u64,
        guest: impl Fn(u32) -> P,
        host: impl FnOnce(&mut Idle) -> Result<H> + Send,
    ) -> Result<Self> {
        let mut vcpus = VcpuPrograms::warm(vm, setting, accesses, |_| Tlb::new(), guest)?;
        let mapped = vm.stats().mapped_faults;
        let mut done = Err("the host's thread has not run".to_owned());
        let mut jobs = vcpus.jobs(|idle, cpu, program| {
            let _leaving = meeting.guest.leaving();
            cpu.run(idle, program)
        });
        jobs.push(Job::new("mover", || {
            let _leaving = meeting.host.leaving();
            done = idle().and_then(|mut idle| host(&mut idle));
        }));
        let stats = run(setting.costs, jobs);
        let (seen, failed) = vcpus.seen_by_all();
        let lost_ns = vcpus.lost_ns(&stats, &seen);
        Ok(Self { stats, host: done?, seen, failed, lost_ns, mapped })
    }
}
