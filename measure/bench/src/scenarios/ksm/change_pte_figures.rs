//! The series' kernel time beside ours: 215.93 s before, 200.90 s after.

use crate::scenarios::ksm::merging::{HEEDED, HEEDED_BATCHED, IGNORED, KERNEL, KERNEL_RESTING, MISSING};
use crate::scenarios::prelude::*;

use slat_series::change_pte::SYSTEM_TIME;

/// After over before.
const PUBLISHED: f64 = SYSTEM_TIME[1] / SYSTEM_TIME[0];

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
    let time = |policy, name, who: &str| {
        let grows = of(policy, name)? / of(IGNORED, name)?;
        let guests = if name == KERNEL { "always run" } else { "mostly rest" };
        let what = format!("kernel time, {who} over before, guests that {guests}: {beside}");
        let why = if grows <= PUBLISHED {
            "agrees where it is no more"
        } else {
            "a page that is unmapped first owes a flush and a fault, one that stays mapped owes two flushes; where each flush \
             waits for a guest that runs, it costs more than the fault. How much its guests ran, the series does not say"
        };
        Some(Against::not(&what, (PUBLISHED, grows), ratio(who, "before"), why).unless(grows <= PUBLISHED))
    };
    let faults = of(HEEDED, MISSING).map(|faults| {
        let what = format!("guest faults for want of a translation for each page, after: {beside}");
        Against::within(0.0, &what, (0.0, faults), "faults")
    });
    let rows = [
        time(HEEDED, KERNEL_RESTING, "after"),
        time(HEEDED, KERNEL, "after"),
        time(HEEDED_BATCHED, KERNEL, "slat"),
        faults,
    ];
    rows.into_iter().flatten().collect()
}
