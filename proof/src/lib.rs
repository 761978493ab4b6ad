//! A proof by induction of slat's protocol, for any number of threads, pages and vCPUs.
//!
//! `rules/` has the transition systems and their invariants, as text. [`parse()`] reads them, [`Query`] writes the
//! queries of the induction for z3 and cvc5, and [`Structure`] evaluates the same formulas and actions in a finite
//! state. `README.md` explains the language and the argument.

mod ast;
mod check;
mod parse;
mod reader;
mod smt;
mod solver;
mod story;
mod structure;
mod systems;

pub use ast::{Action, Bound, Clause, Formula, Item, Kind, Mistake, Sort, Symbol, System, Update};
pub use check::{Question, Verdict, questions};
pub use parse::parse;
pub use smt::Query;
pub use solver::{Answer, Solver};
pub use story::{Counterexample, counterexample};
pub use structure::Structure;
pub use systems::systems;
