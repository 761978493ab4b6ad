//! The check: the possible steps, and the properties of every state.

use super::state::{Main, Phase};
use super::{Bug, Daemon, Kind, SOCKETS, State};
use crate::check::{Checked, ENDS, MOVES, SAFE, Verdict, verdict};
use stateright::{Model, Property};

/// The next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is named as the function that does it")]
pub enum Action {
    Send,
    Hear,
    Accept(usize),
    RemoveLate,
    Closed(usize),
    Handle,
    Leave,
    NextWorker,
    /// The worker's thread that receives.
    Receive,
    Serve(usize),
    Open(usize),
    Vmm(usize),
    Die(usize),
    Operate,
    Bind,
    /// The kernel has ended the threads of a killed worker.
    Dead,
    KillWorker,
    KillKeeper,
}

impl Daemon {
    /// All steps but those that need not come: kills, deaths, and another daemon.
    fn steps(&self, s: &State) -> Vec<Action> {
        let mut all = vec![Action::Receive, Action::Operate, Action::Dead];
        match s.keeper.phase {
            Phase::Gone | Phase::Ended => {}
            _ if s.keeper.is_stuck => {}
            Phase::Adopts => all.push(Action::Hear),
            // It waits for room, or for the end of the worker.
            Phase::Serves
                if self.makes(Bug::DaemonLockstep) && !s.keeper.outbox.is_empty() && s.worker.lives =>
            {
                all.push(Action::Send);
            }
            Phase::Serves => {
                all.extend([Action::Send, Action::Hear, Action::RemoveLate, Action::Handle, Action::Leave]);
                all.push(Action::NextWorker);
                all.extend((0..SOCKETS).map(Action::Closed));
                all.extend((0..self.vmms.len()).map(Action::Accept));
            }
        }
        all.extend((0..self.vmms.len()).flat_map(|vmm| [Action::Serve(vmm), Action::Vmm(vmm)]));
        all.extend((0..s.worker.openings.len()).map(Action::Open));
        all
    }

    fn take(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        let is_possible = match action {
            Action::Send => self.send(&mut s),
            Action::Hear => self.hear(&mut s),
            Action::Accept(vmm) => self.accept(&mut s, vmm),
            Action::RemoveLate => Self::remove_late(&mut s),
            Action::Closed(socket) => self.closed(&mut s, socket),
            Action::Handle => self.handle(&mut s),
            Action::Leave => Self::leave(&mut s),
            Action::NextWorker => self.next_worker(&mut s),
            Action::Receive => self.receive(&mut s),
            Action::Serve(vmm) => self.serve(&mut s, vmm),
            Action::Open(at) => self.open(&mut s, at),
            Action::Vmm(vmm) => self.vmm(&mut s, vmm),
            Action::Die(vmm) => self.die(&mut s, vmm),
            Action::Operate => self.operate(&mut s),
            Action::Bind => self.bind(&mut s),
            Action::Dead => s.dying.take().is_some(),
            Action::KillWorker => {
                Self::kill_worker(&mut s);
                true
            }
            Action::KillKeeper => {
                self.kill_keeper(&mut s);
                true
            }
        };
        Self::look(&mut s);
        is_possible.then_some(s)
    }

    fn is_stuck(&self, s: &State) -> bool {
        let moves = || self.steps(s).into_iter().any(|action| self.take(s, action).is_some());
        s.bad.is_none() && !self.is_done(s) && !moves()
    }
}

impl Checked for Daemon {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Verdict {
        verdict(self, |s| s.bad)
    }
}

impl Model for Daemon {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.bad.is_some() {
            return;
        }
        actions.extend(self.steps(s));
        actions.push(Action::Bind);
        let honest = (0..self.vmms.len()).filter(|vmm| self.vmms[*vmm].1 == Kind::Honest);
        actions.extend(honest.filter(|_| self.dies).map(Action::Die));
        // Not both at once: the keeper only while its worker has everything, the worker only under a keeper.
        let is_whole = s.keeper.phase == Phase::Serves && s.keeper.is_ready && !s.keeper.has_left;
        if s.worker.lives && s.kills[0] < self.kills[0] && s.keeper.phase == Phase::Serves {
            actions.push(Action::KillWorker);
        }
        let may = is_whole || (s.keeper.phase == Phase::Adopts && s.worker.main == Main::Sends);
        if s.worker.lives && s.kills[1] < self.kills[1] && may {
            actions.push(Action::KillKeeper);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        self.take(before, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::always(SAFE, |_: &Self, s: &State| s.bad.is_none());
        let moves = Property::always(MOVES, |daemon: &Self, s: &State| !daemon.is_stuck(s));
        let ends = Property::sometimes(ENDS, |daemon: &Self, s: &State| daemon.is_done(s));
        match self.bug {
            // With a mistake, only the first bad state is needed.
            Some(_) => vec![safe, moves],
            None => vec![safe, moves, ends],
        }
    }
}
