//! Asking the dirty logs of a running VM: harvest, look, clear, mark.
//!
//! ```text
//! by D bits: the tables first       each D that is set is cleared, and its page told
//! fence                             who zaps a page marks it before the leaf goes: found above, or below
//! the bitmap, word by word          its marks are taken. Who gives a permission marks the page after it: the mark is left
//!                                   for the next harvest, or taken, and then the permission is seen below
//! arm those pages (`arm`)           their next store is noticed
//! one flush of all that was told    no store of before is still under way when the pages are copied
//! ```
//! **No lock against changes of the slots.** The work is done in sections of the read side, some ten microseconds each,
//! and each looks the slot up. A transaction that moves a slot, or begins or ends its log, ends in a grace period before
//! any fault goes on in the new place: so within one section, what is mapped at a frame belongs to the slot that was
//! looked up, and a page is marked in the log that is harvested, or in none that counts.
//!
//! Any number of harvests may run at once: each bit goes to one of them.

use super::bitmap::{Bitmap, CHUNK, CHUNK_PAGES, WORD};
use super::harvest::{Harvest, Taken};
use super::{DirtyError, Splitting};
use crate::addr::{Gfn, Hva, Level, Span};
use crate::age::AccessedPages;
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::Written;
use crate::host::Host;
use crate::slots::{Memslots, Slot, SlotId};
use crate::sync::idle::Idle;
use crate::sync::mode::{Mode, Shared};
use crate::sync::prim::{SeqCst, fence};
use crate::table::format::Format;
use crate::table::walk::Walk;
use crate::tlb::FlushDebt;
use crate::tlb::debt::Owed;
use crate::vm::Vm;
use alloc::vec::Vec;

/// Words looked at and pages armed in one section: some ten microseconds.
const STRETCH: u64 = 4096;

/// The words of one chunk, and one for what reaches over when bits are shifted.
type Words = [u64; CHUNK + 1];

impl<'vm, F: Format, H: Host> Memslots<'vm, F, H> {
    /// Takes what slot `id` has logged: those pages are clean from now on, and the next store to each is logged again.
    /// What a vCPU stored before is in memory when this returns, so the pages can be copied. Waits for vCPUs to answer
    /// one flush, unless nothing was dirty. Seed 003; KVM's `GET_DIRTY_LOG` without manual protection.
    ///
    /// ```
    /// # use slat::{*, table::{TableMemory, formats::Npt4}};
    /// # struct Identity;
    /// # unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::K4, writable: true })
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
    /// vm.slots().mark_dirty(&mut idle, Span::new(Gfn(7), Gfn(9))); // a device wrote there
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
        self.take_log(idle, id, &mut harvest, &mut owed)?;
        self.vm.flush_armed(owed);
        Ok(harvest)
    }

    /// The same of every slot of this address space that logs, with one flush for all of them. In a VM with rings these are
    /// emptied, of whatever address space their pages are: every vCPU has room again.
    pub fn harvest_all(&self, idle: &mut Idle) -> Result<Harvest<'vm, F, H>, DirtyError> {
        let (mut harvest, mut owed) = (Harvest::new(self.vm), Owed::default());
        self.vm.empty_rings(idle);
        for id in self.logging(idle)? {
            match self.take_log(idle, id, &mut harvest, &mut owed) {
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
        let (slot, _) = self.look_up(idle, id)?;
        let needed = slot.gfns.len().div_ceil(WORD);
        if (into.len() as u64) < needed {
            return Err(DirtyError::Short { words: into.len(), needed });
        }
        let mut pages = 0;
        self.look(idle, id, |first, words| {
            into[first as usize..][..words.len()].copy_from_slice(words);
            pages += words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        })?;
        Ok(pages)
    }

    /// Calls `visit` with each frame of slot `id` that is dirty, in order, and changes nothing.
    pub fn dirty(&self, idle: &mut Idle, id: SlotId, mut visit: impl FnMut(Gfn)) -> Result<(), DirtyError> {
        self.bitmaps()?;
        let (slot, _) = self.look_up(idle, id)?;
        self.look(idle, id, |first, words| {
            for (word, &bits) in (first..).zip(words) {
                let base = slot.gfns.start + word * WORD;
                (0..WORD).filter(|bit| bits >> bit & 1 != 0).for_each(|bit| visit(base + bit));
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
        let (slot, serial) = self.look_up(idle, id)?;
        let of = slot.gfns.len();
        let end = first.checked_add(pages).filter(|end| *end <= of);
        let whole = |page: u64| page.is_multiple_of(WORD);
        if !end.is_some_and(|end| whole(first) && (whole(pages) || end == of)) {
            return Err(DirtyError::Range { id, first, pages, of });
        }
        let needed = pages.div_ceil(WORD);
        if (bits.len() as u64) < needed {
            return Err(DirtyError::Short { words: bits.len(), needed });
        }
        let bits = &bits[..needed as usize];
        let words = first / WORD..first / WORD + needed;
        // Whatever can fail comes first.
        for chunk in chunks_of(&words) {
            self.divide(idle, (id, serial), chunk)?;
        }
        let (mut owed, mut cleaned) = (Owed::default(), 0);
        for chunk in chunks_of(&words) {
            let mut part = [0; CHUNK + 1];
            let chunk_first = (chunk * CHUNK) as u64;
            let from = words.start.max(chunk_first);
            let to = words.end.min(chunk_first + CHUNK as u64);
            for word in from..to {
                // Pages past the end of the slot do not exist.
                let exist = u64::MAX >> (WORD - (of - word * WORD).min(WORD));
                part[(word - chunk_first) as usize] = bits[(word - words.start) as usize] & exist;
            }
            cleaned += self.clean_chunk(idle, (id, serial), chunk, &part, &mut owed);
        }
        self.vm.flush_armed(owed);
        Ok(cleaned)
    }

    /// A device, or the VMM, has written these frames by itself: they are dirty where their slot logs. After the write.
    pub fn mark_dirty(&self, _idle: &mut Idle, gfns: Span<Gfn>) {
        let seat = self.vm.borrow_seat();
        self.space.memslots.log_writes(&self.vm.reads, seat.seat(), gfns);
    }

    /// A VM whose vCPUs log into rings has no bitmap that would tell everything.
    fn bitmaps(&self) -> Result<(), DirtyError> {
        if self.vm.policy.dirty.ring.is_some() { Err(DirtyError::RingOnly) } else { Ok(()) }
    }

    /// The slots that log.
    fn logging(&self, idle: &mut Idle) -> Result<Vec<SlotId>, DirtyError> {
        let mut ids = Vec::new();
        for slot in self.snapshot(idle).iter().filter(|slot| slot.log_dirty) {
            ids.try_reserve(1).map_err(|_| DirtyError::NoMemory)?;
            ids.push(slot.id);
        }
        Ok(ids)
    }

    /// The slot, and the serial number of its log.
    fn look_up(&self, idle: &mut Idle, id: SlotId) -> Result<(Slot, u64), DirtyError> {
        let limit = self.space.memslots.ids;
        if id.0 >= limit {
            return Err(DirtyError::Id { id, limit });
        }
        let snapshot = self.snapshot(idle);
        let slot = snapshot.get(id).ok_or(DirtyError::NoSuchSlot(id))?;
        let log = snapshot.version().log(id).ok_or(DirtyError::NotLogged(id))?;
        Ok((slot, log.serial()))
    }

    /// Takes the log of one slot into `harvest`, arms its pages, and owes their flush.
    fn take_log(
        &self,
        idle: &mut Idle,
        id: SlotId,
        harvest: &mut Harvest<'vm, F, H>,
        owed: &mut Owed,
    ) -> Result<(), DirtyError> {
        let (slot, serial) = self.look_up(idle, id)?;
        harvest.reserve()?;
        let mut words = Vec::new();
        let result = self.take_chunks(idle, &slot, serial, &mut words, owed);
        // What has been taken is in it, or goes back with it.
        harvest.add(Taken { space: self.space.id, slot, serial, words });
        result
    }

    fn take_chunks(
        &self,
        idle: &mut Idle,
        slot: &Slot,
        serial: u64,
        into: &mut Vec<(u64, u64)>,
        owed: &mut Owed,
    ) -> Result<(), DirtyError> {
        let log = (slot.id, serial);
        let mut next = 0;
        while let Some(chunk) = self.next_chunk(idle, log, next) {
            next = chunk + 1;
            into.try_reserve(CHUNK).map_err(|_| DirtyError::NoMemory)?;
            self.divide(idle, log, chunk)?;
            let mut taken = [0; CHUNK + 1];
            self.take_chunk(idle, log, chunk, &mut taken, owed);
            let words = ((chunk * CHUNK) as u64..).zip(&taken[..CHUNK]);
            into.extend(words.filter(|(_, bits)| **bits != 0).map(|(word, &bits)| (word, bits)));
        }
        Ok(())
    }

    /// The first chunk from `from` on in which something may be dirty.
    fn next_chunk(&self, idle: &mut Idle, (id, serial): (SlotId, u64), from: usize) -> Option<usize> {
        let mut walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
        let mut at = from;
        loop {
            let (_, log) = current(&walk, id, serial)?;
            let end = log.chunks().min(at + STRETCH as usize);
            let found = (at..end).find(|&chunk| self.vm.policy.dirty.by_bits::<F>() || !log.is_clean(chunk));
            if found.is_some() || end == log.chunks() {
                return found;
            }
            at = end;
            walk.rest();
        }
    }

    /// Makes parts of a chunk that is dirty as a whole; and of the large pages in it small ones, where that is not left to
    /// the stores.
    fn divide(&self, idle: &mut Idle, (id, serial): (SlotId, u64), chunk: usize) -> Result<(), DirtyError> {
        let whole = |idle: &mut Idle| {
            let walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
            current(&walk, id, serial)
                .and_then(|(slot, log)| log.is_whole(chunk).then(|| frames(&slot, chunk, 0..CHUNK as u64)))
        };
        let Some(gfns) = whole(idle) else { return Ok(()) };
        if self.vm.policy.dirty.splitting == Splitting::Eager {
            // Without table pages they stay large: then the first store to each splits it.
            let _ = self.vm.split_in(idle, self.space, gfns, Level::K4);
        }
        let walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
        current(&walk, id, serial).map_or(Ok(()), |(_, log)| log.divide(chunk))
    }

    /// Takes all that is dirty in a chunk, which is not whole.
    fn take_chunk(
        &self,
        idle: &mut Idle,
        (id, serial): (SlotId, u64),
        chunk: usize,
        taken: &mut Words,
        owed: &mut Owed,
    ) {
        let mut walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
        if self.vm.policy.dirty.by_bits::<F>() {
            let found = tables(&mut walk, (id, serial), chunk, Found::Cleared, taken);
            let Some(slot) = found else { return };
            owe(owed, &slot, chunk, taken);
        }
        let mut next = 0;
        while next < CHUNK {
            let Some((slot, log)) = current(&walk, id, serial) else { return };
            let words = log.words_of(chunk);
            let (from, end) = (next, (words.end - words.start) as usize);
            let mut marks: Words = [0; CHUNK + 1];
            let mut work = 0;
            while next < end && work < STRETCH {
                let bits = log.take(words.start + next as u64, u64::MAX);
                marks[next] = bits;
                work += 1 + u64::from(bits.count_ones());
                next += 1;
            }
            if work > (next - from) as u64 {
                walk.arm_words(&slot, words.start + from as u64, &marks[from..next], |_, _| ());
                for (taken, marks) in taken.iter_mut().zip(&marks) {
                    *taken |= marks;
                }
                owe(owed, &slot, chunk, &marks);
            }
            if next == end {
                return;
            }
            walk.rest();
        }
    }

    /// Cleans the pages `asked` of a chunk that is not whole; returns how many were dirty.
    fn clean_chunk(
        &self,
        idle: &mut Idle,
        (id, serial): (SlotId, u64),
        chunk: usize,
        asked: &Words,
        owed: &mut Owed,
    ) -> u64 {
        let by_bits = self.vm.policy.dirty.by_bits::<F>();
        let mut walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
        let (mut next, mut cleaned) = (0, 0);
        while let Some((slot, log)) = current(&walk, id, serial) {
            let words = log.words_of(chunk);
            let (from, end) = (next, (words.end - words.start) as usize);
            let mut marks: Words = [0; CHUNK + 1];
            let mut work = 0;
            while next < end && work < STRETCH {
                marks[next] = log.take(words.start + next as u64, asked[next]);
                work += 1 + u64::from(asked[next].count_ones());
                next += 1;
            }
            let mut dirty = marks;
            let arm = if by_bits { asked } else { &marks };
            walk.arm_words(&slot, words.start + from as u64, &arm[from..next], |index, bits| {
                dirty[from + index] |= bits;
            });
            owe(owed, &slot, chunk, &dirty);
            cleaned += dirty.iter().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
            if next == end {
                break;
            }
            walk.rest();
        }
        cleaned
    }

    /// Calls `visit` with the words of each chunk, and the number of the first of them.
    fn look(
        &self,
        idle: &mut Idle,
        id: SlotId,
        mut visit: impl FnMut(u64, &[u64]),
    ) -> Result<(), DirtyError> {
        let (slot, serial) = self.look_up(idle, id)?;
        let chunks = slot.gfns.len().div_ceil(CHUNK_PAGES) as usize;
        for chunk in 0..chunks {
            let mut found = [0; CHUNK + 1];
            let mut walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
            if self.vm.policy.dirty.by_bits::<F>() {
                tables(&mut walk, (id, serial), chunk, Found::Kept, &mut found);
            }
            let (_, log) = current(&walk, id, serial).ok_or(DirtyError::NotLogged(id))?;
            let words = log.words_of(chunk);
            for (found, word) in found.iter_mut().zip(words.clone()) {
                *found |= log.word(word);
            }
            visit(words.start, &found[..(words.end - words.start) as usize]);
        }
        Ok(())
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// A device, or the VMM, has written these host addresses by itself: the pages are dirty in every slot that logs and
    /// maps them, in every address space. After the write.
    pub fn mark_dirty(&self, _idle: &mut Idle, hvas: Span<Hva>) {
        let seat = self.borrow_seat();
        for space in &self.spaces {
            space.memslots.log_writes_behind(&self.reads, seat.seat(), hvas);
        }
    }

    /// Pays for what has been armed.
    pub(crate) fn flush_armed(&self, owed: Owed) {
        if !self.policy.dirty.sabotaged {
            FlushDebt::new(self, owed, None).settle();
        }
    }
}

/// The slot and its log, if that is still the log that was asked for; good until the walk rests.
pub(super) fn current<'w, F: Format, H: Host, M: Mode>(
    walk: &'w Walk<'_, F, H, M>,
    id: SlotId,
    serial: u64,
) -> Option<(Slot, &'w Bitmap)> {
    let version = walk.space.memslots.read(&walk.vm.reads, walk.seat).version;
    let log = version.log(id).filter(|log| log.serial() == serial)?;
    Some((version.get(id)?, log))
}

/// Adds the pages of a chunk whose D bits are set; returns the slot as it was last. What somebody zaps beside this is in
/// the bitmap when the leaf is gone: that is looked at afterwards.
fn tables<F: Format, H: Host, M: Mode>(
    walk: &mut Walk<'_, F, H, M>,
    (id, serial): (SlotId, u64),
    chunk: usize,
    found: Found,
    into: &mut Words,
) -> Option<Slot> {
    let vm = walk.vm;
    let mut done = 0;
    loop {
        let (slot, _) = current(walk, id, serial)?;
        let gfns = frames(&slot, chunk, 0..CHUNK as u64);
        let left = Span::new(gfns.start + done, gfns.end);
        let told = |written: AccessedPages<Gfn>| {
            add(into, written.first().0 - gfns.start.0, written.bits());
            true
        };
        let mut pass = Pass::<F, Written, H, _>::new(&vm.host, How::every_leaf(found), told);
        // SAFETY: this walk is one section from its opening or last rest, in which the root is read, to the next.
        let goal = unsafe { pass.stretch(walk.root(), left) };
        if goal >= left.end {
            // ORDER(log): the entries before the marks; pairs with the CAS that follows a mark when a leaf goes.
            fence(SeqCst);
            return Some(slot);
        }
        done = goal.0 - gfns.start.0;
        walk.rest();
    }
}

/// Adds the bits of pages from page `first` of a chunk on.
fn add(into: &mut Words, first: u64, bits: &[u64; 8]) {
    let (word, shift) = ((first / WORD) as usize, first % WORD);
    for (index, &bits) in bits.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        into[word + index] |= bits << shift;
        if shift != 0 && bits >> (WORD - shift) != 0 {
            into[word + index + 1] |= bits >> (WORD - shift);
        }
    }
}

/// The frames of these words of a chunk.
fn frames(slot: &Slot, chunk: usize, words: core::ops::Range<u64>) -> Span<Gfn> {
    let first = slot.gfns.start + chunk as u64 * CHUNK_PAGES;
    Span::new(first + words.start * WORD, (first + words.end * WORD).min(slot.gfns.end))
}

/// Owes the flush of the pages of a chunk.
fn owe(owed: &mut Owed, slot: &Slot, chunk: usize, pages: &Words) {
    let set = |bits: &&u64| **bits != 0;
    let Some(first) = pages.iter().position(|bits| set(&bits)) else { return };
    let last = pages.iter().rposition(|bits| set(&bits)).unwrap_or(first);
    let count = pages.iter().map(|bits| u64::from(bits.count_ones())).sum();
    owed.owe_pages(frames(slot, chunk, first as u64..last as u64 + 1), count);
}

/// The chunks that have any of these words.
fn chunks_of(words: &core::ops::Range<u64>) -> core::ops::Range<usize> {
    let last = if words.is_empty() { words.start } else { words.end.div_ceil(CHUNK as u64) * CHUNK as u64 };
    words.start as usize / CHUNK..last as usize / CHUNK
}
