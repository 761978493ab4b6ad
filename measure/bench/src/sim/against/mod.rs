//! The series' own figures, which a simulation has to answer for.
//!
//! The machines of the series are not ours, and their costs are not known. So nothing is tuned until it fits: a parameter or two
//! are chosen by one column of a series' table, and the others are predicted. A fitted figure proves nothing, and says so; a figure
//! that is not reproduced says that.
//!
//! | file | fitted | predicted |
//! |---|---|---|
//! | `fit_mglru_aging` | times without aging, of 1 vCPU and of 112 | times with aging, and of passes |
//! | `fit_tdp_mmu` | 98% of the time waiting for the lock | what goes away with it |

mod fit_mglru_aging;
mod fit_tdp_mmu;
pub mod trial_runs;

use crate::sim::against::trial_runs::Trial;
use crate::sim::sim_report::Against;

/// The figures of the bench's series beside what is simulated, where the vCPUs that they speak of are asked for.
pub fn against(trial: &Trial<'_>, vcpus: &[u32]) -> Result<Vec<Against>, String> {
    match trial.bench.name {
        "access-tracking-perf" if vcpus.contains(&slat_series::mglru_aging::MOST) => {
            fit_mglru_aging::against(trial)
        }
        "demand-paging" if vcpus.contains(&slat_series::tdp_mmu::VCPUS) => fit_tdp_mmu::against(trial),
        _ => Ok(Vec::new()),
    }
}
