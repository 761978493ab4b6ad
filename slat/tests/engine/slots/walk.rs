//! A walk: one seed, many requests, the oracle and the subjects that are compared with it, step by step.

use super::oracle::{Change, Limits, Oracle, Request, Rule};
use super::requests::Requests;
use crate::common::random::Random;
use std::collections::BTreeMap;

/// A keeper of memslots.
pub trait Subject {
    /// Applies a request. An error has the actual answer instead of the expected one.
    fn ask(&mut self, request: &Request, expected: Result<Change, Rule>) -> Result<(), String>;

    /// Panics unless it holds what the oracle holds. Called after each step.
    fn check(&mut self, oracle: &Oracle, random: &mut Random);

    /// Panics unless it holds what the oracle holds. Called at the end; may be slow, and may remove the slots.
    fn audit(&mut self, oracle: &Oracle);
}

/// Counts of the entries that walks have seen.
#[derive(Default, Debug)]
pub struct Tally {
    pub requests: u64,
    pub accepted: u64,
    pub most_slots: usize,
    changes: BTreeMap<&'static str, u64>,
    refused: BTreeMap<Rule, u64>,
}

impl Tally {
    fn count(&mut self, outcome: Result<Change, Rule>) {
        self.requests += 1;
        let kind = match outcome {
            Err(rule) => return *self.refused.entry(rule).or_default() += 1,
            Ok(Change::Created) => "created",
            Ok(Change::Deleted(_)) => "deleted",
            Ok(Change::Moved(_)) => "moved",
            Ok(Change::Flags(_)) => "flags",
            Ok(Change::Nothing) => "nothing",
        };
        self.accepted += 1;
        *self.changes.entry(kind).or_default() += 1;
    }

    pub fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.accepted += other.accepted;
        self.most_slots = self.most_slots.max(other.most_slots);
        for (kind, count) in other.changes {
            *self.changes.entry(kind).or_default() += count;
        }
        for (rule, count) in other.refused {
            *self.refused.entry(rule).or_default() += count;
        }
    }

    /// Agreement means something only if every rule was asked, often.
    pub fn must_be_worth_something(&self) {
        assert!(self.accepted * 3 >= self.requests, "too few accepted: {self:?}");
        assert!(self.most_slots >= 100, "too few slots: {self:?}");
        assert!(self.changes.len() == 5 && self.changes.values().all(|&n| n >= 100), "{self:?}");
        for rule in Rule::ALL {
            assert!(self.refused.get(&rule).is_some_and(|&n| n >= 20), "{rule:?} was hardly asked: {self:?}");
        }
    }
}

/// Sends `steps` requests from `seed` to all subjects, which start empty. Ends at the first disagreement.
pub fn walk(
    seed: u64,
    steps: u64,
    limits: Limits,
    requests: &mut Requests,
    subjects: &mut [&mut dyn Subject],
) -> Result<Tally, String> {
    let mut oracle = Oracle::new(limits);
    let mut random = Random::new(!seed);
    let mut tally = Tally::default();
    for step in 0..steps {
        let request = requests.next(&oracle);
        let expected = oracle.set(&request);
        tally.count(expected);
        for subject in &mut *subjects {
            subject.ask(&request, expected).map_err(|said| {
                format!("seed {seed:#x}, step {step}: {said}; expected {expected:x?} of {request:#x?}")
            })?;
            subject.check(&oracle, &mut random);
        }
        let slots = (0..limits.spaces).map(|space| oracle.slots(space).len()).sum();
        tally.most_slots = tally.most_slots.max(slots);
    }
    for subject in subjects {
        subject.audit(&oracle);
    }
    Ok(tally)
}

/// An oracle without one rule.
struct Forgetful(Oracle);

impl Subject for Forgetful {
    fn ask(&mut self, request: &Request, expected: Result<Change, Rule>) -> Result<(), String> {
        let said = self.0.set(request);
        if said.map_err(Rule::errno) == expected.map_err(Rule::errno) {
            Ok(())
        } else {
            Err(format!("{said:x?}"))
        }
    }

    fn check(&mut self, _: &Oracle, _: &mut Random) {}

    fn audit(&mut self, _: &Oracle) {}
}

/// A subject without one rule is detected by its answers, errno for errno. Except two: a subject without a limit of
/// address spaces would have nowhere to look, and a region that wraps is out of reach as well.
#[test]
fn negative_control_no_rule_can_be_forgotten() {
    let limits = Limits { ids: 32_764, spaces: 2, gfn_end: 1 << 40, hva_end: (1 << 47) - 4096 };
    let caught = |forgets| {
        let mut subject = Forgetful(Oracle { forgets, ..Oracle::new(limits) });
        walk(7, 4_000, limits, &mut Requests::new(7, limits, 0x7000_0000, 1 << 14), &mut [&mut subject])
            .is_err()
    };
    assert!(!caught(None));
    for rule in Rule::ALL.into_iter().filter(|&rule| rule != Rule::Space) {
        assert_eq!(caught(Some(rule)), rule != Rule::Wraps, "{rule:?}");
    }
}
