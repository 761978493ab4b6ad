//! One vCPU fills new memory, each fault timed, while a thread changes mappings elsewhere in the same address space: other addresses, which
//! a memslot of the VM shows, too. The control is the same vCPU beside a thread that only computes.

use super::new_memory::{BASE, Machine, machine};
use crate::scenarios::threads_prelude::*;
use hdrhistogram::Histogram;
use slat_mm::File;
use std::hint::spin_loop;

/// Where the mappings change.
const ELSEWHERE: Hva = Hva(0x2000_0000_0000);

/// Memory of a file: a fork does not cover it.
const SHARED: &str = "shared file";

/// The kind of the guest's memory, and the changes elsewhere. The first is the control.
pub const GUESTS: [(&str, &[Change]); 2] = [
    ("anonymous", &[Change::Quiet, Change::Munmap, Change::Mprotect]),
    (SHARED, &[Change::Quiet, Change::Munmap, Change::Mprotect, Change::Fork]),
];

/// A change elsewhere that is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    Quiet,
    /// Fill and unmap.
    Munmap,
    /// To read-only and back, with a store to each page.
    Mprotect,
    /// A child that is dropped, with a store to each page.
    Fork,
}

/// The result of one sample.
pub struct Beside {
    fault_ns: Histogram<u64>,
    /// The conditions that must hold.
    pub tally: [Tally; 2],
}

impl Change {
    pub fn name(self) -> &'static str {
        match self {
            Self::Quiet => "nothing",
            Self::Munmap => "munmap",
            Self::Mprotect => "mprotect",
            Self::Fork => "fork",
        }
    }

    /// Once. The changed pages are mapped and filled before, and after.
    fn make(self, space: &AddressSpace, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        match self {
            Self::Quiet => {
                (0..10_000).for_each(|_| spin_loop());
                return Ok(());
            }
            Self::Munmap => {
                space.munmap(idle, hvas)?;
                space.mmap(Place::Fixed(hvas.start), hvas.len(), Prot::ReadWrite, Backing::Anonymous)?;
            }
            Self::Mprotect => {
                space.mprotect(idle, hvas, Prot::Read)?;
                space.mprotect(idle, hvas, Prot::ReadWrite)?;
            }
            Self::Fork => drop(space.fork(idle)?),
        }
        fill(space, idle, hvas)
    }
}

/// Stores to each page.
fn fill(space: &AddressSpace, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
    (hvas.start.0..hvas.end.0).step_by(PAGE_SIZE as usize).try_for_each(|at| space.write(idle, Hva(at), &[1]))
}

/// One sample: a machine built anew, and its vCPU beside the change.
pub fn sample(arena: &Arc<Arena>, guest: &str, change: Change, bytes: u64, changed: u64) -> Result<Beside> {
    let backing = if guest == SHARED {
        Backing::Shared { file: File::zeroed(arena, bytes), offset: 0 }
    } else {
        Backing::Anonymous
    };
    let (space, vm) = machine(arena, 1, bytes, backing, false)?;
    let elsewhere = Span::sized(ELSEWHERE, changed);
    space.mmap(Place::Fixed(ELSEWHERE), changed, Prot::ReadWrite, Backing::Anonymous)?;
    let idle = &mut idle()?;
    let pages = bytes / PAGE_SIZE;
    vm.memory()
        .commit(idle, |tx| tx.create(Slot::new(SlotId(1), Gfn(pages), changed / PAGE_SIZE, ELSEWHERE)))?;
    fill(&space, idle, elsewhere)?;
    let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (faults, changes) = thread::scope(|scope| {
        let changes = start(scope, || {
            let result = changes(&space, change, elsewhere, &ready, &over);
            ready.store(true, Relaxed);
            result
        });
        while !ready.load(Relaxed) {
            spin_loop();
        }
        let faults = faults(&vm, idle, pages);
        over.store(true, Relaxed);
        (faults, joined(changes.join()))
    });
    let (fault_ns, mapped) = faults?;
    let changed = [u64::from(changes? > 1), 1];
    let tally = [("every fault mapped a page", [mapped, pages]), ("it was made meanwhile", changed)];
    Ok(Beside { fault_ns, tally })
}

/// Changes until it is over; how often. `ready` once there was one.
fn changes(
    space: &AddressSpace,
    change: Change,
    hvas: Span<Hva>,
    ready: &AtomicBool,
    over: &AtomicBool,
) -> Result<u64> {
    pin(1);
    let (mut idle, mut made) = (idle()?, 0);
    while !over.load(Relaxed) {
        change.make(space, &mut idle, hvas)?;
        ready.store(true, Relaxed);
        made += 1;
    }
    Ok(made)
}

/// How long each fault of the vCPU took, and how many mapped a page.
fn faults(vm: &Machine, idle: &mut Idle, pages: u64) -> Result<(Histogram<u64>, u64)> {
    pin(0);
    let mut vcpu = vcpu(vm, 0)?;
    let mut fault_ns = Histogram::new(3).map_err(machine_error)?;
    let mut mapped = 0;
    for gfn in (0..pages).map(Gfn) {
        let began = Instant::now();
        let done = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write });
        fault_ns.saturating_record(began.elapsed().as_nanos() as u64);
        mapped += u64::from(matches!(done, Ok(Next::Resume(Resume::Mapped(_)))));
    }
    debug_assert!(vm.host().space().lookup(BASE, Access::Read).is_some());
    Ok((fault_ns, mapped))
}

/// Each change against the control: above 1, faults are faster beside the change.
pub fn rows(guest: &str, laps: &Lineup<Change, Beside>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        let figure =
            |change| Series::of(laps.of(change), |sample| sample.fault_ns.value_at_quantile(quantile) as f64);
        for (&change, _) in laps.each().skip(1) {
            let params = params! { "guest": guest, "figure": format!("{name} of a fault") };
            let name = format!("beside {}, beside nothing", change.name());
            rows.push(Row::compare(&name, params, "ns", &figure(change), &figure(Change::Quiet)));
        }
    }
    rows
}
