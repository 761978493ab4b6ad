//! The worker: `worker.rs`, and its copy of what the keeper has, `keeper_state.rs`.

use super::state::{Copied, Main, Opening, Phase, Thread, ThreadPc, ToKeeper, ToWorker};
use super::{Bad, Bug, Daemon, Kept, Kind, SOCKETS, State, VmmAt, Worker};

impl Daemon {
    /// A step of the thread that receives.
    pub(super) fn receive(&self, s: &mut State) -> bool {
        if !s.worker.lives {
            return false;
        }
        match s.worker.main {
            Main::Receives => self.next_message(s),
            Main::SendsReady => {
                // A keeper that follows takes the worker for ready.
                if s.keeper.phase != Phase::Gone && !s.has_room() {
                    return false;
                }
                if s.keeper.phase != Phase::Gone {
                    s.to_keeper.push(ToKeeper::Ready);
                }
                s.worker.main = Main::Receives;
                true
            }
            Main::Sends => Self::send_initial(s),
            Main::OpensAll => {
                let is_open = !self.wedged.contains(&true);
                if is_open {
                    s.worker.main = Main::SendsReady;
                }
                is_open
            }
        }
    }

    fn next_message(&self, s: &mut State) -> bool {
        if self.take_reset(s, 0) {
            return true;
        }
        let Some(message) = s.to_worker.first().copied() else {
            return s.keeper.phase == Phase::Gone && self.next_keeper(s);
        };
        let is_locked = self.makes(Bug::DaemonLockstep)
            && s.worker.threads.iter().any(|thread| thread.pc == ThreadPc::TellEnd);
        if is_locked && matches!(message, ToWorker::Guest { .. }) {
            return false;
        }
        s.to_worker.remove(0);
        let worker = &mut s.worker;
        match message {
            ToWorker::Socket { socket, version, is_open } => {
                let at = usize::from(socket);
                if !worker.sockets[at].is_known {
                    worker.sources[at] = version;
                }
                worker.sockets[at] = Copied { is_known: true, is_open, version };
            }
            ToWorker::Guest { vmm, version, has_journal } => {
                let at = usize::from(vmm);
                worker.guests[at] = Some(Kept { version: s.vmms[at].version, has_journal });
                worker.threads[at] = Thread { pc: ThreadPc::Handshake, version, has_journal, line: 0 };
            }
            ToWorker::Closes(socket) => worker.sockets[usize::from(socket)].is_open = false,
            ToWorker::Drains => {
                worker.drains = true;
                worker.sockets.iter_mut().for_each(|socket| socket.is_open = false);
            }
            ToWorker::Reload(socket) => worker.openings.push(Opening::new(socket, true)),
            ToWorker::All => {
                worker.openings.extend((0..SOCKETS as u8).map(|socket| Opening::new(socket, false)));
                let opens = self.makes(Bug::DaemonOneTemplateForAll);
                let is_told = self.makes(Bug::DaemonReadyEarly);
                worker.main = match (opens, is_told) {
                    (true, _) => Main::OpensAll,
                    (_, true) => Main::Receives,
                    _ => Main::SendsReady,
                };
            }
            ToWorker::Leaves => *worker = Worker::default(),
        }
        true
    }

    /// Starts another keeper, if there is something to keep. Otherwise ends.
    fn next_keeper(&self, s: &mut State) -> bool {
        let worker = &mut s.worker;
        let is_needed =
            worker.guests.iter().any(Option::is_some) || worker.sockets.iter().any(|it| it.is_open);
        if !is_needed {
            *worker = Worker::default();
            return true;
        }
        s.keeper.phase = Phase::Adopts;
        worker.line += 1;
        worker.is_line_open = self.makes(Bug::DaemonChangesFirst);
        let sockets = worker.sockets.iter().zip(0..);
        worker.initial = sockets
            .map(|(it, socket)| ToKeeper::Socket { socket, version: it.version, is_open: it.is_open })
            .collect();
        let guests = worker.guests.iter().zip(0..);
        worker.initial.extend(guests.filter_map(|(kept, vmm)| Some(ToKeeper::Guest { vmm, kept: (*kept)? })));
        worker.initial.push(ToKeeper::All { drains: worker.drains });
        worker.main = Main::Sends;
        true
    }

    fn send_initial(s: &mut State) -> bool {
        // It was killed, too.
        if s.keeper.phase == Phase::Gone {
            s.worker.initial.clear();
        } else if !s.worker.initial.is_empty() {
            if !s.has_room() {
                return false;
            }
            s.to_keeper.push(s.worker.initial.remove(0));
            return true;
        }
        (s.worker.main, s.worker.is_line_open) = (Main::Receives, true);
        true
    }

    /// Sends a change on the channel that was the keeper's when the change was noted. `false`: there is no room.
    fn tell(s: &mut State, line: u8, message: ToKeeper) -> bool {
        if line != s.worker.line || s.keeper.phase == Phase::Gone {
            return true;
        }
        if !s.worker.is_line_open || !s.has_room() {
            return false;
        }
        s.to_keeper.push(message);
        true
    }

    /// A step of a guest's thread.
    pub(super) fn serve(&self, s: &mut State, vmm: usize) -> bool {
        let mut thread = s.worker.threads[vmm];
        let socket = self.socket_of(vmm);
        let has_ended = s.vmms[vmm].at == VmmAt::Ended;
        match thread.pc {
            ThreadPc::None => return false,
            ThreadPc::Handshake => {
                if s.vmms[vmm].is_taken {
                    s.bad = Some(Bad::GuestLost);
                }
                s.vmms[vmm].is_taken = self.makes(Bug::DaemonHandshakeTaken);
                thread.pc = ThreadPc::Open;
                if self.vmms[vmm].1 == Kind::Hostile {
                    s.vmms[vmm].at = VmmAt::Refused;
                    thread.pc = ThreadPc::NoteEnd;
                }
            }
            ThreadPc::Open if self.wedged[socket] && s.worker.is_later => {
                if !has_ended || self.makes(Bug::DaemonDeadVmmWaits) {
                    return false;
                }
                thread.pc = ThreadPc::NoteEnd;
            }
            ThreadPc::Open => {
                if thread.version == 0 {
                    thread.version = s.worker.sources[socket];
                }
                thread.pc = match thread.has_journal {
                    true => ThreadPc::Begin,
                    _ if self.makes(Bug::DaemonKeepLate) => ThreadPc::Begin,
                    _ if self.makes(Bug::DaemonNotedAfterSend) => ThreadPc::Tell,
                    _ => ThreadPc::Note,
                };
                thread.line = s.worker.line;
            }
            ThreadPc::Note => {
                s.worker.guests[vmm] = Some(Kept { version: thread.version, has_journal: true });
                // Also if the guest has ended before there is a next keeper.
                if self.sessions[socket] && !self.makes(Bug::DaemonSessionReopened) {
                    s.worker.sockets[socket].is_open = false;
                }
                thread.line = s.worker.line;
                let is_told = self.makes(Bug::DaemonNotedAfterSend);
                thread.pc = if is_told { ThreadPc::Begin } else { ThreadPc::Tell };
            }
            ThreadPc::Tell => {
                if !Self::tell(s, thread.line, ToKeeper::Keep(vmm as u8)) {
                    return false;
                }
                thread.pc = match self.bug {
                    Some(Bug::DaemonNotedAfterSend) => ThreadPc::Note,
                    Some(Bug::DaemonKeepLate) => ThreadPc::Serves,
                    _ => ThreadPc::Begin,
                };
            }
            ThreadPc::Begin => {
                self.begin(s, vmm, thread);
                let is_late = self.makes(Bug::DaemonKeepLate) && !thread.has_journal;
                thread.pc = if is_late { ThreadPc::Note } else { ThreadPc::Serves };
            }
            ThreadPc::Serves if !has_ended => return false,
            ThreadPc::Serves => thread.pc = ThreadPc::NoteEnd,
            ThreadPc::NoteEnd => {
                s.worker.guests[vmm] = None;
                (thread.pc, thread.line) = (ThreadPc::TellEnd, s.worker.line);
            }
            ThreadPc::TellEnd => {
                if !Self::tell(s, thread.line, ToKeeper::Ends(vmm as u8)) {
                    return false;
                }
                thread = Thread::default();
            }
        }
        s.worker.threads[vmm] = thread;
        true
    }

    /// Reads the first event of a guest.
    fn begin(&self, s: &mut State, vmm: usize, thread: Thread) {
        let it = &mut s.vmms[vmm];
        if s.dying.is_some_and(|serves| serves[vmm]) {
            s.bad = Some(Bad::ServedTwice);
        } else if it.version != thread.version {
            s.bad = Some(Bad::VersionsMixed);
        } else if it.has_begun && !thread.has_journal {
            s.bad = Some(Bad::JournalLost);
        }
        it.has_begun = true;
        let socket = self.socket_of(vmm);
        let begun =
            (0..self.vmms.len()).filter(|vmm| self.socket_of(*vmm) == socket && s.vmms[*vmm].has_begun);
        if self.sessions[socket] && begun.count() > 1 {
            s.bad = Some(Bad::SessionTwice);
        }
    }

    /// A step of a thread that opens a template.
    pub(super) fn open(&self, s: &mut State, at: usize) -> bool {
        let Some(mut opening) = s.worker.openings.get(at).copied() else { return false };
        let (socket, before) = (usize::from(opening.socket), &s.worker.openings[..at]);
        let is_behind = before.iter().any(|other| other.socket == opening.socket);
        if is_behind && !self.makes(Bug::DaemonOpenedOutOfOrder) {
            return false;
        }
        if opening.version == 0 {
            if self.wedged[socket] {
                return false;
            }
            opening.version = if opening.is_reload { s.store } else { s.worker.sources[socket] };
            s.worker.sources[socket] = opening.version;
        } else if !opening.is_noted {
            s.worker.sockets[socket].version = opening.version;
            (opening.is_noted, opening.line) = (true, s.worker.line);
        } else {
            let Opening { socket, version, is_reload, line, .. } = opening;
            let is_told = Self::tell(s, line, ToKeeper::Opened { socket, version, is_reload });
            if is_told {
                s.worker.openings.remove(at);
            }
            return is_told;
        }
        s.worker.openings[at] = opening;
        true
    }
}

impl Opening {
    fn new(socket: u8, is_reload: bool) -> Self {
        Self { socket, is_reload, version: 0, is_noted: false, line: 0 }
    }
}
