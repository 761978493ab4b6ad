//! The vCPUs for which flushes wait: to find the reason of a [`settle`](crate::FlushDebt::settle) that does not return.

use super::shootdown::Tlb;
use crate::host::VcpuId;
use crate::sync::prim::Relaxed;
use core::fmt;

/// A vCPU in the guest that has not answered a flush: see [`Vm::unanswered`](crate::Vm::unanswered).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unanswered {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// The number of the first flush that it has not answered. A VM numbers its flushes from 1. While this number stays
    /// the same, the vCPU has answered nothing.
    pub since: u64,
    /// Number of flushes that it has not answered.
    pub flushes: u64,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vcpu, since, flushes } = self;
        write!(f, "vCPU {} is in the guest and has not answered flush {since}", vcpu.0)?;
        if *flushes > 1 { write!(f, " and {} after it", flushes - 1) } else { Ok(()) }
    }
}

impl Tlb {
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = Unanswered> {
        // Later flushes do not count, however long the caller takes.
        let generation = self.generation.load(Relaxed);
        (0..).map(VcpuId).zip(&self.vcpus).filter_map(move |(id, vcpu)| {
            let (in_guest, seen) = vcpu.place();
            let flushes = generation.saturating_sub(seen);
            (in_guest && flushes > 0).then_some(Unanswered { vcpu: id, since: seen + 1, flushes })
        })
    }
}
