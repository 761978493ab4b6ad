//! `slat bench`: the figures that slat was asked to improve, before against after, on this machine.
//!
//! Each bench is one folder or file: it sets up its entrants, measures them side by side ([`harness`]) and
//! hands back a [`report`] whose rows name the patch series they answer.

mod access_tracking;
mod aging_pass;
mod arithmetic;
mod compare;
mod demand_paging;
mod dirty_log_perf;
mod fault_floor;
pub mod harness;
mod invalidate;
mod ksm_perf;
mod leaf_tables;
pub mod machine;
mod memslot_perf;
mod migrate;
mod numa_balancing;
mod onlooker;
mod reclaim;
pub mod report;
mod tables;
pub mod traces;
mod zap;

pub(crate) use report::params;

pub use access_tracking::AccessTracking;
pub use aging_pass::AgingPass;
pub use compare::Compare;
pub use demand_paging::DemandPaging;
pub use dirty_log_perf::DirtyLogPerf;
pub use fault_floor::FaultFloor;
pub use invalidate::Invalidate;
pub use ksm_perf::KsmPerf;
pub use memslot_perf::MemslotPerf;
pub use migrate::Migrate;
pub use numa_balancing::NumaBalancing;
pub use reclaim::Reclaim;
pub use report::Report;
pub use zap::Zap;

use crate::typed::Unused;
use slat_cli::error::Error;
use slat_cli::interrupt;
use std::process::ExitCode;

/// The benches, by name.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Who has used which pages; what aging costs vCPUs that fault meanwhile, with the MMU lock and without (the MGLRU aging series)
    #[command(name = "access-tracking-perf")]
    AccessTracking(AccessTracking),
    /// What a pass over Accessed bits costs, idle and in use: against how fast this machine reads (the MGLRU aging series)
    AgingPass(AgingPass),
    /// Many vCPUs touch new memory at once: before the TDP MMU series, as it describes, and slat
    DemandPaging(DemandPaging),
    /// What it costs to know which pages a guest writes: enable, get, clear, disable; before against slat's ways (the TDP MMU series)
    #[command(name = "dirty-log-perf")]
    DirtyLogPerf(DirtyLogPerf),
    /// What one 4K fault costs: the bare walk and CAS, slat's MMU lock policies, and other crates' mappers
    FaultFloor(FaultFloor),
    /// What a thread that invalidates pages back to back costs the faults beside it, under each MMU lock policy
    Invalidate(Invalidate),
    /// What same-page merging costs running guests and their host, with and without the reasons that it gives (the change-pte series)
    KsmPerf(KsmPerf),
    /// What memslots cost guest and host, from 10 to a million of them: the design before the scalable memslots series, and slat's
    MemslotPerf(MemslotPerf),
    /// A running guest moves to another machine over TCP, and every byte is compared; connections may break (the TDP MMU series)
    Migrate(Migrate),
    /// What a guest pays for a host that balances its memory between nodes: before the NUMA protection series, as it describes, and slat
    NumaBalancing(NumaBalancing),
    /// Which pages go when memory is short: before the MGLRU aging series, with aging that asks the guest, exact LRU, the optimum
    Reclaim(Reclaim),
    /// What it takes to zap 1 to 64 GiB, leaf by leaf, by unhooking tables or by a new root, and what faults elsewhere feel
    Zap(Zap),
}

impl Bench {
    /// Runs the bench and prints its report to stdout; a false check becomes exit status 1.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let (report, json) = self.measure();
        let status = report?.finish(json)?;
        Ok(if interrupt::asked() { slat_cli::interrupt::status() } else { status })
    }

    /// Flags that have no effect beside the others.
    pub fn unused(&self) -> Unused {
        match self {
            Self::AccessTracking(bench) => bench.unused(),
            Self::DirtyLogPerf(bench) => bench.unused(),
            Self::MemslotPerf(bench) => bench.unused(),
            _ => Unused::new(),
        }
    }

    /// Runs the bench. After Ctrl-C the report has what there was by then.
    pub fn report(&self) -> Result<Report, Error> {
        self.measure().0
    }

    /// The report, and whether it is asked for as JSON.
    fn measure(&self) -> (Result<Report, Error>, bool) {
        match self {
            Self::AccessTracking(bench) => (bench.report(), bench.json),
            Self::AgingPass(bench) => (bench.report(), bench.json),
            Self::DemandPaging(bench) => (bench.report(), bench.json),
            Self::DirtyLogPerf(bench) => (bench.report(), bench.json),
            Self::FaultFloor(bench) => (bench.report(), bench.json),
            Self::Invalidate(bench) => (bench.report(), bench.json),
            Self::KsmPerf(bench) => (bench.report(), bench.json),
            Self::MemslotPerf(bench) => (bench.report(), bench.json),
            Self::Migrate(bench) => (bench.report(), bench.json),
            Self::NumaBalancing(bench) => (bench.report(), bench.json),
            Self::Reclaim(bench) => (bench.report(), bench.json),
            Self::Zap(bench) => (bench.report(), bench.json),
        }
    }
}
