//! The costs of operations in whole picoseconds.

use crate::costs::Costs;

/// Virtual time in picoseconds. 64 bits hold 213 days.
pub type Ps = u64;

/// Converts nanoseconds to picoseconds.
pub fn ps(ns: f64) -> Ps {
    (ns * 1000.0).round() as Ps
}

/// The prices once: those of operations, which include the plain instructions around them, and all others.
macro_rules! prices {
    ($($operation:ident)*; $($other:ident)*) => {
        /// The prices in whole picoseconds.
        #[derive(Clone, Copy, Debug)]
        pub struct Prices {
            $(pub $operation: Ps,)*
            $(pub $other: Ps,)*
            /// The time for which one page occupies the memory of its socket.
            pub page: Ps,
            pub cpus_per_socket: u32,
        }

        impl Prices {
            pub fn new(costs: &Costs) -> Self {
                Self {
                    $($operation: ps(costs.$operation + costs.step),)*
                    $($other: ps(costs.$other),)*
                    page: ps(4096.0 / costs.bandwidth),
                    cpus_per_socket: costs.cpus_per_socket.max(1),
                }
            }
        }
    };
}

prices! {
    load store rmw;
    fence full_path near far handoff park_after kick kick_arrives kick_taken wake wake_arrives zero read word copy barrier clock pause
}
