//! Compares the changes of the guest's memory with the engine's reports.
//!
//! ```text
//! a turn:  sums of some pages ─▶ aging, a harvest ─▶ each of them whose sum is another one than last time
//!                                                       must have been in a harvest since, and young
//! ```
//! Sums come first: a concurrent store of another processor is in a harvest that ends later. Each turn checks the pages
//! of the last harvests, and the next ones in order; the end checks all.
//!
//! If one processor runs the guest, there are no stores between the sums and the harvest, so a harvest has no effect on
//! the next turn. Only then is it checked whether a page was young: an access of another processor between aging and an
//! unmapping is not reported.
//!
//! A store by the hypervisor (a clock, a control block of L1) or by the engine (A and D in L1's tables) makes a page
//! dirty, but not young. [`Machine`] notes each such store. A page with a noted store since its last sum need not be
//! young.

use crate::error::Error;
use crate::primary_mmu::Machine;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use slat::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};

/// Number of pages in order in each turn.
const IN_ORDER: u64 = 128;
/// Number of recently harvested pages; most of the next harvest's pages are among them.
const RECENT: usize = 256;

/// A bit for each page.
#[derive(Debug)]
pub struct Bits(Vec<u64>);

impl Bits {
    fn all(pages: u64) -> Self {
        Self(alloc::vec![!0; pages.div_ceil(64) as usize])
    }

    /// Sets the page's bit.
    pub fn set(&mut self, page: Gfn) {
        self.0[(page.0 / 64) as usize] |= 1 << (page.0 % 64);
    }

    /// Sets the bits of 64 pages, of which the first is this.
    pub fn set_word(&mut self, first: Gfn, bits: u64) {
        if first.0.is_multiple_of(64) {
            self.0[(first.0 / 64) as usize] |= bits;
        } else {
            (0..64).filter(|bit| bits >> bit & 1 == 1).for_each(|bit| self.set(first + bit));
        }
    }

    fn get(&self, page: Gfn) -> bool {
        self.0[(page.0 / 64) as usize] >> (page.0 % 64) & 1 == 1
    }

    fn take(&mut self, page: Gfn) -> bool {
        let was = self.get(page);
        self.0[(page.0 / 64) as usize] &= !(1 << (page.0 % 64));
        was
    }
}

/// Required properties of changed pages.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Whether one processor runs the guest.
    pub alone: bool,
    /// Whether a harvest must have reported them.
    pub dirty: bool,
    /// Whether aging must have reported them.
    pub young: bool,
}

/// State of the comparison.
#[derive(Debug)]
pub struct ChangeCheck {
    asked: Asked,
    sums: Vec<u64>,
    /// Harvested pages since their sums were taken. At first all, because there are no sums.
    pub dirty: Bits,
    /// Young pages, likewise.
    pub young: Bits,
    /// Pages of the last harvests, each once, and a bit for each.
    recent: (VecDeque<Gfn>, Bits),
    hand: u64,
    /// Number of changed pages, of checked ones, and of changed ones that only a noted store explains.
    pub counts: [u64; 3],
}

/// A page that is being compared.
struct PendingCheck {
    page: Gfn,
    sum: u64,
    dirty: bool,
    young: bool,
    own_store: bool,
}

/// Pages that are being compared.
pub struct PendingChecks(Vec<PendingCheck>);

impl ChangeCheck {
    /// Makes the state without sums.
    pub fn new(asked: Asked, pages: Span<Gfn>) -> Self {
        let pages = pages.end.0;
        let (sums, [dirty, young]) = (alloc::vec![0; pages as usize], [(); 2].map(|()| Bits::all(pages)));
        let recent = (VecDeque::new(), Bits(alloc::vec![0; dirty.0.len()]));
        Self { asked, sums, dirty, young, recent, hand: 0, counts: [0; 3] }
    }

    /// Forgets all sums, because the log has ended and begun again beside processors that stored.
    pub fn restart(&mut self) {
        self.dirty.0.fill(!0);
    }

    /// A page of a harvest.
    pub fn harvest(&mut self, page: Gfn) {
        self.dirty.set(page);
        let (recent, is_recent) = &mut self.recent;
        if is_recent.get(page) {
            return;
        }
        if recent.len() == RECENT {
            recent.pop_front().map(|oldest| is_recent.take(oldest));
        }
        recent.push_back(page);
        is_recent.set(page);
    }

    /// Takes the sums of this turn's pages, or of all pages.
    pub fn take_sums(&mut self, host: &Machine, all: bool) -> PendingChecks {
        let pages = self.sums.len() as u64;
        let count = if all { pages } else { IN_ORDER };
        let in_order = (self.hand..self.hand + count).map(|page| Gfn(page % pages));
        self.hand = (self.hand + count) % pages;
        let is_ram = |page: &Gfn| host.layout.is_ram(Span::sized(Hva(page.0 << PAGE_SHIFT), PAGE_SIZE));
        let clocks: Vec<Gfn> = host.clocks.pages().collect();
        let recent = self.recent.0.iter().copied().chain(clocks);
        let mut chosen: Vec<Gfn> = recent.chain(in_order).filter(is_ram).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let frames = host.frames.lock();
        // A store to a clock and its mark come both before this or both after.
        let clocks = host.clocks.lock();
        let look = |page: Gfn| {
            let sum = host.contents(&frames, Hva(page.0 << PAGE_SHIFT), |words| sum(words));
            let (dirty, young) = (self.dirty.take(page), self.young.take(page));
            PendingCheck { page, sum, dirty, young, own_store: host.take_own_store(page) }
        };
        let pending = PendingChecks(chosen.into_iter().map(look).collect());
        drop(clocks);
        pending
    }

    /// Compares the sums, after aging and a harvest.
    pub fn judge(&mut self, PendingChecks(pending): PendingChecks) -> Result<(), Error> {
        self.counts[1] += pending.len() as u64;
        for PendingCheck { page, sum, dirty, young, own_store } in pending {
            let now = if self.asked.alone {
                (self.dirty.take(page), self.young.take(page))
            } else {
                (self.dirty.get(page), self.young.get(page))
            };
            if core::mem::replace(&mut self.sums[page.0 as usize], sum) == sum {
                continue;
            }
            self.counts[0] += 1;
            if self.asked.dirty && !dirty && !now.0 {
                return Err(format!(
                    "a dirty page is lost: {page:x?} has changed, and no harvest told of it"
                )
                .into());
            }
            if self.asked.young && !young && !now.1 {
                if own_store {
                    self.counts[2] += 1;
                    continue;
                }
                return Err(
                    format!("a young page is lost: {page:x?} has changed, and no aging told of it").into()
                );
            }
        }
        Ok(())
    }
}

/// Computes a sum that depends on the position of each word.
fn sum(words: &[u64]) -> u64 {
    let (mut low, mut high) = (0_u64, 0_u64);
    for &word in words {
        low = low.wrapping_add(word);
        high = high.wrapping_add(low);
    }
    low ^ high.rotate_left(32)
}
