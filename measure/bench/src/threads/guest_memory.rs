//! Guest memory that vCPUs share out evenly, from frame 0 on, and the frames behind it.

use crate::threads::flag_values::multiple_of;
use slat::{Gfn, Level, PAGE_SIZE, Span};
use slat_cli::error::Error;
use slat_mm::Arena;
use std::sync::Arc;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct GuestMemory {
    pub vcpus: u32,
    /// Of each vCPU's part.
    pub pages_per_vcpu: u64,
}

impl GuestMemory {
    /// `--bytes` for each of so many vCPUs: a multiple of `unit`, and no more than `most` for all.
    pub fn asked(vcpus: u32, bytes: u64, unit: Level, most: u64) -> Result<Self, Error> {
        multiple_of(unit, "bytes", bytes, most / u64::from(vcpus))?;
        Ok(Self { vcpus, pages_per_vcpu: bytes / PAGE_SIZE })
    }

    /// All of it.
    pub fn pages(self) -> Span<Gfn> {
        Span::sized(Gfn(0), u64::from(self.vcpus) * self.pages_per_vcpu)
    }

    pub fn bytes(self) -> u64 {
        self.pages().len() * PAGE_SIZE
    }

    /// Each vCPU's part.
    pub fn parts(self) -> Vec<Span<Gfn>> {
        let part = |vcpu| Span::sized(Gfn(u64::from(vcpu) * self.pages_per_vcpu), self.pages_per_vcpu);
        (0..self.vcpus).map(part).collect()
    }
}

/// An arena with room for so much memory, its tables, and what threads keep at hand.
pub fn arena(bytes: u64, threads: u64) -> Result<Arc<Arena>, Error> {
    Ok(Arena::builder().limit(bytes + bytes / 32 + (threads << 21) + (64 << 20)).build()?)
}
