//! `Harvest`: pages taken from dirty logs, until they are safe elsewhere.
//!
//! Copying pages can fail half-way: a connection is lost, a disk is full, the migration is cancelled. The pages must
//! then be dirty again, or the next attempt loses them. So the caller commits a harvest when all of its pages are safe.
//! A harvest that is dropped without that gives its bits back. One that is leaked (`core::mem::forget`) counts as committed.

use super::state::LogId;
use crate::fallible;
use crate::slots::bitmap::{CHUNK, WORD, bits};
use crate::{Format, Gfn, Host, Hva, NoMemory, PAGE_SHIFT, Slot, SlotId, SpaceId, Vm};
use alloc::vec::Vec;
use core::fmt;

/// Pages taken from dirty logs; see the module's header. Made by
/// [`GuestSpace::harvest`](crate::guest_space::GuestSpace::harvest).
///
/// Its pages may be copied from now on: a store that a copy misses is in the log again.
///
/// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Identity;
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SlotId(0), true))?;
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
/// let harvest = vm.memory().harvest(&mut idle, SlotId(0))?;
/// assert!(harvest.iter().map(|page| page.gfn).eq([Gfn(5)]));
/// drop(harvest); // the pages were not sent: they are dirty again
/// let harvest = vm.memory().harvest(&mut idle, SlotId(0))?;
/// assert_eq!(harvest.pages(), 1);
/// harvest.commit(); // they were sent
/// assert!(vm.memory().harvest(&mut idle, SlotId(0))?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, its bits go back into the log; commit it when its pages are safe"]
pub struct Harvest<'vm, F: Format, H: Host> {
    vm: &'vm Vm<F, H>,
    taken: Vec<TakenFromSlot>,
    pages: u64,
}

/// Pages taken from one slot.
pub(crate) struct TakenFromSlot {
    pub(crate) space: SpaceId,
    pub(crate) slot: Slot,
    /// The serial of the log that they were in.
    pub(crate) serial: u64,
    pub(crate) told: TakenWords,
}

/// Pages of one log, by words.
#[derive(Default)]
pub(crate) struct TakenWords {
    /// Word numbers, and the bits taken from these words.
    pub(crate) words: Vec<(u64, u64)>,
    /// Number of pages.
    pub(crate) pages: u64,
}

/// One dirty page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirtyPage {
    /// Address space of its slot.
    pub space: SpaceId,
    /// Its slot.
    pub slot: SlotId,
    /// Page number in the slot.
    pub page: u64,
    /// Its guest frame when it was harvested. Slots move.
    pub gfn: Gfn,
    /// The host address behind it.
    pub hva: Hva,
}

/// Up to 64 pages of a slot, of which at least one is dirty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirtyWord {
    /// The first page, dirty or not. Its page number is a multiple of 64.
    pub first: DirtyPage,
    /// Bit *n* stands for the *n*th page from `first` on.
    pub bits: u64,
}

impl DirtyWord {
    /// Returns the dirty pages, in order.
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

    /// Adds the pages of one log.
    pub(crate) fn add(&mut self, taken: TakenFromSlot) {
        self.pages += taken.told.pages;
        self.taken.push(taken);
    }

    /// Adds one log, without pages, and lets `take` fill it. Pages belong to the harvest as soon as they are taken:
    /// `take` calls the host, which may panic.
    pub(crate) fn fill<R>(&mut self, taken: TakenFromSlot, take: impl FnOnce(&mut TakenWords) -> R) -> R {
        self.taken.push(taken);
        let Some(TakenFromSlot { told, .. }) = self.taken.last_mut() else { unreachable!("pushed above") };
        let result = take(told);
        self.pages += told.pages;
        result
    }

    /// Makes room for one more log.
    pub(crate) fn reserve(&mut self) -> Result<(), NoMemory> {
        fallible::reserve(&mut self.taken, 1)
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether it has no pages.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Returns the pages, slot by slot.
    pub fn iter(&self) -> impl Iterator<Item = DirtyPage> {
        self.words().flat_map(DirtyWord::pages)
    }

    /// Returns the pages by words of 64; only words with dirty pages.
    pub fn words(&self) -> impl Iterator<Item = DirtyWord> {
        self.taken.iter().flat_map(|&TakenFromSlot { space, slot, ref told, .. }| {
            told.words.iter().map(move |&(word, bits)| {
                let page = word * WORD;
                let (gfn, hva) = (slot.gfns.start + page, slot.hva + (page << PAGE_SHIFT));
                DirtyWord { first: DirtyPage { space, slot: slot.id, page, gfn, hva }, bits }
            })
        })
    }

    /// Ends the harvest: its pages are safe elsewhere.
    pub fn commit(mut self) {
        self.taken.clear();
    }

    /// Marks its pages dirty again, as dropping it does.
    pub fn give_back(self) {}
}

impl<F: Format, H: Host> Drop for Harvest<'_, F, H> {
    fn drop(&mut self) {
        for &TakenFromSlot { space, slot, serial, ref told } in &self.taken {
            let Some(memory) = self.vm.space(space) else { continue };
            let log = LogId { slot: slot.id, serial };
            // One section each. A log that has ended takes nothing back; the slot's next log began later.
            for words in told.words.chunks(CHUNK) {
                memory.in_log(log, |log| words.iter().for_each(|&(word, bits)| log.mark_word(word, bits)));
            }
        }
    }
}

impl<F: Format, H: Host> fmt::Debug for Harvest<'_, F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harvest").field("pages", &self.pages).finish_non_exhaustive()
    }
}
