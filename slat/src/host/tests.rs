//! Kicks and broadcasts that panic.

use super::*;
use crate::sync::prim::{AtomicU64, Relaxed};
use core::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Panics for vCPU 0; counts the kicks of the others.
#[derive(Default)]
struct First(AtomicU64);

impl Host for First {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }

    fn kick(&self, vcpu: VcpuId) {
        if vcpu == VcpuId(0) {
            resume_unwind(std::boxed::Box::new("on purpose"));
        }
        self.0.fetch_add(1, Relaxed);
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        resume_unwind(std::boxed::Box::new("on purpose"));
    }
}

#[test]
fn a_kick_that_panics_does_not_stop_other_kicks() {
    let (host, finished) = (First::default(), Cell::new(false));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let kicks = Kicks::new(&host);
        (0..3).for_each(|id| kicks.kick(VcpuId(id)));
        finished.set(true);
        kicks.end();
    }));
    assert_eq!(host.0.load(Relaxed), 2, "kicks after the one that panics");
    assert!(panicked.is_err() && finished.get(), "the panic reaches the caller, after all kicks");
}

#[test]
fn a_broadcast_that_panics_leaves_the_flush_to_kicks() {
    let host = First::default();
    let kicks = Kicks::new(&host);
    assert!(!kicks.broadcast(Span::new(Gfn(0), Gfn(1))));
    kicks.kick(VcpuId(1));
    assert!(catch_unwind(AssertUnwindSafe(|| kicks.end())).is_err(), "the panic goes on");
    assert_eq!(host.0.load(Relaxed), 1);
}
