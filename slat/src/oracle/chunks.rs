//! A sparse array: values by number, in blocks. Most look-ups are in the block of the last one.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;

const BLOCK: u64 = 64;

/// Values by number.
#[derive(Debug)]
pub(super) struct Chunks<V> {
    blocks: Vec<Box<[Option<V>; BLOCK as usize]>>,
    /// The place of each block.
    places: BTreeMap<u64, usize>,
    last: Cell<(u64, usize)>,
}

impl<V> Default for Chunks<V> {
    fn default() -> Self {
        Self { blocks: Vec::new(), places: BTreeMap::new(), last: Cell::new((u64::MAX, 0)) }
    }
}

impl<V: Copy> Chunks<V> {
    fn find(&self, number: u64) -> Option<usize> {
        let (block, place) = self.last.get();
        if block == number / BLOCK {
            return Some(place);
        }
        let place = *self.places.get(&(number / BLOCK))?;
        self.last.set((number / BLOCK, place));
        Some(place)
    }

    pub(super) fn get(&self, number: u64) -> Option<V> {
        self.blocks[self.find(number)?][(number % BLOCK) as usize]
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut V> {
        let place = self.find(number)?;
        self.blocks[place][(number % BLOCK) as usize].as_mut()
    }

    /// The value's place, which may be empty.
    pub(super) fn place(&mut self, number: u64) -> &mut Option<V> {
        let place = self.find(number).unwrap_or_else(|| {
            self.blocks.push(Box::new([None; BLOCK as usize]));
            self.places.insert(number / BLOCK, self.blocks.len() - 1);
            self.blocks.len() - 1
        });
        &mut self.blocks[place][(number % BLOCK) as usize]
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<V> {
        let place = self.find(number)?;
        self.blocks[place][(number % BLOCK) as usize].take()
    }

    /// The values from one number up to another, in order.
    pub(super) fn range(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, V)> + '_ {
        let blocks = self.places.range(from / BLOCK..to.div_ceil(BLOCK).max(from / BLOCK));
        let values = blocks.flat_map(|(block, &place)| {
            let numbers = block * BLOCK..;
            self.blocks[place].iter().zip(numbers).filter_map(|(value, number)| Some((number, (*value)?)))
        });
        values.filter(move |(number, _)| (from..to).contains(number))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
