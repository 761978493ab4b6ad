//! A guest whose pages have stamps, its log, and a comparison with the memory at the receiver.

use super::network::Random;
use crate::frame::MemoryRange;
use crate::identity::Session;
use crate::source_target::{Progress, Source};
use crate::test_support::Ram;
use slat::{DirtyPage, DirtyWord, Gfn, Hva, PAGE_SIZE, SlotId, SpaceId, Span};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::rc::Rc;

pub const PAGES: u64 = 10;
const PAGE: usize = PAGE_SIZE as usize;

/// The action of a guest during a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Nothing,
    /// The thread of the sender panics.
    Panics,
    Cancels,
}

pub struct Guest {
    /// A stamp for each page: other guests and later stores have other ones. 0 is a page of zeroes.
    pub stamps: Vec<u64>,
    next: u64,
    log: Vec<bool>,
    taken: Vec<bool>,
    pub session: Session,
    pub runs: bool,
    pub random: Random,
    /// Frames of its memory: some guests have others.
    first: u64,
    /// Negative control: the log is not marked.
    marks_nothing: bool,
    /// Called at each progress.
    pub event: Rc<dyn Fn() -> Event>,
}

impl Guest {
    pub fn new(
        number: u64,
        first: u64,
        session: Session,
        marks_nothing: bool,
        event: Rc<dyn Fn() -> Event>,
    ) -> Self {
        let mut random = Random(number);
        let next = number << 32;
        // Half of its pages are zero, others than another guest's.
        let stamps: Vec<u64> =
            (0..PAGES).map(|page| if random.percent(50) { next | page } else { 0 }).collect();
        let log = stamps.iter().map(|stamp| *stamp != 0).collect();
        let taken = vec![false; PAGES as usize];
        Self {
            stamps,
            next: next + PAGES,
            log,
            taken,
            session,
            runs: true,
            random,
            first,
            marks_nothing,
            event,
        }
    }

    /// A copy of the guest and its sender, as a snapshot makes one. Its later stores are others.
    pub fn copied(&self) -> Self {
        let (stamps, log, taken) = (self.stamps.clone(), self.log.clone(), self.taken.clone());
        let (random, event) = (Random(self.random.0 ^ 1), Rc::clone(&self.event));
        Self {
            stamps,
            log,
            taken,
            random,
            event,
            session: self.session.copied(),
            next: self.next + (1 << 20),
            ..*self
        }
    }

    pub fn store(&mut self) {
        let page = self.random.below(PAGES) as usize;
        self.next += 1;
        self.stamps[page] = if self.random.percent(10) { 0 } else { self.next };
        self.log[page] = true;
    }
}

impl Source for Guest {
    type Error = Infallible;

    fn ranges(&self) -> Vec<MemoryRange> {
        let half = PAGES / 2;
        let range =
            |slot, at| MemoryRange { slot: SlotId(slot), gfns: Span::sized(Gfn(self.first + at), half) };
        vec![range(0, 0), range(1, half)]
    }

    fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    fn mark_all(&mut self) -> Result<(), Infallible> {
        if !self.marks_nothing {
            self.log.iter_mut().zip(&self.stamps).for_each(|(dirty, stamp)| *dirty |= *stamp != 0);
        }
        Ok(())
    }

    fn harvest(&mut self) -> Result<Vec<DirtyWord>, Infallible> {
        self.taken = std::mem::replace(&mut self.log, vec![false; PAGES as usize]);
        // A word for each slot.
        let word = |(slot, taken): (u32, &[bool])| {
            let bits = (0..).zip(taken).fold(0, |bits, (page, dirty)| bits | u64::from(*dirty) << page);
            let at = u64::from(slot) * PAGES / 2;
            let (space, slot, gfn, page) = (SpaceId(0), SlotId(slot), Gfn(self.first + at), 0);
            DirtyWord { first: DirtyPage { space, slot, page, gfn, hva: Hva(0) }, bits }
        };
        Ok((0..).zip(self.taken.chunks(PAGES as usize / 2)).map(word).collect())
    }

    fn commit(&mut self) {
        self.taken.fill(false);
    }

    fn give_back(&mut self) {
        self.log.iter_mut().zip(&self.taken).for_each(|(dirty, taken)| *dirty |= *taken);
        self.taken.fill(false);
    }

    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), Infallible> {
        let at = first.page + u64::from(first.slot.0) * PAGES / 2;
        for (page, contents) in (at as usize..).zip(contents.chunks_mut(PAGE)) {
            fill(contents, self.stamps[page]);
            // Stores between two pages of one round.
            if self.runs && self.random.percent(15) {
                self.store();
            }
        }
        Ok(())
    }

    fn halt(&mut self) -> Result<(), Infallible> {
        self.runs = false;
        Ok(())
    }

    fn resume(&mut self) {
        self.runs = true;
    }

    fn progress(&mut self, _: Progress) -> ControlFlow<()> {
        if self.runs && self.random.percent(30) {
            self.store();
        }
        match (self.event)() {
            Event::Nothing => ControlFlow::Continue(()),
            // Without the message that `panic!` prints.
            Event::Panics => resume_unwind(Box::new("the sender's thread ends")),
            Event::Cancels => ControlFlow::Break(()),
        }
    }
}

/// Writes a page with this stamp at both ends.
fn fill(contents: &mut [u8], stamp: u64) {
    contents.fill(0);
    contents[..8].copy_from_slice(&stamp.to_le_bytes());
    contents[PAGE - 8..].copy_from_slice(&stamp.to_le_bytes());
}

/// Pages of the memory at the receiver that differ from the guest's.
pub fn wrong_pages(ram: &Ram, guest: &Guest) -> Vec<usize> {
    let mut expected = vec![0; PAGE];
    assert_eq!((ram.bytes.len(), ram.first), (guest.stamps.len() * PAGE, Gfn(guest.first)));
    let pages = ram.bytes.chunks(PAGE).zip(&guest.stamps);
    let differs = |(page, (bytes, stamp)): (usize, (&[u8], &u64))| {
        fill(&mut expected, *stamp);
        (bytes != expected).then_some(page)
    };
    pages.enumerate().filter_map(differs).collect()
}
