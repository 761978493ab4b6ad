//! Walks through scenarios of six and more actors find nothing in the model, and find mistakes. `slat-model walk` walks
//! longer.

use slat_model::Bug;
use slat_model::check::side_by_side;
use slat_model::walk::{Walk, Walked};

fn walk(seed: u64, bug: Option<Bug>) -> Walked {
    Walk { seed, actors: 6, states: 40_000, bug }.go()
}

#[test]
fn walks_of_six_actors_hold() {
    let seeds: Vec<u64> = (1..=32).collect();
    let walks = side_by_side(&seeds, |&seed| walk(seed, None));
    for (seed, walked) in seeds.iter().zip(&walks) {
        assert!(walked.found.is_none(), "seed {seed}: {}: {:?}", walked.scenario, walked.found);
    }
    let steps: u64 = walks.iter().map(|walked| walked.steps).sum();
    assert!(steps > 1_000_000, "{steps} steps");
}

#[test]
fn a_seed_determines_a_walk() {
    let [first, second] = [walk(7, None), walk(7, None)];
    assert_eq!((first.scenario, first.steps, first.states), (second.scenario, second.steps, second.states));
}

/// The negative control.
#[test]
fn walks_find_mistakes() {
    let found = [
        (Bug::StampAfterResolve, 4),
        (Bug::ActiveUnchecked, 1),
        (Bug::EpochLookedAtOnce, 1),
        (Bug::NumberedBeforeListed, 3),
    ];
    for (bug, seed) in found {
        assert!(walk(seed, Some(bug)).found.is_some(), "{}", bug.name());
        assert!(walk(seed, None).found.is_none(), "seed {seed}");
    }
}
