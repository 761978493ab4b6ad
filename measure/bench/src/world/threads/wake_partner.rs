//! A thread that does work for another one, which sleeps meanwhile: as a handler of user faults does.
//!
//! The time counts: two wake-ups and the work. So the partner does no more than to be woken,
//! on the same CPU, and to wake the other; the work is done by the thread that was asked, in its place.

use crate::world::threads::run_clock::BEGAN;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::thread::{JoinHandle, Thread};

thread_local! {
    static MINE: RefCell<Option<Partner>> = const { RefCell::new(None) };
}

/// The side whose turn it is.
const OWNER: u32 = 0;
const PARTNER: u32 = 1;
const OVER: u32 = 2;

struct Partner {
    turn: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

impl Partner {
    /// One for the calling thread, on its CPU: the system gives a new thread the CPUs of the thread that made it.
    fn new() -> Self {
        let turn = Arc::new(AtomicU32::new(OWNER));
        let (seen, owner) = (Arc::clone(&turn), thread::current());
        let thread = thread::spawn(move || serve(&seen, &owner));
        Self { turn, thread }
    }

    fn pass(&self, turn: u32) {
        // ORDER(partner): Release pairs with the Acquire of `wait`: what was done before is seen by the other.
        self.turn.store(turn, Ordering::Release);
        self.thread.thread().unpark();
    }
}

fn serve(turn: &AtomicU32, owner: &Thread) {
    while wait(turn, OWNER) == PARTNER {
        // ORDER(partner): as in `pass`.
        turn.store(OWNER, Ordering::Release);
        owner.unpark();
    }
}

/// Sleeps while it is `other`'s turn; whose it is then.
fn wait(turn: &AtomicU32, other: u32) -> u32 {
    loop {
        // ORDER(partner): Acquire pairs with the Release of the thread that passed the turn.
        let now = turn.load(Ordering::Acquire);
        if now != other {
            return now;
        }
        thread::park();
    }
}

/// A handler thread does `work` for this one, which sleeps meanwhile. Outside of a run there is none.
pub fn hand_over(work: impl FnOnce()) {
    if BEGAN.get().is_none() {
        return work();
    }
    MINE.with_borrow_mut(|mine| {
        let partner = mine.get_or_insert_with(Partner::new);
        partner.pass(PARTNER);
        wait(&partner.turn, PARTNER);
    });
    work();
}

/// This thread needs its partner no more.
pub fn dismiss() {
    if let Some(partner) = MINE.take() {
        partner.pass(OVER);
        // It does nothing that can panic.
        let _ = partner.thread.join();
    }
}
