//! The series' own figures, which a simulation has to answer for.
//!
//! The machines of the series are not ours, and their costs are not known. So nothing is tuned until it fits: a parameter or two
//! are chosen by one column of a series' table, and the others are predicted. What was fitted proves nothing, and says so; what
//! is not reproduced says that.
//!
//! | file | fitted | predicted |
//! |---|---|---|
//! | `mglru_aging` | times without aging, of 1 vCPU and of 112 | times with aging, and of passes |
//! | `tdp_mmu` | 98% of the time waiting for the lock | what goes away with it |

mod mglru_aging;
mod tdp_mmu;

use crate::sim::outcome::Against;
use slat_machine::Costs;
use slat_sim::parts::point::Point;
use slat_sim::parts::published_figures::Unit;
use slat_sim::parts::setting::Column;
use slat_sim::parts::setting::{Setting, Work};
use slat_sim::scenario::Scenario;

/// What to run, and how.
pub struct Trial<'t> {
    pub bench: &'t Scenario,
    pub costs: &'t Costs,
    pub seed: u64,
}

impl Trial<'_> {
    /// One run with a quarter of the work: what is compared are times of one operation.
    fn run(&self, costs: &Costs, vcpus: u32, policy: Column, work: &Work) -> Result<Point, String> {
        (self.bench.simulated.run)(&Setting {
            costs,
            vcpus,
            column: policy,
            quick: true,
            seed: self.seed,
            work: work.clone(),
        })
    }
}

/// The figures of the bench's series beside what is simulated, where the vCPUs that they speak of are asked for.
pub fn against(trial: &Trial<'_>, vcpus: &[u32]) -> Result<Vec<Against>, String> {
    match trial.bench.name {
        "access-tracking-perf" if vcpus.contains(&slat_series::mglru_aging::MOST) => {
            mglru_aging::against(trial)
        }
        "demand-paging" if vcpus.contains(&slat_series::tdp_mmu::VCPUS) => tdp_mmu::against(trial),
        _ => Ok(Vec::new()),
    }
}

/// How far a predicted figure may be from the series'.
#[derive(Clone, Copy)]
enum Within {
    /// By so much.
    Points(f64),
    /// By this factor.
    Factor(f64),
}

impl Within {
    fn holds(self, published: f64, simulated: f64) -> bool {
        match self {
            Self::Points(points) => (published - simulated).abs() <= points,
            Self::Factor(factor) => (1.0 / factor..=factor).contains(&(simulated / published)),
        }
    }
}

/// A figure that a parameter was chosen for: it has to agree.
fn fitted(what: String, published: f64, simulated: f64, unit: impl Into<Unit>, detail: String) -> Against {
    let (unit, reproduced) = (unit.into(), Within::Factor(1.02).holds(published, simulated));
    slat_sim::parts::published_figures::Against {
        what,
        published,
        simulated,
        unit,
        fitted: true,
        reproduced,
        detail,
    }
    .into()
}

/// A figure that nothing was chosen for.
fn predicted(
    what: String,
    (published, simulated): (f64, f64),
    unit: impl Into<Unit>,
    within: Within,
    detail: &str,
) -> Against {
    let reproduced = within.holds(published, simulated);
    let bar = match within {
        Within::Points(points) => format!("within {points}"),
        Within::Factor(factor) => format!("within a factor of {factor}"),
    };
    let detail = if detail.is_empty() { bar } else { format!("{bar}; {detail}") };
    let unit = unit.into();
    slat_sim::parts::published_figures::Against {
        what,
        published,
        simulated,
        unit,
        fitted: false,
        reproduced,
        detail,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_far_off_is_not_reproduced() {
        for (within, simulated, holds) in [
            (Within::Points(0.05), 0.85, true),
            (Within::Points(0.05), 0.83, false),
            (Within::Factor(1.25), 1.1, true),
            (Within::Factor(1.25), 1.2, false),
            (Within::Factor(1.25), 0.7, false),
        ] {
            let row = predicted(String::new(), (0.89, simulated), "share", within, "");
            assert_eq!((row.reproduced, row.fitted), (holds, false), "{simulated}");
        }
        assert!(!fitted(String::new(), 0.98, 0.95, "share", String::new()).reproduced);
    }
}
