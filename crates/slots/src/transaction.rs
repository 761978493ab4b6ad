//! `Transaction`: slot operations on the next version. No reader sees them before the commit.
//!
//! Each operation succeeds as a whole or changes nothing. A dropped transaction undoes itself without
//! allocating. A transaction also collects its effects on page tables: frames that lose their slot must be
//! zapped, frames whose logging begins must be write-protected.

use crate::addr::{Gfn, Span};
use crate::log::{Kept, Log};
use crate::memory_type::MemoryType;
use crate::pool::NoMemory;
use crate::rules::{Change, Limits, MAX_PAGES, Region, Rule, SlotError};
use crate::slot::{Slot, SlotId};
use crate::version::{Edits, Facts, Leftovers, VersionRoot};
use alloc::vec::Vec;
use core::fmt;
use core::mem;

/// Slot operations that take effect together. Created by [`SharedSlots::commit`](crate::SharedSlots::commit)
/// and [`SlotMap::commit`](crate::SlotMap::commit).
///
/// ```
/// use slat_slots::{Gfn, Hva, Limits, Slot, SlotError, SlotId, SlotMap};
/// let mut slots = SlotMap::<()>::new(Limits::default());
/// let (low, high) = (SlotId(0), SlotId(1));
/// slots.commit(|tx| {
///     tx.create(Slot::new(low, Gfn(0), 512, Hva(0x7000_0000)))?;
///     tx.move_to(low, Gfn(0x1000))?;
///     tx.create(Slot::new(high, Gfn(0), 512, Hva(0x7020_0000)))?; // the former place of `low`
///     assert_eq!(tx.len(), 2, "a transaction sees its own operations");
///     Ok(())
/// })?;
/// let refused = slots.commit(|tx| {
///     tx.delete(low)?;
///     tx.set_log_dirty(SlotId(9), true) // no such slot
/// });
/// assert!(refused.is_err() && slots.get(low).is_some(), "all or nothing");
/// # Ok::<(), SlotError>(())
/// ```
pub struct Transaction<'t, L = ()> {
    pub(crate) edits: Edits<'t, L>,
    pub(crate) limits: Limits,
    /// Whether a new log starts with every page written.
    logs_set: bool,
    /// Facts of the next version.
    pub(crate) facts: Facts,
    /// The map's facts, updated by `finish`.
    current: &'t mut Facts,
    pub(crate) effects: Effects,
    fresh: Fresh<L>,
    ended: Vec<Kept<L>>,
    /// Error of an operation that stopped half-way.
    pub(crate) broken: Option<SlotError>,
}

/// Effects of a transaction on page tables that were filled from the slots.
#[derive(Debug)]
pub struct Effects {
    /// Hull of all changed frames; empty if nothing changed.
    pub changed: Span<Gfn>,
    /// Frames that had a slot and now have another or none; to be zapped.
    pub zap: Vec<Span<Gfn>>,
    /// Frames whose writes are logged from now on; to be write-protected.
    pub log: Vec<Span<Gfn>>,
    /// Frames whose writes are no longer logged, and that did not move.
    pub unlogged: Vec<Span<Gfn>>,
    /// Whether the transaction took something away from readers, so that the embedder must wait for them.
    pub takes: bool,
}

impl Effects {
    /// Returns the list for frames of a slot that has moved, or whose logging begins or ends.
    fn of(&mut self, moves: bool, logs: bool) -> &mut Vec<Span<Gfn>> {
        match (moves, logs) {
            (true, _) => &mut self.zap,
            (false, true) => &mut self.log,
            (false, false) => &mut self.unlogged,
        }
    }
}

/// Logs that no version holds yet; freed if the transaction is dropped.
struct Fresh<L>(Vec<Kept<L>>);

impl<L> Drop for Fresh<L> {
    fn drop(&mut self) {
        for log in self.0.drain(..) {
            // SAFETY: created by this transaction, which was not published.
            unsafe { log.free() };
        }
    }
}

impl<L> fmt::Debug for Transaction<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("effects", &self.effects).finish_non_exhaustive()
    }
}

impl<'t, L: Log> Transaction<'t, L> {
    /// `zap` is an empty list, passed to reuse its memory.
    pub(crate) fn new(
        edits: Edits<'t, L>,
        (limits, logs_set): (Limits, bool),
        current: &'t mut Facts,
        zap: Vec<Span<Gfn>>,
    ) -> Self {
        let nowhere = Span::new(Gfn(0), Gfn(0));
        let effects = Effects { changed: nowhere, zap, log: Vec::new(), unlogged: Vec::new(), takes: false };
        let facts = *current;
        let (fresh, ended) = (Fresh(Vec::new()), Vec::new());
        Self { edits, limits, logs_set, facts, current, effects, fresh, ended, broken: None }
    }

    /// Executes `region` by the rules of [`crate::rules`]: creates, deletes, moves, changes flags, or does
    /// nothing.
    pub fn set(&mut self, region: Region) -> Result<Change, SlotError> {
        let Some(slot) = self.limits.check(&region)? else {
            return self.delete(region.slot).map(Change::Deleted);
        };
        match self.get(slot.id) {
            None => self.put_in(slot).map(|()| Change::Created),
            // A request in KVM's terms does not include these fields.
            Some(old) => self.change(old, Slot { execute: old.execute, memory: old.memory, ..slot }),
        }
    }

    /// Adds a slot. Its frames must be free; its host addresses may be shared, and need not be mapped yet.
    pub fn create(&mut self, slot: Slot) -> Result<(), SlotError> {
        self.check_new(&slot)?;
        self.put_in(slot)
    }

    /// Checks `slot` by itself, and that its id is free.
    pub(crate) fn check_new(&self, slot: &Slot) -> Result<(), SlotError> {
        let rule = if slot.id.0 >= self.limits.ids {
            Rule::Id { limit: self.limits.ids }
        } else if slot.gfns.is_empty() {
            Rule::Empty
        } else if slot.gfns.len() > MAX_PAGES {
            Rule::TooLong
        } else if !self.limits.allows(slot.hva, slot.gpas().len()) {
            Rule::HostAddress(slot.hva)
        } else if self.limits.write_back_only && slot.memory != MemoryType::WriteBack {
            Rule::MemoryType(slot.memory)
        } else if self.edits.has(slot.id) {
            Rule::Exists
        } else {
            return Ok(());
        };
        Err(slot.refused(rule))
    }

    /// Removes a slot and returns it. Its page-table entries are zapped before the commit returns.
    pub fn delete(&mut self, id: SlotId) -> Result<Slot, SlotError> {
        let no_memory = SlotError { rule: Rule::NoMemory, ..SlotError::missing(id) };
        let logs = self.edits.version().logs_any();
        self.prepare(logs).and_then(|()| room(&mut self.effects.zap)).map_err(|_| no_memory)?;
        let whole = self.get(id);
        let first = self.edits.remove(id).map_err(|_| no_memory)?.ok_or(SlotError::missing(id))?;
        let old = whole.unwrap_or(first);
        self.delete_parts(&old, &first)?;
        if old.log_dirty {
            self.end_log(&old)?;
        }
        self.facts.len -= 1;
        self.facts.disjoint |= self.facts.len == 0;
        self.effects.changed = self.effects.changed.hull(&old.gfns);
        self.effects.zap.push(old.gfns);
        self.effects.takes = true;
        Ok(old)
    }

    /// Moves a slot to other guest frames, which may overlap its own, and returns the old slot. Its old
    /// page-table entries are zapped before the commit returns. Its dirty log moves with it.
    pub fn move_to(&mut self, id: SlotId, gfn: Gfn) -> Result<Slot, SlotError> {
        let old = self.known(id)?;
        self.change(old, old.at(gfn))?;
        Ok(old)
    }

    /// Removes the frames `gone` from a slot, and returns the old slot. Page-table entries of these frames are
    /// zapped before the commit returns; others stay. The slot keeps its frames below `gone`; those above
    /// become slot `rest`, whose id must be free if both parts remain. If only one part remains, it keeps the
    /// slot's id; if none remains, the slot is deleted.
    ///
    /// Remaining frames stay private or shared. **If the slot logs writes, every remaining page counts as
    /// written**, as in a log that is [initially set](crate::SlotMap::with_logs). The logs start again: a
    /// harvest or ring in progress may hold marks of the old log, whose page numbers are no longer valid. So no
    /// mark of a remaining page is lost; marks of removed pages are, as in a deletion.
    ///
    /// ```
    /// use slat_slots::{Gfn, Hva, Slot, SlotError, SlotId, SlotMap, Span};
    /// let mut slots = SlotMap::<()>::default();
    /// slots.commit(|tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000))))?;
    /// slots.commit(|tx| tx.cut(SlotId(0), Span::new(Gfn(100), Gfn(110)), SlotId(1)))?;
    /// assert_eq!(slots.get(SlotId(0)).unwrap().gfns, Span::new(Gfn(0), Gfn(100)));
    /// assert_eq!(slots.find(Gfn(105)), None);
    /// let above = slots.get(SlotId(1)).unwrap();
    /// assert_eq!((above.gfns, above.hva), (Span::new(Gfn(110), Gfn(512)), Hva(0x7000_0000 + 110 * 4096)));
    /// # Ok::<(), SlotError>(())
    /// ```
    pub fn cut(&mut self, id: SlotId, gone: Span<Gfn>, rest: SlotId) -> Result<Slot, SlotError> {
        let old = self.known(id)?;
        if gone.is_empty() || !old.gfns.covers(&gone) {
            return Err(old.refused(Rule::Part(gone)));
        }
        let (below, above) = (Span::new(old.gfns.start, gone.start), Span::new(gone.end, old.gfns.end));
        if below.is_empty() && above.is_empty() {
            return self.delete(id);
        }
        let mut pieces = [old; 2];
        let pieces = if below.is_empty() || above.is_empty() {
            pieces[0] = old.part(if below.is_empty() { above } else { below });
            &pieces[..1]
        } else {
            pieces = [old.part(below), Slot { id: rest, ..old.part(above) }];
            let limit = self.limits.ids;
            if rest.0 >= limit || self.edits.has(rest) {
                let rule = if rest.0 >= limit { Rule::Id { limit } } else { Rule::Exists };
                return Err(pieces[1].refused(rule));
            }
            &pieces
        };
        let reserved = self.edits.reserve_cut(old.log_dirty).and_then(|()| room(&mut self.effects.zap));
        reserved.map_err(|_| old.refused(Rule::NoMemory))?;
        let logs = if old.log_dirty { self.logs_of_pieces(&old, pieces)? } else { [None; 2] };
        match self.edits.version().backings(id) {
            Some(backings) => self.cut_parts((&old, &backings), gone, pieces)?,
            None => self.step(&old, |edits| edits.cut(&old, pieces))?,
        }
        if old.log_dirty {
            self.end_log(&old)?;
        }
        for (piece, log) in pieces.iter().zip(logs) {
            self.step(piece, |edits| log.map_or(Ok(()), |log| edits.start_log(piece.id, log)))?;
        }
        self.facts.len += pieces.len() - 1;
        self.effects.zap.push(gone);
        self.effects.takes = true;
        Ok(old)
    }

    /// Creates the logs of the pieces of `old`, which logs writes. Every page counts as written.
    fn logs_of_pieces(&mut self, old: &Slot, pieces: &[Slot]) -> Result<[Option<Kept<L>>; 2], SlotError> {
        let reserved = room(&mut self.ended).is_ok() && self.fresh.0.try_reserve(2).is_ok();
        if !reserved {
            return Err(old.refused(Rule::NoMemory));
        }
        let mut logs = [None; 2];
        for (nth, piece) in pieces.iter().enumerate() {
            match self.new_log(piece, true) {
                Ok(log) => logs[nth] = Some(log),
                Err(error) => {
                    for made in logs.into_iter().flatten() {
                        self.fresh.0.pop();
                        // SAFETY: created above, and in no version.
                        unsafe { made.free() };
                    }
                    return Err(error);
                }
            }
        }
        Ok(logs)
    }

    /// Switches logging of writes on or off, and returns the old slot. Switching it on creates a new log;
    /// switching it off drops the log.
    pub fn set_log_dirty(&mut self, id: SlotId, log_dirty: bool) -> Result<Slot, SlotError> {
        let old = self.known(id)?;
        self.change(old, Slot { log_dirty, ..old })?;
        Ok(old)
    }

    /// Returns the slot with this id, as of this transaction.
    pub fn get(&self, id: SlotId) -> Option<Slot> {
        self.edits.version().get(id)
    }

    /// Returns the number of slots, as of this transaction.
    pub fn len(&self) -> usize {
        self.facts.len
    }

    /// Whether there are no slots, as of this transaction.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn known(&self, id: SlotId) -> Result<Slot, SlotError> {
        self.get(id).ok_or(SlotError::missing(id))
    }

    pub(crate) fn put_in(&mut self, slot: Slot) -> Result<(), SlotError> {
        self.check_place(&slot)?;
        self.prepare(slot.log_dirty).map_err(|_| slot.refused(Rule::NoMemory))?;
        let log = if slot.log_dirty { Some(self.new_log(&slot, self.logs_set)?) } else { None };
        let disjoint = self.facts.disjoint && self.edits.version().is_free(slot.hvas());
        self.step(&slot, |edits| {
            edits.insert(&slot)?;
            log.map_or(Ok(()), |log| edits.start_log(slot.id, log))
        })?;
        self.facts.len += 1;
        self.facts.disjoint = disjoint;
        Ok(())
    }

    /// Moves the slot, changes flags, both, or nothing.
    fn change(&mut self, old: Slot, new: Slot) -> Result<Change, SlotError> {
        let fixed = |slot: Slot| (slot.hva, slot.gfns.len(), slot.readonly, slot.execute, slot.memory);
        if fixed(old) != fixed(new) {
            return Err(new.refused(Rule::Fixed(old)));
        }
        if old == new {
            return Ok(Change::Nothing);
        }
        if self.edits.version().backings(old.id).is_some() {
            return Err(new.refused(Rule::Private));
        }
        let moves = old.gfns != new.gfns;
        if moves {
            self.check_place(&new)?;
        }
        self.prepare(new.log_dirty != old.log_dirty)
            .and_then(|()| room(self.effects.of(moves, new.log_dirty)))
            .map_err(|_| new.refused(Rule::NoMemory))?;
        let log =
            if new.log_dirty && !old.log_dirty { Some(self.new_log(&new, self.logs_set)?) } else { None };
        self.step(&new, |edits| {
            edits.replace(&old, &new)?;
            log.map_or(Ok(()), |log| edits.start_log(new.id, log))
        })?;
        if old.log_dirty && !new.log_dirty {
            self.end_log(&old)?;
        }
        self.effects.takes = true;
        if moves {
            self.effects.changed = self.effects.changed.hull(&old.gfns);
            self.effects.of(moves, new.log_dirty).push(old.gfns);
            return Ok(Change::Moved(old));
        }
        self.effects.of(moves, new.log_dirty).push(new.gfns);
        Ok(Change::Flags(old))
    }

    /// Checks that the frames of `slot` are free, except for the slot with its own id, and within the limit.
    fn check_place(&self, slot: &Slot) -> Result<(), SlotError> {
        let version = self.edits.version();
        let mut last = version.last_below(slot.gfns.end);
        if let Some(own) = last.filter(|last| last.id == slot.id) {
            last = version.last_below(own.gfns.start);
        }
        // If this slot ends before the place begins, so do all slots before it.
        match last.filter(|last| last.gfns.overlaps(&slot.gfns)) {
            Some(other) => Err(slot.refused(Rule::Overlaps(version.get(other.id).unwrap_or(other)))),
            None => self.limits.check_reach(slot),
        }
    }

    /// Reserves the nodes that the next operation may need, so that it cannot stop half-way; with `logs`, for
    /// dirty logs too.
    fn prepare(&mut self, logs: bool) -> Result<(), NoMemory> {
        if logs {
            room(&mut self.ended)?;
            room(&mut self.fresh.0)?;
        }
        self.edits.reserve(logs)
    }

    /// Edits the indexes; the nodes are reserved.
    fn step(
        &mut self,
        slot: &Slot,
        edit: impl FnOnce(&mut Edits<'t, L>) -> Result<(), NoMemory>,
    ) -> Result<(), SlotError> {
        self.effects.changed = self.effects.changed.hull(&slot.gfns);
        edit(&mut self.edits).map_err(|_| slot.refused(Rule::NoMemory))
    }

    fn new_log(&mut self, slot: &Slot, set: bool) -> Result<Kept<L>, SlotError> {
        self.facts.logs += 1;
        let log = L::begin(slot, self.facts.logs, set).ok_or(NoMemory).and_then(Kept::new);
        let log = log.map_err(|_| slot.refused(Rule::NoMemory))?;
        self.fresh.0.push(log);
        Ok(log)
    }

    fn end_log(&mut self, slot: &Slot) -> Result<(), SlotError> {
        let ended = self.edits.end_log(slot.id).map_err(|_| slot.refused(Rule::NoMemory))?;
        self.ended.extend(ended);
        Ok(())
    }

    /// Fails if memory ran out half-way through a slot of many parts; then the transaction must not be
    /// committed.
    pub fn check(&self) -> Result<(), SlotError> {
        self.broken.map_or(Ok(()), Err)
    }

    /// Returns the effects on page tables so far.
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// Makes the next version current, for an embedder that publishes it
    /// ([`SlotMap::begin`](crate::SlotMap::begin)). Cannot fail if [`check`](Self::check) succeeds. Returns the
    /// version, what it no longer holds, and the effects on page tables.
    #[inline]
    pub fn finish(mut self) -> (VersionRoot<L>, Leftovers<L>, Effects) {
        // The version holds these logs now, or the leftovers do.
        mem::take(&mut self.fresh.0);
        let (set, leftovers) = self.edits.publish(self.facts, self.ended);
        *self.current = self.facts;
        (set, leftovers, self.effects)
    }
}

/// Reserves room for the next push.
pub(crate) fn room<T>(list: &mut Vec<T>) -> Result<(), NoMemory> {
    list.try_reserve(1).map_err(|_| NoMemory)
}
