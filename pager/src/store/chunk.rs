//! A chunk of an image. Its name is the hash of its content. It is compressed, and checked when it is read.
//!
//! Formats. Version 2: the four bytes `slz4`, then the content as one LZ4 block. Version 1, which is only read: a zstd
//! frame. LZ4 has the size of the fastest zstd level, and its decoder in Rust takes an eighth of the time.

use super::{Store, StoreError};
use crate::hash::Hash;
use ruzstd::decoding::StreamingDecoder;
use std::fmt;
use std::io::Read;

/// Most bytes of a chunk.
pub const MOST_CHUNK: usize = 2 << 20;

/// Most bytes of its compressed form: incompressible content grows by the headers of blocks.
pub(crate) const MOST_STORED: usize = MOST_CHUNK + MOST_CHUNK / 64 + 1024;

/// Name of an object: the hash of its content, and the epoch of the upload that wrote it. A collection begins an epoch.
/// It deletes objects of earlier epochs, and no later upload writes their names. So a late deletion removes nothing
/// that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub hash: Hash,
    pub epoch: u32,
}

impl Name {
    /// Returns its key as a chunk.
    pub fn key(&self) -> String {
        format!("chunks/{self}")
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (hash, epoch) = match text.split_once('.') {
            Some((hash, epoch)) => (hash, epoch.parse().ok()?),
            None => (text, 0),
        };
        let name = Self { hash: Hash::parse(hash)?, epoch };
        (name.to_string() == text).then_some(name)
    }
}

/// Omits the first epoch.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch {
            0 => write!(f, "{}", self.hash),
            epoch => write!(f, "{}.{epoch}", self.hash),
        }
    }
}

/// The first bytes of a chunk in version 2.
const LZ4: &[u8] = b"slz4";

pub(super) fn compress(content: &[u8]) -> Vec<u8> {
    [LZ4, &lz4_flex::block::compress(content)].concat()
}

/// Reads the chunk or pack with this key from the store, and checks it.
pub(super) fn read(store: &dyn Store, key: &str, name: Name, length: usize) -> Result<Vec<u8>, StoreError> {
    expand(key, name.hash, &store.get(key, MOST_STORED)?, length)
}

/// Expands a stored chunk with this hash and length. The key is for errors.
pub(crate) fn expand(key: &str, hash: Hash, stored: &[u8], length: usize) -> Result<Vec<u8>, StoreError> {
    let content = decompressed(key, stored, length)?;
    if Hash::of(&content) != hash {
        let what = "its content has another hash".into();
        return Err(StoreError::Damaged { key: key.into(), what });
    }
    Ok(content)
}

/// As [`expand`], without the comparison of the hashes.
pub(crate) fn decompressed(key: &str, stored: &[u8], length: usize) -> Result<Vec<u8>, StoreError> {
    let damaged = |what: String| StoreError::Damaged { key: key.into(), what };
    if let Some(block) = stored.strip_prefix(LZ4) {
        let mut content = vec![0; length];
        let got = lz4_flex::block::decompress_into(block, &mut content);
        let got = got.map_err(|error| damaged(error.to_string()))?;
        return if got == length { Ok(content) } else { Err(damaged(wrong_length(got, length))) };
    }
    // A header requests the window's memory; no chunk needs more than its own size.
    let decoder = StreamingDecoder::new_with_max_window_size(stored, MOST_CHUNK as u64);
    let decoder = decoder.map_err(|error| damaged(error.to_string()))?;
    let mut content = Vec::with_capacity(length);
    // One byte more than the limit, so that a chunk that expands forever stops there.
    decoder.take(length as u64 + 1).read_to_end(&mut content).map_err(|error| damaged(error.to_string()))?;
    if content.len() != length {
        return Err(damaged(wrong_length(content.len(), length)));
    }
    Ok(content)
}

fn wrong_length(found: usize, length: usize) -> String {
    format!("it has {found} bytes instead of {length}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    #[test]
    fn a_chunk_comes_back_and_a_damaged_one_does_not() {
        is_checked(compress);
    }

    #[test]
    fn a_chunk_of_an_earlier_version_is_read() {
        is_checked(|content| compress_to_vec(content, CompressionLevel::Fastest));
    }

    fn is_checked(compress: impl Fn(&[u8]) -> Vec<u8>) {
        let content: Vec<u8> = (0..100_000u32).flat_map(|word| (word / 7).to_le_bytes()).collect();
        let (hash, stored) = (Hash::of(&content), compress(&content));
        let name = Name { hash, epoch: 3 };
        assert!(stored.len() < content.len());
        let expand = |stored: &[u8], length| expand("chunks/a", hash, stored, length);
        assert_eq!(expand(&stored, content.len()).unwrap(), content);
        assert!(expand(&stored, content.len() - 1).is_err() && expand(&stored, content.len() + 1).is_err());
        assert!(expand(&stored[..stored.len() / 2], content.len()).is_err());
        let mut other = content.clone();
        other[77] ^= 1;
        let error = expand(&compress(&other), content.len()).unwrap_err();
        assert!(error.to_string().ends_with("its content has another hash"), "{error}");
        assert_eq!(Hash::parse(&hash.to_string()), Some(hash));
        assert_eq!(["", "zz", &"A".repeat(64), &"0".repeat(65)].map(Hash::parse), [None; 4]);
        for name in [name, Name { epoch: 0, ..name }] {
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        let wrong = [".0", ".03", ".", ".+3", ".4294967296", ".1.1"].map(|epoch| format!("{hash}{epoch}"));
        assert!(wrong.iter().all(|text| Name::parse(text).is_none()), "one name has one text");
    }

    #[test]
    fn content_that_cannot_be_compressed_fits() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let content: Vec<u8> = (0..MOST_CHUNK).map(|_| next()).collect();
        assert!(compress(&content).len() <= MOST_STORED);
    }
}
