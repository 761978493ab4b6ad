//! Writing L1's tables, by format: the counterpart of [`L1Format`], which reads them.
//!
//! A leaf allows loads and fetches, and optionally stores. If hardware sets A and D, a new leaf has both clear.

use slat::Format;
use slat::nested::{
    EptFeatures, EptTable, GStageFeatures, GStageTable, L1Format, NptMode, NptTable, Stage2Features,
    Stage2Table,
};
use slat::table::formats::{
    Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4, Sv39x4NoAd,
    Sv48x4, Sv57x4,
};
use slat::{Gfn, Level};

/// A format of L1's tables, for writing.
pub trait L1Tables: L1Format {
    /// Whether L1's flushes are broadcast to all its vCPUs, and may cover single frames.
    const BROADCASTS: bool;

    /// Returns the bits that hardware sets in a leaf, for an access and for a store; zero if L1 sets them
    /// itself.
    fn touched(&self) -> (u64, u64);

    /// Returns the bits of a leaf that allow stores.
    fn write_bits(&self) -> u64;

    /// Removes store permission: W, and the bit that lets hardware set W if W also means dirty.
    fn protected(&self, leaf: u64) -> u64 {
        leaf & !self.write_bits()
    }

    /// Returns the entry of `level` that points to a table.
    fn link(&self, table: Gfn, level: Level) -> u64;

    /// Returns the leaf of `level` for L1's frame `gfn`.
    fn leaf(&self, gfn: Gfn, level: Level, stores: bool) -> u64;
}

/// A format of the host whose processors offer guests a table of the same family.
pub trait Nest: Format {
    /// L1's table.
    type Table: L1Tables;

    /// Returns the table with this root: [`Format::ROOT_PAGES`] pages, aligned to their size.
    fn l1_table(root: Gfn) -> Self::Table;
}

impl L1Tables for EptTable {
    const BROADCASTS: bool = false;

    fn touched(&self) -> (u64, u64) {
        if self.sets_bits() { (1 << 8, 1 << 9) } else { (0, 0) }
    }

    fn write_bits(&self) -> u64 {
        0b010
    }

    fn link(&self, table: Gfn, _: Level) -> u64 {
        table.gpa().0 | 0b111
    }

    fn leaf(&self, gfn: Gfn, level: Level, stores: bool) -> u64 {
        gfn.gpa().0 | u64::from(level > Level::K4) << 7 | 6 << 3 | u64::from(stores) << 1 | 0b101
    }
}

impl L1Tables for NptTable {
    const BROADCASTS: bool = false;

    fn touched(&self) -> (u64, u64) {
        (1 << 5, 1 << 6)
    }

    fn write_bits(&self) -> u64 {
        0b010
    }

    fn link(&self, table: Gfn, level: Level) -> u64 {
        let is_pointer = self.root().1 == level && level.number() == 3;
        table.gpa().0 | if is_pointer { 0b001 } else { 0b111 }
    }

    fn leaf(&self, gfn: Gfn, level: Level, stores: bool) -> u64 {
        gfn.gpa().0 | u64::from(level > Level::K4) << 7 | u64::from(stores) << 1 | 0b101
    }
}

impl L1Tables for Stage2Table {
    const BROADCASTS: bool = true;

    fn touched(&self) -> (u64, u64) {
        if self.sets_bits() { (1 << 10, 1 << 7) } else { (0, 0) }
    }

    fn write_bits(&self) -> u64 {
        if self.sets_bits() { 1 << 51 } else { 1 << 7 }
    }

    fn protected(&self, leaf: u64) -> u64 {
        leaf & !(1 << 51 | 1 << 7)
    }

    fn link(&self, table: Gfn, _: Level) -> u64 {
        table.gpa().0 | 0b11
    }

    fn leaf(&self, gfn: Gfn, level: Level, stores: bool) -> u64 {
        let (accessed, _) = self.touched();
        let accessed = if accessed == 0 { 1 << 10 } else { 0 };
        let kind = if level > Level::K4 { 0b01 } else { 0b11 };
        gfn.gpa().0 | kind | 0xf << 2 | 1 << 6 | accessed | if stores { self.write_bits() } else { 0 }
    }
}

impl L1Tables for GStageTable {
    const BROADCASTS: bool = false;

    fn touched(&self) -> (u64, u64) {
        if self.sets_bits() { (1 << 6, 1 << 7) } else { (0, 0) }
    }

    fn write_bits(&self) -> u64 {
        1 << 2
    }

    fn link(&self, table: Gfn, _: Level) -> u64 {
        table.0 << 10 | 1
    }

    fn leaf(&self, gfn: Gfn, _: Level, stores: bool) -> u64 {
        let (accessed, _) = self.touched();
        gfn.0 << 10 | 0b1_1011 | u64::from(stores) << 2 | if accessed == 0 { 0b1100_0000 } else { 0 }
    }
}

/// Whether hardware sets A and D, according to the decoder: it reports the bits that a leaf with both clear still
/// needs.
trait SetsBits: L1Format {
    fn sets_bits(&self) -> bool;
}

impl SetsBits for EptTable {
    fn sets_bits(&self) -> bool {
        self.entry(slat::table::Word(6 << 3 | 0b111), Level::K4).is_ok_and(|entry| entry.touch != 0)
    }
}

impl SetsBits for Stage2Table {
    fn sets_bits(&self) -> bool {
        self.entry(slat::table::Word(1 << 6 | 0b11), Level::K4).is_ok_and(|entry| entry.touch != 0)
    }
}

impl SetsBits for GStageTable {
    fn sets_bits(&self) -> bool {
        self.entry(slat::table::Word(0b1_1011), Level::K4).is_ok_and(|entry| entry.touch != 0)
    }
}

fn ept(root: Gfn, levels: u64, accessed_dirty: bool) -> EptTable {
    let offered = EptFeatures { five_levels: true, accessed_dirty: true, ..EptFeatures::of(46) };
    let pointer = root.gpa().0 | u64::from(accessed_dirty) << 6 | (levels - 1) << 3 | 6;
    EptTable::new(pointer, offered).expect("an address of 46 bits")
}

fn npt(root: Gfn, levels: u8) -> NptTable {
    let pat = 0x0007_0406_0007_0406;
    let mode = NptMode { levels, nx: true, smep: false, pat, physical_bits: 46, large_1g: false };
    NptTable::new(root.gpa().0, mode).expect("an address of 46 bits")
}

fn stage2(root: Gfn, bits: u64, start: u64, hardware_ad: bool) -> Stage2Table {
    let sets = if hardware_ad { 0b11 << 21 } else { 0 };
    let control = sets | 5 << 16 | (2 - start) << 6 | (64 - bits);
    let features = Stage2Features { hardware_ad, xnx: false, fwb: false };
    Stage2Table::new(root.gpa().0, control, features).expect("a size that starts there")
}

fn g_stage(root: Gfn, mode: u64, adue: bool) -> GStageTable {
    let features = GStageFeatures { adue, pbmte: false, mxr: false };
    GStageTable::new(mode << 60 | root.0, features).expect("a mode that there is")
}

macro_rules! nests {
    ($($host:ty: $table:ty, $make:expr;)*) => {
        $(impl Nest for $host {
            type Table = $table;
            fn l1_table(root: Gfn) -> $table {
                let make: fn(Gfn) -> $table = $make;
                make(root)
            }
        })*
    };
}

nests! {
    Ept4: EptTable, |root| ept(root, 4, true);
    Ept5: EptTable, |root| ept(root, 5, true);
    Ept4NoAd: EptTable, |root| ept(root, 4, false);
    Npt4: NptTable, |root| npt(root, 4);
    Npt5: NptTable, |root| npt(root, 5);
    Pae: NptTable, |root| npt(root, 3);
    Arm64L48: Stage2Table, |root| stage2(root, 48, 0, true);
    Arm64L40: Stage2Table, |root| stage2(root, 40, 1, true);
    Arm64L39: Stage2Table, |root| stage2(root, 39, 1, true);
    Arm64NoAd: Stage2Table, |root| stage2(root, 48, 0, false);
    Sv39x4: GStageTable, |root| g_stage(root, 8, true);
    Sv48x4: GStageTable, |root| g_stage(root, 9, true);
    Sv57x4: GStageTable, |root| g_stage(root, 10, true);
    Sv39x4NoAd: GStageTable, |root| g_stage(root, 8, false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat::nested::L1Rights;
    use slat::table::Word;
    use slat::{Access, Perms};

    fn reads_what_it_writes<F: Nest>() {
        let table = F::l1_table(Gfn(0x40));
        let (root, top) = table.root();
        assert_eq!(root, Gfn(0x40).gpa());
        for level in (1..=top.number()).filter_map(Level::new) {
            if level > Level::K4 {
                let link = table.entry(Word(table.link(Gfn(0x77), level)), level).unwrap();
                assert!(
                    !link.is_leaf && link.gfn == Gfn(0x77) && link.rights == L1Rights::ALL,
                    "{}",
                    F::NAME
                );
            }
            if level > Level::M2 {
                continue;
            }
            for stores in [false, true] {
                let leaf = table.leaf(Gfn(0x600), level, stores);
                let read = table.entry(Word(leaf), level).unwrap();
                assert!(read.is_leaf && read.gfn == Gfn(0x600), "{} {level:?}", F::NAME);
                let perms = if stores { Perms::RWX } else { Perms::RX };
                assert_eq!(read.rights, L1Rights::plain(perms), "{} {level:?}", F::NAME);
                let (accessed, dirty) = table.touched();
                assert_eq!((read.touch, read.touch_store & leaf), (accessed, 0));
                assert!(!stores || read.touch_store == dirty);
                let protected = table.entry(Word(table.protected(leaf)), level).unwrap();
                assert!(!protected.rights.perms.allows(Access::Write));
            }
        }
    }

    #[test]
    fn the_decoders_read_what_l1_writes() {
        reads_what_it_writes::<Ept4>();
        reads_what_it_writes::<Ept5>();
        reads_what_it_writes::<Ept4NoAd>();
        reads_what_it_writes::<Npt4>();
        reads_what_it_writes::<Npt5>();
        reads_what_it_writes::<Pae>();
        reads_what_it_writes::<Arm64L48>();
        reads_what_it_writes::<Arm64L40>();
        reads_what_it_writes::<Arm64L39>();
        reads_what_it_writes::<Arm64NoAd>();
        reads_what_it_writes::<Sv39x4>();
        reads_what_it_writes::<Sv48x4>();
        reads_what_it_writes::<Sv57x4>();
        reads_what_it_writes::<Sv39x4NoAd>();
    }
}
