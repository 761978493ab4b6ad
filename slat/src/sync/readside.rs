//! The read side: one padded seat per thread that walks; readers never touch a shared line.
//!
//! Entering is a plain store to one's own seat, leaving another. A writer that has *unlinked* something (a
//! table page, a node of the slot set) and wants its memory back waits for a **grace period**: after a heavy
//! barrier it looks at every seat once; a seat that was inside then must be seen to move. A section that began
//! later cannot have found what was unlinked.
//!
//! A seat is one word, odd inside a section. The store that ends a section also says what the section did, so the
//! word moves with every section ("moved" is one comparison, and a busy reader cannot hold a writer up), and the
//! commonest thing that is counted costs no store of its own:
//!
//! ```text
//! 63 .. 49                         48 .. 1                           0
//! sections that did anything else  sections that mapped a 4K page    inside
//! ```
//! The upper count wraps, which is harmless: a writer that happens to see the same odd word again waits on.
//!
//! The heavy barrier interrupts every CPU that runs a thread of the process: microseconds. It is there for threads that
//! may be entering a section at that moment, by a store that no other thread sees yet. A seat **at rest** is not about to be entered: no thread
//! holds the seat, or its vCPU is in the guest. Rest begins and ends with a fence, which an entry into the guest
//! hardly notices. And the holder of a seat that is awake is **asked** for a moment of rest: the next section on its seat begins with that
//! fence. A vCPU that faults and faults answers at once, for two transfers of its seat's line. Where all are seen at
//! rest, or have answered, the grace period is over; the barrier is for holders that are awake and enter nothing.
//!
//! **Seats grow in number.** A thread that holds a seat, by a snapshot of the memslots or a walk, may ask for another one. Where
//! every seat were held by such a thread, each would wait for another one, for ever. So where all are taken there will be more:
//! 64, then 128 and so on, which stay until the VM is dropped. Grace periods look at all of them.
//!
//! **Instead of** a reader-writer lock, whose line every fault would write: here a fault writes its own seat only, and the rare
//! writer pays for the barrier. A process-wide barrier for each grace period would interrupt every CPU, so a seat says by itself
//! whether its holder is at rest.

use super::barrier::Barrier;
use super::blocks::Blocks;
use super::prim::{
    Acquire, AtomicU8, AtomicU64, Padded, Patience, Relaxed, Release, SeqCst, compiler_fence, fence,
    fence_after_rmw, spin_loop,
};
use super::tally::{Count, Tally};

/// No thread holds the seat.
const FREE: u8 = 0;
/// Its holder may enter a section at any moment. Without this bit it is at rest.
const AWAKE: u8 = 1;
/// With [`AWAKE`]: its holder enters by one store, since barriers are asymmetric and no lock is to be taken.
const LIGHT: u8 = 2;
/// With [`AWAKE`]: a writer asks for a moment of rest.
const ASKED: u8 = 4;
/// Its holder is in the guest, or waits for an invalidation to end, and will say so before it enters a section.
const RESTING: u8 = 8;

/// Looks at seats that are awake before the heavy barrier is taken for cheaper: about as long as it takes where it is
/// dear, on a virtual machine.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 256 };

/// Seats looked at before any of them is waited for.
const ROW: usize = 64;
/// Blocks of more seats: four million in all.
const BLOCKS: usize = if cfg!(loom) { 1 } else { 16 };
/// Seats in the first of them.
const MORE: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

const INSIDE: u64 = 1;
const MAPPED: u64 = 1 << 1;
const OTHER: u64 = 1 << 49;

/// One thread's place on the read side.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// See the module's header. Written by the seat's holder only.
    word: AtomicU64,
    /// [`FREE`], [`RESTING`], or [`AWAKE`] with what goes with it.
    state: AtomicU8,
    /// What its holder has counted.
    pub(crate) tally: Tally,
}

/// All seats of one VM, and the barrier that makes their light stores visible.
#[derive(Debug)]
pub(crate) struct ReadSide {
    seats: Blocks<Seat, BLOCKS>,
    pub(crate) barrier: Barrier,
}

/// A read section: what was reachable when it began stays allocated until it ends.
#[derive(Debug)]
pub(crate) struct Section<'s> {
    /// `None` inside another section of the same seat: the outer one does the work.
    seat: Option<&'s Seat>,
    /// The seat's word before it.
    before: u64,
}

/// A seat held for a while by a thread without one of its own; given back when dropped.
#[derive(Debug)]
pub(crate) struct Borrowed<'s>(&'s Seat);

impl ReadSide {
    pub(crate) fn new(seats: usize, barrier: Barrier) -> Self {
        Self { seats: Blocks::new(seats, MORE), barrier }
    }

    /// Seat `index`, unless it is taken.
    pub(crate) fn claim(&self, index: usize) -> Option<Borrowed<'_>> {
        Self::claim_seat(self.seats.first().get(index)?)
    }

    fn claim_seat(seat: &Seat) -> Option<Borrowed<'_>> {
        // ORDER(seat): Acquire takes over from the last holder's Release in `Borrowed::drop`, so its plain
        // word is continued, not begun again.
        let won = seat.state.load(Relaxed) == FREE
            && seat.state.compare_exchange(FREE, AWAKE, Acquire, Relaxed).is_ok();
        // ORDER(rest): awake before every load of a section; pairs with the fence in `all_rest`.
        fence_after_rmw();
        // Made only when won: dropping one gives the seat back.
        won.then(|| Borrowed(seat))
    }

    /// Any free seat from `first` on. Where all are taken there will be more. Where there is no memory for them it waits until
    /// one is given back.
    pub(crate) fn borrow(&self, first: usize) -> Borrowed<'_> {
        let mut patience = Patience::default();
        loop {
            match self.try_borrow(first) {
                Some(seat) => return seat,
                None if !seeded!(SeatsFixed) && self.seats.grow() => {}
                None => patience.wait(),
            }
        }
    }

    /// Any free seat from `first` on, if there is one.
    pub(crate) fn try_borrow(&self, first: usize) -> Option<Borrowed<'_>> {
        let first = self.seats.first().get(first..).unwrap_or_default();
        first.iter().chain(self.seats.beyond(BLOCKS).flatten()).find_map(|seat| Self::claim_seat(seat))
    }

    /// All seats, up to [`ROW`] at once. A writer that finds no block of more seats, after its fence, is seen by every section on a
    /// seat of it: the seat's holder has read the link to the block before the fence of `claim`.
    fn rows(&self) -> impl Iterator<Item = &[Padded<Seat>]> {
        let beyond = self.seats.beyond(if seeded!(SeatsUnlooked) { 0 } else { BLOCKS });
        self.seats.first().chunks(ROW).chain(beyond.flat_map(|block| block.chunks(ROW)))
    }

    /// All seats.
    fn all(&self) -> impl Iterator<Item = &Seat> {
        self.rows().flatten().map(|seat| &seat.0)
    }

    /// The sum of one counter over all seats.
    pub(crate) fn total(&self, what: Count) -> u64 {
        self.all().fold(0, |sum, seat| sum.wrapping_add(seat.tally.get(what)))
    }

    /// Pages of 4 KiB mapped by sections that said so when they ended.
    pub(crate) fn total_mapped(&self) -> u64 {
        self.all().map(Seat::mapped).sum()
    }

    /// Sections that did anything but map a page of 4 KiB.
    #[cfg(test)]
    pub(crate) fn total_sections(&self) -> u64 {
        self.all().map(|seat| seat.word.load(Relaxed) / OTHER).sum()
    }

    /// Begins a read section on `seat`, which this thread must hold.
    #[inline(always)]
    pub(crate) fn enter<'s>(&self, seat: &'s Seat) -> Section<'s> {
        if seat.word.load(Relaxed) & INSIDE != 0 {
            return Section { seat: None, before: 0 };
        }
        self.enter_outermost(seat)
    }

    /// The same where the caller knows that no section is open on this seat: it holds the thread's `Idle`.
    #[inline(always)]
    pub(crate) fn enter_outermost<'s>(&self, seat: &'s Seat) -> Section<'s> {
        let now = seat.word.load(Relaxed);
        debug_assert!(now & INSIDE == 0, "one section at a time");
        if seat.is_asked() {
            seat.answer();
        }
        // ORDER(grace): this store before every load of the section. `light` here pairs with `heavy` in
        // `synchronize`: either the writer sees this seat inside, or this section sees the unlinking.
        // ORDER(grace-end): Release: a writer that waits for the section before may see this word instead of its end.
        seat.word.store(now + INSIDE, unless_seeded!(NextSectionRelaxed, Release));
        self.barrier.light();
        Section { seat: Some(seat), before: now }
    }

    /// The same where the caller has seen that this seat is [light](Seat::is_light): one store.
    #[inline(always)]
    pub(crate) fn enter_light(seat: &Seat) -> Section<'_> {
        let now = seat.word.load(Relaxed);
        debug_assert!(now & INSIDE == 0, "one section at a time");
        // ORDER(grace), ORDER(grace-end): as in `enter_outermost`.
        seat.word.store(now + INSIDE, Release);
        compiler_fence(SeqCst);
        Section { seat: Some(seat), before: now }
    }

    /// Waits for a grace period: every section that may have seen what the caller unlinked before has ended.
    /// The caller must not be inside a section itself (its callers take `&mut Idle`).
    pub(crate) fn synchronize(&self) {
        if !self.all_rest() {
            self.outlast(u32::MAX);
        }
    }

    /// The same, unless a section takes long: then false.
    pub(crate) fn try_synchronize(&self) -> bool {
        self.all_rest() || self.outlast(LOOKS)
    }

    /// The same by the heavy barrier, without a look at what is at rest. Looks at an open section so often at most, unless that is
    /// `u32::MAX`.
    fn outlast(&self, most: u32) -> bool {
        self.barrier.heavy();
        // ORDER(grace-end): Acquire pairs with the Release that ends a section: its loads are over before
        // the memory they looked at is reused.
        let word = |seat: &Seat| seat.word.load(unless_seeded!(WaitRelaxed, Acquire));
        let mut looks = 0;
        // All of a row are looked at before any is waited for: so writers that wait do it at once, and a section that began
        // meanwhile is none of theirs.
        self.rows().all(|row| {
            let mut then = [0; ROW];
            row.iter().zip(&mut then).for_each(|(seat, then)| *then = word(seat));
            row.iter().zip(then).filter(|(_, then)| then & INSIDE != 0).all(|(seat, then)| {
                let mut patience = Patience::default();
                while word(seat) == then {
                    if looks == most {
                        return false;
                    }
                    looks += u32::from(most != u32::MAX);
                    patience.wait();
                }
                true
            })
        })
    }

    /// Whether every seat was seen at rest, after what the caller unlinked. A vCPU that deals with a fault will be
    /// back in the guest, or fault again, in a moment: worth a short wait.
    fn all_rest(&self) -> bool {
        // ORDER(rest): the unlinking before the looks. Pairs with the fences in `claim`, `Seat::wake`, `Seat::answer`:
        // either the seat is seen awake here, or its next section sees the unlinking.
        if !seeded!(RestUnfenced) {
            fence(SeqCst);
        }
        // ORDER(rest): Acquire pairs with the Release in `rest`, `answer`, `Borrowed::drop`, which RMWs
        // continue: the loads of earlier sections are over.
        let state = |seat: &Seat| seat.state.load(Acquire);
        // All are asked before any answer is waited for. A seat that is at rest now has answered.
        for seat in self.all() {
            let mut now = state(seat);
            while now & (AWAKE | ASKED) == AWAKE
                && seat.state.compare_exchange(now, now | ASKED, Relaxed, Relaxed).is_err()
            {
                now = state(seat);
            }
        }
        let mut looks = 0;
        self.all().all(|seat| {
            // Not asked any more: it was at rest since it was seen to be asked, by any writer.
            while state(seat) & (AWAKE | ASKED) == AWAKE | ASKED {
                looks += 1;
                if looks > LOOKS {
                    return false;
                }
                spin_loop();
            }
            true
        })
    }
}

impl Seat {
    /// Whether the next section can be entered by one store: its holder says that barriers are asymmetric, and no writer asks
    /// for a moment of rest.
    #[inline(always)]
    pub(crate) fn is_light(&self) -> bool {
        self.state.load(Relaxed) == AWAKE | LIGHT
    }

    /// See [`is_light`](Self::is_light).
    pub(crate) fn lighten(&self) {
        self.state.fetch_or(LIGHT, Relaxed);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.state.load(Relaxed) & ASKED != 0
    }

    /// A moment of rest: in no section, and a full fence.
    #[cold]
    fn answer(&self) {
        // ORDER(rest): Release for the sections before; answered before every load of the next one. See `all_rest`.
        self.state.fetch_and(!ASKED, unless_seeded!(AnswerRelaxed, Release));
        fence_after_rmw();
    }

    /// Its holder enters the guest, or waits: in no section until [`wake`](Self::wake). A full fence.
    pub(crate) fn rest(&self) {
        debug_assert!(self.word.load(Relaxed) & INSIDE == 0, "no section is open in the guest");
        // ORDER(rest): Release; see `all_rest`.
        self.state.swap(RESTING, unless_seeded!(RestRelaxed, Release));
        fence_after_rmw();
    }

    /// Whether it is at rest while it is held.
    pub(crate) fn is_resting(&self) -> bool {
        self.state.load(Relaxed) == RESTING
    }

    /// Its holder is back, and as [light](Self::is_light) as it was. A full fence.
    pub(crate) fn wake(&self, light: bool) {
        self.state.swap(AWAKE | if light { LIGHT } else { 0 }, Relaxed);
        // ORDER(rest): awake before every load of the next section; pairs with the fence in `all_rest`.
        fence_after_rmw();
    }

    /// Counts a page of 4 KiB mapped outside of any section (under the lock of a baseline policy).
    pub(crate) fn mapped_under_lock(&self) {
        // ORDER(grace-end): Release: a writer that waits for the section before may see this word instead of its end.
        self.word.store(self.word.load(Relaxed) + MAPPED, unless_seeded!(CountedRelaxed, Release));
    }

    /// Sections that mapped a page of 4 KiB.
    fn mapped(&self) -> u64 {
        self.word.load(Relaxed) % OTHER / MAPPED
    }
}

impl Section<'_> {
    /// Ends it and begins another one: what was reachable before may be gone. Nothing, inside another section.
    pub(crate) fn rest(&mut self, side: &ReadSide) {
        if let Some(seat) = self.seat {
            self.before = self.before.wrapping_add(OTHER);
            // ORDER(grace-end): as in `drop`.
            seat.word.store(self.before, Release);
            // ORDER(grace), ORDER(grace-end): as in `enter_outermost`.
            seat.word.store(self.before + INSIDE, Release);
            side.barrier.light();
        }
    }

    /// Ends the section, which has mapped a page of 4 KiB.
    #[inline(always)]
    pub(crate) fn end_mapped(self) {
        if let Some(seat) = self.seat {
            // ORDER(grace-end): as in `drop`.
            seat.word.store(self.before + MAPPED, Release);
        }
        core::mem::forget(self);
    }
}

impl Drop for Section<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(seat) = self.seat {
            // ORDER(grace-end): every load of the section before this store; pairs with `synchronize`.
            seat.word.store(self.before.wrapping_add(OTHER), unless_seeded!(SectionEndRelaxed, Release));
        }
    }
}

impl<'s> Borrowed<'s> {
    /// The seat itself, for as long as the read side lives; used while it is held.
    #[inline(always)]
    pub(crate) fn seat(&self) -> &'s Seat {
        self.0
    }
}

impl core::ops::Deref for Borrowed<'_> {
    type Target = Seat;
    fn deref(&self) -> &Seat {
        self.0
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // ORDER(seat): Release hands the word to the next holder.
        self.0.state.store(FREE, unless_seeded!(SeatRelaxed, Release));
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
