//! Whether the ranking of the policies hangs on what we are least sure of.
//!
//! Two costs decide most of what is simulated, and differ most between machines: how long a cache line takes from one CPU
//! to another, and how long an interrupt takes to arrive. Each is halved and doubled, alone, at the largest number of
//! vCPUs. Two policies that stand close together may change places; two that stand apart may not.

use crate::sim::sim_report::{Row, Swept, SweptRow};
use slat_cli::error::Error;
use slat_machine::costs::Costs;

/// Fields of the cost file that change together.
const UNCERTAIN: [&[&str]; 2] = [&["near", "far"], &["kick", "kick_arrives"]];

/// Their factors, besides 1.
const FACTORS: [f64; 2] = [0.5, 2.0];

/// Runs of a sweep for each policy.
pub const RUNS: usize = UNCERTAIN.len() * FACTORS.len();

/// Policies stand apart when the better one is better by this factor.
const APART: f64 = 1.05;

/// The rows of `base` in each case; `run` simulates them with other costs.
pub fn sweep(
    costs: &Costs,
    base: &[Row],
    mut run: impl FnMut(&Costs) -> Result<Vec<Row>, Error>,
) -> Result<Vec<Swept>, Error> {
    let mut all = Vec::new();
    for fields in UNCERTAIN {
        let [half, twice] =
            FACTORS.map(|factor| changed(costs, fields, factor).and_then(|costs| run(&costs)));
        all.push(swept(fields, FACTORS[0], &half?, base));
        all.push(swept(fields, 1.0, base, base));
        all.push(swept(fields, FACTORS[1], &twice?, base));
    }
    Ok(all)
}

/// The costs with some of them changed.
fn changed(costs: &Costs, fields: &[&str], factor: f64) -> Result<Costs, Error> {
    let changed = fields.iter().try_fold(costs.clone(), |costs, field| costs.scaled(field, factor));
    changed.map_err(Error::Machine)
}

/// One case, against the same rows at the costs as they are.
fn swept(fields: &[&str], factor: f64, rows: &[Row], base: &[Row]) -> Swept {
    let values = |rows: &[Row]| rows.iter().map(Row::value).collect::<Vec<_>>();
    let row = |row: &Row| SweptRow { vcpus: row.vcpus, policy: row.policy.clone(), value: row.value() };
    Swept {
        cost: fields.join("+"),
        factor,
        rows: rows.iter().map(row).collect(),
        ranking_holds: holds(&values(base), &values(rows)),
    }
}

/// Whether no two that stood apart before have changed places. Less is better.
fn holds(before: &[f64], after: &[f64]) -> bool {
    let pairs = || (0..before.len()).flat_map(|a| (0..before.len()).map(move |b| (a, b)));
    pairs().filter(|&(a, b)| before[a] * APART < before[b]).all(|(a, b)| after[a] <= after[b])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_stood_apart_may_not_change_places() {
        assert!(holds(&[100.0, 104.0, 300.0], &[210.0, 200.0, 600.0]));
        assert!(!holds(&[100.0, 104.0, 300.0], &[100.0, 104.0, 103.0]), "the third has overtaken the second");
        assert!(holds(&[1.0], &[9.0]));
    }

    #[test]
    fn costs_change_together_and_alone() {
        let changed = changed(&Costs::SERVER, UNCERTAIN[0], 2.0).unwrap();
        assert_eq!((changed.near, changed.far), (2.0 * Costs::SERVER.near, 2.0 * Costs::SERVER.far));
        assert_eq!(Costs { near: Costs::SERVER.near, far: Costs::SERVER.far, ..changed }, Costs::SERVER);
    }
}
