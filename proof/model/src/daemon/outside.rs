//! The VMMs, the operator, the second daemon.

use super::state::{Phase, Request, ThreadPc};
use super::{Bad, Bug, Daemon, Kind, Listener, Op, State, VmmAt};

impl Daemon {
    /// A step of a VMM: it connects and sends its handshake; when it is served it ends.
    pub(super) fn vmm(&self, s: &mut State, vmm: usize) -> bool {
        let socket = self.socket_of(vmm);
        match s.vmms[vmm].at {
            VmmAt::Away => {
                s.vmms[vmm].at = match s.files[socket] {
                    Some(0) if Self::is_live(s, socket) => VmmAt::Queued,
                    Some(1) => VmmAt::Elsewhere,
                    _ => VmmAt::Refused,
                };
                true
            }
            VmmAt::Accepted if s.worker.threads[vmm].pc == ThreadPc::Serves => {
                s.vmms[vmm].at = VmmAt::Ended;
                true
            }
            _ => false,
        }
    }

    /// Returns whether the daemon has a descriptor of the listening socket.
    fn is_live(s: &State, socket: usize) -> bool {
        s.keeper.sockets[socket].listener != Listener::Closed || s.worker.sockets[socket].is_open
    }

    /// A VMM dies.
    pub(super) fn die(&self, s: &mut State, vmm: usize) -> bool {
        let may = matches!(s.vmms[vmm].at, VmmAt::Queued | VmmAt::Accepted);
        if may && self.dies && self.vmms[vmm].1 == Kind::Honest {
            s.vmms[vmm].at = VmmAt::Ended;
            if s.keeper.kept[vmm].is_none() && s.worker.guests[vmm].is_none() {
                // Not accepted yet: a connection without a VMM, which the model leaves out.
                s.vmms[vmm].at = VmmAt::Refused;
            }
        }
        may && self.dies
    }

    /// A step of the operator.
    pub(super) fn operate(&self, s: &mut State) -> bool {
        let Some(op) = self.op(s) else { return false };
        if op == Op::Upload {
            s.store += 1;
            s.op += 1;
        } else if s.is_asked {
            // The keeper was killed: the operator sees the end of the connection, and asks no more.
            if s.keeper.request != Request::None {
                return false;
            }
            (s.op, s.is_asked) = (s.op + 1, false);
        } else if s.keeper.phase == Phase::Serves {
            (s.keeper.request, s.is_asked) = (Request::Asked(op), true);
        } else if s.keeper.phase == Phase::Ended || (s.keeper.phase == Phase::Gone && !s.worker.lives) {
            s.op += 1;
        } else {
            return false;
        }
        true
    }

    /// The second daemon binds the path of socket 0, or is refused.
    pub(super) fn bind(&self, s: &mut State) -> bool {
        let Some(replaces) = self.other.filter(|_| !s.other_done) else { return false };
        let is_live = s.files[0] == Some(0) && Self::is_live(s, 0);
        s.other_done = true;
        if is_live && !replaces && !self.makes(Bug::DaemonSocketStolen) {
            return true;
        }
        if is_live && !replaces {
            s.bad = Some(Bad::SocketStolen);
        }
        s.files[0] = Some(1);
        true
    }

    /// Checks that answered requests stay done.
    pub(super) fn look(s: &mut State) {
        if s.keeper.phase != Phase::Serves || s.bad.is_some() {
            return;
        }
        let mut sockets = s.told.removed.iter().zip(&s.keeper.sockets);
        let is_back = sockets.any(|(removed, socket)| *removed && socket.listener == Listener::Open);
        if is_back || (s.told.drains && !s.keeper.drains) {
            s.bad = Some(Bad::Undone);
        }
    }

    /// Returns whether everything is done that can be done.
    pub(super) fn is_done(&self, s: &State) -> bool {
        let is_over = |vmm: usize| {
            let at = s.vmms[vmm].at;
            let waits = self.wedged[self.socket_of(vmm)] && at == VmmAt::Accepted;
            let is_taken = self.sessions[self.socket_of(vmm)] && at == VmmAt::Queued;
            let is_final = matches!(at, VmmAt::Ended | VmmAt::Refused | VmmAt::Elsewhere | VmmAt::Lost);
            waits || is_taken || is_final && s.keeper.kept[vmm].is_none()
        };
        let has_wedged = self.wedged.contains(&true) && s.keeper.kept.iter().any(Option::is_some);
        let has_ended = matches!(s.keeper.phase, Phase::Gone | Phase::Ended) || has_wedged;
        let ends = !s.keeper.drains || has_ended;
        (0..self.vmms.len()).all(is_over) && self.op(s).is_none() && ends
    }
}
