//! A budget for table memory: reaching it takes the coldest tables back instead of failing (the TDP MMU series' work item; KVM's
//! direct MMU ignores its limit).
//!
//! The walker of the hardware sets Accessed in every link that it follows, so a clear bit in a link says that nothing
//! *below* has been used lately: a clock goes over the links, in pre-order, as far as it must:
//!
//! ```text
//! hand ─▶ link, Accessed      clear it, go down                 second chance
//!         link, not Accessed  the whole subtree is cold: unhook it, as the host would by an invalidation
//! ```
//! A stretch of cold subtrees costs one invalidation and one flush; what they mapped faults back in. Processors keep
//! links in paging-structure caches and set no bit from there: the clock is as approximate as aging is, and as harmless.
//! Links without an Accessed bit look cold, so only leaf tables go by them: the clock becomes first in, first out. A list in order
//! of use would be written by every fault; a clock needs none.
//!
//! The budget counts pages in use: in the tables, unhooked, or at hand in the caches of vCPUs. Memory that the
//! *host* refuses is another matter: [`NoMemory`], and the VM goes on.

use super::entry::Word;
use super::format::Format;
use super::pool::{Cache, NoMemory, Short};
use super::walk::Walk;
use crate::addr::{Gfn, Level, Span};
use crate::host::Host;
use crate::notify::Why;
use crate::notify::edit::Range;
use crate::notify::invalidation::Invalidation;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::sync::prim::{AtomicU64, Mutex, Relaxed};
use crate::vm::Vm;

/// Cold subtrees taken back by one invalidation.
const STRETCH: usize = 16;
/// Links looked at in one go: faults beside them wait for the flush.
const LINKS: usize = 512;

/// The clock of a VM.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Address space and frame to go on at. Who holds it takes back; others wait, and then look again.
    hand: Mutex<(usize, Gfn)>,
    /// Subtrees taken back so far.
    pub(crate) reclaimed: AtomicU64,
}

/// Cold subtrees, neighbours of each other.
struct Cold {
    gfns: [Span<Gfn>; STRETCH],
    len: usize,
}

impl<F: Format, H: Host> Vm<F, H> {
    /// From now on at most `bytes` of table pages are in use; the coldest are taken back until that is so. What is
    /// needed for one fault, and what vCPUs have at hand, cannot be taken back: where the budget is less, faults that
    /// need a table fail with [`FaultError::NoMemory`](crate::FaultError::NoMemory). Waits for vCPUs to answer flushes.
    pub fn set_table_budget(&self, idle: &mut Idle, bytes: u64) {
        self.pool.set_budget(bytes);
        while self.pool.in_use() > self.pool.budget() && self.reclaim(idle) {}
    }

    /// Fills a cache of table pages up to `want`. Pages that wait for a grace period are used before the host is asked
    /// for more, unless a reader keeps them for long: then where the host has no more. Where the budget is used up, cold
    /// tables are taken back.
    #[cold]
    pub(crate) fn top_up(&self, idle: &mut Idle, cache: &mut Cache, want: usize) -> Result<(), NoMemory> {
        loop {
            let reuse = || self.grace.reuse::<F, H>(&self.reads, &self.host, &self.pool);
            match self.pool.top_up(&self.host, cache, want, reuse) {
                Ok(()) => return Ok(()),
                Err(Short::Budget) if self.reclaim(idle) => {}
                Err(Short::Host) if self.grace.reuse_late::<F, H>(&self.reads, &self.host, &self.pool) => {}
                Err(_) => return Err(NoMemory),
            }
        }
    }

    /// Takes cold tables back; false where two rounds of the clock found none.
    fn reclaim(&self, idle: &mut Idle) -> bool {
        let mut hand = self.clock.hand.lock();
        let before = self.pool.in_use();
        if before < self.pool.budget() {
            // Somebody else has, while this one waited.
            return true;
        }
        // The first round may only clear bits.
        let mut rounds = 2 * self.spaces.len() + 1;
        while rounds > 0 {
            let (space, from) = *hand;
            let space = &self.spaces[space];
            let (cold, next) = self.find_cold(idle, space, from);
            *hand = match next {
                Some(next) => (hand.0, next),
                None => ((hand.0 + 1) % self.spaces.len(), Gfn(0)),
            };
            rounds -= usize::from(next.is_none());
            let cold = &cold.gfns[..cold.len];
            if let Some(hull) = cold.iter().copied().reduce(|hull, gfns| hull.hull(&gfns)) {
                let mut change = Invalidation::begin(self, Range::Gfns(space.id, hull), Why::Unmap);
                change.apply_to(idle, cold).settle();
                drop(change);
                self.clock.reclaimed.fetch_add(cold.len() as u64, Relaxed);
                self.collect(idle);
                if self.pool.in_use() < before {
                    return true;
                }
            }
        }
        false
    }

    /// Goes over links from `from` on, and clears their Accessed bits. Returns those that were cold, and where to go on
    /// unless that was the end.
    fn find_cold(&self, idle: &mut Idle, space: &Space<F>, from: Gfn) -> (Cold, Option<Gfn>) {
        let mut cold = Cold { gfns: [Span::new(Gfn(0), Gfn(0)); STRETCH], len: 0 };
        let mut walk = Walk::<F, H, Shared>::on_any_seat(self, space, idle);
        let mut steps = walk.steps(Span::new(from, Gfn(1 << F::FRAME_BITS)), Level::M2);
        let (mut links, mut end) = (0, from);
        while let Some((_, step)) = steps.next() {
            let (at, gfns) = (step.at, step.gfns);
            if !F::is_table(at.word, at.level) || gfns.start < end {
                continue;
            }
            if links == LINKS || cold.len == STRETCH {
                return (cold, Some(gfns.start));
            }
            links += 1;
            let accessed = F::touch_link(at.level);
            if accessed == 0 && at.level > Level::M2 {
                continue;
            }
            if at.word.0 & accessed == 0 {
                cold.gfns[cold.len] = gfns;
                cold.len += 1;
                // Nothing below it needs a look.
                end = gfns.end;
            } else {
                // Where that fails it was used, or is gone.
                let _ = at.entry.cas(at.word, Word(at.word.0 & !accessed));
            }
        }
        (cold, None)
    }
}
