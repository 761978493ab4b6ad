//! Loading copies into pages.

use super::copy_table::Place;
use super::device::{Bytes, PAGE};
use super::error::SwapError;
use super::request::Direction;
use super::{HeldCopy, Swap, pool};
use lz4_flex::block::decompress_into;
use rapidhash::v3::rapidhash_v3;
use slat::Pfn;
use std::ptr::NonNull;

impl Swap {
    /// Fills page `into`, which only the caller uses, with what was stored. On an error its contents are
    /// undefined. May sleep.
    pub(crate) fn load(&self, copy: &HeldCopy<'_>, into: Pfn) -> Result<(), SwapError> {
        self.load_all(&[(copy, into)]).pop().unwrap_or(Err(SwapError::Corrupt))
    }

    /// Loads several copies; reads neighbours on a device at once. May sleep.
    ///
    /// Counts only an error of the first, since no access has asked for the others.
    pub(crate) fn load_all(&self, copies: &[(&HeldCopy<'_>, Pfn)]) -> Vec<Result<(), SwapError>> {
        let mut table = self.table.lock();
        let found: Vec<(Place, u64)> =
            copies.iter().map(|(copy, _)| table.find_to_read(copy.entry())).collect();
        let extents: Vec<_> = found
            .iter()
            .map(
                |(place, _)| {
                    if let Place::Memory(slot) = place { Some(table.pool.extent(*slot)) } else { None }
                },
            )
            .collect();
        drop(table);
        // The copies stay in place until `loaded`.
        let mut blocks: Vec<(u8, u32, usize)> = Vec::new();
        let mut results = vec![Ok(()); copies.len()];
        for (at, (&(place, _), &(_, into))) in found.iter().zip(copies).enumerate() {
            // SAFETY: a frame of this arena that only the caller uses.
            let bytes: &mut Bytes = unsafe { self.bytes(into).as_mut() };
            match (place, &extents[at]) {
                (Place::Block(device, block), _) => blocks.push((device, block, at)),
                (Place::Memory(_), Some(extent)) => {
                    let mut buffer = [0; pool::LARGEST];
                    if !decompress(extent.read(&self.arena, &mut buffer), bytes) {
                        results[at] = Err(SwapError::Corrupt);
                    }
                }
                _ => bytes.fill(0),
            }
        }
        blocks.sort_unstable();
        let of_one_device = blocks.chunk_by(|one, next| one.0 == next.0);
        let reading: Vec<_> = of_one_device
            .map(|blocks| {
                let asked: Vec<(u32, NonNull<Bytes>)> =
                    blocks.iter().map(|&(_, block, at)| (block, self.bytes(copies[at].1))).collect();
                // SAFETY: frames that only the caller uses; the requests are awaited below.
                (blocks, unsafe { self.ports[usize::from(blocks[0].0)].begin(Direction::Read, &asked) })
            })
            .collect();
        for (blocks, requests) in reading {
            for (&(_, _, at), outcome) in blocks.iter().zip(requests.wait()) {
                results[at] = outcome.map_err(SwapError::from);
            }
        }
        for (at, (&(place, sum), &(copy, into))) in found.iter().zip(copies).enumerate() {
            // SAFETY: a frame of this arena that only the caller uses.
            let bytes: &Bytes = unsafe { self.bytes(into).as_ref() };
            if results[at].is_ok() && place != Place::Zero && rapidhash_v3(bytes) != sum {
                results[at] = Err(SwapError::Corrupt);
            }
            self.table.lock().loaded(copy.entry(), results[at].is_ok(), at > 0);
        }
        results
    }
}

/// Decompresses into a page; returns whether the result fills it.
pub(super) fn decompress(compressed: &[u8], into: &mut Bytes) -> bool {
    decompress_into(compressed, into).is_ok_and(|len| len == PAGE)
}
