//! Properties of virtual time: the same outcome every time, and effects of hundreds of CPUs.

#[path = "../../../slat/tests/engine/common/thorough.rs"]
mod thorough;

use slat_sim::parts::point::Point;
use slat_sim::parts::setting::{Column, EXCLUSIVE, NONE, READ_WRITE, Setting, Work};
use slat_sim::scenario::Scenario;
use slat_sim::scenarios::{ALL, access_tracking, demand_paging, host_faults, ksm, memslot, numa};
use slat_sim::world::Costs;
use std::collections::BTreeSet;
use thorough::thorough;

/// A quick run, of which every check holds.
fn run(bench: &Scenario, policy: Column, vcpus: u32, seed: u64) -> Point {
    run_with(bench, policy, vcpus, seed, Work::default())
}

/// The same with other work around the engine.
fn run_with(bench: &Scenario, policy: Column, vcpus: u32, seed: u64, work: Work) -> Point {
    checked(bench, &Setting { costs: &Costs::SERVER, vcpus, column: policy, quick: true, seed, work })
}

/// A run of which every check holds.
fn checked(bench: &Scenario, setting: &Setting<'_>) -> Point {
    let point = (bench.simulated.run)(setting).unwrap();
    let failed: Vec<_> = point.checks.iter().filter(|check| !check.ok).collect();
    assert!(failed.is_empty(), "{} {} {}: {failed:?}", bench.name, setting.vcpus, setting.column.name);
    point
}

/// The first figure.
fn figure(point: &Point) -> f64 {
    point.figures[0].value
}

#[test]
fn two_runs_are_the_same_to_the_last_figure() {
    for &bench in ALL {
        for &vcpus in thorough(&[1, 2, 3, 4, 5, 6, 7, 8][..], &[1, 2, 5]) {
            for &policy in bench.simulated.columns {
                let [first, second] = [1, 1].map(|seed| format!("{:?}", run(bench, policy, vcpus, seed)));
                assert_eq!(first, second, "{} {vcpus} {}", bench.name, policy.name);
            }
        }
    }
}

#[test]
fn each_line_that_cpus_share_has_a_name() {
    let shared = |bench: &Scenario, policy| run(bench, policy, 8, 1).stats.lines;
    let lines =
        ALL.iter().flat_map(|bench| bench.simulated.columns.iter().flat_map(|&policy| shared(bench, policy)));
    let unnamed: BTreeSet<_> = lines.filter(|line| line.name == "elsewhere").map(|line| line.site).collect();
    assert_eq!(unnamed, BTreeSet::new());
}

#[test]
fn negative_control_another_seed_is_another_run() {
    let [first, second] = [1, 2].map(|seed| run(&demand_paging::SCENARIO, EXCLUSIVE, 8, seed));
    assert_ne!(format!("{first:?}"), format!("{second:?}"));
}

#[test]
fn work_around_the_engine_costs_what_it_says() {
    let alone = |policy, work| figure(&run_with(&demand_paging::SCENARIO, policy, 1, 1, work));
    let (costs, usual) = (&Costs::SERVER, Work::default());
    let wakes = 2.0 * (costs.wake + costs.wake_arrives);
    let rmw = costs.rmw + costs.step;
    for policy in [EXCLUSIVE, NONE] {
        let before = alone(policy, usual.clone());
        for (what, work, more) in [
            ("guest", Work { guest_ns: usual.guest_ns + 50, ..usual.clone() }, 50.0),
            ("exit", Work { exit_ns: usual.exit_ns + 300, ..usual.clone() }, 300.0),
            ("host", Work { host_ns: usual.host_ns + 300, ..usual.clone() }, 300.0),
            ("under the lock", Work { under_lock_ns: 1000, ..usual.clone() }, 1000.0),
            ("shared lines", Work { mm_lines: 3, ..usual.clone() }, 3.0 * rmw),
            ("handlers", Work { handlers: true, ..usual.clone() }, wakes + usual.handler_ns as f64),
        ] {
            let after = alone(policy, work);
            assert!((after - before - more).abs() < 2.0, "{what}, {}: {before} to {after}", policy.name);
        }
        // Asked in the middle of a fault, a baseline takes its lock three times.
        let after = alone(policy, Work { host_first: false, ..usual.clone() });
        let locks = if policy == EXCLUSIVE { 4.0 * rmw } else { 0.0 };
        assert!(
            after - before > locks && after - before < locks + costs.full_path + 50.0,
            "{before} to {after}"
        );
        // Still once for each page.
        let under = Work { host_first: false, under_lock_ns: 1000, ..usual.clone() };
        assert!((alone(policy, under) - after - 1000.0).abs() < 2.0);
    }
}

/// The TDP MMU series' claim. The simulation shows it on 416 processors.
#[test]
fn at_416_vcpus_one_lock_is_all_that_there_is_and_without_it_no_vcpu_waits() {
    let [exclusive, none] = [EXCLUSIVE, NONE].map(|policy| run(&demand_paging::SCENARIO, policy, 416, 1));
    let alone = run(&demand_paging::SCENARIO, NONE, 1, 1);
    assert!(exclusive.waiting >= 0.9, "{}", exclusive.waiting);
    assert!(exclusive.stats.lines[0].site.starts_with("sync/baselines.rs"), "{:?}", exclusive.stats.lines[0]);
    assert!(none.stats.wall_ns as f64 <= 0.11 * exclusive.stats.wall_ns as f64);
    assert!(figure(&none) <= 1.1 * figure(&alone), "{} and {}", figure(&none), figure(&alone));
}

/// Nothing that slat-mm does for each fault is shared, and few vCPUs share the lock that each takes for every 32nd frame. What lies
/// beside the pool of table pages is on other lines. With all frames zeroed ahead faults are as short as they can be; where they are
/// not, memory has all the bandwidth that zeroing wants, or that would be what the vCPUs share.
#[test]
fn new_memory_on_slat_mm_costs_many_vcpus_about_what_it_costs_one() {
    let ample = Costs { bandwidth: 1000.0, ..Costs::SERVER };
    for (zeroing, costs) in [(false, &Costs::SERVER), (true, &ample)] {
        let cost = |vcpus| {
            let work = Work { zeroing, ..Work::default() };
            let setting = Setting { costs, vcpus, column: NONE, quick: false, seed: 1, work };
            let point = (host_faults::SCENARIO.simulated.run)(&setting).unwrap();
            assert!(point.checks.iter().all(|check| check.ok), "{:?}", point.checks);
            figure(&point)
        };
        let [alone, at_64, at_112, at_416] = [1, 64, 112, 416].map(cost);
        println!("zeroing {zeroing}: {alone}, {at_64}, {at_112}, {at_416} ns");
        assert!(at_64.max(at_112) <= 1.1 * alone, "{alone}, {at_64} and {at_112}");
        assert!(at_416 <= 1.3 * alone, "{alone} and {at_416}");
    }
}

/// The MGLRU aging series'.
#[test]
fn at_112_vcpus_a_pass_without_the_lock_is_shorter_and_costs_the_guest_nothing() {
    let at_112 = |policy| run(&access_tracking::SCENARIO, policy, 112, 1);
    let pass =
        |point: &Point| point.figures.iter().find(|figure| figure.name == "average pass").unwrap().value;
    let [locked, lockless, slat] = [
        access_tracking::aging_run::LOCKED,
        access_tracking::aging_run::LOCKLESS,
        access_tracking::aging_run::SLAT,
    ]
    .map(at_112);
    assert!(pass(&locked) >= 5.9 * pass(&lockless) && pass(&locked) >= 5.9 * pass(&slat));
    assert!(figure(&slat) <= 1.02 * figure(&at_112(access_tracking::aging_run::SLAT_NO_AGING)));
    assert!(
        figure(&locked) > 1.02 * figure(&at_112(access_tracking::aging_run::NO_AGING)),
        "the lock does cost"
    );
}

/// The figure of that name.
fn named(point: &Point, name: &str) -> f64 {
    point.figures.iter().find(|figure| figure.name == name).unwrap().value
}

/// The scalable memslots series, and who pays for it that a slot moves.
#[test]
fn at_416_vcpus_guests_hardly_notice_that_a_memslot_moves_unless_they_share_a_lock() {
    let access = |policy, vcpus| named(&run(&memslot::SCENARIO, policy, vcpus, 1), "ns per access");
    let alone = access(NONE, 1);
    assert!(access(NONE, 416) <= 2.0 * alone);
    for policy in [EXCLUSIVE, READ_WRITE] {
        assert!(access(policy, 416) >= 10.0 * alone, "{}", policy.name);
    }
}

/// The NUMA protection series' worry: a flush for each page. One flush for many pages costs far less, and no more than whole ranges do. Under
/// both, vCPUs that ask for the pages of one range wait for its page lock in slat-mm.
#[test]
fn at_416_vcpus_balancing_with_one_flush_for_many_pages_is_as_cheap_as_by_ranges() {
    // A quick run is too short for the two that wait most.
    let cost = |policy| {
        let (costs, work) = (&Costs::SERVER, Work::default());
        figure(&checked(
            &numa::SCENARIO,
            &Setting { costs, vcpus: 416, column: policy, quick: false, seed: 1, work },
        ))
    };
    let [range, yielding, page, batched] = [
        numa::used_pages::RANGE,
        numa::used_pages::RANGE_YIELDING,
        numa::used_pages::PAGE,
        numa::used_pages::PAGE_BATCHED,
    ]
    .map(cost);
    assert!(page < yielding, "what the series says: {page} and {yielding}");
    assert!(batched < 0.8 * page && batched <= 1.02 * range, "{batched}, {range} and {page}");
}

/// The change-pte series: what it says is so where guests mostly rest, where many run, and where many pages go together; it is not where one
/// guest always runs.
#[test]
fn reasons_that_are_heeded_page_by_page_pay_unless_each_flush_waits_for_a_guest() {
    let points: Vec<Point> = [1, 416]
        .into_iter()
        .flat_map(|vcpus| {
            ksm::SCENARIO.simulated.columns.iter().map(move |&policy| run(&ksm::SCENARIO, policy, vcpus, 1))
        })
        .collect();
    let rows = (ksm::SCENARIO.simulated.published)(&points);
    let reproduced: Vec<_> = rows.iter().map(|row| row.reproduced).collect();
    assert_eq!(reproduced, [true, false, true, true, true, true, true, true], "{rows:?}");
}
