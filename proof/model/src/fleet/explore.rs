//! The check: the possible steps, and the properties of every state.

use super::shared::{Host, Manifest};
use super::{Fleet, HOSTS, PATIENCE, Pc, RENEWAL, State};
use crate::check::{Checked, ENDS, SAFE, Verdict, verdict};
use crate::state::Bad;
use stateright::{Model, Property};

/// The next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A host takes its next step.
    Host(usize, Pc),
    /// A host renews its lease.
    Renew(usize),
    /// A host continues after a stall in which its lease has ended.
    Stall(usize),
    /// A host dies.
    Die(usize),
    /// Time advances.
    Tick,
}

impl Fleet {
    fn all_done(&self, s: &State) -> bool {
        s.hosts.iter().enumerate().all(|(i, host)| self.op(i, host.op).is_none())
    }

    fn holds(s: &State, i: usize) -> bool {
        s.hosts[i].works || !s.hosts[i].pins.is_empty()
    }
}

impl Checked for Fleet {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Verdict {
        verdict(self, |s| s.bad)
    }
}

impl Model for Fleet {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.bad.is_some() || self.all_done(s) {
            return;
        }
        for (i, host) in s.hosts.iter().enumerate() {
            if self.op(i, host.op).is_some() {
                actions.push(Action::Host(i, host.pc));
                if self.stalls.contains(&i) && !host.has_stalled && Self::holds(s, i) {
                    actions.push(Action::Stall(i));
                    actions.push(Action::Die(i));
                }
            }
            if host.since > 0 && Self::holds(s, i) {
                actions.push(Action::Renew(i));
            }
        }
        let late = |i| Self::holds(s, i) && s.hosts[i].since >= RENEWAL;
        if self.ticks && !(0..HOSTS).any(late) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        match action {
            Action::Host(i, _) => self.step(&mut s, i),
            Action::Renew(i) => self.write_lease(&mut s, i),
            Action::Stall(i) => Self::stall(&mut s, i),
            Action::Die(i) => self.die(&mut s, i),
            Action::Tick => Self::tick(&mut s),
        }
        if s.bad.is_none() {
            Self::look(&mut s);
        }
        if s.bad.is_none() && self.all_done(&s) {
            self.audit(&mut s);
        }
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::always(SAFE, |_: &Self, s: &State| s.bad.is_none());
        let ends = Property::sometimes(ENDS, |fleet: &Self, s: &State| fleet.all_done(s));
        match self.bug {
            // With a mistake, only the first bad state is needed.
            Some(_) => vec![safe],
            None => vec![safe, ends],
        }
    }
}

/// The properties.
impl Fleet {
    /// Checks the properties of each state.
    pub(super) fn look(s: &mut State) {
        let has = |content, chunk| s.chunks.contains(&(content, chunk));
        let whole = |name: Manifest| s.manifest(name).is_some_and(|chunk| has(name.content, chunk));
        if !s.catalog.templates.iter().flatten().all(|name| whole(*name)) {
            s.bad = Some(Bad::TemplateBroken);
        }
        let serves = |host: &Host| host.lapsed || host.serves.is_none_or(|(name, at)| has(name.content, at));
        if !s.hosts.iter().all(serves) {
            s.bad = Some(Bad::PinLost);
        }
    }

    /// At the end, when every host is gone, checks that two collections leave exactly the objects of templates.
    pub(super) fn audit(&self, s: &mut State) {
        let mut rest = s.clone();
        for _ in 0..2 {
            rest.leases.iter_mut().for_each(|lease| lease.age = PATIENCE);
            rest.hosts = std::array::from_fn(|_| Host { lease: 9, ..Host::default() });
            self.collect_alone(&mut rest);
        }
        let mut kept: Vec<_> = rest.catalog.templates.iter().flatten().collect();
        kept.dedup();
        let chunks: Vec<_> =
            kept.iter().filter_map(|name| Some((name.content, rest.manifest(**name)?))).collect();
        let is_needed = |chunk| chunks.contains(chunk);
        if rest.manifests.len() > kept.len() || !rest.chunks.iter().all(is_needed) || !rest.leases.is_empty()
        {
            s.bad = Some(Bad::Garbage);
        }
        if rest.bad.is_some() {
            s.bad = rest.bad;
        }
    }
}
