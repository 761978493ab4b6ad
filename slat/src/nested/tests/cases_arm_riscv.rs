//! Bit by bit, for Arm and RISC-V.

use super::cases::{GPA, R, W, X, access, by_walk, chain};
use super::*;
use crate::nested::Refusal::*;

/// 48 bits from level 0 on.
fn stage2(vtcr_bits: u64, features: Stage2Features) -> Stage2Table {
    Stage2Table::new(CHAIN[0] << 12, vtcr(48, 0) & !(3 << 21) | vtcr_bits, features).unwrap()
}

#[test]
fn stage_2_faults_have_a_status_and_a_level() {
    let mut world = World::new();
    let leaf = 1 << 30 | 1 << 10 | 3 << 6 | 0xf << 2;
    let (none, both) = (0, 3 << 21);
    let status = |world: &mut World, table: &Stage2Table, kind| world.told(table, access(kind)).status;
    // Level of the leaf here, its bits, HA and HD, access, status; 0xff if the access continues.
    let cases = [
        (1, leaf | 3, none, R, 0xff),
        (1, leaf | 1, none, R, 0b00_0111),
        (2, leaf | 1, none, R, 0xff),
        (3, leaf | 1, none, R, 0xff),
        (4, leaf | 1, none, R, 0b00_0100),
        (1, leaf, none, R, 0b00_0111),
        (2, leaf, none, W, 0b00_0110),
        (1, leaf & !(1 << 10) | 3, none, R, 0b00_1011),
        (2, leaf & !(1 << 10) | 1, none, R, 0b00_1010),
        (1, leaf & !(1 << 10) | 3, both, R, 0xff),
        (1, leaf & !(1 << 7) | 3, none, W, 0b00_1111),
        (2, leaf & !(1 << 6) | 1, none, R, 0b00_1110),
        (3, leaf | 1 | 1 << 54, none, X, 0b00_1101),
        (1, leaf & !(1 << 7) | 3 | 1 << 51, none, W, 0b00_1111),
        (1, leaf & !(1 << 7) | 3 | 1 << 51, both, W, 0xff),
        (1, leaf & !(1 << 7) & !(1 << 10) | 3 | 1 << 51, none, W, 0b00_1011),
    ];
    for (level, word, switches, kind, expected) in cases {
        let table = stage2(switches, STAGE2);
        chain(&world, 4, level, |frame| frame << 12 | 3, word);
        match expected {
            0xff => assert!(world.walk(&table, access(kind)).is_ok(), "{level} {word:#x}"),
            expected => assert_eq!(status(&mut world, &table, kind), expected, "{level} {word:#x} {kind:?}"),
        }
    }
    // HD sets the write permission, and HA the access flag; nothing in links.
    chain(&world, 4, 1, |frame| frame << 12 | 3, leaf & !(1 << 7) & !(1 << 10) | 3 | 1 << 51);
    assert_eq!(world.walk(&stage2(both, STAGE2), access(R)).unwrap().rights.perms, Perms::RX);
    assert!(world.walk(&stage2(both, STAGE2), access(W)).unwrap().dirty);
    assert_eq!((world.get(CHAIN[3], 0), world.get(CHAIN[2], 0)), (leaf | 3 | 1 << 51, CHAIN[3] << 12 | 3));
    // Output beyond 32 bits, of a link and of a leaf; the root; input beyond.
    let small = |vttbr| Stage2Table::new(vttbr, vtcr(40, 1) & !(7 << 16), STAGE2).unwrap();
    world.put(CHAIN[0], 0, 1 << 32 | 3);
    assert_eq!(status(&mut world, &small(CHAIN[0] << 12), R), 1);
    world.put(CHAIN[0], 0, 1 << 33 | leaf | 1);
    assert_eq!(status(&mut world, &small(CHAIN[0] << 12), R), 1);
    assert_eq!(status(&mut world, &small(1 << 40), R), 0);
    let far = L1Access::new(Gpa(1 << 40 | 0x5000), W);
    let abort = world.told(&small(CHAIN[0] << 12), far);
    assert_eq!((abort.status, abort.hpfar, abort.write), (0b00_0100, (1 << 28 | 5) << 4, true));
}

#[test]
fn stage_2_begins_where_vtcr_says() {
    let mut world = World::new();
    // Bits, start, pages of the root.
    for (bits, start, pages) in [(40, 1, 2), (43, 1, 16), (34, 2, 16), (42, 1, 8), (48, 0, 1)] {
        let table = Stage2Table::new(16 << 12, vtcr(bits, start), STAGE2).unwrap();
        let level = Level::new(4 - start as u8).unwrap();
        let gpa = Gpa((1 << bits) - 1);
        world.put(16 + pages - 1, 511, 0);
        let fault = world.fault(&table, L1Access::new(gpa, R));
        assert_eq!(
            (fault.table, fault.level),
            (Some(Gfn(16 + pages - 1)), level),
            "{bits} bits from {start}"
        );
    }
    for (bits, start) in [(44, 1), (30, 1), (48, 1), (35, 2), (39, 0)] {
        assert_eq!(Stage2Table::new(0, vtcr(bits, start), STAGE2), None, "{bits} bits from {start}");
    }
    for other in [1 << 14, 2 << 14, 3 << 6, 7 << 16] {
        assert_eq!(Stage2Table::new(0, vtcr(40, 1) | other, STAGE2), None, "{other:#x}");
    }
}

#[test]
fn stage_2_tells_fetches_by_level_of_exception_and_walks_of_stage_1() {
    let mut world = World::new();
    let leaf = 1 << 30 | 1 << 10 | 1 << 6 | 0xf << 2 | 3;
    // XN[1:0]: who may fetch, EL1 and EL0, with FEAT_XNX and without.
    let cases = [
        (0, [true, true], [true, true]),
        (1, [false, true], [true, true]),
        (2, [false, false], [false, false]),
        (3, [true, false], [false, false]),
    ];
    for (xn, with, without) in cases {
        for (xnx, expected) in [(true, with), (false, without)] {
            let table = stage2(0, Stage2Features { xnx, ..STAGE2 });
            chain(&world, 4, 1, |frame| frame << 12 | 3, leaf | xn << 53);
            let may = [false, true].map(|user| world.walk(&table, L1Access { user, ..access(X) }).is_ok());
            assert_eq!(may, expected, "XN {xn:02b}, {xnx}");
        }
    }
    let table = stage2(0, STAGE2);
    let abort = world.told(&table, by_walk(W, X));
    assert!(abort.instruction && abort.s1ptw && !abort.write && abort.status == 0b00_1111, "{abort:?}");
    let fwb = stage2(0, Stage2Features { fwb: true, ..STAGE2 });
    for (attr, plain, forced) in [
        (15, MemoryType::WriteBack, MemoryType::WriteBack),
        (10, MemoryType::WriteCombining, MemoryType::Device),
        (6, MemoryType::WriteCombining, MemoryType::WriteBack),
        (5, MemoryType::WriteCombining, MemoryType::WriteCombining),
        (1, MemoryType::Device, MemoryType::Device),
    ] {
        chain(&world, 4, 1, |frame| frame << 12 | 3, leaf & !(0xf << 2) | attr << 2);
        let read = [&table, &fwb].map(|table| world.walk(table, access(R)).unwrap().memory);
        assert_eq!(read, [plain, forced], "{attr:04b}");
    }
}

#[test]
fn g_stage_refusals_are_guest_page_faults_of_the_purpose() {
    let mut world = World::new();
    let svade = GStageFeatures { adue: false, ..G_STAGE };
    let plain = GStageFeatures::default();
    let used = 0xdf;
    // Level, bits of the leaf beside its frame, features, access, reason; None if the access continues.
    let cases = [
        (1, used, G_STAGE, W, None),
        (1, 0, G_STAGE, R, Some(NotPresent)),
        (1, used & !1, G_STAGE, R, Some(NotPresent)),
        (1, used & !0x10, G_STAGE, R, Some(Rights)),
        (1, 0xd5, G_STAGE, R, Some(Reserved)),
        (1, 1, G_STAGE, R, Some(Reserved)),
        (1, used & !4, G_STAGE, W, Some(Rights)),
        (1, used & !8, G_STAGE, X, Some(Rights)),
        (1, 0xd9, G_STAGE, R, Some(Rights)),
        (1, 0xd9, GStageFeatures { mxr: true, ..G_STAGE }, R, None),
        (1, used & !0xc0, G_STAGE, W, None),
        (1, used & !0x40, svade, R, Some(NotAccessed)),
        (1, used & !0x80, svade, R, None),
        (1, used & !0x80, svade, W, Some(Rights)),
        (1, used | 1 << 61, G_STAGE, R, None),
        (1, used | 1 << 61, plain, R, Some(Reserved)),
        (1, used | 3 << 61, G_STAGE, R, Some(Reserved)),
        (1, used | 1 << 63, G_STAGE, R, Some(Reserved)),
        (1, used | 1 << 54, G_STAGE, R, Some(Reserved)),
        (1, used | 1 << 5 | 3 << 8, G_STAGE, R, None),
        (2, used, G_STAGE, W, None),
        (2, used | 1 << 10, G_STAGE, R, Some(Reserved)),
        (3, used | 1 << 27, G_STAGE, R, Some(Reserved)),
    ];
    for (level, bits, features, kind, why) in cases {
        let table = GStageTable::new(8 << 60 | CHAIN[0], features).unwrap();
        chain(
            &world,
            3,
            level,
            |frame| frame << 10 | 1,
            if bits & 1 == 0 && bits == 0 { 0 } else { 1 << 28 | bits },
        );
        let found = world.walk(&table, access(kind));
        let refused = match found {
            Err(L1Stop::Fault(fault)) => Some(fault),
            _ => None,
        };
        assert_eq!(refused.map(|fault| fault.why), why, "{level} {bits:#x} {kind:?}");
        if let Some(fault) = refused {
            let cause = match kind {
                R => 21,
                W => 23,
                X => 20,
            };
            assert_eq!(table.injection(&fault), GuestPageFault { cause, htval: GPA.0 >> 2, htinst: 0 });
        }
    }
    let table = GStageTable::new(8 << 60 | CHAIN[0], G_STAGE).unwrap();
    // D, A, U or a type in a link.
    for bit in [4, 6, 7, 61, 62, 63, 54] {
        chain(&world, 3, 1, |frame| frame << 10 | 1 | 1 << bit, 1 << 28 | used);
        assert_eq!(world.fault(&table, access(R)).why, Reserved, "{bit}");
    }
    chain(&world, 3, 1, |frame| frame << 10 | 1, 0);
    for (kind, purpose, cause, htinst) in [(R, X, 20, 0x3000), (R, W, 23, 0x3000), (W, R, 21, 0x3020)] {
        let told = GuestPageFault { cause, htval: GPA.0 >> 2, htinst };
        assert_eq!(world.told(&table, by_walk(kind, purpose)), told);
    }
    for bad in [0, 1, 7, 11, 15] {
        assert_eq!(GStageTable::new(bad << 60, G_STAGE), None, "mode {bad}");
    }
}
