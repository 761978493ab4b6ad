//! A checksum against accidents: changed bytes, swapped or missing pages. It is not a signature.

use rapidhash::v3::rapidhash_v3;

/// Over the pieces added so far, in this order. Both sides must add the same pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds a piece.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0 = (self.0 ^ rapidhash_v3(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// Returns the checksum.
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
        assert_ne!(of(&[&other]), sum, "the same words in other places of the same lanes");
        assert_ne!(of(&[&[0; 64]]), of(&[&[0; 32]]));
        assert_ne!(of(&[&[1], &[2]]), of(&[&[2], &[1]]), "two pieces swapped");
    }
}
