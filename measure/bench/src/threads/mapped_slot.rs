//! A VM with one memslot and every leaf table in place: a bench sets the bits of its leaves as a hardware walker would.

use crate::threads::arithmetic::Arithmetic;
use crate::threads::flag_values::machine_error;
use crate::threads::leaf_tables::{ENTRIES, LeafTables};
use crate::threads::machine_info::pin;
use crate::threads::software_vcpu::vcpu;
use slat::table::Word;
use slat::table::formats::Ept4;
use slat::{DirtyLog, Format, Gfn, Hva, Idle, Level, PAGE_SIZE, Prefault, Slot, SlotId, Span, Vm};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined, start};
use std::thread;

/// See the module's header.
pub struct MappedSlot {
    pub vm: Vm<Ept4, Arithmetic>,
    pub slot: Slot,
    pub tables: LeafTables,
    /// Pages that are mapped.
    pub pages: u64,
}

impl MappedSlot {
    /// So many bytes in one slot: every page of the first `dense` is mapped, and the first of each 2 MiB behind them. `order`
    /// puts the 2 MiB in the order in which they are mapped, which is that of their tables in memory.
    pub fn new(
        log: DirtyLog,
        idle: &mut Idle,
        [bytes, dense]: [u64; 2],
        order: impl FnOnce(&mut [Gfn]),
    ) -> Result<Self, Error> {
        let slot = Slot::new(SlotId(0), Gfn(0), bytes / PAGE_SIZE, Hva(1 << 40));
        let vm = Vm::builder(Arithmetic).dirty_log(log).build().map_err(machine_error)?;
        vm.memory().commit(idle, |tx| tx.create(slot))?;
        let mut regions: Vec<Gfn> = (0..slot.gfns.len()).step_by(ENTRIES).map(Gfn).collect();
        order(&mut regions);
        let (mut vcpu, mut mapped) = (vcpu(&vm, 0)?, 0);
        for region in regions {
            let pages = if region.gpa().0 < dense { Level::M2.pages() } else { 1 };
            mapped +=
                vcpu.prefault(idle, Span::sized(region, pages), Prefault::OLD).map_err(machine_error)?;
        }
        drop(vcpu);
        // SAFETY: each 2 MiB has been mapped in, and nothing is unlinked from a VM whose host has small pages only.
        let tables = unsafe { LeafTables::of(&vm, slot.gfns) };
        Ok(Self { vm, slot, tables, pages: mapped })
    }

    /// Makes `new` of each leaf, and sets Accessed in the links of those tables in which a leaf has it. Leaves that have it.
    pub fn set_leaves(&self, new: impl Fn(Gfn, Word) -> Word) -> u64 {
        let (mut gfn, mut young) = (self.slot.gfns.start, 0);
        for (link, table) in self.tables.linked() {
            let before = young;
            for entry in table {
                let word = entry.load();
                if Ept4::is_present(word) {
                    let word = new(gfn, word);
                    young += u64::from(word.0 & Ept4::ACCESSED != 0);
                    // SAFETY: the leaf as it was, but for Accessed, Dirty and permission.
                    unsafe { entry.store_raw(word) };
                }
                gfn = gfn + 1;
            }
            let (word, bit) = (link.load(), Ept4::touch_link(Level::M2));
            // SAFETY: the engine's own word, Accessed or not.
            unsafe { link.store_raw(Word(word.0 & !bit | if young > before { bit } else { 0 })) };
        }
        young
    }
}

/// Whether `number` is one of so many in 1000, spread evenly and in no pattern.
pub fn is_drawn(number: u64, permille: u32) -> bool {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) % 1000 < u64::from(permille)
}

/// Does `work` on a thread of its own, on the first CPU. Tying this thread to it would tie those that come later, too.
pub fn on_first_cpu<R: Send>(work: impl FnOnce(&mut Idle) -> Result<R, Error> + Send) -> Result<R, Error> {
    let work = || {
        pin(0);
        work(&mut idle()?)
    };
    thread::scope(|scope| joined(start(scope, work).join()))
}
