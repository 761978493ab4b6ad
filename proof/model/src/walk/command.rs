//! The command `slat-model walk`.

use super::{Walk, Walked};
use crate::bug::Bug;
use crate::check::side_by_side;
use std::panic::{catch_unwind, set_hook};
use std::time::{Duration, Instant};

/// How to use it.
pub const USAGE: &str = "slat-model walk [--seed S] [--walks N] [--minutes M] [--actors A] [--states N] \
                         [--mistake NAME | --mistakes]";

/// Walks that are begun together.
const BATCH: u64 = 64;

/// The arguments.
struct Request {
    first: Walk,
    walks: u64,
    at_most: Option<Duration>,
    mistakes: bool,
}

impl Request {
    fn parse(words: &[String]) -> Result<Self, String> {
        let first = Walk { seed: 1, actors: 6, states: 40_000, bug: None };
        let mut request = Self { first, walks: 200, at_most: None, mistakes: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--mistakes" {
                request.mistakes = true;
                continue;
            }
            let value = words.next().ok_or(format!("{word}: a value is missing: {USAGE}"))?;
            let number =
                || value.parse::<u64>().map_err(|_| format!("{word} {value}: not a number: {USAGE}"));
            match word.as_str() {
                "--seed" => request.first.seed = number()?,
                "--walks" => request.walks = number()?,
                "--minutes" => request.at_most = Some(Duration::from_secs(60 * number()?)),
                "--actors" => request.first.actors = number()? as usize,
                "--states" => request.first.states = number()? as usize,
                "--mistake" => {
                    request.first.bug = Some(Bug::named(value).ok_or(format!("{value}: no such mistake"))?);
                }
                _ => return Err(format!("{word}: no such option: {USAGE}")),
            }
        }
        Ok(request)
    }

    /// Walks until a bad state is found, or the walks or the time are used up. Returns the number of walks and of
    /// steps, and the walk that found one.
    fn go(&self) -> (u64, u64, Option<(u64, Walked)>) {
        let (began, mut walks, mut steps) = (Instant::now(), 0, 0);
        while walks < self.walks && self.at_most.is_none_or(|most| began.elapsed() < most) {
            let first = self.first.seed + walks;
            let seeds: Vec<u64> = (first..first + BATCH.min(self.walks - walks)).collect();
            let go = |&seed: &u64| {
                // With a mistake, a thread may come to a step that the model does not have there.
                let walk = || Walk { seed, ..self.first }.go();
                if self.first.bug.is_none() { Some(walk()) } else { catch_unwind(walk).ok() }
            };
            for (&seed, walked) in seeds.iter().zip(side_by_side(&seeds, go)) {
                walks += 1;
                let Some(walked) = walked else { continue };
                steps += walked.steps;
                if walked.found.is_some() {
                    return (walks, steps, Some((seed, walked)));
                }
            }
        }
        (walks, steps, None)
    }
}

/// Runs the command. Returns whether all is as it should be: nothing is found, unless a mistake is made.
pub fn command(words: &[String]) -> Result<bool, String> {
    let request = Request::parse(words)?;
    let began = Instant::now();
    if request.mistakes {
        mistakes(&request);
        return Ok(true);
    }
    let (walks, steps, found) = request.go();
    let seconds = began.elapsed().as_secs_f64();
    println!("{walks} walks of {} actors, {steps} steps, {seconds:.0} s", request.first.actors);
    let Some((seed, Walked { scenario, found: Some((bad, path)), .. })) = &found else {
        println!("EXECUTIONS Model walks {steps}");
        return Ok(request.first.bug.is_none());
    };
    println!("seed {seed}: {bad:?} after {} steps of: {scenario}", path.len());
    for step in path {
        println!("    {step}");
    }
    Ok(request.first.bug.is_some())
}

/// Tries every mistake of the scenarios' own model, and prints which of them the walks find.
fn mistakes(request: &Request) {
    set_hook(Box::new(|_| ()));
    let bugs = Bug::ALL.iter().filter(|bug| bug.is_walked());
    let (mut all, mut found) = (0, 0);
    for &bug in bugs {
        let (walks, steps, walked) =
            Request { first: Walk { bug: Some(bug), ..request.first }, ..*request }.go();
        let name = bug.name();
        all += 1;
        match walked {
            Some((seed, _)) => println!("{name:<28} found by walk {walks}, seed {seed}, after {steps} steps"),
            None => println!("{name:<28} not found by {walks} walks, {steps} steps"),
        }
        found += u32::from(walked.is_some());
    }
    println!("{found} of {all} mistakes found");
}
