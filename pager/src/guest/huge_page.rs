//! Pages of 2 MiB. Each is filled whole, with the content of all chunks that it covers. The kernel also reports and
//! removes them whole.

use super::Inner;
use super::content::Content;
use crate::cache::{Chunk, Source};
use crate::store::Found;
use crate::uffd::{Filled, PAGE};
use std::ops::Range;

impl Inner {
    /// Returns whether the guest's memory has pages of 2 MiB.
    pub(super) fn is_huge(&self) -> bool {
        self.layout.unit() > 1
    }

    /// Returns the pages of 4 KiB that are filled and removed with this one: itself, or its huge page.
    pub(super) fn unit_of(&self, page: usize) -> Range<usize> {
        let unit = self.layout.unit();
        let start = page / unit * unit;
        start..start + unit
    }

    /// Returns the pages whose content comes together: those of a chunk, or of a huge page.
    pub(super) fn chunk_of(&self, page: usize) -> Range<usize> {
        if self.is_huge() { self.unit_of(page) } else { self.template.chunk_of(page) }
    }

    /// Returns the content of a huge page; `get` returns each chunk.
    pub(super) fn huge_content<E>(
        &self,
        page: usize,
        mut get: impl FnMut(usize) -> Result<Found, E>,
    ) -> Result<(Content, Source), E> {
        let unit = self.unit_of(page);
        let (mut whole, mut source, mut next) = (Vec::new(), Source::Cache, unit.start);
        while next < unit.end {
            let (chunk, found) = (self.template.chunk_of(next), get(next)?);
            let end = chunk.end.min(unit.end);
            if let Some((bytes, from)) = found {
                if chunk == unit {
                    return Ok((Content::Bytes(bytes), from));
                }
                whole.resize(unit.len() * PAGE, 0);
                let part = (next - unit.start) * PAGE..(end - unit.start) * PAGE;
                let start = (next - chunk.start) * PAGE;
                whole[part.clone()].copy_from_slice(&bytes[start..start + part.len()]);
                source = source.max(from);
            }
            next = end;
        }
        let is_zero = whole.is_empty();
        Ok(if is_zero { (Content::Zeros, Source::Zero) } else { (Content::Bytes(Chunk::new(whole)), source) })
    }

    /// Fills huge pages with zeros: the kernel has no ZEROPAGE for them.
    pub(super) fn fill_huge_zeros(&self, start: u64, len: u64) -> Filled {
        self.uffd.copy(start, &vec![0; len as usize])
    }
}
