//! The TDP MMU series: 416 vCPUs touch new memory, user-fault handlers serve them. 98% of the time is spent waiting for the MMU lock;
//! with faults side by side the whole takes 89% less, and what is left is `get_user_pages` and the calls of the handlers.
//!
//! **Fitted**: how long the old code works under its lock for a fault, by the 98%. One run tells what a fault takes besides
//! waiting, and how long the lock is busy with it; in a full queue both grow with the work under the lock, so the share of
//! waiting that any such work makes can be solved for.
//!
//! **Counted**: what vCPUs share besides. With the primary MMU of the time, a fault that a handler serves takes and drops the
//! lock of the address space three times (the vCPU's, before it sleeps; its second try; the handler's copy): six
//! read-modify-writes of one line each.
//!
//! **Predicted**: 89%, with the reader-writer lock that the series put in its place. The series' 98% may be anything from 97.5
//! to 98.5; so what that says is a range.

use crate::sim::against::trial_runs::{Trial, Within, fitted, predicted};
use crate::sim::sim_report::Against;
use slat_series::tdp_mmu::{SAVED, VCPUS, WAITING};
use slat_sim::parts::point::Point;
use slat_sim::parts::published_figures::Against as Published;
use slat_sim::parts::setting::{EXCLUSIVE, NONE, READ_WRITE};

use slat_sim::parts::setting::Work;

/// The series' figure is as good as its digits.
const ROUNDED: f64 = 0.005;
/// Read-modify-writes of the address space's lines in a fault.
const MM_LINES: u32 = 6;

/// A machine like the series' whose kernel works so long under its lock.
fn work(mm_lines: u32, under_lock_ns: u64) -> Work {
    Work { handlers: true, mm_lines, under_lock_ns, ..Work::default() }
}

/// Before, and after in two ways.
struct Tried {
    under_lock_ns: u64,
    exclusive: Point,
    saved_by_readers: f64,
    saved_by_none: f64,
}

fn per_fault(point: &Point) -> f64 {
    point.figures[0].value
}

/// The kernel's work under its lock that makes vCPUs wait for this share of their time.
fn fit(trial: &Trial<'_>, mm_lines: u32, waiting: f64) -> Result<Tried, String> {
    let vcpus = f64::from(VCPUS);
    let run = |under_lock_ns, policy| trial.run(trial.costs, VCPUS, policy, &work(mm_lines, under_lock_ns));
    let mut under_lock_ns = 1000;
    let mut exclusive = run(under_lock_ns, EXCLUSIVE)?;
    for _ in 0..3 {
        let held = under_lock_ns as f64;
        // Besides the work that is to be found.
        let alone = per_fault(&exclusive) * (1.0 - exclusive.waiting) - held;
        let busy = per_fault(&exclusive) / vcpus - held;
        // (alone + x) / (vcpus (busy + x)) = 1 - waiting
        let full = (1.0 - waiting) * vcpus;
        under_lock_ns = ((alone - full * busy) / (full - 1.0)).round().max(0.0) as u64;
        exclusive = run(under_lock_ns, EXCLUSIVE)?;
    }
    let saved =
        |policy| Ok::<_, String>(1.0 - per_fault(&run(under_lock_ns, policy)?) / per_fault(&exclusive));
    Ok(Tried { under_lock_ns, saved_by_readers: saved(READ_WRITE)?, saved_by_none: saved(NONE)?, exclusive })
}

/// The share of time that is saved, as it is predicted.
fn saving(what: &str, simulated: f64, detail: &str) -> Against {
    predicted(what, (SAVED, simulated), "share", Within::Points(0.05), detail)
}

/// See the module's header.
pub fn against(trial: &Trial<'_>) -> Result<Vec<Against>, String> {
    let tried = fit(trial, MM_LINES, WAITING)?;
    let [least, most] = [WAITING - ROUNDED, WAITING + ROUNDED].map(|waiting| fit(trial, MM_LINES, waiting));
    let (least, most) = (least?.saved_by_readers, most?.saved_by_readers);
    let no_lines = fit(trial, 0, WAITING)?;
    Ok(vec![
        fitted(
            &format!("time waiting for the MMU lock, {VCPUS} vCPUs, one mutex"),
            WAITING,
            tried.exclusive.waiting,
            "share",
            &format!("chosen for it: {} ns of work under the lock for a fault", tried.under_lock_ns),
        ),
        saving(
            "time saved by faults side by side, reader-writer lock: the series",
            tried.saved_by_readers,
            &format!("{least:.3} to {most:.3} where 98% is 97.5 to 98.5"),
        ),
        saving(
            "the same, if faults shared no line of the address space",
            no_lines.saved_by_readers,
            &format!("with {} ns under the lock", no_lines.under_lock_ns),
        ),
        Published::not("time saved with no lock: slat", (SAVED, tried.saved_by_none), "share", "at least")
            .unless(tried.saved_by_none >= SAVED)
            .into(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat_machine::Costs;
    use slat_sim::scenarios::by_name;

    #[test]
    fn the_lock_is_fitted_by_what_is_waited_for_it_and_what_goes_away_is_predicted() {
        let bench = by_name("demand-paging").unwrap();
        let trial = Trial { bench, costs: &Costs::SERVER, seed: 1 };
        let rows = against(&trial).unwrap();
        assert!(rows[0].fitted && rows[0].reproduced, "{:?}", rows[0]);
        assert!(rows[1..].iter().all(|row| !row.fitted));
        assert!(rows[1].reproduced, "{:?}", rows[1]);
        assert!(rows[3].reproduced, "{:?}", rows[3]);
        // A machine whose lines travel for nothing has nothing left to wait for: the series' figure is not reproduced there.
        let costs = Costs { near: 1.0, far: 1.0, handoff: 1.0, ..Costs::SERVER };
        let tried = fit(&Trial { costs: &costs, ..trial }, MM_LINES, WAITING).unwrap();
        let row = saving("the series", tried.saved_by_readers, "");
        assert!(!row.reproduced, "{row:?}");
    }
}
