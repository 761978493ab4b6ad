//! Calls on the dirty logs of a running VM: harvest, look, clear, mark.
//!
//! ```text
//! by D bits: the tables first       clears each D that is set, and notes its page
//! fence                             an invalidation marks a page before it zaps the leaf: D is found above, or the mark below
//! the bitmap, word by word          takes its marks. A fault marks after it gives W: the mark is left for the next
//!                                   harvest, or taken, and then arming sees the W
//! arm those pages (`arm`)           the next store to them is noticed
//! by D bits: a grace period         an invalidation that marked a leaf before its mark was taken has zapped the leaf by now
//! one flush of all these pages      no earlier store is still in flight when the pages are copied
//! ```
//! **No lock against changes of the slots.** The work is done in sections of the read side, of some ten microseconds.
//! Each section looks the slot up. A transaction that moves a slot, or begins or ends its log, ends in a grace period
//! before any fault continues in the new place. Within one section, what is mapped at a frame therefore belongs to the
//! slot that was looked up. Its pages are marked in the log that is harvested, or in one that has ended.
//!
//! Any number of harvests may run at once: each bit goes to one of them.

use super::DirtyError;
use super::harvest::{Harvest, TakenFromSlot, TakenWords};
use super::mark::tables_before_marks;
use super::state::LogId;
use super::take::{current, tables};
use crate::age::pass::Found;
use crate::fallible;
use crate::oracle;
use crate::slots::bitmap::{CHUNK, CHUNK_PAGES, WORD, bits, existing};
use crate::sync::mode::Shared;
use crate::tlb::debt::Owed;
use crate::{
    Cause, FlushDebt, Format, Gfn, GuestSpace, Host, Hva, Idle, Level, Slot, SlotId, Span, Vm, Walk,
};
use alloc::vec::Vec;
use core::ops::Range;

/// Words for which a harvest reserves room at first: 1 GiB, all dirty.
const ROOM: usize = 4096;

impl<'vm, F: Format, H: Host> GuestSpace<'vm, F, H> {
    /// Takes the log of slot `id`: its pages are clean from now on, and the next store to each is logged again. What
    /// vCPUs stored before is in memory on return, so the pages can be copied.
    ///
    /// Waits for vCPUs to answer one flush, and by D bits for walks under way, unless nothing was dirty. It is KVM's
    /// `GET_DIRTY_LOG` without manual protection, of the TDP MMU series.
    ///
    /// ```
    /// use slat::{*, table::formats::Npt4};
    ///
    /// /// A host whose frame is always the address.
    /// struct Identity;
    /// impl Host for Identity {
    ///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    ///     }
    /// }
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// let ram = SlotId(0);
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(ram, Gfn(0), 512, Hva(0x4000_0000))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// fn send(page: DirtyPage) -> bool { page.page == 5 }
    /// vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(ram, true))?;
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
    /// vm.memory().mark_dirty(Span::new(Gfn(7), Gfn(9))); // a device wrote there
    ///
    /// let harvest = vm.memory().harvest(&mut idle, ram)?;
    /// assert_eq!(harvest.pages(), 3);
    /// if harvest.iter().all(send) { harvest.commit() } else { harvest.give_back() }
    /// assert_eq!(vm.memory().harvest(&mut idle, ram)?.pages(), 3, "the copy failed: nothing is lost");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harvest(&self, idle: &mut Idle, id: SlotId) -> Result<Harvest<'vm, F, H>, DirtyError> {
        self.bitmaps()?;
        self.harvest_slots(idle, [id])
    }

    /// Like [`harvest`](Self::harvest), for every slot of this address space that logs, with one flush. In a VM with
    /// rings it empties the rings, including pages of other address spaces: every vCPU has room again.
    pub fn harvest_all(&self, idle: &mut Idle) -> Result<Harvest<'vm, F, H>, DirtyError> {
        let _taken = oracle::harvesting(&self.vm.host, false);
        let (mut harvest, mut owed) = (Harvest::new(self.vm), Owed::default());
        self.vm.empty_rings(idle);
        for id in self.logging(idle)? {
            match self.take(idle, id, &mut harvest, &mut owed) {
                // Deleted, or no longer logged, since they were listed.
                Ok(()) | Err(DirtyError::NoSuchSlot(_) | DirtyError::NotLogged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.vm.flush_armed(owed);
        Ok(harvest)
    }

    /// Like [`harvest_all`](Self::harvest_all), for these slots only, each of which must log. Marks of other slots stay.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// let (ram, screen) = (SlotId(0), SlotId(1));
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(ram, Gfn(0), 512, Hva(1 << 30)).log_dirty()))?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(screen, Gfn(512), 8, Hva(2 << 30)).log_dirty()))?;
    /// vm.memory().mark_dirty(Span::new(Gfn(511), Gfn(514)));
    /// assert_eq!(vm.memory().harvest_slots(&mut idle, [ram])?.pages(), 1);
    /// assert_eq!(vm.memory().harvest(&mut idle, screen)?.pages(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harvest_slots(
        &self,
        idle: &mut Idle,
        ids: impl IntoIterator<Item = SlotId>,
    ) -> Result<Harvest<'vm, F, H>, DirtyError> {
        let _taken = oracle::harvesting(&self.vm.host, false);
        let (mut harvest, mut owed) = (Harvest::new(self.vm), Owed::default());
        self.vm.empty_rings(idle);
        let mut ids = ids.into_iter();
        let taken = ids.try_for_each(|id| self.take(idle, id, &mut harvest, &mut owed));
        // Also after an error: what the other slots gave is armed.
        self.vm.flush_armed(owed);
        taken.map(|()| harvest)
    }

    /// Copies the log of slot `id` without changing it: page *n* of the slot is bit *n* mod 64 of word *n* / 64. `into`
    /// needs a word for each 64 pages; further words are left alone. Returns the number of dirty pages. KVM's
    /// `GET_DIRTY_LOG` with manual protection; [`clear_dirty`](Self::clear_dirty) is the second step.
    pub fn dirty_bits(&self, idle: &mut Idle, id: SlotId, into: &mut [u64]) -> Result<u64, DirtyError> {
        self.bitmaps()?;
        let (slot, log) = self.look_up(id)?;
        let needed = slot.gfns.len().div_ceil(WORD);
        if (into.len() as u64) < needed {
            return Err(DirtyError::Short { words: into.len(), needed });
        }
        let mut pages = 0;
        self.look(idle, (&slot, log), |first, words| {
            into[first as usize..][..words.len()].copy_from_slice(words);
            pages += words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        })?;
        Ok(pages)
    }

    /// Calls `visit` with each dirty frame of slot `id`, in order. Changes nothing.
    pub fn dirty(&self, idle: &mut Idle, id: SlotId, mut visit: impl FnMut(Gfn)) -> Result<(), DirtyError> {
        self.bitmaps()?;
        let (slot, log) = self.look_up(id)?;
        self.look(idle, (&slot, log), |first, words| {
            for (word, &dirty) in (first..).zip(words) {
                let base = slot.gfns.start + word * WORD;
                bits(dirty).for_each(|bit| visit(base + u64::from(bit)));
            }
        })
    }

    /// Cleans pages of slot `id`: of the `pages` from page `first` on, those set in `bits` (bit 0 of the first word is
    /// page `first`). The next store to each is logged again. Waits for vCPUs to answer one flush. Returns how many
    /// were dirty.
    ///
    /// Copy pages *after* this, not between [`dirty_bits`](Self::dirty_bits) and this. KVM's `CLEAR_DIRTY_LOG`, with
    /// its rules: `first` is a multiple of 64, and so is `pages` unless it ends the slot. An error clears nothing.
    pub fn clear_dirty(
        &self,
        idle: &mut Idle,
        id: SlotId,
        first: u64,
        pages: u64,
        bits: &[u64],
    ) -> Result<u64, DirtyError> {
        self.bitmaps()?;
        let whole = |page: u64| page.is_multiple_of(WORD);
        if !whole(first) {
            // Before any look-up, as in KVM.
            return Err(DirtyError::Misaligned { id, first });
        }
        let (slot, log) = self.look_up(id)?;
        let of = slot.gfns.len();
        let end = first.checked_add(pages).filter(|end| *end <= of);
        if !end.is_some_and(|end| whole(pages) || end == of) {
            return Err(DirtyError::Range { id, first, pages, of });
        }
        let needed = pages.div_ceil(WORD);
        if (bits.len() as u64) < needed {
            return Err(DirtyError::Short { words: bits.len(), needed });
        }
        let bits = &bits[..needed as usize];
        let words = first / WORD..first / WORD + needed;
        self.outlast_faults_without(idle);
        // All that can fail comes before the first clean.
        for chunk in chunks_of(&words) {
            self.divide(idle, log, chunk)?;
        }
        let _cleared = oracle::harvesting(&self.vm.host, true);
        let _taking = self.taking(log);
        let (mut owed, mut cleaned) = (Owed::default(), 0);
        for chunk in chunks_of(&words) {
            let mut asked = [0; CHUNK + 1];
            let all = (chunk * CHUNK) as u64..((chunk + 1) * CHUNK) as u64;
            for word in words.start.max(all.start)..words.end.min(all.end) {
                // The slot has no pages past its end.
                asked[(word - all.start) as usize] = bits[(word - words.start) as usize] & existing(word, of);
            }
            cleaned += self.clean(idle, log, chunk, &asked, &mut owed);
        }
        self.vm.flush_armed(owed);
        Ok(cleaned)
    }

    /// Marks frames that a device or the VMM has written, where their slots log. Call it after the write. It marks the
    /// pages that have these frames now: if their slot may have moved since the write, mark by host address
    /// ([`Vm::mark_dirty`]) or by page of the slot ([`mark_dirty_bits`](Self::mark_dirty_bits)). Marks a long
    /// range section by section, so that a concurrent transaction does not wait for all of it. Never sleeps: any thread
    /// may call it, also in the guest.
    pub fn mark_dirty(&self, gfns: Span<Gfn>) {
        let seat = self.vm.borrow_seat_without_idle();
        self.space.memslots.mark_dirty(&self.vm.reads, &seat, gfns);
    }

    /// Marks pages of slot `id` that another log found, such as KVM's or a device's: those set in `bits`, from page
    /// `first` on, a multiple of 64 (bit 0 of the first word is page `first`). Ignores bits past the end of the slot.
    /// If the log ends meanwhile, it marks nothing, which is no error.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # let ram = SlotId(0);
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(ram, Gfn(0), 512, Hva(1 << 30)).log_dirty()))?;
    /// let from_kvm = [1 << 3, 1 << 1]; // KVM_GET_DIRTY_LOG
    /// vm.memory().mark_dirty_bits(ram, 0, &from_kvm)?;
    /// assert!(vm.memory().is_dirty(Gfn(65)) && !vm.memory().is_dirty(Gfn(64)));
    /// assert_eq!(vm.memory().harvest(&mut idle, ram)?.pages(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mark_dirty_bits(&self, id: SlotId, first: u64, bits: &[u64]) -> Result<(), DirtyError> {
        if !first.is_multiple_of(WORD) {
            return Err(DirtyError::Misaligned { id, first });
        }
        let (slot, log) = self.look_up(id)?;
        let (of, pages) = (slot.gfns.len(), bits.len() as u64 * WORD);
        if first > of {
            return Err(DirtyError::Range { id, first, pages, of });
        }
        let words = (first / WORD..).step_by(CHUNK).zip(bits.chunks(CHUNK));
        // One section for each chunk.
        words.for_each(|(from, bits)| {
            let _ = self.in_log(log, |bitmap| {
                for (word, bits) in (from..).zip(bits).map(|(word, bits)| (word, bits & existing(word, of))) {
                    if bits != 0 {
                        bitmap.mark_word(word, bits);
                    }
                }
            });
        });
        Ok(())
    }

    /// Whether `gfn` is in a slot that logs, and was written since the last harvest. Changes nothing and never sleeps:
    /// any thread may call it, also in the guest. Does not see pages that wait in a ring.
    pub fn is_dirty(&self, gfn: Gfn) -> bool {
        let (vm, seat) = (self.vm, self.vm.borrow_seat_without_idle());
        let reading = self.space.memslots.read(&vm.reads, &seat);
        let slot = reading.version().find(gfn);
        let Some((slot, bitmap)) = slot.and_then(|slot| Some((slot, reading.version().log(slot.id)?))) else {
            return false;
        };
        let by_leaf = vm.logs_by_bits() && {
            // SAFETY: in `reading`, reachable tables stay allocated; the slot's frames fit the format.
            let at = unsafe { self.space.radix.descend(vm.tables(), gfn) };
            at.level == Level::K4 && F::is_present(at.word) && at.word.0 & F::DIRTY != 0
        };
        tables_before_marks();
        let page = gfn.0 - slot.gfns.start.0;
        by_leaf || bitmap.word(page / WORD) >> (page % WORD) & 1 != 0
    }

    /// Refuses a VM with rings: its bitmaps are incomplete.
    fn bitmaps(&self) -> Result<(), DirtyError> {
        if self.vm.rings.all().is_empty() { Ok(()) } else { Err(DirtyError::RingOnly) }
    }

    /// Returns the slots that log.
    fn logging(&self, idle: &mut Idle) -> Result<Vec<SlotId>, DirtyError> {
        let mut ids = Vec::new();
        for slot in self.snapshot(idle).iter().filter(|slot| slot.log_dirty) {
            fallible::reserve(&mut ids, 1)?;
            ids.push(slot.id);
        }
        Ok(ids)
    }

    /// Returns the slot and the identity of its log.
    pub(super) fn look_up(&self, id: SlotId) -> Result<(Slot, LogId), DirtyError> {
        let limit = self.space.memslots.ids;
        if id.0 >= limit {
            return Err(DirtyError::Id { id, limit });
        }
        let seat = self.vm.borrow_seat_without_idle();
        let reading = self.space.memslots.read(&self.vm.reads, &seat);
        let version = reading.version();
        let slot = version.get(id).ok_or(DirtyError::NoSuchSlot(id))?;
        let log = version.log(id).ok_or(DirtyError::NotLogged(id))?;
        Ok((slot, LogId { slot: id, serial: log.serial() }))
    }

    /// Takes the log of one slot into `harvest`, and owes the flush.
    fn take(
        &self,
        idle: &mut Idle,
        id: SlotId,
        harvest: &mut Harvest<'vm, F, H>,
        owed: &mut Owed,
    ) -> Result<(), DirtyError> {
        let (slot, log) = self.look_up(id)?;
        harvest.reserve()?;
        let mut told = TakenWords::default();
        // Enough room for most logs. Unused room costs nothing.
        let most = slot.gfns.len().div_ceil(WORD).min(ROOM as u64) as usize;
        fallible::reserve(&mut told.words, most.max(CHUNK))?;
        let taken = TakenFromSlot { space: self.space.id, slot, serial: log.serial, told };
        let _taking = self.taking(log);
        // After an error or a panic of the host, the harvest gives back what was taken.
        harvest.fill(taken, |told| {
            self.take_log(idle, log, told, owed)?;
            oracle::harvested(&self.vm.host, (self.space.id, slot.gfns), told);
            Ok(())
        })
    }

    /// Calls `visit` with the words of each chunk, and the number of the first of them.
    fn look(
        &self,
        idle: &mut Idle,
        (slot, log): (&Slot, LogId),
        mut visit: impl FnMut(u64, &[u64]),
    ) -> Result<(), DirtyError> {
        for chunk in 0..slot.gfns.len().div_ceil(CHUNK_PAGES) as usize {
            let mut dirty = [0; CHUNK + 1];
            let mut walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
            if self.vm.logs_by_bits() {
                tables(&mut walk, log, chunk, Found::Kept, &mut dirty);
            }
            let (_, bitmap) = current(&walk, log).ok_or(DirtyError::NotLogged(slot.id))?;
            let words = bitmap.words_of(chunk);
            for (dirty, word) in dirty.iter_mut().zip(words.clone()) {
                *dirty |= bitmap.word(word);
            }
            visit(words.start, &dirty[..(words.end - words.start) as usize]);
        }
        Ok(())
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Marks host addresses that a device or the VMM has written, in every slot that logs and maps them, in every
    /// address space. Call it after the write. Works section by section, like
    /// [`GuestSpace::mark_dirty`](crate::guest_space::GuestSpace::mark_dirty).
    pub fn mark_dirty(&self, hvas: Span<Hva>) {
        let seat = self.borrow_seat_without_idle();
        for space in &self.spaces {
            space.memslots.mark_dirty_behind(&self.reads, &seat, hvas);
        }
    }

    /// Pays for what has been armed. By D bits, it first waits for a grace period: an invalidation marks a leaf and
    /// then zaps it in one section. In between, a harvest may take the mark and clear D, and a store set D again: the
    /// leaf's word is as it was, and the zap succeeds. Once the section is over, that store is in the leaf's D, or the
    /// leaf is gone and this flush ends the store. The copy comes after both.
    pub(crate) fn flush_armed(&self, owed: Owed) {
        if self.logs_by_bits() && !owed.is_nothing() {
            self.reads.synchronize();
        }
        FlushDebt::new(self, owed, Cause::DirtyLog).settle();
    }
}

/// Returns the chunks that contain any of these words.
fn chunks_of(words: &Range<u64>) -> Range<usize> {
    let chunk = |word: u64| word as usize / CHUNK;
    if words.is_empty() { 0..0 } else { chunk(words.start)..chunk(words.end - 1) + 1 }
}

#[cfg(all(test, not(loom)))]
mod tests;
