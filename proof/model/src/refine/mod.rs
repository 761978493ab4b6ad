//! The model beside the proof: each step of the model is taken by the proof, too.
//!
//! ```text
//! the model   s ──Thread(1, Freeze)──▶ t
//!             │ compare                │ compare
//! the proof   S ──freeze(f, e)───────▶ T      the invariant holds in every state
//! ```
//! The proof's state has the model's tables, numbers, host, TLBs and active set, and what the proof alone needs. A step
//! of the model is a sequence of the proof's actions, most often one, or none. Every guard must hold, and after each
//! step the two states must agree. The proof's TLBs may have more translations than the model's, whose flushes forget
//! more.
//!
//! A thread may stand in a table that was unhooked: its steps are matched there, too. The only paths that are cut off are
//! those that need more tables or numbers than the proof's finite state has; they are counted.
//!
//! It has the faults, invalidations, splits and new roots of two levels. It has no memslots, logs and recoveries.

pub mod command;
mod proof;
mod steps;

use crate::bug::Bug;
use crate::check::Action;
use crate::scenario::Scenario;
use crate::walk::{Random, draw};
use proof::{Beside, Proof};
use stateright::Model;
use std::collections::BTreeMap;
use steps::{Miss, Step};

/// Most steps of one path.
const MOST: usize = 400;

/// The steps that were matched.
#[derive(Clone, Debug, Default)]
pub struct Matched {
    /// The last seed.
    pub seed: u64,
    /// Steps of the model that the proof takes, too.
    pub steps: u64,
    /// States in which the invariant was checked: each clause that reads what the step changed.
    pub states: u64,
    /// States in which every clause was evaluated.
    pub full: u64,
    /// Paths, and those of them that end because the proof's finite state has no table or number left.
    pub paths: u64,
    /// See `paths`.
    pub exhausted: u64,
    /// How often each action of the proof was taken.
    pub actions: BTreeMap<String, u64>,
    /// Why a step was not matched, and the path to it.
    pub unmatched: Option<(String, Vec<String>)>,
}

/// Random paths through drawn scenarios.
#[derive(Clone, Copy, Debug)]
pub struct Refinement {
    /// Determines all that is drawn for the first path. The next path has the next seed.
    pub seed: u64,
    /// Number of actors in each scenario.
    pub actors: usize,
    /// Number of steps, about.
    pub steps: u64,
    /// Every clause is evaluated in one state of so many. In the others a clause is left out if it reads nothing that has
    /// changed since it held.
    pub checks: u64,
    /// The seeded mistake in the model.
    pub bug: Option<Bug>,
}

impl Refinement {
    /// Takes the steps in both.
    ///
    /// # Examples
    /// ```
    /// use slat_model::refine::Refinement;
    ///
    /// let paths = Refinement { seed: 1, actors: 4, steps: 200, checks: 50, bug: None };
    /// assert_eq!(paths.go().unmatched, None);
    /// ```
    pub fn go(&self) -> Matched {
        let proof = Proof::new();
        let mut all = Matched::default();
        for seed in self.seed.. {
            if all.steps >= self.steps || all.unmatched.is_some() {
                break;
            }
            all.seed = seed;
            let mut random = Random::new(seed);
            let mut scenario = draw(&mut random, self.actors);
            if scenario.shared.deep
                || scenario.stores
                || !scenario.programs.iter().flatten().copied().all(proof::has)
            {
                continue;
            }
            if scenario.remembers > 0 || scenario.shared.tlb.kicks || scenario.shared.sets.cells.is_some() {
                continue;
            }
            scenario.bug = self.bug;
            all.paths += 1;
            self.path(&proof, &scenario, &mut random, &mut all);
        }
        all
    }

    fn path(&self, proof: &Proof, scenario: &Scenario, random: &mut Random, all: &mut Matched) {
        let mut s = scenario.init_states().remove(0);
        let mut beside = Beside::new(proof, scenario);
        let mut path = vec![scenario.name.clone()];
        let mut why = beside.compare(scenario, &s).and_then(|()| beside.check(true)).err();
        let mut priorities: Vec<u64> = (0..scenario.programs.len()).map(|_| random.number()).collect();
        let mut actions = Vec::new();
        while why.is_none() && path.len() < MOST {
            actions.clear();
            scenario.actions(&s, &mut actions);
            let mut next = None;
            // Most often the thread of the highest priority goes on.
            while !actions.is_empty() && next.is_none() {
                let rank = |action: &Action| match action {
                    Action::Thread(i, _) => priorities[usize::from(*i)],
                    _ => 0,
                };
                let at = if random.once_in(3) {
                    random.below(actions.len())
                } else {
                    (0..actions.len()).max_by_key(|&at| rank(&actions[at])).expect("there are some")
                };
                let action = actions.swap_remove(at);
                next = scenario.next_state(&s, action).map(|next| (action, next));
            }
            let Some((action, next)) = next else { break };
            if random.once_in(4) {
                let at = random.below(priorities.len());
                priorities[at] = random.number();
            }
            path.push(format!("{action:?}"));
            let step = Step { scenario, before: &s, after: &next };
            match step.take(action, &mut beside) {
                Ok(()) => {}
                Err(Miss::Exhausted) => {
                    all.exhausted += 1;
                    break;
                }
                Err(Miss::Unmatched(what)) => why = Some(what),
            }
            all.steps += 1;
            why = why.or_else(|| beside.compare(scenario, &next).err());
            all.states += 1;
            let every = all.steps.is_multiple_of(self.checks);
            all.full += u64::from(every);
            why = why.or_else(|| beside.check(every).err());
            s = next;
        }
        for (name, count) in &beside.taken {
            *all.actions.entry(name.clone()).or_default() += count;
        }
        all.unmatched = why.map(|why| (why, path));
    }
}
