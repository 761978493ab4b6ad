//! The check: the possible steps, the effect of each, and the properties of every state.

use crate::bug::Bug;
use crate::fault::Access;
use crate::scenario::Scenario;
use crate::state::{Bad, Memo, NODES, Op, PAGES, Pc, Shared, State, THREADS, Thread, VcpuPc, bits};
use stateright::{Checker, Model, Property};
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One atomic step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A thread takes its next step.
    Thread(u8, Pc),
    /// A vCPU stores, and sets Dirty in an entry: page, node, level.
    Store(u8, (u8, u8)),
    /// The grace period of dead tables begins.
    Collect,
    /// The grace period ends: their leaves are accounted for, and their pages are freed.
    GiveBack,
    /// A vCPU takes its next step.
    Vcpu(u8, VcpuPc),
    /// A vCPU leaves the guest.
    Leave(u8),
    /// A short invalidation elsewhere in region 0 begins and ends.
    Short,
}

/// Result of a check.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Number of states.
    pub states: usize,
    /// The shortest path to a bad state.
    pub found: Option<(Bad, Vec<String>)>,
    /// Whether all programs can end.
    pub ends: bool,
}

/// A small system that can be checked.
pub trait Checked: Sync {
    /// Returns its name.
    fn name(&self) -> &str;
    /// Checks every reachable state.
    fn check(&self) -> Verdict;
}

/// Checks every reachable state of `model`; `bad` returns what is wrong with a state.
pub(crate) fn verdict<M>(model: &M, bad: impl Fn(&M::State) -> Option<Bad>) -> Verdict
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>,
    M: Clone + Send + Sync + 'static,
{
    let checker = model.clone().checker().spawn_bfs().join();
    let mut verdict = Verdict { states: checker.unique_state_count(), found: None, ends: false };
    for (name, path) in checker.discoveries() {
        if name == ENDS {
            verdict.ends = true;
        } else {
            let bad = bad(path.last_state()).unwrap_or(Bad::Stuck);
            let actions = path.into_actions();
            verdict.found = Some((bad, actions.iter().map(|action| format!("{action:?}")).collect()));
        }
    }
    verdict
}

impl Scenario {
    fn op(&self, thread: &Thread, i: usize) -> Option<Op> {
        self.programs.get(i)?.get(thread.op as usize).copied()
    }

    fn all_done(&self, s: &State) -> bool {
        s.threads.iter().enumerate().all(|(i, thread)| self.op(thread, i).is_none())
            && s.shared.grace.queue == 0
            && s.shared.grace.taken == 0
    }

    /// One step of thread `i`. `None`: it waits.
    fn step(&self, s: &mut State, i: usize) -> Option<()> {
        let op = self.op(&s.threads[i], i)?;
        match (s.threads[i].pc, op) {
            (_, Op::Access { gfn, write, sleeps, large }) => {
                return self.access(s, i, Access { gfn, write, sleeps, large });
            }
            (_, Op::Hold { gfn, write }) => return self.hold(s, i, gfn, write),
            (_, Op::Copy { page }) => return self.copy(s, i, page),
            (_, Op::Split { gfn }) => return self.split(s, i, gfn),
            (_, Op::Age { gfn }) => self.age(s, i, gfn),
            (Pc::Start, Op::ZapAll) if self.bug == Some(Bug::FlipWithoutTicket) => {
                s.threads[i].pc = Pc::Flip;
                return self.zap_all(s, i, op);
            }
            (
                Pc::Start
                | Pc::MakeRoom
                | Pc::RoomMade
                | Pc::WriteCell
                | Pc::Publish
                | Pc::Synchronize
                | Pc::Synchronized,
                Op::Commit { .. } | Op::BeginLog,
            ) => return self.commit(s, i, op),
            (
                Pc::LookForFlips
                | Pc::Broadcast
                | Pc::ShootDown(_)
                | Pc::Number
                | Pc::RingClaim
                | Pc::RingWrite
                | Pc::RingNumber
                | Pc::Kick(_)
                | Pc::Interrupt(_)
                | Pc::Await(_),
                _,
            ) => return self.shoot_down(s, i, op),
            (
                Pc::BeginSlot
                | Pc::List
                | Pc::Announce
                | Pc::ListLate
                | Pc::WidenSlot
                | Pc::NextNumber
                | Pc::GoWide,
                _,
            ) => self.begin(s, i, op),
            (Pc::EndEpoch | Pc::EndSlot, _) => self.end(s, i, op),
            (_, Op::Harvest | Op::BeginLog) => return self.harvest(s, i, op),
            (Pc::Start, _) => {
                s.threads[i].pc = Pc::BeginSlot;
                self.begin(s, i, op);
            }
            (_, Op::Recover { .. }) => self.recover(s, i, op),
            (_, Op::ZapAll) => return self.zap_all(s, i, op),
            _ => return self.invalidate(s, i, op),
        }
        Some(())
    }

    /// Frees dead tables: subtracts their leaves from the count, and frees their pages.
    fn give_back(&self, s: &mut State) {
        for node in bits(s.shared.grace.taken) {
            let (leaves, tables) = s.shared.below(node);
            for (leaf, level) in leaves {
                s.shared.book(level, -1);
                if self.bug == Some(Bug::DirtyToldAfterHost) {
                    s.shared.tell(leaf, level);
                }
            }
            for table in tables {
                if s.shared.nodes[table as usize].free {
                    s.shared.bad = Some(Bad::FreedTable);
                }
                s.shared.free_node(table);
            }
        }
        s.shared.grace.taken = 0;
    }

    /// At the end of all programs, checks that nothing is missing.
    fn audit(&self, s: &mut State) {
        if !self.all_done(s) || s.shared.bad.is_some() {
            return;
        }
        let (leaves, tables) = s.shared.below(s.shared.root);
        let pages: i8 = leaves.iter().map(|&(_, level)| Shared::pages(level) as i8).sum();
        if s.shared.nodes.iter().filter(|node| !node.free).count() != tables.len() {
            s.shared.bad = Some(Bad::TableLost);
        } else if pages != s.shared.leaves {
            s.shared.bad = Some(Bad::LeafLost);
        } else {
            Self::audit_log(s);
        }
    }

    /// Returns whether no thread can take a step although programs are unfinished.
    fn is_stuck(&self, s: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(s, &mut actions);
        s.shared.bad.is_none()
            && !self.all_done(s)
            && actions.into_iter().all(|action| self.next_state(s, action).is_none())
    }

    /// Checks that all programs can end from every reachable state, so nothing deadlocks. Returns the number of states,
    /// or a stuck one. For safe scenarios.
    pub fn check_ends(&self) -> Result<usize, Box<State>> {
        let mut index = HashMap::new();
        let mut states = self.init_states();
        index.insert(states[0].clone(), 0);
        let mut before: Vec<Vec<usize>> = vec![Vec::new()];
        let (mut at, mut actions) = (0, Vec::new());
        while at < states.len() {
            actions.clear();
            self.actions(&states[at], &mut actions);
            for action in actions.drain(..) {
                let Some(next) = self.next_state(&states[at], action) else { continue };
                let id = *index.entry(next.clone()).or_insert(states.len());
                if id == states.len() {
                    states.push(next);
                    before.push(Vec::new());
                }
                before[id].push(at);
            }
            at += 1;
        }
        let mut ends: Vec<bool> = states.iter().map(|s| self.all_done(s)).collect();
        let mut work: Vec<usize> = (0..states.len()).filter(|&id| ends[id]).collect();
        while let Some(id) = work.pop() {
            for &from in &before[id] {
                if !core::mem::replace(&mut ends[from], true) {
                    work.push(from);
                }
            }
        }
        match ends.iter().position(|end| !end) {
            Some(stuck) => Err(Box::new(states[stuck].clone())),
            None => Ok(states.len()),
        }
    }
}

impl Checked for Scenario {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Verdict {
        verdict(self, |s| s.shared.bad)
    }
}

/// Runs `work` on each of `items`, two at a time, because a check needs much memory. A check of one scenario runs on
/// one thread, and is the same each time.
pub fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = work(item);
                    done.lock().expect("no thread panics with it").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

pub(crate) const SAFE: &str = "nothing bad";
pub(crate) const MOVES: &str = "no thread is stuck";
pub(crate) const ENDS: &str = "all can end";

impl Model for Scenario {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        assert!(self.programs.len() <= THREADS && NODES <= 8);
        let Shared { memslots, published, .. } = self.shared;
        let memo = (self.remembers > 0).then(|| Memo::of(0, self.remembers, memslots, published));
        let thread = Thread::at(0, memo);
        let mut s = State { shared: self.shared.clone(), threads: vec![thread; self.programs.len()] };
        for &(i, pc) in &self.ahead {
            while s.threads[i].pc != pc {
                self.step(&mut s, i).expect("it is alone");
            }
        }
        vec![s]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.shared.bad.is_some() {
            return;
        }
        for (i, thread) in s.threads.iter().enumerate() {
            if self.op(thread, i).is_some() {
                actions.push(Action::Thread(i as u8, thread.pc));
            }
        }
        if self.stores {
            let mut shared = s.shared.clone();
            for vcpu in 0..shared.vcpu_count as usize {
                for gfn in 0..PAGES {
                    let places = shared.clean_places(vcpu, gfn);
                    actions.extend(places.into_iter().map(|place| Action::Store(gfn, place)));
                }
            }
        }
        if s.shared.tlb.kicks {
            for (vcpu, at) in (0..s.shared.vcpu_count).zip(&s.shared.tlb.vcpus) {
                actions.push(Action::Vcpu(vcpu, at.pc));
                if at.pc == VcpuPc::Guest && at.leaves > 0 {
                    actions.push(Action::Leave(vcpu));
                }
            }
        }
        if s.shared.shorts > 0 {
            actions.push(Action::Short);
        }
        if s.shared.grace.taken != 0 {
            actions.push(Action::GiveBack);
        } else if s.shared.grace.queue != 0 {
            actions.push(Action::Collect);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        match action {
            Action::Thread(i, _) => self.step(&mut s, i as usize)?,
            Action::Store(gfn, place) => s.shared.store(gfn, place),
            Action::Collect => {
                s.shared.grace.sections = s.sections();
                s.shared.grace.taken = std::mem::take(&mut s.shared.grace.queue);
            }
            Action::GiveBack if s.shared.grace.sections == 0 || self.bug == Some(Bug::FreedBeforeGrace) => {
                s.shared.grace.sections = 0;
                self.give_back(&mut s);
            }
            Action::GiveBack => return None,
            Action::Vcpu(vcpu, _) => self.vcpu(&mut s, vcpu as usize)?,
            Action::Leave(vcpu) => Self::vcpu_leaves(&mut s, vcpu as usize),
            Action::Short => Self::passes_by(&mut s),
        }
        if s.shared.bad.is_none() {
            s.shared.hardware();
        }
        self.audit(&mut s);
        s.renumber();
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::always(SAFE, |_: &Self, s: &State| s.shared.bad.is_none());
        let ends = Property::sometimes(ENDS, |scenario: &Self, s: &State| scenario.all_done(s));
        let moves = Property::always(MOVES, |scenario: &Self, s: &State| !scenario.is_stuck(s));
        let mut all = vec![safe];
        // A guest may run forever, so no other thread may wait for it forever.
        all.extend(self.shared.tlb.kicks.then_some(moves));
        // With a mistake, only the first bad state is needed.
        all.extend(self.bug.is_none().then_some(ends));
        all
    }
}
