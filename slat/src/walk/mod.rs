//! `Walk<Mode>`: an open walk over a VM's tables.
//!
//! Opening a walk enters the read side, or takes the lock of a baseline policy; dropping it leaves. The mode says what
//! the walk may do ([`mode`](crate::sync::mode)). The borrow of [`Idle`] keeps the thread from sleeping meanwhile.
//!
//! ```compile_fail,E0599
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! // A lockless walk cannot take anything away: it could not owe the flush.
//! vm.memory().lockless(idle).write_protect(Span::new(Gfn(0), Gfn(1)));
//! # }
//! ```
//! ```compile_fail,E0505
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let walk = vm.memory().shared(idle);
//! let debt = walk.write_protect(Span::new(Gfn(0), Gfn(1)));
//! drop(walk); // the debt must be paid first
//! debt.settle();
//! # }
//! ```
//!
//! # Steps
//! A walk is a section of the read side, or holds a lock under a baseline policy. No hold may grow with the VM, because
//! grace periods wait for sections, and vCPUs for locks. After a fixed number of entries the next step therefore
//! **yields**: it leaves, enters again in the same mode, and continues from the root at the goal frame. KVM's iterator
//! forbids its caller to use anything that it held before a yield. Here that does not compile: a step borrows the walk,
//! and the caller must drop it before the next step.
//!
//! Mappings of nested guests are walked in stretches of their own, with a yield of the walk between them.
//!
//! A debt of a walk stays owed over a yield. KVM must flush before it releases its lock, because other threads assume
//! that the TLBs match the tables. Here a hole carries the number of its invalidation, and a walk that finds an
//! unflushed one owes the flush, too (rule 7 of [`crate::notify`]).

mod pass;

use crate::hooks::{Nested, NestedHooks};
use crate::slots::SlotsVersion;
use crate::slots::behind::{Behind, Part};
use crate::slots::publish::Published;
use crate::space::Space;
use crate::sync::prim::spin_loop;
use crate::sync::{Borrowed, BorrowedWithoutIdle, Edits, Gate, Mode, Seat, Shared};
use crate::table::{At, Cache, Cursor, ENTRIES, Entry, Kind, Node, Radix, Reached, Step};
use crate::tlb::debt::Owed;
use crate::{Cause, FlushDebt, Format, Gfn, Host, Idle, Leaf, Level, NoMemory, Span, Vm, Word};
use core::marker::PhantomData;

/// An open walk; see the [module](self).
pub struct Walk<'g, F: Format, H: Host, M: Mode> {
    pub(crate) vm: &'g Vm<F, H>,
    pub(crate) space: &'g Space<F>,
    pub(crate) seat: &'g Seat,
    /// Number of entries visited since the walk was opened or last yielded.
    taken: u64,
    /// Dropped before the seat: fields drop in order.
    gate: Gate<'g>,
    _borrowed: Option<Borrowed<'g>>,
    _idle: PhantomData<(&'g mut Idle, M)>,
}

impl<F: Format, H: Host, M: Mode> core::fmt::Debug for Walk<'_, F, H, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Walk").field("format", &F::NAME).finish_non_exhaustive()
    }
}

/// A leaf that a VM maps at a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The frames of the leaf.
    pub gfns: Span<Gfn>,
    /// The size of the leaf.
    pub level: Level,
    /// The contents of the leaf.
    pub leaf: Leaf,
}

/// Seats for threads that are not vCPUs.
impl<F: Format, H: Host> Vm<F, H> {
    /// Borrows a seat for a thread that is not a vCPU, in a call that has its token. Makes more if all are taken; waits
    /// if memory for them is missing.
    pub(crate) fn borrow_seat(&self, _idle: &Idle) -> Borrowed<'_> {
        self.reads.borrow(self.policy.vcpus as usize + 1)
    }

    /// The same, in a call that has not got the token.
    pub(crate) fn borrow_seat_without_idle(&self) -> BorrowedWithoutIdle<'_> {
        BorrowedWithoutIdle::new(self.reads.borrow(self.policy.vcpus as usize + 1))
    }

    /// Borrows a seat for an event that must not block: the reserved one, or any free one.
    pub(crate) fn try_borrow_seat(&self) -> Option<Borrowed<'_>> {
        self.reads.try_borrow(self.policy.vcpus as usize)
    }
}

impl<'g, F: Format, H: Host> Walk<'g, F, H, Shared> {
    /// Calls [`write_protect`](Self::write_protect), and ends the walk.
    pub(crate) fn write_protected(mut self, gfns: Span<Gfn>) -> FlushDebt<'g> {
        let owed = self.withdraw_write(gfns);
        FlushDebt::new(self.vm, owed, Cause::WriteProtect)
    }
}

impl<'g, F: Format, H: Host, M: Mode> Walk<'g, F, H, M> {
    /// Opens a walk on the caller's own seat.
    #[inline(always)]
    pub(crate) fn on_seat(
        vm: &'g Vm<F, H>,
        space: &'g Space<F>,
        _idle: &'g mut Idle,
        seat: &'g Seat,
    ) -> Self {
        let gate = vm.lock.enter::<M>(&vm.reads, seat);
        Self { vm, space, seat, taken: 0, gate, _borrowed: None, _idle: PhantomData }
    }

    /// Opens a walk for a thread without its own seat.
    pub(crate) fn on_any_seat(vm: &'g Vm<F, H>, space: &'g Space<F>, idle: &'g mut Idle) -> Self {
        let borrowed = vm.borrow_seat(idle);
        let seat = borrowed.for_owner();
        let gate = vm.lock.enter::<M>(&vm.reads, seat);
        Self { vm, space, seat, taken: 0, gate, _borrowed: Some(borrowed), _idle: PhantomData }
    }

    /// The memslots that are published now. They borrow the walk, so nothing keeps them when it yields or ends.
    #[inline(always)]
    pub(crate) fn slots(&self) -> SlotsVersion<'_> {
        self.published().version
    }

    /// The same, with their number.
    #[inline(always)]
    pub(crate) fn published(&self) -> Published<'_> {
        self.space.memslots.read_within(self.gate.within())
    }

    /// Returns the next frames behind a host range, if any are left.
    #[inline(always)]
    pub(crate) fn behind(&self, left: &Behind) -> Option<Part> {
        self.space.memslots.behind(self.gate.within(), left)
    }

    /// Descends to the lowest entry of `gfn`.
    #[inline(always)]
    pub(crate) fn descend(&self, gfn: Gfn) -> At<'_> {
        // SAFETY: this walk is a section of the read side, or holds the lock of all unlinking, as long as it is
        // borrowed.
        unsafe { self.space.radix.descend(self.vm.tables(), gfn) }
    }

    /// Returns the root of the table.
    pub(crate) fn root(&self) -> Node {
        // SAFETY: as in `descend`.
        unsafe { self.space.radix.root(self.vm.tables()) }
    }

    /// Iterates over the entries of `gfns`, down to entries of level `lowest`.
    pub(crate) fn steps(&mut self, gfns: Span<Gfn>, lowest: Level) -> Steps<'_, 'g, F, H, M> {
        Steps { cursor: Cursor::new(self.root(), gfns, lowest), walk: self, yields: true }
    }

    /// The same for a caller that must not yield while it holds something: the steps end when a yield is due.
    pub(crate) fn steps_up_to_a_yield(&mut self, gfns: Span<Gfn>, lowest: Level) -> Steps<'_, 'g, F, H, M> {
        Steps { yields: false, ..self.steps(gfns, lowest) }
    }

    /// Whether the walk must yield before its next step.
    pub(crate) fn is_rest_due(&self) -> bool {
        self.taken >= ENTRIES_A_SECTION
    }

    /// Leaves the section and enters again. Nothing borrows the walk, so nothing reached before is used later.
    pub(crate) fn yield_section(&mut self) {
        self.gate.yield_section(&self.vm.reads);
        self.taken = 0;
    }

    /// Returns the current mapping of `gfn`. A withdrawn leaf counts as mapped and not accessed.
    pub fn translate(&self, gfn: Gfn) -> Option<Mapping> {
        if gfn.0 >> F::FRAME_BITS != 0 {
            return None;
        }
        let at = self.descend(gfn);
        let gfns = Span::sized(gfn.base(at.level), at.level.pages());
        at.word.leaf::<F>(at.level).map(|leaf| Mapping { gfns, level: at.level, leaf })
    }
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// Calls `visit` with every leaf that maps any of `gfns`, in order, as it was when the walk passed. Skips a leaf if
    /// all of its frames have been visited. A long walk yields in between. Later leaves may then reflect changes that
    /// earlier ones do not, and a large leaf may follow some of the small ones that it replaced.
    pub fn for_each(&mut self, gfns: Span<Gfn>, mut visit: impl FnMut(Mapping)) {
        let mut steps = self.steps(gfns, Level::K4);
        // After a yield the walk visits a large leaf again, or enters a table that has replaced it.
        let mut seen = Gfn(0);
        while let Some((_, step)) = steps.next() {
            let (word, level) = (step.at.word, step.at.level);
            if step.gfns.end > seen
                && let Some(leaf) = word.leaf::<F>(level)
            {
                seen = step.gfns.end;
                visit(Mapping { gfns: step.gfns, level, leaf });
            }
        }
    }
}

impl<F: Format, H: Host, M: Edits> Walk<'_, F, H, M> {
    /// Links tables below a hole, down to `level`.
    pub(crate) fn link_down<'w>(
        &'w self,
        cache: &mut Cache,
        gfn: Gfn,
        at: At<'w>,
        level: Level,
    ) -> Result<Reached<'w>, NoMemory> {
        // SAFETY: as in `descend`.
        unsafe { Radix::<F>::link_down(self.vm.tables(), cache, &mut (), gfn, at, level) }
    }

    /// Descends from an entry that links a table to `gfn`'s entry in it.
    pub(crate) fn step_down<'w>(&'w self, gfn: Gfn, at: At<'w>) -> At<'w> {
        // SAFETY: as in `descend`.
        unsafe { Radix::<F>::step_down(self.vm.tables(), gfn, at) }
    }

    /// Takes the write permission from every leaf in the range. The leaf still records that the host allows writes, so
    /// the next store restores the permission by one CAS ([`fault`](crate::fault)). This tracks writes.
    pub fn write_protect(&mut self, gfns: Span<Gfn>) -> FlushDebt<'_> {
        let owed = self.withdraw_write(gfns);
        FlushDebt::new(self.vm, owed, Cause::WriteProtect)
    }

    fn withdraw_write(&mut self, gfns: Span<Gfn>) -> Owed {
        let mut owed = Owed::default();
        let mut steps = self.steps(gfns, Level::K4);
        while let Some((walk, step)) = steps.next() {
            let at = step.at;
            let mut word = at.word;
            loop {
                let new: Word = match word.kind::<F>(at.level) {
                    // A clear W never proves that no TLB writes. Tightening such a leaf owes a flush, too.
                    Kind::Leaf | Kind::Withdrawn if F::host_writable(word) => F::set_writable(word, false),
                    // Rule 7: the invalidation that zapped or tightened this may not have flushed yet.
                    Kind::Hole(version) | Kind::Mmio(version) if walk.vm.active.unflushed(version) => {
                        owed.owe(step.gfns);
                        break;
                    }
                    Kind::Leaf | Kind::Withdrawn if walk.vm.active.unflushed_over(step.gfns) => {
                        owed.owe(step.gfns);
                        break;
                    }
                    // Another thread is about to thaw it, maybe to a writable leaf, so wait for the result.
                    Kind::Frozen(_) => {
                        spin_loop();
                        word = at.entry.load();
                        continue;
                    }
                    _ => break,
                };
                match at.entry.cas(word, new) {
                    Ok(()) => {
                        owed.owe(step.gfns);
                        break;
                    }
                    Err(found) => word = found,
                }
            }
            steps.saw(word);
        }
        Nested::withdraw_write(self, gfns, &mut owed);
        owed
    }
}

/// Number of entries between two yields: about ten microseconds of work.
const ENTRIES_A_SECTION: u64 = 8 * ENTRIES as u64;

/// The steps of an open walk along a range, with yields.
pub(crate) struct Steps<'s, 'g, F: Format, H: Host, M: Mode> {
    walk: &'s mut Walk<'g, F, H, M>,
    cursor: Cursor<F>,
    /// Whether the steps yield by themselves; otherwise they end when a yield is due.
    yields: bool,
}

impl<'g, F: Format, H: Host, M: Mode> Steps<'_, 'g, F, H, M> {
    /// The first frame that has not been visited yet, or the end of the range.
    pub(crate) fn goal(&self) -> Gfn {
        self.cursor.goal()
    }

    /// Returns the next entry and its walk, or `None` after the end of the range.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&Walk<'g, F, H, M>, Step<'_>)> {
        if self.walk.is_rest_due() {
            if !self.yields {
                return None;
            }
            self.yield_section();
        }
        self.walk.taken += 1;
        // SAFETY: the walk is one section from its opening or last yield, where the cursor began, to the next yield. A
        // step borrows `self`, so it ends before that.
        let step = unsafe { self.cursor.next(self.walk.vm.tables()) };
        step.map(|step| (&*self.walk, step))
    }

    /// Returns the entries after the last visited one, in the same table and in the range, and the frame of the first.
    /// None above level 1.
    pub(crate) fn ahead(&self) -> (&Walk<'g, F, H, M>, (&[Entry], Gfn)) {
        // SAFETY: as in `next`.
        (self.walk, unsafe { self.cursor.ahead() })
    }

    /// Reports what the visitor found when it reloaded the last visited entry: see [`Cursor::saw`].
    pub(crate) fn saw(&mut self, word: Word) {
        self.cursor.saw(word);
    }

    /// Skips the next `entries` of those [`ahead`](Self::ahead), which have been visited.
    pub(crate) fn advance(&mut self, entries: u64) {
        self.walk.taken += entries;
        self.cursor.advance(entries);
    }

    #[cold]
    fn yield_section(&mut self) {
        self.walk.yield_section();
        self.cursor.restart(self.walk.root());
    }
}
