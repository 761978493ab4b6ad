//! Tables of our own formats, read as L1's: decoding reverses encoding, and a store sets the bits that our formats
//! expect of hardware.

use super::*;
use crate::near_edges::near_edges;
use proptest::prelude::*;

/// A memory type as these formats of L1 read it: some have fewer.
fn read_back(memory: MemoryType, has_uncached: bool, has_device: bool) -> MemoryType {
    match memory {
        MemoryType::Uncached if !has_uncached => MemoryType::Device,
        MemoryType::Device if !has_device => MemoryType::Uncached,
        same => same,
    }
}

/// One leaf of `level` at `gfn`, walked for each access.
fn agrees<F: Format, T: L1Format>(world: &mut World, table: &T, gfn: u64, leaf: Leaf, level: Level) {
    if level > F::MAX_LEAF {
        return;
    }
    let gfn = Gfn(gfn & ((1 << F::FRAME_BITS) - 1));
    let leaf = if F::HARDWARE_AD {
        leaf
    } else {
        Leaf { accessed: true, dirty: leaf.perms.allows(Access::Write), ..leaf }
    };
    for access in ALL {
        // The root's pages are adjacent.
        let (mut at, mut places) = (CHAIN[0] + F::root_page(gfn) as u64, Vec::new());
        let mut now = F::ROOT_LEVEL;
        while now > level {
            let next = CHAIN[places.len() + 1];
            places.push((at, F::index(gfn, now) as u64, F::link(Pfn(next), now).0, F::touch_link(now)));
            (at, now) = (next, now.down());
        }
        let stored = access == Access::Write;
        places.push((at, F::index(gfn, level) as u64, F::leaf(&leaf, level).0, F::touch(access)));
        for &(frame, entry, word, _) in &places {
            world.put(frame, entry, word);
        }

        let walked = world.walk(table, L1Access::new(gfn.gpa(), access));
        let allowed = leaf.perms.allows(access);
        for &(frame, entry, word, touched) in &places {
            let expected = if allowed { word | touched } else { word };
            assert_eq!(world.get(frame, entry), expected, "{} {level:?} {access:?} frame {frame}", F::NAME);
            world.put(frame, entry, 0);
        }
        match walked {
            Ok(walked) => {
                assert!(allowed, "{} {access:?} {leaf:?}", F::NAME);
                let inside = gfn.0 & (level.pages() - 1);
                assert_eq!((walked.gfn, walked.level), (Gfn(leaf.pfn.0 + inside), level));
                assert_eq!(walked.allowed, L1Rights::plain(leaf.perms), "{}", F::NAME);
                let is_dirty = !F::HARDWARE_AD || leaf.dirty || stored;
                let withheld = if is_dirty || stored { Perms::NONE } else { Perms::WRITE };
                assert_eq!(walked.rights.perms, leaf.perms.without(withheld), "{}", F::NAME);
                assert!(walked.accessed);
                // Where Arm's page is not writable, no bit says that it is dirty.
                assert!(walked.dirty == is_dirty || !leaf.perms.allows(Access::Write), "{}", F::NAME);
                let frames: Vec<u64> = walked.tables().iter().map(|frame| frame.0).collect();
                assert!(frames.iter().eq(places.iter().map(|(frame, ..)| frame)), "{frames:?}");
                let (has_uncached, has_device) =
                    (!F::NAME.starts_with("sv") && !F::NAME.starts_with("arm"), true);
                assert_eq!(walked.memory, read_back(leaf.memory, has_uncached, has_device), "{}", F::NAME);
            }
            Err(L1Stop::Fault(fault)) => {
                assert_eq!((allowed, fault.why, fault.level), (false, Refusal::Rights, level), "{}", F::NAME);
            }
            other => panic!("{}: {other:?}", F::NAME),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn tables_of_our_formats_read_as_what_they_were_made_of(
        gfn in near_edges(0..1 << 47), pfn in near_edges(0..1 << 34), level in 1u8..=3, bits in 0u8..128
    ) {
        let mut world = World::new();
        let on = |bit: u8| bits >> bit & 1 == 1;
        let perms = Perms::of(true, on(0), on(1));
        let level = Level::new(level).unwrap();
        let memory = MemoryType::from_bits(u64::from(bits >> 5));
        let pfn = Pfn(pfn & !(level.pages() - 1));
        let leaf = Leaf { pfn, perms, memory, host_writable: on(2), accessed: on(3), dirty: on(4) };
        every(&mut world, gfn, leaf, level);
    }
}

fn every(world: &mut World, gfn: u64, leaf: Leaf, level: Level) {
    use crate::table::formats::*;
    let root = CHAIN[0];
    agrees::<Ept4, _>(world, &ept(root, 4, true), gfn, leaf, level);
    agrees::<Ept5, _>(world, &ept(root, 5, true), gfn, leaf, level);
    agrees::<Ept4NoAd, _>(world, &ept(root, 4, false), gfn, leaf, level);
    // Our format's first four types: write-back, write-combining (for write-through), UC- and UC.
    let npt = |levels| NptTable::new(root << 12, NptMode { levels, pat: 0x0007_0106, ..LONG_MODE }).unwrap();
    agrees::<Npt4, _>(world, &npt(4), gfn, leaf, level);
    agrees::<Npt5, _>(world, &npt(5), gfn, leaf, level);
    agrees::<Pae, _>(world, &npt(3), gfn, leaf, level);
    let stage2 = |bits, start, features| Stage2Table::new(root << 12, vtcr(bits, start), features).unwrap();
    agrees::<Arm64L39, _>(world, &stage2(39, 1, STAGE2), gfn, leaf, level);
    agrees::<Arm64L40, _>(world, &stage2(40, 1, STAGE2), gfn, leaf, level);
    agrees::<Arm64L48, _>(world, &stage2(48, 0, STAGE2), gfn, leaf, level);
    agrees::<Arm64NoAd, _>(world, &stage2(48, 0, Stage2Features::default()), gfn, leaf, level);
    let g_stage = |mode: u64, features| GStageTable::new(mode << 60 | root, features).unwrap();
    agrees::<Sv39x4, _>(world, &g_stage(8, G_STAGE), gfn, leaf, level);
    agrees::<Sv48x4, _>(world, &g_stage(9, G_STAGE), gfn, leaf, level);
    agrees::<Sv57x4, _>(world, &g_stage(10, G_STAGE), gfn, leaf, level);
    agrees::<Sv39x4NoAd, _>(world, &g_stage(8, GStageFeatures { adue: false, ..G_STAGE }), gfn, leaf, level);
}
