//! The array of slots, and its copies.
//!
//! ```text
//! index     id → place, for every id there can be; −1: none                64 KiB
//! records   [ slot | slot | … ]      by descending first frame, 88 bytes each
//! last_used the place of the slot that was found last
//! ```
//! A change is a whole copy with one record put in, taken out or replaced. The copy is made in pieces around that
//! record, so nothing is moved twice, and the index is copied and corrected in the same pass, without a look at records.

use crate::scenarios::memslot::array::array_record::{IDS, Record};
use crate::scenarios::prelude::*;
use crate::world::{copied, read_at_once};
use core::iter::once;
use std::sync::atomic::AtomicUsize;

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
