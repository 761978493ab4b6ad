//! L1's vCPUs from its hypervisor's view: which are in L2, and which flushes each still has to execute.
//!
//! ```text
//! flusher   notes the flush for each vCPU; interrupts those in L2, and waits for them to leave
//! vCPU      on its way into L2: executes noted flushes, then marks itself as in L2
//! ```
//! A vCPU outside of L2 uses none of L2's translations, and flushes before it enters. If L1's hardware
//! broadcasts, that replaces both.

use slat::{Gfn, Span};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The scope of a flush of L1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// Frames of L2 if the instruction takes an address, else the table.
    Frames(Span<Gfn>),
    /// One table: INVEPT single, a new ASID, a VMID.
    Table,
    /// All tables with its root, whatever their role.
    Root,
    /// Everything: INVEPT global, `TLB_CONTROL` 1, ALLE1IS, HFENCE.GVMA.
    All,
}

#[derive(Debug, Default)]
struct State {
    in_l2: bool,
    noted: Vec<Scope>,
}

/// State of one vCPU.
#[derive(Debug, Default)]
struct VcpuState {
    state: Mutex<State>,
    left: Condvar,
    interrupted: AtomicBool,
}

/// The vCPUs of L1.
#[derive(Debug)]
pub(super) struct Vcpus(Box<[VcpuState]>);

impl Vcpus {
    pub(super) fn new(vcpus: u32) -> Self {
        Self((0..vcpus).map(|_| VcpuState::default()).collect())
    }

    fn state(&self, id: usize) -> MutexGuard<'_, State> {
        self.0[id].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks `id` as in L2 and calls `begin`, before another flush can be noted. If flushes are pending,
    /// returns those instead.
    pub(super) fn enter<R>(&self, id: usize, begin: impl FnOnce() -> R) -> Result<R, Vec<Scope>> {
        let mut state = self.state(id);
        if !state.noted.is_empty() {
            return Err(std::mem::take(&mut state.noted));
        }
        state.in_l2 = true;
        self.0[id].interrupted.store(false, Relaxed);
        Ok(begin())
    }

    /// Marks `id` as outside of L2.
    pub(super) fn leave(&self, id: usize) {
        self.state(id).in_l2 = false;
        self.0[id].left.notify_all();
    }

    /// Whether `id` should leave L2.
    pub(super) fn is_interrupted(&self, id: usize) -> bool {
        self.0[id].interrupted.load(Relaxed)
    }

    /// Notes a flush for all vCPUs, and waits until those now in L2 have left. Do not call it in L2.
    pub(super) fn flush(&self, scope: Scope) {
        for id in 0..self.0.len() {
            self.state(id).noted.push(scope);
        }
        self.send_out();
    }

    /// Waits until the vCPUs now in L2 have left.
    pub(super) fn send_out(&self) {
        // Interrupts all of them before it waits for one.
        for id in 0..self.0.len() {
            if self.state(id).in_l2 {
                self.0[id].interrupted.store(true, Relaxed);
            }
        }
        for (id, one) in self.0.iter().enumerate() {
            let mut state = self.state(id);
            // A vCPU that returns enters anew, and finds its noted flushes.
            while state.in_l2 && one.interrupted.load(Relaxed) {
                state = one.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
