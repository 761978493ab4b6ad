//! One lap: a vCPU faults in fresh pages, in order, beside a thread that invalidates single pages back to back.
//!
//! ```text
//! gfn 0 ─▶ vCPU 0's pages, one after another          1 TiB: 512 pages, a leaf table of their own
//!          └ the 2 MiB that it is in: `same 2M`              └ `elsewhere`, mapped or holes
//! ```
//! The vCPU's loop is not timed fault by fault: its figure is the time of all divided by their number. No vCPU is in
//! the guest, so a flush has nobody to wait for: what is measured is how the two meet in the tables and at the lock.

use super::super::arithmetic::Arithmetic;
use super::super::harness::Line;
use super::super::machine::pin;
use super::super::tables;
use slat::table::formats::Npt4;
use slat::{
    Access, Done, Fault, Gfn, Hva, Idle, Level, MmuLock, PAGE_SIZE, Slot, SlotId, Span, Vcpu, VcpuId, Vm, Why,
};
use slat_cli::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

type Machine = Vm<Npt4, Arithmetic>;

/// Frames of one leaf table.
const TABLE: u64 = Level::M2.pages();

/// The most memory to fault in.
pub const MOST: u64 = 1 << 39;

const ELSEWHERE: Span<Gfn> = Span::new(Gfn(1 << 28), Gfn((1 << 28) + TABLE));

/// What is invalidated meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// Nothing: the vCPU is alone.
    Nobody,
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
    pub retries: u64,
    /// Faults that mapped a page, of all.
    pub mapped: [u64; 2],
    /// Pages that invalidations took, of those that they should have; none are due in the vCPU's own 2 MiB, where
    /// that depends on who comes first.
    pub taken: Option<[u64; 2]>,
    /// Whether the books say what the tables hold.
    pub booked: bool,
}

impl Beside {
    pub const ALL: [Self; 4] = [Self::Nobody, Self::Mapped, Self::Holes, Self::Same2M];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Mapped => "elsewhere, mapped",
            Self::Holes => "elsewhere, holes",
            Self::Same2M => "same 2M",
        }
    }
}

fn hva(gfn: Gfn) -> Hva {
    Hva(gfn.gpa().0 + (1 << 36))
}

fn fault(vcpu: &mut Vcpu<'_, Npt4, Arithmetic>, idle: &mut Idle, gfn: Gfn) -> bool {
    let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
    vcpu.fault(idle, fault) == Ok(Done::Mapped(Level::K4))
}

/// As a host does that takes `gfns` away and changes nothing.
fn invalidate(vm: &Machine, idle: &mut Idle, gfns: Span<Gfn>) {
    vm.invalidate(Span::new(hva(gfns.start), hva(gfns.end)), Why::Clear).apply(idle).settle();
}

impl Entrant {
    /// Runs one lap of so many pages, a multiple of a leaf table's.
    pub fn lap(self, pages: u64) -> Result<Sample, Error> {
        let mut idle = Idle::take().expect("this thread runs no vCPU");
        tables::reserve((pages / TABLE + 64) * PAGE_SIZE * 65 / 64);
        let builder = Vm::<Npt4, _>::builder(Arithmetic).vcpus(2).mmu_lock(self.lock);
        let vm = &builder.build().map_err(|error| Error::Machine(error.to_string()))?;
        vm.slots().commit(&mut idle, |tx| {
            tx.create(Slot::new(SlotId(0), Gfn(0), pages, hva(Gfn(0))))?;
            tx.create(Slot::new(SlotId(1), ELSEWHERE.start, ELSEWHERE.len(), hva(ELSEWHERE.start)))
        })?;

        let threads = if self.beside == Beside::Nobody { 1 } else { 2 };
        let (line, at, over) = (&Line::new(threads), &AtomicU64::new(0), &AtomicBool::new(false));
        let (fault, mapped, invalidator) = thread::scope(|scope| {
            let invalidator = (threads == 2).then(|| {
                slat_cli::thread::start(scope, move || {
                    pin(1);
                    Invalidator::new(vm, self.beside).run(line, at, over)
                })
            });
            let vcpu = slat_cli::thread::start(scope, move || {
                pin(0);
                fault_in(vm, pages, line, at, over)
            });
            let (fault, mapped) = vcpu.join().expect("the vCPU's thread panicked");
            (fault, mapped, invalidator.map(|thread| thread.join().expect("the invalidator panicked")))
        });

        let stats = vm.stats();
        let mut leaves = 0;
        vm.lockless(&mut idle).for_each(Span::new(Gfn(0), ELSEWHERE.end), |_| leaves += 1);
        let due = invalidator.and_then(|done| done.due);
        Ok(Sample {
            fault,
            invalidation: invalidator.map(|done| done.ns),
            retries: stats.retries,
            mapped: [mapped, pages],
            taken: due.map(|due| [stats.mapped_faults - leaves, due]),
            booked: stats.leaves == [leaves, 0, 0],
        })
    }
}

/// The vCPU's part: nanoseconds per fault, and how many mapped a page.
fn fault_in(vm: &Machine, pages: u64, line: &Line, at: &AtomicU64, over: &AtomicBool) -> (f64, u64) {
    let mut idle = Idle::take().expect("a thread of its own");
    let mut vcpu = vm.vcpu(VcpuId(0)).expect("each vCPU has one thread");
    let mut mapped = 0;
    line.cross();
    let start = Instant::now();
    for table in (0..pages).step_by(TABLE as usize) {
        // Where it is, for whoever wants to be there too; once a table, so that the news costs nothing.
        at.store(table, Relaxed);
        for gfn in table..table + TABLE {
            mapped += u64::from(fault(&mut vcpu, &mut idle, Gfn(gfn)));
        }
    }
    let elapsed = start.elapsed();
    over.store(true, Relaxed);
    (elapsed.as_nanos() as f64 / pages as f64, mapped)
}

/// The thread beside it.
struct Invalidator<'vm> {
    vm: &'vm Machine,
    beside: Beside,
    vcpu: Vcpu<'vm, Npt4, Arithmetic>,
    idle: Idle,
    random: fastrand::Rng,
}

/// What it has done.
#[derive(Clone, Copy)]
struct Made {
    /// Nanoseconds for each invalidation, with the fault that brings its page back where one does.
    ns: f64,
    /// Pages that it must have taken.
    due: Option<u64>,
}

impl<'vm> Invalidator<'vm> {
    fn new(vm: &'vm Machine, beside: Beside) -> Self {
        let vcpu = vm.vcpu(VcpuId(1)).expect("each vCPU has one thread");
        let idle = Idle::take().expect("a thread of its own");
        Self { vm, beside, vcpu, idle, random: fastrand::Rng::with_seed(1) }
    }

    fn run(mut self, line: &Line, at: &AtomicU64, over: &AtomicBool) -> Made {
        if self.beside == Beside::Holes {
            self.bring_back();
            invalidate(self.vm, &mut self.idle, ELSEWHERE);
        }
        line.cross();
        let start = Instant::now();
        let mut made = 0;
        loop {
            let gfn = self.next(made, at);
            invalidate(self.vm, &mut self.idle, Span::sized(gfn, 1));
            made += 1;
            if over.load(Relaxed) {
                break;
            }
        }
        let due = match self.beside {
            Beside::Mapped => Some(made),
            Beside::Holes => Some(ELSEWHERE.len()),
            Beside::Nobody | Beside::Same2M => None,
        };
        Made { ns: start.elapsed().as_nanos() as f64 / made as f64, due }
    }

    fn next(&mut self, made: u64, at: &AtomicU64) -> Gfn {
        if self.beside == Beside::Same2M {
            return Gfn(at.load(Relaxed) + self.random.u64(..TABLE));
        }
        if self.beside == Beside::Mapped && made.is_multiple_of(TABLE) {
            self.bring_back();
        }
        ELSEWHERE.start + made % TABLE
    }

    fn bring_back(&mut self) {
        for gfn in ELSEWHERE.start.0..ELSEWHERE.end.0 {
            // Counted by the engine: a page that did not come back is one too few that was taken.
            let _ = fault(&mut self.vcpu, &mut self.idle, Gfn(gfn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invalidator_goes_where_it_should() {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Arithmetic).vcpus(2).build().unwrap();
        let slot = Slot::new(SlotId(1), ELSEWHERE.start, TABLE, hva(ELSEWHERE.start));
        vm.slots().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        drop(idle);
        let at = AtomicU64::new(5 * TABLE);
        for beside in [Beside::Mapped, Beside::Holes, Beside::Same2M] {
            let mut invalidator = Invalidator::new(&vm, beside);
            let mut gfns: Vec<_> = (0..TABLE).map(|made| invalidator.next(made, &at)).collect();
            let span = if beside == Beside::Same2M { Span::sized(Gfn(5 * TABLE), TABLE) } else { ELSEWHERE };
            assert!(gfns.iter().all(|&gfn| span.contains(gfn)));
            gfns.sort_unstable();
            gfns.dedup();
            assert!(gfns.len() > 200, "not always the same");
            assert_eq!(vm.stats().leaves[0], if beside == Beside::Mapped { TABLE } else { 0 });
            invalidate(&vm, &mut invalidator.idle, ELSEWHERE);
        }
    }
}
