//! The command `slat-model proof`.

use super::{Matched, Refinement};
use crate::bug::Bug;
use std::time::Instant;

/// How to use it.
pub const USAGE: &str =
    "slat-model proof [--seed S] [--steps N] [--actors A] [--checks ONE-IN] [--mistake NAME]";

/// Runs the command. Returns whether all is as it should be: every step is matched, unless a mistake is made.
pub fn command(words: &[String]) -> Result<bool, String> {
    let mut paths = Refinement { seed: 1, actors: 6, steps: 100_000, checks: 200, bug: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word}: a value is missing: {USAGE}"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{word} {value}: not a number: {USAGE}"));
        match word.as_str() {
            "--seed" => paths.seed = number()?,
            "--steps" => paths.steps = number()?,
            "--actors" => paths.actors = number()? as usize,
            "--checks" => paths.checks = number()?.max(1),
            "--mistake" => paths.bug = Some(Bug::named(value).ok_or(format!("{value}: no such mistake"))?),
            _ => return Err(format!("{word}: no such option: {USAGE}")),
        }
    }
    let began = Instant::now();
    let Matched { seed, paths: count, steps, states, full, exhausted, actions, unmatched } = paths.go();
    for (action, count) in &actions {
        println!("{count:>9} {action}");
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{count} paths, {exhausted} of them cut off where the proof's finite state was exhausted");
    println!("{steps} steps, {states} states, {full} of them with every clause, {seconds:.0} s");
    let Some((why, path)) = unmatched else {
        println!("EXECUTIONS Model proof {steps}");
        return Ok(paths.bug.is_none());
    };
    println!("unmatched, seed {seed}: {why}");
    for step in path {
        println!("    {step}");
    }
    Ok(paths.bug.is_some())
}
