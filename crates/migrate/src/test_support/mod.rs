//! Parts that tests of several files share.

pub mod breaks;

use crate::frame::MemoryRange;
use crate::source_target::Target;
use slat::{Gfn, PAGE_SIZE, Span};
use std::convert::Infallible;

const PAGE: usize = PAGE_SIZE as usize;

/// The memory at the receiver: the bytes from the first frame of the first range to the last frame of the last.
#[derive(Default)]
pub struct Ram {
    pub first: Gfn,
    pub bytes: Vec<u8>,
}

impl Ram {
    fn at(&mut self, gfns: Span<Gfn>) -> &mut [u8] {
        let first = (gfns.start.0 - self.first.0) as usize;
        &mut self.bytes[first * PAGE..][..gfns.len() as usize * PAGE]
    }
}

impl Target for Ram {
    type Error = Infallible;

    fn create(&mut self, ranges: &[MemoryRange]) -> Result<(), Infallible> {
        assert!(self.bytes.is_empty(), "once");
        self.first = ranges[0].gfns.start;
        let end = ranges[ranges.len() - 1].gfns.end;
        self.bytes = vec![0; (end.0 - self.first.0) as usize * PAGE];
        Ok(())
    }

    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Infallible> {
        self.at(gfns).copy_from_slice(contents);
        Ok(())
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Infallible> {
        self.at(gfns).fill(0);
        Ok(())
    }
}
