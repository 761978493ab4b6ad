//! What a vCPU remembers of its last fault: the memslot, the leaf table, and the table above it (rule 15 of
//! [`crate::notify`]).
//!
//! [`Memo`] is two values, each replaced as a whole:
//!
//! * the **slot**, with the number of the version of the slots in which it was found, its *generation*;
//! * the **epoch** under which it was found there, and a table of the upper levels, found since;
//! * what was **confirmed** since, of frames that are of one region and have one leaf table: that table, and the number of
//!   the region ([`crate::notify::active`]).
//!
//! A vCPU that looks up another slot, or the same slot in another generation, confirms anew: the type has no way to change
//! the slot and to keep the rest.
//!
//! # Why two words answer for the confirmed frames
//! Frames P of slot s are confirmed in this order: load the number V of the region; find no active invalidation listed there,
//! or on the epoch, that overlaps P; load the epoch, which is still the memo's. A fault in P loads the number of the region
//! and the epoch. While both stand, no invalidation of P has begun since. Hence:
//!
//! * *slot*: a transaction moves the epoch when it begins and when it ends, and publishes between. One that was active when
//!   P was confirmed overlaps no frame of P: what it publishes leaves s as it is in P.
//! * *tables*: invalidation k unhooks a table only if k covers all frames of the table, and is announced on the lines of all
//!   their regions, or on the epoch. One that covers the frames of a table of a higher level is wide. The vCPU loads both words
//!   inside a section, and k waits for that section before it frees the table.
//! * *holes*: the newest hole that a fault may fill is V. An invalidation of P that begins later has a greater number.
//!
//! That an invalidation ends changes nothing. One that is active over a part of the table leaves the frame alone to be
//! confirmed, or nothing.
//!
//! Faults come in neighbourhoods, so most of the walk is often skipped: all of it inside 2 MiB, the upper levels
//! inside 1 GiB, like the paging-structure caches of hardware.

use crate::addr::{Gfn, Hva, Level, PAGE_SIZE, Span};
use crate::host::{Host, VcpuId};
use crate::notify::active::{Active, Epoch, RegionLine};
use crate::slots::publish::SlotSets;
use crate::slots::{Slot, SlotId};
use crate::space::Space;
use crate::sync::readside::Seat;
use crate::sync::tally::Again;
use crate::table::Version;
use crate::table::entry::{Entry, Word};
use crate::table::format::Format;
use crate::table::memory::Node;
use crate::table::radix::{At, Radix};
use crate::vm::Vm;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Memo {
    slot: Slot,
    generation: u64,
    /// The frames of the slot that the quick path may map: all of them if the slot is writable and no fault has to log,
    /// else none.
    plain: Span<Gfn>,
    epoch: Epoch,
    /// A table above leaf tables, and the number of its first frame over 512 × 512. No table has [`NO_TABLE`].
    parent: Node,
    parent_tag: u64,
    near: Near,
    /// The largest page that the host had for the last fault that asked, where that is more than a region.
    pub(super) reach: Level,
}

/// What was confirmed last.
#[derive(Debug)]
struct Near {
    line: RegionLine,
    number: Version,
    /// The first of the frames, and how many. They are in one region, and have one leaf table.
    first: Gfn,
    len: u64,
    table: Node,
}

const NO_TABLE: u64 = u64::MAX;

/// A hole that may be filled, and the host address of the page for it.
pub(super) struct Fillable<'s> {
    pub(super) entry: &'s Entry,
    pub(super) word: Word,
    pub(super) hva: Hva,
}

impl Near {
    const NOTHING: Self =
        Self { line: RegionLine::NONE, number: Version(0), first: Gfn(0), len: 0, table: Node::dangling() };
}

impl Memo {
    /// Remembers nothing.
    pub(crate) fn new() -> Self {
        Self {
            slot: Slot::new(SlotId(0), Gfn(0), 0, Hva(0)),
            generation: 0,
            plain: Span::new(Gfn(0), Gfn(0)),
            epoch: Epoch::NEVER,
            parent: Node::dangling(),
            parent_tag: NO_TABLE,
            near: Near::NOTHING,
            reach: Level::M2,
        }
    }

    /// The hole of `gfn`, if the memo serves for it. `None` says nothing about the frame.
    ///
    /// # Safety
    /// For all of `'s` the caller is in a section of the read side that has begun before this call, or holds
    /// the lock under which all unhooking is done.
    #[inline(always)]
    pub(super) unsafe fn hole<'s, F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        (id, gfn): (VcpuId, Gfn),
    ) -> Option<Fillable<'s>> {
        let near = &self.near;
        let confirmed = gfn.0.wrapping_sub(near.first.0) < near.len
            && (vm.active.newest_of(near.line) == near.number && vm.active.epoch() == self.epoch
                || seeded!(TableRemembered));
        if !confirmed {
            // SAFETY: the caller's word.
            unsafe { self.confirm::<F, H>(vm, space, (id, gfn)) }?;
        }
        // SAFETY: the table is linked, now or since both words were loaded, and stays allocated for the section.
        let entry = unsafe { &self.near.table.entries()[F::index(gfn, Level::K4)] };
        let word = entry.load();
        let fillable = word.is_hole() && word <= Word::hole(self.near.number);
        fillable.then(|| Fillable { entry, word, hva: self.slot.hva_of(gfn) })
    }

    /// Confirms `gfn`, and as many frames around it as have its region and its leaf table. `None`: the full pipeline has to
    /// look the slot up, or to link the table; or an active invalidation covers the frame.
    ///
    /// # Safety
    /// As [`Memo::hole`].
    #[inline(never)]
    unsafe fn confirm<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        (id, gfn): (VcpuId, Gfn),
    ) -> Option<()> {
        // A wide invalidation that begins or ends costs a round.
        const ROUNDS: u32 = 4;
        if !self.plain.contains(gfn) {
            return None;
        }
        let hva = self.slot.hva_of(gfn);
        let line = RegionLine::of(hva);
        let mut rounds = 0;
        let (number, frames) = loop {
            let number = vm.active.newest_of(line);
            let frames = self.free_around(&vm.active, line, gfn)?;
            if vm.active.epoch() == self.epoch {
                break (number, frames);
            }
            if rounds > 0 {
                vm.tlb.vcpu(id).attempts.add(Again::Moved);
            }
            rounds += 1;
            if rounds > ROUNDS || !self.renew(&vm.active, &space.memslots) {
                return None;
            }
        };
        // SAFETY: the caller's word; the words were loaded inside.
        let table = unsafe { self.find_table::<F, H>(vm, space, gfn) }?;
        self.near = Near { line, number, first: frames.start, len: frames.len(), table };
        Some(())
    }

    /// The frames around `gfn` of its slot, its region and its leaf table, or `gfn` alone, that no active invalidation
    /// covers.
    fn free_around(&self, active: &Active, line: RegionLine, gfn: Gfn) -> Option<Span<Gfn>> {
        let hva = |gfn| self.slot.hva_of(gfn);
        let table = Span::sized(gfn.base(Level::M2), Level::M2.pages()).clamp(&self.plain);
        // The part of it whose host addresses are in the region: all of it, but for slots that are not congruent.
        let region = hva(gfn).0 & !(Level::M2.bytes() - 1);
        let (before, after) =
            ((hva(gfn).0 - region) / PAGE_SIZE, (region + Level::M2.bytes() - hva(gfn).0) / PAGE_SIZE);
        let here = Span::new(Gfn(gfn.0.saturating_sub(before)), gfn + after).clamp(&table);
        [here, Span::sized(gfn, 1)]
            .into_iter()
            .find(|&gfns| !active.covered(line, gfns, Span::sized(hva(gfns.start), gfns.len() * PAGE_SIZE)))
    }

    /// Goes over to the epoch of this moment, if the slot is still the one that was published. Nothing is confirmed then.
    #[cold]
    fn renew(&mut self, active: &Active, memslots: &SlotSets) -> bool {
        let epoch = active.epoch();
        let published = self.generation == memslots.number() || seeded!(SlotRemembered);
        self.epoch = if published { epoch } else { Epoch::NEVER };
        (self.parent_tag, self.near) = (NO_TABLE, Near::NOTHING);
        published
    }

    /// The leaf table of `gfn`, from the table above it, which is found first where it is another one.
    ///
    /// # Safety
    /// As [`Memo::hole`]; the epoch has not moved since the parent was found.
    #[inline(always)]
    unsafe fn find_table<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        gfn: Gfn,
    ) -> Option<Node> {
        let parent_tag = gfn.0 >> Level::G1.shift();
        if parent_tag != self.parent_tag {
            // SAFETY: the caller's word.
            let root = unsafe { space.radix.top(&vm.host, gfn) };
            // SAFETY: as above.
            self.parent = unsafe { Radix::<F>::table(&vm.host, (root, Level(F::LEVELS)), gfn, Level::M2) }?;
            self.parent_tag = parent_tag;
        }
        // SAFETY: the caller's word; the parent is linked, now or since the epoch was loaded.
        unsafe { Radix::<F>::table(&vm.host, (self.parent, Level::M2), gfn, Level::K4) }
    }

    /// What a fault on `gfn` that has to wait looks at meanwhile.
    pub(super) fn listed(&self, active: &Active, gfn: Gfn) -> [(u64, u64); 2] {
        active.listed_over(self.slot.gfns.contains(gfn).then(|| self.slot.hva_of(gfn)))
    }

    /// The slot of `gfn`: the remembered one, else that of the hint beside the leaf table `at`, else the tree's. It is not
    /// confirmed: an active invalidation may cover the frame.
    #[inline(always)]
    pub(super) fn slot<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        seat: &Seat,
        gfn: Gfn,
        at: Option<At<'_>>,
    ) -> Option<Slot> {
        let generation = space.memslots.number();
        if (self.generation == generation || seeded!(SlotRemembered)) && self.slot.gfns.contains(gfn) {
            return Some(self.slot);
        }
        // SAFETY: `at` comes from an open walk, whose section keeps the table page and its note.
        let hint = at.filter(|at| at.level == Level::K4).map(|at| unsafe { &at.node.note_in::<H>().hint });
        if let Some(slot) = hint.and_then(|hint| hint.get(gfn, generation)) {
            self.remember::<F, H>(vm, slot, generation);
            return Some(slot);
        }
        let reading = space.memslots.read(&vm.reads, seat);
        let slot = reading.version.find(gfn)?;
        if let Some(hint) = hint {
            hint.put(&slot, reading.number);
        }
        self.remember::<F, H>(vm, slot, reading.number);
        Some(slot)
    }

    /// The only place where the slot changes: with it goes what was confirmed of the last one.
    fn remember<F: Format, H: Host>(&mut self, vm: &Vm<F, H>, slot: Slot, generation: u64) {
        let is_plain = !slot.readonly && (!slot.log_dirty || vm.logs_by_bits());
        let plain = if is_plain { slot.gfns } else { Span::sized(slot.gfns.start, 0) };
        let kept =
            core::mem::replace(self, Self { slot, generation, plain, reach: self.reach, ..Self::new() });
        if seeded!(SlotChangedStampKept) {
            // As if its frames were all of their table that the new slot has.
            let table = Span::sized(kept.near.first, kept.near.len).widen(Level::M2.pages()).clamp(&plain);
            (self.epoch, self.near) =
                (kept.epoch, Near { first: table.start, len: table.len(), ..kept.near });
        }
    }
}
