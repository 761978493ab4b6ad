//! Processors. A cached translation stays until the engine flushes it.
//!
//! A processor separates translations by tag. A VM has a tag for each vCPU, or for each address space.

use super::panicking_host::Fuse;
use slat::{CpuId, Gfn, Hva, Pfn, SpaceId, Span, Translations};
use std::collections::BTreeMap;

/// The tag of a translation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tag {
    pub vm: usize,
    /// A vCPU's number, or an address space's.
    pub number: usize,
}

/// A translation, and the host address that it was made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    pub space: SpaceId,
    pub gfn: Gfn,
    pub hva: Hva,
    pub pfn: Pfn,
}

/// The translations of one processor.
#[derive(Debug, Default)]
pub struct Cpu(BTreeMap<Tag, Vec<Cached>>);

impl Cpu {
    pub fn tlb<'c>(&'c mut self, cpu: usize, tag: Tag, fuse: &'c Fuse) -> Tlb<'c> {
        Tlb { cpu: CpuId(cpu as u64), cached: self.0.entry(tag).or_default(), fuse }
    }
}

/// The translations under one tag.
#[derive(Debug)]
pub struct Tlb<'c> {
    cpu: CpuId,
    pub cached: &'c mut Vec<Cached>,
    fuse: &'c Fuse,
}

impl Translations for Tlb<'_> {
    fn cpu(&self) -> CpuId {
        self.cpu
    }

    fn flush_all(&mut self) {
        self.fuse.burn();
        self.cached.clear();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.fuse.burn();
        self.cached.retain(|cached| !gfns.contains(cached.gfn));
    }
}
