//! The positions of a guest's vCPUs as the bytes of a page range.
//!
//! ```text
//! checksum │ length │ what runs │ process │ regions of the machine │ vCPUs │ job, batches, regions, (traced address, guest address)… │ …
//! ```
//! All words have 64 bits, little-endian. The pages of the range arrive one by one; the checksum shows whether all of
//! them belong to one harvest.

use rapidhash::v3::rapidhash_v3;
use slat::{Gpa, PAGE_SIZE};
use slat_vcpu::guest::{Layout, Region};

/// The position of one vCPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// The index of the trace that it replays.
    pub job: u64,
    /// Batches of that trace that are done.
    pub batches: u64,
    /// The places of the trace's regions.
    pub regions: Vec<Region>,
}

/// The state of all vCPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guest {
    /// A hash of what the guest replays. Two guests with different hashes are different.
    pub runs: u64,
    /// A random number of the process where it runs.
    pub process: u64,
    /// Number of regions placed.
    pub placed: u64,
    /// One position per vCPU.
    pub positions: Vec<Position>,
}

const HEAD: usize = 2;

impl Guest {
    /// Pages that the state of a machine with this much memory takes at most.
    pub fn pages(memory: u64, vcpus: u32) -> u64 {
        let words = HEAD as u64 + 4 + 3 * u64::from(vcpus) + 2 * memory.div_ceil(Layout::REGION);
        (words * 8).div_ceil(PAGE_SIZE)
    }

    /// Encodes the state as whole pages.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![0; HEAD];
        words.extend([self.runs, self.process, self.placed, self.positions.len() as u64]);
        for position in &self.positions {
            words.extend([position.job, position.batches, position.regions.len() as u64]);
            words.extend(position.regions.iter().flat_map(|region| [region.start, region.gpa.0]));
        }
        words[1] = words.len() as u64;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sum = rapidhash_v3(&bytes[8..]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(PAGE_SIZE as usize), 0);
        bytes
    }

    /// Decodes the state; `None` if the pages belong to two harvests.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let (sum, length) = (words.next()?, usize::try_from(words.next()?).ok()?);
        if rapidhash_v3(bytes.get(8..length.checked_mul(8)?)?) != sum {
            return None;
        }
        let mut words = words.take(length.checked_sub(HEAD)?);
        let mut next = || words.next();
        let (runs, process, placed, vcpus) = (next()?, next()?, next()?, next()?);
        let mut positions = Vec::new();
        for _ in 0..vcpus {
            let (job, batches, count) = (next()?, next()?, next()?);
            let mut regions = Vec::new();
            for _ in 0..count {
                regions.push(Region { start: next()?, gpa: Gpa(next()?) });
            }
            positions.push(Position { job, batches, regions });
        }
        Some(Self { runs, process, placed, positions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> Guest {
        let region = |number: u64| Region { start: number << 30, gpa: Gpa(number << 24) };
        let positions = (1..4).map(|vcpu| Position {
            job: vcpu,
            batches: 7 * vcpu,
            regions: (0..vcpu * 100).map(region).collect(),
        });
        Guest { runs: 0x1234, process: 77, placed: 9, positions: positions.collect() }
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded() {
        let bytes = guest().encode();
        assert!(bytes.len() as u64 <= Guest::pages(600 * Layout::REGION, 3) * PAGE_SIZE);
        assert_eq!(Guest::decode(&bytes), Some(guest()));
    }

    #[test]
    fn bytes_of_two_harvests_are_refused() {
        let old = guest();
        let mut new = guest();
        new.positions[2].batches += 1;
        new.positions[2].regions[299].gpa = Gpa(0);
        let (old, new) = (old.encode(), new.encode());
        for page in (0..new.len()).step_by(PAGE_SIZE as usize) {
            let torn: Vec<u8> = new[..page].iter().chain(&old[page..]).copied().collect();
            assert_eq!(Guest::decode(&torn).is_some(), page == 0, "{page}");
        }
        // Lengths are checked before bytes are read.
        assert_eq!(Guest::decode(&[]), None);
        assert_eq!(Guest::decode(&[0xff; 64]), None);
        for cut in 0..64 {
            assert_eq!(Guest::decode(&new[..new.len() - PAGE_SIZE as usize - cut]), None);
        }
    }
}
