//! The guests, and where they meet the host's thread.
//!
//! | guest | what it does |
//! |---|---|
//! | [`Laps`] | goes through one half of its pages, meets the host, goes through the other half, … |
//! | [`Round`] | goes round pages until the host has left: a few ones, or the whole area |
//!
//! A page that the host takes away comes back as its other frame ([`SimHost::take_away`](crate::parts::sim_host::SimHost::take_away)). So in
//! [`Laps`] it is known which frame a page has to be in; the other one means that a vCPU used a frame that the host had taken
//! back. In [`Round`] no page is taken away; those of a slot that is away must not be used.
//!
//! Each leaves for the first time when it has been where it goes.

use super::slot_design::{ACTIVE, Layout};
use crate::scenarios::prelude::*;
use crate::world::Ordering;
use core::sync::atomic::AtomicU64;

/// Where host and guest wait for each other. Each counts what it has finished; one that has gone for good has finished
/// everything. The guest's first lap is before all of the host's; it begins another one when the host has finished one more than
/// the guest.
///
/// All in atomics of `core`'s: what checks need costs no time.
#[derive(Debug, Default)]
pub struct Meeting {
    /// The host's thread.
    pub host: Side,
    /// The guest.
    pub guest: Side,
    /// The last slot has moved away, and not begun to come back.
    pub away: AtomicBool,
}

/// A count on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Side(AtomicU64);

const GONE: u64 = u64::MAX;

impl Side {
    /// Has finished `laps` laps.
    pub fn finish(&self, laps: u64) {
        // ORDER(lap): Release: what was done in the lap, before it counts as finished; pairs with `finished`.
        self.0.store(laps, Ordering::Release);
    }

    fn finished(&self) -> u64 {
        // ORDER(lap): Acquire; pairs with `finish`.
        self.0.load(Ordering::Acquire)
    }

    fn is_gone(&self) -> bool {
        self.finished() == GONE
    }

    /// Waits until so many laps are finished.
    pub fn wait_for(&self, laps: u64) {
        while self.finished() < laps {
            pause();
        }
    }

    /// Has finished for good once this is dropped: however it ends, the other side must not wait for it.
    pub fn leaving(&self) -> impl Drop {
        struct Leaving<'m>(&'m Side);

        impl Drop for Leaving<'_> {
            fn drop(&mut self) {
                self.0.finish(GONE);
            }
        }
        Leaving(self)
    }
}

/// See the module's header.
pub struct Laps<'m> {
    meeting: &'m Meeting,
    halves: [Span<Gfn>; 2],
    lap: u64,
    /// The next page; the half's end while it waits for the host.
    at: Gfn,
}

impl<'m> Laps<'m> {
    /// Pages of both halves, none of them empty.
    pub fn new(meeting: &'m Meeting, halves: [Span<Gfn>; 2]) -> Self {
        Self { meeting, halves, lap: 0, at: halves[0].start }
    }

    fn half(&self) -> Span<Gfn> {
        self.halves[(self.lap % 2) as usize]
    }
}

impl Program for Laps<'_> {
    fn next(&mut self) -> Step {
        if self.at == self.half().end {
            if self.meeting.guest.finished() <= self.lap {
                self.meeting.guest.finish(self.lap + 1);
                if self.lap == 0 {
                    return Step::Leave;
                }
            }
            match self.meeting.host.finished() {
                GONE => return Step::Leave,
                host if host > self.lap + 1 => self.lap += 1,
                _ => return Step::Wait,
            }
            self.at = self.half().start;
        }
        let gfn = self.at;
        self.at = gfn + 1;
        Step::Store(gfn)
    }

    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        // Each half was taken away between two laps of it.
        let (mut now, mut before) = (first_page(gfn), other_page(gfn));
        if self.lap / 2 % 2 == 1 {
            (now, before) = (before, now);
        }
        match pfn {
            pfn if pfn == now.pfn => Use::Right,
            pfn if pfn == before.pfn => Use::Stale,
            _ => Use::Foreign,
        }
    }
}

/// See the module's header.
pub struct Round<'m> {
    meeting: &'m Meeting,
    /// The slot that moves.
    last: Slot,
    path: Path,
    turns: u64,
    /// Turns until it leaves for the first time.
    warm: u64,
    /// Turns after the host has left.
    left: u64,
    /// The host has left.
    over: bool,
}

enum Path {
    /// Stores to these pages, one after the other.
    Few(Span<Gfn>),
    /// Loads from the area, page by page from the next one on, up to the slot before the last; and every now and then from a
    /// page of the last slot.
    Area(u64, u64),
}

impl<'m> Round<'m> {
    /// Over `pages`. With none of them it waits, in guest mode. Once the host has left it goes round once more.
    pub fn few(meeting: &'m Meeting, layout: &Layout, pages: Span<Gfn>) -> Self {
        let (path, len) = (Path::Few(pages), pages.len());
        Self { meeting, last: layout.last(), path, turns: 0, warm: len + 1, left: len, over: false }
    }

    /// From a page of the area on that is drawn by `lot`: far from the others', as in a guest of gigabytes. When it leaves for the
    /// first time each page of the last slot was used.
    pub fn area(meeting: &'m Meeting, layout: &Layout, lot: u64) -> Self {
        let end = layout.beside().gfns.start.0;
        let (path, warm) = (Path::Area(lot % end, end), 4 * ACTIVE + 1);
        Self { meeting, last: layout.last(), path, turns: 0, warm, left: 0, over: false }
    }
}

impl Program for Round<'_> {
    fn next(&mut self) -> Step {
        self.turns += 1;
        self.over |= self.meeting.host.is_gone();
        if self.turns == self.warm || self.over && self.left == 0 {
            return Step::Leave;
        }
        self.left -= u64::from(self.over);
        match &mut self.path {
            Path::Few(pages) if pages.is_empty() => Step::Wait,
            Path::Few(pages) => Step::Store(pages.start + self.turns % pages.len()),
            Path::Area(at, end) => {
                match self.turns % 4 {
                    0 => return Step::Load(self.last.gfns.start + (self.turns / 4 + *at) % ACTIVE),
                    1 => *at = (*at + 1) % *end,
                    _ => {}
                }
                Step::Load(Gfn(*at))
            }
        }
    }

    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        if pfn != first_page(gfn).pfn {
            Use::Foreign
        } else if self.last.gfns.contains(gfn) && self.meeting.away.load(Ordering::Relaxed) {
            Use::Stale
        } else {
            Use::Right
        }
    }

    fn may_be_absent(&self, gfn: Gfn) -> bool {
        !self.over && self.last.gfns.contains(gfn)
    }
}
