//! A vCPU of a guest that comes recalls its trace: what it stored elsewhere is expected here.

use super::arrive::Arrivals;
use crate::error::Error;
use crate::run::feed::Jobs;
use crate::run::machine::Machine;
use slat::{Format, Idle, PAGE_SIZE, Span};
use slat_vcpu::guest::Replay;

/// A vCPU that can go on.
pub struct Came {
    /// Which of its traces it is in, and how many batches of it are made.
    pub job: u64,
    pub batches: u64,
    pub replay: Replay,
}

/// Recalls the trace as far as the guest has come, and further whenever it has come further, until it is complete here. `None` where
/// it never is, or `stop`.
pub fn recall<F: Format>(
    machine: &Machine<F>,
    vcpu: u32,
    jobs: &Jobs,
    arrivals: &Arrivals,
    stop: &impl Fn() -> bool,
) -> Option<Came> {
    let fresh = |job| Came { job, batches: 0, replay: Replay::new(machine.oracle_pages()) };
    let (mut came, mut told) = (fresh(0), 0);
    loop {
        let (position, complete) = arrivals.next(vcpu, &mut told)?;
        if position.job > came.job {
            // Memory of a trace before is looked at no more.
            came = fresh(position.job);
        }
        for region in &position.regions {
            came.replay.layout.place(region.start, region.gpa);
        }
        while came.batches < position.batches {
            came.replay.recall(&jobs[came.job as usize].recv().ok()?);
            came.batches += 1;
            if stop() {
                return None;
            }
        }
        if complete {
            arrivals.resumed();
            return Some(came);
        }
    }
}

/// Compares the memory of a trace that has ended with what it stored: pages that are, and those of them that are wrong.
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
