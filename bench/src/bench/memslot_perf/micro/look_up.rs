//! Look-ups, each of which depends on the answer to the one before: the latency of one.

use super::entrants::Copied;
use super::{Cells, Entrant, Map, Sample, right};
use crate::bench::memslot_perf::empty_vm;
use slat::slots::{Hint, SlotMap};
use slat::{Gfn, Hva, Idle, PAGE_SIZE, Span};
use slat_cli::error::Error;
use std::hint::black_box;
use std::time::Instant;

/// Finds slots of random frames.
pub fn by_gfn<M: Map>(cells: Cells) -> Option<Entrant<Sample<1>>> {
    if cells.0 > M::MOST {
        return None;
    }
    let (map, frames) = (M::build(cells.slots()), cells.frames());
    let sample = move || Sample {
        ns: [chain(frames.iter().copied(), |gfn| map.find(gfn).map_or(0, |hva| hva.0))],
        right: right(&frames, |gfn| map.find(gfn)),
    };
    Some(Entrant { name: M::NAME, sample: Box::new(sample) })
}

/// The same through hints, one kept beside each slot as the engine keeps one beside each leaf table, all of them warm.
pub fn by_hint(cells: Cells) -> Result<Option<Entrant<Sample<1>>>, Error> {
    let vm = empty_vm(cells.0)?;
    let idle = || Idle::take().expect("this thread runs no vCPU");
    vm.slots().commit(&mut idle(), |tx| cells.slots().try_for_each(|slot| tx.create(slot)))?;
    let hints: Vec<Hint> = cells.slots().map(|_| Hint::default()).collect();
    let frames = cells.frames();
    let sample = move || {
        let (slots, mut idle) = (vm.slots(), idle());
        let snapshot = slots.snapshot(&mut idle);
        let find = |gfn: Gfn| {
            let hint = &hints[(gfn.0 / (2 * super::PAGES)) as usize];
            snapshot.find_with(hint, gfn).map(|slot| slot.hva_of(gfn))
        };
        let warm = cells.slots().filter(|slot| find(slot.gfns.start).is_some()).count();
        black_box(warm);
        Sample {
            ns: [chain(frames.iter().copied(), |gfn| find(gfn).map_or(0, |hva| hva.0))],
            right: right(&frames, find),
        }
    };
    Ok(Some(Entrant { name: "slat", sample: Box::new(sample) }))
}

/// A map that finds frames by host address.
pub trait ByHva: Map {
    /// How many queries a sample of it can afford.
    fn queries(slots: u32) -> usize;
    /// Calls `visit` with the frames behind `hvas`, slot by slot.
    fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>));
}

impl ByHva for SlotMap {
    fn queries(_slots: u32) -> usize {
        usize::MAX
    }

    #[inline]
    fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>)) {
        self.over_hvas(hvas, visit);
    }
}

impl ByHva for Copied {
    fn queries(slots: u32) -> usize {
        ((1 << 24) / slots as usize).clamp(256, 1 << 16)
    }

    #[inline]
    fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>)) {
        self.now.over_hvas(hvas).for_each(visit);
    }
}

/// Finds the frames behind random host pages.
pub fn by_hva<M: ByHva>(cells: Cells) -> Option<Entrant<Sample<1>>> {
    if cells.0 > M::MOST {
        return None;
    }
    let (map, frames) = (M::build(cells.slots()), cells.frames());
    let sample = move || {
        let behind = |gfn: Gfn| {
            let (mut found, mut len) = (Gfn(0), 0);
            map.over_hvas(Span::sized(Cells::hva(gfn), PAGE_SIZE), |gfns| {
                (found, len) = (gfns.start, len + gfns.len());
            });
            (found, len)
        };
        Sample {
            ns: [chain(frames.iter().copied().take(M::queries(cells.0)), |gfn| behind(gfn).0.0)],
            right: right(&frames, |gfn| (behind(gfn) == (gfn, 1)).then_some(Cells::hva(gfn))),
        }
    };
    Some(Entrant { name: M::NAME, sample: Box::new(sample) })
}

/// Nanoseconds of one `ask` about a frame. The first bit of an answer is always zero; only who waits for it knows the
/// next frame.
fn chain(frames: impl Iterator<Item = Gfn>, ask: impl Fn(Gfn) -> u64) -> f64 {
    let start = Instant::now();
    let (count, end) = frames.fold((0_u32, 0), |(count, answer), gfn| (count + 1, ask(gfn + (answer >> 63))));
    let elapsed = start.elapsed();
    black_box(end);
    elapsed.as_nanos() as f64 / f64::from(count)
}
