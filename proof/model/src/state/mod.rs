//! The whole state: the shared state, and the threads. Sections and the ends of operations.
//!
//! No file here imports one outside: the other modules take steps in this state.

mod active;
mod bad;
mod held;
mod memo;
mod op;
mod pages;
mod pc;
mod shared;
mod slots;
mod table;
mod thread;
mod vcpu;

pub(crate) use active::{EPOCH, WIDE};
pub use active::{Line, Numbers, Slot, THREADS};
pub use bad::Bad;
pub use held::{Held, HeldState};
pub use memo::{Confirmed, Memo, Quiet};
pub use op::{Op, Range, Why};
pub use pages::{NONE, PAGES, Span};
pub(crate) use pages::{bits, frame, region};
pub use pc::Pc;
pub use shared::{Grace, Shared};
pub use slots::{Cell, Log, Sets, Track};
pub(crate) use slots::{LOGGED, Version, over_hvas};
pub use table::{Leaf, NODES, Node, Word};
pub use thread::Thread;
pub(crate) use thread::{Change, Fault, Flush, Logging, Page, Walk};
pub use vcpu::{Caches, Interrupts, Tlb, VcpuPc, VcpuTlb};

/// The whole state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The shared state.
    pub shared: Shared,
    /// The threads.
    pub threads: Vec<Thread>,
}

impl State {
    /// Thread `i` enters a section at the root.
    pub(crate) fn enter(&mut self, i: usize, gfn: u8) {
        let thread = &mut self.threads[i];
        thread.inside = true;
        thread.walk.level = self.shared.top();
        thread.walk.path = [NONE; 3];
        thread.walk.path[thread.walk.level as usize] = self.shared.root;
        thread.gfn = gfn;
    }

    pub(crate) fn leave(&mut self, i: usize) {
        self.threads[i].inside = false;
        self.threads[i].walk.path = [NONE; 3];
        self.shared.grace.sections &= !(1 << i);
        for thread in &mut self.threads {
            thread.waits &= !(1 << i);
        }
    }

    /// Returns the threads in sections.
    pub(crate) fn sections(&self) -> u8 {
        (0..self.threads.len()).filter(|&i| self.threads[i].inside).fold(0, |set, i| set | 1 << i)
    }

    /// Ends the operation.
    pub(crate) fn done(&mut self, i: usize) {
        self.leave(i);
        if self.shared.writer == i as u8 {
            self.shared.writer = NONE;
        }
        self.restart(i, self.threads[i].op + 1);
    }

    /// Restarts the operation.
    pub(crate) fn again(&mut self, i: usize) {
        self.leave(i);
        self.restart(i, self.threads[i].op);
    }

    fn restart(&mut self, i: usize, op: u8) {
        self.threads[i] = Thread::at(op, self.threads[i].fault.memo);
    }

    /// `entry.cas(old, new)` where thread `i` stands.
    pub(crate) fn cas(&mut self, i: usize, old: Word, new: Word) -> bool {
        let (gfn, level) = (self.threads[i].gfn, self.threads[i].walk.level);
        let node = self.threads[i].node();
        let won = self.shared.load(node, level, gfn) == old;
        if won {
            self.shared.set(node, level, gfn, new);
        }
        won
    }
}
