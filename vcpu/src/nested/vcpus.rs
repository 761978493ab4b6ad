//! L1's vCPUs, as its hypervisor keeps them: which are in L2, and what each still has to flush.
//!
//! ```text
//! flusher   note the flush for each vCPU; one that is in L2 is interrupted, and waited for
//! vCPU      on its way into L2: carries out what is noted, and then says that it is in
//! ```
//! A vCPU that is not in L2 uses nothing of L2's, and flushes before it does. Where L1's hardware broadcasts, it does both.

use slat::{Gfn, Span};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What L1 flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// Frames of L2, where the instruction takes an address; else the table.
    Frames(Span<Gfn>),
    /// One table: INVEPT single, a fresh ASID, a VMID.
    Table,
    /// All tables with its root, whatever their role.
    Root,
    /// All: INVEPT global, `TLB_CONTROL` 1, ALLE1IS, HFENCE.GVMA of everything.
    All,
}

#[derive(Debug, Default)]
struct State {
    in_l2: bool,
    noted: Vec<Scope>,
}

/// One vCPU.
#[derive(Debug, Default)]
struct One {
    state: Mutex<State>,
    left: Condvar,
    interrupted: AtomicBool,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Vcpus(Box<[One]>);

impl Vcpus {
    pub(super) fn new(vcpus: u32) -> Self {
        Self((0..vcpus).map(|_| One::default()).collect())
    }

    fn state(&self, id: usize) -> MutexGuard<'_, State> {
        self.0[id].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `id` has to flush before it goes on. Nothing: then it is in L2, and `begin` was called before any flush can be noted.
    pub(super) fn enter<R>(&self, id: usize, begin: impl FnOnce() -> R) -> Result<R, Vec<Scope>> {
        let mut state = self.state(id);
        if !state.noted.is_empty() {
            return Err(std::mem::take(&mut state.noted));
        }
        state.in_l2 = true;
        self.0[id].interrupted.store(false, Relaxed);
        Ok(begin())
    }

    /// It has left L2.
    pub(super) fn leave(&self, id: usize) {
        self.state(id).in_l2 = false;
        self.0[id].left.notify_all();
    }

    /// Whether it is to leave L2.
    pub(super) fn is_interrupted(&self, id: usize) -> bool {
        self.0[id].interrupted.load(Relaxed)
    }

    /// Notes a flush for all, and waits until none is in L2 that entered before. Not for a vCPU that is in L2.
    pub(super) fn flush(&self, scope: Scope) {
        for id in 0..self.0.len() {
            self.state(id).noted.push(scope);
        }
        self.send_out();
    }

    /// Waits until none is in L2 that entered before.
    pub(super) fn send_out(&self) {
        // All are interrupted before one is waited for.
        for id in 0..self.0.len() {
            if self.state(id).in_l2 {
                self.0[id].interrupted.store(true, Relaxed);
            }
        }
        for (id, one) in self.0.iter().enumerate() {
            let mut state = self.state(id);
            // One that comes back enters anew, and finds what is noted.
            while state.in_l2 && one.interrupted.load(Relaxed) {
                state = one.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
