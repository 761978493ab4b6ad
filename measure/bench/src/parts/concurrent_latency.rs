//! Latency of short actions that threads repeat while a worker does something long.
//!
//! One word holds the phase of the worker. An action that overlaps the work counts as one beside it. An action that overlaps
//! the control, an idle phase of the same length after the work, shows what the machine alone does to such an action.

use crate::world::Ordering::Relaxed;
use crate::world::{AtomicU64, Costs, Job, RunStats, compute, elapsed, now, run};
use hdrhistogram::Histogram;
use slat::{
    Access, Fault, Format, Gfn, Host, Idle, Level, Next, Resume, Span, Translations, Vcpu, VcpuId, Vm,
};

/// The others warm up.
const BEFORE: u64 = 0;
/// The work is being done.
const UNDER_WAY: u64 = 1;
/// Nothing is done, for as long as it took.
const CONTROL: u64 = 2;
/// All threads may go.
const OVER: u64 = 3;

/// How long acts took, in nanoseconds.
#[derive(Debug)]
pub struct Latencies {
    /// Each of them, to two digits.
    pub each: Histogram<u64>,
    /// All together.
    ns: u64,
    /// The longest.
    pub longest_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        let each = Histogram::new_with_bounds(1, HOUR, 2).expect("bounds that fit");
        Self { each, ns: 0, longest_ns: 0 }
    }
}

impl Latencies {
    fn record(&mut self, ns: u64) {
        self.each.saturating_record(ns);
        self.ns += ns;
        self.longest_ns = self.longest_ns.max(ns);
    }

    fn add(&mut self, other: &Self) {
        self.each.add(&other.each).expect("the same bounds");
        self.ns += other.ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// 0 where there was none.
    pub fn mean_ns(&self) -> f64 {
        self.ns as f64 / self.each.len().max(1) as f64
    }
}

/// Latencies of actions, by the phase of the worker that they overlap.
#[derive(Debug, Default)]
pub struct PhaseLatencies {
    /// Acts that were over when the work began.
    pub before: Latencies,
    /// Acts that overlap the work.
    pub beside: Latencies,
    /// Acts that overlap the control.
    pub control: Latencies,
    /// Acts that did what they should, of all.
    pub good: [u64; 2],
}

impl PhaseLatencies {
    /// Adds what another thread saw.
    pub fn add(&mut self, other: &Self) {
        self.before.add(&other.before);
        self.beside.add(&other.beside);
        self.control.add(&other.control);
        (self.good[0], self.good[1]) = (self.good[0] + other.good[0], self.good[1] + other.good[1]);
    }
}

/// An action that a thread repeats, and whose latency is measured.
pub trait TimedAction: Send {
    /// The vCPU whose kicks it takes.
    fn vcpu(&self) -> Option<VcpuId> {
        None
    }
    /// Whether nothing is left to do: its thread goes.
    fn is_done(&self) -> bool {
        false
    }
    /// Untimed work before each action.
    fn prepare(&mut self, idle: &mut Idle) {
        let _ = idle;
    }
    /// The timed act; true if it did what it should.
    fn act(&mut self, idle: &mut Idle) -> bool;
}

/// Runs until everything is over, or nothing is left to do.
fn watch(phase: &AtomicU64, busy: &mut impl TimedAction) -> PhaseLatencies {
    let mut idle = Idle::take().expect("a CPU of its own");
    let mut seen = PhaseLatencies::default();
    // ORDER(phase): Relaxed: it guards nothing; an act beside the change may count for either side.
    let look = || phase.load(Relaxed);
    while !busy.is_done() {
        busy.prepare(&mut idle);
        let (began, start) = (look(), now());
        let good = busy.act(&mut idle);
        let ns = elapsed(start);
        let ended = look();
        let during = began..=ended;
        if ended == BEFORE {
            seen.before.record(ns);
        }
        if during.contains(&UNDER_WAY) {
            seen.beside.record(ns);
        }
        if during.contains(&CONTROL) {
            seen.control.record(ns);
        }
        seen.good[0] += u64::from(good);
        seen.good[1] += 1;
        if ended == OVER {
            break;
        }
    }
    seen
}

/// Does `work` beside threads that repeat `actions`, each on a CPU of its own. They begin while `before` lasts, and stop
/// `control_ns` after the work.
pub fn beside<B: TimedAction, R: Send, E: Send>(
    costs: &Costs,
    actions: &mut [B],
    before: impl FnOnce() + Send,
    work: impl FnOnce() -> Result<R, E> + Send,
    control_ns: impl FnOnce(&R) -> u64 + Send,
) -> Result<(R, PhaseLatencies, RunStats), E> {
    let phase = &AtomicU64::new(BEFORE);
    let mut all: Vec<_> = actions.iter().map(|_| PhaseLatencies::default()).collect();
    let mut done = None;
    let jobs = actions.iter_mut().zip(&mut all).map(|(busy, seen)| match busy.vcpu() {
        Some(id) => Job::vcpu(id.0, move || *seen = watch(phase, busy)),
        None => Job::new("timed", move || *seen = watch(phase, busy)),
    });
    let worker = || {
        // ORDER(phase): as above.
        let enter = |next| phase.store(next, Relaxed);
        before();
        enter(UNDER_WAY);
        let came = work();
        enter(CONTROL);
        compute(came.as_ref().map_or(0, control_ns));
        enter(OVER);
        done = Some(came);
    };
    let stats = run(costs, jobs.chain([Job::new("worker", worker)]).collect());
    let mut seen = PhaseLatencies::default();
    for one in &all {
        seen.add(one);
    }
    done.expect("the worker ran").map(|done| (done, seen, stats))
}

/// A vCPU that faults in one fresh page after another, and is in the guest in between, where its guest does nothing. On cache lines of its
/// own.
#[repr(align(128))]
pub struct Faulter<'vm, F: Format, H: Host> {
    vcpu: Vcpu<'vm, F, H>,
    left: Span<Gfn>,
}

/// The TLB of a guest that only faults: a page that it has lost it does not use again.
struct Nothing;

impl Translations for Nothing {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

impl<'vm, F: Format, H: Host> Faulter<'vm, F, H> {
    /// vCPU `id`, which no other thread has, in frames that no other thread uses.
    pub fn new(vm: &'vm Vm<F, H>, id: VcpuId, gfns: Span<Gfn>) -> Self {
        Self { vcpu: vm.vcpu(id).expect("each vCPU has one thread"), left: gfns }
    }
}

impl<F: Format, H: Host> TimedAction for Faulter<'_, F, H> {
    fn vcpu(&self) -> Option<VcpuId> {
        Some(self.vcpu.id())
    }

    fn prepare(&mut self, idle: &mut Idle) {
        let mut guest = self.vcpu.enter(idle, &mut Nothing).poll();
        if guest.kicked() {
            guest.answer(&mut Nothing);
        }
    }

    fn act(&mut self, idle: &mut Idle) -> bool {
        let gfn = self.left.start;
        self.left.start = gfn + 1;
        let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
        !self.left.is_empty() && self.vcpu.fault(idle, fault) == Ok(Next::Resume(Resume::Mapped(Level::K4)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters the next phase with each act, and fails in the control.
    struct Clockwork<'p>(&'p AtomicU64, u64);

    impl TimedAction for Clockwork<'_> {
        fn act(&mut self, _: &mut Idle) -> bool {
            self.1 += 1;
            self.0.store(self.1, Relaxed);
            self.1 != CONTROL
        }
    }

    #[test]
    fn an_act_counts_for_every_phase_that_it_overlaps() {
        let phase = &AtomicU64::new(BEFORE);
        let mut seen = PhaseLatencies::default();
        let watched = || seen = watch(phase, &mut Clockwork(phase, BEFORE));
        run(&Costs::SERVER, vec![Job::new("timed", watched)]);
        // Before to under way, that to control, control to over.
        assert_eq!((seen.beside.each.len(), seen.control.each.len(), seen.good), (2, 2, [2, 3]));
        let mut all = PhaseLatencies::default();
        all.add(&seen);
        all.add(&seen);
        assert_eq!((all.beside.each.len(), all.control.each.len(), all.good), (4, 4, [4, 6]));
    }

    /// All of it goes by within one act.
    struct Stalled<'p>(&'p AtomicU64);

    impl TimedAction for Stalled<'_> {
        fn act(&mut self, _: &mut Idle) -> bool {
            self.0.store(OVER, Relaxed);
            true
        }
    }

    #[test]
    fn an_act_that_outlasts_it_counts() {
        let phase = &AtomicU64::new(BEFORE);
        let mut seen = PhaseLatencies::default();
        let watched = || seen = watch(phase, &mut Stalled(phase));
        run(&Costs::SERVER, vec![Job::new("timed", watched)]);
        assert_eq!((seen.beside.each.len(), seen.control.each.len()), (1, 1));
    }

    #[test]
    fn acts_are_counted_averaged_and_the_longest_is_found() {
        let mut took = Latencies::default();
        assert!(took.mean_ns() < 1e-9);
        for ns in [10, 30, 20] {
            took.record(ns);
        }
        took.add(&Latencies::default());
        assert!((took.mean_ns() - 20.0).abs() < 1e-9 && took.longest_ns == 30 && took.each.len() == 3);
    }
}
