//! Operations worth testing: mostly on existing slots, and within them; at times beside them.

use super::model::{IDS, Model, Operation};
use crate::common::random::Random;

/// A source of operations. See the module's header.
pub struct Operations(Random);

impl Operations {
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// Returns an operation for `model`.
    pub fn next(&mut self, model: &Model) -> Operation {
        let random = &mut self.0;
        let id = random.below(model.shapes.len() as u64) as u32;
        let shape = &model.shapes[id as usize];
        let page = random.below(shape.pages);
        let Some(record) = model.slots.get(&id) else {
            return match random.below(4) {
                0 => Operation::Harvest { id, commit: true },
                1 => Operation::Get { id },
                _ => Operation::Create { id, log: random.one_in(3) },
            };
        };
        match random.below(64) {
            0 => Operation::Delete { id },
            1..4 => Operation::Move { id, place: random.below(shape.places.len() as u64) as usize },
            4..10 => Operation::Log { id, on: record.log.is_none() },
            10..34 => Operation::Store { id, page },
            34..39 => Operation::Load { id, page },
            39..41 => Operation::Device { id, page, pages: 1 + random.below(shape.pages - page) },
            41..44 => Operation::Zap { id },
            44..48 => Operation::Harvest { id: self.id(id), commit: !self.0.one_in(3) },
            48..50 => Operation::HarvestAll { commit: !random.one_in(3) },
            50..54 => Operation::Get { id: self.id(id) },
            _ => self.clear(id, shape.pages),
        }
    }

    /// Mostly this value; otherwise one that does not exist, or is invalid.
    fn id(&mut self, id: u32) -> u32 {
        let random = &mut self.0;
        match random.below(8) {
            0 => random.pick(&[3, IDS - 1, IDS]),
            _ => id,
        }
    }

    fn clear(&mut self, id: u32, all: u64) -> Operation {
        let random = &mut self.0;
        let words = all.div_ceil(64);
        let mut first = 64 * random.below(words);
        let mut pages = if random.one_in(2) { all - first } else { (all - first) & !63 };
        match random.below(8) {
            0 => first += random.pick(&[1, 32, 63, 64, 128, 1 << 40]),
            1 => pages = pages.saturating_sub(random.pick(&[1, 2, 63])),
            2 => pages += random.pick(&[1, 28, 64]),
            3 => (first, pages) = (words * 64, 0),
            _ => {}
        }
        // As many words as any of these needs: a short buffer is another error.
        let bits = (0..pages.div_ceil(64)).map(|_| random.0.u64(..) | random.0.u64(..)).collect();
        Operation::Clear { id: self.id(id), first, pages, bits }
    }
}
