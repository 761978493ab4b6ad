//! `Input`: bytes as a row of choices.
//!
//! A choice takes one byte, or as many as it needs to say its number, from the front; so a byte that the fuzzer changes is
//! a choice that changes, and those after it stay. Bytes that are not there are zero.

use arbitrary::Unstructured;

/// See the module's header.
#[derive(Debug)]
pub struct Input<'b>(Unstructured<'b>);

impl<'b> Input<'b> {
    /// The choices that `bytes` make.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Whether all have been made.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.int_in_range(0..=end - 1).unwrap_or(0)
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.below(2) != 0
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// All bytes that are left.
    pub fn rest(self) -> &'b [u8] {
        self.0.take_rest()
    }
}
