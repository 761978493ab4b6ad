//! A vCPU whose page arrives while its fault returns.

use super::*;
use crate::loom_tests::{explore, finds, thread};
use crate::sync::prim::{AtomicBool, Relaxed};
use crate::tlb::shootdown::Tlb;
use std::sync::Arc;

const VCPU: VcpuId = VcpuId(0);
const TOKEN: Token = Token(7);

/// When a fault asks the host for the last time.
#[derive(Clone, Copy, PartialEq)]
enum Asks {
    /// Once more after its wait has begun, as it must.
    Again,
    /// Only before its wait begins.
    Once,
}

/// One fault, and a pager that brings its page: the page is mapped, or the vCPU is woken.
fn pends(asks: Asks) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((Waits::default(), Tlb::new(1), AtomicBool::new(false)));
        let theirs = shared.clone();
        let pager = thread::spawn(move || {
            let (waits, tlb, page) = &*theirs;
            page.store(true, Relaxed);
            waits.ready(TOKEN, |vcpu| tlb.vcpu(vcpu).wake(|| ()));
        });
        let (waits, tlb, page) = &*shared;
        let there = || page.load(Relaxed);
        let pending = !there()
            && waits.begin(VCPU, TOKEN).expect("there is memory")
            && (asks == Asks::Once || !there());
        pager.join().expect("the pager ends");
        if pending {
            assert!(tlb.vcpu(VCPU).is_woken(), "a wake-up is lost");
            assert_eq!(waits.take(VCPU, tlb.vcpu(VCPU)), Some(TOKEN), "a wake-up is lost");
        } else {
            waits.forget(VCPU, TOKEN);
        }
        assert_eq!(waits.take(VCPU, tlb.vcpu(VCPU)), None, "told twice");
    }
}

#[test]
fn no_wake_up_is_lost_before_the_fault_returns() {
    explore(pends(Asks::Again));
}

#[test]
fn mistake_asking_before_the_wait_alone() {
    assert!(finds("a wake-up is lost", pends(Asks::Once)));
}

/// A vCPU takes a ready token while a second page arrives: it finds that token too, or is woken for it.
#[test]
fn no_wake_up_is_lost_beside_one_that_is_taken() {
    explore(|| {
        let shared = Arc::new((Waits::default(), Tlb::new(1)));
        let (waits, tlb) = &*shared;
        let wake = |tlb: &Tlb, vcpu: VcpuId| tlb.vcpu(vcpu).wake(|| ());
        for token in [TOKEN, Token(8)] {
            waits.begin(VCPU, token).expect("there is memory");
        }
        waits.ready(TOKEN, |vcpu| wake(tlb, vcpu));
        let theirs = shared.clone();
        let pager = thread::spawn(move || theirs.0.ready(Token(8), |vcpu| wake(&theirs.1, vcpu)));
        let mut taken = 0;
        let take = || u32::from(waits.take(VCPU, tlb.vcpu(VCPU)).is_some());
        taken += take();
        pager.join().expect("the pager ends");
        if taken < 2 {
            assert!(tlb.vcpu(VCPU).is_woken(), "a wake-up is lost");
        }
        while tlb.vcpu(VCPU).is_woken() {
            taken += take();
        }
        assert_eq!(taken, 2);
    });
}
