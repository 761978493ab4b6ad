//! Who goes on while something long is done: back to back, with each operation timed.
//!
//! One byte says at which stage the watched thread is; an operation that overlaps it counts as one beside it, one that overlaps the
//! stretch of the same length after it, in which nothing is done, is the control: what the machine itself does to such
//! an operation.

use super::harness::Series;
use super::report::Row;
use hdrhistogram::Histogram;
use serde_json::{Map, Value};
use slat::{Access, Done, Fault, Format, Gfn, Host, Idle, Level, Span, Translations, Vcpu, VcpuId, Vm};
use slat_cli::error::Error;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What the watched thread is doing.
#[derive(Debug)]
pub struct Phase(AtomicU8);

/// The others warm up; nothing is measured.
const BEFORE: u8 = 0;
/// It is being done.
const UNDER_WAY: u8 = 1;
/// Nothing is done, for as long as it took.
const CONTROL: u8 = 2;
/// All threads may go.
const OVER: u8 = 3;

impl Phase {
    /// Nothing is measured yet.
    pub fn before() -> Self {
        Self(AtomicU8::new(BEFORE))
    }

    /// Enters the next phase. It guards nothing: an operation beside the change may count for either side.
    fn enter(&self, phase: u8) {
        self.0.store(phase, Relaxed);
    }

    fn now(&self) -> u8 {
        self.0.load(Relaxed)
    }

    /// Lets the others warm up, does `work`, and then nothing for as long as `work` says that it took.
    pub fn around<R>(
        &self,
        work: impl FnOnce() -> Result<R, Error>,
        took: impl Fn(&R) -> Duration,
    ) -> Result<R, Error> {
        const WARM_UP: Duration = Duration::from_millis(2);
        spin_for(WARM_UP);
        self.enter(UNDER_WAY);
        let done = work();
        self.enter(CONTROL);
        if let Ok(done) = &done {
            spin_for(took(done));
        }
        self.enter(OVER);
        done
    }
}

/// Keeps the CPU as busy as `work` does.
fn spin_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        spin_loop();
    }
}

/// Which operations of a sample percentiles are of.
pub type Pick<S> = fn(&S) -> &Histogram<u64>;

/// A row for each percentile, and one for the longest; none where the operation was over before the onlooker could look.
pub fn latencies<S>(
    name: &str,
    longest: &str,
    params: &Map<String, Value>,
    entrants: [(&[S], Pick<S>); 2],
) -> Vec<Row> {
    let row = |(percentile, quantile)| {
        let of = |(samples, pick): (&[S], Pick<S>)| {
            let seen = samples.iter().map(pick).filter(|histogram| !histogram.is_empty());
            let ns: Vec<f64> = seen.map(|histogram| histogram.value_at_quantile(quantile) as f64).collect();
            (!ns.is_empty()).then(|| Series::new(ns))
        };
        let [baseline, slat] = entrants.map(of);
        Some(Row::compare(&format!("{name}: {percentile}"), params.clone(), "ns", &baseline?, &slat?))
    };
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), (longest, 1.0)].into_iter().filter_map(row).collect()
}

/// What an onlooker saw: nanoseconds of each operation.
pub struct Seen {
    pub beside: Histogram<u64>,
    pub control: Histogram<u64>,
    /// Operations that did what they should, of all.
    pub good: [u64; 2],
}

impl Default for Seen {
    fn default() -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        let empty = || Histogram::new_with_bounds(1, HOUR, 2).expect("bounds that fit");
        Self { beside: empty(), control: empty(), good: [0; 2] }
    }
}

impl Seen {
    /// Adds what another thread saw.
    pub fn add(&mut self, other: &Self) {
        for (all, one) in [(&mut self.beside, &other.beside), (&mut self.control, &other.control)] {
            all.add(one).expect("the same bounds");
        }
        (self.good[0], self.good[1]) = (self.good[0] + other.good[0], self.good[1] + other.good[1]);
    }
}

/// An onlooker: it does the same thing again and again.
pub trait Busy {
    /// What comes before each time, untimed.
    fn prepare(&mut self) {}
    /// The timed operation; true if it did what it should.
    fn act(&mut self) -> bool;
}

/// Runs until everything is over.
pub fn watch(phase: &Phase, mut busy: impl Busy) -> Seen {
    let mut seen = Seen::default();
    loop {
        busy.prepare();
        let began = phase.now();
        let start = Instant::now();
        let good = busy.act();
        let ns = start.elapsed().as_nanos() as u64;
        let ended = phase.now();
        let during = began..=ended;
        if during.contains(&UNDER_WAY) {
            seen.beside.saturating_record(ns);
        }
        if during.contains(&CONTROL) {
            seen.control.saturating_record(ns);
        }
        seen.good[0] += u64::from(good);
        seen.good[1] += 1;
        if ended == OVER {
            return seen;
        }
    }
}

/// A vCPU that faults in one fresh page after another, and is in the guest in between.
pub struct Faulter<'vm, F: Format, H: Host> {
    vcpu: Vcpu<'vm, F, H>,
    idle: Idle,
    left: Span<Gfn>,
}

/// The TLB of a guest that only faults: a page that it has lost it does not use again.
struct Nothing;

impl Translations for Nothing {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

impl<'vm, F: Format, H: Host> Faulter<'vm, F, H> {
    /// vCPU `id`, of which the calling thread has no other, in frames that no other thread uses.
    pub fn new(vm: &'vm Vm<F, H>, id: VcpuId, gfns: Span<Gfn>) -> Self {
        let vcpu = vm.vcpu(id).expect("each vCPU has one thread");
        Self { vcpu, idle: Idle::take().expect("each thread has one vCPU"), left: gfns }
    }
}

impl<F: Format, H: Host> Busy for Faulter<'_, F, H> {
    fn prepare(&mut self) {
        let mut guest = self.vcpu.enter(&mut self.idle, &mut Nothing).poll();
        if guest.kicked() {
            guest.answer(&mut Nothing);
        }
    }

    fn act(&mut self) -> bool {
        let gfn = self.left.start;
        self.left.start = gfn + 1;
        let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
        !self.left.is_empty() && self.vcpu.fault(&mut self.idle, fault) == Ok(Done::Mapped(Level::K4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters the next phase with each operation, and fails in the control.
    struct Clockwork<'p>(&'p Phase, u8);

    impl Busy for Clockwork<'_> {
        fn act(&mut self) -> bool {
            self.1 += 1;
            self.0.enter(self.1);
            self.1 != CONTROL
        }
    }

    #[test]
    fn an_operation_counts_for_every_phase_that_it_overlaps() {
        let phase = Phase::before();
        let seen = watch(&phase, Clockwork(&phase, BEFORE));
        // Before to under way, that to control, control to over.
        assert_eq!((seen.beside.len(), seen.control.len(), seen.good), (2, 2, [2, 3]));
        let mut all = Seen::default();
        all.add(&seen);
        all.add(&seen);
        assert_eq!((all.beside.len(), all.control.len(), all.good), (4, 4, [4, 6]));
    }

    /// All of it goes by within one operation.
    struct Stalled<'p>(&'p Phase);

    impl Busy for Stalled<'_> {
        fn act(&mut self) -> bool {
            self.0.enter(OVER);
            true
        }
    }

    #[test]
    fn an_operation_that_outlasts_it_counts() {
        let phase = Phase::before();
        let seen = watch(&phase, Stalled(&phase));
        assert_eq!((seen.beside.len(), seen.control.len()), (1, 1));
    }
}
