//! The pool against a plain list of used pages, for chunks and for single pages.

use super::*;
use crate::addr::{PAGE_SHIFT, Pfn};
use crate::table::free_pages::KEPT;
use crate::table::memory::{CHUNK_BYTES, CHUNK_PAGES, Heap};
use proptest::prelude::*;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Mutex as StdMutex;
use std::vec::Vec;

/// Memory that lends up to `most` pages, and records a return of an unlent block. `SINGLE`: lends single pages in
/// random order.
struct Lender<const SINGLE: bool> {
    most: u64,
    state: StdMutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of pages of each lent block, by its address.
    lent: BTreeMap<usize, usize>,
    /// Single pages to lend next, in random order.
    spare: Vec<usize>,
    random: u64,
    wrong: Option<&'static str>,
}

fn layout(pages: usize) -> Layout {
    let bytes = pages * PAGE_SIZE as usize;
    Layout::from_size_align(bytes, bytes).unwrap()
}

impl<const SINGLE: bool> Lender<SINGLE> {
    fn new(most: u64) -> Self {
        Self { most, state: StdMutex::default() }
    }

    fn lent(&self) -> u64 {
        self.state.lock().unwrap().lent.values().sum::<usize>() as u64
    }

    fn take(&self, pages: usize) -> Option<NonNull<u8>> {
        if self.lent() + pages as u64 > self.most {
            return None;
        }
        let mut state = self.state.lock().unwrap();
        let address = if pages == 1 {
            if state.spare.len() < 64 {
                // SAFETY: not of size zero.
                let more = (0..64).map(|_| unsafe { alloc(layout(1)) }.expose_provenance());
                state.spare.extend(more);
            }
            state.random = state.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = (state.random >> 33) as usize % state.spare.len();
            state.spare.swap_remove(index)
        } else {
            // SAFETY: not of size zero.
            unsafe { alloc(layout(pages)) }.expose_provenance()
        };
        state.lent.insert(address, pages);
        NonNull::new(std::ptr::with_exposed_provenance_mut(address))
    }

    fn put(&self, block: NonNull<u8>, pages: usize) {
        let mut state = self.state.lock().unwrap();
        if state.lent.remove(&block.as_ptr().addr()) != Some(pages) {
            state.wrong = Some("a block went back that was not lent");
        } else if pages == 1 {
            state.spare.push(block.as_ptr().addr());
        } else {
            // SAFETY: lent above.
            unsafe { dealloc(block.as_ptr(), layout(pages)) };
        }
    }
}

impl<const SINGLE: bool> Drop for Lender<SINGLE> {
    fn drop(&mut self) {
        for &page in &self.state.get_mut().unwrap().spare {
            // SAFETY: allocated in `take`.
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(page), layout(1)) };
        }
    }
}

// SAFETY: blocks of the heap, each lent once.
unsafe impl<const SINGLE: bool> TableMemory for Lender<SINGLE> {
    const SINGLE_PAGES: bool = SINGLE;

    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        assert!(SINGLE || pages == CHUNK_PAGES);
        let first = self.take(pages)?;
        Some((first, Pfn(first.as_ptr().addr() as u64 >> PAGE_SHIFT)))
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        if self.at(pfn) != first {
            self.state.lock().unwrap().wrong = Some("a block went back with the frame of another");
        }
        self.put(first, pages);
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Fills cache `0` up to `1` pages.
    TopUp(usize, usize),
    /// Drains a cache.
    Drain(usize),
    /// Links a page of a cache in a table.
    Link(usize),
    /// Frees `1` tables, from index `0` on.
    Die(usize, usize),
    Root,
    RootDies,
    Shrink,
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3_usize, 1..12_usize).prop_map(|(cache, want)| Step::TopUp(cache, want)),
        1 => (0..3_usize, 40..200_usize).prop_map(|(cache, want)| Step::TopUp(cache, want)),
        1 => (0..3_usize).prop_map(Step::Drain),
        8 => (0..3_usize).prop_map(Step::Link),
        2 => (0..1000_usize, 1..10_usize).prop_map(|(first, many)| Step::Die(first, many)),
        1 => (0..1000_usize, 100..300_usize).prop_map(|(first, many)| Step::Die(first, many)),
        1 => Just(Step::Root),
        1 => Just(Step::RootDies),
        1 => Just(Step::Shrink),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..200)
}

/// The pool, and all pages in use.
struct World<const SINGLE: bool> {
    memory: Lender<SINGLE>,
    pool: Pool,
    caches: [Cache; 3],
    linked: Vec<Node>,
    roots: Vec<Node>,
    root_pages: usize,
    stamp: u64,
}

impl<const SINGLE: bool> World<SINGLE> {
    fn new(root_pages: usize, most: u64) -> Self {
        Self {
            memory: Lender::new(most),
            pool: Pool::new(root_pages),
            caches: Default::default(),
            linked: Vec::new(),
            roots: Vec::new(),
            root_pages,
            stamp: 0,
        }
    }

    /// Fills pages with a word of their own; another owner must not write them.
    fn stamp(&mut self, node: Node, pages: usize) {
        self.stamp += 1;
        (0..pages).for_each(|page| node.beside(page).fill(Word(node.page().as_ptr().addr() as u64)));
    }

    fn dies(node: Node, pages: usize) -> Result<(), &'static str> {
        let word = Word(node.page().as_ptr().addr() as u64);
        let entries = (0..pages).map(|page| {
            // SAFETY: in use, and owned by the test.
            unsafe { node.beside(page).entries() }
        });
        if entries.flatten().any(|entry| entry.load() != word) {
            return Err("a page was handed out twice");
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), &'static str> {
        match *step {
            Step::TopUp(cache, want) => {
                let done = self.pool.top_up(&self.memory, &mut self.caches[cache], want, || false);
                if done.is_ok() != (self.caches[cache].len() >= want) {
                    return Err("a cache was not filled, or an error was told where it was");
                }
            }
            Step::Drain(cache) => self.pool.give_back(self.caches[cache].drain()),
            Step::Link(cache) => {
                if let Some(node) = self.caches[cache].take() {
                    self.stamp(node, 1);
                    self.linked.push(node);
                }
            }
            Step::Die(first, many) => {
                let mut list = NodeList::default();
                for _ in 0..many.min(self.linked.len()) {
                    let node = self.linked.swap_remove(first % self.linked.len());
                    Self::dies(node, 1)?;
                    list.push(node);
                }
                self.pool.give_back(list);
                self.pool.trim(&self.memory);
            }
            Step::Root => {
                let mut cache = Cache::default();
                if self.pool.top_up(&self.memory, &mut cache, self.root_pages, || false).is_ok()
                    && let Ok(root) = self.pool.root(&self.memory, &mut cache)
                {
                    if root.page().as_ptr().addr() % (self.root_pages << 12) != 0 {
                        return Err("a root is not aligned");
                    }
                    self.stamp(root, self.root_pages);
                    self.roots.push(root);
                }
                self.pool.give_back(cache.drain());
            }
            Step::RootDies => {
                if let Some(root) = self.roots.pop() {
                    Self::dies(root, self.root_pages)?;
                    let mut list = NodeList::default();
                    list.push(root);
                    if self.root_pages == 1 {
                        self.pool.give_back(list);
                    } else {
                        self.pool.give_back_roots(list);
                    }
                }
            }
            Step::Shrink => {
                let before = self.memory.lent();
                let bytes = self.pool.shrink(&self.memory);
                if before - self.memory.lent() != bytes / PAGE_SIZE {
                    return Err("other than said went back");
                }
            }
            Step::Trim => self.pool.trim(&self.memory),
        }
        self.check(matches!(step, Step::Shrink))
    }

    fn check(&mut self, shrunk: bool) -> Result<(), &'static str> {
        let cached: usize = self.caches.iter().map(Cache::len).sum();
        let out = (cached + self.linked.len() + self.roots.len() * self.root_pages) as u64;
        let wrong = self.memory.state.lock().unwrap().wrong;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let mut chunks = BTreeSet::new();
        for (nodes, pages) in [(&self.linked, 1), (&self.roots, self.root_pages)] {
            let state = self.memory.state.lock().unwrap();
            for node in nodes {
                let address = node.page().as_ptr().addr();
                let holds = |(&at, &lent): (&usize, &usize)| address + (pages << 12) <= at + (lent << 12);
                if !state.lent.range(..=address).next_back().is_some_and(holds) {
                    return Err("a page is in use that went back");
                }
                chunks.insert(address & !(CHUNK_BYTES - 1));
            }
        }
        if self.pool.in_use() != out || self.pool.lent() != self.memory.lent() {
            return Err("pages are miscounted");
        }
        if self.pool.free() + out != self.pool.allocated() {
            return Err("pages are lost");
        }
        if shrunk && cached == 0 && !SINGLE && self.memory.lent() != (chunks.len() * CHUNK_PAGES) as u64 {
            return Err("a chunk without a page in use was kept");
        }
        Ok(())
    }

    /// Frees all pages in use, and then the whole pool.
    fn end(mut self) -> Result<(), &'static str> {
        (0..3).for_each(|cache| self.pool.give_back(self.caches[cache].drain()));
        while !self.linked.is_empty() {
            self.step(&Step::Die(7, 100))?;
        }
        while !self.roots.is_empty() {
            self.step(&Step::RootDies)?;
        }
        if self.pool.lent() > 2 * (KEPT * CHUNK_PAGES) as u64 + BATCH as u64 * 64 {
            return Err("too much was kept");
        }
        self.pool.shrink(&self.memory);
        if self.memory.lent() != 0 {
            return Err("an empty pool keeps memory");
        }
        Ok(())
    }
}

fn run<const SINGLE: bool>(root_pages: usize, most: u64, steps: &[Step]) -> Result<(), &'static str> {
    let mut world = World::<SINGLE>::new(root_pages, most);
    steps.iter().try_for_each(|step| world.step(step))?;
    world.end()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    #[test]
    fn each_page_has_one_user_and_whole_chunks_are_returned(
        steps in steps(),
        root_pages in prop_oneof![Just(1_usize), Just(2), Just(4), Just(16)],
        most in prop_oneof![2 => Just(u64::MAX), 1 => 1..600_u64],
    ) {
        prop_assert_eq!(run::<false>(root_pages, most, &steps), Ok(()));
        prop_assert_eq!(run::<true>(root_pages, most, &steps), Ok(()));
    }
}

/// Fills a chunk, and frees all tables in it except one.
#[test]
fn a_chunk_with_a_page_in_use_is_kept() {
    let steps: Vec<_> = core::iter::once(Step::TopUp(0, 63))
        .chain((0..63).map(|_| Step::Link(0)))
        .chain([Step::Die(0, 62), Step::Shrink])
        .collect();
    let mut world = World::<false>::new(1, u64::MAX);
    assert_eq!(steps.iter().try_for_each(|step| world.step(step)), Ok(()));
}

/// Grows by `chunks` chunks and shrinks again. Returns how often the lent memory changed, from the second time on.
fn oscillate(chunks: usize) -> usize {
    let mut world = World::<false>::new(1, u64::MAX);
    let mut changes = 0;
    for round in 0..10 {
        let before = world.memory.lent();
        world.step(&Step::TopUp(0, chunks * 63)).unwrap();
        changes += usize::from(round > 0 && world.memory.lent() != before);
        world.step(&Step::Drain(0)).unwrap();
        world.step(&Step::Trim).unwrap();
    }
    world.step(&Step::Shrink).unwrap();
    changes
}

#[test]
fn a_pool_that_oscillates_within_its_reserve_does_not_call_the_host() {
    assert_eq!(oscillate(2 * KEPT), 0);
    assert_eq!(oscillate(2 * KEPT + 1), 9, "negative control: more than it keeps");
}

#[test]
fn pages_come_from_the_fullest_chunk_in_order_of_their_addresses() {
    let mut world = World::<false>::new(1, u64::MAX);
    // Two full chunks.
    world.step(&Step::TopUp(0, 126)).unwrap();
    (0..126).for_each(|_| world.step(&Step::Link(0)).unwrap());
    let (first, second) = world.linked.split_at(63);
    assert!(first.windows(2).all(|pair| pair[0].beside(1) == pair[1]), "neighbours");
    // Free 3 pages of the first chunk, and 60 of the second.
    let (mut few, mut many) = (NodeList::default(), NodeList::default());
    first[7..10].iter().rev().for_each(|&node| few.push(node));
    second[..60].iter().for_each(|&node| many.push(node));
    let expected: Vec<Node> = first[7..10].iter().chain(&second[..2]).copied().collect();
    world.pool.give_back(many);
    world.pool.give_back(few);
    world.pool.top_up(&world.memory, &mut world.caches[0], 5, || false).unwrap();
    let taken: Vec<_> = core::iter::from_fn(|| world.caches[0].take()).collect();
    assert_eq!(taken, expected, "the fuller chunk first");
}
