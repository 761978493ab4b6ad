//! The reverse map: from a frame of L1 to the shadow entries that were made of it.
//!
//! It consists of three tables of the engine's own kind, indexed by the L1 frame: for pages of 4 KiB, of 2 MiB and of
//! 1 GiB. Their words are not leaves but **hints**: (shadow, g2).
//!
//! ```text
//! word of a table ── none | one hint | link ─▶ block of hints ─▶ …        any number ([`super::hints`])
//! ```
//! Tables and blocks are linked where a hint needs one: mostly 8 bytes for each L1 frame that L2 uses, and 64 bytes
//! where it uses the frame at two to six places.
//!
//! A hint says where to look. The entry there may be a hole by now, or the leaf of another L1 frame. Only the converse
//! holds, in two parts:
//! * **Each leaf has its hint**, so an invalidation, a log and an aging pass find all leaves of a frame.
//! * **No TLB maps L2 to a page through an L1 frame that has no hint.**
//!
//! A fault enters the hint before its leaf. An invalidation removes it after its flush, while faults on the frame still
//! wait. Another fault on the same frame may replace it by its own once its leaf is gone.

use super::Spare;
use super::hints::{Doubts, HintAt, HintBlock, NONE, RmapHint, SpareBlock};
use crate::callbacks::Finally;
use crate::sync::prim::{AtomicU64, Mutex, Relaxed};
use crate::table::{Cache, Cursor, ENTRIES, Entry, Node, Pool, Radix, Reached, Version};
use crate::{Format, Gfn, Level, NoMemory, PAGE_SHIFT, Pfn, Span, TableMemory, Word};
use alloc::vec::Vec;
use core::ptr::NonNull;

/// The sizes of pages that have hints, and a table each.
const SIZES: [Level; 3] = [Level::K4, Level::M2, Level::G1];

/// Maximum number of entries that are visited before a walk yields, in the reverse map and in shadows; and of frames of a
/// page of 1 GiB.
pub(super) const STRETCH: u64 = 4096;
const PART: u64 = 8 * STRETCH;

/// The rest of some frames whose hints are visited stretch by stretch, with a yield in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stretches {
    g1s: Span<Gfn>,
    /// For each size, how many places of the first page were visited.
    skip: [u64; SIZES.len()],
}

impl Stretches {
    pub(crate) fn new(g1s: Span<Gfn>) -> Self {
        Self { g1s, ..Self::default() }
    }

    /// Continues in `g1s`, if those begin at the goal.
    pub(crate) fn within(self, g1s: Span<Gfn>) -> Self {
        Self { g1s, skip: if g1s.start == self.g1s.start { self.skip } else { Self::default().skip } }
    }

    /// The first frame whose hints were not all visited.
    pub(crate) fn goal(&self) -> Gfn {
        self.g1s.start
    }

    pub(crate) fn is_over(&self) -> bool {
        self.g1s.is_empty()
    }
}

/// The reverse map. See the module's header.
pub(crate) struct Reverse<F> {
    planes: [Radix<F>; SIZES.len()],
    doubts: Doubts,
    /// Blocks that no vCPU has; next, the number of pages that were made into blocks.
    spare: Mutex<Vec<SpareBlock>>,
    block_pages: AtomicU64,
}

/// # Safety
/// No thread but this one has ever reached them.
unsafe fn give_back<F: Format, M: TableMemory>(
    planes: impl IntoIterator<Item = Radix<F>>,
    memory: &M,
    pool: &Pool,
) {
    for plane in planes {
        // SAFETY: required of the caller.
        unsafe { plane.give_back(memory, pool) };
    }
}

/// Bits of an address in a block's page that tell blocks apart.
const BLOCK_SHIFT: u32 = size_of::<HintBlock>().trailing_zeros();

/// Encodes the address of a block as the word of a table.
fn link<M: TableMemory>(memory: &M, block: NonNull<HintBlock>) -> Word {
    let offset = block.as_ptr().addr() & ((1 << PAGE_SHIFT) - 1);
    // SAFETY: inside the page of the block.
    let page = Node::new(unsafe { block.cast::<u8>().sub(offset) });
    Word::mmio(Version(page.pfn(memory).0 << (PAGE_SHIFT - BLOCK_SHIFT) | (offset >> BLOCK_SHIFT) as u64))
}

/// Returns the block of a link, which stays until the VM is dropped.
///
/// # Safety
/// `word` is a link that was read from a table of the reverse map.
unsafe fn block<'a, M: TableMemory>(memory: &M, word: Word) -> &'a HintBlock {
    let (said, bits) = (word.version().get(), PAGE_SHIFT - BLOCK_SHIFT);
    // SAFETY: required of the caller: the frame of a page of blocks.
    let page = unsafe { Node::follow(memory, Pfn(said >> bits)) }.page().cast::<HintBlock>();
    // SAFETY: as above: inside the page, and never freed before the VM.
    unsafe { page.add((said & ((1 << bits) - 1)) as usize).as_ref() }
}

impl<F: Format> Reverse<F> {
    pub(super) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        // Trees that were made go back if memory runs out, or if the host panics.
        let mut made = Finally::with(Vec::with_capacity(SIZES.len()), |made: &mut Vec<_>| {
            // SAFETY: made just now.
            unsafe { give_back(made.drain(..), memory, pool) };
        });
        for _ in SIZES {
            made.push(Radix::new(memory, pool)?);
        }
        Ok(Self {
            planes: core::mem::take(&mut *made).try_into().map_err(|_| NoMemory)?,
            doubts: Doubts::default(),
            spare: Mutex::default(),
            block_pages: AtomicU64::new(0),
        })
    }

    /// Gives its memory back to the pool.
    ///
    /// # Safety
    /// No thread but this one has ever reached it.
    pub(crate) unsafe fn give_back<M: TableMemory>(self, memory: &M, pool: &Pool) {
        // SAFETY: required of the caller.
        unsafe { give_back(self.planes, memory, pool) };
    }

    fn plane(&self, level: Level) -> &Radix<F> {
        &self.planes[usize::from(level.min(Level::G1).number()) - 1]
    }

    /// Gives a vCPU spare blocks: blocks that no vCPU has, or a page of its `cache`.
    pub(super) fn refill(&self, to: &mut Vec<SpareBlock>, cache: &mut Cache) {
        let mut spare = self.spare.lock();
        if spare.is_empty()
            && let Some(page) = cache.take()
        {
            spare.extend(SpareBlock::split(page));
            self.block_pages.fetch_add(1, Relaxed);
        }
        let left = spare.len().saturating_sub(SpareBlock::AT_ONCE);
        to.extend(spare.drain(left..));
    }

    /// Takes a vCPU's spare blocks back.
    pub(super) fn reclaim(&self, from: &mut Vec<SpareBlock>) {
        self.spare.lock().append(from);
    }

    /// F7: enters a hint for a page of `level`, up to 1 GiB, around `g1`. A present hint stays. The fault looks at the
    /// hint [again](HintAt::stands) when it has frozen its entry. If an invalidation removes the hint, the fault finds its
    /// entry changed, or the invalidation listed. `is_stale` tells whether the leaf of another hint is gone.
    pub(super) fn add<'a, M: TableMemory>(
        &'a self,
        memory: &M,
        (cache, spare): (&mut Cache, &mut Spare),
        (g1, level): (Gfn, Level),
        hint: RmapHint,
        is_stale: impl Fn(RmapHint) -> bool,
    ) -> Result<HintAt<'a>, NoMemory> {
        // Above the hints are links and holes only, and no link ever goes.
        // SAFETY: nothing is ever unlinked from a plane.
        let Reached::Level(mut at) = (unsafe { self.plane(level).reach(memory, cache, g1, level) })? else {
            return Err(NoMemory);
        };
        let spare = &mut spare.hints;
        loop {
            if at.word.is_mmio() {
                // SAFETY: read from a plane.
                return unsafe { block(memory, at.word) }.enter(
                    hint,
                    spare,
                    (&self.doubts, g1.base(level)),
                    is_stale,
                );
            }
            let there = (at.word != NONE).then(|| RmapHint::of_word(at.word));
            let first = hint.word().filter(|_| there.is_none_or(|there| there == hint));
            let exchanged = if let Some(first) = first {
                let done = if at.word == first { Ok(()) } else { at.entry.cas(at.word, first) };
                done.map(|()| HintAt::First(at.entry, first))
            } else {
                let fresh = spare.pop().ok_or(NoMemory)?;
                // SAFETY: a block that only this thread has.
                let made: &HintBlock = unsafe { fresh.0.as_ref() };
                made.fill([Some(hint), there]);
                // The Release in `cas`: the hints before the link to their block.
                let done = at.entry.cas(at.word, link(memory, fresh.0));
                if done.is_err() {
                    made.fill([None, None]);
                    spare.push(fresh);
                }
                done.map(|()| made.at(0, hint))
            };
            match exchanged {
                Ok(entered) => return Ok(entered),
                Err(found) => at.word = found,
            }
        }
    }

    /// Returns the hints of the 2 MiB around `g1`, if any of them was ever entered.
    pub(crate) fn beside<'a, M: TableMemory>(&self, memory: &M, g1: Gfn) -> Option<&'a [Entry; ENTRIES]> {
        // SAFETY: nothing is ever unlinked from a plane.
        let top = unsafe { self.planes[0].top(memory, g1) };
        // SAFETY: as above.
        let table = unsafe { Radix::<F>::table(memory, (top, F::ROOT_LEVEL), g1, Level::K4) }?;
        // SAFETY: as above.
        Some(unsafe { table.entries() })
    }

    /// Calls `visit` with hints of the next stretch of `left`, and the part of their page that is asked for. `visit`
    /// returns how many entries it has visited.
    pub(super) fn stretch<M: TableMemory>(
        &self,
        memory: &M,
        left: &mut Stretches,
        mut visit: impl FnMut(HintAt<'_>, Span<Gfn>, Span<Gfn>) -> u64,
    ) {
        if left.g1s.len() == 1 {
            return self.of_frame(memory, left, visit);
        }
        let (start, mut end, mut skip) = (left.g1s.start, left.g1s.end, [0; SIZES.len()]);
        let mut passed = [0; SIZES.len()];
        for (nth, (level, plane)) in SIZES.into_iter().zip(&self.planes).enumerate() {
            let (mut work, mut from) = (0, left.skip[nth]);
            // SAFETY: nothing is ever unlinked from a plane.
            let root = unsafe { plane.root(memory) };
            let mut cursor = Cursor::<F>::new(root, Span::new(start, end), level);
            // SAFETY: as above.
            while let Some(step) = unsafe { cursor.next(memory) } {
                let (at, page) = (step.at, step.gfns);
                work += 1;
                let is_hint = at.level == level && at.word != NONE;
                let least = page.start.max(start) + PART;
                if is_hint && level == Level::G1 && least < end {
                    // Its leaf may have been split into very many.
                    (end, skip) = (least, [0; SIZES.len()]);
                }
                let part = page.clamp(&Span::new(start, end));
                let mut visits = |at| {
                    work = u64::saturating_add(work, visit(at, page, part));
                    work < STRETCH
                };
                let mut places = 0;
                let is_done = if !is_hint {
                    true
                } else if at.word.is_mmio() {
                    // SAFETY: read from a plane.
                    unsafe { block(memory, at.word) }.each(from, &mut places, &mut visits)
                } else {
                    visits(HintAt::First(at.entry, at.word));
                    true
                };
                from = 0;
                if part.start == start {
                    passed[nth] = places;
                }
                if !is_done {
                    // Of this page the earlier sizes are done: else two sizes with many places would take turns for ever.
                    (end, skip) = (part.start, if part.start == start { passed } else { [0; SIZES.len()] });
                    skip[nth] = places;
                    break;
                }
                if work >= STRETCH || is_hint && page.end > end {
                    let goal = cursor.goal().min(end);
                    if goal < end {
                        (end, skip) = (goal, [0; SIZES.len()]);
                    }
                    break;
                }
            }
        }
        *left = Stretches { g1s: Span::new(end, left.g1s.end), skip };
    }

    /// Like [`stretch`](Self::stretch), for one frame, by a descent in each table.
    #[inline(always)]
    fn of_frame<M: TableMemory>(
        &self,
        memory: &M,
        left: &mut Stretches,
        mut visit: impl FnMut(HintAt<'_>, Span<Gfn>, Span<Gfn>) -> u64,
    ) {
        let (g1s, mut skip) = (left.g1s, [0; SIZES.len()]);
        for (nth, (level, plane)) in SIZES.into_iter().zip(&self.planes).enumerate() {
            // SAFETY: nothing is ever unlinked from a plane.
            let at = unsafe { plane.descend(memory, g1s.start) };
            #[cfg(test)]
            crate::sync::longest::visits(1);
            if at.level != level || at.word == NONE {
                continue;
            }
            let page = Span::sized(g1s.start.base(level), level.pages());
            if !at.word.is_mmio() {
                visit(HintAt::First(at.entry, at.word), page, g1s);
                continue;
            }
            let mut work = 0;
            let mut visits = |at| {
                work = u64::saturating_add(work, visit(at, page, g1s));
                work < STRETCH
            };
            // SAFETY: read from a plane.
            if !unsafe { block(memory, at.word) }.each(left.skip[nth], &mut skip[nth], &mut visits) {
                *left = Stretches { g1s, skip };
                return;
            }
        }
        *left = Stretches::new(Span::new(g1s.end, g1s.end));
    }

    /// Returns the first frame in a stretch of `left` that has a hint, or the start of the page that has one.
    pub(super) fn first<M: TableMemory>(&self, memory: &M, left: &mut Stretches) -> Option<Gfn> {
        let mut first: Option<Gfn> = None;
        self.stretch(memory, left, |_, page, _| {
            first = Some(first.map_or(page.start, |first| first.min(page.start)));
            u64::MAX
        });
        first
    }

    /// Removes the hints of a stretch of `left`, frames of `all`, after the flush, while faults on `all` wait. The hint of
    /// a page that reaches out of `all` stays, for the parts of its split leaf.
    pub(crate) fn remove<M: TableMemory>(&self, memory: &M, left: &mut Stretches, all: Span<Gfn>) {
        self.stretch(memory, left, |at, page, _| {
            if all.covers(&page) {
                at.remove();
            }
            1
        });
    }

    /// Returns the roots, to count pages.
    pub(super) fn roots<M: TableMemory>(&self, memory: &M) -> impl Iterator<Item = Node> {
        // SAFETY: roots stay.
        self.planes.iter().map(|plane| unsafe { plane.root(memory) })
    }

    /// Returns the number of pages that were made into blocks.
    pub(crate) fn block_pages(&self) -> u64 {
        self.block_pages.load(Relaxed)
    }
}
