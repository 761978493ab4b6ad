//! A guest while KSM merges its pages: it fills its memory, reads all over it, and writes some of it again. Each read and
//! each fault is looked at.
//!
//! A fault for want of a **translation** inside a change of the page's entry is what the change-pte series is about. A store to a page
//! that is mapped read-only faults, too: that fault is wanted, and counted with all others only.

use super::notified_vm::{Counted, NotifiedVm};
use super::page_contents::{Memory, PAGE, Stage};
use crate::parts::guest_program::NoFrame;
use crate::scenarios::prelude::*;
use crate::world::copy;
use core::iter::StepBy;
use core::ops::Range;
use core::sync::atomic::AtomicU64;

/// The fill of freed frames of a simulated arena.
pub const POISON: u8 = 0xdd;

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
