//! Random tables, mostly wrong: each walk answers, sets and marks exactly what the oracle does.

use super::oracle::{Drawn, Kind, Said, Words};
use super::*;
use fastrand::Rng;

/// The entries used in each page: paths meet there.
const ENTRIES: [u64; 3] = [0, 1, 511];

/// A word that may be an entry.
fn word(rng: &mut Rng, kind: Kind) -> u64 {
    let frame = match rng.u32(..16) {
        0 => rng.u64(..1 << 40),
        1 => ALIAS.0 + rng.u64(..ALIASES),
        _ => rng.u64(..FRAMES),
    };
    let (at, is_leaf) = (frame << 12, rng.u8(..3) == 0);
    let aligned = rng.u64(..64) << 30;
    let some = |rng: &mut Rng, bits: u64| if rng.u8(..3) == 0 { rng.u64(..) & bits } else { bits };
    let word = match kind {
        Kind::Ept { .. } if is_leaf => {
            (if rng.bool() { aligned } else { at }) | some(rng, 0x407) | 6 << 3 | some(rng, 0x380)
        }
        Kind::Ept { .. } => at | some(rng, 0x507),
        Kind::Npt { .. } if is_leaf => {
            (if rng.bool() { aligned } else { at }) | some(rng, 0xe7) | rng.u64(..) & 0x18
        }
        Kind::Npt { .. } => at | some(rng, 0x27),
        Kind::Arm { .. } => {
            let attributes =
                some(rng, 0x4c0) | some(rng, 1 << 51) | rng.u64(..) & 3 << 53 & some(rng, 3 << 53);
            (if is_leaf { aligned } else { at }) | some(rng, 3) | 0xf << 2 | attributes
        }
        Kind::RiscV { .. } if is_leaf => (if rng.bool() { aligned } else { at }) >> 2 | some(rng, 0xdf),
        Kind::RiscV { .. } => at >> 2 | 1,
    };
    match rng.u8(..24) {
        0..=3 => word ^ 1 << rng.u32(..64),
        4 => 0,
        5 => rng.u64(..),
        _ => word,
    }
}

fn gpa(rng: &mut Rng, drawn: &Drawn) -> Gpa {
    let mut gpa = rng.u64(..PAGE_SIZE);
    for level in 0..u32::from(drawn.levels) {
        gpa |= ENTRIES[rng.usize(..3)] << (12 + 9 * level);
    }
    if rng.u8(..16) == 0 {
        gpa ^= 1 << rng.u32(12..60);
    }
    let wide = gpa | rng.u64(..4) << (12 + 9 * u32::from(drawn.levels));
    Gpa(if rng.u8(..16) == 0 { wide } else { wide & ((1 << drawn.input) - 1) })
}

/// How walks ended: leaves, and each refusal.
pub(super) type Ends = std::collections::BTreeMap<std::string::String, u32>;

/// Worlds of random words, and walks in each: by `table`, and by its drawing.
pub(super) fn compare<T: L1Format>(table: T, drawn: Drawn, seed: u64, worlds: u32, ends: &mut Ends) {
    let mut rng = Rng::with_seed(seed);
    for nth in 0..worlds {
        let mut world = World::new();
        let mut words = Words::new();
        for frame in 0..NOWHERE {
            for entry in ENTRIES {
                let word = word(&mut rng, drawn.kind);
                world.put(frame, entry, word);
                words.insert(frame << 12 | entry << 3, word);
            }
        }
        for _ in 0..32 {
            let walk_for = (rng.u8(..4) == 0).then(|| ALL[rng.usize(..3)]);
            let access = if walk_for.is_some() { ALL[rng.usize(..2)] } else { ALL[rng.usize(..3)] };
            let access =
                L1Access { user: rng.bool(), walk_for, ..L1Access::new(gpa(&mut rng, &drawn), access) };
            let mut marked = Vec::new();
            let expected = drawn.walk(&mut words, &access, &mut marked);
            let found = world.walk(&table, access).map(said).map_err(|stop| match stop {
                L1Stop::Fault(fault) => (fault.why, fault.level.number(), rights(fault.rights)),
                other => panic!("{other}"),
            });
            assert_eq!(found, expected, "{drawn:?} world {nth} of seed {seed}: {access:?}");
            for (&place, &word) in &words {
                let now = world.get(place >> 12, place >> 3 & 511);
                assert_eq!(now, word, "{drawn:?} world {nth} of seed {seed}: {access:?} at {place:#x}");
            }
            marked.sort_unstable();
            marked.dedup();
            assert_eq!(world.dirty(), marked, "{drawn:?}");
            world.clean();
            let end = match expected {
                Ok(Said { level, .. }) => std::format!("leaf {level}"),
                Err((why, ..)) => std::format!("{why:?}"),
            };
            *ends.entry(end).or_default() += 1;
        }
    }
}

fn rights(L1Rights { perms, user }: L1Rights) -> [bool; 4] {
    let [read, write, fetch] = ALL.map(|access| perms.allows(access));
    [read, write, fetch, user.allows(Access::Fetch)]
}

fn said(leaf: L1Leaf) -> Said {
    Said {
        frame: leaf.gfn.0,
        level: leaf.level.number(),
        allowed: rights(leaf.allowed),
        rights: rights(leaf.rights),
        memory: leaf.memory,
        accessed: leaf.accessed,
        dirty: leaf.dirty,
    }
}

const ROOT: u64 = 4;

/// EPT of some features, both ways.
pub(super) fn of_ept(
    levels: u64,
    accessed_dirty: bool,
    execute_only: bool,
    by_mode: bool,
) -> (EptTable, Drawn) {
    let features = EptFeatures {
        five_levels: true,
        large_1g: true,
        accessed_dirty: true,
        execute_only,
        mode_based_execute: by_mode,
        ..EptFeatures::of(46)
    };
    let pointer = ROOT << 12 | u64::from(accessed_dirty) << 6 | (levels - 1) << 3;
    let kind = Kind::Ept { accessed_dirty, execute_only, by_mode };
    let drawn =
        Drawn { kind, root: ROOT << 12, levels: levels as u8, input: 12 + 9 * levels as u32, output: 46 };
    (EptTable::new(pointer, features).unwrap(), drawn)
}

fn must_end(ends: &Ends, all: &[&str]) {
    let missing: Vec<_> = all.iter().filter(|end| !ends.contains_key(**end)).collect();
    assert!(missing.is_empty(), "no walk ended as {missing:?}: {ends:?}");
}

const WORLDS: u32 = 16;

#[test]
fn walks_of_random_ept_end_as_the_manual_has_it() {
    let mut ends = Ends::new();
    for (levels, bits) in (4..=5).flat_map(|levels| (0..8).map(move |bits| (levels, bits))) {
        let (table, drawn) = of_ept(levels, bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        compare(table, drawn, bits, WORLDS, &mut ends);
    }
    must_end(&ends, &["leaf 1", "leaf 2", "leaf 3", "NotPresent", "Reserved", "Rights", "NoMemory"]);
}

#[test]
fn walks_of_random_npt_end_as_the_manual_has_it() {
    let mut ends = Ends::new();
    for (levels, nx) in [(3, true), (3, false), (4, true), (4, false), (5, true)] {
        let table = NptTable::new(ROOT << 12, NptMode { levels, nx, ..LONG_MODE }).unwrap();
        let (pae, input) = (levels == 3, if levels == 3 { 32 } else { 12 + 9 * u32::from(levels) });
        let drawn = Drawn { kind: Kind::Npt { nx, pae }, root: ROOT << 12, levels, input, output: 46 };
        compare(table, drawn, 1, 2 * WORLDS, &mut ends);
    }
    must_end(&ends, &["leaf 1", "leaf 2", "leaf 3", "NotPresent", "Reserved", "Rights", "NoMemory"]);
}

#[test]
fn walks_of_random_stage_2_end_as_the_manual_has_it() {
    let mut ends = Ends::new();
    for (input, start, switches) in
        [(48, 0, 3 << 21), (40, 1, 1 << 21), (41, 1, 0), (32, 2, 3 << 21), (39, 1, 3 << 21)]
    {
        for xnx in [false, true] {
            let vtcr = vtcr(input, start) & !(3 << 21 | 7 << 16) | switches | 4 << 16;
            let table = Stage2Table::new(ROOT << 12, vtcr, Stage2Features { xnx, ..STAGE2 });
            let (sets_accessed, sets_dirty) = (switches != 0, switches == 3 << 21);
            let kind = Kind::Arm { sets_accessed, sets_dirty, xnx };
            let (levels, input) = (4 - start as u8, input as u32);
            let Some(table) = table else { continue };
            let drawn = Drawn { kind, root: table.root().0.0, levels, input, output: 44 };
            compare(table, drawn, 1, WORLDS, &mut ends);
        }
    }
    must_end(
        &ends,
        &["leaf 1", "leaf 2", "leaf 3", "NotPresent", "AddressSize", "NotAccessed", "Rights", "NoMemory"],
    );
}

#[test]
fn walks_of_random_g_stages_end_as_the_manual_has_it() {
    let mut ends = Ends::new();
    for (mode, bits) in (8..=10).flat_map(|mode| (0..4).map(move |bits| (mode, bits))) {
        let (adue, mxr) = (bits & 1 != 0, bits & 2 != 0);
        let table = GStageTable::new(mode << 60 | ROOT, GStageFeatures { adue, pbmte: true, mxr }).unwrap();
        let (levels, input) = (mode as u8 - 5, 9 * (mode as u32 - 5) + 14);
        let drawn = Drawn { kind: Kind::RiscV { adue, mxr }, root: ROOT << 12, levels, input, output: 56 };
        compare(table, drawn, bits, WORLDS, &mut ends);
    }
    must_end(
        &ends,
        &[
            "leaf 1",
            "leaf 2",
            "leaf 3",
            "leaf 4",
            "NotPresent",
            "NotAccessed",
            "Reserved",
            "Rights",
            "NoMemory",
        ],
    );
}
