//! The bench's own checks: they hold, and what is impossible is refused.

use super::*;
use crate::scenarios::host_faults::SCENARIO;

fn bench() -> HostFaults {
    HostFaults { bytes: 4 << 20, threads: vec![1, 2], changed: 2 << 20 }
}

#[test]
fn every_check_but_luck_holds() {
    let report = bench().report(&SCENARIO, Asked::ONCE).unwrap();
    // With fewer pages than a moment takes, a change may come too late; two threads may meet at a lock.
    let luck = ["it was made meanwhile", "no fault waited for a lock"];
    let failed = |check: &&Check| !check.ok && !luck.iter().any(|luck| check.name.ends_with(luck));
    assert_eq!(report.checks.iter().find(failed).map(|check| &check.name), None);
    assert!(report.rows.iter().any(|row| row.name == "slat on slat-mm: 1 thread, 2 together"));
}

#[test]
fn negative_control_pages_of_another_size_are_found() {
    let arena = arena(8 << 20, 1).unwrap();
    let job = Job { threads: 1, bytes: 4 << 20, page: Level::K4 };
    let mut sample = new_memory::slat_sample(&job, &arena).unwrap();
    let failed = |sample: &Sample| {
        let checks = Check::tallied(SLAT, "", sample.tally.iter());
        checks.iter().filter(|check| !check.ok).count()
    };
    assert_eq!(failed(&sample), 0);
    for nth in [0, 3] {
        sample.tally[nth].1[0] -= 1;
    }
    assert_eq!(failed(&sample), 2);
}
