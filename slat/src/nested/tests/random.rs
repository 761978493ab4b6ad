//! Random tables, mostly wrong: each walk answers, sets, marks and reports exactly what the oracle does.

use super::manual::Words;
use super::worlds::{Check, Writes, compare, each_ept, each_g_stage, each_npt, each_stage_2, word};
use super::*;
use fastrand::Rng;
use std::collections::BTreeMap;

/// The entries used in each page: paths meet there.
const ENTRIES: [u64; 3] = [0, 1, 511];

fn gpa<M: Writes>(rng: &mut Rng, manual: &M) -> Gpa {
    let mut gpa = rng.u64(..PAGE_SIZE);
    for level in 0..u32::from(manual.levels()) {
        gpa |= ENTRIES[rng.usize(..3)] << (12 + 9 * level);
    }
    if rng.u8(..16) == 0 {
        gpa ^= 1 << rng.u32(12..60);
    }
    let wide = gpa | rng.u64(..4) << (12 + 9 * u32::from(manual.levels()));
    Gpa(if rng.u8(..16) == 0 { wide } else { wide & ((1 << manual.input_bits()) - 1) })
}

/// How walks ended: leaves, and each refusal.
pub(super) type Ends = BTreeMap<std::string::String, u32>;

/// Worlds of random words, and walks in each.
pub(super) struct Random {
    pub(super) seed: u64,
    pub(super) worlds: u32,
    pub(super) ends: Ends,
}

impl Random {
    fn new() -> Self {
        Self { seed: 1, worlds: 8, ends: Ends::new() }
    }

    fn must_have(&self, all: &[&str]) {
        let missing: Vec<_> = all.iter().filter(|end| !self.ends.contains_key(**end)).collect();
        assert!(missing.is_empty(), "no walk ended as {missing:?}: {:?}", self.ends);
    }
}

impl Check for Random {
    fn check<T: L1Format, M: Writes<Report = T::Injection>>(&mut self, table: T, manual: M) {
        let mut rng = Rng::with_seed(self.seed);
        self.seed += 1;
        for nth in 0..self.worlds {
            let mut world = World::new();
            let mut words = Words::new();
            for frame in 0..NOWHERE {
                for entry in ENTRIES {
                    let word = word(&mut rng, &manual);
                    world.put(frame, entry, word);
                    words.insert(frame << 12 | entry << 3, word);
                }
            }
            for _ in 0..32 {
                let walk_for = (rng.u8(..4) == 0).then(|| ALL[rng.usize(..3)]);
                let access = if walk_for.is_some() { ALL[rng.usize(..2)] } else { ALL[rng.usize(..3)] };
                let access = L1Access {
                    user: rng.bool(),
                    walk_for,
                    carried: rng.u64(..) & 0x1_fe80,
                    ..L1Access::new(gpa(&mut rng, &manual), access)
                };
                let end = compare(&mut world, &mut words, (&table, &manual), access, &(self.seed, nth));
                *self.ends.entry(end).or_default() += 1;
            }
        }
    }
}

#[test]
fn walks_of_random_ept_end_as_the_manual_has_it() {
    let mut random = Random::new();
    each_ept(&mut random);
    random.must_have(&["leaf 1", "leaf 2", "leaf 3", "NotPresent", "Reserved", "Rights", "NoMemory"]);
}

#[test]
fn walks_of_random_npt_end_as_the_manual_has_it() {
    let mut random = Random::new();
    each_npt(&mut random);
    random.must_have(&["leaf 1", "leaf 2", "leaf 3", "NotPresent", "Reserved", "Rights", "NoMemory"]);
}

#[test]
fn walks_of_random_stage_2_end_as_the_manual_has_it() {
    let mut random = Random { worlds: 2, ..Random::new() };
    each_stage_2(&mut random);
    random.must_have(&["leaf 1", "leaf 2", "leaf 3", "NotPresent", "AddressSize"]);
    random.must_have(&["NotAccessed", "Rights", "NoMemory"]);
}

#[test]
fn walks_of_random_g_stages_end_as_the_manual_has_it() {
    let mut random = Random::new();
    each_g_stage(&mut random);
    random.must_have(&["leaf 1", "leaf 2", "leaf 3", "leaf 4", "NotPresent", "NotAccessed"]);
    random.must_have(&["Reserved", "Rights", "NoMemory"]);
}
