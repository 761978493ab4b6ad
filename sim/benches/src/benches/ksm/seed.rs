//! The seed's kernel time beside ours, 215.93 s before and 200.90 s after: the scanner's, and what guests lose.

use super::{FAULTS, LOST, SCANNER};
use crate::benches::against::{Against, figure};
use crate::benches::{Point, Policy};

/// After over before.
const SEED: f64 = 200.902_710 / 215.929_657;

/// With as few vCPUs as there are points of, and as many.
pub fn against(points: &[Point]) -> Vec<Against> {
    let mut counts: Vec<u32> = points.iter().map(|point| point.vcpus).collect();
    counts.sort_unstable();
    counts.dedup();
    let ends = counts.first().into_iter().chain(counts.last().filter(|_| counts.len() > 1));
    ends.flat_map(|&vcpus| at(points, vcpus)).collect()
}

fn at(points: &[Point], vcpus: u32) -> Vec<Against> {
    let of = |policy, name| figure(points, vcpus, policy, name);
    let beside = if vcpus == 1 { "1 vCPU".to_owned() } else { format!("{vcpus} vCPUs") };
    let kernel = |policy| Some(of(policy, SCANNER)? + of(policy, LOST)?);
    let time = |policy, who: &str| {
        let ratio = kernel(policy)? / kernel(Policy::Ignored)?;
        let what = format!("kernel time, {who}, over before: {beside}");
        let why = if ratio <= SEED {
            "agrees where it is no more"
        } else {
            "a page that is unmapped first owes a flush and a fault, one that stays mapped owes two flushes; these guests \
             never rest, so each flush waits for them, and costs more than the fault. Guests that seldom run owe no kicks; \
             how much its guests ran, the seed does not say"
        };
        Some(Against::not(&what, (SEED, ratio), "ratio", why).unless(ratio <= SEED))
    };
    let faults = of(Policy::Heeded, FAULTS).map(|faults| {
        let what = format!("guest faults for each page, after: {beside}");
        Against::within(0.0, &what, (0.0, faults), "faults")
    });
    [time(Policy::Heeded, "after"), time(Policy::HeededBatched, "slat"), faults]
        .into_iter()
        .flatten()
        .collect()
}
