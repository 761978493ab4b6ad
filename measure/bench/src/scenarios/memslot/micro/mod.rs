//! The maps under the scenarios, by themselves: one thread, one owner, no vCPU and no grace period.
//!
//! | entrant | what it is |
//! |---|---|
//! | slat | `SlotMap`, whose versions a VM publishes |
//! | array | the baseline's array; a change is a copy, a deletion and a move are two |
//! | `BTreeMap` | three of the standard library's (by gfn, id, hva), edited in place: no thread can read meanwhile |
//! | vm-memory | its `GuestRegionCollection`, which makes a new collection for each change |
//!
//! Slots of 16 pages lie in a row with gaps as large between them ([`Cells`]). All maps have the same slots, get the
//! same requests, and refuse the same (an id that is taken, an overlap).

mod map_bytes;
mod map_changes;
mod map_entrants;
mod map_look_ups;
mod slot_maps;

pub use crate::scenarios::memslot::micro::map_bytes::measure as memory;
use crate::scenarios::memslot::micro::map_entrants::{Copied, Regions, Trees};
use crate::scenarios::memslot::micro::slot_maps::{Cells, Entrant, Map as _};
use crate::scenarios::threads_prelude::*;
use slat::slots::SlotMap;

/// Finds slots by frame, without hints and with them.
pub fn look_ups(slots: u32, runs: u32, report: &mut Report) -> Result<(), Error> {
    let cells = Cells(slots);
    let entrants = [
        map_look_ups::by_gfn::<SlotMap>(cells),
        map_look_ups::by_gfn::<Copied>(cells),
        map_look_ups::by_gfn::<Trees>(cells),
        map_look_ups::by_gfn::<Regions>(cells),
    ];
    compare(&["look-up"], cells, runs, entrants, report)?;
    let entrants = [map_look_ups::by_hint(cells)?, map_look_ups::by_gfn::<Copied>(cells)];
    compare(&["look-up, a hint per slot"], cells, runs, entrants, report)
}

/// Finds frames by host address.
pub fn hva_ranges(slots: u32, runs: u32, report: &mut Report) -> Result<(), Error> {
    let cells = Cells(slots);
    let add = |(_, pages), gfns: Span<Gfn>| (gfns.start, pages + gfns.len());
    let by_tree = move |map: &SlotMap, hvas| {
        let mut found = (Gfn(0), 0);
        map.over_hvas(hvas, |gfns| found = add(found, gfns));
        found
    };
    let by_array = move |map: &Copied, hvas| map.now.over_hvas(hvas).fold((Gfn(0), 0), add);
    // A query of the array looks at each slot.
    let queries = ((1 << 24) / slots as usize).clamp(256, 1 << 16);
    let entrants =
        [map_look_ups::by_hva(cells, usize::MAX, by_tree), map_look_ups::by_hva(cells, queries, by_array)];
    compare(&["hva range"], cells, runs, entrants, report)
}

/// Creates, moves and deletes slots.
pub fn changes(slots: u32, runs: u32, report: &mut Report) -> Result<(), Error> {
    let cells = Cells(slots);
    let entrants = [
        map_changes::entrant::<SlotMap>(cells),
        map_changes::entrant::<Copied>(cells),
        map_changes::entrant::<Trees>(cells),
        map_changes::entrant::<Regions>(cells),
    ];
    compare(&["create", "move", "delete"], cells, runs, entrants, report)
}

/// Samples those entrants that can have so many slots; the first is slat.
fn compare(
    operations: &[&str],
    cells: Cells,
    runs: u32,
    entrants: impl IntoIterator<Item = Option<Entrant>>,
    report: &mut Report,
) -> Result<(), Error> {
    let laps = Lineup::run(runs, entrants.into_iter().flatten(), |entrant| Ok((entrant.sample)()))?;
    for (nth, operation) in operations.iter().enumerate() {
        let mut all =
            laps.each().map(|(who, samples)| (who.name, Series::of(samples, |sample| sample.ns[nth])));
        let Some((_, slat)) = all.next() else { continue };
        let mut others: Vec<_> = all.map(|(name, series)| (name, Some(series))).collect();
        if others.is_empty() {
            others.push(("alone", None));
        }
        for (name, baseline) in others {
            let params = params! { "operation": operation, "slots": cells.0 };
            let answers = ["alone", Copied::NAME].contains(&name).then_some(PatchSeries::ScalableMemslots);
            report.rows.push(Row::against(name, params, "ns", baseline, &slat).answering(answers));
        }
    }
    let who = |entrant: &Entrant| format!("{}, {}", entrant.name, operations.join(", "));
    report.checks.extend(laps.checks(&format!(" at {} slots", cells.0), who, |sample| &sample.right));
    Ok(())
}
