//! The questions of the induction, and their answers.

use crate::ast::System;
use crate::smt::Query;
use crate::solver::{Answer, Solver};

/// A question of the induction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether an initial state violates clause `.0`.
    Initial(usize),
    /// Whether action `.0` can violate clause `.1`.
    Step(usize, usize),
    /// Whether action `.0` can happen at all: to be satisfied.
    Happens(usize),
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// As it must be.
    Good,
    /// The opposite.
    Bad,
    /// No answer in time.
    Unknown(String),
}

/// Returns all questions about a system. An action that changes no symbol of a clause cannot violate it.
pub fn questions(system: &System) -> Vec<Question> {
    let mut questions: Vec<_> = (0..system.clauses.len()).map(Question::Initial).collect();
    for (index, action) in system.actions.iter().enumerate() {
        questions.push(Question::Happens(index));
        let touched = |&clause: &usize| action.touches(&system.clauses[clause].formula);
        let clauses = (0..system.clauses.len()).filter(touched);
        questions.extend(clauses.map(|clause| Question::Step(index, clause)));
    }
    questions
}

impl Question {
    /// Returns its name.
    pub fn name(self, system: &System) -> String {
        match self {
            Self::Initial(clause) => {
                format!("{}: the initial state keeps {}", system.name, system.clauses[clause].name)
            }
            Self::Happens(action) => format!("{}: {} can happen", system.name, system.actions[action].name),
            Self::Step(action, clause) => {
                format!(
                    "{}: {} keeps {}",
                    system.name, system.actions[action].name, system.clauses[clause].name
                )
            }
        }
    }

    /// Writes its query.
    pub fn query(self, system: &System) -> String {
        let mut query = Query::new(system);
        match self {
            Self::Initial(clause) => {
                query.assume_initial();
                query.refute(&system.clauses[clause].formula, None);
            }
            Self::Step(action, clause) => {
                query.assume_invariant();
                query.take(&system.actions[action]);
                query.refute(&system.clauses[clause].formula, Some(&system.actions[action]));
            }
            Self::Happens(action) => {
                query.assume_invariant();
                query.take(&system.actions[action]);
            }
        }
        query.text + "(check-sat)\n"
    }

    /// Asks a solver. An action that can happen is searched in small states first.
    pub fn ask(self, system: &System, solver: Solver, seed: u32, seconds: u32) -> Verdict {
        let happens = matches!(self, Self::Happens(_));
        let query = self.query(system);
        for size in if happens { vec![1, 2] } else { Vec::new() } {
            let sizes: Vec<_> =
                system.sorts.iter().map(|sort| if sort.ordered { 3 * size } else { size }).collect();
            let mut small = Query { system, text: query.replace("(check-sat)\n", "") };
            small.bound(&sizes, &[]);
            if matches!(solver.ask(&small.text, seed, seconds), Answer::Sat(_)) {
                return Verdict::Good;
            }
        }
        match solver.ask(&query, seed, seconds) {
            Answer::Unsat if !happens => Verdict::Good,
            Answer::Sat(_) if happens => Verdict::Good,
            Answer::Unknown(why) => Verdict::Unknown(why),
            _ => Verdict::Bad,
        }
    }
}
