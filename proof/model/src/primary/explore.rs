//! The check: the possible steps, and the properties of every state.

use super::shared::Shared;
use super::{Op, Pc, Primary, State, THREADS, Thread};
use crate::check::{Checked, ENDS, MOVES, SAFE, Verdict, verdict};
use stateright::{Model, Property};

impl Primary {
    fn op(&self, thread: &Thread, i: usize) -> Option<Op> {
        self.programs.get(i)?.get(usize::from(thread.op)).copied()
    }

    fn all_done(&self, s: &State) -> bool {
        s.threads.iter().enumerate().all(|(i, thread)| self.op(thread, i).is_none())
    }

    /// One step of thread `i`. `None`: it waits.
    fn step(&self, s: &mut State, i: usize) -> Option<()> {
        let op = self.op(&s.threads[i], i)?;
        match op {
            Op::Store(page) | Op::Load(page) | Op::Write(page) => self.access(s, i, op, page),
            Op::Evict(page) => self.evict(s, i, page, false),
            Op::EvictChild(page) => self.evict(s, i, page, true),
            op => self.change(s, i, op),
        }
    }
}

impl Checked for Primary {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Verdict {
        verdict(self, |s| s.shared.bad)
    }
}

impl Model for Primary {
    type State = State;
    /// A thread, and its next step.
    type Action = (usize, Pc);

    fn init_states(&self) -> Vec<State> {
        vec![State { shared: Shared::new(self.filled), threads: [Thread::default(); THREADS] }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<(usize, Pc)>) {
        if s.shared.bad.is_none() {
            let threads = s.threads.iter().enumerate();
            let busy = threads.filter(|(i, thread)| self.op(thread, *i).is_some());
            actions.extend(busy.map(|(i, thread)| (i, thread.pc)));
        }
    }

    fn next_state(&self, before: &State, (i, _): (usize, Pc)) -> Option<State> {
        let mut s = *before;
        self.step(&mut s, i)?;
        if s.shared.bad.is_none() {
            s.shared.hardware();
        }
        if s.shared.bad.is_none() && self.all_done(&s) {
            self.audit(&mut s);
        }
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::always(SAFE, |_: &Self, s: &State| s.shared.bad.is_none());
        let ends = Property::sometimes(ENDS, |primary: &Self, s: &State| primary.all_done(s));
        let moves = Property::always(MOVES, |primary: &Self, s: &State| {
            let moves = |i| primary.next_state(s, (i, s.threads[i].pc)).is_some();
            s.shared.bad.is_some() || primary.all_done(s) || (0..THREADS).any(moves)
        });
        match self.bug {
            // With a mistake, only the first bad state is needed.
            Some(_) => vec![safe],
            None => vec![safe, moves, ends],
        }
    }
}
