//! Hashes of content.

use std::fmt;

/// BLAKE3 hash of a content, such as a chunk's, whose name it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Computes the hash of this content.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        // Names are compared as text, so each hash must have one spelling.
        let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        lower.then(|| blake3::Hash::from_hex(text).ok()).flatten().map(|hash| Self(*hash.as_bytes()))
    }

    /// Returns the key of a chunk that a store got before its first collection.
    pub fn key(&self) -> String {
        format!("chunks/{self}")
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
