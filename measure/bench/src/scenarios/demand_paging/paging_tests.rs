//! The bench's own checks: they hold, and each finds what it is for.

use super::*;

fn bench(uffd: Uffd) -> DemandPaging {
    DemandPaging {
        vcpus: Some(3),
        bytes: 40 * PAGE_SIZE,
        overlap: false,
        uffd,
        single: false,
        prefilled: false,
    }
}

/// Names of the checks that one sample fails.
fn failed(job: &Job, lock: MmuLock) -> Vec<String> {
    let sample = job.sample(lock).unwrap();
    let checks = checks("slat", &[sample]);
    assert_eq!(checks.len(), 6);
    checks.into_iter().filter(|check| !check.ok).map(|check| check.name).collect()
}

#[test]
fn every_check_holds_in_every_mode() {
    for uffd in [Uffd::None, Uffd::Missing, Uffd::Minor] {
        for overlap in [false, true] {
            for other in [false, true] {
                let (single, prefilled) = (other && uffd != Uffd::None, other && uffd == Uffd::None);
                let job = DemandPaging { overlap, single, prefilled, ..bench(uffd) }.job().unwrap();
                assert_eq!(failed(&job, MmuLock::None), [""; 0], "{uffd:?} {overlap} {other}");
            }
        }
    }
}

#[test]
fn negative_control_handlers_that_give_something_else_are_found() {
    for uffd in [Uffd::Missing, Uffd::Minor] {
        let job = Job { gives: |gfn| u64::from(gfn != Gfn(7)) * given(gfn), ..bench(uffd).job().unwrap() };
        assert_eq!(
            failed(&job, MmuLock::None),
            [
                "slat: vCPUs found in each page what it was given",
                "slat: every page is mapped and holds what it has to"
            ]
        );
    }
}

#[test]
fn negative_control_a_share_of_waiting_that_is_too_large_is_found() {
    let job = bench(Uffd::None).job().unwrap();
    let mut sample = job.sample(MmuLock::None).unwrap();
    assert_eq!(sample.lock_wait_ns, 0);
    sample.lock_wait_ns = (sample.fault_ns.mean() * sample.fault_ns.len() as f64 / 40.0) as u64;
    let found = checks("slat", &[sample]).into_iter().find(|check| !check.ok).unwrap();
    assert!(found.name.contains("waiting for the MMU lock") && found.detail.starts_with("2."), "{found:?}");
}

#[test]
fn only_the_seeds_own_comparison_carries_its_figure() {
    let claims = |bench: &DemandPaging| {
        let job = bench.job().unwrap();
        let laps = Lineup::run(1, ENTRANTS, |_| Ok(small_sample())).unwrap();
        let rows = bench.rows(&job, &laps);
        assert!(rows.iter().all(|row| row.series.as_deref() == Some("tdp-mmu")));
        rows.iter().filter(|row| row.series_ratio.is_some()).map(|row| row.name.clone()).collect::<Vec<_>>()
    };
    let published = DemandPaging { vcpus: Some(416), bytes: PAGE_SIZE, ..bench(Uffd::Missing) };
    assert_eq!(claims(&published), ["one mutex: before"]);
    assert_eq!(claims(&DemandPaging { single: true, ..published }), [""; 0]);
    assert_eq!(claims(&bench(Uffd::Missing)), [""; 0]);
}

fn small_sample() -> Sample {
    let job = DemandPaging { vcpus: Some(1), ..bench(Uffd::None) }.job().unwrap();
    job.sample(MmuLock::None).unwrap()
}
