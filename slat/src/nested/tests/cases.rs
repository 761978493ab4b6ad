//! Bit by bit: the manuals' rules for an entry, as tables of (entry, access, outcome). The cases of EPT and NPT are
//! those of kvm-unit-tests, written from the manuals.

use super::*;
use crate::nested::Refusal::*;

pub(super) const R: Access = Access::Read;
pub(super) const W: Access = Access::Write;
pub(super) const X: Access = Access::Fetch;
pub(super) const GPA: Gpa = Gpa(0x678);

pub(super) fn access(access: Access) -> L1Access {
    L1Access::new(GPA, access)
}

/// An access by L2's own walk, for an access of this kind.
pub(super) fn by_walk(access: Access, walk_for: Access) -> L1Access {
    L1Access { walk_for: Some(walk_for), ..L1Access::new(GPA, access) }
}

/// The chain down to `level`, whose entry is `leaf`; `link` makes the entries above.
pub(super) fn chain(world: &World, levels: usize, level: u8, link: impl Fn(u64) -> u64, leaf: u64) {
    let count = levels + 1 - usize::from(level);
    for nth in 0..count - 1 {
        world.put(CHAIN[nth], 0, link(CHAIN[nth + 1]));
    }
    world.put(CHAIN[count - 1], 0, leaf);
}

fn ept_chain(world: &World, level: u8, leaf: u64) {
    chain(world, 4, level, |frame| frame << 12 | 7, leaf);
}

/// A write-back leaf of `level`.
const fn ept_leaf(rights: u64, level: u8) -> u64 {
    1 << 30 | 6 << 3 | rights | (level > 1) as u64 * 0x80
}

#[test]
fn ept_rights_are_those_of_the_three_bits_and_the_qualification_tells_them() {
    let mut world = World::new();
    let features = EptFeatures { execute_only: true, large_1g: true, ..EptFeatures::of(46) };
    let table = EptTable::new(CHAIN[0] << 12 | 3 << 3 | 6, features).unwrap();
    for (level, rights) in (1..=3).flat_map(|level| [1, 3, 4, 5, 7].map(|rights| (level, rights))) {
        ept_chain(&world, level, ept_leaf(rights, level));
        for (kind, bit) in [(R, 1), (W, 2), (X, 4)] {
            if rights & bit != 0 {
                let leaf = world.walk(&table, access(kind)).unwrap();
                assert_eq!((leaf.level.number(), u64::from(leaf.allowed.perms.bits())), (level, rights));
            } else {
                let qualification = bit | rights << 3;
                assert_eq!(world.told(&table, access(kind)), EptExit::Violation { gpa: GPA, qualification });
            }
        }
    }
    // Linear address valid, not by its walk; advanced information. Other bits of the exit are not passed on.
    ept_chain(&world, 1, ept_leaf(1, 1));
    let with = |carried, walk_for| L1Access { walk_for, carried, ..access(W) };
    let told =
        [(1 << 7, None, 0x18a), (1 << 7 | 1 << 9 | 1 << 16, Some(R), 0x1_028a), (u64::MAX, None, 0x1_ff8a)];
    for (carried, walk_for, qualification) in told {
        let exit = EptExit::Violation { gpa: GPA, qualification };
        assert_eq!(world.told(&table, with(carried, walk_for)), exit, "{carried:#x}");
    }
}

#[test]
fn ept_rights_are_those_of_all_levels_together() {
    let mut world = World::new();
    for (nth, &weak) in CHAIN[..4].iter().enumerate() {
        let table = ept(CHAIN[0], 4, true);
        ept_chain(&world, 1, ept_leaf(7, 1));
        let word = world.get(weak, 0);
        world.put(weak, 0, word & !6);
        let exit = EptExit::Violation { gpa: GPA, qualification: 2 | 1 << 3 };
        assert_eq!(world.told(&table, access(W)), exit, "entry {nth}");
        assert_eq!(world.walk(&table, access(R)).unwrap().allowed.perms, Perms::READ);
    }
}

#[test]
fn ept_misconfiguration_comes_before_everything_but_absence() {
    let mut world = World::new();
    let table = ept(CHAIN[0], 4, true);
    // Without execute-only, W without R, X without R, types 2, 3 and 7; bits beyond 46; large pages not aligned.
    let leaves = [2, 6, 4].map(|rights| (1, ept_leaf(rights, 1))).into_iter();
    let types = [2, 3, 7].map(|kind| (1, ept_leaf(7, 1) & !(7 << 3) | kind << 3)).into_iter();
    let bits = [(1, 46), (1, 51), (2, 12), (2, 20), (3, 12), (3, 29), (3, 50)];
    let reserved = bits.into_iter().map(|(level, bit)| (level, ept_leaf(7, level) | 1 << bit));
    for (level, leaf) in leaves.chain(types).chain(reserved) {
        // Rights that the upper entries lack, too.
        for upper in [1, 7] {
            chain(&world, 4, level, |frame| frame << 12 | upper, leaf);
            for kind in ALL {
                let exit = EptExit::Misconfiguration { gpa: GPA };
                assert_eq!(world.told(&table, access(kind)), exit, "level {level} {leaf:#x}");
            }
        }
    }
    // In a link bits 3 to 7; in the root's bit 7, too. Ignored: 9 to 11, 52 and up; in a page of 4 KiB bit 7.
    for (nth, bit) in [(0, 3), (0, 7), (1, 3), (1, 6), (2, 4)] {
        ept_chain(&world, 1, ept_leaf(7, 1));
        world.put(CHAIN[nth], 0, world.get(CHAIN[nth], 0) | 1 << bit);
        assert_eq!(world.told(&table, access(R)), EptExit::Misconfiguration { gpa: GPA }, "{nth} {bit}");
    }
    for bit in [7, 10, 11, 52, 57, 63] {
        ept_chain(&world, 1, ept_leaf(7, 1) | 1 << bit);
        world.put(CHAIN[0], 0, world.get(CHAIN[0], 0) | (1 << bit & !(1 << 7)));
        assert!(world.walk(&table, access(R)).is_ok(), "bit {bit} is ignored");
    }
    // Not present, whatever else is set.
    ept_chain(&world, 1, !7);
    let fault = world.fault(&table, access(R));
    assert_eq!(
        (fault.why, table.injection(&fault)),
        (NotPresent, EptExit::Violation { gpa: GPA, qualification: 1 })
    );
    // Beyond 48 bits.
    let far = L1Access::new(Gpa(1 << 48), R);
    assert_eq!((world.fault(&table, far).why, world.fault(&table, far).table), (NotPresent, None));
}

#[test]
fn ept_pointers_are_what_vm_entry_takes() {
    let all = EptFeatures { five_levels: true, accessed_dirty: true, ..EptFeatures::of(46) };
    for good in [0x1e, 0x18, 0x26, 0x5e, 0x1234_501e, (1 << 46) - (1 << 12) | 0x1e] {
        assert!(EptTable::new(good, all).is_some(), "{good:#x}");
    }
    for bad in [0, 6, 0x16, 0x2e, 0x1f, 0x19, 0x9e, 0x11e, 0x81e, 1 << 46 | 0x1e, 1 << 63 | 0x1e] {
        assert_eq!(EptTable::new(bad, all), None, "{bad:#x}");
    }
    let few = EptFeatures::of(46);
    assert_eq!([EptTable::new(0x26, few), EptTable::new(0x5e, few)], [None; 2]);
}

#[test]
fn ept_a_and_d_make_stores_of_l2s_walks() {
    let mut world = World::new();
    for accessed_dirty in [false, true] {
        let table = ept(CHAIN[0], 4, accessed_dirty);
        ept_chain(&world, 1, ept_leaf(5, 1));
        let load = by_walk(R, W);
        if accessed_dirty {
            let exit = EptExit::Violation { gpa: GPA, qualification: 3 | 5 << 3 };
            assert_eq!(world.told(&table, load), exit, "a store, and a load");
        } else {
            assert!(world.walk(&table, load).unwrap().dirty, "without A and D nothing is withheld");
        }
        ept_chain(&world, 1, ept_leaf(7, 1));
        world.walk(&table, load).unwrap();
        let expected = if accessed_dirty { 0x300 } else { 0 };
        assert_eq!(world.get(CHAIN[3], 0) & 0x300, expected, "D is set by a walk");
    }
}

#[test]
fn ept_tells_fetches_by_mode() {
    let mut world = World::new();
    let features = EptFeatures { mode_based_execute: true, execute_only: true, ..EptFeatures::of(46) };
    let table = EptTable::new(CHAIN[0] << 12 | 3 << 3 | 6, features).unwrap();
    // A link with all four, a leaf for users or for supervisors.
    for (leaf, user) in [(1 | 1 << 10, true), (1 | 1 << 2, false), (1 << 10, true)] {
        chain(&world, 4, 1, |frame| frame << 12 | 7 | 1 << 10, leaf | 6 << 3);
        let by = |user| L1Access { user, ..access(X) };
        assert!(world.walk(&table, by(user)).is_ok());
        let allowed = (leaf & 5) << 3 | (leaf >> 10 & 1) << 6;
        let exit = EptExit::Violation { gpa: GPA, qualification: 4 | allowed };
        assert_eq!(world.told(&table, by(!user)), exit);
    }
}

/// Long mode, as NPT.
fn npt(mode: NptMode) -> NptTable {
    NptTable::new(CHAIN[0] << 12, mode).unwrap()
}

fn npt_chain(world: &World, level: u8, leaf: u64) {
    chain(world, 4, level, |frame| frame << 12 | 7, leaf);
}

const FINAL: u64 = 1 << 32;
const WALK: u64 = 1 << 33;

#[test]
fn npt_faults_are_those_of_a_user_in_l1s_mode() {
    let mut world = World::new();
    let nx = 1 << 63;
    let (p, w, u, rsvd, id) = (1, 2, 4, 8, 16);
    let cases = [
        // Entry, access, EXITINFO1 without the bit for the place; None if the access continues.
        (0, R, Some(u)),
        (0, W, Some(u | w)),
        (0, X, Some(u | id)),
        (7, W, None),
        (7, X, None),
        (5, R, None),
        (5, W, Some(p | w | u)),
        (3, R, Some(p | u)),
        (3, X, Some(p | u | id)),
        (7 | nx, R, None),
        (7 | nx, X, Some(p | u | id)),
        (7 | 1 << 46, R, Some(p | u | rsvd)),
        (7 | 1 << 51, W, Some(p | u | rsvd | w)),
    ];
    for (level, (leaf, kind, told)) in (1..=3).flat_map(|level| cases.map(|case| (level, case))) {
        let large = if level > 1 && leaf != 0 { 0x80 } else { 0 };
        npt_chain(&world, level, leaf | large);
        match told {
            None => assert!(world.walk(&npt(LONG_MODE), access(kind)).is_ok(), "{leaf:#x}"),
            Some(info) => {
                let info1 = info | FINAL;
                let found = world.told(&npt(LONG_MODE), access(kind));
                assert_eq!(found, NestedPageFault { info1, info2: GPA }, "{level} {leaf:#x} {kind:?}");
            }
        }
    }
    // L2's walk counts as a store, though it loads.
    npt_chain(&world, 1, 5);
    let found = world.told(&npt(LONG_MODE), by_walk(R, X));
    assert_eq!(found, NestedPageFault { info1: p | w | u | WALK, info2: GPA });
    npt_chain(&world, 1, 7);
    world.walk(&npt(LONG_MODE), by_walk(R, X)).unwrap();
    assert_eq!(world.get(CHAIN[3], 0), 0x67, "D");
}

#[test]
fn npt_reserved_bits_depend_on_level_and_mode() {
    let mut world = World::new();
    let no_nx = NptMode { nx: false, ..LONG_MODE };
    let no_1g = NptMode { large_1g: false, ..LONG_MODE };
    // Mode, level of the leaf, index of the entry in the chain, bit; whether the bit is reserved.
    let cases = [
        (LONG_MODE, 1, 0, 7, true),
        (LONG_MODE, 1, 0, 8, true),
        (LONG_MODE, 1, 1, 8, false),
        (LONG_MODE, 1, 2, 8, false),
        (LONG_MODE, 1, 3, 8, false),
        (LONG_MODE, 1, 3, 7, false),
        (LONG_MODE, 1, 3, 52, false),
        (LONG_MODE, 2, 2, 12, false),
        (LONG_MODE, 2, 2, 13, true),
        (LONG_MODE, 2, 2, 20, true),
        (LONG_MODE, 3, 1, 29, true),
        (LONG_MODE, 3, 1, 30, false),
        (no_nx, 1, 3, 63, true),
        (no_nx, 1, 0, 63, true),
        (LONG_MODE, 1, 0, 63, false),
        (no_1g, 3, 1, 9, true),
    ];
    for (mode, level, nth, bit, reserved) in cases {
        npt_chain(&world, level, 7 | if level > 1 { 0x80 } else { 0 });
        world.put(CHAIN[nth], 0, world.get(CHAIN[nth], 0) | 1 << bit);
        let found = world.walk(&npt(mode), access(R));
        let is_reserved = matches!(found, Err(L1Stop::Fault(L1Fault { why: Reserved, .. })));
        assert_eq!(is_reserved, reserved, "level {level}, entry {nth}, bit {bit}: {found:?}");
        assert!(reserved || found.is_ok());
    }
    // PAE: a root of four entries at any multiple of 32 bytes; no rights or A there; 52 to 62 are reserved below.
    let pae = NptTable::new(CHAIN[0] << 12 | 0x7e0, NptMode { levels: 3, ..LONG_MODE }).unwrap();
    let far = L1Access::new(Gpa(3 << 30 | 0x678), W);
    let root = 0x7e0 / 8 + 3;
    for (root_bits, leaf_bits, good) in
        [(0, 0, true), (1 << 3, 0, true), (2, 0, false), (1 << 63, 0, false), (0, 1 << 52, false)]
    {
        world.put(CHAIN[0], root, CHAIN[1] << 12 | 1 | root_bits);
        world.put(CHAIN[1], 0, 7 << 21 | 0x87 | leaf_bits);
        assert_eq!(world.walk(&pae, far).is_ok(), good, "{root_bits:#x} {leaf_bits:#x}");
    }
    assert_eq!(world.get(CHAIN[0], root), CHAIN[1] << 12 | 1, "no A in a PDPTE");
    assert_eq!(world.fault(&pae, L1Access::new(Gpa(1 << 32), R)).why, NotPresent);
    for bad in [NptMode { levels: 2, ..LONG_MODE }, NptMode { levels: 6, ..LONG_MODE }] {
        assert_eq!(NptTable::new(0, bad), None);
    }
    assert_eq!(NptTable::new(1 << 46, LONG_MODE), None, "VMRUN refuses it");
}
