//! A checksum against accidents: of the network, and of whoever mixes up pages or loses one.

use rapidhash::v3::rapidhash_v3;

/// Over the pieces that were added so far, in this order: the same pieces on both sides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Of these bytes alone.
    pub fn of(bytes: &[u8]) -> u64 {
        rapidhash_v3(bytes)
    }

    /// Adds a piece.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = (self.0 ^ Self::of(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// The checksum.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Sum;

    #[test]
    fn one_changed_byte_and_two_changed_places_are_found_out() {
        let bytes: Vec<u8> = (0..120_u64).flat_map(|word| (word * word).to_le_bytes()).collect();
        let sum = Sum::of(&bytes);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(Sum::of(&other), sum, "{at}");
        }
        let mut other = bytes.clone();
        other.rotate_left(32);
        assert_ne!(Sum::of(&other), sum, "the same words, elsewhere in the same lanes");
        assert_ne!(Sum::of(&[0; 64]), Sum::of(&[0; 32]));
    }
}
