//! Every map; every request that cannot be met. The results of scenarios are tested beside them, in both worlds.

use super::{Asked, MOST, Machine, MemslotPerf, Report, Test, micro};
use crate::scenarios::memslot::SCENARIO;
use crate::scenarios::threads_prelude::*;

#[test]
fn every_map_gives_right_answers() {
    let mut report = Report::of(SCENARIO.name, Machine::detect());
    for slots in [2, 3, 300] {
        micro::look_ups(slots, 1, &mut report).unwrap();
        micro::hva_ranges(slots, 1, &mut report).unwrap();
        micro::changes(slots, 1, &mut report).unwrap();
    }
    micro::memory(&mut report).unwrap();
    assert_eq!(report.rows.len(), 3 * (3 + 1 + 1 + 9) + 3);
    for check in report.checks {
        assert!(check.ok, "{}: {}", check.name, check.detail);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_by_flag() {
    let bench = |slots: &[u32], seconds: f64| {
        let tests = Test::value_variants().to_vec();
        let refused =
            MemslotPerf { slots: slots.to_vec(), tests, seconds, kvm: false }.report(&SCENARIO, Asked::ONCE);
        let Err(Error::Usage(line)) = refused else { panic!("{slots:?} and {seconds} s were taken") };
        line
    };
    for slots in [0, 1, MOST + 1, u32::MAX] {
        let line = bench(&[10, slots], 0.0);
        assert!(line.starts_with(&format!("--slots: {slots} ")), "{line}");
    }
    for seconds in [-1.0, 1e9, f64::NAN, f64::INFINITY] {
        assert!(bench(&[10], seconds).starts_with("--seconds: "));
    }
}
