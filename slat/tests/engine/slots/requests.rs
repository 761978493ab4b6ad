//! Requests worth testing: a walk of valid ones, some of them with one field spoilt.
//!
//! Most requests start as something that a VMM would request in the current state: a slot beside or one page into
//! another, a move by a page, a delete with garbage in the fields that a delete ignores. One in five then gets one
//! field replaced by a value at a rule's edge. A refusal thus mostly has one reason, and the walk keeps ten to two
//! hundred slots.
//!
//! The same seed and the same oracle give the same requests.

use super::oracle::{Change, LOG_DIRTY, Limits, MOST_PAGES, Oracle, PAGE, READONLY, Record, Request};
use crate::common::random::Random;

/// A source of requests.
pub struct Requests {
    pub random: Random,
    limits: Limits,
    /// The range of most host addresses, so that slots share them.
    arena: u64,
    /// The largest slot, in pages, that a request may succeed in creating.
    most: u64,
    /// The number of slots that the walk approaches.
    target: usize,
    made: u64,
}

impl Requests {
    pub fn new(seed: u64, limits: Limits, arena: u64, most: u64) -> Self {
        Self { random: Random::new(seed), limits, arena, most: most.min(MOST_PAGES), target: 60, made: 0 }
    }

    pub fn next(&mut self, oracle: &Oracle) -> Request {
        if self.made.is_multiple_of(400) {
            self.target = self.random.pick(&[10, 30, 60, 120, 200]);
        }
        self.made += 1;
        let space = self.random.below(u64::from(self.limits.spaces)) as u32;
        let mut request = match self.live(oracle, space) {
            Some(slot) => self.sensible(oracle, space, slot),
            None => self.create(oracle, space),
        };
        if self.random.one_in(5) {
            self.spoil(&mut request);
        }
        // Kernels spend memory by the page: a slot as large as the rules allow may be requested, but not created.
        if oracle.judge(&request) == Ok(Change::Created) && request.bytes / PAGE > self.most {
            request.bytes = PAGE * (1 + self.random.below(8));
        }
        request
    }

    /// Returns a live slot, if there is one.
    fn live(&mut self, oracle: &Oracle, space: u32) -> Option<(u32, Record)> {
        let slots = oracle.slots(space);
        let nth = self.random.below(slots.len().max(1) as u64);
        slots.iter().nth(nth as usize).map(|(&id, &slot)| (id, slot))
    }

    /// Returns a VMM's likely request, given that `(id, slot)` is live.
    fn sensible(&mut self, oracle: &Oracle, space: u32, (id, slot): (u32, Record)) -> Request {
        let same = Request {
            space,
            id,
            flags: slot.flags,
            gpa: slot.gfn * PAGE,
            bytes: slot.pages * PAGE,
            hva: slot.hva,
        };
        let (creates, deletes) = if oracle.slots(space).len() < self.target { (42, 8) } else { (16, 34) };
        let roll = self.random.below(100);
        if roll < creates {
            return self.create(oracle, space);
        }
        if roll < creates + deletes {
            let mut delete = Request { bytes: 0, ..same };
            if self.random.one_in(2) {
                delete.gpa = self.random.0.u64(..) / PAGE * PAGE;
                delete.hva = self.hva(0);
                delete.flags = self.random.below(4) as u32;
            }
            return delete;
        }
        match self.random.below(50) {
            0..25 => {
                let gpa = self.destination(oracle, space, slot);
                let log = if self.random.one_in(4) { LOG_DIRTY } else { 0 };
                Request { gpa, flags: slot.flags ^ log, ..same }
            }
            25..35 => Request { flags: slot.flags ^ LOG_DIRTY, ..same },
            35..39 => same,
            39..42 => Request { bytes: same.bytes + PAGE, ..same },
            42..45 => Request { bytes: PAGE * self.random.below(slot.pages), ..same }, // may come out as a delete
            45..48 => Request { hva: self.hva(same.bytes), ..same },
            _ => Request { flags: slot.flags ^ READONLY, ..same },
        }
    }

    fn create(&mut self, oracle: &Oracle, space: u32) -> Request {
        let ids = u64::from(self.limits.ids);
        let mut id = 0;
        for _ in 0..4 {
            let sparse = self.random.below(ids);
            let low = self.random.below(256);
            id = self.random.pick(&[low, low, sparse, ids - 1 - low % 8]) as u32;
            if !oracle.slots(space).contains_key(&id) {
                break;
            }
        }
        let pages = match self.random.below(64) {
            0 => 512 + self.random.below(2),
            1 => self.random.pick(&[1 << 13, self.most, MOST_PAGES]),
            2..24 => 1,
            _ => 1 + self.random.below(24),
        };
        let bytes = pages * PAGE;
        let gpa = match self.live(oracle, space) {
            Some((_, other)) if self.random.one_in(2) => self.beside(other, pages),
            _ => self.somewhere(pages),
        };
        let flags = self.random.pick(&[0, 0, LOG_DIRTY, READONLY, LOG_DIRTY | READONLY]);
        Request { space, id, flags, gpa, bytes, hva: self.hva(bytes) }
    }

    /// Returns a place to move a slot to: over its own range, beside or onto another, or away.
    fn destination(&mut self, oracle: &Oracle, space: u32, slot: Record) -> u64 {
        let step = PAGE * (1 + self.random.below(slot.pages.min(8)));
        let here = slot.gfn * PAGE;
        match self.random.below(6) {
            0 => here.saturating_add(step),
            1 => here.saturating_sub(step),
            2 | 3 => self.somewhere(slot.pages),
            _ => match self.live(oracle, space) {
                Some((_, other)) => self.beside(other, slot.pages),
                None => here,
            },
        }
    }

    /// Touching `other`, or into it by one page, or exactly on it.
    fn beside(&mut self, other: Record, pages: u64) -> u64 {
        let (start, end, bytes) = (other.gfn * PAGE, other.end() * PAGE, pages * PAGE);
        match self.random.below(10) {
            0..4 => end,
            4..7 => start.wrapping_sub(bytes),
            7 => end - PAGE,
            8 => start.wrapping_sub(bytes).wrapping_add(PAGE),
            _ => start,
        }
    }

    /// Returns one of a few ranges, close enough to each other's slots to collide now and then.
    fn somewhere(&mut self, pages: u64) -> u64 {
        let reach = self.limits.gfn_end * PAGE;
        let last = reach.saturating_sub(pages * PAGE);
        let near = self.random.below(2048) * PAGE;
        match self.random.below(16) {
            0..5 => near,
            5..9 => (1 << 32) + near,
            9..11 => last.saturating_sub(near),
            11 => last,
            12 => 0,
            _ => self.random.pick(&[1 << 36, 1 << 48, 1 << 51]) - (1 << 20) + near,
        }
    }

    /// Returns a user address for `bytes`: aligned, often shared with other slots, not always mapped.
    fn hva(&mut self, bytes: u64) -> u64 {
        let last = self.limits.hva_end.saturating_sub(bytes) / PAGE * PAGE;
        let page = self.random.below(1024) * PAGE;
        match self.random.below(12) {
            0 => page,
            1 => last.saturating_sub(page),
            2 => last,
            _ => self.arena + page,
        }
    }

    /// Puts one field at the edge of one of its rules, or past it.
    fn spoil(&mut self, request: &mut Request) {
        let Limits { ids, spaces, gfn_end, hva_end } = self.limits;
        let Request { gpa, bytes, hva, .. } = *request;
        match self.random.below(18) {
            0 => {
                let over = ids.saturating_add(1);
                request.id = self.random.pick(&[0, ids - 1, ids, over, 0x7ffd, 0x7fff, 0x8000, 0xffff]);
            }
            // 0x100: more than the type of an address space can hold, too.
            1 => request.space = self.random.pick(&[spaces, 2, 0xff, 0x100, 0xffff]),
            2 | 3 => request.flags ^= 1 << self.random.below(32),
            4..8 => {
                request.bytes = self.random.pick(&[
                    0,
                    1,
                    0x800,
                    bytes + 1,
                    bytes.wrapping_sub(1),
                    MOST_PAGES * PAGE,
                    (MOST_PAGES + 1) * PAGE,
                    PAGE << 32,
                    1 << 63,
                    u64::MAX - (PAGE - 1),
                    u64::MAX,
                ]);
                // Otherwise a large size would always be refused for its host addresses.
                request.hva = self.random.pick(&[hva, PAGE]);
            }
            8..13 => {
                request.gpa = self.random.pick(&[
                    gpa ^ 1,
                    gpa ^ 0x800,
                    (gfn_end * PAGE).wrapping_sub(bytes),
                    (gfn_end * PAGE).wrapping_sub(bytes).wrapping_add(PAGE),
                    gfn_end * PAGE,
                    1 << 36,
                    1 << 48,
                    1 << 51,
                    (1_u64 << 52).wrapping_sub(bytes),
                    1 << 52,
                    1 << 63,
                    bytes.wrapping_neg(),
                    bytes.wrapping_neg().wrapping_sub(PAGE),
                    u64::MAX - (PAGE - 1),
                    u64::MAX,
                ]);
            }
            _ => {
                request.hva = self.random.pick(&[
                    hva ^ 1,
                    hva ^ 0x800,
                    hva_end.wrapping_sub(bytes) & !(PAGE - 1),
                    (hva_end.wrapping_sub(bytes) & !(PAGE - 1)).wrapping_add(PAGE),
                    hva_end & !(PAGE - 1),
                    (hva_end & !(PAGE - 1)).wrapping_add(PAGE),
                    (1 << 47) - PAGE,
                    1 << 47,
                    0xffff_8000_0000_0000,
                    u64::MAX - (PAGE - 1),
                    u64::MAX,
                ]);
            }
        }
    }
}
