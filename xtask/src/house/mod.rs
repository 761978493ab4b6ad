//! `house`: the rules that a machine can check, by reading; nothing is changed.
//!
//! Each rule is a function from a source file, or all of them, to findings. [`source`] reads the files and tells code from
//! comments and text, well enough for these rules.

mod numbers;
mod rules;
pub mod source;
mod tags;

use crate::Outcome;
use source::Source;
use std::fmt;
use std::path::PathBuf;

/// A place where a rule does not hold.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    path: PathBuf,
    /// Counted from 1.
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

/// A rule for one file.
type Rule = fn(&Source) -> Vec<Finding>;

const RULES: &[Rule] = &[rules::length, rules::safety, rules::order, rules::promises, numbers::check];

/// The chore: lists every finding, and fails if there is one.
pub fn run() -> Outcome {
    let sources = source::read_all()?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| sources.iter().flat_map(rule)).collect();
    findings.extend(tags::check(&sources));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("{} files keep the house rules", sources.len());
            Ok(())
        }
        1 => Err("1 finding".into()),
        many => Err(format!("{many} findings").into()),
    }
}
