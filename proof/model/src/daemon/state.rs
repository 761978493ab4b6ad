//! The state: files at paths, the two processes, what is in their queues, and what is outside.

use crate::state::Bad;

/// Kind of a VMM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It handshakes, and ends some time after it was served.
    Honest,
    /// Its handshake is refused, and a descriptor in it never closes.
    Hostile,
}

/// A step of the operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Uploads a newer version of all templates.
    Upload,
    /// Requests that new guests on this socket get the newest version.
    Reload(u8),
    /// Requests that this socket be removed.
    Remove(u8),
    /// Requests that the daemon take no further guest, and end.
    Drain,
}

pub(super) const VMMS: usize = 3;
pub(super) const SOCKETS: usize = 2;
/// Messages for which a queue has room.
pub(super) const ROOM: usize = 1;
/// The version that the daemon serves at first.
pub(super) const FIRST: u8 = 1;

/// The whole state.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    /// The newest version in the store.
    pub(super) store: u8,
    /// The daemon that owns the file at each socket's path.
    pub(super) files: [Option<u8>; SOCKETS],
    pub(super) keeper: Keeper,
    pub(super) worker: Worker,
    pub(super) to_worker: Vec<ToWorker>,
    pub(super) to_keeper: Vec<ToKeeper>,
    /// The other process was killed with unread messages: the next call of the worker, of the keeper, returns an error.
    pub(super) resets: [bool; 2],
    /// VMMs that a killed worker still serves, until the kernel has ended all of its threads.
    pub(super) dying: Option<[bool; VMMS]>,
    pub(super) vmms: [Vmm; VMMS],
    /// The operator's next step, and whether it waits for an answer.
    pub(super) op: u8,
    pub(super) is_asked: bool,
    pub(super) told: Told,
    /// The second daemon has done its step.
    pub(super) other_done: bool,
    pub(super) kills: [u8; 2],
    /// Closes of VMMs' descriptors that never return.
    pub(super) closings: u8,
    pub(super) bad: Option<Bad>,
}

/// The answers that the operator has got.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Told {
    pub removed: [bool; SOCKETS],
    pub drains: bool,
    pub versions: [u8; SOCKETS],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Vmm {
    pub at: VmmAt,
    /// The version of its socket when the keeper accepted it.
    pub version: u8,
    /// A worker has read its events.
    pub has_begun: bool,
    /// Its handshake is in its socket no longer.
    pub is_taken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum VmmAt {
    #[default]
    Away,
    /// It has connected, and waits in the socket's queue.
    Queued,
    Accepted,
    /// Its process has ended.
    Ended,
    /// It was refused: by a line in the log, or by the kernel because no daemon listens.
    Refused,
    /// The second daemon has it.
    Elsewhere,
    /// A kill of the keeper closed its connection.
    Lost,
}

/// The copy of a guest that a process has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Kept {
    pub version: u8,
    pub has_journal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Listener {
    #[default]
    Closed,
    Open,
    /// It has lost its path, and its queue is being accepted.
    Closes,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ToWorker {
    Socket { socket: u8, version: u8, is_open: bool },
    Guest { vmm: u8, version: u8, has_journal: bool },
    Closes(u8),
    Reload(u8),
    All,
    Drains,
    Leaves,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ToKeeper {
    Ready,
    Opened { socket: u8, version: u8, is_reload: bool },
    Keep(u8),
    Ends(u8),
    // To the next keeper.
    Socket { socket: u8, version: u8, is_open: bool },
    Guest { vmm: u8, kept: Kept },
    All { drains: bool },
}

/// A message that waits in the keeper. Its content is that of the moment at which it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Letter {
    Socket(u8),
    Guest(u8),
    Closes(u8),
    Reload(u8),
    All,
    Drains,
    Leaves,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Phase {
    /// It was killed.
    #[default]
    Gone,
    /// A worker has started it, and sends it everything.
    Adopts,
    Serves,
    /// It has drained.
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Socket {
    pub listener: Listener,
    pub version: u8,
    /// The owner of the file that this daemon takes for its own.
    pub place: Option<u8>,
    pub reloads: bool,
}

/// An operator's request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Request {
    #[default]
    None,
    Asked(Op),
    /// Answered when this letter is sent.
    Sends(Letter),
    /// Answered when the socket's newest version is open.
    Opens(u8),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a process")]
pub(super) struct Keeper {
    pub phase: Phase,
    pub sockets: [Socket; SOCKETS],
    pub kept: [Option<Kept>; VMMS],
    pub outbox: Vec<Letter>,
    /// Its worker has everything.
    pub is_ready: bool,
    pub drains: bool,
    /// The worker was told so.
    pub has_left: bool,
    pub request: Request,
    /// It has looked whether the files of these sockets are its own, and removes them next.
    pub removes: [bool; SOCKETS],
    /// It waits for a close that never returns.
    pub is_stuck: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Main {
    #[default]
    Receives,
    SendsReady,
    /// It sends everything to the next keeper.
    Sends,
    /// It opens all templates itself.
    OpensAll,
}

/// The worker's copy of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Copied {
    pub is_known: bool,
    pub is_open: bool,
    pub version: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum ThreadPc {
    #[default]
    None,
    /// Reads the handshake.
    Handshake,
    /// Opens the template.
    Open,
    /// Notes the journal in the worker's copy.
    Note,
    /// Sends the journal to the keeper.
    Tell,
    /// Reads the first event.
    Begin,
    Serves,
    /// Notes the end of the guest.
    NoteEnd,
    TellEnd,
}

/// The thread of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Thread {
    pub pc: ThreadPc,
    /// The version of the message, or 0; then that of the opened template.
    pub version: u8,
    pub has_journal: bool,
    /// The channel to which its change is sent.
    pub line: u8,
}

/// A thread that opens a socket's template.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Opening {
    pub socket: u8,
    pub is_reload: bool,
    /// 0: it has opened nothing.
    pub version: u8,
    pub is_noted: bool,
    pub line: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a process")]
pub(super) struct Worker {
    pub lives: bool,
    /// It is a later worker.
    pub is_later: bool,
    pub main: Main,
    pub sockets: [Copied; SOCKETS],
    pub guests: [Option<Kept>; VMMS],
    pub drains: bool,
    pub threads: [Thread; VMMS],
    pub openings: Vec<Opening>,
    /// The version of each socket's template that is open, or will be opened.
    pub sources: [u8; SOCKETS],
    /// Number of the channel to the keeper, and whether changes may be sent there.
    pub line: u8,
    pub is_line_open: bool,
    pub initial: Vec<ToKeeper>,
}

impl State {
    pub(super) fn new() -> Self {
        let listening = Socket { listener: Listener::Open, version: FIRST, place: Some(0), reloads: false };
        let copied = Copied { is_known: true, is_open: true, version: FIRST };
        Self {
            store: FIRST,
            files: [Some(0); SOCKETS],
            keeper: Keeper {
                phase: Phase::Serves,
                sockets: [listening; SOCKETS],
                is_ready: true,
                ..Keeper::default()
            },
            worker: Worker {
                lives: true,
                sockets: [copied; SOCKETS],
                sources: [FIRST; SOCKETS],
                is_line_open: true,
                ..Worker::default()
            },
            ..Self::default()
        }
    }
}
