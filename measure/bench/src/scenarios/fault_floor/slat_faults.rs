//! slat itself: the whole fault path of the engine, under any MMU lock policy.
//!
//! One memslot covers the course, and the host answers by arithmetic without sleeping, so what is timed is
//! the engine: walk, stamp, slot, host look-up, install, counters. Between the passes the host takes its
//! pages away as `MADV_DONTNEED` would; that leaves holes which carry the invalidation's number, in tables
//! that stay linked.

use crate::scenarios::fault_floor::fault_race::backing;
use crate::scenarios::fault_floor::fault_race::{Contender, Course, Vcpu};
use crate::scenarios::threads_prelude::*;
use crate::threads::arithmetic::Arithmetic;

/// A VM whose memory is the course.
pub struct Ours {
    vm: Vm<Npt4, Arithmetic>,
}

/// A vCPU and its thread's proof of idleness.
struct Thread<'vm> {
    vcpu: slat::Vcpu<'vm, Npt4, Arithmetic>,
    idle: Idle,
}

/// The host address behind a guest frame.
fn hva(gfn: Gfn) -> Hva {
    Hva(backing(gfn).address())
}

impl Ours {
    /// A VM for this course, with one memslot and nothing mapped.
    pub fn new(course: &Course, lock: MmuLock) -> Self {
        let gfns = course.gfns();
        let builder = Vm::<Npt4, _>::builder(Arithmetic)
            .vcpus(course.vcpus() as u32)
            .baseline(Baseline::NONE.mmu_lock(lock));
        let vm: Vm<Npt4, _> = builder.build().expect("the pool grows on demand");
        let slot = Slot::new(SlotId(0), gfns.start, gfns.len(), hva(gfns.start));
        let mut idle = Idle::take().expect("this thread runs no vCPU");
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).expect("the course lies in reach of the format");
        Self { vm }
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
        let hvas = Span::new(hva(gfns.start), hva(gfns.end));
        drop(self.vcpu.vm().invalidate(hvas, Reason::Clear).apply(&mut self.idle).settle());
    }

    fn translate(&mut self, gfn: Gfn) -> Option<Pfn> {
        self.vcpu.vm().memory().translate(&mut self.idle, gfn).map(|mapping| mapping.leaf.pfn)
    }
}
