//! A VM with one range of guest memory, and its leaf tables by address: the bench sets their bits as a hardware walker would.

use crate::bench::arithmetic::Arithmetic;
use crate::bench::harness::shuffle;
use crate::bench::leaf_tables::{ENTRIES, LeafTables};
use crate::bench::machine_error;
use crate::bench::software_vcpu::vcpu;
use slat::age::Scan;
use slat::table::Word;
use slat::table::formats::Ept4;
use slat::{Format, Gfn, Hva, Idle, Level, Slot, SlotId, Span, Vm};
use slat_cli::error::Error;
use slat_cli::thread::idle;

/// How leaf tables lie in memory, against the frames that they serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Alike.
    Ascending,
    /// As after a long life.
    Shuffled,
}

impl Order {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ascending => "in order",
            Self::Shuffled => "shuffled",
        }
    }
}

/// See the module's header.
pub struct LeafBits {
    vm: Vm<Ept4, Arithmetic>,
    idle: Idle,
    gfns: Span<Gfn>,
    pub bytes: u64,
    pub sparse: bool,
    pub order: Order,
    pub tables: LeafTables,
    /// Pages made young last.
    pub young: u64,
}

impl LeafBits {
    pub fn new(bytes: u64, sparse: bool, order: Order) -> Result<Self, Error> {
        let mut idle = idle()?;
        let vm = Vm::<Ept4, _>::builder(Arithmetic).build().map_err(machine_error)?;
        let pages = bytes / Level::K4.bytes();
        let slot = Slot::new(SlotId(0), Gfn(0), pages, Hva(1 << 40));
        vm.slots().commit(&mut idle, |tx| tx.create(slot))?;
        let mut regions: Vec<Gfn> = (0..pages).step_by(ENTRIES).map(Gfn).collect();
        if order == Order::Shuffled {
            shuffle(&mut regions);
        }
        let mut vcpu = vcpu(&vm, 0)?;
        for &region in &regions {
            let mapped = if sparse { 1 } else { ENTRIES as u64 };
            vcpu.prefault(&mut idle, Span::sized(region, mapped)).map_err(machine_error)?;
        }
        drop(vcpu);
        let gfns = Span::new(Gfn(0), Gfn(pages));
        // SAFETY: each 2 MiB has been mapped in, and nothing is unlinked from this VM.
        let tables = unsafe { LeafTables::of(&vm, gfns) };
        Ok(Self { vm, idle, gfns, bytes, sparse, order, tables, young: 0 })
    }

    pub fn leaves(&self) -> u64 {
        self.gfns.len()
    }

    /// Makes so many of 1000 pages young, spread evenly and without a pattern, and sets Accessed in their links.
    pub fn use_pages(&mut self, permille: u32) {
        self.set(|number| {
            let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 32) % 1000 < u64::from(permille)
        });
    }

    /// Makes all pages idle.
    pub fn rest_pages(&mut self) {
        self.set(|_| false);
    }

    fn set(&mut self, young: impl Fn(u64) -> bool) {
        let mut number = 0;
        self.young = 0;
        for (link, entries) in self.tables.linked() {
            let mut any = false;
            for entry in entries {
                let word = entry.load();
                if Ept4::is_present(word) {
                    let accessed = young(number);
                    any |= accessed;
                    self.young += u64::from(accessed);
                    let bit = if accessed { Ept4::ACCESSED } else { 0 };
                    // SAFETY: the engine's own word, Accessed or not.
                    unsafe { entry.store_raw(Word(word.0 & !Ept4::ACCESSED | bit)) };
                }
                number += 1;
            }
            let (word, bit) = (link.load(), Ept4::touch_link(Level::M2));
            // SAFETY: as above.
            unsafe { link.store_raw(Word(word.0 & !bit | if any { bit } else { 0 })) };
        }
    }

    /// Looks at every table, whatever its link says.
    pub fn look(&mut self, scan: Scan) -> u64 {
        u64::from(self.vm.lockless(&mut self.idle).is_young_by(self.gfns, scan))
    }

    /// One entry after the other.
    pub fn look_at_each(&mut self) -> u64 {
        let mut young = 0;
        self.vm.lockless(&mut self.idle).for_each(self.gfns, |found| young += u64::from(found.leaf.accessed));
        young
    }

    /// A pass as it ships.
    pub fn age(&mut self) -> u64 {
        let mut young = 0;
        self.vm.lockless(&mut self.idle).age(self.gfns, |seen| young += u64::from(seen.count()));
        young
    }
}
