//! A vCPU's memory of its last fault: the memslot, the leaf table, and the table above it (rule 15 of [`crate::notify`]).
//!
//! [`Memo`] holds the **slot**; its *generation*, which is the version of the slots that contained it; the **epoch**
//! under which the vCPU found it there; and a table of the upper levels, found since. It also holds what the vCPU has
//! confirmed since, in two ways:
//!
//! * [`Near`]: frames of one region and one leaf table, under the region's number ([`crate::active`]).
//!   Invalidations elsewhere do not affect them.
//! * [`Quiet`]: the whole slot, under a value of N at which no invalidation was active in the VM. It is cheaper and
//!   covers every leaf table of the slot. The next invalidation ends it, wherever that is.
//!
//! A vCPU that looks up another slot, or generation of it, confirms anew: no function changes the slot and keeps the rest.
//!
//! # Why two words confirm near frames
//! The vCPU confirms frames P of slot s in this order. It loads the region's number V. It finds no active invalidation
//! listed there, or on the epoch, that overlaps P. It loads the epoch, which is still the memo's. A later fault in P
//! loads the region's number and the epoch. While both are unchanged, no invalidation of P has begun since. Hence:
//!
//! * *slot*: a transaction moves the epoch when it begins and when it ends, and publishes in between. A transaction
//!   that was active at the confirmation overlaps no frame of P, so its publication leaves s unchanged in P.
//! * *tables*: invalidation k unhooks a table only if k covers all frames of the table and is announced on the lines of
//!   all their regions, or on the epoch. An invalidation that covers the frames of a table of a higher level is wide.
//!   The vCPU loads both words inside a section, and k waits for that section before it frees the table.
//! * *holes*: V is the newest hole that a fault may fill. An invalidation of P that begins later has a greater number.
//!
//! The end of an invalidation changes nothing. While one is active over a part of the table, at most one frame is confirmed.
//!
//! # Why N confirms the slot
//! The vCPU loads N, which says that no invalidation is active, and then the epoch, which is still the memo's. While N
//! is unchanged, no invalidation has begun, so the three points above hold for every frame of the slot. Reading N at
//! each fault while others write it would cost what regions save. Therefore a vCPU that found N changed first confirms
//! a few leaf tables by their regions before it reads N again.

mod fillable;
mod quick_frames;

use crate::active::{Active, Epoch, Listed, QuietNumber, RegionLine};
use crate::addr::INDEX_BITS;
use crate::slots::publish::Published;
use crate::space::Space;
use crate::sync::{RetryCause, Shared};
use crate::table::{At, Node, Radix};
use crate::{Format, Gfn, Host, Hva, Level, PAGE_SIZE, Slot, SlotId, Span, VcpuId, Vm, Walk, Word};
pub(crate) use fillable::Fillable;
use fillable::{Offset, fillable};

/// A vCPU's memory of its last fault; see the module's header.
#[derive(Debug)]
pub(crate) struct Memo {
    slot: Slot,
    generation: u64,
    /// The frames of the slot that the quick path may map: all if the slot is writable and no fault has to log, else
    /// none. If any frame of the VM is watched: at most those of one leaf table.
    plain: Span<Gfn>,
    /// The epoch under which the slot was found.
    start: Epoch,
    quiet: Quiet,
    /// Number of leaf tables to confirm before N is read again.
    pause: u32,
    /// Whether `plain` leaves out frames because of watched ones.
    narrow: bool,
    /// A table above leaf tables, and its first frame divided by 512 × 512; [`NO_TABLE`] if there is none.
    parent: Node,
    parent_tag: u64,
    near: Near,
    /// The size of the host's page at the last fault that asked, but at least a region.
    pub(crate) reach: Level,
}

/// Facts that were confirmed under N.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    number: QuietNumber,
    /// The leaf tables that have only [plain](Memo::plain) frames of the slot: the tag of the first, and their number.
    /// A tag is a table's first frame divided by 512.
    first: u64,
    len: u64,
    /// One of these tables; [`NO_TABLE`] if there is none.
    tag: u64,
    table: Node,
    offset: Offset,
}

/// The last confirmation under the number of a region.
#[derive(Debug)]
struct Near {
    line: RegionLine,
    /// The region's newest hole, and so the newest that a fault may fill.
    newest: Word,
    /// The first frame, and the number of frames. All are in one region and have one leaf table.
    first: Gfn,
    len: u64,
    table: Node,
    offset: Offset,
}

const NO_TABLE: u64 = u64::MAX;

/// Number of leaf tables that a vCPU confirms by their regions after it found N changed. Beside a thread that
/// invalidates without pause, the vCPU reads N once for so many tables.
const PAUSE: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// A fact about a frame's leaf table that was confirmed under N.
#[derive(Clone, Copy)]
pub(crate) enum ConfirmedTable {
    /// The table itself.
    Table,
    /// That the slot has all of the table's frames. The table with this tag must be found from the one above it.
    Slot(u64),
}

/// The memo has nothing confirmed about the frame.
pub(crate) struct NotConfirmed;

impl Near {
    const NOTHING: Self = Self {
        line: RegionLine::NONE,
        newest: Word::OLDEST,
        first: Gfn(0),
        len: 0,
        table: Node::dangling(),
        offset: Offset::ZERO,
    };
}

impl Quiet {
    const NOTHING: Self = Self {
        number: QuietNumber::NEVER,
        first: 0,
        len: 0,
        tag: NO_TABLE,
        table: Node::dangling(),
        offset: Offset::ZERO,
    };

    fn new(number: QuietNumber, plain: Span<Gfn>, offset: Offset) -> Self {
        let pages = Level::M2.pages();
        let (first, end) = (plain.start.0.div_ceil(pages), plain.end.0 / pages);
        Self { number, first, len: end.saturating_sub(first), offset, ..Self::NOTHING }
    }
}

impl Memo {
    /// An empty memo.
    pub(crate) fn new() -> Self {
        Self {
            slot: Slot::new(SlotId(0), Gfn(0), 0, Hva(0)),
            generation: 0,
            plain: Span::default(),
            start: Epoch::NEVER,
            quiet: Quiet::NOTHING,
            pause: 0,
            narrow: false,
            parent: Node::dangling(),
            parent_tag: NO_TABLE,
            near: Near::NOTHING,
            reach: Level::M2,
        }
    }

    /// Whether the quick path may map `gfn`, once it is confirmed.
    #[inline(always)]
    pub(crate) fn has(&self, gfn: Gfn) -> bool {
        self.plain.contains(gfn)
    }

    /// The same for a fault that knows whether the guest means private memory.
    pub(crate) fn has_as(&self, gfn: Gfn, private: bool) -> bool {
        self.has(gfn) && self.slot.is_private() == private
    }

    /// Returns the fact about `gfn` that was confirmed under N.
    #[inline(always)]
    pub(crate) fn known(&self, gfn: Gfn) -> Option<ConfirmedTable> {
        let tag = gfn.0 >> Level::M2.shift();
        if tag == self.quiet.tag {
            Some(ConfirmedTable::Table)
        } else {
            (tag.wrapping_sub(self.quiet.first) < self.quiet.len).then_some(ConfirmedTable::Slot(tag))
        }
    }

    /// Returns the hole of `gfn`, and confirms whatever is needed for it. Returns `None` if there is no hole that may
    /// be filled, or if the full path must look.
    ///
    /// # Safety
    /// For all of `'s` the caller is in a section of the read side that began before this call, or holds the lock of
    /// all unhooking.
    pub(crate) unsafe fn hole<'s, F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        (id, gfn): (VcpuId, Gfn),
    ) -> Option<Fillable<'s>> {
        if let Some(known) = self.known(gfn) {
            // SAFETY: the caller guarantees it.
            if let Ok(hole) = unsafe { self.hole_in_quiet(vm, known, gfn) } {
                return hole;
            }
            if !vm.active.is_at(self.quiet.number) {
                (self.quiet, self.pause) = (Quiet::NOTHING, PAUSE);
            }
        }
        // SAFETY: as above.
        if let Ok(hole) = unsafe { self.hole_near::<F>(&vm.active, gfn) } {
            return hole;
        }
        // SAFETY: as above.
        unsafe { self.confirm(vm, space, (id, gfn)) }?;
        // SAFETY: the table was linked when both words were loaded, or later, and stays allocated for the section.
        unsafe { fillable::<F>(self.near.table, self.near.newest, gfn, self.near.offset) }
    }

    /// Returns the hole of `gfn`, which was confirmed under N, if N is unchanged.
    ///
    /// # Safety
    /// As [`hole`](Self::hole).
    #[inline(always)]
    pub(crate) unsafe fn hole_in_quiet<'s, F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        known: ConfirmedTable,
        gfn: Gfn,
    ) -> Result<Option<Fillable<'s>>, NotConfirmed> {
        if !vm.active.is_at(self.quiet.number) {
            return Err(NotConfirmed);
        }
        if let ConfirmedTable::Slot(tag) = known {
            if tag >> INDEX_BITS != self.parent_tag {
                return Err(NotConfirmed);
            }
            // SAFETY: the caller guarantees it; the parent was linked when N was loaded, or later.
            let table = unsafe { Radix::<F>::table(vm.tables(), (self.parent, Level::M2), gfn, Level::K4) };
            let Some(table) = table else { return Ok(None) };
            (self.quiet.table, self.quiet.tag) = (table, tag);
        }
        // SAFETY: the table was linked when N was loaded, or later, and stays allocated for the section.
        Ok(unsafe { fillable::<F>(self.quiet.table, self.quiet.number.newest, gfn, self.quiet.offset) })
    }

    /// Returns the hole of `gfn` if its region confirmed it last, and the region's word and the epoch are unchanged.
    ///
    /// # Safety
    /// As [`hole`](Self::hole).
    #[inline(always)]
    pub(crate) unsafe fn hole_near<'s, F: Format>(
        &self,
        active: &Active,
        gfn: Gfn,
    ) -> Result<Option<Fillable<'s>>, NotConfirmed> {
        let near = &self.near;
        let stands = gfn.0.wrapping_sub(near.first.0) < near.len
            && active.newest_of(near.line) == near.newest
            && active.epoch() == self.start;
        if !stands {
            return Err(NotConfirmed);
        }
        // SAFETY: the table was linked when both words were loaded, or later, and stays allocated for the section.
        Ok(unsafe { fillable::<F>(near.table, near.newest, gfn, near.offset) })
    }

    /// Confirms `gfn` and the frames around it in its region and its leaf table. Returns `None` if the full path must
    /// look up the slot or link the table, or if an active invalidation covers the frame.
    ///
    /// # Safety
    /// As [`hole`](Self::hole).
    #[inline(never)]
    unsafe fn confirm<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        (id, gfn): (VcpuId, Gfn),
    ) -> Option<()> {
        // Each wide invalidation that begins or ends meanwhile costs a round.
        const ROUNDS: u32 = 4;
        if !self.has(gfn) {
            return None;
        }
        let hva = self.slot.hva_of(gfn);
        let line = RegionLine::of(hva);
        let mut rounds = 0;
        let (newest, frames) = loop {
            let newest = vm.active.newest_of(line);
            let frames = self.free_around(&vm.active, line, gfn)?;
            if vm.active.epoch() == self.start {
                break (newest, frames);
            }
            if rounds > 0 {
                vm.counts_retry(id, gfn, RetryCause::Moved);
            }
            rounds += 1;
            if rounds > ROUNDS || !self.renew(vm, space, gfn) {
                return None;
            }
        };
        // SAFETY: the caller guarantees it; the words were loaded inside the section.
        let table = unsafe { self.find_table::<F, H>(vm, space, gfn) }?;
        let offset = Offset::of(&self.slot);
        self.near = Near { line, newest, first: frames.start, len: frames.len(), table, offset };
        self.look_for_quiet(&vm.active);
        Some(())
    }

    /// Reads N, unless `pause` says not yet.
    fn look_for_quiet(&mut self, active: &Active) {
        if self.pause > 0 {
            self.pause -= 1;
            return;
        }
        self.pause = PAUSE;
        // The epoch after N: a transaction that published before N was read, and has ended, has moved the epoch.
        if let Some(number) = active.quiet_number()
            && active.epoch() == self.start
        {
            self.quiet = Quiet::new(number, self.plain, Offset::of(&self.slot));
        }
    }

    /// Returns the frames around `gfn` of its slot, region and leaf table, or `gfn` alone, if no active invalidation
    /// covers them.
    fn free_around(&self, active: &Active, line: RegionLine, gfn: Gfn) -> Option<Span<Gfn>> {
        let hva = |gfn| self.slot.hva_of(gfn);
        let table = Span::sized(gfn.base(Level::M2), Level::M2.pages()).clamp(&self.plain);
        // The part whose host addresses are in the region: everything, unless the slot is not congruent.
        // By pages in the region: its end may be past the last address.
        let before = hva(gfn).0 % Level::M2.bytes() / PAGE_SIZE;
        let after = Level::M2.pages() - before;
        let here = Span::new(Gfn(gfn.0.saturating_sub(before)), gfn + after).clamp(&table);
        [here, Span::sized(gfn, 1)]
            .into_iter()
            .find(|&gfns| !active.covered(line, gfns, Span::sized(hva(gfns.start), gfns.len() * PAGE_SIZE)))
    }

    /// Takes the current epoch if the slot is still published. Drops all that was confirmed.
    #[cold]
    fn renew<F: Format, H: Host>(&mut self, vm: &Vm<F, H>, space: &Space<F>, gfn: Gfn) -> bool {
        let start = vm.active.epoch();
        let published = self.generation == space.memslots.number();
        self.start = if published { start } else { Epoch::NEVER };
        (self.parent_tag, self.near, self.quiet) = (NO_TABLE, Near::NOTHING, Quiet::NOTHING);
        // After the epoch: a watch is counted before its invalidation moves the epoch.
        if published && (!space.watched.is_empty() || self.narrow) {
            self.look_around(vm, space, gfn);
        }
        published && self.has(gfn)
    }

    /// Whether [`look_around`](Self::look_around) may find more frames for the quick path when frames are no longer
    /// watched.
    #[inline(always)]
    pub(crate) fn is_narrow(&self) -> bool {
        self.narrow
    }

    /// Determines the frames near `gfn` for the quick path, if any frame of the VM is or was watched.
    #[cold]
    pub(crate) fn look_around<F: Format, H: Host>(&mut self, vm: &Vm<F, H>, space: &Space<F>, gfn: Gfn) {
        let plain;
        (plain, self.narrow) = quick_frames::near(vm, space, &self.slot, gfn);
        if plain != self.plain {
            (self.plain, self.near, self.quiet) = (plain, Near::NOTHING, Quiet::NOTHING);
        }
    }

    /// Finds the leaf table of `gfn` from the table above it, and that one first if it is not the remembered one.
    ///
    /// # Safety
    /// As [`hole`](Self::hole); and the epoch has not moved since the parent was found.
    unsafe fn find_table<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        gfn: Gfn,
    ) -> Option<Node> {
        let parent_tag = gfn.0 >> Level::G1.shift();
        if parent_tag != self.parent_tag {
            // SAFETY: the caller guarantees it.
            let root = unsafe { space.radix.top(vm.tables(), gfn) };
            // SAFETY: as above.
            self.parent = unsafe { Radix::<F>::table(vm.tables(), (root, F::ROOT_LEVEL), gfn, Level::M2) }?;
            self.parent_tag = parent_tag;
        }
        // SAFETY: the caller guarantees it; the parent was linked when the epoch was loaded, or later.
        unsafe { Radix::<F>::table(vm.tables(), (self.parent, Level::M2), gfn, Level::K4) }
    }

    /// The lists that a waiting fault on `gfn` watches.
    pub(crate) fn listed(&self, active: &Active, gfn: Gfn) -> Listed {
        active.listed_over(self.slot.gfns.contains(gfn).then(|| self.slot.hva_of(gfn)))
    }

    /// Finds the slot of `gfn`, whose lowest entry is `at`: the remembered one, else that of the hint beside the leaf
    /// table, else that of the tree. Does not confirm it: an active invalidation may cover the frame.
    #[inline(always)]
    pub(crate) fn slot<F: Format, H: Host>(
        &mut self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        gfn: Gfn,
    ) -> Option<Slot> {
        if let Some(slot) = self.remembered(walk.space, gfn) {
            return Some(slot);
        }
        let (vm, generation) = (walk.vm, walk.space.memslots.number());
        // SAFETY: the walk's section keeps the table page and its note.
        let hint = (at.level == Level::K4).then(|| unsafe { &at.node.note_in(vm.tables()).hint });
        if let Some(slot) = hint.and_then(|hint| hint.get(gfn, generation)) {
            self.remember::<F, H>(vm, slot, generation);
            return Some(slot);
        }
        let slot = self.slot_in::<F, H>(vm, walk.published(), gfn)?;
        if let Some(hint) = hint {
            hint.put(&slot, self.generation);
        }
        Some(slot)
    }

    /// Returns the remembered slot, if it is that of `gfn` and the memslots have not changed. In a section or not.
    #[inline(always)]
    pub(crate) fn remembered<F>(&self, space: &Space<F>, gfn: Gfn) -> Option<Slot> {
        let is_current = self.generation == space.memslots.number();
        (is_current && self.slot.gfns.contains(gfn)).then_some(self.slot)
    }

    /// Finds the slot of `gfn` in the tree of `now`, and remembers it.
    pub(crate) fn slot_in<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        now: Published<'_>,
        gfn: Gfn,
    ) -> Option<Slot> {
        let slot = now.version.find(gfn)?;
        if self.generation != now.number || self.slot != slot {
            self.remember::<F, H>(vm, slot, now.number);
        }
        Some(slot)
    }

    /// Replaces the slot, and all that was confirmed for the old one. No other function changes the slot.
    fn remember<F: Format, H: Host>(&mut self, vm: &Vm<F, H>, slot: Slot, generation: u64) {
        let plain = quick_frames::all(vm, &slot);
        *self = Self { slot, generation, plain, reach: self.reach, ..Self::new() };
    }
}
