//! The systems of `rules/`.

use crate::ast::System;
use crate::parse::parse;

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
    ];
    let read =
        |(name, files): &(&str, &[(&str, &str)])| parse(name, files).unwrap_or_else(|why| panic!("{why}"));
    all.iter().map(read).collect()
}
