//! The daemon of the pager: models `pager/src/daemon/`, with a state of its own.
//!
//! A keeper accepts VMMs on two sockets and gives them to its worker, which serves each in a thread. They exchange messages
//! over two queues with little room. The worker may be killed at any step, and the keeper whenever its worker has
//! everything; not both at once. Beside them VMMs connect, end and die, an operator makes requests, and a second daemon
//! wants a path. A template may be one that no call ever opens.
//!
//! | rule | | mistakes that break it |
//! |---|---|---|
//! | D1 | the keeper never waits for the worker, and the worker sends without a lock | `daemon-lockstep` |
//! | D2 | a receiver that is told of a reset reads on: messages of before are still in the queue | `daemon-reset-is-end` |
//! | D3 | the keeper has a guest's journal before the first event is read, and a handshake stays in its socket | `daemon-keep-late`, `daemon-handshake-taken` |
//! | D4 | the worker notes a change in its copy, then sends it; to the next keeper after the whole copy | `daemon-noted-after-send`, `daemon-changes-first` |
//! | D5 | the worker says that it is ready when it has everything | `daemon-ready-early` |
//! | D6 | the keeper starts a worker when the last one is dead | `daemon-two-workers` |
//! | D7 | a guest has the version that its socket had when the keeper accepted it | `daemon-version-unpinned` |
//! | D8 | the openings of one socket's template are told in the order in which they were made | `daemon-opened-out-of-order` |
//! | D9 | a later worker waits for no template before it takes guests | `daemon-one-template-for-all` |
//! | D10 | a thread that waits for a template sees the end of its VMM | `daemon-dead-vmm-waits` |
//! | D11 | descriptors of VMMs are closed by threads that delay no other VMM | `daemon-closes-in-place`, `daemon-close-counted` |
//! | D12 | the keeper accepts a guest when no message waits, so a kill of it loses at most one | `daemon-accepts-ahead` |
//! | D13 | a socket that closes first loses its path, and its queue is accepted | `daemon-backlog-dropped` |
//! | D14 | a daemon takes no live socket unless asked to, and removes its own alone, under the lock of the folder | `daemon-socket-stolen`, `daemon-place-of-path`, `daemon-removed-unlocked` |
//! | D15 | an operator is answered when the worker was sent the change; the next worker and the next keeper get it | `daemon-answered-early`, `daemon-drain-forgotten`, `daemon-reload-forgotten` |
//! | D16 | a session's socket closes when its guest begins, also under the next keeper | `daemon-session-reopened` |
//!
//! Properties: an honest VMM is served, by one worker at a time, or told that there is no daemon. A kill of the keeper may
//! lose the one VMM that it has accepted and not sent yet. A guest has one version, and its journal. Nothing waits for one
//! VMM or one template. No daemon's socket is stolen or deleted. An answered request stays done. A drain ends.

mod explore;
mod keeper;
mod kills;
mod outside;
pub mod scenarios;
mod state;
mod worker;

use crate::bug::Bug;
use crate::state::Bad;
pub use explore::Action;
use state::{Keeper, Kept, Letter, Listener, SOCKETS, State, VmmAt, Worker};
pub use state::{Kind, Op};

/// A scenario: the VMMs and their sockets, the operator's program, the kills, and perhaps a mistake.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Its events, in a few words.
    pub name: String,
    vmms: Vec<(u8, Kind)>,
    ops: Vec<Op>,
    /// Most kills of workers, and of keepers.
    kills: [u8; 2],
    /// Sockets whose templates no call opens once the first worker is gone.
    wedged: [bool; SOCKETS],
    /// Sockets for one guest each.
    sessions: [bool; SOCKETS],
    /// VMMs may die at any time.
    dies: bool,
    /// A second daemon wants the path of socket 0; whether it replaces another daemon there.
    other: Option<bool>,
    bug: Option<Bug>,
}

impl Daemon {
    fn new(name: &str, vmms: &[(u8, Kind)], ops: &[Op]) -> Self {
        Self {
            name: format!("daemon: {name}"),
            vmms: vmms.to_vec(),
            ops: ops.to_vec(),
            kills: [0; 2],
            wedged: [false; SOCKETS],
            sessions: [false; SOCKETS],
            dies: false,
            other: None,
            bug: None,
        }
    }

    /// So many kills of workers and of keepers.
    fn kills(self, workers: u8, keepers: u8) -> Self {
        Self { kills: [workers, keepers], ..self }
    }

    /// No later worker can open the template of this socket.
    fn wedged(mut self, socket: usize) -> Self {
        self.wedged[socket] = true;
        self
    }

    /// This socket serves one guest.
    fn session(mut self, socket: usize) -> Self {
        self.sessions[socket] = true;
        self
    }

    /// VMMs may die at any time.
    fn dies(self) -> Self {
        Self { dies: true, ..self }
    }

    /// A second daemon wants the path of socket 0.
    fn beside_another(self, replaces: bool) -> Self {
        Self { other: Some(replaces), ..self }
    }

    /// The same with a mistake.
    pub fn with(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    fn makes(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn socket_of(&self, vmm: usize) -> usize {
        usize::from(self.vmms[vmm].0)
    }

    /// Returns whether the keeper keeps a VMM of this socket.
    fn has_guest(&self, s: &State, socket: usize) -> bool {
        (0..self.vmms.len()).any(|vmm| s.keeper.kept[vmm].is_some() && self.socket_of(vmm) == socket)
    }

    /// Returns the number of the operator's next step.
    fn op(&self, s: &State) -> Option<Op> {
        self.ops.get(usize::from(s.op)).copied()
    }
}
