//! slat itself: the whole fault path of the engine, under any MMU lock.
//!
//! One memslot covers the course, and the host answers by arithmetic without sleeping, so what is timed is
//! the engine: walk, stamp, slot, host look-up, install, counters. Between the passes the host takes its
//! pages away as `MADV_DONTNEED` would; that leaves holes which carry the invalidation's number, in tables
//! that stay linked.

use super::fault_race::{Contender, Course, Vcpu, backing};
use crate::scenarios::threads_prelude::*;
use crate::threads::table_pool::{FRAME, PRESENT, Table, child};
use std::sync::atomic::Ordering;

/// A VM whose memory is the course.
pub struct Ours {
    vm: Vm<Npt4, Arithmetic>,
}

/// A vCPU and its thread's proof of idleness.
struct Thread<'vm> {
    vcpu: slat::Vcpu<'vm, Npt4, Arithmetic>,
    idle: Idle,
}

impl Ours {
    /// A VM for this course, with one memslot and nothing mapped.
    pub fn new(course: &Course, lock: MmuLock) -> Self {
        let vm = vm_with(Arithmetic, course.vcpus() as u32, lock, [slot(0, course.gfns())]);
        Self { vm: vm.expect("the course lies in reach of the format") }
    }
}

impl Contender for Ours {
    fn vcpu(&self, thread: usize) -> impl Vcpu {
        Thread {
            vcpu: self.vm.vcpu(VcpuId(thread as u32)).expect("each vCPU has one thread"),
            idle: Idle::take().expect("each thread has one vCPU"),
        }
    }
}

impl Vcpu for Thread<'_> {
    #[inline]
    fn fault(&mut self, gfn: Gfn) -> bool {
        let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
        matches!(self.vcpu.fault(&mut self.idle, fault), Ok(Next::Resume(Resume::Mapped(_))))
    }

    fn clear(&mut self, gfns: Span<Gfn>) {
        drop(self.vcpu.vm().invalidate(hvas_of(gfns), Reason::Clear).apply(&mut self.idle).settle());
    }

    fn translate(&mut self, gfn: Gfn) -> Option<Pfn> {
        self.vcpu.vm().memory().translate(&mut self.idle, gfn).map(|mapping| mapping.leaf.pfn)
    }
}

// The floor: the least that filling a hole in a shared 4-level table can cost.
//
// Three loads lead from the root to the leaf table, one load reads the leaf, one CAS turns it from absent
// to present. There is no lock, no read side, no memslot look-up, no invalidation and no accounting, so
// nothing here could be used as an MMU; that is the point. The further time of a real fault path is the
// price of its guarantees.
//
// Entries are in the format of x86-64, with process addresses for physical ones.

const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;

/// Level of the root table, and number of levels.
const ROOT: Level = Level::new(4).unwrap();

/// A 4-level table that any thread may fault into.
pub struct Floor {
    root: NonNull<Table>,
}

// SAFETY: tables are reached through atomics only, and stay linked until the value is dropped.
unsafe impl Send for Floor {}
// SAFETY: as above.
unsafe impl Sync for Floor {}

impl Floor {
    /// An empty table.
    pub fn new() -> Self {
        Self { root: table_pool::take_zeroed() }
    }

    /// The leaf entry of `gfn`; links the tables on the way that are missing.
    #[inline(always)]
    fn leaf(&self, gfn: Gfn) -> &AtomicU64 {
        let mut table = self.root;
        let mut level = ROOT;
        loop {
            // SAFETY: `table` is the root or came from a present entry; both live as long as `self`.
            let entry = unsafe { &table.as_ref().0[Npt4::index(gfn, level)] };
            if level == Level::K4 {
                return entry;
            }
            // ORDER(link): nothing is read from a table before the entry that links it; pairs with the CAS
            // in `link`.
            let value = entry.load(Ordering::Acquire);
            table = child(value).unwrap_or_else(|| link(entry));
            level = level.down();
        }
    }
}

/// Links a new table under a hole, or finds the one that another thread has linked meanwhile.
#[cold]
fn link(entry: &AtomicU64) -> NonNull<Table> {
    let table = table_pool::take_zeroed();
    let value = table.as_ptr().expose_provenance() as u64 | PRESENT | WRITABLE | USER;
    // ORDER(link): the table is cleared before it is linked; pairs with the load in `leaf`, and here with
    // the CAS of the thread that came first.
    match entry.compare_exchange(0, value, Ordering::Release, Ordering::Acquire) {
        Ok(_) => table,
        Err(theirs) => {
            // SAFETY: taken above and never linked.
            unsafe { table_pool::give_back(table) };
            child(theirs).expect("an entry above the leaves is a hole or a table")
        }
    }
}

impl Contender for Floor {
    fn vcpu(&self, _thread: usize) -> impl Vcpu {
        self
    }
}

impl Vcpu for &Floor {
    #[inline(always)]
    fn fault(&mut self, gfn: Gfn) -> bool {
        let leaf = self.leaf(gfn);
        let old = leaf.load(Ordering::Relaxed);
        let new = backing(gfn).address() | PRESENT | WRITABLE | USER | ACCESSED;
        // ORDER(install): what the page holds would be written before its mapping can be seen.
        old & PRESENT == 0 && leaf.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    fn clear(&mut self, gfns: Span<Gfn>) {
        for gfn in gfns.start.0..gfns.end.0 {
            self.leaf(Gfn(gfn)).store(0, Ordering::Relaxed);
        }
    }

    fn translate(&mut self, gfn: Gfn) -> Option<Pfn> {
        let value = self.leaf(gfn).load(Ordering::Relaxed);
        (value & PRESENT != 0).then_some(Pfn((value & FRAME) >> 12))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // SAFETY: all tables below came from the pool, and no thread can walk them any more.
        unsafe { table_pool::give_back_tree(self.root, ROOT) };
    }
}
