//! `Walk<Mode>`: an open walk over a VM's tables.
//!
//! Opening one enters the read side (or takes the lock of a baseline policy); dropping it leaves. The mode says
//! what it may do ([`mode`](crate::sync::mode)); the borrow of [`Idle`] says what the thread may not do
//! meanwhile: sleep.
//!
//! ```compile_fail,E0599
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! // A lockless walk cannot take anything away: it could not owe the flush.
//! vm.lockless(idle).write_protect(Span::new(Gfn(0), Gfn(1)));
//! # }
//! ```
//! ```compile_fail,E0505
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let walk = vm.shared(idle);
//! let debt = walk.write_protect(Span::new(Gfn(0), Gfn(1)));
//! drop(walk); // the debt must be paid first
//! debt.settle();
//! # }
//! ```
//!
//! # Steps
//! A walk is a section of the read side (or a lock, under a baseline policy), and no thread's hold may grow with the VM:
//! grace periods wait for sections, vCPUs for locks. So after a fixed number of entries the next step **rests**: it
//! leaves, enters again in the same mode, and goes on from the root at the goal frame. KVM's iterator asks its caller
//! not to use anything that it held before a yield. Here that does not compile: a step borrows the walk, and the
//! next one can only be taken when the last one is gone.
//!
//! What a walk owes stays owed over a rest. KVM must flush before it lets go of its lock, because others take what
//! the tables say for what the TLBs say; here they do not: a hole carries the number of its invalidation, and
//! a walk that meets one that has not been flushed owes the flush too (rule 7 of [`crate::notify`]).

mod pass;

use crate::addr::{Gfn, Level, Span};
use crate::host::Host;
use crate::shadows::{Pages, Reach};
use crate::space::Space;
use crate::sync::gate::Gate;
use crate::sync::idle::Idle;
use crate::sync::mode::{Edits, Lockless, Mode, Shared};
use crate::sync::prim::spin_loop;
use crate::sync::readside::{Borrowed, Seat};
use crate::table::cursor::{Cursor, Step};
use crate::table::entry::{Entry, Word};
use crate::table::format::{Format, Kind, Leaf};
use crate::table::memory::{ENTRIES, Node};
use crate::table::pool::{Cache, NoMemory};
use crate::table::radix::{At, Radix};
use crate::tlb::debt::Owed;
use crate::tlb::{Cause, FlushDebt};
use crate::vm::Vm;
use core::marker::PhantomData;

/// See the module's header.
pub struct Walk<'g, F: Format, H: Host, M: Mode> {
    pub(crate) vm: &'g Vm<F, H>,
    pub(crate) space: &'g Space<F>,
    pub(crate) seat: &'g Seat,
    /// Entries visited since it was opened, or rested.
    taken: u64,
    /// Left before the seat is given back: fields drop in order.
    gate: Gate<'g>,
    _borrowed: Option<Borrowed<'g>>,
    _idle: PhantomData<(&'g mut Idle, M)>,
}

impl<F: Format, H: Host, M: Mode> core::fmt::Debug for Walk<'_, F, H, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Walk").field("format", &F::NAME).finish_non_exhaustive()
    }
}

/// What a VM maps at a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The frames that the leaf covers.
    pub gfns: Span<Gfn>,
    /// Its size.
    pub level: Level,
    /// Its contents.
    pub leaf: Leaf,
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Opens a walk of address space 0 that only looks, and takes no lock under any policy.
    pub fn lockless<'g>(&'g self, idle: &'g mut Idle) -> Walk<'g, F, H, Lockless> {
        Walk::on_any_seat(self, &self.spaces[0], idle)
    }

    /// Opens a walk of address space 0 that edits beside others.
    pub fn shared<'g>(&'g self, idle: &'g mut Idle) -> Walk<'g, F, H, Shared> {
        Walk::on_any_seat(self, &self.spaces[0], idle)
    }

    /// What address space 0 maps at `gfn` at this moment.
    pub fn translate(&self, idle: &mut Idle, gfn: Gfn) -> Option<Mapping> {
        self.lockless(idle).translate(gfn)
    }

    /// In address space 0, takes write permission from a range so that the next store to each page faults
    /// ([`Walk::write_protect`]), and pays the flush when the debt is settled.
    pub fn write_protect<'g>(&'g self, idle: &'g mut Idle, gfns: Span<Gfn>) -> FlushDebt<'g> {
        self.shared(idle).write_protected(gfns)
    }
}

impl<'g, F: Format, H: Host> Walk<'g, F, H, Shared> {
    /// [`write_protect`](Self::write_protect), and the end of the walk.
    pub(crate) fn write_protected(mut self, gfns: Span<Gfn>) -> FlushDebt<'g> {
        let mut owed = Owed::default();
        self.write_protect_into(gfns, &mut owed);
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

    /// Opens a walk for a thread without a seat of its own.
    pub(crate) fn on_any_seat(vm: &'g Vm<F, H>, space: &'g Space<F>, _idle: &'g mut Idle) -> Self {
        let borrowed = vm.borrow_seat();
        let seat = borrowed.seat();
        let gate = vm.lock.enter::<M>(&vm.reads, seat);
        Self { vm, space, seat, taken: 0, gate, _borrowed: Some(borrowed), _idle: PhantomData }
    }

    /// Down to the lowest entry there is for `gfn`.
    #[inline(always)]
    pub(crate) fn descend(&self, gfn: Gfn) -> At<'_> {
        // SAFETY: this walk is a section of the read side (or holds the lock under which all unlinking is done)
        // for as long as it is borrowed.
        unsafe { self.space.radix.descend(&self.vm.host, gfn) }
    }

    /// The table's root.
    pub(crate) fn root(&self) -> Node {
        // SAFETY: as in `descend`.
        unsafe { self.space.radix.root(&self.vm.host) }
    }

    /// Along `gfns`, entry by entry, down to entries of level `lowest`.
    pub(crate) fn steps(&mut self, gfns: Span<Gfn>, lowest: Level) -> Steps<'_, 'g, F, H, M> {
        Steps { cursor: Cursor::new(self.root(), gfns, lowest), walk: self, rests: true }
    }

    /// The same for a caller that holds what it must not hold over a rest: steps end where a rest is due.
    pub(crate) fn steps_up_to_a_rest(&mut self, gfns: Span<Gfn>, lowest: Level) -> Steps<'_, 'g, F, H, M> {
        Steps { rests: false, ..self.steps(gfns, lowest) }
    }

    /// Whether it has been in its section for long.
    pub(crate) fn is_rest_due(&self) -> bool {
        self.taken >= ENTRIES_A_SECTION
    }

    /// Leaves and enters again. What was reached before must not be used any more: nothing that borrows the walk is.
    pub(crate) fn rest(&mut self) {
        self.gate.rest(&self.vm.reads);
        self.taken = 0;
    }

    /// What is mapped at `gfn` at this moment. A leaf that is withdrawn to learn of the next access counts: as one that
    /// has not been accessed.
    pub fn translate(&self, gfn: Gfn) -> Option<Mapping> {
        if gfn.0 >> F::FRAME_BITS != 0 {
            return None;
        }
        let at = self.descend(gfn);
        (F::is_present(at.word) || at.word.is_tracked()).then(|| Mapping {
            gfns: Span::sized(gfn.base(at.level), at.level.pages()),
            level: at.level,
            leaf: F::decode(at.word),
        })
    }
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// Calls `visit` with every leaf that maps any of `gfns`, in order, each as it was when the walk came by, and no
    /// leaf for frames that all have been visited. A long walk rests in between: leaves may then be seen as they are
    /// after changes that others were seen before, and a large one after some of the small ones that it replaced.
    pub fn for_each(&mut self, gfns: Span<Gfn>, mut visit: impl FnMut(Mapping)) {
        let mut steps = self.steps(gfns, Level::K4);
        // A large leaf is looked at again after a rest, and a table that has taken its place is gone through.
        let mut seen = Gfn(0);
        while let Some((_, step)) = steps.next() {
            let (word, level) = (step.at.word, step.at.level);
            if step.gfns.end > seen
                && let Kind::Leaf | Kind::Tracked = word.kind::<F>(level)
            {
                seen = step.gfns.end;
                visit(Mapping { gfns: step.gfns, level, leaf: F::decode(word) });
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
    ) -> Result<At<'w>, NoMemory> {
        // SAFETY: as in `descend`.
        unsafe { Radix::<F>::link_down(&self.vm.host, cache, gfn, at, level) }
    }

    /// From an entry that links a table to `gfn`'s entry in it.
    pub(crate) fn step_down<'w>(&'w self, gfn: Gfn, at: At<'w>) -> At<'w> {
        // SAFETY: as in `descend`.
        unsafe { Radix::<F>::step_down(&self.vm.host, gfn, at) }
    }

    /// Takes write permission from every leaf in the range; the record that the host allows writes stays, so
    /// the next store gets it back by one CAS ([`fault`](crate::fault)). This is how writes are tracked.
    pub fn write_protect(&mut self, gfns: Span<Gfn>) -> FlushDebt<'_> {
        let mut owed = Owed::default();
        self.write_protect_into(gfns, &mut owed);
        FlushDebt::new(self.vm, owed, Cause::WriteProtect)
    }

    fn write_protect_into(&mut self, gfns: Span<Gfn>, owed: &mut Owed) {
        let mut steps = self.steps(gfns, Level::K4);
        while let Some((walk, step)) = steps.next() {
            let at = step.at;
            let mut word = at.word;
            loop {
                let new: Word = match word.kind::<F>(at.level) {
                    // A clear W never proves that no TLB writes: tightening such a leaf owes a flush too.
                    Kind::Leaf | Kind::Tracked if F::host_writable(word) => F::set_writable(word, false),
                    // Rule 7: who emptied this, or tightened it before, may not have flushed yet.
                    Kind::Hole(version) | Kind::Mmio(version) if walk.vm.active.unflushed(version) => {
                        owed.owe(step.gfns);
                        break;
                    }
                    Kind::Leaf | Kind::Tracked if walk.vm.active.unflushed_over(step.gfns) => {
                        owed.owe(step.gfns);
                        break;
                    }
                    // Another thread is about to thaw it, maybe writable: what comes out must be looked at.
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
        self.withdraw_nested(gfns, owed);
    }

    /// L2's leaves that were made of `gfns` lose write permission.
    #[inline(always)]
    pub(crate) fn withdraw_nested(&self, gfns: Span<Gfn>, owed: &mut Owed) {
        if let Some(shadows) = self.space.nested.get()
            && shadows.reach(
                &self.vm.host,
                &self.vm.active,
                (gfns, gfns),
                Reach::WithdrawWrite,
                &mut Pages::none(),
            )
        {
            owed.owe_nested();
        }
    }
}

/// Entries between two rests: some ten microseconds of work.
const ENTRIES_A_SECTION: u64 = 8 * ENTRIES as u64;

/// An open walk that goes along a range, entry by entry, and rests now and then.
#[derive(Debug)]
pub(crate) struct Steps<'s, 'g, F: Format, H: Host, M: Mode> {
    walk: &'s mut Walk<'g, F, H, M>,
    cursor: Cursor<F>,
    /// Whether it may rest by itself; else it stops where it should.
    rests: bool,
}

impl<'g, F: Format, H: Host, M: Mode> Steps<'_, 'g, F, H, M> {
    /// The first frame that has not been visited yet; the end of the range where all have been.
    pub(crate) fn goal(&self) -> Gfn {
        self.cursor.goal()
    }

    /// The next entry, and the walk that it belongs to; or `None` past the end of the range.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&Walk<'g, F, H, M>, Step<'_>)> {
        if self.walk.is_rest_due() {
            if !self.rests {
                return None;
            }
            self.rest();
        }
        self.walk.taken += 1;
        // SAFETY: the walk is one section from its opening or last rest, where the cursor began, to the next; a step
        // that borrows `self` ends before that.
        let step = unsafe { self.cursor.next(&self.walk.vm.host) };
        step.map(|step| (&*self.walk, step))
    }

    /// The entries after the one visited last, in the same table and in the range, and the frame of the first; none
    /// above the level of pages.
    pub(crate) fn ahead(&self) -> (&Walk<'g, F, H, M>, (&[Entry], Gfn)) {
        // SAFETY: as in `next`.
        (self.walk, unsafe { self.cursor.ahead() })
    }

    /// What the visitor found in the entry visited last, if it looked again: see [`Cursor::saw`].
    pub(crate) fn saw(&mut self, word: Word) {
        self.cursor.saw(word);
    }

    /// Leaves out the next `entries` of those [`ahead`](Self::ahead): they have been visited.
    pub(crate) fn advance(&mut self, entries: u64) {
        self.walk.taken += entries;
        self.cursor.advance(entries);
    }

    #[cold]
    fn rest(&mut self) {
        self.walk.rest();
        self.cursor.restart(self.walk.root());
    }
}
