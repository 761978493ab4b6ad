//! The rows and checks of benches as their users meet them.

use crate::common::{bench, checks, compared, report, rows};
use serde_json::Value;

#[test]
fn demand_paging_has_its_rows_in_every_mode() {
    for mode in ["-u none", "--overlap", "--prefilled", "-u missing --single", "-u minor --overlap"] {
        let report = report(&format!("demand-paging -v 3 -b 256K {mode}"));
        assert_eq!(report["params"]["vcpus"], 3);
        for (unit, count) in [("ms", 2), ("k faults/s", 2), ("% of fault time", 2), ("ns", 12)] {
            assert_eq!(compared(&report, &format!("unit={unit};series=tdp-mmu")), count, "{mode}: {unit}");
        }
        assert_eq!(compared(&report, ""), rows(&report, "").len());
        assert!(rows(&report, "").iter().all(|row| row["series_ratio"].is_null()));
        assert_eq!(checks(&report).len(), 16);
    }
}

#[test]
fn each_stage_of_kvms_dirty_log_test_has_its_row() {
    let report = report("dirty-log-perf --tests log -v 2 -b 4M -x 4 -w 30 -i 2 --exits 0 --ring 4K");
    assert_eq!(report["params"]["slots"], 4);
    for pages in ["4k", "2m"] {
        for slat in ["write protection", "D bits", "manual, write protection", "manual, D bits", "ring"] {
            let wanted = format!("test=log;pages={pages};slat={slat};split=eager");
            assert_eq!(compared(&report, &wanted), 8, "{wanted}");
        }
    }
}

#[test]
fn a_dirty_log_measures_what_it_is_asked_for() {
    let only = "dirty-log-perf --tests log -v 1 -b 2M -g --lazy --pages 2m --track writes -i 1 --exits 100";
    let report = report(only);
    // One iteration has no later ones.
    let wanted = "slat=write protection;split=lazy;pages=2m;exit=100 ns";
    assert_eq!((compared(&report, wanted), rows(&report, "").len()), (6, 6));
}

#[test]
fn tests_of_the_engines_dirty_logs_have_their_rows() {
    let report = report(
        "dirty-log-perf --tests enable,harvest,split,disable -v 2 --sparse 64M --dense 4M --harvested 4M --huge 16M --exits 0",
    );
    // A split may be over before the onlooker could look: then there are no latencies.
    for (wanted, count) in [
        ("test=enable", 6),
        ("test=harvest", 18),
        ("test=disable", 6),
        ("test=split;baseline=zap and refault", 6),
        ("test=split;baseline=split by the first store", 6),
    ] {
        assert_eq!(compared(&report, wanted), count, "{wanted}");
    }
}

#[test]
fn ksm_has_the_counts_of_the_series_test() {
    let report = report("ksm-perf --vms 3 -b 2M --mergeable 256K");
    assert_eq!(report["params"]["vms"], 3);
    assert_eq!(compared(&report, "series=change-pte"), rows(&report, "").len());
    let one = |name: &str, figure: &str| rows(&report, &format!("name={name};figure={figure}"))[0];
    let mean = one("mean", "time in MMU code");
    assert!((mean["series_ratio"].as_f64().unwrap() - 1.0748).abs() < 1e-4);
    one("standard deviation", "time in MMU code");
    let all = "median, best and worst";
    one(all, "rate (ratio: slat / baseline)");
    assert_eq!(one(all, "faults for want of a translation inside changes of the entry")["slat"], 0.0);
    // Four stages of 3 × 64 pages, all but one merged, and 8 of each VM's once more in each.
    assert!(one(all, "pages merged")["slat"].as_f64().unwrap() >= f64::from(4 * 3 * (64 + 8) - 1));
    assert_eq!(checks(&report).len(), 16 * 6 + 7 + 3 + 1, "and none of a time");
}

#[test]
fn every_memslot_test_has_its_rows() {
    let report = report("memslot-perf -s 10,100 --seconds 0");
    for test in ["map", "unmap", "unmap-2m", "move-active", "move-inactive", "setup"] {
        for slots in [10, 100] {
            let row = rows(&report, &format!("name={test};slots={slots};series=scalable-memslots"))[0];
            assert!(row["baseline"].as_f64() > Some(0.0) && row["slat"].as_f64() > Some(0.0), "{row}");
            assert!(row["series_ratio"].as_f64() > Some(0.9), "{row}");
        }
    }
    for operation in ["look-up", "hva range", "create", "move", "delete"] {
        assert_eq!(compared(&report, &format!("name=array;operation={operation}")), 2, "{operation}");
    }
    assert!(rows(&report, "unit=bytes/slot").iter().any(|row| row["baseline"].is_null()));
    assert!(checks(&report).len() > 100);
}

#[test]
fn kvm_is_measured_or_said_to_be_missing() {
    let line = "memslot-perf --runs 1 -s 3 --tests hva-range --kvm --json";
    let output = bench(&line.split(' ').collect::<Vec<_>>());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).starts_with("skipped: /dev/kvm");
    let expected = if said { (0, true) } else { (5, false) };
    assert_eq!((rows(&report, "name=KVM").len(), said), expected);
}

#[test]
fn every_policy_of_numa_balancing_has_its_rows_and_loses_nothing() {
    // Each scan sees all memory. Where it sees a part, the vCPUs' turns decide whether a page moves.
    let line = "numa-balancing --passes 2 -a 2000 -e 1000 --scan 256M --runs 1 --json";
    let output = bench(&line.split(' ').collect::<Vec<_>>());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // How many flushes a run needs depends on which threads run together, the more the fewer it makes. The bench itself judges them.
    let is_of_flushes = |check: &&Value| check["name"].as_str().unwrap().starts_with("remote flushes");
    let (flushes, others): (Vec<_>, Vec<_>) = checks(&report).iter().partition(is_of_flushes);
    assert_eq!(flushes.len(), 2);
    assert!(!others.is_empty() && others.iter().all(|check| check["ok"] == true), "{others:?}");
    assert_eq!(output.status.success(), flushes.iter().all(|check| check["ok"] == true));
    let of = |figure: &str, device: &str| rows(&report, &format!("mean of={figure};device={device}"));
    for device in ["none", "pins all memory"] {
        let times = of("guest wall time", device);
        let names: Vec<_> = times.iter().map(|row| row["name"].as_str().unwrap()).collect();
        let locked = ["range, yielding: KVM", "page, locked: KVM with the series"];
        let others = ["range: before", "page: the series", "page-batched by 2M", "no balancing"];
        assert_eq!(names, [&locked[..], &others].concat());
        for figure in ["remote flushes", "unmap calls", "hint faults", "pages moved to their node"] {
            assert_eq!(of(figure, device).len(), 5, "{figure}");
        }
    }
    // Beside a device the range policy goes on unmapping, and nothing moves for it.
    for at in [0, 2] {
        let range = |figure| of(figure, "pins all memory")[at]["baseline"].as_f64().unwrap();
        assert!(range("remote flushes") > 0.0 && range("unmap calls") > 0.0);
        assert_eq!((range("hint faults"), range("pages moved to their node")), (0.0, 0.0));
    }
}

#[test]
fn the_counts_of_reclaim_agree() {
    let report = report("reclaim -a 1000 --limit 30,60");
    assert_eq!(report["params"]["runs"], 1);
    assert_eq!(compared(&report, ""), rows(&report, "").len());
    // Faults beside a slow device are no claim of the series.
    let beside =
        rows(&report, "name=no slow device").into_iter().filter(|row| row["series"] != "mglru-aging");
    assert_eq!(beside.count(), 4);
    for guest in ["cc1", "sort", "boot", "phases"] {
        for limit in ["30%", "60%"] {
            let figure = |name: &str, figure: &str| {
                let mut all = rows(&report, &format!("name={name};guest={guest};limit={limit}"));
                all.retain(|row| row["params"]["figure"].as_str().unwrap().starts_with(figure));
                assert_eq!(all.len(), 1, "{guest}, {limit}, {name}, {figure}");
                (all[0]["baseline"].as_f64().unwrap(), all[0]["slat"].as_f64().unwrap())
            };
            let before = "walk-secondary off: before";
            let (off, on) = figure(before, "pages brought in again");
            let ((lru, on_again), (belady, _)) =
                (figure("exact LRU", "pages brought"), figure("Belady's optimum", "pages brought"));
            assert!((on_again - on).abs() < 0.5 && belady <= lru && belady <= on && belady <= off);
            for what in ["mean rank", "pages that were to go", "aging passes", "guest wall time"] {
                figure(before, what);
            }
            figure("no limit", "guest wall time");
        }
    }
    assert_eq!(checks(&report).len(), 4 * 2 * 8 + 1, "the bars are for whole programs");
}

#[test]
fn a_zap_has_its_rows() {
    let report = report("zap --sizes 4M,16M -v 2");
    assert_eq!(report["params"]["vcpus_beside"], 2);
    for size in ["4M", "16M"] {
        for pages in ["dense", "sparse"] {
            for (name, baseline) in [
                ("unhook: total", "leaf by leaf"),
                ("zap all: total", "leaf by leaf"),
                ("unhook: collect", "--mmu-lock exclusive"),
                ("leaf by leaf: longest wait of a memslot", "--mmu-lock exclusive"),
            ] {
                let wanted = format!("name={name};size={size};pages={pages};baseline={baseline}");
                assert_eq!(compared(&report, &wanted), 1, "{wanted}");
            }
        }
    }
    // Leaf tables only: the range has no table above them for itself.
    let freed = rows(&report, "name=unhook: tables freed").into_iter();
    assert!(freed.map(|row| row["slat"].as_f64().unwrap()).eq([2.0, 2.0, 8.0, 8.0]));
}

#[test]
fn a_zap_maps_what_it_is_asked_for() {
    for (flags, expected) in
        [("--dense", [true, false]), ("--sparse", [false, true]), ("--dense --sparse", [true, true])]
    {
        let report = report(&format!("zap --sizes 2M {flags}"));
        let has = ["pages=dense", "pages=sparse"].map(|pages| !rows(&report, pages).is_empty());
        assert_eq!(has, expected, "{flags}");
    }
}

#[test]
fn faults_beside_invalidations_have_their_rows() {
    for (flags, vcpus, locks) in [
        ("-b 8M", 1, &["read-write", "exclusive"][..]),
        ("-b 16M -p 4k -v 2 --invalidators 3 --range 32K --host-sleeps-ns 100", 2, &["exclusive"]),
        ("-b 2G -p 2m -v 2 --invalidators 3 --range 32K --host-sleeps-ns 100", 2, &["exclusive"]),
        ("-b 2G -p 1g -v 2 --invalidators 3 --range 32K --host-sleeps-ns 100", 2, &["exclusive"]),
    ] {
        let report = report(&format!("invalidate {flags}"));
        let invalidators = if vcpus == 1 { 1 } else { 3 };
        assert_eq!(
            (&report["params"]["vcpus"], &report["params"]["invalidators"]),
            (&vcpus.into(), &invalidators.into())
        );
        for lock in locks {
            for beside in ["elsewhere, mapped", "elsewhere, holes", "same 2M"] {
                let wanted = format!("name=slat --mmu-lock {lock};beside={beside}");
                assert_eq!(compared(&report, &wanted), 7, "{flags}: {wanted}");
            }
            assert_eq!(compared(&report, &format!("name=slat --mmu-lock {lock};beside=none")), 1);
        }
    }
}
