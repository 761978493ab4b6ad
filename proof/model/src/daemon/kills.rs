//! Kills of both processes, and the messages that they lose.

use super::state::{ROOM, State, ToWorker, VmmAt};
use super::{Bad, Bug, Daemon};

impl State {
    pub(super) fn has_room(&self) -> bool {
        self.to_keeper.len() < ROOM
    }
}

impl Daemon {
    /// Kills the worker. Its sent messages stay in the queue.
    pub(super) fn kill_worker(s: &mut State) {
        let serves = std::array::from_fn(|vmm| s.worker.threads[vmm].pc == super::state::ThreadPc::Serves);
        s.dying = Some(serves);
        s.worker = super::Worker::default();
        s.resets[1] = !s.to_worker.is_empty();
        s.to_worker.clear();
        s.keeper.is_ready = false;
        s.kills[0] += 1;
    }

    /// Kills the keeper. A VMM of which no descriptor is left has lost its connection.
    pub(super) fn kill_keeper(&self, s: &mut State) {
        let sent = |vmm: usize| {
            let is_it = |message: &ToWorker| matches!(message, ToWorker::Guest { vmm: it, .. } if usize::from(*it) == vmm);
            s.worker.guests[vmm].is_some() || s.to_worker.iter().any(is_it)
        };
        let lost: Vec<usize> = (0..self.vmms.len())
            .filter(|vmm| s.keeper.kept[*vmm].is_some() && s.vmms[*vmm].at == VmmAt::Accepted && !sent(*vmm))
            .collect();
        if lost.len() > 1 || lost.iter().any(|vmm| s.vmms[*vmm].has_begun) {
            s.bad = Some(Bad::GuestLost);
        }
        for vmm in lost {
            s.vmms[vmm].at = VmmAt::Lost;
        }
        s.keeper = super::Keeper::default();
        s.resets[0] = !s.to_keeper.is_empty();
        s.to_keeper.clear();
        s.kills[1] += 1;
    }

    /// A receiver takes the error of a reset. With the mistake it takes it for the end of the messages.
    pub(super) fn take_reset(&self, s: &mut State, receiver: usize) -> bool {
        if !std::mem::take(&mut s.resets[receiver]) {
            return false;
        }
        if self.makes(Bug::DaemonResetIsEnd) {
            if receiver == 0 { s.to_worker.clear() } else { s.to_keeper.clear() }
        }
        true
    }
}
