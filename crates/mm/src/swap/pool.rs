//! The pool: compressed pages in frames of the arena.
//!
//! ```text
//! class  4: slots of  320 bytes, 12 in 1 frame        [0|1|2|3|4|5|6|7|8|9|10|11|]
//! class 42: slots of 2752 bytes,  4 in 3 frames       [   0   |   1  ⋮|   2   ⋮|   3   |]
//! ```
//! A **class** holds contents up to a size; sizes are multiples of 64 bytes. Its slots lie in **groups** of one
//! to four frames, as many as leave little unused. So a slot may span two frames, which need not be neighbours.
//! New contents go to the first group with room, so that the last groups empty; an empty group is freed at
//! once. No contents are moved for that.

use super::error::SwapError;
use crate::arena::Arena;
use slat::{Level, PAGE_SIZE, Pfn, Span};
use std::collections::BTreeSet;

const PAGE: usize = PAGE_SIZE as usize;
/// Size difference between classes, in bytes.
const STEP: usize = 64;
/// Largest compressed size that the pool takes; larger ones would save too little.
pub(super) const LARGEST: usize = PAGE / 4 * 3;
const CLASSES: usize = LARGEST / STEP;
/// Most frames of a group.
const FRAMES: usize = 4;

/// Layout of the groups of a class.
#[derive(Clone, Copy, Debug)]
struct Class {
    size: usize,
    frames: usize,
    slots: usize,
}

const SHAPES: [Class; CLASSES] = {
    let mut shapes = [Class { size: 0, frames: 1, slots: 1 }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        shapes[class] = Class::of((class + 1) * STEP);
        class += 1;
    }
    shapes
};

impl Class {
    /// Chooses the fewest frames that leave at most 1/16 unused, else the number that wastes least.
    const fn of(size: usize) -> Self {
        let mut best = Self { size, frames: 1, slots: PAGE / size };
        let mut frames = 2;
        while frames <= FRAMES && best.slots * size * 16 < best.frames * PAGE * 15 {
            let slots = frames * PAGE / size;
            // Slots are bits of one word.
            if slots <= u64::BITS as usize && slots * best.frames > best.slots * frames {
                best = Self { size, frames, slots };
            }
            frames += 1;
        }
        best
    }
}

/// Compressed pages in frames of an arena. The owner's lock protects it.
#[derive(Debug)]
pub(super) struct Pool {
    groups: Vec<Group>,
    /// Numbers of groups without frames.
    spare: Vec<u32>,
    /// For each class, the groups with room.
    roomy: [BTreeSet<u32>; CLASSES],
    frames: u64,
    limit: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Group {
    class: usize,
    /// Only the first frames, as many as the class says, are valid.
    frames: [Pfn; FRAMES],
    /// A bit for each slot.
    used: u64,
}

/// A slot in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    group: u32,
    index: u8,
    len: u16,
}

/// Place of a slot's bytes, valid while the slot is in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    frames: [Pfn; FRAMES],
    start: usize,
    len: usize,
}

impl Pool {
    /// Creates an empty pool of up to `limit` frames.
    pub(super) fn new(limit: u64) -> Self {
        let roomy = [const { BTreeSet::new() }; CLASSES];
        Self { groups: Vec::new(), spare: Vec::new(), roomy, frames: 0, limit, bytes: 0 }
    }

    /// Returns the frames in use.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns the bytes of its contents.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a slot for `len` bytes, at most [`LARGEST`].
    ///
    /// # Errors
    /// [`SwapError::Full`] at the limit; [`SwapError::NoFrame`] if the arena is full.
    pub(super) fn insert(&mut self, arena: &Arena, len: usize) -> Result<Slot, SwapError> {
        let class = len.max(1).div_ceil(STEP) - 1;
        let group = match self.roomy[class].first() {
            Some(&group) => group,
            None => self.begin_group(arena, class)?,
        };
        let found = &mut self.groups[group as usize];
        let index = (!found.used).trailing_zeros();
        found.used |= 1 << index;
        if found.used.count_ones() as usize == SHAPES[class].slots {
            self.roomy[class].remove(&group);
        }
        self.bytes += len as u64;
        Ok(Slot { group, index: index as u8, len: len as u16 })
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, arena: &Arena, slot: Slot) {
        self.bytes -= u64::from(slot.len);
        let group = &mut self.groups[slot.group as usize];
        group.used &= !(1 << slot.index);
        if group.used > 0 {
            self.roomy[group.class].insert(slot.group);
            return;
        }
        let class = group.class;
        for &frame in &group.frames[..SHAPES[class].frames] {
            arena.put(Span::sized(frame, 1));
        }
        self.frames -= SHAPES[class].frames as u64;
        self.roomy[class].remove(&slot.group);
        self.spare.push(slot.group);
    }

    /// Returns the slot's share of its group's frames, in bytes.
    pub(super) fn share(&self, slot: Slot) -> u64 {
        let Class { frames, slots, .. } = SHAPES[self.groups[slot.group as usize].class];
        frames as u64 * PAGE_SIZE / slots as u64
    }

    pub(super) fn extent(&self, slot: Slot) -> Extent {
        let group = &self.groups[slot.group as usize];
        let start = usize::from(slot.index) * SHAPES[group.class].size;
        Extent { frames: group.frames, start, len: slot.len.into() }
    }

    /// Creates a group of this class, with all slots free.
    fn begin_group(&mut self, arena: &Arena, class: usize) -> Result<u32, SwapError> {
        let count = SHAPES[class].frames;
        if self.frames + count as u64 > self.limit {
            return Err(SwapError::Full);
        }
        // If a frame is missing, dropping `held` frees the others.
        let mut held = [const { None }; FRAMES];
        for held in &mut held[..count] {
            *held = Some(arena.page(Level::K4).map_err(|_| SwapError::NoFrame)?);
        }
        let frames = held.map(|held| held.map_or(Pfn(0), crate::held::Held::keep));
        let group = Group { class, frames, used: 0 };
        let number = if let Some(number) = self.spare.pop() {
            self.groups[number as usize] = group;
            number
        } else {
            // There are fewer groups than copies, whose numbers have 32 bits.
            self.groups.push(group);
            self.groups.len() as u32 - 1
        };
        self.frames += count as u64;
        self.roomy[class].insert(number);
        Ok(number)
    }
}

impl Extent {
    /// Writes the slot, which only the caller uses.
    pub(super) fn write(&self, arena: &Arena, bytes: &[u8]) {
        let mut rest = &bytes[..self.len];
        self.each_piece(arena, |place, len| {
            let (piece, after) = rest.split_at(len);
            // SAFETY: `len` bytes of a pool frame, in a slot that no other thread uses.
            unsafe { place.copy_from_nonoverlapping(piece.as_ptr(), len) };
            rest = after;
        });
    }

    /// Copies the slot's contents to the buffer, and returns that part of it. No thread writes the slot
    /// meanwhile.
    pub(super) fn read<'a>(&self, arena: &Arena, buffer: &'a mut [u8; LARGEST]) -> &'a [u8] {
        let mut rest = &mut buffer[..self.len];
        self.each_piece(arena, |place, len| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(len);
            // SAFETY: `len` bytes of a pool frame, in a slot that was written.
            unsafe { place.copy_to_nonoverlapping(piece.as_mut_ptr(), len) };
            rest = after;
        });
        &buffer[..self.len]
    }

    /// Calls `visit` with the address and length of the slot's part in each frame.
    fn each_piece(&self, arena: &Arena, mut visit: impl FnMut(*mut u8, usize)) {
        let (mut at, end) = (self.start, self.start + self.len);
        while at < end {
            let len = (PAGE - at % PAGE).min(end - at);
            visit(arena.frame(self.frames[at / PAGE]).wrapping_add(at % PAGE), len);
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn arena() -> Arc<Arena> {
        Arena::builder().limit(4 << 20).poison(0xdd).build().unwrap()
    }

    #[test]
    fn every_class_uses_nearly_all_of_its_frames() {
        for (number, class) in SHAPES.iter().enumerate() {
            assert_eq!(class.size, (number + 1) * STEP);
            assert!((1..=FRAMES).contains(&class.frames) && (1..=64).contains(&class.slots));
            let used = class.slots * class.size;
            assert!(used <= class.frames * PAGE && used * 100 >= class.frames * PAGE * 88, "{class:?}");
        }
        assert!(SHAPES[CLASSES - 1].slots > SHAPES[CLASSES - 1].frames, "even the largest save something");
    }

    #[test]
    fn a_pool_at_its_limit_or_without_an_arena_takes_no_more_and_loses_nothing() {
        let arena = arena();
        let mut pool = Pool::new(3);
        let fits: Vec<Slot> = std::iter::from_fn(|| pool.insert(&arena, LARGEST).ok()).collect();
        assert_eq!((fits.len(), pool.frames(), pool.bytes()), (4, 3, 4 * LARGEST as u64));
        assert_eq!(
            pool.insert(&arena, 1),
            Err(SwapError::Full),
            "the limit is of frames, whatever they are for"
        );
        for slot in fits {
            pool.remove(&arena, slot);
        }
        assert_eq!((pool.frames(), pool.bytes(), arena.stats().in_use), (0, 0, 0));

        let mut hoard: Vec<_> = std::iter::from_fn(|| arena.page(Level::K4).ok()).collect();
        hoard.truncate(hoard.len() - 2);
        let in_use = arena.stats().in_use;
        assert_eq!(
            pool.insert(&arena, LARGEST),
            Err(SwapError::NoFrame),
            "the largest slot needs three frames"
        );
        assert_eq!(
            (pool.frames(), arena.stats().in_use),
            (0, in_use),
            "the failed insert freed its two frames"
        );
        assert!(pool.insert(&arena, STEP).is_ok());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(usize),
        /// The existing slot with this number.
        Remove(usize),
    }

    fn steps() -> impl Strategy<Value = Step> {
        // Few sizes, so that groups fill up, and all sizes.
        let len = prop_oneof![Just(320usize), Just(2700), Just(LARGEST), 1..=LARGEST];
        prop_oneof![3 => len.prop_map(Step::Insert), 2 => any::<usize>().prop_map(Step::Remove)]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 100,
            failure_persistence: None,
            rng_seed: prop::test_runner::RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        /// Contents read back unchanged; slots do not overlap; no frame is kept without a slot.
        #[test]
        fn a_pool_is_a_map(steps in prop::collection::vec(steps(), 1..400)) {
            let arena = arena();
            let mut pool = Pool::new(60);
            let mut model: BTreeMap<usize, (Slot, Vec<u8>)> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(len) => {
                        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + number * 13) as u8).collect();
                        match pool.insert(&arena, len) {
                            Ok(slot) => {
                                pool.extent(slot).write(&arena, &bytes);
                                model.insert(number, (slot, bytes));
                            }
                            Err(_) => prop_assert!(pool.frames() + FRAMES as u64 > 60),
                        }
                    }
                    Step::Remove(pick) => {
                        let Some(&key) = model.keys().nth(pick % model.len().max(1)) else { continue };
                        let (slot, _) = model.remove(&key).unwrap();
                        pool.remove(&arena, slot);
                    }
                }
                prop_assert_eq!(pool.bytes(), model.values().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
                prop_assert_eq!(pool.frames(), arena.stats().in_use);
            }
            for (slot, bytes) in model.values() {
                let mut buffer = [0; LARGEST];
                prop_assert_eq!(pool.extent(*slot).read(&arena, &mut buffer), &bytes[..]);
            }
            for (slot, _) in model.into_values() {
                pool.remove(&arena, slot);
            }
            prop_assert_eq!((pool.frames(), arena.stats().in_use, arena.stats().stale_writes), (0, 0, 0));
        }
    }
}
