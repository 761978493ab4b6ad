//! The read side: one padded seat per thread that walks. Readers write no shared line.
//!
//! A reader enters by a plain store to its own seat, and leaves by another. A writer that has *unlinked* something (a
//! table page, a node of the slot set) waits for a **grace period** before it reuses the memory. After a heavy barrier
//! it reads every seat. A seat that was inside a section must then be seen to move. A later section cannot find what
//! was unlinked.
//!
//! A seat is one word, odd inside a section. The store that ends a section also records what the section did. The word
//! thus moves with every section, so a busy reader does not hold up a writer. The most frequent count needs no store of
//! its own:
//!
//! ```text
//! 63 .. 49                         48 .. 1                           0
//! sections that did anything else  sections that mapped a 4K page    inside
//! ```
//! The upper count wraps, which is harmless: a writer that sees the same odd word again continues to wait.
//!
//! The heavy barrier interrupts every CPU that runs a thread of the process, for microseconds. Only threads that may be
//! entering a section need it: no other thread sees their store yet. A **parked** seat is not about to be entered: no
//! thread holds it, or its vCPU is in the guest. Parking and unparking are fences, whose cost is small beside an entry
//! into the guest. A writer also **asks** an awake seat for a quiescent moment: the next section on it begins with that
//! fence. A vCPU that faults continuously answers at once, for two transfers of its seat's line. When every seat was
//! seen parked or has answered, the grace period is over. The barrier covers holders that are awake but enter no
//! section.
//!
//! **The number of seats grows.** A thread that holds a seat, by a snapshot of the memslots or a walk, may need another
//! one. If such threads held all seats, each would wait for ever. So when all are taken, 64 more are made, then 128 and
//! so on, which stay until the VM is dropped. Grace periods read all of them.
//!
//! **Rejected alternatives.** A reader-writer lock: every fault would write its line. Here a fault writes only its own
//! seat, and the rare writer pays for the barrier. A process-wide barrier for each grace period.

use super::barrier::Barrier;
use super::blocks::Blocks;
use super::idle::NoIdle;
use super::prim::{
    AtomicU8, AtomicU64, Padded, Patience, Relaxed, SeqCst, compiler_fence, fence_after_rmw, spin_loop,
};
use super::tally::{Count, Tally};
use core::marker::PhantomData;

/// No thread holds the seat.
const FREE: u8 = 0;
/// Its holder may enter a section at any moment. Without this bit the seat is parked.
const AWAKE: u8 = 1;
/// With [`AWAKE`]: its holder enters by one store, since barriers are asymmetric and there is no lock to take.
const LIGHT: u8 = 2;
/// With [`AWAKE`]: a writer asks for a quiescent moment.
const ASKED: u8 = 4;
/// Its holder is in the guest, or waits for an invalidation to end. It wakes the seat before it enters a section.
const PARKED: u8 = 8;

/// Polls of awake seats before the heavy barrier is used: about as long as the barrier takes on a virtual machine,
/// where it is expensive.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 256 };

/// Seats that are read before any of them is waited for.
const ROW: usize = 64;
/// Maximum number of further blocks: four million seats in all.
const BLOCKS: usize = if cfg!(loom) { 1 } else { 16 };
/// Seats in the first of these blocks.
const MORE: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

const INSIDE: u64 = 1;
const MAPPED: u64 = 1 << 1;
const OTHER: u64 = 1 << 49;

/// One thread's place on the read side.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// The word of the module's header. Only the seat's holder writes it.
    word: AtomicU64,
    /// [`FREE`], [`PARKED`], or [`AWAKE`] with its flags.
    state: AtomicU8,
    /// Counters of its holders.
    pub(crate) tally: Tally,
}

/// All seats of one VM, and the barrier that makes their light stores visible.
pub(crate) struct ReadSide {
    seats: Blocks<Seat, BLOCKS>,
    pub(crate) barrier: Barrier,
}

/// A read section: memory reachable at its begin stays allocated until its end.
pub(crate) struct Section<'s> {
    seat: &'s Seat,
    /// The seat's word before it.
    before: u64,
}

/// Proof that a section is open for all of `'s`: it borrows the section, which can then neither end nor yield. A function
/// that must run in a section takes one, and binds to it the references that it returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within<'s>(PhantomData<&'s ()>);

/// A seat held by a thread without its own; dropping it gives the seat back.
pub(crate) struct Borrowed<'s>(&'s Seat);

/// A [`Borrowed`] seat for a call that has not got the thread's [`Idle`](super::idle::Idle). While this lives, the
/// thread cannot take it.
pub(crate) struct BorrowedWithoutIdle<'s> {
    seat: Borrowed<'s>,
    _no_idle: NoIdle,
}

impl<'s> BorrowedWithoutIdle<'s> {
    pub(crate) fn new(seat: Borrowed<'s>) -> Self {
        Self { seat, _no_idle: NoIdle::new() }
    }
}

impl core::ops::Deref for BorrowedWithoutIdle<'_> {
    type Target = Seat;
    fn deref(&self) -> &Seat {
        &self.seat
    }
}

impl ReadSide {
    pub(crate) fn new(seats: usize, barrier: Barrier) -> Self {
        Self { seats: Blocks::new(seats, MORE), barrier }
    }

    /// Claims seat `index`, unless it is taken.
    pub(crate) fn claim(&self, index: usize) -> Option<Borrowed<'_>> {
        Self::claim_seat(self.seats.first().get(index)?)
    }

    fn claim_seat(seat: &Seat) -> Option<Borrowed<'_>> {
        // Pairs with the last holder's Release in `Borrowed::drop`, so that its plain word is continued.
        let claim = order!(seat.claim, Acquire);
        let won = seat.state.load(Relaxed) == FREE
            && seat.state.compare_exchange(FREE, AWAKE, claim, Relaxed).is_ok();
        // ORDER(park): awake before every load of a section; pairs with the fence in `all_parked`.
        fence_after_rmw();
        // Constructed only if won: dropping one gives the seat back.
        won.then(|| Borrowed(seat))
    }

    /// Borrows any free seat from `first` on. If all are taken, it makes more; without memory it waits until one is
    /// given back.
    pub(crate) fn borrow(&self, first: usize) -> Borrowed<'_> {
        let mut patience = Patience::default();
        loop {
            match self.try_borrow(first) {
                Some(seat) => return seat,
                None if self.seats.grow() => {}
                None => patience.wait(),
            }
        }
    }

    /// Borrows any free seat from `first` on, if there is one.
    pub(crate) fn try_borrow(&self, first: usize) -> Option<Borrowed<'_>> {
        let first = self.seats.first().get(first..).unwrap_or_default();
        first.iter().chain(self.seats.beyond(BLOCKS).flatten()).find_map(|seat| Self::claim_seat(seat))
    }

    /// Returns all seats, up to [`ROW`] at once. A writer that misses a block after its fence need not wait for it: the
    /// holder of a seat in it followed the link before the fence of `claim`, and sees the unlinking.
    fn rows(&self) -> impl Iterator<Item = &[Padded<Seat>]> {
        let beyond = self.seats.beyond(BLOCKS);
        self.seats.first().chunks(ROW).chain(beyond.flat_map(|block| block.chunks(ROW)))
    }

    /// Returns all seats.
    fn all(&self) -> impl Iterator<Item = &Seat> {
        self.rows().flatten().map(|seat| &seat.0)
    }

    /// Returns the sum of one counter over all seats.
    pub(crate) fn total(&self, what: Count) -> u64 {
        self.all().fold(0, |sum, seat| sum.wrapping_add(seat.tally.get(what)))
    }

    /// Returns the number of 4 KiB pages counted by the ends of sections.
    pub(crate) fn total_mapped(&self) -> u64 {
        self.all().map(|seat| seat.word.load(Relaxed) % OTHER / MAPPED).sum()
    }

    /// Returns the number of sections that did anything but map a 4 KiB page.
    #[cfg(test)]
    pub(crate) fn total_sections(&self) -> u64 {
        self.all().map(|seat| seat.word.load(Relaxed) / OTHER).sum()
    }

    /// Whether any seat is inside a section.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn is_any_inside(&self) -> bool {
        self.all().any(|seat| seat.word.load(Relaxed) & INSIDE != 0)
    }

    /// Begins a read section on `seat`, which this thread holds and is in no section on.
    #[inline(always)]
    pub(crate) fn enter<'s>(&self, seat: &'s Seat) -> Section<'s> {
        let now = seat.word.load(Relaxed);
        debug_assert!(now & INSIDE == 0, "one section at a time");
        if seat.is_asked() {
            seat.answer();
        }
        // ORDER(grace): this store before every load of the section. `light` here pairs with `heavy` in `synchronize`:
        // either the writer sees this seat inside, or this section sees the unlinking.
        // Release, because a writer that waits for the section before may see this word instead of its end.
        seat.word.store(now + INSIDE, order!(grace_end.next, Release));
        #[cfg(test)]
        super::longest::begins();
        self.barrier.light();
        Section { seat, before: now }
    }

    /// Like [`enter`](Self::enter), on a [light](Seat::is_light) seat: one store.
    #[inline(always)]
    pub(crate) fn enter_light(seat: &Seat) -> Section<'_> {
        let now = seat.word.load(Relaxed);
        debug_assert!(now & INSIDE == 0, "one section at a time");
        // ORDER(grace): as in `enter`.
        seat.word.store(now + INSIDE, order!(grace_end.light, Release));
        #[cfg(test)]
        super::longest::begins();
        compiler_fence(SeqCst);
        Section { seat, before: now }
    }

    /// Waits for a grace period: every section that may have seen what the caller unlinked has ended. The caller must
    /// be inside no section (its callers take `&mut Idle`).
    pub(crate) fn synchronize(&self) {
        if !self.all_parked() {
            self.outlast(u32::MAX);
        }
    }

    /// Like [`synchronize`](Self::synchronize), but returns false if a section takes long.
    pub(crate) fn try_synchronize(&self) -> bool {
        self.all_parked() || self.outlast(LOOKS)
    }

    /// Waits by the heavy barrier, without looking for parked seats. Polls an open section at most `most` times, without bound
    /// if that is `u32::MAX`.
    fn outlast(&self, most: u32) -> bool {
        self.barrier.heavy();
        // Pairs with the Release that ends a section: its loads are over before the memory is reused.
        let word = |seat: &Seat| seat.word.load(order!(grace_end.wait, Acquire));
        let mut looks = 0;
        // All seats of a row are read before any is waited for: concurrent writers do not queue.
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

    /// Whether every seat was seen parked, after the caller's unlinking. A vCPU in a fault will soon be back in the
    /// guest, or fault again, so a short wait is worthwhile.
    fn all_parked(&self) -> bool {
        // The unlinking before the looks. Pairs with the fences in `claim`, `Seat::wake`, `Seat::answer`: either the seat
        // is seen awake here, or its next section sees the unlinking.
        fence!(park.look);
        // Pairs with the Release in `park`, `answer`, `Borrowed::drop`, which RMWs continue: the loads of earlier
        // sections are over.
        let state = |seat: &Seat| seat.state.load(order!(park.seen, Acquire));
        // All are asked before any answer is waited for. A seat parked needs no answer.
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
            // No longer asked: it was parked after it was seen to be asked, by any writer.
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
    /// Whether one store enters the next section: the seat was [lightened](Self::lighten), and no writer asks for a quiescent moment.
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

    /// A quiescent moment: in no section, with a full fence.
    #[cold]
    fn answer(&self) {
        // Release for the sections before. ORDER(park): answered before every load of the next one. See `all_parked`.
        self.state.fetch_and(!ASKED, order!(park.answer, Release));
        fence_after_rmw();
    }

    /// Puts the seat parked: its holder enters no section until [`unpark`](Self::unpark). A full fence.
    pub(crate) fn park(&self) {
        debug_assert!(self.word.load(Relaxed) & INSIDE == 0, "no section is open in the guest");
        // See `all_parked`.
        self.state.swap(PARKED, order!(park.begin, Release));
        fence_after_rmw();
    }

    /// Whether a held seat is parked.
    pub(crate) fn is_parked(&self) -> bool {
        self.state.load(Relaxed) == PARKED
    }

    /// Wakes the seat: its holder is back, as [light](Self::is_light) as before. A full fence.
    pub(crate) fn unpark(&self, light: bool) {
        self.state.swap(AWAKE | if light { LIGHT } else { 0 }, Relaxed);
        // ORDER(park): awake before every load of the next section; pairs with the fence in `all_parked`.
        fence_after_rmw();
    }

    /// Counts a 4 KiB page mapped outside of any section (under the lock of a baseline policy).
    pub(crate) fn mapped_under_lock(&self) {
        // Release, because a writer that waits for the section before may see this word instead of its end.
        self.word.store(self.word.load(Relaxed) + MAPPED, order!(grace_end.counted, Release));
    }
}

impl Section<'_> {
    /// The section as a proof for functions that must run in it.
    #[inline(always)]
    #[allow(clippy::unused_self, reason = "the borrow is the proof")]
    pub(crate) fn within(&self) -> Within<'_> {
        Within(PhantomData)
    }

    /// Ends the section and begins another: what was reachable may be freed.
    pub(crate) fn yield_section(&mut self, side: &ReadSide) {
        self.before = self.before.wrapping_add(OTHER);
        self.seat.word.store(self.before, order!(grace_end.pause, Release));
        // ORDER(grace): as in `enter`.
        self.seat.word.store(self.before + INSIDE, order!(grace_end.resume, Release));
        #[cfg(test)]
        {
            super::longest::ends();
            super::longest::begins();
        }
        side.barrier.light();
    }

    /// Ends the section, and counts a 4 KiB page that it mapped.
    #[inline(always)]
    pub(crate) fn end_mapped(self) {
        self.seat.word.store(self.before + MAPPED, order!(grace_end.mapped, Release));
        #[cfg(test)]
        super::longest::ends();
        core::mem::forget(self);
    }
}

impl Drop for Section<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Every load of the section before this store; pairs with `outlast`.
        self.seat.word.store(self.before.wrapping_add(OTHER), order!(grace_end.end, Release));
        #[cfg(test)]
        super::longest::ends();
    }
}

impl<'s> Borrowed<'s> {
    /// Returns the seat to an owner, which keeps `self` as long as it uses the seat. Other code dereferences `self`:
    /// that reference ends before another thread can have the seat.
    #[inline(always)]
    pub(crate) fn for_owner(&self) -> &'s Seat {
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
        // Hands the word to the next holder.
        self.0.state.store(FREE, order!(seat.back, Release));
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
