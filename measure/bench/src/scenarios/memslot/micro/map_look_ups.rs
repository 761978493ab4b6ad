//! Look-ups, each of which depends on the answer to the one before: the latency of one.

use crate::scenarios::memslot::micro::slot_maps::{Cells, Entrant, Map, Sample, right};
use crate::scenarios::memslot::slot_design::empty_vm;
use crate::scenarios::threads_prelude::*;
use slat::slots::Hint;

/// Finds slots of random frames.
pub fn by_gfn<M: Map>(cells: Cells) -> Option<Entrant> {
    if cells.0 > M::MOST {
        return None;
    }
    let (map, frames) = (M::build(cells.slots()), cells.frames());
    let sample = move || {
        let ns = chain(&frames, |gfn| map.find(gfn).map_or(0, |hva| hva.0));
        Sample::new([ns], right(&frames, |gfn| map.find(gfn)))
    };
    Some(Entrant { name: M::NAME, sample: Box::new(sample) })
}

/// The same through hints, one kept beside each slot as the engine keeps one beside each leaf table, all of them warm.
pub fn by_hint(cells: Cells) -> Result<Option<Entrant>, Error> {
    let vm = empty_vm(cells.0)?;
    let idle = || Idle::take().expect("this thread runs no vCPU");
    vm.memory().commit(&mut idle(), |tx| cells.slots().try_for_each(|slot| tx.create(slot)))?;
    let hints: Vec<Hint> = cells.slots().map(|_| Hint::default()).collect();
    let frames = cells.frames();
    let sample = move || {
        let (slots, mut idle) = (vm.memory(), idle());
        let snapshot = slots.snapshot(&mut idle);
        let find = |gfn: Gfn| {
            let hint = &hints[(gfn.0 / (2 * super::slot_maps::PAGES)) as usize];
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
    if cells.0 > M::MOST {
        return None;
    }
    let (map, frames) = (M::build(cells.slots()), cells.frames());
    let sample = move || {
        let behind = |gfn: Gfn| behind(&map, Span::sized(Cells::hva(gfn), PAGE_SIZE));
        let ns = chain(&frames[..queries.min(frames.len())], |gfn| behind(gfn).0.0);
        Sample::new([ns], right(&frames, |gfn| (behind(gfn) == (gfn, 1)).then_some(Cells::hva(gfn))))
    };
    Some(Entrant { name: M::NAME, sample: Box::new(sample) })
}

/// Nanoseconds of one `ask` about a frame. The first bit of an answer is always zero; only who waits for it knows the
/// next frame.
fn chain(frames: &[Gfn], ask: impl Fn(Gfn) -> u64) -> f64 {
    let start = Instant::now();
    black_box(frames.iter().fold(0, |answer, &gfn| ask(gfn + (answer >> 63))));
    start.elapsed().as_nanos() as f64 / frames.len() as f64
}
