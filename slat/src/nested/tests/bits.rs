//! Each bit of each entry, and each pair of bits of one entry, of every format: a walk with the bits changed ends as the
//! oracle's.

use super::manual::arm::Stage2;
use super::manual::ept::is_pointer;
use super::manual::{Words, store};
use super::worlds::{Check, ROOT, Writes, accesses, compare, each_ept, each_g_stage, each_npt, each_stage_2};
use super::*;
use fastrand::Rng;

/// A chain of entries to a leaf: the place of each entry, and its word.
pub(super) type Chain = Vec<(u64, u64)>;

/// The pairs of bits are spread over this many tables with different parameters: each table is tried with one share.
const SHARES: u64 = 32;

/// Calls `check` with a chain in which one bit is changed, for each bit of `width` in each entry; then two bits of one
/// entry, for each pair of the share; then a sample of two bits in two entries.
pub(super) fn each_change(
    chain: &Chain,
    width: u32,
    share: u64,
    rng: &mut Rng,
    mut check: impl FnMut(&Chain, &mut Rng),
) {
    let mut pair = share;
    let with = |entry: usize, bits: u64| {
        let mut changed = chain.clone();
        changed[entry].1 ^= bits;
        changed
    };
    check(chain, rng);
    for entry in 0..chain.len() {
        for low in 0..width {
            check(&with(entry, 1 << low), rng);
            check(&with(entry, 1 << low), rng);
            for high in low + 1..width {
                pair += 1;
                if pair.is_multiple_of(SHARES) {
                    check(&with(entry, 1 << low | 1 << high), rng);
                }
            }
        }
    }
    for _ in 0..16 {
        let mut changed = with(rng.usize(..chain.len()), 1 << rng.u32(..width));
        changed[rng.usize(..chain.len())].1 ^= 1 << rng.u32(..width);
        check(&changed, rng);
    }
}

/// Writes the chain. Returns the words of all memory.
pub(super) fn write(world: &World, chain: &Chain, size: u64) -> Words {
    let mut words = Words::new();
    for &(place, word) in chain {
        store(&mut words, place, size, word);
    }
    for (&place, &word) in &words {
        world.put(place >> 12, place >> 3 & 511, word);
    }
    words
}

struct Bits {
    rng: Rng,
    tables: u64,
    walks: u64,
    leaves: u64,
}

impl Bits {
    fn new() -> Self {
        Self { rng: Rng::with_seed(1), tables: 0, walks: 0, leaves: 0 }
    }
}

impl Check for Bits {
    fn check<T: L1Format, M: Writes<Report = T::Injection>>(&mut self, table: T, manual: M) {
        let Self { rng, tables, walks, leaves } = self;
        *tables += 1;
        let gpa = (1..=manual.levels()).map(|level| 1 << manual.shift(level)).sum::<u64>() | 0x123;
        let Ok((root, levels)) = manual.root() else { return };
        let all: Vec<_> = accesses(gpa).collect();
        for leaf in 1..=levels {
            let used = (*tables + u64::from(leaf)) % 2 == 0;
            let (mut chain, mut at, mut world) = (Chain::new(), root, World::new());
            for level in (leaf..=levels).rev() {
                let (place, _) = manual.place(at, level, gpa);
                at = (ROOT + 16 + u64::from(level)) << 12;
                let page = 1 << manual.shift(level);
                let word = if level == leaf { manual.leaf(page, level, used) } else { manual.link(at) };
                chain.push((place, word));
            }
            each_change(&chain, 64, *tables, rng, |changed, rng| {
                let access = all[rng.usize(..all.len())];
                let mut words = write(&world, changed, 8);
                let end = compare(&mut world, &mut words, (&table, &manual), access, &changed);
                *walks += 1;
                *leaves += u64::from(end.starts_with("leaf"));
            });
            assert_eq!(world.dirty(), [0; 0], "{manual:x?}: marked without need");
        }
    }
}

/// Makes the test, and checks that enough walks end with a leaf and enough without.
fn bits(each: fn(&mut Bits)) {
    let mut bits = Bits::new();
    each(&mut bits);
    let Bits { walks, leaves, .. } = bits;
    assert!(leaves > walks / 8 && leaves < walks / 8 * 7, "{leaves} of {walks}");
}

#[test]
fn each_bit_of_ept_acts_as_the_manual_has_it() {
    bits(each_ept);
}

#[test]
fn each_bit_of_npt_acts_as_the_manual_has_it() {
    bits(each_npt);
}

#[test]
fn each_bit_of_stage_2_acts_as_the_manual_has_it() {
    bits(each_stage_2);
}

#[test]
fn each_bit_of_g_stages_acts_as_the_manual_has_it() {
    bits(each_g_stage);
}

#[test]
fn each_bit_of_an_ept_pointer_acts_as_the_manual_has_it() {
    for switches in 0..8_u64 {
        let [five_levels, accessed_dirty, is_wide] = [0, 1, 2].map(|bit| switches >> bit & 1 == 1);
        let physical_bits = if is_wide { 52 } else { 39 };
        let features = EptFeatures { five_levels, accessed_dirty, ..EptFeatures::of(physical_bits) };
        for base in [3 << 3 | 6, 4 << 3 | 6, 3 << 3] {
            for pointer in (0..64 * 64).map(|nth| base ^ (1 << (nth & 63) | 1 << (nth >> 6))) {
                let table = EptTable::new(pointer, features);
                assert_eq!(table.is_some(), is_pointer(pointer, &features), "{pointer:#x}: {features:?}");
            }
        }
    }
}

#[test]
fn each_size_and_first_level_of_stage_2_is_taken_as_the_manual_has_it() {
    for (size, start) in (0..64).flat_map(|size| (0..4).map(move |start| (size, start))) {
        let vtcr = 5 << 16 | start << 6 | size;
        let manual = Stage2 { vttbr: 0, vtcr, features: STAGE2 };
        // 16 to 48 bits of address. A walk from level 3 takes FEAT_TTST, which is not offered.
        let is_taken = manual.is_consistent() && size >= 16 && start != 3;
        assert_eq!(Stage2Table::new(0, vtcr, STAGE2).is_some(), is_taken, "{size} from {start}");
    }
}

#[test]
fn each_bit_of_the_roots_of_npt_and_g_stages_acts_as_the_manual_has_it() {
    for (levels, physical_bits, bit) in (3..=5)
        .flat_map(|levels| [36, 52].map(|width| (levels, width)))
        .flat_map(|(levels, width)| (0..64).map(move |bit| (levels, width, bit)))
    {
        let mode = NptMode { levels, physical_bits, ..LONG_MODE };
        let table = NptTable::new(1 << bit, mode);
        assert_eq!(table.is_some(), bit < physical_bits, "VMRUN refuses bit {bit} of {physical_bits}");
        let first = if levels == 3 { 5..32 } else { 12..64 };
        let root = if first.contains(&bit) { 1 << bit } else { 0 };
        assert!(table.is_none_or(|table| table.root().0 == Gpa(root)), "{levels} levels, bit {bit}");
    }
    for (mode, bit) in (0..16).flat_map(|mode| (0..60).map(move |bit| (mode, bit))) {
        let table = GStageTable::new(mode << 60 | 1 << bit, G_STAGE);
        assert_eq!(table.is_some(), (8..=10).contains(&mode));
        // The VMID, and the two lowest bits of the frame, which read as zero.
        let root = if (2..44).contains(&bit) { 1 << (bit + 12) } else { 0 };
        assert!(table.is_none_or(|table| table.root().0 == Gpa(root)), "bit {bit}");
    }
}
