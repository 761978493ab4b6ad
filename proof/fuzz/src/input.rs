//! `Input`: bytes as a sequence of choices.
//!
//! A choice takes one byte from the front, or as many as its number needs. So a byte that the fuzzer changes changes
//! one choice, and later choices stay. Missing bytes are zero.

use arbitrary::Unstructured;

/// Bytes as a sequence of choices.
#[derive(Debug)]
pub struct Input<'b>(Unstructured<'b>);

impl<'b> Input<'b> {
    /// Makes the choices of `bytes`.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Returns whether all bytes are used.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.int_in_range(0..=end - 1).unwrap_or(0)
    }

    /// Returns any number.
    pub fn word(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns a flag.
    pub fn flag(&mut self) -> bool {
        self.below(2) != 0
    }

    /// Returns one of these values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns the rest of the bytes.
    pub fn rest(self) -> &'b [u8] {
        self.0.take_rest()
    }
}
