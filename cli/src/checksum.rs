//! A checksum against accidents: of the network, and of whoever mixes up pages or loses one. Four words at a time, so that
//! it is faster than the copies around it.

use std::array;

/// Over what was added so far, in this order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum([u64; 4]);

impl Sum {
    /// Of these bytes alone.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.value()
    }

    /// Adds bytes; the last word may be shorter.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut fours = bytes.chunks_exact(32);
        for four in &mut fours {
            for (lane, word) in self.0.iter_mut().zip(four.chunks_exact(8)) {
                *lane = Self::mix(*lane, word);
            }
        }
        for (lane, word) in self.0.iter_mut().zip(fours.remainder().chunks(8)) {
            *lane = Self::mix(*lane, word);
        }
    }

    /// The checksum.
    pub fn value(self) -> u64 {
        self.0
            .into_iter()
            .fold(0, |all, lane| (all ^ lane).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(31))
    }

    #[inline(always)]
    fn mix(lane: u64, word: &[u8]) -> u64 {
        let word = u64::from_le_bytes(array::from_fn(|byte| word.get(byte).copied().unwrap_or(0)));
        (lane ^ word).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
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
