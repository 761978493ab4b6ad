//! Tables of every format with every parameter, beside the oracle's; and the words that tests write into them.

use super::manual::arm::Stage2;
use super::manual::ept::Ept;
use super::manual::riscv::GStage;
use super::manual::x86::{Mode, Npt, Paging};
use super::manual::{self, Manual, Words};
use super::*;
use fastrand::Rng;

/// The frame of a root: up to 16 tables side by side begin there.
pub const ROOT: u64 = 16;

/// The words that tests write.
pub trait Writes: Manual {
    /// A link with all rights, to the table at this address.
    fn link(&self, address: u64) -> u64;

    /// A leaf with all rights, of the page at this address; with A and D or without.
    fn leaf(&self, address: u64, level: u8, used: bool) -> u64;

    /// Bits that a link, or a leaf, often has.
    fn often(&self, is_leaf: bool) -> u64;
}

impl Writes for Ept {
    fn link(&self, address: u64) -> u64 {
        address | 0x407
    }

    fn leaf(&self, address: u64, level: u8, used: bool) -> u64 {
        address | 0x437 | u64::from(level > 1) << 7 | if used { 0x300 } else { 0 }
    }

    fn often(&self, is_leaf: bool) -> u64 {
        if is_leaf { 0x787 } else { 0x507 }
    }
}

impl Writes for Npt {
    fn link(&self, address: u64) -> u64 {
        address | 7
    }

    fn leaf(&self, address: u64, level: u8, used: bool) -> u64 {
        address | 7 | u64::from(level > 1) << 7 | if used { 0x60 } else { 0 }
    }

    fn often(&self, is_leaf: bool) -> u64 {
        if is_leaf { 0xff } else { 0x27 }
    }
}

impl Writes for Stage2 {
    fn link(&self, address: u64) -> u64 {
        address | 3
    }

    fn leaf(&self, address: u64, level: u8, used: bool) -> u64 {
        let used = if used { 0x480 } else { 1 << 51 };
        address | 0x7c | 1 | u64::from(level == 1) << 1 | used
    }

    fn often(&self, is_leaf: bool) -> u64 {
        if is_leaf { 0x4ff | 1 << 51 | 3 << 53 } else { 3 }
    }
}

impl Writes for GStage {
    fn link(&self, address: u64) -> u64 {
        address >> 2 | 1
    }

    fn leaf(&self, address: u64, _: u8, used: bool) -> u64 {
        address >> 2 | 0x1f | if used { 0xc0 } else { 0 }
    }

    fn often(&self, is_leaf: bool) -> u64 {
        if is_leaf { 0xdf } else { 1 }
    }
}

/// A test that is made with each table.
pub trait Check {
    fn check<T: L1Format, M: Writes<Report = T::Injection>>(&mut self, table: T, manual: M);
}

/// EPT of four levels and five: with A and D or without, fetches alone, 1 GiB, mode-based execute control; and of
/// several widths.
pub fn each_ept(check: &mut impl Check) {
    for switches in 0..32_u64 {
        let has = |bit: u32| switches >> bit & 1 == 1;
        let physical_bits = [46, 36, 52, 39, 48][switches as usize % 5];
        let (table, manual) = of_ept(4 + u64::from(has(4)), physical_bits, [has(0), has(1), has(2), has(3)]);
        check.check(table, manual);
    }
}

/// EPT that has, in this order: A and D, fetches alone, 1 GiB, mode-based execute control.
pub fn of_ept(levels: u64, physical_bits: u32, has: [bool; 4]) -> (EptTable, Ept) {
    let [accessed_dirty, execute_only, large_1g, mode_based_execute] = has;
    let features = EptFeatures {
        physical_bits,
        execute_only,
        five_levels: true,
        large_1g,
        accessed_dirty: true,
        mode_based_execute,
    };
    let pointer = ROOT << 12 | u64::from(accessed_dirty) << 6 | (levels - 1) << 3 | 6;
    let manual = Ept { pointer, physical_bits, execute_only, large_1g, mode_based_execute };
    (EptTable::new(pointer, features).unwrap(), manual)
}

/// Nested paging of PAE, of four levels and of five: with NXE or without, SMEP, 1 GiB; of several widths.
pub fn each_npt(check: &mut impl Check) {
    for (nth, mode) in [Mode::Pae, Mode::FourLevels, Mode::FiveLevels].into_iter().enumerate() {
        for switches in 0..8_u64 {
            let [nxe, smep, large_1g] = [0, 1, 2].map(|bit| switches >> bit & 1 == 1);
            let physical_bits = [46, 36, 52, 40, 48, 32][(nth + switches as usize) % 6];
            // Each PAT register that a processor can hold differs; this one has every type.
            let pat = 0x0004_0107_0605_0106;
            let ncr3 = ROOT << 12 | if mode == Mode::Pae { 0x60 } else { 0 };
            let levels = [3, 4, 5][nth];
            let table = NptTable::new(ncr3, NptMode { levels, nx: nxe, smep, pat, physical_bits, large_1g });
            let paging = Paging { mode, nxe, physical_bits, large_1g, amd: true, pat };
            check.check(table.unwrap(), Npt { ncr3, paging, smep });
        }
    }
}

/// Stage 2 of every first level and several widths: with HA and HD, `FEAT_XNX`, `FEAT_S2FWB`.
pub fn each_stage_2(check: &mut impl Check) {
    let starts = [(48, 2), (44, 2), (40, 1), (43, 1), (39, 1), (32, 0), (34, 0), (30, 0)];
    for switches in 0..8_u64 {
        let [xnx, fwb, hardware_ad] = [0, 1, 2].map(|bit| switches >> bit & 1 == 1);
        for by_hardware in [0, 1, 3] {
            for nth in 0..2 {
                let (input, start) = starts[(switches + by_hardware + 5 * nth) as usize % 8];
                let size = [4, 5, 1, 3, 0][(switches + input) as usize % 5];
                let vtcr = by_hardware << 21 | size << 16 | start << 6 | (64 - input);
                let features = Stage2Features { hardware_ad, xnx, fwb };
                let vttbr = ROOT << 12;
                if let Some(table) = Stage2Table::new(vttbr, vtcr, features) {
                    check.check(table, Stage2 { vttbr, vtcr, features });
                }
            }
        }
    }
}

/// The G-stage of Sv39x4, Sv48x4 and Sv57x4: with Svadu, Svpbmt, MXR.
pub fn each_g_stage(check: &mut impl Check) {
    for mode in 8..=10 {
        for switches in 0..8_u64 {
            let [adue, pbmte, mxr] = [0, 1, 2].map(|bit| switches >> bit & 1 == 1);
            let features = GStageFeatures { adue, pbmte, mxr };
            let hgatp = mode << 60 | ROOT;
            check.check(GStageTable::new(hgatp, features).unwrap(), GStage { hgatp, features });
        }
    }
}

/// Accesses of every kind: by users and supervisors, and by walks of L2's own tables.
pub fn accesses(gpa: u64) -> impl Iterator<Item = L1Access> {
    let plain = |user| ALL.map(|access| L1Access { user, ..L1Access::new(Gpa(gpa), access) });
    let walks = [Access::Read, Access::Write].into_iter().flat_map(move |access| {
        ALL.map(|purpose| L1Access { walk_for: Some(purpose), ..L1Access::new(Gpa(gpa), access) })
    });
    plain(true).into_iter().chain(plain(false)).chain(walks)
}

/// Makes the access with the table and with the oracle. Both must give the same answer, report and memory, and mark the
/// same frames. Returns the end.
pub fn compare<T: L1Format, M: Manual<Report = T::Injection>>(
    world: &mut World,
    words: &mut Words,
    (table, manual): (&T, &M),
    access: L1Access,
    about: &dyn std::fmt::Debug,
) -> std::string::String {
    let mut marked = Vec::new();
    let expected = manual::walk(manual, words, &access, &mut marked);
    let context = || std::format!("{manual:x?}, {about:?}: {access:x?}");
    let end = match (world.walk(table, access), &expected) {
        (Ok(leaf), Ok(page)) => {
            let found = manual::Page {
                frame: leaf.gfn.0,
                level: leaf.level.number(),
                allowed: rights(leaf.allowed),
                rights: rights(leaf.rights),
                memory: page.memory.and(Some(leaf.memory)),
                accessed: leaf.accessed,
                dirty: leaf.dirty,
                tables: leaf.tables().iter().map(|table| table.0).collect(),
            };
            assert_eq!(found, *page, "{}", context());
            std::format!("leaf {}", page.level)
        }
        (Err(L1Stop::Fault(fault)), Err(refused)) => {
            let report = refused.report.as_ref().map(|_| table.injection(&fault));
            let found = manual::Refused { why: fault.why, level: fault.level.number(), report };
            assert_eq!(found, *refused, "{}", context());
            std::format!("{:?}", fault.why)
        }
        (found, expected) => panic!("{found:?} instead of {expected:?}: {}", context()),
    };
    for (&place, &word) in &*words {
        assert_eq!(world.get(place >> 12, place >> 3 & 511), word, "{} at {place:#x}", context());
    }
    // A frame that is marked without need is still marked at the next comparison.
    if !marked.is_empty() || access.gpa.0.is_multiple_of(16) {
        marked.sort_unstable();
        marked.dedup();
        assert_eq!(world.dirty(), marked, "{}", context());
        world.clean();
    }
    end
}

fn rights(L1Rights { perms, user }: L1Rights) -> [bool; 4] {
    let [read, write, fetch] = ALL.map(|access| perms.allows(access));
    [read, write, fetch, user.allows(Access::Fetch)]
}

/// A word that may be an entry.
pub fn word<M: Writes>(rng: &mut Rng, manual: &M) -> u64 {
    let frame = match rng.u32(..16) {
        0 => rng.u64(..1 << 40),
        1 => ALIAS.0 + rng.u64(..ALIASES),
        _ => rng.u64(..FRAMES),
    };
    let (is_leaf, aligned) = (rng.u8(..3) == 0, rng.u64(..64) << 30);
    let address = if is_leaf && rng.bool() { aligned } else { frame << 12 };
    let full = if is_leaf { manual.leaf(address, rng.u8(1..4), rng.bool()) } else { manual.link(address) };
    let word = if rng.u8(..3) == 0 { full & !(manual.often(is_leaf) & rng.u64(..)) } else { full };
    match rng.u8(..24) {
        0..=3 => word ^ 1 << rng.u32(..64),
        4 => 0,
        5 => rng.u64(..),
        _ => word,
    }
}
