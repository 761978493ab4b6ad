//! Bytes: what slots cost in memory. The same in every run, so the bars are checks.

use super::{Cells, Findings, IDS};
use crate::bench::harness::Series;
use crate::bench::memslot_perf::empty_vm;
use crate::bench::report::{Check, Row, params};
use slat::slots::SlotMap;
use slat::{Gfn, Hva, Idle, PAGE_SIZE, Slot, SlotId};
use slat_cli::error::Error;
use slat_series::PatchSeries;

/// A large VM: 12 TiB in 64 slots.
const LARGE: (u64, u32) = (12 << 40, 64);

pub fn measure(findings: &mut Findings) -> Result<(), Error> {
    let mut report = |name: &str, params, unit, value: f64, bar: f64| {
        findings.rows.push(
            Row::alone(name, params, unit, &Series::new(vec![value]))
                .answering(PatchSeries::ScalableMemslots),
        );
        let ok = value <= bar;
        findings.checks.push(Check {
            name: name.into(),
            ok,
            detail: format!("{value:.1} {unit}, at most {bar}"),
        });
    };

    let each = |map: &SlotMap| map.bytes() as f64 / f64::from(IDS);
    let mut map = SlotMap::default();
    map.commit(|tx| Cells(IDS).slots().try_for_each(|slot| tx.create(slot)))?;
    let at_slots = params! { "memory of": "slots", "slots": IDS };
    report("set up in one transaction", at_slots.clone(), "bytes/slot", each(&map), 150.0);
    let mut map = SlotMap::default();
    Cells(IDS).slots().try_for_each(|slot| map.commit(|tx| tx.create(slot)))?;
    report("set up one by one", at_slots, "bytes/slot", each(&map), 150.0);

    let (bytes, count) = LARGE;
    let pages = bytes / PAGE_SIZE / u64::from(count);
    let slots = || {
        (0..count).map(|nth| {
            let first = u64::from(nth) * pages;
            Slot::new(SlotId(nth), Gfn(first), pages, Hva((1 << 46) + first * PAGE_SIZE))
        })
    };
    let vm = empty_vm(count)?;
    let idle = &mut Idle::take().ok_or_else(|| Error::Machine("this thread runs a vCPU".into()))?;
    vm.slots().commit(idle, |tx| slots().try_for_each(|slot| tx.create(slot)))?;
    // A VM does not tell how much its slots take: these are the same slots.
    let mut map = SlotMap::default();
    map.commit(|tx| slots().try_for_each(|slot| tx.create(slot)))?;
    let lent = vm.stats().lent_bytes as f64 + map.bytes() as f64;
    let large = params! { "memory of": "an empty VM of 12 TiB", "slots": count };
    report("tables and slots", large, "KiB", lent / 1024.0, 1024.0);
    Ok(())
}
