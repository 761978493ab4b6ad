//! Maps of slots, the slots in them, and samples of their operations.

use crate::scenarios::threads_prelude::*;

/// A map of slots, of whatever make. Operations say whether they were done.
pub trait Map: Sized + 'static {
    /// Its name in the report.
    const NAME: &'static str;
    /// How many slots it can have.
    const MOST: u32;
    /// The map of these slots, which come in order.
    fn build(slots: impl Iterator<Item = Slot>) -> Self;
    /// The host address of `gfn`.
    fn find(&self, gfn: Gfn) -> Option<Hva>;
    /// Adds a slot.
    fn create(&mut self, slot: &Slot) -> bool;
    /// Moves a slot that is there.
    fn move_to(&mut self, slot: &Slot, to: Gfn) -> bool;
    /// Removes a slot that is there.
    fn delete(&mut self, slot: &Slot) -> bool;
}

/// Where slots can lie: so many places, each with a gap behind it.
#[derive(Clone, Copy, Debug)]
pub struct Cells(pub u32);

pub const PAGES: u64 = 16;
const FIRST_HVA: Hva = Hva(1 << 44);

impl Cells {
    /// The slot in place `nth`.
    pub fn slot(nth: u32) -> Slot {
        Self::at(nth, Gfn(2 * u64::from(nth) * PAGES))
    }

    /// The first frame of the gap behind place `nth`.
    pub fn gap(nth: u32) -> Gfn {
        Gfn((2 * u64::from(nth) + 1) * PAGES)
    }

    /// Slot `id` from `gfn` on, backed by what is always there.
    pub fn at(id: u32, gfn: Gfn) -> Slot {
        Slot::new(SlotId(id), gfn, PAGES, Self::hva(gfn))
    }

    /// The host address behind `gfn`, where nothing has moved.
    pub fn hva(gfn: Gfn) -> Hva {
        FIRST_HVA + gfn.0 * PAGE_SIZE
    }

    pub fn slots(self) -> impl Iterator<Item = Slot> {
        (0..self.0).map(Self::slot)
    }

    /// Frames of slots, all over the place, the same in every run.
    pub fn frames(self) -> Vec<Gfn> {
        const FRAMES: usize = 1 << 16;
        let mut random = fastrand::Rng::with_seed(1);
        let mut frame = || Gfn(2 * random.u64(..u64::from(self.0)) * PAGES + random.u64(..PAGES));
        std::iter::repeat_with(&mut frame).take(FRAMES).collect()
    }
}

/// A map that is ready to be sampled.
pub struct Entrant {
    pub name: &'static str,
    pub sample: Box<dyn Fn() -> Sample>,
}

/// Nanoseconds of each operation, and how often the answer was right.
pub struct Sample {
    pub ns: Vec<f64>,
    pub right: [Tally; 1],
}

impl Sample {
    pub fn new(ns: impl Into<Vec<f64>>, right: [u64; 2]) -> Self {
        Self { ns: ns.into(), right: [("every answer is right", right)] }
    }
}

/// How many of a thousand frames `find` knows the host address of, and a thousand.
pub fn right(frames: &[Gfn], find: impl Fn(Gfn) -> Option<Hva>) -> [u64; 2] {
    const OF: usize = 1000;
    let right = frames[..OF].iter().filter(|&&gfn| find(gfn) == Some(Cells::hva(gfn))).count();
    [right as u64, OF as u64]
}
