//! The series' table beside ours: unmap calls and flushes of guests that boot, ten on average, the best one and the worst. A
//! call was one for each 2 MiB before, and one for each page after.

use crate::scenarios::numa::balancing_columns::{CALLS, FLUSHES, PAGE, RANGE, RANGE_YIELDING};
use crate::scenarios::prelude::*;

use slat_series::numa_protection::{AVERAGE, BEST, WORST};

/// Agree to this part.
const PART: f64 = 0.1;

/// Counts do not depend on the number of vCPUs, as long as there are two.
pub fn against(points: &[Point]) -> Vec<Against> {
    let vcpus = points.iter().map(|point| point.vcpus).filter(|&vcpus| vcpus > 1).min().unwrap_or(2);
    let of = |policy, name| figure(points, vcpus, policy, name);
    let all = || {
        let [range, yielding, page] = [RANGE, RANGE_YIELDING, PAGE].map(|policy| of(policy, FLUSHES));
        Some((range?, yielding?, page?, of(PAGE, CALLS)?))
    };
    let Some((range, yielding, page, calls)) = all() else { return Vec::new() };
    let per_call = |what, flushes, of| Against::within(PART, what, (flushes / of, page / calls), "flushes");
    vec![
        per_call("flushes for each call, after, on average", AVERAGE.flushes[1], AVERAGE.calls[1]).fitted(),
        per_call("flushes for each call, after, in the best boot", BEST.flushes[1], BEST.calls[1]),
        per_call("flushes for each call, after, in the worst boot", WORST.flushes[1], WORST.calls[1]),
        Against::within(
            PART,
            "flushes for each 2 MiB, before, on average",
            (AVERAGE.flushes[0] / AVERAGE.calls[0], yielding),
            "flushes",
        )
        .saying("as a walk makes them that lets go of its lock after each page"),
        Against::within(
            PART,
            "flushes before over after, on average",
            (AVERAGE.flushes[0] / AVERAGE.flushes[1], yielding / page),
            ratio("flushes before", "flushes after"),
        ),
        Against::not(
            "flushes for each 2 MiB, before, in the best boot",
            (BEST.flushes[0] / BEST.calls[0], range),
            "flushes",
            "an undisturbed walk flushes once, or not at all where the guest has nothing mapped; here it always has",
        ),
        Against::not(
            "flushes for each 2 MiB, before, in the worst boot",
            (WORST.flushes[0] / WORST.calls[0], yielding),
            "flushes",
            "more than 2 MiB have pages: why, the series does not say",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::test_settings::setting;
    use crate::scenarios::numa::SCENARIO;

    /// How many rows are reproduced, of how many, where the series' guest would have flushed so many times as often.
    fn reproduced(points: &[Point], times: f64) -> (usize, usize) {
        let mut points = points.to_vec();
        for figure in points.iter_mut().flat_map(|point| &mut point.figures) {
            figure.value *= if figure.name == FLUSHES { times } else { 1.0 };
        }
        let rows = against(&points);
        (rows.iter().filter(|row| row.reproduced).count(), rows.len())
    }

    #[test]
    fn one_column_is_fitted_and_the_averages_of_the_others_follow() {
        let run = |&policy: &Column| (SCENARIO.simulated.run)(&setting(policy)).unwrap();
        let points: Vec<Point> = SCENARIO.simulated.columns.iter().map(run).collect();
        assert_eq!(reproduced(&points, 1.0), (5, 7));
        // Negative control: all but a ratio.
        assert_eq!(reproduced(&points, 1.5), (1, 7));
        assert!(against(&points[1..]).is_empty(), "a policy is missing");
    }
}
