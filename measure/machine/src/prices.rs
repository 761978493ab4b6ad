//! The costs of operations in whole picoseconds.

use crate::costs::Costs;

/// Virtual time in picoseconds. 64 bits hold 213 days.
pub type Ps = u64;

/// The prices in whole picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    pub load: Ps,
    pub store: Ps,
    pub rmw: Ps,
    pub fence: Ps,
    pub full_path: Ps,
    pub near: Ps,
    pub far: Ps,
    pub handoff: Ps,
    pub park_after: Ps,
    pub kick: Ps,
    pub kick_arrives: Ps,
    pub kick_taken: Ps,
    pub wake: Ps,
    pub wake_arrives: Ps,
    pub zero: Ps,
    pub read: Ps,
    pub word: Ps,
    pub copy: Ps,
    /// The time for which one page occupies the memory of its socket.
    pub page: Ps,
    pub barrier: Ps,
    pub clock: Ps,
    pub pause: Ps,
    pub cpus_per_socket: u32,
}

/// Converts nanoseconds to picoseconds.
pub fn ps(ns: f64) -> Ps {
    (ns * 1000.0).round() as Ps
}

impl Prices {
    pub fn new(costs: &Costs) -> Self {
        let operation = |ns: f64| ps(ns + costs.step);
        Self {
            load: operation(costs.load),
            store: operation(costs.store),
            rmw: operation(costs.rmw),
            fence: ps(costs.fence),
            full_path: ps(costs.full_path),
            near: ps(costs.near),
            far: ps(costs.far),
            handoff: ps(costs.handoff),
            park_after: ps(costs.park_after),
            kick: ps(costs.kick),
            kick_arrives: ps(costs.kick_arrives),
            kick_taken: ps(costs.kick_taken),
            wake: ps(costs.wake),
            wake_arrives: ps(costs.wake_arrives),
            zero: ps(costs.zero),
            read: ps(costs.read),
            word: ps(costs.word),
            copy: ps(costs.copy),
            page: ps(4096.0 / costs.bandwidth),
            barrier: ps(costs.barrier),
            clock: ps(costs.clock),
            pause: ps(costs.pause),
            cpus_per_socket: costs.cpus_per_socket.max(1),
        }
    }
}
