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

mod map_entrants;

use super::array::IDS;
use super::micro::map_entrants::{Cells, Copied, Entrant, Map, PAGES, Regions, Sample, Trees, right};
use super::slot_design::{Layout, empty_vm};
use crate::scenarios::threads_prelude::*;
use slat::slots::{Hint, SlotMap};

/// Finds slots by frame, without hints and with them.
pub fn look_ups(slots: u32, runs: u32, report: &mut Report) -> Result<()> {
    let cells = Cells(slots);
    let entrants =
        [by_gfn::<SlotMap>(cells), by_gfn::<Copied>(cells), by_gfn::<Trees>(cells), by_gfn::<Regions>(cells)];
    compare(&["look-up"], cells, runs, entrants, report)?;
    let entrants = [by_hint(cells)?, by_gfn::<Copied>(cells)];
    compare(&["look-up, a hint per slot"], cells, runs, entrants, report)
}

/// Finds frames by host address.
pub fn hva_ranges(slots: u32, runs: u32, report: &mut Report) -> Result<()> {
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
    let entrants = [by_hva(cells, usize::MAX, by_tree), by_hva(cells, queries, by_array)];
    compare(&["hva range"], cells, runs, entrants, report)
}

/// Creates, moves and deletes slots.
pub fn changes(slots: u32, runs: u32, report: &mut Report) -> Result<()> {
    let cells = Cells(slots);
    let entrants = [
        entrant::<SlotMap>(cells),
        entrant::<Copied>(cells),
        entrant::<Trees>(cells),
        entrant::<Regions>(cells),
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
) -> Result<()> {
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

// Bytes: what slots cost in memory. The same in every run, so the bars are checks.

/// A large VM: 12 TiB in 64 slots.
const LARGE: (u64, u32) = (12 << 40, 64);

pub fn memory(report: &mut Report) -> Result<()> {
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
    let vm = empty_vm(count).map_err(Error::Machine)?;
    vm.memory().commit(&mut idle()?, |tx| slots().try_for_each(|slot| tx.create(slot)))?;
    // A VM does not tell how much its slots take: these are the same slots.
    let lent = vm.stats().lent_bytes as f64 + SlotMap::build(slots()).bytes() as f64;
    let large = params! { "memory of": "an empty VM of 12 TiB", "slots": count };
    add("tables and slots", large, "KiB", lent / 1024.0, 1024.0);
    Ok(())
}

// Single changes at random places: some slots more are created, moved, and deleted again.

/// Slots that come and go together, at most: enough that the clock does not count.
const BATCH: u32 = 64;
/// Time of one sample, unless a single batch takes longer.
const TIME: Duration = Duration::from_millis(10);

/// A map with a batch less than it can have, and batches on end.
pub fn entrant<M: Map>(cells: Cells) -> Option<Entrant> {
    if cells.0 > M::MOST {
        return None;
    }
    let batch = BATCH.min(cells.0 / 2);
    let staying = Cells(cells.0 - batch);
    let map = RefCell::new(M::build(staying.slots()));
    let mut gaps: Vec<Gfn> = (0..cells.0).map(Cells::gap).collect();
    shuffle(&mut gaps);
    // Pairs of a place to come to and a place to go to.
    let places: Vec<(Slot, Gfn)> = (gaps.chunks_exact(2).zip(0..))
        .map(|(pair, nth)| (Cells::at(staying.0 + nth % batch, pair[0]), pair[1]))
        .collect();
    let frames = staying.frames();
    let sample = move || sample(&mut *map.borrow_mut(), &frames, &places, batch as usize);
    Some(Entrant { name: M::NAME, sample: Box::new(sample) })
}

fn sample<M: Map>(map: &mut M, frames: &[Gfn], places: &[(Slot, Gfn)], batch: usize) -> Sample {
    let mut times = [Duration::ZERO; 3];
    let (mut done, mut asked) = (0, 0);
    let began = Instant::now();
    for places in places.chunks_exact(batch).cycle() {
        let mut timed = |what: usize, operation: &mut dyn FnMut(&Slot, Gfn) -> bool| {
            let start = Instant::now();
            done += places.iter().filter(|(slot, to)| operation(slot, *to)).count() as u64;
            times[what] += start.elapsed();
        };
        timed(0, &mut |slot, _| map.create(slot));
        timed(1, &mut |slot, to| map.move_to(slot, to));
        timed(2, &mut |slot, to| map.delete(&Slot::new(slot.id, to, slot.gfns.len(), slot.hva)));
        asked += 3 * batch as u64;
        if began.elapsed() >= TIME {
            break;
        }
    }
    let of_each = asked as f64 / 3.0;
    let [found, looked_for] = right(frames, |gfn| map.find(gfn));
    let gone =
        places.iter().filter(|(slot, to)| map.find(slot.gfns.start).or(map.find(*to)).is_none()).count();
    let right = [done + found + gone as u64, asked + looked_for + places.len() as u64];
    Sample::new(times.map(|time| time.as_nanos() as f64 / of_each), right)
}

// Look-ups, each of which depends on the answer to the one before: the latency of one.

/// An entrant with a map of these slots, if the map can have so many; `sample` asks it about frames.
fn with_map<M: Map>(cells: Cells, sample: impl Fn(&M, &[Gfn]) -> Sample + 'static) -> Option<Entrant> {
    let entrant = || {
        let (map, frames) = (M::build(cells.slots()), cells.frames());
        Entrant { name: M::NAME, sample: Box::new(move || sample(&map, &frames)) }
    };
    (cells.0 <= M::MOST).then(entrant)
}

/// Finds slots of random frames.
pub fn by_gfn<M: Map>(cells: Cells) -> Option<Entrant> {
    with_map(cells, |map: &M, frames| {
        let ns = chain(frames, |gfn| map.find(gfn).map_or(0, |hva| hva.0));
        Sample::new([ns], right(frames, |gfn| map.find(gfn)))
    })
}

/// The same through hints, one kept beside each slot as the engine keeps one beside each leaf table, all of them warm.
pub fn by_hint(cells: Cells) -> Result<Option<Entrant>> {
    let vm = empty_vm(cells.0).map_err(Error::Machine)?;
    let idle = || Idle::take().expect("this thread runs no vCPU");
    vm.memory().commit(&mut idle(), |tx| cells.slots().try_for_each(|slot| tx.create(slot)))?;
    let hints: Vec<Hint> = cells.slots().map(|_| Hint::default()).collect();
    let frames = cells.frames();
    let sample = move || {
        let (slots, mut idle) = (vm.memory(), idle());
        let snapshot = slots.snapshot(&mut idle);
        let find = |gfn: Gfn| {
            let hint = &hints[(gfn.0 / (2 * PAGES)) as usize];
            snapshot.find_with(hint, gfn).map(|slot| slot.hva_of(gfn))
        };
        let warm = cells.slots().filter(|slot| find(slot.gfns.start).is_some()).count();
        black_box(warm);
        let ns = chain(&frames, |gfn| find(gfn).map_or(0, |hva| hva.0));
        Sample::new([ns], right(&frames, find))
    };
    Ok(Some(Entrant { name: "slat", sample: Box::new(sample) }))
}

/// Finds the frames behind random host pages; as many as a sample can afford. `behind` finds the first of those that a map has behind a
/// page, and how many.
pub fn by_hva<M: Map>(
    cells: Cells,
    queries: usize,
    behind: impl Fn(&M, Span<Hva>) -> (Gfn, u64) + 'static,
) -> Option<Entrant> {
    with_map(cells, move |map, frames| {
        let behind = |gfn: Gfn| behind(map, Span::sized(Cells::hva(gfn), PAGE_SIZE));
        let ns = chain(&frames[..queries.min(frames.len())], |gfn| behind(gfn).0.0);
        Sample::new([ns], right(frames, |gfn| (behind(gfn) == (gfn, 1)).then_some(Cells::hva(gfn))))
    })
}

/// Nanoseconds of one `ask` about a frame. The first bit of an answer is always zero; only who waits for it knows the
/// next frame.
fn chain(frames: &[Gfn], ask: impl Fn(Gfn) -> u64) -> f64 {
    let start = Instant::now();
    black_box(frames.iter().fold(0, |answer, &gfn| ask(gfn + (answer >> 63))));
    start.elapsed().as_nanos() as f64 / frames.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::memslot::SCENARIO;

    #[test]
    fn every_map_gives_right_answers() {
        let mut report = Report::of(SCENARIO.name, Machine::detect());
        for slots in [2, 3, 300] {
            look_ups(slots, 1, &mut report).unwrap();
            hva_ranges(slots, 1, &mut report).unwrap();
            changes(slots, 1, &mut report).unwrap();
        }
        memory(&mut report).unwrap();
        assert_eq!(report.rows.len(), 3 * (3 + 1 + 1 + 9) + 3);
        for check in report.checks {
            assert!(check.ok, "{}: {}", check.name, check.detail);
        }
    }
}
