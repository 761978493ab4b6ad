//! `map`: operations on a table without a VM against a list of mapped ranges.
//!
//! Ranges begin and end near the edges of tables and of the format. After each operation the entries around its range
//! must be those of the list, leaf by leaf. The memory for tables may run out: then a part from the range's start on has
//! changed, and nothing else.

use crate::Input;
use slat::map::{Map, Place, ReachError};
use slat::table::formats::{Arm64L48, Ept4, Ept4NoAd, Npt5, Pae, Sv39x4, Sv39x4NoAd};
use slat::table::{Heap, TableMemory, Version, Word};
use slat::{Access, Format, Gfn, Leaf, Level, MemoryType, Perms, Pfn, Span};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const STEPS: usize = 60;
/// Most pages that may be mapped by 4 KiB each.
const FEW: u64 = 1100;

/// Memory for tables that has so many chunks left.
#[derive(Debug)]
struct Chunks(AtomicU32);

// SAFETY: the functions of `Heap`, or no memory.
unsafe impl TableMemory for Chunks {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(7) {
        0 => World::<Ept4>::run(input),
        1 => World::<Npt5>::run(input),
        2 => World::<Pae>::run(input),
        3 => World::<Arm64L48>::run(input),
        4 => World::<Sv39x4>::run(input),
        5 => World::<Ept4NoAd>::run(input),
        _ => World::<Sv39x4NoAd>::run(input),
    }
}

/// The mapped ranges by their first page: their ends, and the leaf of the first page.
#[derive(Clone, Debug, Default)]
struct List(BTreeMap<u64, (u64, Leaf)>);

impl List {
    /// Divides the range around `page`, if it does not begin there.
    fn cut(&mut self, page: u64) {
        let Some((&start, &(end, leaf))) = self.0.range(..page).next_back() else { return };
        if page < end {
            self.0.insert(start, (page, leaf));
            self.0.insert(page, (end, part(leaf, page - start)));
        }
    }

    /// Unmaps pages. Returns the number of those that were mapped.
    fn unmap(&mut self, pages: Span<Gfn>) -> u64 {
        let (start, end) = (pages.start.0, pages.end.0);
        self.cut(start);
        self.cut(end);
        let inside: Vec<u64> = self.0.range(start..end.max(start)).map(|(&start, _)| start).collect();
        inside.into_iter().map(|start| self.0.remove(&start).unwrap().0 - start).sum()
    }

    /// Maps pages. Returns the number of those that were mapped.
    fn map(&mut self, pages: Span<Gfn>, leaf: Leaf) -> u64 {
        let before = self.unmap(pages);
        if !pages.is_empty() {
            self.0.insert(pages.start.0, (pages.end.0, leaf));
        }
        before
    }

    /// Maps pages to a leaf, or unmaps them.
    fn change(&mut self, pages: Span<Gfn>, leaf: Option<Leaf>) -> u64 {
        match leaf {
            Some(leaf) => self.map(pages, leaf),
            None => self.unmap(pages),
        }
    }

    fn set_accessed(&mut self, pages: Span<Gfn>, accessed: bool) {
        self.cut(pages.start.0);
        self.cut(pages.end.0);
        self.0.range_mut(pages.start.0..pages.end.0).for_each(|(_, (_, leaf))| leaf.accessed = accessed);
    }

    /// Returns the leaf of a page, and the end of its range.
    fn at(&self, page: u64) -> Option<(Leaf, u64)> {
        let (&start, &(end, leaf)) = self.0.range(..=page).next_back()?;
        (page < end).then(|| (part(leaf, page - start), end))
    }

    /// Returns the first mapped page from `page` on.
    fn next(&self, page: u64) -> Option<u64> {
        self.at(page).map(|_| page).or_else(|| self.0.range(page..).next().map(|(&start, _)| start))
    }
}

/// Returns the leaf of the page `pages` further on.
fn part(leaf: Leaf, pages: u64) -> Leaf {
    Leaf { pfn: leaf.pfn + pages, ..leaf }
}

struct World<F: Format> {
    map: Map<F, Chunks>,
    list: List,
}

impl<F: Format> World<F> {
    fn run(mut input: Input<'_>) {
        let chunks = input.pick(&[u32::MAX, 1, 2, 3]);
        let map = Map::new(Chunks(AtomicU32::new(chunks))).expect("one chunk for the root");
        let (mut world, loud) =
            (Self { map, list: List::default() }, std::env::var_os("SLAT_FUZZ_STEPS").is_some());
        for _ in 0..STEPS {
            if input.is_over() {
                break;
            }
            let pages = Self::range(&mut input);
            let step = world.step(&mut input, pages);
            if loud {
                eprintln!("{} {pages:?} {step}", F::NAME);
            }
            let (before, after) = (pages.start.0.saturating_sub(513), pages.end.0.saturating_add(513));
            world.compare(Span::new(Gfn(before), Gfn(after)));
        }
        world.compare(Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
    }

    /// Draws pages near the edges of tables, or at the end of the format.
    fn range(input: &mut Input<'_>) -> Span<Gfn> {
        let last = 1_u64 << F::FRAME_BITS;
        let base =
            input.pick(&[0, 1 << 18, 3 << 18, 1 << 27, last - 1024, last - (1 << 18)]).min(last - 1024);
        let start = base + input.pick(&[0, 512, 1, 511, 7]) + input.below(3) * 64;
        let len = match input.below(8) {
            0..3 => input.below(20),
            3..5 => 512,
            5 => 1 << 18,
            6 => input.below(FEW),
            // Past the end of the format.
            _ => input.pick(&[last, u64::MAX / 2]),
        };
        Span::sized(Gfn(start), len)
    }

    fn leaf(input: &mut Input<'_>, pages: Span<Gfn>) -> Leaf {
        let last = F::pfn(Word(F::ADDRESS)).0;
        let perms = input.pick(&[Perms::RWX, Perms::RX, Perms::READ, Perms::of(true, true, false)]);
        let accessed = input.flag();
        // Congruent with the pages modulo the largest page that is drawn.
        let aligned = (1 << 30) + (pages.start.0 & ((1 << 18) - 1));
        let pfn = match input.below(8) {
            0..5 => aligned,
            5 => aligned + 512,
            6 => 1 + input.below(5000),
            _ => input.pick(&[last, last.saturating_sub(pages.len()), last + 1, u64::MAX]),
        };
        // Ranges that are not congruent are mapped by 4 KiB.
        let pfn = if pages.len() > FEW && pfn <= last && pfn != aligned { aligned } else { pfn };
        let dirty = accessed && perms.allows(Access::Write) && input.flag();
        let memory = MemoryType::WriteBack;
        let leaf = Leaf { pfn: Pfn(0), perms, memory, host_writable: input.flag(), accessed, dirty };
        // As the format has it: without A and D, a leaf that is accessed and writable is dirty.
        let leaf = F::leaf(&leaf, Level::K4).leaf::<F>(Level::K4).expect("a leaf");
        assert_eq!((leaf.perms, leaf.accessed), (perms, accessed), "{}", F::NAME);
        Leaf { pfn: Pfn(pfn), ..leaf }
    }

    /// Runs one operation on the map and on the list. Returns its name.
    fn step(&mut self, input: &mut Input<'_>, pages: Span<Gfn>) -> &'static str {
        match input.below(10) {
            0..4 => {
                let leaf = Self::leaf(input, pages);
                self.changes(pages, self.map.map(pages, &leaf), Some(leaf));
                "map"
            }
            4..6 => {
                self.changes(pages, self.map.unmap(pages), None);
                "unmap"
            }
            6 => {
                self.age(pages);
                "age"
            }
            7 => {
                self.store(input, pages.start);
                "store"
            }
            8 => {
                if let Some(place) = self.map.find(pages.start).filter(|_| F::HARDWARE_AD) {
                    let word = place.load();
                    if place.leaf().is_some_and(|leaf| !leaf.accessed) {
                        assert!(place.accessed(word), "no other thread edits");
                        self.list.set_accessed(around(pages.start, place.level()), true);
                    }
                }
                "access"
            }
            _ => {
                self.split(pages.start);
                "split"
            }
        }
    }

    /// Makes the change in the list, too, and compares the answers.
    fn changes(&mut self, pages: Span<Gfn>, answer: Result<u64, ReachError>, leaf: Option<Leaf>) {
        let mut list = self.list.clone();
        let beyond = (pages.end.0 > 1 << F::FRAME_BITS).then_some(ReachError::Beyond(F::FRAME_BITS));
        let last = F::pfn(Word(F::ADDRESS));
        let frame =
            leaf.is_some_and(|leaf| leaf.pfn > last || pages.len().saturating_sub(1) > last.0 - leaf.pfn.0);
        if let Some(error) = beyond.or(frame.then_some(ReachError::Frame(last))) {
            assert_eq!(answer, Err(error));
            return;
        }
        let before = list.change(pages, leaf);
        match answer {
            Ok(answer) => assert_eq!(answer, before, "pages that were mapped"),
            Err(error) => {
                assert_eq!(error, ReachError::NoMemory);
                assert_ne!(self.map.table_bytes(), 0);
                // A part from the start on is done: up to the first page that is not as it should be.
                let done = self.wrong(&list, pages).unwrap_or(pages.end);
                list = self.list.clone();
                let pages = Span::new(pages.start, done);
                list.change(pages, leaf);
            }
        }
        self.list = list;
    }

    /// Stores a leaf of one entry, or a hole, at the smallest size that can be reached.
    fn store(&mut self, input: &mut Input<'_>, page: Gfn) {
        let level = input.pick(&[Level::K4, Level::M2]);
        let Ok(mut reserve) = self.map.reserve(usize::from(F::LEVELS)) else { return };
        let Ok(place) = self.map.reach_with(page, level, &mut reserve) else {
            assert!(page.0 >> F::FRAME_BITS != 0, "the reserve has a page for each level");
            return;
        };
        drop(reserve);
        let pages = around(page, place.level());
        if place.level() > level {
            assert!(place.leaf().is_some(), "a larger leaf is in the way");
            return;
        }
        if input.flag() {
            let leaf = Leaf { pfn: Pfn(input.below(64) * 512), ..Self::leaf(input, pages) };
            place.store(F::leaf(&leaf, place.level()));
            self.list.map(pages, leaf);
        } else {
            place.store(Word::hole(Version::default()));
            self.list.unmap(pages);
        }
    }

    /// Splits the large leaf of a page, which changes no mapping.
    fn split(&self, page: Gfn) {
        let Some(place) = self.map.find(page).filter(|place| place.level() > Level::K4) else { return };
        let (word, below) = (place.load(), place.level().down());
        let Some(large) = place.leaf() else { return };
        let child = |index: u64| F::leaf(&part(large, index * below.pages()), below);
        if let Ok(done) = place.split(word, child) {
            assert!(done, "no other thread edits");
            assert_eq!(self.map.find(page).map(|place| place.level()), Some(below));
        }
    }

    /// Ages pages: each leaf with a page of the range is reported once, clamped to the range, and is not accessed
    /// afterwards.
    fn age(&mut self, pages: Span<Gfn>) {
        let (mut expected, mut leaves) = (Vec::new(), Vec::new());
        self.map.for_each(pages, |of, place| {
            if place.leaf().is_some_and(|leaf| leaf.accessed) {
                let of = of.clamp(&pages);
                expected.push((of.start.0, of.end.0));
                leaves.push(around(of.start, place.level()));
            }
        });
        let mut seen: Vec<(u64, u64)> = Vec::new();
        self.map.age(pages, |accessed| {
            for page in accessed.pages() {
                match seen.last_mut() {
                    Some(last) if last.1 == page.0 => last.1 += 1,
                    _ => seen.push((page.0, page.0 + 1)),
                }
            }
        });
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (start, end) in expected {
            match joined.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => joined.push((start, end)),
            }
        }
        assert_eq!(seen, joined, "accessed pages");
        for pages in leaves {
            self.list.set_accessed(pages, false);
        }
    }

    /// Compares the entries of `pages` with the list.
    fn compare(&self, pages: Span<Gfn>) {
        let wrong = self.wrong(&self.list, pages);
        let place = wrong.and_then(|page| self.map.find(page)).and_then(|place| place.leaf());
        assert_eq!(wrong, None, "{}: {place:?}, not {:?}", F::NAME, wrong.map(|page| self.list.at(page.0)));
    }

    /// Returns the first of `pages` that is not mapped as in the list.
    fn wrong(&self, list: &List, pages: Span<Gfn>) -> Option<Gfn> {
        let pages = pages.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        let (mut wrong, mut next) = (None, pages.start);
        self.map.for_each(pages, |of, place| {
            let whole = around(of.start, place.level());
            let part = of.clamp(&pages);
            assert_eq!((part.start, whole.covers(&part)), (next, true), "in order, without gaps");
            next = part.end;
            wrong = wrong.or_else(|| Self::wrong_in(list, part, (whole, place)));
        });
        assert_eq!(next, pages.end.max(pages.start), "to the end");
        wrong
    }

    /// Returns the first of `pages`, of one entry, that is not mapped as in the list.
    fn wrong_in(
        list: &List,
        pages: Span<Gfn>,
        (whole, place): (Span<Gfn>, Place<'_, F, Chunks>),
    ) -> Option<Gfn> {
        let Some(leaf) = place.leaf() else {
            return list.next(pages.start.0).filter(|&page| page < pages.end.0).map(Gfn);
        };
        let mut at = pages.start.0;
        while at < pages.end.0 {
            let Some((listed, end)) = list.at(at) else { return Some(Gfn(at)) };
            // As an entry of this size would say it.
            let first = Leaf { pfn: Pfn(listed.pfn.0.wrapping_sub(at - whole.start.0)), ..listed };
            if F::leaf(&first, place.level()).leaf::<F>(place.level()) != Some(leaf) || first.pfn != leaf.pfn
            {
                return Some(Gfn(at));
            }
            at = end;
        }
        None
    }
}

/// Returns the pages of the entry of this size around `page`.
fn around(page: Gfn, level: Level) -> Span<Gfn> {
    Span::sized(page.base(level), level.pages())
}
