//! Demand paging by AxVisor 0.8.2: its gate, its address space, its page table.

#[allow(dead_code, reason = "its tests, and its way to say that a VM goes on")]
#[rustfmt::skip]
#[path = "../../target/crates/axvm-0.8.5/src/vm/translation.rs"]
mod translation;

use crate::software_guest::{self, Counts, Cpu, Exit, PAGE, Turns, Workload};
use ax_memory_addr::{PhysAddr, VirtAddr};
use ax_memory_set::MappingError;
use axaddrspace::{AddrSpace, AddrSpaceResult, MappingFlags, NestedPageTableOps, PageSize};
use axvm_types::GuestPhysAddr;
use page_table_generic as ptg;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use translation::TranslationGate;

#[derive(Clone, Copy)]
struct Frames;

impl ptg::FrameAllocator for Frames {
    fn alloc_frame(&self) -> Option<ptg::PhysAddr> {
        Some(PhysAddr::from(software_guest::frame() as usize))
    }

    // `prepare` takes all of them back at once.
    fn dealloc_frame(&self, _: ptg::PhysAddr) {}

    fn phys_to_virt(&self, frame: ptg::PhysAddr) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(frame.as_usize())
    }
}

/// An entry of AMD's NPT.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Entry(usize);

impl ptg::PageTableEntry for Entry {
    type PteConfig = MappingFlags;

    fn new_page(frame: PhysAddr, flags: MappingFlags, _: bool) -> Self {
        Self(if flags.is_empty() { 0 } else { frame.as_usize() | 0b111 })
    }

    fn new_table(frame: PhysAddr) -> Self {
        Self(frame.as_usize() | 0b111)
    }

    fn paddr(&self, _: bool) -> PhysAddr {
        PhysAddr::from(self.0 & !0xfff)
    }

    fn config(&self, _: bool) -> MappingFlags {
        if self.present() { MappingFlags::READ | MappingFlags::WRITE } else { MappingFlags::empty() }
    }

    fn present(&self) -> bool {
        self.0 & 1 != 0
    }

    fn huge(&self, _: bool) -> bool {
        false
    }

    fn unused(&self) -> bool {
        self.0 == 0
    }

    fn clear(&mut self) {
        self.0 = 0;
    }
}

#[derive(Clone, Copy)]
struct Npt;

impl ptg::TableMeta for Npt {
    type P = Entry;

    const PAGE_SIZE: usize = PAGE;
    const LEVEL_BITS: &[usize] = &[9, 9, 9, 9];
    const MAX_BLOCK_LEVEL: usize = 1;

    fn flush(_: Option<ptg::VirtAddr>) {}
}

/// Stands for axvm's `GenericNestedPageTable`.
struct Table(ptg::PageTable<Npt, Frames>);

fn at(address: GuestPhysAddr) -> ptg::VirtAddr {
    ptg::VirtAddr::from_usize(address.as_usize())
}

fn failed(_: ptg::PagingError) -> MappingError {
    MappingError::BadState
}

impl NestedPageTableOps for Table {
    fn root_paddr(&self) -> PhysAddr {
        self.0.root_paddr()
    }

    fn levels(&self) -> usize {
        4
    }

    fn alloc_frame(&self) -> Option<PhysAddr> {
        ptg::FrameAllocator::alloc_frame(&Frames)
    }

    fn dealloc_frame(&self, _: PhysAddr) {}

    fn phys_to_virt(&self, frame: PhysAddr) -> VirtAddr {
        VirtAddr::from(frame.as_usize())
    }

    fn map(
        &mut self,
        gpa: GuestPhysAddr,
        frame: PhysAddr,
        size: PageSize,
        flags: MappingFlags,
    ) -> AddrSpaceResult {
        Ok(self.0.map_page(at(gpa), frame, size.into(), flags).map_err(failed)?)
    }

    fn unmap(&mut self, gpa: GuestPhysAddr) -> AddrSpaceResult<(PhysAddr, MappingFlags, PageSize)> {
        let (frame, flags, _) = self.0.unmap_page(at(gpa)).map_err(failed)?;
        Ok((frame, flags, PageSize::Size4K))
    }

    fn map_linear(
        &mut self,
        gpa: GuestPhysAddr,
        frame: PhysAddr,
        size: usize,
        flags: MappingFlags,
        allow_huge: bool,
    ) -> AddrSpaceResult {
        Ok(self.0.map_linear_pages(at(gpa), frame, size, flags, allow_huge).map_err(failed)?)
    }

    fn unmap_region(&mut self, start: GuestPhysAddr, size: usize) -> AddrSpaceResult {
        Ok(self.0.unmap(at(start), size).map_err(failed)?)
    }

    fn remap(&mut self, start: GuestPhysAddr, frame: PhysAddr, flags: MappingFlags) -> bool {
        let start = GuestPhysAddr::from(start.as_usize() & !(PAGE - 1));
        let _ = self.unmap(start);
        self.map(start, frame, PageSize::Size4K, flags).is_ok()
    }

    fn protect_region(&mut self, _: GuestPhysAddr, _: usize, _: MappingFlags) -> bool {
        false
    }

    fn query(&self, gpa: GuestPhysAddr) -> AddrSpaceResult<(PhysAddr, MappingFlags, PageSize)> {
        let (frame, _) = self.0.translate(at(gpa)).map_err(failed)?;
        Ok((frame, MappingFlags::READ | MappingFlags::WRITE, PageSize::Size4K))
    }
}

/// Stands for axvm's `AxVM`: the part that a fault needs.
struct Vm {
    gate: TranslationGate,
    space: Mutex<AddrSpace<Table>>,
    /// The number of edits of the tables: the first entry after an edit flushes.
    edits: AtomicU64,
    /// Pending interrupts, by processor.
    interrupts: Vec<AtomicBool>,
}

impl Vm {
    /// Does what `handle_nested_page_fault` does through `with_resources_mut`. False while another update runs.
    fn fault(&self, page: u64, wait: impl Fn()) -> bool {
        let Some(update) = self.gate.begin_update() else { return false };
        if !update.quiescent() {
            self.interrupts.iter().for_each(|interrupt| interrupt.store(true, SeqCst));
            while !update.quiescent() {
                // axvm spins here: each vCPU has its own processor.
                wait();
            }
        }
        let gpa = GuestPhysAddr::from(page as usize * PAGE);
        let handled = self.space.lock().expect("no panic").handle_page_fault(gpa, MappingFlags::WRITE);
        self.edits.fetch_add(1, SeqCst);
        drop(update);
        handled
    }
}

/// A VM with this many pages on demand, and its root.
fn vm(vcpus: usize, pages: u64) -> (Vm, u64) {
    software_guest::prepare(pages + 64);
    let table = Table(ptg::PageTable::new(Frames).expect("memory"));
    let (start, bytes) = (GuestPhysAddr::from(0), pages as usize * PAGE);
    let mut space = AddrSpace::new_empty(table, start, bytes).expect("a range");
    let root = space.page_table_root().as_usize() as u64;
    space.map_alloc(start, bytes, MappingFlags::READ | MappingFlags::WRITE, false).expect("a range");
    let vm = Vm {
        gate: TranslationGate::new(),
        space: Mutex::new(space),
        edits: AtomicU64::new(0),
        interrupts: (0..vcpus).map(|_| AtomicBool::new(false)).collect(),
    };
    (vm, root)
}

/// Two vCPUs have exited for a fault on one page. The VM handles the first one's fault, and that vCPU stores; then the
/// VM handles the second one's. Returns whether the store is still there.
pub fn two_faults_keep_a_store() -> bool {
    let (vm, root) = vm(2, 1);
    let kept = software_guest::stores_between([0, 1], |_| assert!(vm.fault(0, || {})), root);
    drop(vm);
    kept
}

pub fn run(workload: &Workload) -> (Counts, bool) {
    let (vm, root) = vm(workload.vcpus, workload.pages);
    let turns = Turns::new(workload);
    let counts = software_guest::threads(workload, &turns, |vcpu| {
        let mut cpu = Cpu::new(workload, &turns, vcpu);
        let mut seen = 0;
        loop {
            let Some(guest) = vm.gate.enter() else {
                turns.pass(vcpu);
                continue;
            };
            vm.interrupts[vcpu].store(false, SeqCst);
            let edits = vm.edits.load(SeqCst);
            if edits != seen {
                cpu.flush();
                seen = edits;
            }
            let exit = cpu.run(root, || vm.interrupts[vcpu].load(SeqCst));
            drop(guest);
            match exit {
                Exit::Done => break cpu.counts,
                Exit::Kicked => {}
                // A fault that is not handled comes again.
                Exit::Fault(page) => _ = vm.fault(page, || turns.pass(vcpu)),
            }
        }
    });
    let is_whole = software_guest::is_whole(workload, root);
    drop(vm);
    (counts, is_whole)
}
