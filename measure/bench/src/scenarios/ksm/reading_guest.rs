//! A guest while KSM merges its pages: it fills its memory, reads all over it, and writes some of it again. Each read and
//! each fault is looked at.
//!
//! A fault for want of a **translation** inside a change of the page's entry is what the change-pte series is about. A store to a page
//! that is mapped read-only faults, too: that fault is wanted, and counted with all others only.

use super::notified_vm::{Counted, NotifiedVm};
use crate::parts::guest_program::NoFrame;
use crate::scenarios::prelude::*;
use crate::world::copy;
use core::iter::StepBy;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use slat_mm::KsmStats;

/// The guest of one vCPU.
pub struct ReadingGuest<'m> {
    /// Its VM, and the VM's number.
    pub vm: (&'m NotifiedVm, u32),
    /// The frames.
    pub arena: &'m Arena,
    /// The memory of all VMs.
    pub memory: Memory,
    /// The content of its memory.
    pub stage: Stage,
    /// In which order it reads.
    pub way: PageOrder,
    /// Acts before it leaves.
    pub left: u64,
    /// Pages that it has to write with what they hold in the stage, and of how many acts one is such a store.
    pub writes: (StepBy<Range<u64>>, u64),
    /// Its last act was a store.
    pub stores: bool,
}

impl Program for ReadingGuest<'_> {
    fn next(&mut self) -> Step {
        if self.left == 0 {
            return Step::Leave;
        }
        self.left -= 1;
        let (pages, every) = &mut self.writes;
        let write = if self.left.is_multiple_of(*every) { pages.next() } else { None };
        self.stores = write.is_some();
        write.map_or_else(|| Step::Load(Gfn(self.way.go_on())), |page| Step::Store(Gfn(page)))
    }

    /// Stores to all of the page, or loads its ends and compares.
    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        // SAFETY: a frame of the arena, which outlives this. Other threads access it by such words, too, or have settled before they copy
        // the page.
        let page: &[AtomicU64; PAGE / 8] = unsafe { &*self.arena.frame(pfn).cast() };
        let [start, between @ .., end] = page;
        let [first, word, last] = self.stage.words(self.memory, self.vm.1, gfn);
        if self.stores {
            start.store(first, Relaxed);
            for at in between {
                at.store(word, Relaxed);
            }
            end.store(last, Relaxed);
            copy(PAGE);
            return Use::Right;
        }
        match [start.load(Relaxed), end.load(Relaxed)] {
            found if found == [first, last] => Use::Right,
            found if found == [u64::from_ne_bytes([POISON; 8]); 2] => Use::Stale,
            _ => Use::Foreign,
        }
    }

    fn fault<H: Host>(
        &mut self,
        vcpu: &mut Vcpu<'_, Ept4, H>,
        idle: &mut Idle,
        fault: Fault,
        why: NoFrame,
    ) -> Result<Next, FaultError> {
        let (vm, began) = (self.vm.0, now());
        let in_window = vm.is_changing(fault.gpa.gfn());
        let done = vcpu.fault(idle, fault);
        vm.add(Counted::FaultNs, now() - began);
        vm.add(Counted::Faults, 1);
        // A page that is mapped meanwhile was not lost: another vCPU's fault was about to allow stores to it.
        if why == NoFrame::Missing && matches!(done, Ok(Next::Resume(Resume::Mapped(_)))) {
            vm.add(Counted::Missing, 1);
            vm.add(Counted::InWindow, in_window.into());
        }
        done
    }
}

// The memory of the VMs in each stage, and the counts of KSM at its end: LTP's `ksm02`.
//
// | stage | VM 0 | VM 1 | the others | shared | unshared |
// |---|---|---|---|---|---|
// | 1 | c | a | a | 2 | 0 |
// | 2 | c | b | a | 3 | 0 |
// | 3 | d | d | d | 1 | 0 |
// | 4 | d | d, but the last byte of the last page is e | d | 1 | 1 |
//
// Guests write all pages anew in each stage, also those whose contents stay the same, as the test does. Of the pages that may be
// merged, all that are neither shared nor unshared are sharing.

/// Bytes of a page.
pub const PAGE: usize = PAGE_SIZE as usize;
/// In each stage guests write every so many of the pages that KSM may merge once more.
pub const WRITTEN_AGAIN: u64 = 8;

/// The memory of all VMs.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// How many VMs there are.
    pub vms: u32,
    /// Pages of each.
    pub pages: u64,
    /// Of these, pages that KSM may merge: the first ones, two at least.
    pub mergeable: u64,
}

impl Memory {
    /// Pages of all VMs that KSM may merge.
    pub fn all_mergeable(self) -> u64 {
        u64::from(self.vms) * self.mergeable
    }

    /// Pages that come to share a frame in all of `stages` together.
    pub fn merges(self, stages: &[Stage]) -> u64 {
        let again = u64::from(self.vms) * self.mergeable.div_ceil(WRITTEN_AGAIN);
        stages.iter().map(|stage| self.all_mergeable() - stage.expected(self)[2] + again).sum()
    }
}

/// A stage's number, from 1. Stage 0 comes before: each page has contents of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage(pub u32);

impl Stage {
    /// The stages of the test.
    pub const ALL: [Self; 4] = [Self(1), Self(2), Self(3), Self::LAST];
    /// The last of them.
    pub const LAST: Self = Self(4);

    fn byte(self, vm: u32) -> u8 {
        match (self.0, vm) {
            (1 | 2, 0) => b'c',
            (2, 1) => b'b',
            (1 | 2, _) => b'a',
            _ => b'd',
        }
    }

    /// The content of page `gfn` of VM `vm`: the first word, all words between, the last one.
    pub fn words(self, memory: Memory, vm: u32, gfn: Gfn) -> [u64; 3] {
        let word = u64::from_ne_bytes([self.byte(vm); 8]);
        match self {
            Self(0) => [u64::from(vm) << 40 | gfn.0, word, word],
            Self::LAST if vm == 1 && gfn.0 + 1 == memory.mergeable => {
                [word, word, u64::from_ne_bytes(*b"ddddddde")]
            }
            _ => [word; 3],
        }
    }

    /// The page itself.
    pub fn page(self, memory: Memory, vm: u32, gfn: Gfn) -> [u8; PAGE] {
        let [first, _, last] = self.words(memory, vm, gfn);
        let mut page = [self.byte(vm); PAGE];
        page[..8].copy_from_slice(&first.to_ne_bytes());
        page[PAGE - 8..].copy_from_slice(&last.to_ne_bytes());
        page
    }

    /// The counts of KSM after it has merged all pages that can be merged.
    pub fn expected(self, memory: Memory) -> Counts {
        let mut contents: Vec<u8> = (0..memory.vms).map(|vm| self.byte(vm)).collect();
        contents.sort_unstable();
        contents.dedup();
        let (shared, unshared) = (contents.len() as u64, u64::from(self == Self::LAST && memory.vms > 1));
        [shared, memory.all_mergeable() - shared - unshared, unshared]
    }
}

/// The counts of KSM: frames that entries share, entries that share one beyond the first of each, and pages that have no equal.
pub type Counts = [u64; 3];

/// As KSM says it.
pub fn counts(stats: KsmStats) -> Counts {
    [stats.pages_shared, stats.pages_sharing, stats.pages_unshared]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn what_is_expected_is_what_the_pages_say() {
        for (vms, mergeable) in [(4, 16), (3, 2), (1, 8)] {
            let memory = Memory { vms, pages: 16, mergeable };
            for stage in Stage::ALL {
                let mut found: HashMap<[u8; PAGE], u64> = HashMap::new();
                for (vm, gfn) in (0..vms).flat_map(|vm| (0..mergeable).map(move |gfn| (vm, Gfn(gfn)))) {
                    *found.entry(stage.page(memory, vm, gfn)).or_default() += 1;
                }
                let shared = found.values().filter(|&&count| count > 1);
                let counts = [
                    shared.clone().count() as u64,
                    shared.map(|count| count - 1).sum(),
                    found.values().filter(|&&count| count == 1).count() as u64,
                ];
                assert_eq!(stage.expected(memory), counts, "{stage:?} of {vms} VMs");
            }
        }
        let memory = Memory { vms: 4, pages: 16, mergeable: 16 };
        assert_eq!(memory.merges(&Stage::ALL), 64 * 4 - 1 + 4 * 4 * 2);
    }
}
