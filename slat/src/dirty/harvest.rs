//! `Harvest`: what was taken from dirty logs, until it is safe elsewhere.
//!
//! Copying pages can fail half-way: a connection is lost, a disk is full, the migration is called off. Then what
//! had been taken must be dirty again, or the pages are lost to the next attempt. So a harvest is a value that is
//! committed by the caller that has all of its pages, and that gives its bits back otherwise: by itself, when it is dropped.

use crate::addr::{Gfn, Hva, PAGE_SHIFT};
use crate::host::Host;
use crate::slots::bitmap::{CHUNK, WORD, bits};
use crate::slots::{Slot, SlotId, SpaceId};
use crate::table::format::Format;
use crate::vm::Vm;
use alloc::vec::Vec;
use core::fmt;

/// See the module's header; made by [`Memslots::harvest`](crate::memslots::Memslots::harvest).
///
/// Its pages may be copied from now on: whatever a vCPU stores that these copies miss is in the log again.
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vm.slots().commit(&mut idle, |tx| tx.set_log_dirty(SlotId(0), true))?;
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
/// let harvest = vm.slots().harvest(&mut idle, SlotId(0))?;
/// assert!(harvest.iter().map(|page| page.gfn).eq([Gfn(5)]));
/// drop(harvest); // the pages were not sent: they are dirty again
/// let harvest = vm.slots().harvest(&mut idle, SlotId(0))?;
/// assert_eq!(harvest.pages(), 1);
/// harvest.commit(); // they were sent
/// assert!(vm.slots().harvest(&mut idle, SlotId(0))?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, its bits go back into the log; commit it when its pages are safe"]
pub struct Harvest<'vm, F: Format, H: Host> {
    vm: &'vm Vm<F, H>,
    taken: Vec<TakenFromSlot>,
    pages: u64,
}

/// Pages of one slot.
pub(crate) struct TakenFromSlot {
    pub(crate) space: SpaceId,
    pub(crate) slot: Slot,
    /// Of the log that they were in.
    pub(crate) serial: u64,
    pub(crate) told: TakenWords,
}

/// Pages of one log, by words.
#[derive(Default)]
pub(crate) struct TakenWords {
    /// Numbers of words, and the bits taken from them.
    pub(crate) words: Vec<(u64, u64)>,
    /// How many pages those are.
    pub(crate) pages: u64,
}

/// One dirty page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirtyPage {
    /// The address space of its slot.
    pub space: SpaceId,
    /// Its slot.
    pub slot: SlotId,
    /// Its number in the slot.
    pub page: u64,
    /// The guest frame that it was when it was harvested. Slots move.
    pub gfn: Gfn,
    /// The host address behind it.
    pub hva: Hva,
}

/// Up to 64 pages of a slot, some of which are dirty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirtyWord {
    /// The first of them, whether it is dirty or not. Its number is a multiple of 64.
    pub first: DirtyPage,
    /// Bit *n* stands for the *n*th page from it on.
    pub bits: u64,
}

impl DirtyWord {
    /// Those that are dirty, in order.
    pub fn pages(self) -> impl Iterator<Item = DirtyPage> {
        let first = self.first;
        bits(self.bits).map(u64::from).map(move |nth| {
            let (page, gfn, hva) = (first.page + nth, first.gfn + nth, first.hva + (nth << PAGE_SHIFT));
            DirtyPage { page, gfn, hva, ..first }
        })
    }
}

impl<'vm, F: Format, H: Host> Harvest<'vm, F, H> {
    pub(crate) fn new(vm: &'vm Vm<F, H>) -> Self {
        Self { vm, taken: Vec::new(), pages: 0 }
    }

    /// Adds what was taken from one log.
    pub(crate) fn add(&mut self, taken: TakenFromSlot) {
        self.pages += taken.told.pages;
        self.taken.push(taken);
    }

    /// Makes room for one more log.
    pub(crate) fn reserve(&mut self) -> Result<(), super::DirtyError> {
        let refused = injected!(Alloc) || self.taken.try_reserve(1).is_err();
        if refused { Err(super::DirtyError::NoMemory) } else { Ok(()) }
    }

    /// How many pages there are.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// The pages, slot by slot.
    pub fn iter(&self) -> impl Iterator<Item = DirtyPage> {
        self.words().flat_map(DirtyWord::pages)
    }

    /// The same by 64 of them: those words that have any.
    pub fn words(&self) -> impl Iterator<Item = DirtyWord> {
        self.taken.iter().flat_map(|&TakenFromSlot { space, slot, ref told, .. }| {
            told.words.iter().map(move |&(word, bits)| {
                let page = word * WORD;
                let (gfn, hva) = (slot.gfns.start + page, slot.hva + (page << PAGE_SHIFT));
                DirtyWord { first: DirtyPage { space, slot: slot.id, page, gfn, hva }, bits }
            })
        })
    }

    /// Its pages are safe: the log is rid of them.
    pub fn commit(mut self) {
        self.taken.clear();
    }

    /// They are not: they are dirty again. So they are where it is dropped.
    pub fn give_back(self) {}
}

impl<F: Format, H: Host> Drop for Harvest<'_, F, H> {
    fn drop(&mut self) {
        if self.taken.is_empty() || seeded!(GivenBackLost) {
            return;
        }
        let seat = self.vm.borrow_seat();
        for taken in &self.taken {
            let Some(space) = self.vm.space(taken.space) else { continue };
            let part = if seeded!(GivenBackAtOnce) { usize::MAX } else { CHUNK };
            for words in taken.told.words.chunks(part) {
                // One section.
                let reading = space.memslots.read(&self.vm.reads, seat.seat());
                // A log that has ended wants nothing back, and the next one of that slot began after it.
                let log = reading.version.log(taken.slot.id).filter(|log| log.serial() == taken.serial);
                let Some(log) = log else { break };
                for &(word, bits) in words {
                    log.mark_word(word, bits);
                }
            }
        }
    }
}

impl<F: Format, H: Host> fmt::Debug for Harvest<'_, F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harvest").field("pages", &self.pages).finish_non_exhaustive()
    }
}
