//! A software vCPU as a machine: the walker, the TLB and the paging-structure cache of `slat-vcpu`.

use slat::table::{Heap, TableMemory, Word};
use slat::{Access, Format, Gpa, Level, PAGE_SIZE, Perms, Pfn, Span};
use slat_judge::{Answer, FaultWhy, Fixed, Machine, Ram};
use slat_vcpu::psc::Psc;
use slat_vcpu::tlb::Tlb;
use slat_vcpu::walker::walk;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ptr::NonNull;

const BYTES: usize = 16 << 20;

/// A software vCPU as a machine. Keeps its log lines.
pub struct Soft<F> {
    block: NonNull<u8>,
    fixed: [Fixed; 1],
    tlb: Tlb,
    psc: Psc,
    pub lines: RefCell<Vec<String>>,
    _format: PhantomData<F>,
}

/// The memory begins at a GiB, so the judge makes the same look-ups in each run, wherever the allocator puts it.
fn layout() -> Layout {
    Layout::from_size_align(BYTES + PAGE_SIZE as usize, 1 << 30).expect("a power of two")
}

impl<F> Soft<F> {
    pub fn new() -> Self {
        // SAFETY: the layout has a size.
        let block = NonNull::new(unsafe { alloc(layout()) }).expect("16 MiB");
        let pfn = Pfn((block.as_ptr().expose_provenance() + BYTES) as u64 / PAGE_SIZE);
        let fixed = [Fixed { gfn: slat::Gfn(0x300), pages: 1, pfn }];
        let lines = RefCell::default();
        Self { block, fixed, tlb: Tlb::default(), psc: Psc::default(), lines, _format: PhantomData }
    }
}

impl<F> Drop for Soft<F> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, once.
        unsafe { dealloc(self.block.as_ptr(), layout()) };
    }
}

/// Memory for the walker: this process's memory near known addresses, and zeroes elsewhere.
struct Memory {
    /// Known addresses.
    known: [u64; 2],
}

#[repr(align(4096))]
struct Zeroes([u64; 512]);

static NOTHING: Zeroes = Zeroes([0; 512]);

// SAFETY: it lends nothing; of a page of the heap `at` is the address.
unsafe impl TableMemory for Memory {
    fn lend(&self, _: usize) -> Option<(NonNull<u8>, Pfn)> {
        None
    }

    unsafe fn take_back(&self, _: NonNull<u8>, _: Pfn, _: usize) {}

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        // Allocations lie within 1 TiB.
        let exists = self.known.iter().any(|known| known >> 40 == pfn.address() >> 40);
        if exists { Heap.at(pfn) } else { NonNull::from(&NOTHING.0).cast() }
    }
}

// SAFETY: the pattern is part of a block of this machine's own.
unsafe impl<F: Format> Machine for Soft<F> {
    const SHOWS_STALE: bool = true;

    fn name(&self) -> &'static str {
        "software"
    }

    fn ram(&self) -> Ram {
        let first = Pfn(self.block.as_ptr().addr() as u64 / PAGE_SIZE);
        Ram {
            pattern: Span::sized(first, BYTES as u64 / PAGE_SIZE),
            gib: Pfn(first.0 & !(Level::G1.pages() - 1)),
        }
    }

    fn fixed(&self) -> &[Fixed] {
        &self.fixed
    }

    fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer {
        let found = self.tlb.lookup(gpa.gfn(), access).map_or_else(
            || {
                let memory = Memory { known: [root.address(), self.block.as_ptr().addr() as u64] };
                // SAFETY: the judge frees no table between a flush and the accesses after it.
                unsafe { walk::<F, _>(&memory, root, &mut self.psc, gpa, access) }.map_err(|_| memory)
            },
            Ok,
        );
        let found = match found {
            Ok(found) => found,
            Err(memory) => return refusal::<F>(&memory, root, gpa),
        };
        self.tlb.insert(gpa.gfn(), found);
        let address = found.pfn.address() + (gpa.0 & (found.level.bytes() - 1));
        let inside = (address as usize).wrapping_sub(self.block.as_ptr().addr()) < layout().size();
        let word = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
        match access {
            // On a bus without an answer all bits read as one.
            Access::Read | Access::Write if !inside => Answer::Through { value: u64::MAX },
            // SAFETY: inside the block.
            Access::Read => Answer::Through { value: unsafe { word.read_volatile() } },
            Access::Write => {
                // SAFETY: as above.
                unsafe { word.write_volatile(value) };
                Answer::Through { value }
            }
            Access::Fetch => Answer::Through { value: address & !(PAGE_SIZE - 1) },
        }
    }

    fn flush(&mut self) {
        self.tlb.flush_all();
        self.psc.flush_all();
    }

    fn log(&mut self, line: std::fmt::Arguments<'_>) {
        println!("{line}");
        self.lines.borrow_mut().push(line.to_string());
    }
}

/// Finds the reason why the walk stopped by a second walk, because the walker does not report it.
fn refusal<F: Format>(memory: &Memory, root: Pfn, gpa: Gpa) -> Answer {
    let fault = |why, level, allowed| Answer::Fault { why, level, gpa: Some(gpa), allowed: Some(allowed) };
    if gpa.gfn().0 >> F::FRAME_BITS != 0 {
        return fault(FaultWhy::Absent, None, Perms::NONE);
    }
    let mut level = F::ROOT_LEVEL;
    let mut table = F::top(root, gpa.gfn());
    loop {
        // SAFETY: as for the walk itself.
        let word = unsafe { memory.at(table).cast::<Word>().add(F::index(gpa.gfn(), level)).read_volatile() };
        if !F::is_present(word) {
            return fault(FaultWhy::Absent, Some(level), Perms::NONE);
        }
        if !F::is_table(word, level) {
            return fault(FaultWhy::Permission, Some(level), F::read_leaf(word).perms);
        }
        (table, level) = (F::pfn(word), level.down());
    }
}
