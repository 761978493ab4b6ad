//! What a vCPU remembers of its last fault: the memslot, the leaf table, and the table above it.
//!
//! [`Memo`] is two values, each replaced as a whole:
//!
//! * the **slot**, with the number of the version of the slots in which it was found, its *generation*;
//! * what was **confirmed** of that slot: a stamp (a value of W, [`crate::notify::active`]), the frames for which it was
//!   confirmed, and the tables found since. A vCPU that looks up another slot, or the same slot in another
//!   generation, confirms anew: the type has no way to change the slot and to keep the stamp.
//!
//! # Why W alone answers for the confirmed frames
//! Fault F confirms frames P of slot s under stamp S in this order: F loads W (= S); F compares the generation with the
//! published one; F finds no active invalidation that overlaps P, in guest frames or in the host addresses behind
//! them; F loads W again (= S). While W is still S, no invalidation has begun, widened or ended since. Hence:
//!
//! * *slot*: a transaction publishes inside an invalidation of every frame that it changes. An invalidation that was
//!   active at S overlaps no frame of P, so what it publishes leaves s as it is in P. The generation may move
//!   meanwhile; s may change outside of P; neither concerns P.
//! * *tables*: invalidation k unhooks a table only if k covers all frames of the table. A table on the way to a frame of P
//!   maps that frame, so k would overlap P. The vCPU loads W inside a section, and k waits for that section before it
//!   frees the table.
//! * *holes*: the newest hole that F may fill is the newest number at S. An invalidation that begins later has a
//!   greater number.
//!
//! With no invalidation active at S, P is the whole slot. With one active, P is the slot's part of the 2 MiB around
//! the frame, else the frame alone. A vCPU beside a thread that invalidates back to back elsewhere therefore confirms
//! once for each move of W, not once for each fault.
//!
//! Faults come in neighbourhoods, so most of the walk is often skipped: all of it inside 2 MiB, the upper levels
//! inside 1 GiB, like the paging-structure caches of hardware. A leaf table that several slots share serves frame by
//! frame.

use crate::addr::{Gfn, Hva, Level, PAGE_SIZE, Span};
use crate::host::Host;
use crate::notify::active::{Active, Stamp, Unconfirmed};
use crate::slots::publish::SlotSets;
use crate::slots::{Slot, SlotId};
use crate::space::Space;
use crate::sync::readside::Seat;
use crate::sync::tally::{Again, Attempts};
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
    confirmed: Confirmed,
}

/// What was confirmed of a slot under one stamp, and what was found since.
#[derive(Debug)]
struct Confirmed {
    stamp: Stamp,
    /// The newest hole that may be filled under the stamp.
    newest: Word,
    /// The frames for which the stamp was confirmed.
    frames: Span<Gfn>,
    /// The leaf tables whose frames are all among them: the tag of the first, and how many. A tag is the number of a
    /// table's first frame over 512.
    whole: (u64, u64),
    /// One of those leaf tables. No table has [`NO_TABLE`].
    table: Node,
    tag: u64,
    /// A leaf table of which other slots have frames, too.
    shared: Node,
    shared_tag: u64,
    /// The table above a leaf table, and the number of its first frame over 512 × 512.
    parent: Node,
    parent_tag: u64,
}

const NO_TABLE: u64 = u64::MAX;

/// A hole that may be filled, and the host address of the page for it.
pub(super) struct Fillable<'s> {
    pub(super) entry: &'s Entry,
    pub(super) word: Word,
    pub(super) hva: Hva,
}

impl Confirmed {
    /// Nothing is confirmed: no W equals the stamp, and there are no frames.
    const NOTHING: Self = Self::new(Stamp::NEVER, Span { start: Gfn(0), end: Gfn(0) });

    const fn new(stamp: Stamp, frames: Span<Gfn>) -> Self {
        let table = Level::M2.pages();
        let (first, end) = (frames.start.0.div_ceil(table), frames.end.0 / table);
        Self {
            stamp,
            newest: stamp.newest(),
            frames,
            whole: (first, end.saturating_sub(first)),
            table: Node::dangling(),
            tag: NO_TABLE,
            shared: Node::dangling(),
            shared_tag: NO_TABLE,
            parent: Node::dangling(),
            parent_tag: NO_TABLE,
        }
    }

    /// The leaf table of `gfn`, from the table above it, which is found first where it is another one.
    ///
    /// # Safety
    /// As [`Memo::hole`]; W has not moved since the parent was found.
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
        // SAFETY: the caller's word; the parent is linked, now or since W has not moved.
        unsafe { Radix::<F>::table(&vm.host, (self.parent, Level::M2), gfn, Level::K4) }
    }

    /// The same for a table not all of whose frames are confirmed: they are compared one by one.
    ///
    /// # Safety
    /// As [`find_table`](Self::find_table).
    #[inline(never)]
    unsafe fn shared_table<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        gfn: Gfn,
    ) -> Option<Node> {
        if !self.frames.contains(gfn) {
            return None;
        }
        let tag = gfn.0 >> Level::M2.shift();
        if tag != self.shared_tag {
            // SAFETY: the caller's word.
            self.shared = unsafe { self.find_table::<F, H>(vm, space, gfn) }?;
            self.shared_tag = tag;
        }
        Some(self.shared)
    }
}

impl Memo {
    /// Remembers nothing.
    pub(crate) fn new() -> Self {
        let (slot, plain) = (Slot::new(SlotId(0), Gfn(0), 0, Hva(0)), Span::sized(Gfn(0), 0));
        Self { slot, generation: 0, plain, confirmed: Confirmed::NOTHING }
    }

    /// Whether `gfn` is not confirmed, or W has moved since.
    pub(super) fn is_stale(&self, active: &Active, gfn: Gfn) -> bool {
        self.confirmed.stamp != active.stamp() || !self.confirmed.frames.contains(gfn)
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
        gfn: Gfn,
    ) -> Option<Fillable<'s>> {
        let confirmed = &mut self.confirmed;
        if confirmed.stamp != vm.active.stamp() && !seeded!(TableRemembered) {
            return None;
        }
        let tag = gfn.0 >> Level::M2.shift();
        let table = if tag == confirmed.tag {
            confirmed.table
        } else if tag.wrapping_sub(confirmed.whole.0) < confirmed.whole.1 {
            // SAFETY: the caller's word.
            confirmed.table = unsafe { confirmed.find_table::<F, H>(vm, space, gfn) }?;
            confirmed.tag = tag;
            confirmed.table
        } else {
            // SAFETY: as above.
            unsafe { confirmed.shared_table::<F, H>(vm, space, gfn) }?
        };
        // SAFETY: the table is linked, now or since W has not moved, and stays allocated for the section.
        let entry = unsafe { &table.entries()[F::index(gfn, Level::K4)] };
        let word = entry.load();
        let fillable = word.is_hole() && word <= confirmed.newest;
        fillable.then(|| Fillable { entry, word, hva: self.slot.hva_of(gfn) })
    }

    /// Confirms the remembered slot for `gfn`, and as many frames around it as one look allows. False: the full
    /// pipeline has to look the slot up, or an active invalidation covers the frame.
    #[cold]
    #[inline(never)]
    pub(super) fn confirm_again(
        &mut self,
        active: &Active,
        memslots: &SlotSets,
        gfn: Gfn,
        attempts: &Attempts,
    ) -> bool {
        // An invalidation that begins or ends costs a round.
        const ROUNDS: u32 = 4;
        if !self.plain.contains(gfn) {
            return false;
        }
        for _ in 0..ROUNDS {
            let stamp = active.stamp();
            if self.generation != memslots.number() {
                return false;
            }
            match self.confirm(active, gfn, stamp) {
                Ok(frames) => {
                    self.confirmed = Confirmed::new(stamp, frames);
                    return true;
                }
                Err(Unconfirmed::Covered) => return false,
                Err(Unconfirmed::Moved) => attempts.add(Again::Moved),
            }
        }
        false
    }

    /// The frames that no active invalidation covers: see the module's header.
    fn confirm(&self, active: &Active, gfn: Gfn, stamp: Stamp) -> Result<Span<Gfn>, Unconfirmed> {
        let confirm = |gfns: Span<Gfn>| {
            let hvas = Span::sized(self.slot.hva_of(gfns.start), gfns.len() * PAGE_SIZE);
            active.confirm(stamp, gfns, hvas).map(|()| gfns)
        };
        if stamp.is_quiet() {
            return confirm(self.plain);
        }
        let table = Span::sized(gfn.base(Level::M2), Level::M2.pages()).clamp(&self.plain);
        match confirm(table) {
            Err(Unconfirmed::Covered) => confirm(Span::sized(gfn, 1)),
            confirmed => confirmed,
        }
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
        let hint = at.filter(|at| at.level == Level::K4).map(|at| unsafe { &at.node.note().hint });
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
        let confirmed = if seeded!(SlotChangedStampKept) {
            let tables = self.confirmed.frames.widen(Level::M2.pages());
            Confirmed::new(self.confirmed.stamp, tables.clamp(&plain))
        } else {
            Confirmed::NOTHING
        };
        *self = Self { slot, generation, plain, confirmed };
    }
}
