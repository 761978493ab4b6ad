//! The sources of a vCPU's cached translations: its roots, and the processor whose TLB has them.
//!
//! A vCPU that runs L2 has two tags: translations of its own frames come from the address space's root, those of L2
//! from a shadow's. If a tag's root is not the loaded one, the vCPU flushes the tag; on another processor, both.

use crate::table::radix::RootWord;
use crate::{CpuId, Pfn, Translations};

/// The roots and the processor of a vCPU's cached translations. See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loaded {
    /// The root under each tag.
    roots: [Pfn; 2],
    cpu: CpuId,
}

/// The tag of translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tag {
    /// Translations of the vCPU's own frames.
    L1,
    /// Translations of a nested guest's frames.
    L2,
}

/// How a vCPU has entered the guest: how it enters sections after the exit, and its tag. One byte.
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

/// A frame that no root has.
const NO_ROOT: Pfn = Pfn(u64::MAX);

impl Loaded {
    /// The state before the first entry: the number's last holder may have left translations.
    pub(crate) const UNKNOWN: Self = Self { roots: [NO_ROOT; 2], cpu: CpuId(0) };

    /// Makes the next entry under L2's tag flush that tag.
    pub(crate) fn forget_l2(&mut self) {
        self.roots[Tag::L2 as usize] = NO_ROOT;
    }
}

/// The root that a vCPU should use, and the roots that its caches come from.
#[derive(Debug)]
pub(crate) struct Root<'a> {
    pub(crate) now: &'a RootWord,
    pub(crate) loaded: &'a mut Loaded,
}

impl Root<'_> {
    /// Returns the loaded root.
    #[inline(always)]
    pub(crate) fn pfn(&self, tag: Tag) -> Pfn {
        self.loaded.roots[tag as usize]
    }

    /// Trusts no translation if the processor is not that of the last entry; returns whether it is another one. Call it
    /// before pending flushes are carried out: they are carried out here, and not on the processor before, also if one of
    /// them panics.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, cache: &impl Translations) -> bool {
        let cpu = cache.cpu();
        let moved = cpu != self.loaded.cpu;
        if moved {
            self.loaded.roots = [NO_ROOT; 2];
            self.loaded.cpu = cpu;
        }
        moved
    }

    /// Loads the root, and flushes what came from another root, or is on a processor to which the vCPU has `moved`. Call
    /// it after the pending flushes, at each answer. An operation that replaces a root flushes afterwards, and an
    /// operation that meets a hole of the new root before that flushes too.
    #[inline(always)]
    pub(crate) fn reload(&mut self, tag: Tag, moved: bool, cache: &mut impl Translations) {
        let now = self.now.pfn();
        if self.pfn(tag) == now {
            return;
        }
        // Unknown until the flush is done: if it panics, the next entry or answer flushes everything.
        self.loaded.roots[tag as usize] = NO_ROOT;
        if tag == Tag::L2 && !moved {
            cache.flush_nested();
        } else {
            cache.flush_all();
        }
        self.loaded.roots[tag as usize] = now;
    }
}
