//! The MGLRU aging series: vCPUs fault in a gigabyte each while a thread ages their memory, pass after pass.
//!
//! **Fitted**, by the first column, times without aging: the host's work for a fault, by one vCPU's time; and how long a
//! cache line travels on the series' machine, by that of 112. Both make time grow in a straight line, near enough.
//!
//! **Predicted**: the rest of that column; the times with aging, "no opt" (the lock for each page) and "opt" (no lock); the
//! times of a pass, as nanoseconds for each page of all vCPUs' memory, since a simulated vCPU has fewer of them.

use crate::sim::against::trial_runs::{Trial, Within, fitted, predicted};
use crate::sim::sim_report::Against;
use slat_machine::Costs;
use slat_series::mglru_aging::{MOST, Row, TABLE};
use slat_sim::parts::setting::Column;
use slat_sim::scenarios::access_tracking::aging_run::{LOCKED, LOCKLESS, NO_AGING};

use slat_sim::parts::published_figures::{Unit, ratio};
use slat_sim::parts::setting::Work;

/// Pages of a vCPU's gigabyte.
const PAGES: f64 = (1 << 18) as f64;

/// Nanoseconds for each fault of a vCPU.
fn fault(row: &Row, column: usize) -> f64 {
    row.wall[column] * 1e9 / PAGES
}

/// Nanoseconds of a pass for each page.
fn page(row: &Row, column: usize) -> f64 {
    row.pass[column] * 1e9 / (PAGES * f64::from(row.vcpus))
}

/// The columns, as the bench runs them.
const POLICIES: [Column; 3] = [NO_AGING, LOCKED, LOCKLESS];

/// One simulated line.
#[derive(Clone, Copy)]
struct Simulated {
    /// As [`fault`].
    fault: [f64; 3],
    /// As [`page`].
    page: [f64; 2],
}

/// The figures of one run: nanoseconds for each fault of a vCPU, and of a pass for each page if there is an ager.
fn run(
    trial: &Trial<'_>,
    costs: &Costs,
    vcpus: u32,
    policy: Column,
    work: &Work,
) -> Result<[f64; 2], String> {
    let point = trial.run(costs, vcpus, policy, work)?;
    let ms =
        |name| point.figures.iter().find(|figure| figure.name == name).map_or(0.0, |figure| figure.value);
    let pages = point.operations as f64;
    Ok([ms("guest wall time") * 1e6 * f64::from(vcpus) / pages, ms("average pass") * 1e6 / pages])
}

/// The work and the costs that the first column speaks of.
fn fit(trial: &Trial<'_>) -> Result<(Work, f64, Costs), String> {
    let (first, last) = (&TABLE[0], &TABLE[TABLE.len() - 1]);
    let time = |costs: &Costs, vcpus, work: &Work| run(trial, costs, vcpus, NO_AGING, work).map(|ran| ran[0]);
    let mut work = Work::default();
    let more = fault(first, 0) - time(trial.costs, 1, &work)?;
    work.host_ns = (work.host_ns as f64 + more).round().max(0.0) as u64;
    let travelling = |times: f64| Costs {
        near: trial.costs.near * times,
        far: trial.costs.far * times,
        ..trial.costs.clone()
    };
    // By secants: near enough a straight line, but for where CPUs happen to meet. The nearest of all that were tried counts.
    let goal = fault(last, 0);
    let trying = |times: f64| Ok::<_, String>((times, time(&travelling(times), MOST, &work)?));
    let mut tried = vec![trying(1.0)?, trying(2.0)?];
    let off = |tried: &(f64, f64)| (tried.1 - goal).abs();
    while let [.., (a, at_a), (b, at_b)] = tried[..]
        && tried.len() < 10
        && off(&(b, at_b)) > goal / 200.0
    {
        let times = (b + (goal - at_b) * (b - a) / (at_b - at_a)).clamp(0.05, 20.0);
        if !times.is_finite() || (times - b).abs() < 1e-6 {
            break;
        }
        tried.push(trying(times)?);
    }
    let (times, _) =
        *tried.iter().min_by(|one, other| off(one).total_cmp(&off(other))).expect("two at least");
    Ok((work, times, travelling(times)))
}

/// See the module's header.
pub fn against(trial: &Trial<'_>) -> Result<Vec<Against>, String> {
    let (work, times, costs) = fit(trial)?;
    let mut rows = Vec::new();
    for line in &TABLE {
        let simulated = simulate(trial, &costs, line.vcpus, &work)?;
        let detail = match line.vcpus {
            1 => Some(format!("chosen for it: {} ns of the host's work for a fault", work.host_ns)),
            MOST => Some(format!("chosen for it: lines travel {times:.2} times as long")),
            _ => None,
        };
        rows.extend(compare(line, &simulated, detail));
    }
    Ok(rows)
}

fn simulate(trial: &Trial<'_>, costs: &Costs, vcpus: u32, work: &Work) -> Result<Simulated, String> {
    let [none, locked, lockless] = POLICIES.map(|policy| run(trial, costs, vcpus, policy, work));
    let (none, locked, lockless) = (none?, locked?, lockless?);
    Ok(Simulated { fault: [none[0], locked[0], lockless[0]], page: [locked[1], lockless[1]] })
}

/// One line of the table against the simulated one; `chosen` where its first column was fitted.
fn compare(line: &Row, simulated: &Simulated, chosen: Option<String>) -> Vec<Against> {
    let of = |what: &str| format!("{what}, {} vCPUs", line.vcpus);
    let Row { wall, pass, .. } = line;
    let Simulated { fault: time, page: aged } = simulated;
    let within = |what, published, simulated, unit: Unit, factor| {
        predicted(&of(what), (published, simulated), unit, Within::Factor(factor), "")
    };
    let ns = || Unit::from("ns");
    let first = "a fault, no aging";
    vec![
        match chosen {
            Some(detail) => fitted(&of(first), fault(line, 0), time[0], "ns", &detail),
            None => within(first, fault(line, 0), time[0], ns(), 1.25),
        },
        within(
            "time with locked aging over without",
            wall[1] / wall[0],
            time[1] / time[0],
            ratio("locked aging", "no aging"),
            1.1,
        ),
        within(
            "time with lockless aging over without",
            wall[2] / wall[0],
            time[2] / time[0],
            ratio("lockless aging", "no aging"),
            1.1,
        ),
        within("a page of a locked pass", page(line, 0), aged[0], ns(), 2.0),
        within("a page of a lockless pass", page(line, 1), aged[1], ns(), 2.0),
        within(
            "pass, locked over lockless",
            pass[0] / pass[1],
            aged[0] / aged[1],
            ratio("locked pass", "lockless pass"),
            2.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat_sim::scenarios::by_name;

    #[test]
    fn one_column_is_fitted_and_the_others_are_predicted() {
        let bench = by_name("access-tracking-perf").unwrap();
        let rows = against(&Trial { bench, costs: &Costs::SERVER, seed: 1 }).unwrap();
        assert_eq!(rows.len(), 6 * TABLE.len());
        let fitted: Vec<_> = rows.iter().filter(|row| row.fitted).collect();
        assert_eq!(fitted.len(), 2);
        assert!(fitted.iter().all(|row| row.reproduced), "{fitted:?}");
        let row = |what: &str| rows.iter().find(|row| row.what == what).unwrap();
        assert!(row("pass, locked over lockless, 112 vCPUs").simulated >= 5.9);
        assert!(row("time with lockless aging over without, 112 vCPUs").simulated <= 1.02);
    }
}
