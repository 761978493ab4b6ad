//! A checksum against accidents: bytes that change on the way, pages that are mixed up or missing. It is no signature.

use rapidhash::v3::rapidhash_v3;

/// Over the pieces that were added so far, in this order: the same pieces on both sides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds a piece.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0 = (self.0 ^ rapidhash_v3(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// The checksum.
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Sum;

    fn of(pieces: &[&[u8]]) -> u64 {
        let mut sum = Sum::default();
        for piece in pieces {
            sum.add(piece);
        }
        sum.value()
    }

    #[test]
    fn a_changed_byte_and_changed_places_are_found() {
        let bytes: Vec<u8> = (0..120_u64).flat_map(|word| (word * word).to_le_bytes()).collect();
        let sum = of(&[&bytes]);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(of(&[&other]), sum, "{at}");
        }
        let mut other = bytes.clone();
        other.rotate_left(32);
        assert_ne!(of(&[&other]), sum, "the same words, elsewhere in the same lanes");
        assert_ne!(of(&[&[0; 64]]), of(&[&[0; 32]]));
        assert_ne!(of(&[&[1], &[2]]), of(&[&[2], &[1]]), "two pieces in each other's place");
    }
}
