//! A vCPU of an arriving guest recalls its trace: it computes what the stores of the sending process have left in
//! memory.

use super::arrive::Arrivals;
use crate::error::Error;
use crate::run::feed::Jobs;
use crate::run::guest_vm::Machine;
use slat::{Format, Idle, PAGE_SIZE, Span};
use slat_vcpu::guest::Replay;

/// A vCPU that can continue.
pub struct Recalled {
    /// The trace that it replays, and how many batches of it are done.
    pub job: u64,
    pub batches: u64,
    pub replay: Replay,
}

/// Recalls the trace up to each position that arrives, until the guest is complete here. Returns `None` if no guest
/// arrives, or at `stop`.
pub fn recall<F: Format>(
    machine: &Machine<F>,
    vcpu: u32,
    jobs: &Jobs,
    arrivals: &Arrivals,
    stop: &impl Fn() -> bool,
) -> Option<Recalled> {
    let fresh = |job| Recalled { job, batches: 0, replay: Replay::new(machine.oracle_pages()) };
    let (mut recalled, mut seen) = (fresh(0), 0);
    loop {
        let (position, complete) = arrivals.next(vcpu, &mut seen)?;
        if position.job > recalled.job {
            // The memory of an earlier trace is not compared again.
            recalled = fresh(position.job);
        }
        for region in &position.regions {
            recalled.replay.layout.place(region.start, region.gpa);
        }
        while recalled.batches < position.batches {
            recalled.replay.recall(&jobs[recalled.job as usize].recv().ok()?);
            recalled.batches += 1;
            if stop() {
                return None;
            }
        }
        if complete {
            arrivals.resumed();
            return Some(recalled);
        }
    }
}

/// Compares the memory of a finished trace with its stores. Returns the pages compared, and how many are wrong.
pub fn compare<F: Format>(machine: &Machine<F>, idle: &mut Idle, replay: &Replay) -> Result<[u64; 2], Error> {
    let [mut pages, mut wrong] = [0; 2];
    let mut found = [0; PAGE_SIZE as usize];
    for (gfn, expected) in replay.expected() {
        machine.space.read(idle, Machine::<F>::hvas_of(Span::sized(gfn, 1)).start, &mut found)?;
        pages += 1;
        wrong += u64::from(found != *expected);
    }
    Ok([pages, wrong])
}
