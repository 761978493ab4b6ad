//! The check: the possible steps, and the properties of every state.

use super::program::{Nested, Op};
use super::shadow::THREADS;
use super::steps::{Pc, State, Thread};
use crate::check::{Checked, ENDS, MOVES, SAFE, Verdict, verdict};
use crate::state::Bad;
use stateright::{Model, Property};

impl Nested {
    pub(super) fn op(&self, thread: &Thread, i: usize) -> Option<Op> {
        self.programs.get(i)?.get(thread.op as usize).copied()
    }

    fn all_done(&self, s: &State) -> bool {
        s.threads.iter().enumerate().all(|(i, thread)| self.op(thread, i).is_none())
    }

    /// One step of thread `i`. `None`: it waits.
    fn step(&self, s: &mut State, i: usize) -> Option<()> {
        let op = self.op(&s.threads[i], i)?;
        match op {
            Op::Access { .. } if Self::is_in_flush(s.threads[i].pc) => {
                self.flush(s, i, op, Pc::Start);
                if s.threads[i].pc == Pc::Start {
                    s.again(i);
                }
            }
            Op::Access { write } => return self.access(s, i, write, false),
            Op::Near { write } => return self.access(s, i, write, true),
            Op::Reclaim => return self.reclaim(s, i),
            Op::Store { .. } | Op::Flush | Op::Broadcast | Op::Leave | Op::Enter { .. } => {
                return self.l1(s, i, op);
            }
            Op::Host { .. } | Op::Move { .. } | Op::MoveTables { .. } => self.invalidate(s, i, op),
            Op::BeginLog | Op::Harvest => return self.log(s, i, op),
        }
        Some(())
    }
}

impl Checked for Nested {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Verdict {
        verdict(self, |s| s.shared.bad)
    }
}

impl Model for Nested {
    type State = State;
    /// A thread, and its next step.
    type Action = (usize, Pc);

    fn init_states(&self) -> Vec<State> {
        let mut shared = self.shared;
        shared.hardware();
        assert_eq!(shared.bad, None, "the initial state is right: {}", self.name);
        vec![State { shared, threads: [Thread::default(); THREADS] }]
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
        if s.shared.bad.is_none() && self.all_done(&s) && s.shared.unsaved & !s.shared.marks != 0 {
            s.shared.bad = Some(Bad::StoreLost);
        }
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::always(SAFE, |_: &Self, s: &State| s.shared.bad.is_none());
        let ends = Property::sometimes(ENDS, |nested: &Self, s: &State| nested.all_done(s));
        let moves = Property::always(MOVES, |nested: &Self, s: &State| {
            let moves = |i| nested.next_state(s, (i, s.threads[i].pc)).is_some();
            s.shared.bad.is_some() || nested.all_done(s) || (0..THREADS).any(moves)
        });
        match self.bug {
            // With a mistake, only the first bad state is needed.
            Some(_) => vec![safe],
            None => vec![safe, moves, ends],
        }
    }
}
