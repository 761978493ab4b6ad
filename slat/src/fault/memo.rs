//! What a vCPU remembers of its last fault: the memslot, the leaf table, and the table above it.
//!
//! Two words, which every fault loads anyway, say whether the memory is still true:
//!
//! * the **generation** of the slots, the number of the published version: while it stands, the slot is of it;
//! * **W** ([`crate::notify::active`]): while it has not moved since it was seen with nobody active, no
//!   invalidation has begun. A table is unhooked, and a slot set published, inside an invalidation only. So
//!   tables found are still linked, the slot still published, and the newest hole that a fault may fill is
//!   still the same. The load is made inside a section: whoever unhooks the table after it waits for that section.
//!
//! Where somebody is active, the same holds for a part: whoever unhooks a table covers all of its frames, so while W
//! stands, and nobody covers a frame's 2 MiB, no table on the way to it is unhooked, and its slot changes for nobody. A
//! vCPU beside a thread that invalidates back to back elsewhere looks again for each move of W, not for each fault.
//!
//! Faults come in neighbourhoods, so most of the walk is often skipped: all of it inside 2 MiB, the upper levels
//! inside 1 GiB, like the paging-structure caches of hardware. Leaf tables that slots share serve too, frame by frame.

use crate::addr::{Gfn, Hva, Level, PAGE_SIZE, Span};
use crate::host::Host;
use crate::notify::active::{Active, Stamp, Unconfirmed};
use crate::slots::publish::SlotSets;
use crate::slots::{Slot, SlotId};
use crate::space::Space;
use crate::sync::readside::Seat;
use crate::table::entry::{Entry, Word};
use crate::table::format::Format;
use crate::table::memory::Node;
use crate::table::radix::{At, Radix};
use crate::vm::Vm;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Memo {
    /// W when it was last looked at, and nobody was active, or nobody in the 2 MiB of `around`.
    stamp: Stamp,
    /// The number of the frame for which it was looked at, over 512.
    around: u64,
    /// The newest hole that may be filled under that stamp.
    newest: Word,
    /// A leaf table all of whose frames belong to the slot, and the number of its first frame over 512. No frame has
    /// [`NO_TABLE`].
    table: Node,
    tag: u64,
    /// A leaf table whose frames may be anybody's, in the same way.
    shared: Node,
    shared_tag: u64,
    /// The table above it, or another of that level, in the same way; its frames may be anybody's.
    parent: Node,
    parent_tag: u64,
    slot: Slot,
    /// How many frames the slot has, if it is writable and no fault has to log; else none.
    plain: u64,
    /// The leaf tables whose frames are all among them: the tag of the first, and how many.
    whole: (u64, u64),
    generation: u64,
}

const NO_TABLE: u64 = u64::MAX;

/// A hole that may be filled, and the host address of the page for it.
pub(super) struct Fillable<'s> {
    pub(super) entry: &'s Entry,
    pub(super) word: Word,
    pub(super) hva: Hva,
}

/// What another look was good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    /// What is found from now on is to be remembered.
    WhileWStands,
    /// The frame may be looked for, and then all is to be [forgotten](Memo::forget).
    Once,
}

impl Memo {
    /// Remembers nothing.
    pub(crate) fn new() -> Self {
        let nothing = Slot::new(SlotId(0), Gfn(0), 0, Hva(0));
        Self {
            stamp: Stamp::NEVER,
            around: NO_TABLE,
            newest: Stamp::NEVER.newest(),
            table: Node::dangling(),
            tag: NO_TABLE,
            shared: Node::dangling(),
            shared_tag: NO_TABLE,
            parent: Node::dangling(),
            parent_tag: NO_TABLE,
            slot: nothing,
            plain: 0,
            whole: (0, 0),
            generation: 0,
        }
    }

    /// Whether what is remembered says nothing about `gfn`, for all that has happened since.
    pub(super) fn is_stale(&self, active: &Active, gfn: Gfn) -> bool {
        self.stamp != active.stamp() || !self.holds_for(gfn.0 >> Level::M2.shift())
    }

    /// Whether the stamp says anything about a leaf table: where somebody is active, only about one.
    #[inline(always)]
    fn holds_for(&self, tag: u64) -> bool {
        self.stamp.is_quiet() || self.around == tag
    }

    /// The next fault looks again.
    pub(super) fn forget(&mut self) {
        self.stamp = Stamp::NEVER;
    }

    /// The hole of `gfn`, if all that is remembered serves. `None` says nothing about the frame.
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
        if self.stamp != vm.active.stamp() && !seeded!(TableRemembered) {
            return None;
        }
        let tag = gfn.0 >> Level::M2.shift();
        let table = if tag == self.tag {
            self.table
        } else if !self.holds_for(tag) {
            return None;
        } else if tag.wrapping_sub(self.whole.0) < self.whole.1 {
            // SAFETY: the caller's word.
            self.table = unsafe { self.find_table::<F, H>(vm, space, gfn) }?;
            self.tag = tag;
            self.table
        } else {
            // SAFETY: as above.
            unsafe { self.shared_table::<F, H>(vm, space, gfn) }?
        };
        // SAFETY: the table is linked, now or since W has not moved, and stays allocated for the section.
        let entry = unsafe { &table.entries()[F::index(gfn, Level::K4)] };
        let word = entry.load();
        let fillable = word.is_hole() && word <= self.newest;
        fillable.then(|| Fillable { entry, word, hva: self.slot.hva_of(gfn) })
    }

    /// The leaf table of `gfn`, from the table above it, which is found first where it is another one.
    ///
    /// # Safety
    /// As [`hole`](Self::hole); W has not moved since the parent was found.
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

    /// The same for a table that the slot shares with others: its frames are compared with the slot one by one.
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
        if gfn.0.wrapping_sub(self.slot.gfns.start.0) >= self.plain {
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

    /// Where it is [stale](Self::is_stale). The slot may still be the published one; the tables may be gone.
    pub(super) fn look_again(&mut self, active: &Active, memslots: &SlotSets, gfn: Gfn) -> Option<Holds> {
        // Each round is lost to an invalidation that began or ended in it.
        const ROUNDS: u32 = 4;
        for _ in 0..ROUNDS {
            let stamp = active.stamp();
            if self.generation != memslots.number() {
                return None;
            }
            let found = if stamp.is_quiet() {
                let nothing = (Span::sized(gfn, 0), Span::sized(Hva(0), 0));
                active.confirm(stamp, nothing.0, nothing.1).map(|()| Holds::WhileWStands)
            } else {
                self.look_around(active, gfn, stamp)
            };
            match found {
                Ok(holds) => {
                    (self.stamp, self.newest) = (stamp, stamp.newest());
                    self.around = gfn.0 >> Level::M2.shift();
                    (self.tag, self.shared_tag, self.parent_tag) = (NO_TABLE, NO_TABLE, NO_TABLE);
                    return Some(holds);
                }
                Err(Unconfirmed::Covered) => return None,
                Err(Unconfirmed::Moved) => {}
            }
        }
        None
    }

    /// Somebody is active. Where it is nowhere in the frame's 2 MiB, what is found there holds while W stands, in this
    /// table only: whoever unhooks a table on the way to it covers all of it. Where it is there but not at the frame, the
    /// table is linked too, and what is found holds for the frame.
    fn look_around(&self, active: &Active, gfn: Gfn, stamp: Stamp) -> Result<Holds, Unconfirmed> {
        let frame = Span::sized(gfn, 1);
        let table = Span::sized(gfn.base(Level::M2), Level::M2.pages()).clamp(&self.slot.gfns);
        if !table.covers(&frame) {
            return Err(Unconfirmed::Covered);
        }
        let confirm = |gfns: Span<Gfn>| {
            active.confirm(stamp, gfns, Span::sized(self.slot.hva_of(gfns.start), gfns.len() * PAGE_SIZE))
        };
        match confirm(table) {
            Err(Unconfirmed::Covered) => confirm(frame).map(|()| Holds::Once),
            found => found.map(|()| Holds::WhileWStands),
        }
    }

    /// The slot of `gfn`: the last one, else the hint beside the leaf table `at`, else the tree's.
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

    fn remember<F: Format, H: Host>(&mut self, vm: &Vm<F, H>, slot: Slot, generation: u64) {
        let plain = !slot.readonly && (!slot.log_dirty || vm.logs_by_bits());
        self.plain = if plain { slot.gfns.len() } else { 0 };
        let table = Level::M2.pages();
        let (first, end) = (slot.gfns.start.0.div_ceil(table), slot.gfns.end.0 / table);
        self.whole = (first, if plain { end.saturating_sub(first) } else { 0 });
        (self.slot, self.generation, self.tag) = (slot, generation, NO_TABLE);
    }
}
