//! Circles that still stand, each to be cut one day.

/// A folder, and the most entries of each of its circles, the largest first.
pub type Standing = (&'static str, &'static [usize]);

pub const LIST: &str = "STANDING of xtask/src/house/imports/standing.rs";

/// The list may only shrink.
pub const STANDING: &[Standing] = &[
    ("measure/bench/src", &[8]),
    ("measure/bench/src/bench", &[18, 2]),
    ("measure/bench/src/bench/access_tracking", &[2]),
    ("measure/bench/src/bench/demand_paging", &[2]),
    ("measure/bench/src/bench/fault_floor", &[5]),
    ("measure/bench/src/bench/fault_floor/peers", &[4]),
    ("measure/bench/src/bench/host_faults", &[4]),
    ("measure/bench/src/bench/ksm_perf", &[2]),
    ("measure/bench/src/bench/memslot_perf", &[3]),
    ("measure/bench/src/bench/memslot_perf/micro", &[4]),
    ("measure/bench/src/bench/numa_balancing", &[3]),
    ("measure/bench/src/report/replay", &[2]),
    ("measure/bench/src/report/series", &[6]),
    ("measure/bench/src/sim", &[4]),
    ("measure/bench/src/sim/against", &[3]),
    ("measure/machine/src", &[4]),
    ("measure/sim/src", &[2]),
    ("measure/sim/src/benches", &[20]),
    ("measure/sim/src/benches/ksm", &[2]),
    ("measure/sim/src/benches/memslot", &[2]),
    ("measure/sim/src/benches/memslot/array", &[3]),
    ("measure/sim/src/benches/numa", &[3]),
    ("measure/sim/src/world/threads", &[2]),
    ("pager/src/guest", &[5]),
    ("pager/src/twin", &[2]),
    ("proof/model/src", &[13, 4]),
    ("proof/model/src/fleet", &[2]),
    ("proof/model/src/library", &[10]),
    ("proof/model/src/nested", &[2]),
    ("proof/model/src/primary", &[2]),
    ("proof/walkers/hypervisor/src", &[20]),
    ("slat/src", &[5, 2, 2]),
];
