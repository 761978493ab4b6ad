//! Words in lines of their own: a simulated access has the price of its cache line, so which words share one must not depend on where
//! the allocator has put them.

use crate::world::AtomicU64;
use std::ops::Index;

#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// See the module's header.
#[derive(Debug)]
pub struct Words {
    lines: Box<[Line]>,
    len: usize,
}

impl Words {
    /// So many, each by its number.
    pub fn new(len: usize, word: impl Fn(usize) -> u64) -> Self {
        let word = |at| AtomicU64::new(if at < len { word(at) } else { 0 });
        let line = |number: usize| Line(std::array::from_fn(|at| word(8 * number + at)));
        Self { lines: (0..len.div_ceil(8)).map(line).collect(), len }
    }

    /// The number of words.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Word number `at`.
    pub fn get(&self, at: usize) -> Option<&AtomicU64> {
        (at < self.len).then(|| &self[at])
    }
}

impl Index<usize> for Words {
    type Output = AtomicU64;

    #[inline]
    fn index(&self, at: usize) -> &AtomicU64 {
        &self.lines[at / 8].0[at % 8]
    }
}
