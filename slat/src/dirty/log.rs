//! Asking the dirty logs of a running VM: harvest, look, clear, mark.
//!
//! ```text
//! by D bits: the tables first       each D that is set is cleared, and its page told
//! fence                             who zaps a page marks it before the leaf goes: found above, or below
//! the bitmap, word by word          its marks are taken. Who gives a permission marks the page after it: the mark is left
//!                                   for the next harvest, or taken, and then the permission is seen below
//! arm those pages (`arm`)           their next store is noticed
//! by D bits: a grace period         who marked a leaf before its mark was taken, and takes the leaf away, has done so
//! one flush of all that was told    no store of before is still under way when the pages are copied
//! ```
//! **No lock against changes of the slots.** The work is done in sections of the read side, some ten microseconds each,
//! and each looks the slot up. A transaction that moves a slot, or begins or ends its log, ends in a grace period before
//! any fault goes on in the new place: so within one section, what is mapped at a frame belongs to the slot that was
//! looked up, and a page is marked in the log that is harvested, or in none that counts.
//!
//! Any number of harvests may run at once: each bit goes to one of them.

use super::DirtyError;
use super::harvest::{Harvest, TakenFromSlot, TakenWords};
use super::mark::tables_before_marks;
use super::take::{LogId, current, tables};
use crate::addr::{Gfn, Hva, Level, Span};
use crate::age::pass::Found;
use crate::host::Host;
use crate::memslots::Memslots;
use crate::slots::bitmap::{CHUNK, CHUNK_PAGES, WORD, bits};
use crate::slots::{Slot, SlotId};
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::tlb::{Cause, FlushDebt};
use crate::vm::Vm;
use crate::walk::Walk;
use alloc::vec::Vec;
use core::ops::Range;

/// Words for which a harvest has room from the start: 1 GiB, all of it dirty.
const ROOM: usize = 4096;

impl<'vm, F: Format, H: Host> Memslots<'vm, F, H> {
    /// Takes what slot `id` has logged: those pages are clean from now on, and the next store to each is logged again.
    /// What a vCPU stored before is in memory when this returns, so the pages can be copied. Waits for vCPUs to answer
    /// one flush, and by D bits for walks under way, unless nothing was dirty. The TDP MMU series; KVM's `GET_DIRTY_LOG` without manual
    /// protection.
    ///
    /// ```
    /// # use slat::{*, table::{TableMemory, formats::Npt4}};
    /// # struct Identity;
    /// # unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # let ram = SlotId(0);
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(ram, Gfn(0), 512, Hva(0x4000_0000))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// # fn send(page: DirtyPage) -> bool { page.page == 5 }
    /// vm.slots().commit(&mut idle, |tx| tx.set_log_dirty(ram, true))?;
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
    /// vm.slots().mark_dirty(Span::new(Gfn(7), Gfn(9))); // a device wrote there
    ///
    /// let harvest = vm.slots().harvest(&mut idle, ram)?;
    /// assert_eq!(harvest.pages(), 3);
    /// if harvest.iter().all(send) { harvest.commit() } else { harvest.give_back() }
    /// assert_eq!(vm.slots().harvest(&mut idle, ram)?.pages(), 3, "the copy failed: nothing is lost");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harvest(&self, idle: &mut Idle, id: SlotId) -> Result<Harvest<'vm, F, H>, DirtyError> {
        self.bitmaps()?;
        let (mut harvest, mut owed) = (Harvest::new(self.vm), Owed::default());
        self.take(idle, id, &mut harvest, &mut owed)?;
        self.vm.flush_armed(owed);
        Ok(harvest)
    }

    /// The same of every slot of this address space that logs, with one flush for all of them. In a VM with rings these are
    /// emptied, of whatever address space their pages are: every vCPU has room again.
    pub fn harvest_all(&self, idle: &mut Idle) -> Result<Harvest<'vm, F, H>, DirtyError> {
        let (mut harvest, mut owed) = (Harvest::new(self.vm), Owed::default());
        self.vm.empty_rings(idle);
        for id in self.logging(idle)? {
            match self.take(idle, id, &mut harvest, &mut owed) {
                // Gone since they were listed.
                Ok(()) | Err(DirtyError::NoSuchSlot(_) | DirtyError::NotLogged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.vm.flush_armed(owed);
        Ok(harvest)
    }

    /// Copies what slot `id` has logged, and changes nothing: page *n* of the slot is bit *n* mod 64 of word *n* / 64.
    /// `into` has a word for each 64 pages at least; those past them are left alone. Returns how many pages are dirty.
    /// KVM's `GET_DIRTY_LOG` with manual protection: [`clear_dirty`](Self::clear_dirty) is its other half.
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

    /// Calls `visit` with each frame of slot `id` that is dirty, in order, and changes nothing.
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

    /// Of the `pages` of slot `id` from page `first` on, cleans those set in `bits` (bit 0 of the first word is page
    /// `first`): the next store to each is logged again. Waits for vCPUs to answer one flush. Returns how many were dirty.
    /// Copy pages *after* this, not between [`dirty_bits`](Self::dirty_bits) and it. KVM's `CLEAR_DIRTY_LOG`, with its
    /// rules: `first` is a multiple of 64, and so is `pages` unless it ends the slot. An error clears nothing.
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
            // Before anything is looked up, as in KVM.
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
        // Whatever can fail comes first.
        for chunk in chunks_of(&words) {
            self.divide(idle, log, chunk)?;
        }
        let (mut owed, mut cleaned) = (Owed::default(), 0);
        for chunk in chunks_of(&words) {
            let mut asked = [0; CHUNK + 1];
            let all = (chunk * CHUNK) as u64..((chunk + 1) * CHUNK) as u64;
            for word in words.start.max(all.start)..words.end.min(all.end) {
                // Pages past the end of the slot do not exist.
                let exist = u64::MAX >> (WORD - (of - word * WORD).min(WORD));
                asked[(word - all.start) as usize] = bits[(word - words.start) as usize] & exist;
            }
            cleaned += self.clean(idle, log, chunk, &asked, &mut owed);
        }
        self.vm.flush_armed(owed);
        Ok(cleaned)
    }

    /// A device, or the VMM, has written these frames by itself: they are dirty where their slot logs. After the write. Marks
    /// a long range section by section, so that a transaction beside it does not wait for all of it. Never sleeps: any thread may
    /// call it, also in the guest.
    pub fn mark_dirty(&self, gfns: Span<Gfn>) {
        let seat = self.vm.borrow_seat();
        self.space.memslots.mark_dirty(&self.vm.reads, seat.seat(), gfns);
    }

    /// The same for those pages of slot `id` that are set in `bits`, from page `first` on, a multiple of 64 (bit 0 of the first word
    /// is page `first`): what another log found, such as KVM's, or a device's. Pages past the end of the slot are none.
    /// Where the log ends meanwhile nothing is marked, and that is no error.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity; unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # let ram = SlotId(0);
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(ram, Gfn(0), 512, Hva(1 << 30)).log_dirty()))?;
    /// let from_kvm = [1 << 3, 1 << 1]; // KVM_GET_DIRTY_LOG
    /// vm.slots().mark_dirty_bits(ram, 0, &from_kvm)?;
    /// assert!(vm.slots().is_dirty(Gfn(65)) && !vm.slots().is_dirty(Gfn(64)));
    /// assert_eq!(vm.slots().harvest(&mut idle, ram)?.pages(), 2);
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
        let seat = self.vm.borrow_seat();
        let mut word = first / WORD;
        for bits in bits.chunks(CHUNK) {
            // One section.
            let reading = self.space.memslots.read(&self.vm.reads, seat.seat());
            let Some(bitmap) = reading.version.log(id).filter(|bitmap| bitmap.serial() == log.serial) else {
                break;
            };
            for &bits in bits {
                let exist = of.saturating_sub(word * WORD).min(WORD);
                if exist > 0 && bits != 0 {
                    bitmap.mark_word(word, bits & u64::MAX >> (WORD - exist));
                }
                word += 1;
            }
        }
        Ok(())
    }

    /// Whether `gfn` is in a slot that logs, and has been written since its slot was harvested. Changes nothing, and never
    /// sleeps: any thread may ask, also in the guest. In a VM with rings, what still waits in a ring is not seen.
    pub fn is_dirty(&self, gfn: Gfn) -> bool {
        let (vm, seat) = (self.vm, self.vm.borrow_seat());
        let reading = self.space.memslots.read(&vm.reads, seat.seat());
        let slot = reading.version.find(gfn);
        let Some((slot, bitmap)) = slot.and_then(|slot| Some((slot, reading.version.log(slot.id)?))) else {
            return false;
        };
        let by_leaf = vm.logs_by_bits() && {
            // SAFETY: `reading` is a section, in which what is reached stays allocated; the slot's frames are the format's.
            let at = unsafe { self.space.radix.descend(&vm.host, gfn) };
            at.level == Level::K4 && F::is_present(at.word) && at.word.0 & F::DIRTY != 0
        };
        tables_before_marks();
        let page = gfn.0 - slot.gfns.start.0;
        by_leaf || bitmap.word(page / WORD) >> (page % WORD) & 1 != 0
    }

    /// A VM whose vCPUs log into rings has no bitmap that would tell everything.
    fn bitmaps(&self) -> Result<(), DirtyError> {
        if self.vm.rings.all().is_empty() { Ok(()) } else { Err(DirtyError::RingOnly) }
    }

    /// The slots that log.
    fn logging(&self, idle: &mut Idle) -> Result<Vec<SlotId>, DirtyError> {
        let mut ids = Vec::new();
        for slot in self.snapshot(idle).iter().filter(|slot| slot.log_dirty) {
            if injected!(Alloc) || ids.try_reserve(1).is_err() {
                return Err(DirtyError::NoMemory);
            }
            ids.push(slot.id);
        }
        Ok(ids)
    }

    /// The slot and its log.
    fn look_up(&self, id: SlotId) -> Result<(Slot, LogId), DirtyError> {
        let limit = self.space.memslots.ids;
        if id.0 >= limit {
            return Err(DirtyError::Id { id, limit });
        }
        let seat = self.vm.borrow_seat();
        let version = self.space.memslots.read(&self.vm.reads, seat.seat()).version;
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
        // Mostly that is room enough; what is not used costs nothing.
        let most = slot.gfns.len().div_ceil(WORD).min(ROOM as u64) as usize;
        if injected!(Alloc) || told.words.try_reserve(most.max(CHUNK)).is_err() {
            return Err(DirtyError::NoMemory);
        }
        let result = self.take_log(idle, log, &mut told, owed);
        // Where that failed, what has been taken goes back with it.
        harvest.add(TakenFromSlot { space: self.space.id, slot, serial: log.serial, told });
        result
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
    /// A device, or the VMM, has written these host addresses by itself: the pages are dirty in every slot that logs and
    /// maps them, in every address space. After the write, and section by section, as
    /// [`Memslots::mark_dirty`](crate::memslots::Memslots::mark_dirty).
    pub fn mark_dirty(&self, hvas: Span<Hva>) {
        let seat = self.borrow_seat();
        for space in &self.spaces {
            space.memslots.mark_dirty_behind(&self.reads, seat.seat(), hvas);
        }
    }

    /// Pays for what has been armed. By D bits, after a grace period: a thread that marks a leaf to take it away does both in one
    /// section. Between the two its mark can be taken, its D cleared, and set again by the next store; then the leaf says
    /// what it said before, and goes. When the section is over, that store is either in the leaf's D, or nothing is mapped any
    /// more once this flush is done, and the copy comes after that.
    pub(crate) fn flush_armed(&self, owed: Owed) {
        if self.policy.dirty.sabotaged {
            return;
        }
        if self.logs_by_bits() && !owed.is_nothing() && !seeded!(HarvestUnwaited) {
            self.reads.synchronize();
        }
        FlushDebt::new(self, owed, Cause::DirtyLog).settle();
    }
}

/// The chunks that have any of these words.
fn chunks_of(words: &Range<u64>) -> Range<usize> {
    let chunk = |word: u64| word as usize / CHUNK;
    if words.is_empty() { 0..0 } else { chunk(words.start)..chunk(words.end - 1) + 1 }
}

#[cfg(all(test, not(loom)))]
mod tests;
