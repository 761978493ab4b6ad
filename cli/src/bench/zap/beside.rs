//! Who goes on while a zap is made: vCPUs that fault, and a probe that waits for sections to end.
//!
//! Each works back to back and times each of its operations. One byte says what the zapper is doing; an operation
//! that overlaps the zap counts as one beside it, one that overlaps the stretch of the same length after it, in which
//! nothing is zapped, is the control: what the machine itself does to such an operation.

use super::super::arithmetic::Arithmetic;
use super::ground::{Machine, elsewhere, spare};
use hdrhistogram::Histogram;
use slat::slots::Memslots;
use slat::table::formats::Npt4;
use slat::{Access, Done, Fault, Gfn, Idle, Level, Span, Translations, Vcpu, VcpuId};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Instant;

/// What the zapper is doing.
#[derive(Debug)]
pub struct Phase(AtomicU8);

/// The others warm up; nothing is measured.
const BEFORE: u8 = 0;
/// The zap is being made.
pub const ZAP: u8 = 1;
/// Nothing is zapped, for as long as the zap took.
pub const CONTROL: u8 = 2;
/// Everybody may go.
pub const OVER: u8 = 3;

impl Phase {
    /// Nothing is measured yet.
    pub fn before() -> Self {
        Self(AtomicU8::new(BEFORE))
    }

    /// Enters the next phase. It guards nothing: an operation beside the change may count for either side.
    pub fn enter(&self, phase: u8) {
        self.0.store(phase, Relaxed);
    }

    fn now(&self) -> u8 {
        self.0.load(Relaxed)
    }
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

/// Somebody who does the same thing again and again.
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
        if during.contains(&ZAP) {
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
pub struct Faulter<'vm> {
    vcpu: Vcpu<'vm, Npt4, Arithmetic>,
    idle: Idle,
    left: Span<Gfn>,
}

/// The TLB of a guest that only faults: a page that it has lost it does not use again.
struct Nothing;

impl Translations for Nothing {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

impl<'vm> Faulter<'vm> {
    /// vCPU `nth`, in its own memslot.
    pub fn new(vm: &'vm Machine, nth: u16) -> Self {
        let vcpu = vm.vcpu(VcpuId(u32::from(nth))).expect("each vCPU has one thread");
        Self { vcpu, idle: Idle::take().expect("each thread has one vCPU"), left: elsewhere(nth) }
    }
}

impl Busy for Faulter<'_> {
    fn prepare(&mut self) {
        let mut guest = self.vcpu.enter(&mut self.idle, &mut Nothing);
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

/// Makes a memslot and deletes it: that takes the baseline's lock, and ends in a grace period, so it waits for whoever
/// is inside. The longest wait is the longest hold.
pub struct Probe<'vm> {
    slots: Memslots<'vm, Npt4, Arithmetic>,
    idle: Idle,
}

impl<'vm> Probe<'vm> {
    /// On the VM's spare memslot.
    pub fn new(vm: &'vm Machine) -> Self {
        Self { slots: vm.slots(), idle: Idle::take().expect("this thread runs no vCPU") }
    }
}

impl Busy for Probe<'_> {
    fn act(&mut self) -> bool {
        let slot = spare();
        let made = self.slots.commit(&mut self.idle, |tx| tx.create(slot));
        made.is_ok() && self.slots.commit(&mut self.idle, |tx| tx.delete(slot.id)) == Ok(slot)
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
        // Before to zap, zap to control, control to over.
        assert_eq!((seen.beside.len(), seen.control.len(), seen.good), (2, 2, [2, 3]));
        let mut all = Seen::default();
        all.add(&seen);
        all.add(&seen);
        assert_eq!((all.beside.len(), all.control.len(), all.good), (4, 4, [4, 6]));
    }

    /// The whole zap goes by within one operation.
    struct Stalled<'p>(&'p Phase);

    impl Busy for Stalled<'_> {
        fn act(&mut self) -> bool {
            self.0.enter(OVER);
            true
        }
    }

    #[test]
    fn an_operation_that_outlasts_the_zap_counts() {
        let phase = Phase::before();
        let seen = watch(&phase, Stalled(&phase));
        assert_eq!((seen.beside.len(), seen.control.len()), (1, 1));
    }
}
