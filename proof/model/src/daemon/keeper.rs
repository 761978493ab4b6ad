//! The keeper: `keeper/serve.rs`, `keeper/list.rs`, and its beginning from a worker, `keeper.rs`.

use super::state::{Phase, ROOM, Request, ToKeeper, ToWorker};
use super::{Bad, Bug, Daemon, Kept, Kind, Letter, Listener, Op, SOCKETS, State, VmmAt, Worker};

impl Daemon {
    /// Sends a waiting message.
    pub(super) fn send(&self, s: &mut State) -> bool {
        let Some(letter) = s.keeper.outbox.first().copied() else { return false };
        if !s.worker.lives {
            // The next one gets everything.
            s.keeper.outbox.clear();
            return true;
        }
        if s.to_worker.len() >= ROOM {
            return false;
        }
        s.keeper.outbox.remove(0);
        let message = match letter {
            Letter::Socket(socket) => {
                let it = &s.keeper.sockets[usize::from(socket)];
                let is_open = it.listener != Listener::Closed;
                ToWorker::Socket { socket, version: it.version, is_open }
            }
            Letter::Guest(vmm) => {
                let Some(Kept { version, has_journal }) = s.keeper.kept[usize::from(vmm)] else {
                    return true;
                };
                let version = if self.makes(Bug::DaemonVersionUnpinned) { 0 } else { version };
                ToWorker::Guest { vmm, version, has_journal }
            }
            Letter::Closes(socket) => ToWorker::Closes(socket),
            Letter::Reload(socket) => ToWorker::Reload(socket),
            Letter::All => ToWorker::All,
            Letter::Drains => ToWorker::Drains,
            Letter::Leaves => ToWorker::Leaves,
        };
        s.to_worker.push(message);
        if s.keeper.request == Request::Sends(letter) {
            self.answer(s);
        }
        true
    }

    /// Reads a message of the worker.
    pub(super) fn hear(&self, s: &mut State) -> bool {
        if self.take_reset(s, 1) {
            return true;
        }
        if s.to_keeper.is_empty() {
            return false;
        }
        let message = s.to_keeper.remove(0);
        let keeper = &mut s.keeper;
        match message {
            ToKeeper::Ready => keeper.is_ready = true,
            ToKeeper::Opened { socket, version, is_reload } => {
                let it = &mut keeper.sockets[usize::from(socket)];
                it.version = version;
                it.reloads &= !is_reload;
                if is_reload && keeper.request == Request::Opens(socket) {
                    s.told.versions[usize::from(socket)] = version;
                    self.answer(s);
                }
            }
            ToKeeper::Keep(vmm) if keeper.phase == Phase::Serves => {
                if let Some(kept) = &mut keeper.kept[usize::from(vmm)] {
                    kept.has_journal = true;
                    let socket = self.socket_of(usize::from(vmm));
                    if self.sessions[socket] {
                        self.end_session(s, socket);
                    }
                }
            }
            ToKeeper::Ends(vmm) => {
                keeper.kept[usize::from(vmm)] = None;
                if self.vmms[usize::from(vmm)].1 == Kind::Hostile {
                    s.closings += 1;
                    keeper.is_stuck = self.makes(Bug::DaemonClosesInPlace);
                }
            }
            ToKeeper::Keep(_) => {}
            ToKeeper::Socket { socket, version, is_open } => {
                let it = &mut keeper.sockets[usize::from(socket)];
                (it.version, it.place) = (version, is_open.then_some(0));
                it.listener = if is_open { Listener::Open } else { Listener::Closed };
            }
            ToKeeper::Guest { vmm, kept } => keeper.kept[usize::from(vmm)] = Some(kept),
            ToKeeper::All { drains } => {
                (keeper.phase, keeper.is_ready, keeper.drains) = (Phase::Serves, true, drains);
                self.adopt(s);
            }
        }
        true
    }

    /// Closes the sockets that the killed keeper was closing.
    fn adopt(&self, s: &mut State) {
        for socket in 0..SOCKETS {
            if s.keeper.sockets[socket].listener == Listener::Closed {
                if s.files[socket] == Some(0) {
                    Self::remove(s, socket);
                }
                continue;
            }
            if self.makes(Bug::DaemonPlaceOfPath) {
                s.keeper.sockets[socket].place = s.files[socket];
            } else if s.files[socket] != s.keeper.sockets[socket].place {
                self.close(s, socket);
            }
        }
    }

    /// Accepts a VMM.
    pub(super) fn accept(&self, s: &mut State, vmm: usize) -> bool {
        let socket = self.socket_of(vmm);
        let most = if self.makes(Bug::DaemonAcceptsAhead) { 2 } else { 1 };
        let is_busy = s.keeper.outbox.len() >= most;
        let is_taken = self.sessions[socket] && self.has_guest(s, socket);
        let waits = self.makes(Bug::DaemonCloseCounted) && s.closings > 0;
        let it = s.keeper.sockets[socket];
        if s.vmms[vmm].at != VmmAt::Queued || it.listener == Listener::Closed || is_busy || is_taken || waits
        {
            return false;
        }
        if it.version < s.told.versions[socket] {
            s.bad = Some(Bad::Undone);
        }
        (s.vmms[vmm].at, s.vmms[vmm].version) = (VmmAt::Accepted, it.version);
        s.keeper.kept[vmm] = Some(Kept { version: it.version, has_journal: false });
        s.keeper.outbox.push(Letter::Guest(vmm as u8));
        true
    }

    /// Takes the path from a socket. Its queue is accepted next.
    fn close(&self, s: &mut State, socket: usize) {
        if s.keeper.sockets[socket].listener != Listener::Open {
            return;
        }
        s.keeper.sockets[socket].listener = Listener::Closes;
        let is_own = s.files[socket].is_some() && s.files[socket] == s.keeper.sockets[socket].place;
        if is_own && self.makes(Bug::DaemonRemovedUnlocked) {
            s.keeper.removes[socket] = true;
        } else if is_own {
            Self::remove(s, socket);
        }
    }

    /// Closes the socket of a session whose guest has begun. The VMMs in its queue are refused.
    fn end_session(&self, s: &mut State, socket: usize) {
        self.close(s, socket);
        for vmm in 0..self.vmms.len() {
            if self.socket_of(vmm) == socket && s.vmms[vmm].at == VmmAt::Queued {
                s.vmms[vmm].at = VmmAt::Refused;
            }
        }
        self.closed(s, socket);
    }

    fn remove(s: &mut State, socket: usize) {
        if s.files[socket].take() == Some(1) {
            s.bad = Some(Bad::SocketDeleted);
        }
    }

    /// Removes a file at which the keeper has looked before.
    pub(super) fn remove_late(s: &mut State) -> bool {
        let Some(socket) = (0..SOCKETS).find(|socket| s.keeper.removes[*socket]) else { return false };
        s.keeper.removes[socket] = false;
        Self::remove(s, socket);
        true
    }

    /// Closes a socket whose queue is empty.
    pub(super) fn closed(&self, s: &mut State, socket: usize) -> bool {
        let is_removed = !s.keeper.removes[socket];
        if s.keeper.sockets[socket].listener != Listener::Closes || !is_removed {
            return false;
        }
        let is_taken = self.sessions[socket] && self.has_guest(s, socket);
        for vmm in 0..self.vmms.len() {
            if self.socket_of(vmm) == socket && s.vmms[vmm].at == VmmAt::Queued {
                if is_taken {
                    s.vmms[vmm].at = VmmAt::Refused;
                } else if self.makes(Bug::DaemonBacklogDropped) {
                    s.bad = Some(Bad::GuestLost);
                } else {
                    return false;
                }
            }
        }
        s.keeper.sockets[socket].listener = Listener::Closed;
        s.keeper.outbox.push(Letter::Closes(socket as u8));
        if s.keeper.drains && Self::has_closed(s) {
            s.keeper.outbox.push(Letter::Drains);
        }
        true
    }

    fn has_closed(s: &State) -> bool {
        s.keeper.sockets.iter().all(|socket| socket.listener == Listener::Closed)
    }

    /// Begins to do what an operator requests.
    pub(super) fn handle(&self, s: &mut State) -> bool {
        let Request::Asked(op) = s.keeper.request else { return false };
        let is_open =
            |s: &State, socket: u8| s.keeper.sockets[usize::from(socket)].listener == Listener::Open;
        match op {
            Op::Reload(socket) if is_open(s, socket) => {
                s.keeper.sockets[usize::from(socket)].reloads = true;
                s.keeper.outbox.push(Letter::Reload(socket));
                s.keeper.request = Request::Opens(socket);
            }
            Op::Remove(socket) if is_open(s, socket) => {
                self.close(s, usize::from(socket));
                s.keeper.request = Request::Sends(Letter::Closes(socket));
            }
            Op::Drain if !s.keeper.drains => {
                s.keeper.drains = true;
                (0..SOCKETS).for_each(|socket| self.close(s, socket));
                s.keeper.request = Request::Sends(Letter::Drains);
                if Self::has_closed(s) {
                    s.keeper.outbox.push(Letter::Drains);
                }
            }
            // Answered with an error.
            _ => {
                s.keeper.request = Request::None;
                (s.op, s.is_asked) = (s.op + 1, false);
            }
        }
        if self.makes(Bug::DaemonAnsweredEarly) && matches!(s.keeper.request, Request::Sends(_)) {
            self.answer(s);
        }
        true
    }

    /// Answers the operator.
    fn answer(&self, s: &mut State) {
        match self.op(s) {
            Some(Op::Remove(socket)) => s.told.removed[usize::from(socket)] = true,
            Some(Op::Drain) => s.told.drains = true,
            _ => {}
        }
        s.keeper.request = Request::None;
        (s.op, s.is_asked) = (s.op + 1, false);
    }

    /// Lets the worker end, which has no guest.
    pub(super) fn leave(s: &mut State) -> bool {
        let keeper = &mut s.keeper;
        let is_last = keeper.kept.iter().all(Option::is_none) && keeper.outbox.is_empty();
        if !keeper.drains || !is_last || keeper.has_left || !keeper.is_ready {
            return false;
        }
        if keeper.sockets.iter().any(|socket| socket.listener != Listener::Closed) {
            return false;
        }
        keeper.outbox.push(Letter::Leaves);
        keeper.has_left = true;
        true
    }

    /// Starts the next worker when the last one is dead.
    pub(super) fn next_worker(&self, s: &mut State) -> bool {
        let is_dead = s.dying.is_none() || self.makes(Bug::DaemonTwoWorkers);
        if s.worker.lives || !is_dead || !s.to_keeper.is_empty() || s.resets[1] {
            return false;
        }
        let is_empty = s.keeper.kept.iter().all(Option::is_none);
        if s.keeper.drains && is_empty && Self::has_closed(s) {
            s.keeper = super::Keeper { phase: Phase::Ended, ..super::Keeper::default() };
            return true;
        }
        s.worker = Worker { lives: true, is_later: true, is_line_open: true, ..Worker::default() };
        if self.makes(Bug::DaemonReadyEarly) {
            s.worker.main = super::state::Main::SendsReady;
        }
        let keeper = &mut s.keeper;
        (keeper.is_ready, keeper.has_left) = (false, false);
        keeper.outbox = (0..SOCKETS as u8).map(Letter::Socket).collect();
        if keeper.drains && Self::has_closed_in(keeper) && !self.makes(Bug::DaemonDrainForgotten) {
            keeper.outbox.push(Letter::Drains);
        }
        let kept = (0..self.vmms.len()).filter(|vmm| keeper.kept[*vmm].is_some());
        keeper.outbox.extend(kept.map(|vmm| Letter::Guest(vmm as u8)));
        keeper.outbox.push(Letter::All);
        let reloads = (0..SOCKETS).filter(|socket| keeper.sockets[*socket].reloads);
        if !self.makes(Bug::DaemonReloadForgotten) {
            keeper.outbox.extend(reloads.map(|socket| Letter::Reload(socket as u8)));
        }
        // No worker has what an operator wanted to be closed.
        match keeper.request {
            Request::Sends(Letter::Closes(socket))
                if keeper.sockets[usize::from(socket)].listener == Listener::Closed =>
            {
                self.answer(s);
            }
            Request::Sends(Letter::Drains) if self.makes(Bug::DaemonDrainForgotten) => self.answer(s),
            _ => {}
        }
        true
    }

    fn has_closed_in(keeper: &super::Keeper) -> bool {
        keeper.sockets.iter().all(|socket| socket.listener == Listener::Closed)
    }
}
