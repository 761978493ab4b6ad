//! A second stage without memslots: a hypervisor that manages frames itself maps guest frames to them, one by one or in
//! ranges.
//! Run it: `cargo run -p slat --example map_frames`.

use slat::map::{Map, ReachError};
use slat::table::{Format, Heap, formats::Arm64L48};
use slat::{Access, Gfn, Leaf, MemoryType, Perms, Pfn, Span};

/// The memory of one guest. REPLACE: allocate the tables from your own frames, by `TableMemory`.
struct Stage2 {
    map: Map<Arm64L48, Heap>,
    flushes: u32,
}

impl Stage2 {
    fn new() -> Result<Self, slat::table::NoMemory> {
        Ok(Self { map: Map::new(Heap)?, flushes: 0 })
    }

    /// Gives these frames to the guest.
    fn give(&mut self, gfns: Span<Gfn>, first: Leaf) -> Result<(), ReachError> {
        if self.map.map(gfns, &first)? > 0 {
            self.flush(gfns); // they were others before
        }
        Ok(())
    }

    /// Takes these frames from the guest. On return they are free for another use.
    fn take(&mut self, gfns: Span<Gfn>) -> Result<(), ReachError> {
        if self.map.unmap(gfns)? > 0 {
            self.flush(gfns);
        }
        Ok(())
    }

    /// REPLACE: DSB ISHST; TLBI IPAS2E1IS of each page; DSB ISH; TLBI VMALLE1IS; DSB ISH.
    fn flush(&mut self, _gfns: Span<Gfn>) {
        self.flushes += 1;
    }

    /// Returns what the processor's walker would find.
    fn translate(&self, gfn: Gfn, access: Access) -> Option<Pfn> {
        let place = self.map.find(gfn)?;
        let word = place.load();
        let leaf = Arm64L48::is_present(word).then(|| Arm64L48::read_leaf(word))?;
        leaf.perms.allows(access).then(|| leaf.pfn + (gfn.0 - gfn.base(place.level()).0))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut stage2 = Stage2::new()?;
    println!("VTTBR_EL2 gets {:?}", stage2.map.root());
    // 1 GiB of memory at guest address 1 GiB; frames with the same alignment are mapped in large pages.
    let ram = Span::sized(Gfn(1 << 18), 1 << 18);
    stage2.give(ram, Leaf::plain(Pfn(0x8_0000)))?;
    // A device's registers, and one page that the guest may only read.
    let device =
        Leaf { memory: MemoryType::Device, perms: Perms::of(true, true, false), ..Leaf::plain(Pfn(0x9000)) };
    stage2.give(Span::sized(Gfn(0x9000), 1), device)?;
    let clock = Span::sized(Gfn(0x4_0005), 1);
    stage2.give(clock, Leaf { perms: Perms::READ, ..Leaf::plain(Pfn(0x77)) })?;
    assert_eq!(stage2.translate(Gfn(0x4_0004), Access::Write), Some(Pfn(0x8_0004)));
    assert_eq!(stage2.translate(clock.start, Access::Write), None);
    assert_eq!(stage2.translate(clock.start, Access::Read), Some(Pfn(0x77)));
    // A balloon: the guest gives 2 MiB back.
    let balloon = Span::sized(Gfn(0x4_0400), 512);
    stage2.take(balloon)?;
    assert_eq!(stage2.translate(balloon.start, Access::Read), None);
    assert!(stage2.translate(balloon.end, Access::Read).is_some());
    println!("{} bytes of tables, {} flushes", stage2.map.table_bytes(), stage2.flushes);
    Ok(())
}
