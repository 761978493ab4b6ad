//! Tests of all formats: decoding inverts encoding, and no reserved bit is ever set.

use super::*;
use crate::addr::{INDEX_BITS, Level, PAGE_SHIFT, Pfn};
use crate::near_edges::near_edges;
use crate::table::entry::Word;
use crate::table::format::Kind;
use crate::table::format::{Access, Format, Leaf, MemoryType, Perms, assert_format};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use proptest::prelude::*;

type EptOfTrustDomain = Ept<4, true, 47>;
type NptEncrypted = Npt<4, 51>;

const _: () = {
    assert_format::<Ept4>();
    assert_format::<Ept5>();
    assert_format::<Ept4NoAd>();
    assert_format::<EptOfTrustDomain>();
    assert_format::<Ept<5, true, 51>>();
    assert_format::<Npt4>();
    assert_format::<Npt5>();
    assert_format::<Npt<4, 47>>();
    assert_format::<Npt<5, 51>>();
    assert_format::<Pae>();
    assert_format::<Arm64L39>();
    assert_format::<Arm64L40>();
    assert_format::<Arm64L48>();
    assert_format::<Arm64NoAd>();
    assert_format::<Sv39x4>();
    assert_format::<Sv48x4>();
    assert_format::<Sv57x4>();
    assert_format::<Sv39x4NoAd>();
    assert!(Ept4::FRAME_BITS + PAGE_SHIFT == 48 && Ept5::FRAME_BITS + PAGE_SHIFT == 57);
    assert!(Npt4::FRAME_BITS + PAGE_SHIFT == 48 && Npt5::FRAME_BITS + PAGE_SHIFT == 57);
    assert!(Pae::FRAME_BITS + PAGE_SHIFT == 32);
    assert!(Pae::HOST_WRITE & 0b111 << 9 != 0, "bits 11..9 are software's, in every entry");
    assert!(Arm64L39::LEVELS == 3 && Arm64L40::ROOT_PAGES == 2 && Arm64L48::LEVELS == 4);
    let kept = Arm64L48::DIRTY & !Arm64NoAd::WRITE;
    assert!((Arm64L48::HOST_WRITE | kept) & !(0xf << 55) == 0, "bits 58..55 are software's");
    assert!(Sv39x4::FRAME_BITS + PAGE_SHIFT == 41 && Sv57x4::FRAME_BITS == 5 * INDEX_BITS + 2);
    assert!(Sv39x4::HOST_WRITE & 0b11 << 8 != 0, "bits 9..8 are software's");
};

/// Checks encoding, decoding and every editor of one format.
fn leaves_survive<F: Format>(leaf: Leaf, level: Level) {
    if level > F::MAX_LEAF {
        return;
    }
    if F::HARDWARE_AD {
        present_survives::<F>(leaf, level);
    } else {
        let dirty = leaf.perms.allows(Access::Write);
        present_survives::<F>(Leaf { accessed: true, dirty, ..leaf }, level);
        assert_eq!(F::leaf(&Leaf { accessed: false, ..leaf }, level), Word::withdrawn(&leaf));
    }
    withdrawn_survives::<F>(Leaf { accessed: false, ..leaf }, level);
}

/// Checks that a withdrawn word is edited like the leaf that it keeps, and is restored to that leaf.
fn withdrawn_survives<F: Format>(leaf: Leaf, level: Level) {
    let word = Word::withdrawn(&leaf);
    assert_eq!((F::decode(word), F::host_writable(word)), (leaf, leaf.host_writable));
    assert!(!F::is_present(word) && !F::writable(word));
    for on in [false, true] {
        let edited = F::set_writable(word, on);
        let back = F::set_writable(edited, leaf.perms.allows(Access::Write));
        assert_eq!((edited.kind::<F>(level), F::decode(back)), (Kind::Withdrawn, leaf));
        assert_eq!(F::decode(edited).perms.allows(Access::Write), on);
    }
    let withdrawn = F::decode(F::write_withdrawn(word));
    let perms = leaf.perms.without(Perms::WRITE);
    assert_eq!(withdrawn, Leaf { perms, host_writable: false, ..leaf });
    let restored = F::restore(word, level);
    let dirty = if F::HARDWARE_AD { leaf.dirty } else { leaf.perms.allows(Access::Write) };
    assert_eq!(restored.kind::<F>(level), Kind::Leaf);
    assert_eq!(F::decode(restored), Leaf { accessed: true, dirty, ..leaf });
}

fn present_survives<F: Format>(leaf: Leaf, level: Level) {
    let word = F::leaf(&leaf, level);
    assert_eq!((F::read_leaf(word), F::decode(word)), (leaf, leaf));
    assert_eq!(word.kind::<F>(level), Kind::Leaf);
    assert_eq!(F::writable(word), leaf.perms.allows(Access::Write));
    assert!(!F::writable(F::set_writable(word, false)));
    assert_eq!(F::set_writable(F::set_writable(word, false), F::writable(word)), word, "Dirty and all stay");
    let withdrawn = F::read_leaf(F::write_withdrawn(word));
    assert!(!withdrawn.host_writable && !withdrawn.perms.allows(Access::Write));
    let given = F::set_writable(word, true);
    let dirty = if F::HARDWARE_AD { leaf.dirty } else { true };
    assert_eq!(F::read_leaf(given), Leaf { perms: leaf.perms.with(Perms::WRITE), dirty, ..leaf });
    let touched = F::read_leaf(Word(given.0 | F::touch(Access::Write)));
    assert!(touched.accessed && touched.dirty && touched.pfn == leaf.pfn);
    let clean = F::read_leaf(Word(word.0 & !F::DIRTY));
    assert_eq!(clean, Leaf { dirty: leaf.dirty && !F::HARDWARE_AD, ..leaf });
}

fn links_survive<F: Format>(pfn: Pfn) {
    for level in 2..=F::LEVELS {
        let level = Level::new(level).unwrap();
        let link = F::link(pfn, level);
        assert_eq!(link.kind::<F>(level), Kind::Table(pfn));
        assert_eq!(Word(link.0 | F::touch_link(level)).kind::<F>(level), Kind::Table(pfn));
    }
}

/// Calls `$check::<F>($args)` for every format.
macro_rules! for_all {
    ($check:ident $args:tt) => {
        for_all!($check $args: Ept4 Ept5 Ept4NoAd Npt4 Npt5 Pae Arm64L39 Arm64L40 Arm64L48 Arm64NoAd Sv39x4 Sv48x4
            Sv57x4 Sv39x4NoAd EptOfTrustDomain NptEncrypted)
    };
    ($check:ident $args:tt: $($format:ident)*) => { $($check::<$format> $args;)* };
}

/// Returns the bits from `low` to `high`.
const fn bits(low: u32, high: u32) -> u64 {
    u64::MAX >> (63 - high) & u64::MAX << low
}

/// Returns the bits that the manuals let software set in a present entry of this level, without extensions that the
/// format does not name. Taken from the manuals, not from the formats.
fn allowed<F: Format>(level: Level, is_link: bool) -> u64 {
    let frame = if is_link { PAGE_SHIFT } else { level.shift() + PAGE_SHIFT };
    match F::NAME {
        "ept4" | "ept5" | "ept4-noad" | "ept4-td" => {
            let of_leaf = bits(3, 7) | bits(52, 56);
            let dirty = if F::HARDWARE_AD { bits(8, 9) } else { 0 };
            bits(0, 2) | bits(frame, 51) | if is_link { dirty & 1 << 8 } else { of_leaf | dirty }
        }
        "npt4" | "npt5" | "npt4-c" => {
            let of_leaf = bits(3, 6) | 1 << 63 | bits(52, 58) | if level > Level::K4 { 1 << 7 } else { 0 };
            bits(0, 2) | bits(frame, 51) | if is_link { 1 << 5 } else { of_leaf }
        }
        "pae" if level == Level::G1 => 1 | bits(PAGE_SHIFT, 51),
        "pae" => {
            let of_leaf = bits(3, 6) | 1 << 63 | bits(9, 11) | if level > Level::K4 { 1 << 7 } else { 0 };
            bits(0, 2) | bits(frame, 51) | if is_link { 1 << 5 } else { of_leaf }
        }
        name if name.starts_with("arm64") => {
            let dirty = if F::HARDWARE_AD { 1 << 51 } else { 0 };
            let of_leaf = bits(2, 10) | 1 << 54 | bits(55, 58) | dirty;
            bits(0, 1) | bits(frame, 47) | if is_link { 0 } else { of_leaf }
        }
        _ => 1 | bits(frame - 2, 53) | if is_link { 0 } else { bits(1, 4) | bits(6, 9) | bits(61, 62) },
    }
}

/// Checks that a leaf and its editors set no reserved bit.
fn nothing_reserved_is_set<F: Format>(leaf: Leaf, level: Level) {
    if level > F::MAX_LEAF {
        return;
    }
    let word = F::leaf(&Leaf { accessed: leaf.accessed || !F::HARDWARE_AD, ..leaf }, level);
    let writable = F::set_writable(word, true);
    for word in [word, writable, F::set_writable(word, false), F::write_withdrawn(word)] {
        assert_eq!(word.0 & !allowed::<F>(level, false), 0, "{} {word:?}", F::NAME);
    }
    assert_eq!((writable.0 | F::touch(Access::Write)) & !allowed::<F>(level, false), 0, "{}", F::NAME);
}

fn nothing_reserved_is_set_in_links<F: Format>(pfn: Pfn) {
    for level in (2..=F::LEVELS).filter_map(Level::new) {
        let link = F::link(pfn, level).0 | F::touch_link(level);
        assert_eq!(link & !allowed::<F>(level, true), 0, "{} {link:#x}", F::NAME);
    }
}

proptest! {
    #[test]
    fn every_format_keeps_what_it_is_given(pfn in near_edges(0..1 << 36), level in 1u8..=3, bits in 0u8..128) {
        let on = |bit: u8| bits >> bit & 1 == 1;
        let perms = Perms::READ
            .with(if on(0) { Perms::WRITE } else { Perms::NONE })
            .with(if on(1) { Perms::EXECUTE } else { Perms::NONE });
        let level = Level::new(level).unwrap();
        let pfn = Pfn(pfn & !(level.pages() - 1));
        let memory = MemoryType::from_bits(u64::from(bits >> 5));
        let leaf = Leaf { pfn, perms, memory, host_writable: on(2), accessed: on(3), dirty: on(4) };
        for_all!(leaves_survive(leaf, level));
        for_all!(nothing_reserved_is_set(leaf, level));
        for_all!(links_survive(pfn));
        for_all!(nothing_reserved_is_set_in_links(pfn));
    }

    #[test]
    fn a_pdpte_sets_nothing_that_is_reserved(pfn in near_edges(0..1 << 40)) {
        let root = Pae::ROOT_LEVEL;
        let link = Pae::link(Pfn(pfn), root).0 | Pae::touch_link(root);
        prop_assert_eq!(link, pfn << 12 | 1, "P and the address");
        let below = Pae::link(Pfn(pfn), Level::M2).0 | Pae::touch_link(Level::M2);
        prop_assert_eq!(below, pfn << 12 | 0b10_0111, "A, U, W, P");
    }

    #[test]
    fn without_a_and_d_the_two_bits_are_never_set(pfn in near_edges(0..1 << 40), bits in 0u8..8) {
        let leaf = Leaf {
            pfn: Pfn(pfn),
            perms: Perms::from_bits(bits).with(Perms::READ),
            memory: MemoryType::WriteBack, host_writable: true,
            accessed: true,
            dirty: true,
        };
        let word = Ept4NoAd::leaf(&leaf, Level::K4);
        prop_assert_eq!(word.0 & 0b11 << 8, 0);
        prop_assert_eq!(Ept4NoAd::touch(Access::Write) | Ept4NoAd::touch_link(Level::M2), 0);
        prop_assert_eq!(word.0 | 0b11 << 8, Ept4::leaf(&leaf, Level::K4).0);
    }
}

/// Returns bit numbers as text: `7, 56`, or `-`.
fn named(bits: u64) -> String {
    let all = (0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| format!("{bit}"));
    if bits == 0 { "-".into() } else { all.collect::<Vec<_>>().join(", ") }
}

fn row<F: Format>(table: &mut String) {
    let sizes = ["4K", "2M", "1G"];
    let _ = writeln!(
        table,
        "//! | `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        F::NAME,
        F::FRAME_BITS + PAGE_SHIFT,
        F::LEVELS,
        F::ROOT_PAGES,
        sizes[usize::from(F::MAX_LEAF.number()) - 1],
        named(F::WRITE),
        named(F::ACCESSED),
        named(F::DIRTY),
        if F::touch_link(Level::M2) == 0 { "no" } else { "yes" },
        named(F::HOST_WRITE),
    );
}

#[test]
fn the_documented_table_matches_the_formats() {
    let mut table = String::from(
        "//! | name | bits of address | levels | pages of the root | largest page | W | A | D | A in links | host's answer |\n\
         //! |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for_all!(row(&mut table));
    assert!(include_str!("mod.rs").contains(&table), "put this into the header of formats/mod.rs:\n{table}");
}

/// Encodes a leaf at 1 GiB with every permission, accessed and dirty, of 4 KiB and of 2 MiB; the same read-only; and a
/// link.
fn words<F: Format>() -> [u64; 4] {
    let pfn = Pfn(1 << 18);
    let used = Leaf {
        pfn,
        perms: Perms::RWX,
        memory: MemoryType::WriteBack,
        host_writable: true,
        accessed: true,
        dirty: true,
    };
    let read = Leaf { perms: Perms::READ, host_writable: false, dirty: false, ..used };
    let link = F::link(Pfn(0x1234), Level::M2);
    [F::leaf(&used, Level::K4), F::leaf(&used, Level::M2), F::leaf(&read, Level::K4), link].map(|word| word.0)
}

/// Compares bit by bit: finds flips that no walker notices, for example of a memory type that has an equivalent.
#[test]
fn words_are_those_of_the_manuals() {
    let npt = [0x0020_0000_4000_0067, 0x0020_0000_4000_00e7, 0x8000_0000_4000_0025, 0x0123_4007];
    assert_eq!([words::<Npt4>(), words::<Npt5>()], [npt; 2]);
    // Bit 51, or 47, in write-back leaves and in links.
    assert_eq!(words::<NptEncrypted>(), npt.map(|word| word | 1 << 51));
    assert_eq!(words::<Npt<5, 47>>(), npt.map(|word| word | 1 << 47));
    assert_eq!(words::<Pae>(), [0x4000_0267, 0x4000_02e7, 0x8000_0000_4000_0025, 0x0123_4007]);
    let ept = [0x0020_0000_4000_0337, 0x0020_0000_4000_03b7, 0x4000_0131, 0x0123_4007];
    assert_eq!([words::<Ept4>(), words::<Ept5>()], [ept; 2]);
    assert_eq!(words::<EptOfTrustDomain>(), ept);
    let without = [0x0020_0000_4000_0037, 0x0020_0000_4000_00b7, 0x4000_0031, 0x0123_4007];
    assert_eq!(words::<Ept4NoAd>(), without);
    let arm64 = [0x0088_0000_4000_07ff, 0x0088_0000_4000_07fd, 0x0040_0000_4000_077f, 0x0123_4003];
    assert_eq!([words::<Arm64L39>(), words::<Arm64L40>(), words::<Arm64L48>()], [arm64; 3]);
    let without = [0x0080_0000_4000_07ff, 0x0080_0000_4000_07fd, 0x0040_0000_4000_077f, 0x0123_4003];
    assert_eq!(words::<Arm64NoAd>(), without);
    let riscv = [0x1000_01df, 0x1000_01df, 0x1000_0053, 0x0048_d001];
    assert_eq!([words::<Sv39x4>(), words::<Sv48x4>(), words::<Sv57x4>()], [riscv; 3]);
    assert_eq!(words::<Sv39x4NoAd>(), riscv);
}

/// A walker with four levels starts at bit 47 of the address, one with five at bit 56: the root's index contains the
/// shared bit.
#[test]
fn a_trust_domains_walk_has_the_shared_bit_at_every_level() {
    fn indices<F: Format>(gpa: u64) -> Vec<u64> {
        let levels = (1..=F::LEVELS).filter_map(Level::new);
        levels.map(|level| F::index(crate::addr::Gfn(gpa >> PAGE_SHIFT), level) as u64).collect()
    }
    let walked = |gpa: u64, levels: u32| (0..levels).map(move |level| gpa >> (12 + 9 * level) & 511);
    for gpa in [0, 0x5000, 0x7fff_ffff_f000, 0x1234_5678_9000] {
        assert!(indices::<EptOfTrustDomain>(gpa).into_iter().eq(walked(gpa | 1 << 47, 4)));
        assert!(indices::<Ept<5, true, 51>>(gpa).into_iter().eq(walked(gpa | 1 << 51, 5)));
    }
    assert_eq!(EptOfTrustDomain::FRAME_BITS + PAGE_SHIFT, 47, "addresses end below the bit");
}

/// Returns the bits by which leaves of each other type differ from a write-back leaf.
fn types<F: Format>() -> [u64; 3] {
    let leaf = |memory| {
        let (pfn, perms) = (Pfn(1 << 18), Perms::RWX);
        F::leaf(&Leaf { pfn, perms, memory, host_writable: true, accessed: true, dirty: true }, Level::K4).0
    };
    [MemoryType::WriteCombining, MemoryType::Uncached, MemoryType::Device]
        .map(|memory| leaf(memory) ^ leaf(MemoryType::WriteBack))
}

#[test]
fn memory_types_are_those_of_the_manuals() {
    // From type 6 to 1 and 0, in bits 5..3; ignore PAT.
    let ept = [0b111 << 3, 6 << 3, 1 << 6 | 6 << 3];
    assert_eq!([types::<Ept4>(), types::<Ept5>(), types::<Ept4NoAd>()], [ept; 3]);
    // PWT, PCD.
    assert_eq!([types::<Npt4>(), types::<Npt5>(), types::<Pae>()], [[1 << 3, 1 << 4, 3 << 3]; 3]);
    let plain = 1 << 51;
    assert_eq!(types::<NptEncrypted>(), [plain | 1 << 3, plain | 1 << 4, plain | 3 << 3], "of a device");
    // From 1111 to 0101, 0011 and 0001, in bits 5..2.
    let arm64 = [0b1010 << 2, 0b1100 << 2, 0b1110 << 2];
    assert_eq!([types::<Arm64L48>(), types::<Arm64NoAd>()], [arm64; 2]);
    assert_eq!([types::<Sv39x4>(), types::<Sv39x4NoAd>()], [[1 << 61, 2 << 61, 2 << 61 | 1 << 9]; 2]);
}
