//! A proof by induction of slat's protocol, for any number of threads, pages and vCPUs.
//!
//! `rules/` has the transition systems and their invariants, as text. [`parse()`] reads them, [`Query`] writes the
//! queries of the induction for z3 and cvc5, and [`Structure`] evaluates the same formulas and actions in a finite
//! state. `README.md` explains the language and the argument.

mod ast;
mod check;
mod code;
mod parse;
mod reader;
mod smt;
mod solver;
mod story;
mod structure;

pub use ast::{Action, Bound, Clause, Formula, Item, Kind, Mistake, Sort, Symbol, System, Update};
pub use check::{Question, Verdict, questions};
pub use code::{Code, Step};
pub use parse::parse;
pub use smt::Query;
pub use solver::{Answer, Solver};
pub use story::{Counterexample, counterexample};
pub use structure::Structure;

macro_rules! files {
    ($($name:literal)*) => {
        &[$((concat!($name, ".rules"), include_str!(concat!("../rules/", $name, ".rules")))),*]
    };
}

/// Returns the systems.
///
/// ```
/// for system in slat_proof::systems() {
///     assert!(system.clauses.iter().any(|clause| clause.kind == slat_proof::Kind::Promise), "{}", system.name);
/// }
/// ```
pub fn systems() -> Vec<System> {
    let all: &[(&str, &[(&str, &str)])] = &[
        ("tables", files!("words" "faults" "invalidations" "frozen" "tables" "mistakes")),
        ("shootdown", files!("shootdown")),
        ("slots", files!("slots")),
        ("logs", files!("logs")),
        ("bits", files!("bits")),
        ("copies", files!("copies")),
    ];
    let read =
        |(name, files): &(&str, &[(&str, &str)])| parse(name, files).unwrap_or_else(|why| panic!("{why}"));
    all.iter().map(read).collect()
}
