//! Slots with shared and private memory: an attribute of each frame says which of the two it uses.
//!
//! ```text
//! slot 7     frames  0 ................................ 512     shared memory at `hva`, private memory at another address
//! private            0 ....... 5 | 6 ...... 8 |
//! parts              | shared  |p|p  private  |  shared  |      equal neighbours form one part, in both indexes
//! ```
//! The gfn and hva indexes contain such a slot as *parts*. A part is all private or all shared, and has the
//! host address of that memory. So all operations on slots work on parts: cached look-ups, large pages, and
//! invalidations by host address, which find only frames that use that memory now. A conversion is an ordinary
//! transaction. A slot with one kind of memory is a single part, at no extra cost.
//!
//! KVM keeps attributes also for frames without a slot. Here they belong to the slot, and a new slot is shared.

use crate::addr::{Gfn, Hva, Span};
use crate::log::Log;
use crate::pool::NoMemory;
use crate::rules::{Rule, SlotError};
use crate::slot::{Backings, Slot};
use crate::transaction::{Transaction, room};

impl<L: Log> Transaction<'_, L> {
    /// Adds a slot with shared memory at its host address, and private memory at `private`, an offset in a
    /// [`PrivateMemory`](crate::PrivateMemory). All its frames start as shared. Like a slot with KVM's
    /// `guest_memfd`, it cannot be moved, logged or read-only.
    pub fn create_with_private(&mut self, slot: Slot, private: Hva) -> Result<(), SlotError> {
        self.check_new(&slot)?;
        if slot.readonly || slot.log_dirty || slot.is_private() || private.private_memory().is_none() {
            return Err(slot.refused(Rule::Private));
        }
        if !self.limits.allows(private, slot.gpas().len()) {
            return Err(slot.refused(Rule::HostAddress(private)));
        }
        self.edits.backings.reserve(1).map_err(|_| slot.refused(Rule::NoMemory))?;
        self.put_in(slot)?;
        let backings = Backings { pages: slot.gfns.len(), shared: slot.hva, private };
        self.edits.backings.insert(slot.id.0, backings, ()).map_err(|_| slot.refused(Rule::NoMemory))?;
        Ok(())
    }

    /// Converts `gfns` to private or shared. Each frame must have a slot [with private
    /// memory](Self::create_with_private); the range may span several slots. Page-table entries of converted
    /// frames are zapped before the commit returns; frames that already have this kind keep theirs. If memory
    /// runs out, the whole transaction is refused.
    ///
    /// ```
    /// use slat_slots::{PrivateMemory, Gfn, Hva, Slot, SlotId, SlotMap, Span};
    /// let mut slots = SlotMap::<()>::default();
    /// let ram = Slot::new(SlotId(7), Gfn(0), 512, Hva(0x7000_0000));
    /// slots.commit(|tx| {
    ///     tx.create_with_private(ram, PrivateMemory(0).at(0))?;
    ///     tx.set_private(Span::new(Gfn(5), Gfn(8)), true)
    /// })?;
    /// let part = slots.find(Gfn(6)).unwrap();
    /// assert_eq!((part.id, part.gfns, part.is_private()), (SlotId(7), Span::new(Gfn(5), Gfn(8)), true));
    /// assert_eq!(part.hva_of(Gfn(6)), PrivateMemory(0).at(0x6000));
    /// assert_eq!(slots.find(Gfn(8)).unwrap().hva_of(Gfn(8)), Hva(0x7000_8000));
    /// assert_eq!(slots.get(SlotId(7)), Some(ram), "the whole slot");
    ///
    /// // Which frames map to these host pages? Private frames do not.
    /// let mut shown = Vec::new();
    /// slots.over_hvas(ram.hvas(), |gfns| shown.push(gfns));
    /// assert_eq!(shown, [Span::new(Gfn(0), Gfn(5)), Span::new(Gfn(8), Gfn(512))]);
    /// # Ok::<(), slat_slots::SlotError>(())
    /// ```
    pub fn set_private(&mut self, gfns: Span<Gfn>, private: bool) -> Result<(), SlotError> {
        let mut at = gfns.start;
        while at < gfns.end {
            at = self.convertible(at)?.0.gfns.end;
        }
        at = gfns.start;
        while at < gfns.end {
            let (whole, backings) = self.convertible(at)?;
            at = whole.gfns.end;
            if self.convert((&whole, &backings), gfns.clamp(&whole.gfns), private).is_err() {
                return Err(self.break_off(&whole));
            }
        }
        Ok(())
    }

    /// Returns the slot of `gfn`, if it has private memory.
    fn convertible(&self, gfn: Gfn) -> Result<(Slot, Backings), SlotError> {
        let version = self.edits.version();
        let found = version.find(gfn);
        let whole = found.and_then(|part| version.get(part.id).zip(version.backings(part.id)));
        let refused = |part: Slot| part.refused(Rule::NotPrivate(gfn));
        whole.ok_or_else(|| refused(found.unwrap_or(Slot::new(crate::SlotId(0), gfn, 1, Hva(0)))))
    }

    fn convert(
        &mut self,
        (whole, backings): (&Slot, &Backings),
        gfns: Span<Gfn>,
        private: bool,
    ) -> Result<(), NoMemory> {
        let zapped = self.effects.zap.len();
        let parts = self.edits.version().range(gfns).filter(|part| part.is_private() != private);
        for part in parts {
            room(&mut self.effects.zap)?;
            self.effects.zap.push(part.gfns.clamp(&gfns));
        }
        if self.effects.zap.len() == zapped {
            return Ok(());
        }
        // Parts that extend beyond `gfns`, or are adjacent, are joined with it if they have the same kind.
        let version = self.edits.version();
        let around = |gfn: Gfn| version.find(gfn).expect("the parts are all of the slot");
        let left = around(Gfn(gfns.start.0.saturating_sub(1)).max(whole.gfns.start));
        let right = around(gfns.end.min(Gfn(whole.gfns.end.0 - 1)));
        let join =
            |part: &Slot, inside: Gfn, end: Gfn| if part.is_private() == private { end } else { inside };
        let middle = Span::new(
            join(&left, gfns.start, left.gfns.start.min(gfns.start)),
            join(&right, gfns.end, right.gfns.end.max(gfns.end)),
        );
        let mut at = left.gfns.start;
        while at < right.gfns.end {
            self.edits.reserve(false)?;
            at = self.edits.remove_part(whole.id, at)?.map_or(right.gfns.end, |part| part.gfns.end);
        }
        let new = [
            (Span::new(left.gfns.start, middle.start), !private),
            (middle, private),
            (Span::new(middle.end, right.gfns.end.max(middle.end)), !private),
        ];
        for (gfns, private) in new.into_iter().filter(|(gfns, _)| !gfns.is_empty()) {
            let part = backings.part(whole, gfns, private);
            self.edits.reserve(false)?;
            self.facts.disjoint &= self.edits.version().is_free(part.hvas());
            self.edits.insert_part(&part)?;
        }
        self.effects.changed = self.effects.changed.hull(&gfns);
        self.effects.takes = true;
        Ok(())
    }

    /// Cuts a slot in parts into `pieces`, without the frames in `gone`.
    pub(crate) fn cut_parts(
        &mut self,
        (whole, backings): (&Slot, &Backings),
        gone: Span<Gfn>,
        pieces: &[Slot],
    ) -> Result<(), SlotError> {
        let cut = self.try_cut_parts((whole, backings), gone, pieces);
        cut.map_err(|_| self.break_off(whole))
    }

    fn try_cut_parts(
        &mut self,
        (whole, backings): (&Slot, &Backings),
        gone: Span<Gfn>,
        pieces: &[Slot],
    ) -> Result<(), NoMemory> {
        self.effects.changed = self.effects.changed.hull(&whole.gfns);
        let first = self.edits.version().find(gone.start).expect("the parts are all of the slot");
        // Parts above `gone` get another id, unless nothing remains below.
        let end = if pieces.len() == 2 { whole.gfns.end } else { gone.end };
        let mut at = first.gfns.start;
        while at < end {
            self.edits.reserve(false)?;
            let Some(part) = self.edits.remove_part(whole.id, at)? else { break };
            at = part.gfns.end;
            for piece in pieces {
                let gfns = part.gfns.clamp(&piece.gfns);
                if gfns.is_empty() {
                    continue;
                }
                self.edits.reserve(false)?;
                self.edits.insert_part(&Slot { id: piece.id, ..part.part(gfns) })?;
            }
        }
        for piece in pieces {
            self.edits.reserve(false)?;
            self.edits.name(piece.id, piece.gfns.start)?;
            let private = backings.private + (piece.hva.0 - whole.hva.0);
            let backings = Backings { pages: piece.gfns.len(), shared: piece.hva, private };
            self.edits.backings.reserve(1)?;
            self.edits.backings.insert(piece.id.0, backings, ())?;
        }
        Ok(())
    }

    /// Removes the parts of `whole` after the `first`, which is already removed.
    pub(crate) fn delete_parts(&mut self, whole: &Slot, first: &Slot) -> Result<(), SlotError> {
        let mut at = first.gfns.end;
        let mut removed = || {
            while at < whole.gfns.end {
                self.edits.reserve(false)?;
                at = self.edits.remove_part(whole.id, at)?.map_or(whole.gfns.end, |part| part.gfns.end);
            }
            if self.edits.version().backings(whole.id).is_some() {
                self.edits.backings.remove(whole.id.0)?;
            }
            Ok::<(), NoMemory>(())
        };
        let removed = removed();
        removed.map_err(|_| self.break_off(whole))
    }

    /// Marks the transaction as broken: memory ran out half-way, so it must not be published.
    fn break_off(&mut self, slot: &Slot) -> SlotError {
        let error = slot.refused(Rule::NoMemory);
        self.broken = Some(error);
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PrivateMemory;
    use crate::map::SlotMap;
    use crate::slot::SlotId;
    use std::vec::Vec;

    const PAGES: u64 = 64;

    fn slot(id: u32) -> Slot {
        Slot::new(SlotId(id), Gfn(u64::from(id) * PAGES), PAGES, Hva(u64::from(id) << 30))
    }

    fn private(id: u32) -> Hva {
        PrivateMemory(id as u16).at(1 << 20)
    }

    fn everywhere() -> Span<Gfn> {
        Span::new(Gfn(0), Gfn(u64::MAX))
    }

    /// Converts frames of two adjacent slots at random, and compares with one flag per frame.
    #[test]
    fn parts_agree_with_the_last_conversion_of_each_frame() {
        let mut map = SlotMap::<()>::default();
        map.commit(|tx| (0..2).try_for_each(|id| tx.create_with_private(slot(id), private(id)))).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        let mut flags = [false; 2 * PAGES as usize];
        for round in 0..if cfg!(miri) { 30 } else { 3000 } {
            let from = random.u64(..2 * PAGES);
            let gfns = Span::new(Gfn(from), Gfn(random.u64(from..=2 * PAGES).min(from + random.u64(..40))));
            let to = random.bool();
            let mut tx = map.begin();
            tx.set_private(gfns, to).unwrap();
            let zapped: Vec<_> = tx.effects().zap.iter().flat_map(|gfns| gfns.start.0..gfns.end.0).collect();
            let differ: Vec<_> =
                (gfns.start.0..gfns.end.0).filter(|&gfn| flags[gfn as usize] != to).collect();
            assert_eq!(zapped, differ, "round {round}: exactly the changed frames are zapped");
            let (_, leftovers, effects) = tx.finish();
            // SAFETY: left over by this map; there are no readers.
            unsafe { map.reclaim(leftovers) };
            map.done(effects);
            flags[gfns.start.0 as usize..gfns.end.0 as usize].fill(to);
            map.audit();
            let mut shown = [0; 2 * PAGES as usize];
            for id in 0..2 {
                assert_eq!(map.get(SlotId(id)), Some(slot(id)));
                for hvas in [slot(id).hvas(), Span::sized(private(id), PAGES << 12)] {
                    map.over_hvas(hvas, |gfns| {
                        (gfns.start.0..gfns.end.0).for_each(|gfn| shown[gfn as usize] += 1);
                    });
                }
            }
            assert_eq!(shown, [1; 2 * PAGES as usize], "each frame uses one of its memories");
            let mut last = None;
            for part in map.range(everywhere()) {
                let id = part.id.0;
                assert_ne!(last, Some((id, part.is_private())), "equal neighbours form one part");
                last = Some((id, part.is_private()));
                for gfn in (part.gfns.start.0..part.gfns.end.0).map(Gfn) {
                    assert_eq!(part.is_private(), flags[gfn.0 as usize], "round {round}, {gfn:?}");
                    let base = if part.is_private() { private(id) } else { slot(id).hva };
                    assert_eq!(part.hva_of(gfn), base + ((gfn.0 - u64::from(id) * PAGES) << 12));
                }
            }
        }
        let error = map.commit(|tx| tx.move_to(SlotId(0), Gfn(1000))).unwrap_err();
        assert_eq!((error.rule, error.errno()), (Rule::Private, 22));
        map.commit(|tx| tx.delete(SlotId(0))).unwrap();
        map.audit();
        assert!(map.find(Gfn(PAGES - 1)).is_none() && map.find(Gfn(PAGES)).is_some());
        let error = map.commit(|tx| tx.set_private(Span::new(Gfn(PAGES - 1), Gfn(PAGES + 1)), true));
        assert_eq!(error.unwrap_err().rule, Rule::NotPrivate(Gfn(PAGES - 1)));
    }

    #[test]
    fn a_slot_lies_in_one_backing_or_at_host_addresses_in_bounds() {
        let user = Span::new(Hva(0), Hva(1 << 47));
        let mut map = SlotMap::<()>::new(crate::Limits { hvas: user, ..crate::Limits::default() });
        let last = PrivateMemory(7).at(PrivateMemory::BYTES - (PAGES << 12));
        for (shared, private, good) in [
            (0, last.0, true),
            (0, last.0 + 4096, false),
            (0, last.0 + 1, false),
            ((1 << 47) - 4096, PrivateMemory(7).at(0).0, false),
            (PrivateMemory(7).at(0).0, PrivateMemory(8).at(0).0, false),
            (0, 4096, false),
        ] {
            let slot = Slot::new(SlotId(0), Gfn(0), PAGES, Hva(shared));
            let created = map.commit(|tx| tx.create_with_private(slot, Hva(private)));
            assert_eq!(created.is_ok(), good, "{shared:#x} {private:#x}");
            if good {
                map.commit(|tx| tx.delete(SlotId(0))).unwrap();
            }
        }
    }

    /// Memory runs out at every point: nothing changes and nothing is lost, even if the error is ignored.
    #[test]
    fn a_conversion_without_memory_leaves_no_trace() {
        let mut map = SlotMap::<()>::default();
        let long = Slot::new(SlotId(0), Gfn(0), 1 << 20, Hva(0));
        map.commit(|tx| {
            tx.create_with_private(long, private(0))?;
            (0..1000).try_for_each(|at| tx.set_private(Span::sized(Gfn(at * 7), 2), true))
        })
        .unwrap();
        let all = |map: &SlotMap| map.range(everywhere()).collect::<Vec<_>>();
        let mut refusals = 0;
        let mut until_done = |operation: &dyn Fn(&mut Transaction<'_>) -> Result<(), SlotError>| {
            let before = all(&map);
            for blocks in 0.. {
                map.limit_blocks(blocks);
                let done = map.commit(|tx| {
                    let _ignored = operation(tx);
                    Ok(())
                });
                map.audit();
                if all(&map) != before {
                    return assert!(done.is_ok());
                }
                refusals += usize::from(done.is_err());
            }
        };
        until_done(&|tx| tx.set_private(Span::new(Gfn(100), Gfn(5000)), true));
        until_done(&|tx| tx.delete(SlotId(0)).map(drop));
        assert!(map.is_empty() && all(&map).is_empty());
        assert!(refusals > 2, "memory did run out");
    }
}
