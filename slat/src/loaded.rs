//! What a vCPU's cached translations come from: roots, and the processor that has them.
//!
//! A vCPU that runs L2 has two tags: translations of its own frames come from the address space's root, those of L2 from a shadow's.
//! Where a root is another one than what was loaded, all under its tag is forgotten; on another processor all under both.

use crate::addr::Pfn;
use crate::table::radix::RootWord;
use crate::tlb::shootdown::{CpuId, Translations};

/// See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loaded {
    /// The root under each tag.
    roots: [Pfn; 2],
    cpu: CpuId,
}

/// Which translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tag {
    /// Of the vCPU's own frames.
    L1,
    /// Of the frames of a nested guest.
    L2,
}

/// How a vCPU has entered the guest: how it will enter sections when it is back, and under which tag it runs. One byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered(u8);

impl Entered {
    const L2: u8 = 2;

    #[inline(always)]
    pub(crate) fn new(light: bool, tag: Tag) -> Self {
        Self(u8::from(light) | if tag == Tag::L2 { Self::L2 } else { 0 })
    }

    #[inline(always)]
    pub(crate) fn is_light(self) -> bool {
        self.0 & 1 != 0
    }

    #[inline(always)]
    pub(crate) fn tag(self) -> Tag {
        if self.0 & Self::L2 != 0 { Tag::L2 } else { Tag::L1 }
    }
}

/// No root has this frame.
const NO_ROOT: Pfn = Pfn(u64::MAX);

impl Loaded {
    /// Before the first entry: the number's last holder may have left translations.
    pub(crate) const UNKNOWN: Self = Self { roots: [NO_ROOT; 2], cpu: CpuId(0) };

    /// The next entry under L2's tag forgets all that is there.
    pub(crate) fn forget_l2(&mut self) {
        self.roots[Tag::L2 as usize] = NO_ROOT;
    }
}

/// What the vCPU's caches come from, beside the root that it should use.
#[derive(Debug)]
pub(crate) struct Root<'a> {
    pub(crate) now: &'a RootWord,
    pub(crate) loaded: &'a mut Loaded,
}

impl Root<'_> {
    /// The one that is loaded.
    #[inline(always)]
    pub(crate) fn pfn(&self, tag: Tag) -> Pfn {
        self.loaded.roots[tag as usize]
    }

    /// Loads the root, and forgets what came from another one, or is on another processor. After the flushes have been carried out: an
    /// operation that replaces a root flushes afterwards, and one that meets a hole of the fresh root before that flushes too. So each
    /// answer must look.
    #[inline(always)]
    pub(crate) fn reload(&mut self, tag: Tag, cache: &mut impl Translations) {
        let cpu = if seeded!(ProcessorBelieved) { self.loaded.cpu } else { cache.cpu() };
        let now = self.now.pfn();
        let moved = cpu != self.loaded.cpu;
        if (!moved && self.pfn(tag) == now) || seeded!(CachesBelieved) {
            return;
        }
        // Unknown until it is done: where it panics, the next entry or answer forgets all, wherever that is. Flushes have been carried
        // out here by now, and what was loaded before has not seen them.
        if !seeded!(LoadedKept) {
            self.loaded.roots[tag as usize] = NO_ROOT;
            if moved {
                *self.loaded = Loaded::UNKNOWN;
            }
        }
        if tag == Tag::L2 && !moved {
            cache.flush_nested();
        } else {
            cache.flush_all();
        }
        if moved {
            *self.loaded = Loaded { cpu, ..Loaded::UNKNOWN };
        }
        self.loaded.roots[tag as usize] = now;
    }
}
