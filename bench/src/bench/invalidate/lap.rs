//! One lap: vCPUs fault in fresh pages, in order, beside threads that invalidate.
//!
//! ```text
//! gfn 0 ─▶ vCPU 0's pages, then vCPU 1's, …         128 TiB: 512 pages for each invalidator, 8 leaf tables apart
//!          └ the 2 MiB that it is in: `same 2M`              └ `elsewhere`, mapped or holes
//! ```
//! A vCPU's loop is not timed fault by fault: its figure is the time of all divided by their number, and the slowest vCPU's
//! counts. A lap ends after [`MOST_TIME`], or when the command is interrupted: then with fewer faults. No vCPU is in the guest, so a flush waits for no vCPU: what is measured is how the two meet in the tables and at the lock.

use super::super::harness::Line;
use super::super::machine::pin;
use super::super::tables;
use super::beside::{Invalidator, Pages, elsewhere};
use slat::table::formats::Npt4;
use slat::{
    Access, Done, Fault, Gfn, Hva, Idle, Level, MmuLock, PAGE_SIZE, Retries, Slot, SlotId, Span, Vcpu,
    VcpuId, Vm,
};
use slat_cli::{error::Error, interrupt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

pub type Machine = Vm<Npt4, Pages>;

/// Frames of one leaf table.
pub const TABLE: u64 = Level::M2.pages();

/// The most memory to fault in, all vCPUs together.
pub const MOST: u64 = 1 << 46;

/// A lap is ended after so long.
pub const MOST_TIME: Duration = Duration::from_millis(250);

/// What all laps have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Of 4 KiB, for each vCPU: a multiple of the host's, and of a leaf table's.
    pub pages: u64,
    pub vcpus: u32,
    pub invalidators: u32,
    /// Nanoseconds that an invalidator computes between two invalidations.
    pub pause_ns: u64,
    /// Pages of 4 KiB that one invalidation covers.
    pub range: u64,
    /// The host's pages behind the vCPUs' memory.
    pub level: Level,
    /// Nanoseconds that the host takes whenever it is asked; 0: it answers at once.
    pub host_sleeps_ns: u64,
}

/// What is invalidated meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// Nothing: the vCPU is alone.
    None,
    /// Pages elsewhere that are mapped; once all are gone they are faulted in again.
    Mapped,
    /// Pages elsewhere that are not, in a table that is there.
    Holes,
    /// Any of the 2 MiB that the vCPU is in.
    Same2M,
}

/// One case under one policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    pub beside: Beside,
    pub lock: MmuLock,
}

/// What one lap gives.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Nanoseconds.
    pub fault: f64,
    /// Nanoseconds; none were made where the vCPU is alone.
    pub invalidation: Option<f64>,
    pub retries: Retries,
    pub asked_again: u64,
    /// Faults of vCPUs, and those that bring pages back.
    pub faults: u64,
    /// Faults of vCPUs that mapped a page, of all that they made.
    pub mapped: [u64; 2],
    /// Pages that invalidations took, of those that they should have; none are due in the vCPU's own 2 MiB, where
    /// that depends on who comes first.
    pub taken: Option<[u64; 2]>,
    /// Whether the books say what the tables hold.
    pub booked: bool,
}

impl Beside {
    pub const ALL: [Self; 4] = [Self::None, Self::Mapped, Self::Holes, Self::Same2M];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mapped => "elsewhere, mapped",
            Self::Holes => "elsewhere, holes",
            Self::Same2M => "same 2M",
        }
    }
}

pub fn hva(gfn: Gfn) -> Hva {
    Hva(gfn.gpa().0 + (1 << 36))
}

/// Whether it mapped a page.
pub fn fault(vcpu: &mut Vcpu<'_, Npt4, Pages>, idle: &mut Idle, gfn: Gfn) -> bool {
    let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
    matches!(vcpu.fault(idle, fault), Ok(Done::Mapped(_)))
}

impl Entrant {
    /// Runs one lap.
    pub fn lap(self, setting: &Setting) -> Result<Sample, Error> {
        let Setting { pages, vcpus, level, .. } = *setting;
        let invalidators = if self.beside == Beside::None { 0 } else { setting.invalidators };
        let all = pages * u64::from(vcpus);
        let mut idle = Idle::take().expect("this thread runs no vCPU");
        let tables = all / if level == Level::K4 { TABLE } else { level.pages() }
            + 64 * u64::from(vcpus + invalidators);
        tables::reserve(tables * PAGE_SIZE * 65 / 64);
        let host = Pages { level, sleeps_ns: setting.host_sleeps_ns };
        let builder = Vm::<Npt4, _>::builder(host).vcpus(vcpus + invalidators).mmu_lock(self.lock);
        let vm = &builder.build().map_err(|error| Error::Machine(error.to_string()))?;
        let places = Span::new(elsewhere(0).start, elsewhere(setting.invalidators).start);
        vm.slots().commit(&mut idle, |tx| {
            tx.create(Slot::new(SlotId(0), Gfn(0), all, hva(Gfn(0))))?;
            tx.create(Slot::new(SlotId(1), places.start, places.len(), hva(places.start)))
        })?;

        let line = &Line::new((vcpus + invalidators) as usize);
        let at: &Vec<_> = &(0..u64::from(vcpus)).map(|vcpu| AtomicU64::new(vcpu * pages)).collect();
        let running = &AtomicUsize::new(vcpus as usize);
        let (faulted, beside) = thread::scope(|scope| {
            let invalidator = |number| {
                slat_cli::thread::start(scope, move || {
                    pin((vcpus + number) as usize);
                    Invalidator::new(vm, self.beside, setting, number).run(line, at, running)
                })
            };
            let beside: Vec<_> = (0..invalidators).map(invalidator).collect();
            let vcpu = |number| {
                slat_cli::thread::start(scope, move || {
                    pin(number as usize);
                    fault_in(vm, number, setting, (line, &at[number as usize], running))
                })
            };
            let faulted: Vec<_> = (0..vcpus).map(vcpu).collect();
            let faulted: Vec<_> =
                faulted.into_iter().map(|thread| thread.join().expect("a vCPU's thread panicked")).collect();
            let beside = beside.into_iter().map(|thread| thread.join().expect("an invalidator panicked"));
            (faulted, beside.collect::<Vec<_>>())
        });

        let stats = vm.stats();
        let mut leaves = [0; 3];
        vm.lockless(&mut idle).for_each(Span::new(Gfn(0), places.end), |mapping| {
            leaves[usize::from(mapping.level.number()) - 1] += 1;
        });
        let due: Option<u64> = beside.iter().map(|made| made.due).sum();
        let many = beside.len() as f64;
        Ok(Sample {
            fault: faulted.iter().map(|faulted| faulted.ns).fold(0.0, f64::max),
            invalidation: (invalidators > 0).then(|| beside.iter().map(|made| made.ns).sum::<f64>() / many),
            retries: stats.retries_by,
            asked_again: stats.asked_again,
            faults: stats.mapped_faults,
            mapped: [faulted.iter().map(|one| one.mapped).sum(), faulted.iter().map(|one| one.made).sum()],
            taken: due
                .filter(|_| invalidators > 0)
                .map(|due| [stats.mapped_faults - leaves.iter().sum::<u64>(), due]),
            booked: stats.leaves == leaves,
        })
    }
}

/// What a vCPU did.
struct Faulted {
    /// Nanoseconds for each fault.
    ns: f64,
    made: u64,
    mapped: u64,
}

/// A vCPU's part.
fn fault_in(
    vm: &Machine,
    number: u32,
    setting: &Setting,
    (line, at, running): (&Line, &AtomicU64, &AtomicUsize),
) -> Faulted {
    let mut idle = Idle::take().expect("a thread of its own");
    let mut vcpu = vm.vcpu(VcpuId(number)).expect("each vCPU has one thread");
    let first = u64::from(number) * setting.pages;
    let (mut made, mut mapped) = (0, 0);
    line.cross();
    let start = Instant::now();
    for table in (first..first + setting.pages).step_by(TABLE.max(setting.level.pages()) as usize) {
        // Where this vCPU is, for invalidators of the same tables; once a table, so that it costs nothing.
        at.store(table, Relaxed);
        for gfn in (table..table + TABLE).step_by(setting.level.pages().min(TABLE) as usize) {
            made += 1;
            mapped += u64::from(fault(&mut vcpu, &mut idle, Gfn(gfn)));
        }
        if start.elapsed() > MOST_TIME || interrupt::asked() {
            break;
        }
    }
    let elapsed = start.elapsed();
    running.fetch_sub(1, Relaxed);
    Faulted { ns: elapsed.as_nanos() as f64 / made as f64, made, mapped }
}
