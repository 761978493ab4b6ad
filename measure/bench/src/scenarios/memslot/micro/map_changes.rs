//! Single changes at random places: some slots more are created, moved, and deleted again.

use crate::scenarios::memslot::micro::slot_maps::{Cells, Entrant, Map, Sample, right};
use crate::scenarios::threads_prelude::*;
use std::cell::RefCell;

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
