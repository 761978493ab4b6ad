//! A copy of a memory that is kept up to date by soft-dirty pages alone, beside random changes of the mappings and of the
//! contents. A model knows what each page must read as; reading the memory itself would fill its entries.

use crate::fixture::*;
use slat::{PAGE_SIZE, Span};
use slat_mm::{AddressSpace, Arena, Backing, File, Place, Prot, Swap};
use std::sync::Arc;

/// Pages of the range that changes.
const PAGES: u64 = 24;
const FILE: u64 = 16;

/// The contents that a page must read as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reads {
    Anonymous(u64),
    /// This page of the file.
    Shared(u64),
    /// This page of the file, or what was written to the private page.
    Private(u64, Option<u64>),
}

struct World {
    machine: Machine,
    file: Arc<File>,
    file_holds: Vec<u64>,
    reads: Vec<Option<Reads>>,
    copy: Vec<u64>,
    random: u64,
    value: u64,
    /// Negative control: the copy is told what was written only, and not of changes of the mappings.
    writes_only: bool,
    written: Vec<bool>,
}

impl World {
    fn new(seed: u64, writes_only: bool) -> Self {
        let (machine, _swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
        let file_holds: Vec<u64> = (0..FILE).map(|page| 1000 + page).collect();
        let page = |value: &u64| [value.to_le_bytes().to_vec(), vec![0; PAGE_SIZE as usize - 8]].concat();
        let file = File::with_contents(machine.space.arena(), file_holds.iter().flat_map(page).collect());
        let (reads, copy) = (vec![None; PAGES as usize], vec![0; PAGES as usize]);
        let written = vec![false; PAGES as usize];
        Self { machine, file, file_holds, reads, copy, random: seed, value: 1 << 20, writes_only, written }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    /// A few pages, mapped or not.
    fn some(&mut self) -> std::ops::Range<u64> {
        let len = 1 + self.below(5);
        let first = self.below(PAGES - len + 1);
        first..first + len
    }

    fn is_mapped(&self, page: u64) -> bool {
        self.reads[page as usize].is_some()
    }

    fn expected(&self, page: u64) -> Option<u64> {
        Some(match self.reads[page as usize]? {
            Reads::Anonymous(value) | Reads::Private(_, Some(value)) => value,
            Reads::Shared(index) | Reads::Private(index, None) => self.file_holds[index as usize],
        })
    }

    fn put(&mut self, page: u64) {
        // The file's pages are written through one mapping at most: writes through another one are not noticed.
        let shared =
            |reads: &Option<Reads>| matches!(reads, Some(Reads::Shared(_) | Reads::Private(_, None)));
        let others = self.reads.iter().filter(|reads| shared(reads)).count();
        self.value += 1;
        let value = self.value;
        match &mut self.reads[page as usize] {
            Some(Reads::Shared(index)) if others == 1 => self.file_holds[*index as usize] = value,
            None | Some(Reads::Shared(_)) => return,
            Some(Reads::Anonymous(old)) => *old = value,
            Some(Reads::Private(_, old)) => *old = Some(value),
        }
        self.machine.put(page, value);
        self.written[page as usize] = true;
    }

    fn drop_contents(&mut self, page: u64) {
        match &mut self.reads[page as usize] {
            Some(Reads::Anonymous(value)) => *value = 0,
            Some(Reads::Private(_, value)) => *value = None,
            _ => {}
        }
    }

    fn map(&mut self, some: std::ops::Range<u64>) {
        let (kind, offset) = (self.below(4), self.below(FILE - 8));
        let (file, bytes) = (self.file.clone(), offset * PAGE_SIZE);
        let backing = match kind {
            0 => Backing::Shared { file, offset: bytes },
            1 => Backing::Private { file, offset: bytes },
            _ => Backing::Anonymous,
        };
        let len = (some.end - some.start) * PAGE_SIZE;
        let place = Place::Fixed(at(some.start));
        if self.machine.space.mmap(place, len, Prot::ReadWrite, backing).is_ok() {
            for page in some.clone() {
                let index = offset + page - some.start;
                self.reads[page as usize] = Some(match kind {
                    0 => Reads::Shared(index),
                    1 => Reads::Private(index, None),
                    _ => Reads::Anonymous(0),
                });
            }
        }
    }

    fn remap(&mut self, some: std::ops::Range<u64>) {
        let (old, len, to) = (some.end - some.start, 1 + self.below(6), self.below(PAGES - 6));
        let place = if self.below(2) == 0 { Place::Anywhere } else { Place::Fixed(at(to)) };
        let (space, idle) = (&self.machine.space, &mut self.machine.idle);
        let Ok(new) = space.mremap(idle, pages(some.start, old), len * PAGE_SIZE, place) else { return };
        let was: Vec<Option<Reads>> = some.clone().map(|page| self.reads[page as usize].take()).collect();
        let first = new.start.0.wrapping_sub(at(0).0) / PAGE_SIZE;
        if first + len > PAGES {
            // It grew out of the range, or moved far away.
            space.munmap(idle, Span::sized(new.start, len * PAGE_SIZE)).unwrap();
            return;
        }
        for nth in 0..len {
            let last = was[was.len() - 1];
            let more = nth.saturating_sub(old - 1);
            // A mapping that grows over the file's end has pages that cannot be read: none does, by `map`'s offsets.
            let reads = was.get(nth as usize).copied().unwrap_or(match last {
                Some(Reads::Anonymous(_)) => Some(Reads::Anonymous(0)),
                Some(Reads::Shared(index)) => Some(Reads::Shared(index + more)),
                Some(Reads::Private(index, _)) => Some(Reads::Private(index + more, None)),
                None => None,
            });
            self.reads[(first + nth) as usize] = reads;
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let some = self.some();
        let span = pages(some.start, some.end - some.start);
        let page = some.start;
        match self.below(16) {
            0..3 => some.for_each(|page| self.put(page)),
            3 if self.is_mapped(page) => assert_eq!(Some(self.machine.get(page)), self.expected(page)),
            4 => {
                self.machine.space.munmap(&mut self.machine.idle, span).unwrap();
                some.for_each(|page| self.reads[page as usize] = None);
            }
            5 | 6 => self.map(some),
            7 => {
                self.machine.space.dontneed(&mut self.machine.idle, span).unwrap();
                some.for_each(|page| self.drop_contents(page));
            }
            8 => {
                self.machine.space.reap(&mut self.machine.idle, span).unwrap();
                for reads in &mut self.reads[some.start as usize..some.end as usize] {
                    if matches!(reads, Some(Reads::Anonymous(_))) {
                        *reads = Some(Reads::Anonymous(0));
                    }
                }
            }
            9 => self.remap(some),
            10 => {
                self.machine.page_out(some.start, some.end - some.start);
            }
            11 => {
                let child = self.machine.space.fork(&mut self.machine.idle).unwrap();
                self.put(page);
                if self.is_mapped(page) && !matches!(self.reads[page as usize], Some(Reads::Shared(_))) {
                    child.write(&mut self.machine.idle, at(page), &[7; 8]).unwrap();
                }
            }
            12 => drop(self.machine.space.migrate(&mut self.machine.idle, span)),
            13 if some.clone().all(|page| self.is_mapped(page)) => {
                for prot in [Prot::None, Prot::ReadWrite] {
                    self.machine.space.mprotect(&mut self.machine.idle, span, prot).unwrap();
                }
            }
            _ => return self.collect(),
        }
        Ok(())
    }

    /// Brings the copy up to date, and compares a part or all of it.
    fn collect(&mut self) -> Result<(), String> {
        let range = if self.below(3) == 0 { self.some() } else { 0..PAGES };
        let span = pages(range.start, range.end - range.start);
        let (space, idle): (&AddressSpace, _) = (&self.machine.space, &mut self.machine.idle);
        let told = if self.random.is_multiple_of(2) {
            space.take_soft_dirty(idle, span).unwrap()
        } else {
            let told = space.soft_dirty(span).unwrap();
            space.clear_soft_dirty(idle, span).unwrap();
            told
        };
        for page in range.clone() {
            let told = told.iter().any(|span| span.contains(at(page)));
            if if self.writes_only { std::mem::take(&mut self.written[page as usize]) } else { told } {
                self.copy[page as usize] = get(space, idle, page);
            }
        }
        for page in range {
            let (copied, expected) = (self.copy[page as usize], self.expected(page));
            if expected.is_some_and(|expected| expected != copied) {
                return Err(format!(
                    "page {page} reads as {expected:?}, its copy as {copied}; told {told:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Runs worlds of some hundred steps; returns the first difference.
fn worlds(seeds: u64, writes_only: bool) -> Option<String> {
    (0..seeds).find_map(|seed| {
        let mut world = World::new(seed, writes_only);
        let wrong = (0..250).find_map(|_| world.step().err());
        wrong.map(|wrong| format!("seed {seed}: {wrong}"))
    })
}

#[test]
fn a_copy_by_soft_dirty_pages_stays_equal() {
    assert_eq!(worlds(60, false), None);
}

#[test]
fn negative_control_a_copy_by_writes_alone_is_stale() {
    assert!(worlds(20, true).is_some());
}

/// A file's pages are contents without a write, also at the first question.
#[test]
fn a_file_is_told_before_it_is_read() {
    let arena = Arena::builder().limit(8 << 20).build().unwrap();
    let space = AddressSpace::builder(&arena).build().unwrap();
    let file = File::with_contents(&arena, vec![7; 4 * PAGE_SIZE as usize]);
    let backing = Backing::Private { file, offset: 0 };
    let memory = space.mmap(Place::Fixed(at(0)), 4 * PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
    assert_eq!(space.soft_dirty(memory).unwrap(), [memory]);
}
