//! The maps.

use crate::scenarios::memslot::array::{Array, IDS, Record};
use crate::scenarios::threads_prelude::*;
use slat::slots::{Limits, SlotMap};
use std::mem;
use vm_memory::bitmap::BS;
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestMemoryRegionBytes, GuestRegionCollection,
    GuestUsize,
};

impl Map for SlotMap {
    const NAME: &'static str = "slat";
    const MOST: u32 = u32::MAX;

    fn build(mut slots: impl Iterator<Item = Slot>) -> Self {
        let mut map = Self::new(Limits { ids: u32::MAX, ..Limits::default() });
        map.commit(|tx| slots.try_for_each(|slot| tx.create(slot))).expect("they do not overlap");
        map
    }

    #[inline]
    fn find(&self, gfn: Gfn) -> Option<Hva> {
        self.find(gfn).map(|slot| slot.hva_of(gfn))
    }

    fn create(&mut self, slot: &Slot) -> bool {
        self.commit(|tx| tx.create(*slot)).is_ok()
    }

    fn move_to(&mut self, slot: &Slot, to: Gfn) -> bool {
        self.commit(|tx| tx.move_to(slot.id, to)).is_ok()
    }

    fn delete(&mut self, slot: &Slot) -> bool {
        self.commit(|tx| tx.delete(slot.id)).is_ok()
    }
}

/// The array and the memory of its next copy.
#[derive(Default)]
pub struct Copied {
    pub now: Box<Array>,
    next: Box<Array>,
}

impl Copied {
    /// The array as it will be, published.
    fn copy(&mut self, out: Option<usize>, new: Option<Record>) {
        self.next.copy(&self.now, out, new);
        mem::swap(&mut self.now, &mut self.next);
    }

    /// As in a deletion and a move: invalid first, and then `new`.
    fn replace(&mut self, place: usize, new: Option<Record>) {
        let old = self.now.records()[place];
        self.copy(Some(place), Some(old.invalid()));
        self.copy(Some(place), new);
    }
}

impl Map for Copied {
    const NAME: &'static str = "array";
    const MOST: u32 = IDS;

    fn build(slots: impl Iterator<Item = Slot>) -> Self {
        let mut map = Self::default();
        map.next.fill(&map.now, slots.map(|slot| Record::new(&slot)));
        mem::swap(&mut map.now, &mut map.next);
        map
    }

    #[inline]
    fn find(&self, gfn: Gfn) -> Option<Hva> {
        self.now.find(gfn).map(|record| record.hva_of(gfn))
    }

    fn create(&mut self, slot: &Slot) -> bool {
        let fits = self.now.check_new(slot).is_ok();
        if fits {
            self.copy(None, Some(Record::new(slot)));
        }
        fits
    }

    fn move_to(&mut self, slot: &Slot, to: Gfn) -> bool {
        let Ok((place, new)) = self.now.check_move(slot.id, to) else { return false };
        self.replace(place, Some(new));
        true
    }

    fn delete(&mut self, slot: &Slot) -> bool {
        let Some(place) = self.now.place_of(slot.id) else { return false };
        self.replace(place, None);
        true
    }
}

/// Three ordered maps of the standard library.
#[derive(Default)]
pub struct Trees {
    by_gfn: BTreeMap<Gfn, Slot>,
    by_id: BTreeMap<u32, Gfn>,
    by_hva: BTreeMap<(Hva, u32), Gfn>,
}

/// Whether no slot of `by_gfn` has a frame of this one.
fn is_free(by_gfn: &BTreeMap<Gfn, Slot>, slot: &Slot) -> bool {
    let last = by_gfn.range(..slot.gfns.end).next_back();
    last.is_none_or(|(_, last)| last.gfns.end <= slot.gfns.start)
}

impl Map for Trees {
    const NAME: &'static str = "BTreeMap";
    const MOST: u32 = u32::MAX;

    fn build(slots: impl Iterator<Item = Slot>) -> Self {
        let mut map = Self::default();
        slots.for_each(|slot| assert!(map.create(&slot), "they do not overlap"));
        map
    }

    #[inline]
    fn find(&self, gfn: Gfn) -> Option<Hva> {
        let (_, slot) = self.by_gfn.range(..=gfn).next_back()?;
        slot.gfns.contains(gfn).then(|| slot.hva_of(gfn))
    }

    fn create(&mut self, slot: &Slot) -> bool {
        if self.by_id.contains_key(&slot.id.0) || !is_free(&self.by_gfn, slot) {
            return false;
        }
        let gfn = slot.gfns.start;
        self.by_id.insert(slot.id.0, gfn);
        self.by_hva.insert((slot.hva, slot.id.0), gfn);
        self.by_gfn.insert(gfn, *slot);
        true
    }

    fn move_to(&mut self, slot: &Slot, to: Gfn) -> bool {
        let Some(gfn) = self.by_id.get_mut(&slot.id.0) else { return false };
        let Some(old) = self.by_gfn.remove(gfn) else { return false };
        let new = Slot::new(old.id, to, old.gfns.len(), old.hva);
        if !is_free(&self.by_gfn, &new) {
            self.by_gfn.insert(*gfn, old);
            return false;
        }
        *gfn = to;
        self.by_hva.insert((new.hva, new.id.0), to);
        self.by_gfn.insert(to, new);
        true
    }

    fn delete(&mut self, slot: &Slot) -> bool {
        let Some(gfn) = self.by_id.remove(&slot.id.0) else { return false };
        let Some(old) = self.by_gfn.remove(&gfn) else { return false };
        self.by_hva.remove(&(old.hva, old.id.0)).is_some()
    }
}

/// vm-memory's collection.
pub struct Regions(GuestRegionCollection<Region>);

/// A slot as vm-memory sees it.
pub struct Region {
    start: GuestAddress,
    bytes: GuestUsize,
    hva: Hva,
}

impl From<&Slot> for Region {
    fn from(slot: &Slot) -> Self {
        Self { start: address(slot.gfns.start), bytes: slot.gfns.len() * PAGE_SIZE, hva: slot.hva }
    }
}

fn address(gfn: Gfn) -> GuestAddress {
    GuestAddress(gfn.gpa().0)
}

impl GuestMemoryRegion for Region {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.bytes
    }

    fn start_addr(&self) -> GuestAddress {
        self.start
    }

    fn bitmap(&self) -> BS<'_, ()> {}
}

impl GuestMemoryRegionBytes for Region {}

impl Regions {
    /// The collection that an operation makes, in the place of this one.
    fn take<E>(&mut self, made: Result<GuestRegionCollection<Region>, E>) -> bool {
        made.map(|made| self.0 = made).is_ok()
    }
}

impl Map for Regions {
    const NAME: &'static str = "vm-memory";
    /// Beyond, one change takes a tenth of a second.
    const MOST: u32 = IDS;

    fn build(slots: impl Iterator<Item = Slot>) -> Self {
        let regions = slots.map(|slot| Region::from(&slot)).collect();
        Self(GuestRegionCollection::from_regions(regions).expect("they are in order and do not overlap"))
    }

    #[inline]
    fn find(&self, gfn: Gfn) -> Option<Hva> {
        let region = self.0.find_region(address(gfn))?;
        Some(region.hva + (gfn.gpa().0 - region.start.0))
    }

    fn create(&mut self, slot: &Slot) -> bool {
        let made = self.0.insert_region(Arc::new(slot.into()));
        self.take(made)
    }

    fn move_to(&mut self, slot: &Slot, to: Gfn) -> bool {
        let moved = Slot::new(slot.id, to, slot.gfns.len(), slot.hva);
        self.delete(slot) && self.create(&moved)
    }

    fn delete(&mut self, slot: &Slot) -> bool {
        let made = self.0.remove_region(address(slot.gfns.start), slot.gfns.len() * PAGE_SIZE);
        self.take(made.map(|(rest, _)| rest))
    }
}

// Maps of slots, the slots in them, and samples of their operations.

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The operations that every map must do alike.
    fn does_as_it_is_told<M: Map>() {
        let cells = Cells(100);
        let mut map = M::build(cells.slots());
        let name = M::NAME;
        let (gap, other) = (Cells::gap(40), Cells::gap(60));
        let hva = |map: &M, gfn: Gfn| map.find(gfn);
        assert_eq!(hva(&map, gap), None, "{name}");
        let slot = Cells::at(100, gap);
        assert!(map.create(&slot), "{name}");
        assert!(!map.create(&Slot::new(slot.id, gap, 1, slot.hva)), "{name}: the frames are taken");
        assert_eq!(hva(&map, gap + 15), Some(slot.hva + 15 * PAGE_SIZE), "{name}");
        assert!(map.move_to(&slot, other), "{name}");
        assert_eq!((hva(&map, gap), hva(&map, other + 1)), (None, Some(slot.hva + PAGE_SIZE)), "{name}");
        assert!(map.delete(&Slot::new(slot.id, other, 16, slot.hva)), "{name}");
        assert_eq!(hva(&map, other), None, "{name}");
        for slot in cells.slots() {
            assert_eq!(hva(&map, slot.gfns.start), Some(slot.hva), "{name}");
        }
    }

    #[test]
    fn all_maps_do_alike() {
        does_as_it_is_told::<SlotMap>();
        does_as_it_is_told::<Copied>();
        does_as_it_is_told::<Trees>();
        does_as_it_is_told::<Regions>();
    }
}
