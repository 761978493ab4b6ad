//! `slat bench`: the figures that slat was asked to improve, before against after, on this machine.
//!
//! Each bench is one folder or file: it sets up its entrants, measures them side by side ([`harness`]) and
//! hands back a [`report`] whose rows name the patch series they answer.

mod demand_paging;
mod fault_floor;
mod harness;
mod machine;
mod memslot_perf;
mod report;

pub use demand_paging::DemandPaging;
pub use fault_floor::FaultFloor;
pub use memslot_perf::MemslotPerf;

use crate::error::Error;
use std::process::ExitCode;

/// The benches, by name.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Many vCPUs touch new memory at once: before seed 003, as it describes, and slat
    DemandPaging(DemandPaging),
    /// What one 4K fault costs: the bare walk and CAS, slat's MMU lock policies, and other crates' mappers
    FaultFloor(FaultFloor),
    /// What memslots cost guest and host, from 10 to a million of them: the design before seed 001, and slat's
    MemslotPerf(MemslotPerf),
}

impl Bench {
    /// Runs the bench and prints its report to stdout; a false check becomes exit status 1.
    pub fn run(&self) -> Result<ExitCode, Error> {
        match self {
            Self::DemandPaging(bench) => bench.run(),
            Self::FaultFloor(bench) => bench.run(),
            Self::MemslotPerf(bench) => bench.run(),
        }
    }
}
