//! Walks through scenarios of six and more actors, which are too large for the check of every state.
//!
//! ```text
//! seed ─▶ scenario: its initial state, a program for each thread     draw
//!      ─▶ the steps before which threads switch                      view
//!      ─▶ states, in random order; of those that look alike, one     view
//! ```
//! A walk leaves out most states, and other walks leave out others. It takes the steps of the model, by
//! [`Scenario`]'s functions, so that every bad state that it finds is one of the model. A seed determines a walk
//! completely.

pub mod command;
mod draw;
mod random;
mod view;

use crate::bug::Bug;
use crate::check::Action;
use crate::scenario::Scenario;
use crate::state::{Bad, State};
pub(crate) use draw::draw;
use random::Quick;
pub(crate) use random::Random;
use stateright::Model;
use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use view::{Switches, view};

/// Most steps of a thread without a switch.
const MOST_ALONE: usize = 64;

/// A walk.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// Determines all that is drawn.
    pub seed: u64,
    /// Number of actors: threads, and short invalidations elsewhere in region 0.
    pub actors: usize,
    /// Ends the walk after so many states.
    pub states: usize,
    /// The seeded mistake.
    pub bug: Option<Bug>,
}

/// The result of a walk.
#[derive(Clone, Debug)]
pub struct Walked {
    /// The scenario.
    pub scenario: String,
    /// Number of steps that were taken.
    pub steps: u64,
    /// Number of states that do not look alike.
    pub states: usize,
    /// The path to a bad state.
    pub found: Option<(Bad, Vec<String>)>,
}

impl Walk {
    /// Walks.
    ///
    /// # Examples
    /// ```
    /// use slat_model::walk::Walk;
    ///
    /// let walk = Walk { seed: 1, actors: 6, states: 1000, bug: None };
    /// assert!(walk.go().found.is_none());
    /// ```
    pub fn go(&self) -> Walked {
        let mut random = Random::new(self.seed);
        let mut scenario = draw(&mut random, self.actors);
        scenario.bug = self.bug;
        let switches = Switches::draw(&mut random);
        let mut walker = Walker { scenario: &scenario, switches, random, steps: 0, taken: Vec::new() };
        let (states, found) = walker.walk(self.states);
        let found = found.map(|(bad, last)| (bad, walker.path(last)));
        Walked { scenario: scenario.name.clone(), steps: walker.steps, states, found }
    }
}

/// A walk in progress.
struct Walker<'a> {
    scenario: &'a Scenario,
    switches: Switches,
    random: Random,
    steps: u64,
    /// The actions that led to new states, each with the number of the one before, or `None` at the first state.
    taken: Vec<(Option<usize>, Action)>,
}

impl Walker<'_> {
    /// Visits up to `most` states. Returns their number, and the bad one with the number of the action that led there.
    fn walk(&mut self, most: usize) -> (usize, Option<(Bad, usize)>) {
        let first = self.scenario.init_states().remove(0);
        let mut seen = HashSet::<u64, BuildHasherDefault<Quick>>::default();
        seen.insert(view(&first));
        let mut open = vec![(first, None)];
        let mut actions = Vec::new();
        while !open.is_empty() && seen.len() < most {
            let (s, before) = open.swap_remove(self.random.below(open.len()));
            self.scenario.actions(&s, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = self.advance(&s, action, |_| {}) else { continue };
                if !seen.insert(view(&next)) && next.shared.bad.is_none() {
                    continue;
                }
                self.taken.push((before, action));
                let number = self.taken.len() - 1;
                if let Some(bad) = next.shared.bad {
                    return (seen.len(), Some((bad, number)));
                }
                open.push((next, Some(number)));
            }
        }
        (seen.len(), None)
    }

    /// Takes `action`, and the further steps of its thread up to one before which threads switch. `None`: it waits.
    fn advance(&mut self, s: &State, action: Action, mut each: impl FnMut(Action)) -> Option<State> {
        let mut next = self.scenario.next_state(s, action)?;
        each(action);
        self.steps += 1;
        let Action::Thread(i, _) = action else { return Some(next) };
        for _ in 0..MOST_ALONE {
            let pc = next.threads[usize::from(i)].pc;
            if next.shared.bad.is_some() || self.switches.has(pc) {
                break;
            }
            let action = Action::Thread(i, pc);
            let Some(after) = self.scenario.next_state(&next, action) else { break };
            each(action);
            self.steps += 1;
            next = after;
        }
        Some(next)
    }

    /// Returns every step up to action number `last`.
    fn path(&mut self, last: usize) -> Vec<String> {
        let mut numbers = vec![last];
        while let Some(before) = self.taken[numbers[numbers.len() - 1]].0 {
            numbers.push(before);
        }
        let mut path = Vec::new();
        let mut s = self.scenario.init_states().remove(0);
        for number in numbers.into_iter().rev() {
            let action = self.taken[number].1;
            let next = self.advance(&s, action, |step| path.push(format!("{step:?}")));
            s = next.expect("it was taken before");
        }
        path
    }
}
