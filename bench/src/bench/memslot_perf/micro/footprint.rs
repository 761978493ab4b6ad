//! Bytes: what slots cost in memory. The same in every run, so the bars are checks.

use super::{Cells, IDS};
use crate::bench::harness::Series;
use crate::bench::memslot_perf::empty_vm;
use crate::bench::report::{Check, Report, Row, params};
use slat::slots::SlotMap;
use slat::{Gfn, Hva, PAGE_SIZE, Slot, SlotId};
use slat_cli::error::Error;
use slat_cli::thread::idle;
use slat_series::PatchSeries;

/// A large VM: 12 TiB in 64 slots.
const LARGE: (u64, u32) = (12 << 40, 64);

pub fn measure(report: &mut Report) -> Result<(), Error> {
    let mut add = |name: &str, params, unit, value: f64, bar: f64| {
        report.rows.push(
            Row::alone(name, params, unit, &Series::new(vec![value]))
                .answering(PatchSeries::ScalableMemslots),
        );
        let ok = value <= bar;
        report.checks.push(Check {
            name: name.into(),
            ok,
            detail: format!("{value:.1} {unit}, at most {bar}"),
        });
    };

    let each = |map: &SlotMap| map.bytes() as f64 / f64::from(IDS);
    let mut map = SlotMap::default();
    map.commit(|tx| Cells(IDS).slots().try_for_each(|slot| tx.create(slot)))?;
    let at_slots = params! { "memory of": "slots", "slots": IDS };
    add("set up in one transaction", at_slots.clone(), "bytes/slot", each(&map), 150.0);
    let mut map = SlotMap::default();
    Cells(IDS).slots().try_for_each(|slot| map.commit(|tx| tx.create(slot)))?;
    add("set up one by one", at_slots, "bytes/slot", each(&map), 150.0);

    let (bytes, count) = LARGE;
    let pages = bytes / PAGE_SIZE / u64::from(count);
    let slots = || {
        (0..count).map(|nth| {
            let first = u64::from(nth) * pages;
            Slot::new(SlotId(nth), Gfn(first), pages, Hva((1 << 46) + first * PAGE_SIZE))
        })
    };
    let vm = empty_vm(count)?;
    vm.slots().commit(&mut idle()?, |tx| slots().try_for_each(|slot| tx.create(slot)))?;
    // A VM does not tell how much its slots take: these are the same slots.
    let mut map = SlotMap::default();
    map.commit(|tx| slots().try_for_each(|slot| tx.create(slot)))?;
    let lent = vm.stats().lent_bytes as f64 + map.bytes() as f64;
    let large = params! { "memory of": "an empty VM of 12 TiB", "slots": count };
    add("tables and slots", large, "KiB", lent / 1024.0, 1024.0);
    Ok(())
}
