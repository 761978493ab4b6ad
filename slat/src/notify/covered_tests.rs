//! Rule 13: progress of a fault whose page is covered by one invalidation after the other.

use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::formats::Npt4;
use crate::*;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: Span<Hva> = Span::new(Hva(0), Hva(4096));
/// Number of invalidations, each of which begins before the one before it ends.
const CHAIN: u64 = 50;

/// A host that counts how often it is asked.
#[derive(Default)]
struct Counts(AtomicU64);

impl Host for Counts {
    fn lookup(&self, _: Hva, _: Access) -> Option<HostPage> {
        self.0.fetch_add(1, Relaxed);
        Some(HostPage::PLAIN)
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage::PLAIN)
    }
}

/// A fault beside a chain of invalidations over its page, narrow or wide. Returns how often the host was asked before
/// the chain ended, and after that.
fn beside_a_chain(narrow: bool) -> (u64, u64) {
    let vm = &Vm::<Npt4, _>::builder(Counts::default()).build().unwrap();
    let mut idle = Idle::take().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0)))).unwrap();
    let begin = || {
        if narrow {
            vm.invalidate(PAGE, Reason::Clear)
        } else {
            vm.memory().invalidate(Span::sized(Gfn(0), 1), Reason::Clear)
        }
    };
    let asked = || vm.host().0.load(Relaxed);
    let fault = move || {
        let fault = Fault { gpa: Gpa(0), access: Access::Write };
        vm.vcpu(VcpuId(0)).unwrap().fault(&mut Idle::take().unwrap(), fault)
    };
    let mut active = begin();
    thread::scope(|scope| {
        let fault = scope.spawn(fault);
        let since = Instant::now();
        while vm.stats().retries_by.covered == 0 && !fault.is_finished() {
            assert!(since.elapsed() < Duration::from_secs(10), "the fault waits");
            thread::yield_now();
        }
        for _ in 0..CHAIN {
            active = begin();
            (0..10).for_each(|_| thread::yield_now());
        }
        let covered = asked();
        drop(active);
        assert_eq!(fault.join().unwrap(), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        (covered, asked() - covered)
    })
}

#[test]
fn a_fault_that_is_covered_without_a_gap_asks_nothing_and_is_done_at_the_first_gap() {
    for narrow in [true, false] {
        assert_eq!(beside_a_chain(narrow), (0, 1), "narrow: {narrow}");
    }
}
