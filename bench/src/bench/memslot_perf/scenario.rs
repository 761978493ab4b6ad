//! The scenarios of KVM's `memslot_perf_test`: what the host does to the slots while the guest uses them.
//!
//! ```text
//!               guest (vCPU thread)                     host thread
//! map           writes every page of one half           takes the other half away, slot by slot       meet, swap
//! unmap         writes one page of one half             takes the other half away, page by page       meet, swap
//! unmap-2m      the same                                2 MiB at a time                               meet, swap
//! move-active   goes round 50 pages, 25 in the last slot     moves the last slot behind the end, and back
//! move-inactive goes round the 50 pages below the last slot  the same
//! setup         runs, and touches nothing               creates all slots, one request each
//! ```
//! An iteration of the first three is both halves once, of the moves there and back, of the set-up all of it. In
//! `move-active` the guest's accesses meet no memory while the slot is away: exits, which are counted and skipped.
//!
//! Each sample is a VM of its own, on memory that the samples share.

use super::design::{Design, Machine, Memslots};
use super::guest::{Laps, Loop, Meeting, Seen, Side};
use super::layout::Layout;
use super::memory::Memory;
use crate::bench::machine::pin;
use slat::{FaultError, Gfn, HostError, Idle, Level, PAGE_SIZE, Slot, Span, VcpuId};
use slat_cli::error::Error;
use slat_cli::thread::idle;
use slat_threads::benches::Tally;
use slat_vcpu::{Cpu, Exit};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// What is done to the slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    Map,
    Unmap,
    Unmap2m,
    MoveActive,
    MoveInactive,
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
}

/// Pages that the guest of a move goes round.
const ACTIVE: u64 = 50;
/// Pages of the area that are used, at most, however large it is: 128 MiB.
const USED: u64 = (128 << 20) / PAGE_SIZE;

/// A scenario with its area and memory.
pub struct Scenario {
    test: Test,
    layout: Layout,
    /// The part of the area that guest and host use.
    used: Span<Gfn>,
    memory: Arc<Memory>,
}

/// What one sample yields.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Nanoseconds of one iteration, on average.
    pub ns: f64,
    /// What must hold.
    pub tally: Vec<Tally>,
}

impl Scenario {
    /// `test` over `slots` slots, two at least.
    pub fn new(test: Test, slots: u32) -> Self {
        let layout = match test {
            Test::Map => Layout::new(slots, (32 << 20) / PAGE_SIZE, 1),
            Test::Unmap | Test::Unmap2m => Layout::new(slots, USED, 1),
            _ => Layout::new(slots, 4 * USED, ACTIVE / 2),
        };
        let area = layout.gfns();
        let last = layout.last().gfns;
        let around = |first: u64| Span::sized(Gfn(first), ACTIVE);
        let used = match test {
            Test::MoveActive => around(last.start.0 - ACTIVE / 2),
            Test::MoveInactive => around(last.start.0 - ACTIVE),
            Test::Setup | Test::SetupAtOnce => Span::sized(area.start, 1),
            _ => Span::sized(area.start, area.len().min(USED)),
        };
        Self { test, layout, used, memory: Arc::new(Memory::new(Layout::hvas(used))) }
    }

    /// One sample of `D`, with as many iterations as begin within `time`; one at least.
    pub fn sample<D: Design + 'static>(&self, time: Duration) -> Result<Sample, Error> {
        self.memory.reset();
        let builder = Machine::<D>::builder(D::host(&self.memory)).max_slots(self.layout.len());
        let vm = &builder.build().map_err(|error| Error::Machine(error.to_string()))?;
        let meeting = &Meeting::default();
        let (host, guest) = thread::scope(|scope| {
            let host = slat_cli::thread::start(scope, move || {
                pin(0);
                // However the host ends, the guest must not wait for it.
                let _leaving = Leaving(&meeting.host);
                self.host::<D>(vm, meeting, time)
            });
            let guest = slat_cli::thread::start(scope, move || {
                pin(1);
                let _leaving = Leaving(&meeting.guest);
                self.guest::<D>(vm, meeting)
            });
            (host.join(), guest.join())
        });
        let host = host.unwrap_or_else(|panic| resume_unwind(panic))?;
        let guest = guest.unwrap_or_else(|panic| resume_unwind(panic))?;
        // Leaves that went with whole tables are counted off when those are taken apart.
        vm.collect(&mut idle()?);
        let stats = vm.stats();
        let (mapped, left) = match self.test {
            Test::Map | Test::Unmap | Test::Unmap2m => {
                let [even, odd] = self.touched().map(|half| half.len());
                ((host.iterations + 1) * even + host.iterations * odd, even)
            }
            Test::MoveActive | Test::MoveInactive => (stats.mapped_faults, ACTIVE),
            Test::Setup | Test::SetupAtOnce => (0, 0),
        };
        let Seen { words, wrong, exits, wrong_exits } = guest.seen;
        let tally = vec![
            ("the guest came to its end", [guest.ended.into(), 1]),
            ("the guest found in each page what belongs there", [words - wrong, words]),
            ("no memory only where the slot was away", [exits - wrong_exits, exits]),
            ("each page was mapped once for each time that it was taken away", [stats.mapped_faults, mapped]),
            ("what the host took is mapped no more, and all else is", [stats.leaves[0], left]),
            ("every slot is where it belongs", host.found),
        ];
        Ok(Sample { ns: host.elapsed.as_nanos() as f64 / host.iterations as f64, tally })
    }

    fn host<D: Design>(&self, vm: &Machine<D>, meeting: &Meeting, time: Duration) -> Result<Host, Error> {
        let idle = &mut idle()?;
        let mut slots = D::slots(vm, idle)?;
        if !matches!(self.test, Test::Setup | Test::SetupAtOnce) {
            slots.populate(idle, self.layout.slots())?;
        }
        meeting.host.finish(1);
        meeting.guest.wait_for(1);

        let mut iterations = 0;
        let began = Instant::now();
        let elapsed = loop {
            self.iterate(&mut slots, idle, meeting, iterations)?;
            iterations += 1;
            let elapsed = began.elapsed();
            if elapsed >= time || matches!(self.test, Test::Setup | Test::SetupAtOnce) {
                break elapsed;
            }
        };
        Ok(Host { elapsed, iterations, found: self.find(&mut slots, idle)? })
    }

    /// How many slots are found where they belong, of all; where the test moves one, away from home as well.
    fn find(&self, slots: &mut impl Memslots, idle: &mut Idle) -> Result<[u64; 2], Error> {
        let mut found = 0;
        let mut all = u64::from(self.layout.len());
        if matches!(self.test, Test::MoveActive | Test::MoveInactive) {
            let home = self.layout.last();
            let away = Slot::new(home.id, home.gfns.end, home.gfns.len(), home.hva);
            slots.move_to(idle, home.id, away.gfns.start)?;
            found += u64::from(slots.get(idle, home.id) == Some(away));
            all += 1;
            slots.move_to(idle, home.id, home.gfns.start)?;
        }
        found += self.layout.slots().filter(|&slot| slots.get(idle, slot.id) == Some(slot)).count() as u64;
        Ok([found, all])
    }

    /// One iteration, after `nth` others.
    fn iterate(
        &self,
        slots: &mut impl Memslots,
        idle: &mut Idle,
        meeting: &Meeting,
        nth: u64,
    ) -> Result<(), Error> {
        match self.test {
            Test::Map | Test::Unmap | Test::Unmap2m => {
                for (lap, half) in (2 * nth + 2..).zip(self.halves()) {
                    meeting.host.finish(lap);
                    self.take_away(slots, idle, half);
                    meeting.guest.wait_for(lap);
                }
            }
            Test::MoveActive | Test::MoveInactive => {
                let last = self.layout.last();
                slots.move_to(idle, last.id, last.gfns.end)?;
                slots.move_to(idle, last.id, last.gfns.start)?;
            }
            Test::Setup => self.layout.slots().try_for_each(|slot| slots.create(idle, slot))?,
            Test::SetupAtOnce => slots.populate(idle, self.layout.slots())?,
        }
        Ok(())
    }

    /// Takes half of the used pages away, in pieces as the test wants.
    fn take_away(&self, slots: &mut impl Memslots, idle: &mut Idle, half: Span<Gfn>) {
        let piece = match self.test {
            Test::Unmap => 1,
            Test::Unmap2m => Level::M2.pages(),
            _ => half.len(),
        };
        for start in (half.start.0..half.end.0).step_by(piece as usize) {
            let piece = Span::sized(Gfn(start), piece).clamp(&half);
            for part in self.layout.by_slot(piece) {
                slots.take_away(idle, Layout::hvas(part));
            }
        }
    }

    fn halves(&self) -> [Span<Gfn>; 2] {
        let middle = self.used.start + self.used.len() / 2;
        [Span::new(self.used.start, middle), Span::new(middle, self.used.end)]
    }

    /// What the guest touches of each half.
    fn touched(&self) -> [Span<Gfn>; 2] {
        let all = self.test == Test::Map;
        self.halves().map(|half| if all { half } else { Span::sized(half.start, 1) })
    }

    fn guest<D: Design>(&self, vm: &Machine<D>, meeting: &Meeting) -> Result<Guest, Error> {
        let idle = &mut idle()?;
        let vcpu = vm.vcpu(VcpuId(0)).ok_or_else(|| Error::Machine("vCPU 0 is in use".into()))?;
        let cpu = &mut Cpu::new(vcpu, self.memory.window()).untimed();
        meeting.host.wait_for(1);
        let nowhere = Span::new(Gfn(0), Gfn(0));
        let (pages, away) = match self.test {
            Test::MoveActive => (self.used, self.layout.last().gfns),
            Test::MoveInactive => (self.used, nowhere),
            Test::Setup | Test::SetupAtOnce => (nowhere, nowhere),
            Test::Map | Test::Unmap | Test::Unmap2m => {
                let mut laps = Laps::new(meeting, self.touched());
                let exit = cpu.run(idle, &mut laps);
                return Ok(Guest { seen: laps.seen, ended: exit == Exit::Stopped });
            }
        };
        let mut program = Loop::new(meeting, pages);
        loop {
            match cpu.run(idle, &mut program) {
                Exit::Stopped => return Ok(Guest { seen: program.seen, ended: true }),
                // No memory: said by slat's slots as MMIO, by the array's as the host under the engine.
                Exit::Mmio(fault) | Exit::Failed(fault, FaultError::Host(HostError::Fault)) => {
                    program.skip(fault.gpa.gfn(), away);
                }
                Exit::Failed(..) | Exit::RingFull => return Ok(Guest { seen: program.seen, ended: false }),
            }
        }
    }
}

/// What the host's thread has done.
struct Host {
    elapsed: Duration,
    iterations: u64,
    found: [u64; 2],
}

/// What the guest's thread has seen, and whether it came to its end.
struct Guest {
    seen: Seen,
    ended: bool,
}

/// Leaves the meeting when dropped.
struct Leaving<'m>(&'m Side);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
