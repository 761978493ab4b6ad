//! The design before the series: one array of all slots, copied whole for every change.
//!
//! It is the array that the series itself describes, made with the care that slat's own trees were made with:
//!
//! | what | how | cost |
//! |---|---|---|
//! | gfn → slot | the last one that was found, else binary search in the array | O(log n) |
//! | hva range → gfn ranges | a look at every slot | O(n) |
//! | id → slot | an index of every id there can be | O(1), 64 KiB to copy |
//! | create, change flags | a copy of everything, published by one pointer | O(n) |
//! | delete, move | the same twice: first the slot is marked invalid, so that nothing new is mapped through it, then it goes | O(n) |
//!
//! After each publication the writer waits for readers, as it had to: the old copy goes. Waiting and reading are
//! as cheap as they can be made together (`array_host.rs`), far cheaper than the kernel's (`--kvm` shows requests with one
//! wait and with two). Records are as large as the kernel's, copies reuse their memory.
//!
//! **It runs on slat's own engine, so that nothing else differs.** Its VM has a single slat memslot that passes every
//! guest frame through: the host address that the engine asks for is the guest's own. The host here translates
//! it through the array to the real one, inside the array's read section, and looks there in the same memory as
//! the other entrant (`Adapter`). Where the host takes pages away, the scan finds the slots, and each becomes an
//! invalidation of guest frames; a slot that goes is one as well, over its own frames only (the kernel of that time
//! emptied the whole table). Tables, faults, flushes and vCPUs are the same code, and the engine's own slot
//! look-up, which has one slot to find, takes its shortest way.

pub mod array_host;

use crate::scenarios::prelude::*;
use crate::world::{copied, read_at_once};
use core::iter::once;
use std::sync::atomic::AtomicUsize;

// The array of slots, and its copies.
//
// ```text
// index     id → place, for every id there can be; −1: none                64 KiB
// records   [ slot | slot | … ]      by descending first frame, 88 bytes each
// last_used the place of the slot that was found last
// ```
// A change is a whole copy with one record put in, taken out or replaced. The copy is made in pieces around that
// record, so nothing is moved twice, and the index is copied and corrected in the same pass, without a look at records.

/// See the module's header.
#[derive(Debug)]
pub struct Array {
    index: Box<[i16]>,
    records: Vec<Record>,
    last_used: AtomicUsize,
}

impl Default for Array {
    fn default() -> Self {
        Self { index: vec![-1; IDS as usize].into(), records: Vec::new(), last_used: AtomicUsize::new(0) }
    }
}

impl Array {
    /// The slot that holds `gfn`: the last one that was found, or the result of a binary search.
    #[inline]
    pub fn find(&self, gfn: Gfn) -> Option<&Record> {
        let last = self.records.get(self.last_used.load(Relaxed));
        read_at_once(last.into_iter().map(Record::place_in_memory));
        if let Some(record) = last.filter(|record| record.contains(gfn)) {
            return Some(record);
        }
        let place = self.place(gfn);
        let record = self.records.get(place).filter(|record| record.contains(gfn))?;
        self.last_used.store(place, Relaxed);
        Some(record)
    }

    /// The slot named `id`.
    pub fn get(&self, id: SlotId) -> Option<&Record> {
        self.place_of(id).map(|place| &self.records[place])
    }

    /// The frames behind `hvas`, slot by slot: looks at every slot there is.
    #[inline]
    pub fn over_hvas(&self, hvas: Span<Hva>) -> impl Iterator<Item = Span<Gfn>> {
        read_at_once(self.records.iter().map(Record::place_in_memory));
        self.records.iter().filter_map(move |record| record.behind(hvas))
    }

    /// A slot with any of these frames.
    pub fn overlapping(&self, gfns: Span<Gfn>) -> impl Iterator<Item = &Record> {
        let below = self.place(Gfn(gfns.end.0 - 1));
        self.records[below..].iter().take_while(move |record| record.slot().gfns.overlaps(&gfns))
    }

    /// The place of the first record that begins at or below `gfn`.
    #[inline]
    fn place(&self, gfn: Gfn) -> usize {
        self.records.partition_point(|record| {
            read_at_once(once(record.place_in_memory()));
            record.first() > gfn
        })
    }

    /// The place of slot `id`.
    pub fn place_of(&self, id: SlotId) -> Option<usize> {
        let place = self.index.get(id.0 as usize)?;
        read_at_once(once(core::ptr::from_ref(place).cast()));
        usize::try_from(*place).ok()
    }

    /// Becomes `from`, without the record at `out` and with `new` where it belongs.
    pub fn copy(&mut self, from: &Self, out: Option<usize>, new: Option<Record>) {
        let old = &from.records;
        let end = old.len();
        let at = new.map_or(end, |new| from.place(new.first()));
        let (skip, resume) = out.map_or((end, end), |out| (out, out + 1));

        self.records.clear();
        if at <= skip {
            self.records.extend_from_slice(&old[..at]);
            self.records.extend(new);
            self.records.extend_from_slice(&old[at..skip]);
            self.records.extend_from_slice(&old[resume..]);
        } else {
            self.records.extend_from_slice(&old[..skip]);
            self.records.extend_from_slice(&old[resume..at]);
            self.records.extend(new);
            self.records.extend_from_slice(&old[at..]);
        }

        // A slot behind the one that came is one place further on; a slot behind the one that went is one place
        // nearer. The place of no slot is before all of them.
        let (came, went) = (at as i16, skip as i16);
        for (new, &old) in self.index.iter_mut().zip(&from.index) {
            *new = old + i16::from(old >= came) - i16::from(old > went);
        }
        if let Some(out) = out {
            self.index[old[out].id()] = -1;
        }
        if let Some(new) = new {
            self.index[new.id()] = came - i16::from(came > went);
        }
        self.last_used.store(from.last_used.load(Relaxed), Relaxed);
        copied(&*from.index, &*self.index);
        copied(&*from.records, &*self.records);
    }

    /// Becomes `from` with these slots added: set-up of many at once, which no design is measured by.
    pub fn fill(&mut self, from: &Self, new: impl Iterator<Item = Record>) {
        self.records.clear();
        self.records.extend_from_slice(&from.records);
        self.records.extend(new);
        self.records.sort_unstable_by_key(|record| std::cmp::Reverse(record.first()));
        for (place, record) in self.records.iter().enumerate() {
            self.index[record.id()] = place as i16;
        }
    }

    /// All of them.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

// A record of the array.

/// Ids are below this: as many as the kernel lets users have on x86.
pub const IDS: u32 = 32_764;

/// One slot, field by field as wide as the record of Linux 5.10 on x86-64, in its order: 88 bytes. Copies and scans of
/// the array then move through as much memory, and touch as many cache lines a slot, as they did there. A field
/// that this bench does not use is zero, and copied like the rest.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Record {
    first_gfn: u64,
    pages: u64,
    dirty_bitmap: u64,
    reverse_maps: [u64; 3],
    large_page_info: [u64; 2],
    write_tracking: u64,
    host_address: u64,
    flags: u32,
    id: u16,
    address_space: u16,
}

const _: () = assert!(size_of::<Record>() == 88);

impl Record {
    const INVALID: u32 = 1 << 16;

    /// The record of a slot whose id fits.
    pub fn new(slot: &Slot) -> Self {
        Self {
            first_gfn: slot.gfns.start.0,
            pages: slot.gfns.len(),
            host_address: slot.hva.0,
            id: slot.id.0 as u16,
            ..Self::default()
        }
    }

    /// The same slot elsewhere.
    pub fn at(self, gfn: Gfn) -> Self {
        Self { first_gfn: gfn.0, ..self }
    }

    /// The same slot, being deleted or moved: a fault that meets it tries again later.
    pub fn invalid(self) -> Self {
        Self { flags: self.flags | Self::INVALID, ..self }
    }

    #[inline(always)]
    pub(super) fn is_invalid(&self) -> bool {
        self.flags & Self::INVALID != 0
    }

    /// The slot that it records.
    pub fn slot(&self) -> Slot {
        Slot::new(SlotId(u32::from(self.id)), Gfn(self.first_gfn), self.pages, Hva(self.host_address))
    }

    #[inline(always)]
    pub(super) fn id(&self) -> usize {
        usize::from(self.id)
    }

    /// The address that a look at it loads from.
    #[inline(always)]
    pub(super) fn place_in_memory(&self) -> *const () {
        core::ptr::from_ref(self).cast()
    }

    #[inline(always)]
    pub(super) fn first(&self) -> Gfn {
        Gfn(self.first_gfn)
    }

    #[inline(always)]
    pub(super) fn contains(&self, gfn: Gfn) -> bool {
        gfn.0.wrapping_sub(self.first_gfn) < self.pages
    }

    /// The host address of `gfn`, which lies in the slot.
    #[inline(always)]
    pub fn hva_of(&self, gfn: Gfn) -> Hva {
        Hva(self.host_address + ((gfn.0 - self.first_gfn) << PAGE_SHIFT))
    }

    /// The frames behind `hvas`, page by page, if there are any.
    #[inline(always)]
    pub fn behind(&self, hvas: Span<Hva>) -> Option<Span<Gfn>> {
        let (start, end) = (self.host_address, self.host_address + (self.pages << PAGE_SHIFT));
        let (from, to) = (hvas.start.0.max(start), hvas.end.0.min(end));
        if from >= to {
            return None;
        }
        let page = |hva: u64| (hva - start) >> PAGE_SHIFT;
        Some(Span::new(self.first() + page(from), self.first() + (page(to - 1) + 1)))
    }
}
