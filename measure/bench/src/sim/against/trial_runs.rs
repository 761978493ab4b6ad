//! Trial runs, and the verdict on a figure that they predict.

use crate::sim::sim_report::Against;
use slat_machine::Costs;
use slat_sim::parts::point::Point;
use slat_sim::parts::published_figures::{Against as Published, Unit};
use slat_sim::parts::setting::{Column, Setting, Work};
use slat_sim::scenario::Scenario;

/// A scenario, and the settings of its runs.
pub struct Trial<'t> {
    pub bench: &'t Scenario,
    pub costs: &'t Costs,
    pub seed: u64,
}

impl Trial<'_> {
    /// One run with a quarter of the work: what is compared are times of one operation.
    pub fn run(&self, costs: &Costs, vcpus: u32, policy: Column, work: &Work) -> Result<Point, String> {
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

/// How far a predicted figure may be from the series'.
#[derive(Clone, Copy)]
pub enum Within {
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
pub fn fitted(what: &str, published: f64, simulated: f64, unit: impl Into<Unit>, detail: &str) -> Against {
    let reproduced = Within::Factor(1.02).holds(published, simulated);
    let figures = (published, simulated);
    Published::not(what, figures, unit, detail).unless(reproduced).fitted().into()
}

/// A figure that nothing was chosen for.
pub fn predicted(
    what: &str,
    figures: (f64, f64),
    unit: impl Into<Unit>,
    within: Within,
    detail: &str,
) -> Against {
    let bar = match within {
        Within::Points(points) => format!("within {points}"),
        Within::Factor(factor) => format!("within a factor of {factor}"),
    };
    let detail = if detail.is_empty() { bar } else { format!("{bar}; {detail}") };
    Published::not(what, figures, unit, &detail).unless(within.holds(figures.0, figures.1)).into()
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
            let row = predicted("", (0.89, simulated), "share", within, "");
            assert_eq!((row.reproduced, row.fitted), (holds, false), "{simulated}");
        }
        assert!(!fitted("", 0.98, 0.95, "share", "").reproduced);
    }
}
