//! Bytes: what slots cost in memory. The same in every run, so the bars are checks.

use crate::scenarios::memslot::array::array_record::IDS;
use crate::scenarios::memslot::micro::slot_maps::{Cells, Map as _};
use crate::scenarios::memslot::slot_design::empty_vm;
use crate::scenarios::memslot::slot_layout::Layout;
use crate::scenarios::threads_prelude::*;
use slat::slots::SlotMap;

/// A large VM: 12 TiB in 64 slots.
const LARGE: (u64, u32) = (12 << 40, 64);

pub fn measure(report: &mut Report) -> Result<(), Error> {
    let mut add = |name: &str, params, unit, value: f64, bar: f64| {
        let row = Row::alone(name, params, unit, &Series::new(vec![value]));
        report.rows.push(row.answering(PatchSeries::ScalableMemslots));
        let detail = format!("{value:.1} {unit}, at most {bar}");
        report.checks.push(Check { name: name.into(), ok: value <= bar, detail });
    };

    let each = |map: &SlotMap| map.bytes() as f64 / f64::from(IDS);
    let at_slots = params! { "memory of": "slots", "slots": IDS };
    let map = SlotMap::build(Cells(IDS).slots());
    add("set up in one transaction", at_slots.clone(), "bytes/slot", each(&map), 150.0);
    let mut map = SlotMap::default();
    Cells(IDS).slots().try_for_each(|slot| map.commit(|tx| tx.create(slot)))?;
    add("set up one by one", at_slots, "bytes/slot", each(&map), 150.0);

    let (bytes, count) = LARGE;
    let slots = || Layout::new(count, bytes / PAGE_SIZE, 1).slots();
    let vm = empty_vm(count)?;
    vm.memory().commit(&mut idle()?, |tx| slots().try_for_each(|slot| tx.create(slot)))?;
    // A VM does not tell how much its slots take: these are the same slots.
    let lent = vm.stats().lent_bytes as f64 + SlotMap::build(slots()).bytes() as f64;
    let large = params! { "memory of": "an empty VM of 12 TiB", "slots": count };
    add("tables and slots", large, "KiB", lent / 1024.0, 1024.0);
    Ok(())
}
