//! Tests of a merge while a thread writes to the merged page. No write may be lost, and no other page may show
//! it. The first tests stop at each moment of a merge by hand, the later ones use threads.

use crate::fixture::{BASE, at, get, pages};
use parking_lot::Mutex;
use slat::{Access, Again, Event, Hva, Idle, PAGE_SIZE, Pages, Reason, SecondaryMmu};
use slat_mm::{AddressSpace, Advice, Arena, Backing, Ksm, Place, Prot};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Barrier};
use std::thread;

fn space(arena: &Arc<Arena>, idle: &mut Idle, count: u64) -> Arc<AddressSpace> {
    let space = AddressSpace::builder(arena).build().unwrap();
    let memory =
        space.mmap(Place::Fixed(BASE), count * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    space.madvise(idle, memory, Advice::Mergeable).unwrap();
    space
}

fn put(space: &AddressSpace, idle: &mut Idle, page: u64, value: u64) {
    space.write(idle, at(page), &value.to_le_bytes()).unwrap();
}

/// A device with a writable translation of one page. The device uses the translation once, at the last moment:
/// just before a change of that page begins. It still has every translation that no notification withdrew.
struct LastMoment {
    space: Arc<AddressSpace>,
    hva: Hva,
    when: Reason,
    wrote: AtomicBool,
}

impl SecondaryMmu for LastMoment {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let mapped = self.space.lookup(self.hva, Access::Write).filter(|page| page.writable);
        if event.why == self.when
            && event.hvas.contains(self.hva)
            && let Some(page) = mapped
        {
            let frame = self.space.arena().frame(page.pfn);
            // SAFETY: the frame is mapped writable, and no invalidation of it has begun.
            unsafe { frame.cast::<[u8; 8]>().write(9u64.to_le_bytes()) };
            self.wrote.store(true, Relaxed);
        }
        change(idle, &mut slat::notify::NoPages);
        Ok(())
    }
}

/// Merges two pages. Meanwhile a device writes to the `page`-th of them at the last moment before `when`.
/// Returns whether the device could write, and what the pages hold then.
fn with_last_moment(page: u64, when: Reason) -> (bool, [u64; 2]) {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(16 << 20).poison(0xdd).build().unwrap();
    let space = space(&arena, &mut idle, 2);
    (0..2).for_each(|page| put(&space, &mut idle, page, 5));
    let ksm = Ksm::builder(&arena).build().unwrap();
    ksm.add(&space).unwrap();
    ksm.scan(&mut idle, u64::MAX);
    let device = LastMoment { space: space.clone(), hva: at(page), when, wrote: AtomicBool::new(false) };
    let device = Arc::new(device);
    space.register(&device);
    ksm.scan(&mut idle, u64::MAX);
    let held = [0, 1].map(|page| get(&space, &mut idle, page));
    let wrote = device.wrote.load(Relaxed);
    drop((ksm, device, space));
    assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (0, 0));
    (wrote, held)
}

#[test]
fn a_write_at_the_last_moment_is_kept() {
    for page in [0, 1] {
        let mut expect = [5, 5];
        expect[page as usize] = 9;
        assert_eq!(with_last_moment(page, Reason::WriteProtect), (true, expect));
        let late = with_last_moment(page, Reason::ChangePte);
        assert_eq!(late, (false, [5, 5]), "write-protected: no vCPU may write now");
    }
}

const PAGES: u64 = 64;
/// Few different contents, so that many pages are equal.
const VALUES: u64 = 3;

/// Threads write to their own pages in two address spaces, and check what they wrote before. Meanwhile a
/// scanner makes `merges` merges. Returns how often a thread found something else. The first such find
/// ends the race.
fn race(merges: u64) -> u64 {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(32 << 20).poison(0xdd).build().unwrap();
    let ksm = Ksm::builder(&arena).max_page_sharing(8).use_zero_pages(true).build().unwrap();
    let spaces = [space(&arena, &mut idle, PAGES), space(&arena, &mut idle, PAGES)];
    for space in &spaces {
        ksm.add(space).unwrap();
    }
    let (wrong, over, line) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(3));
    let enough = || over.load(Acquire) || wrong.load(Relaxed) > 0;
    thread::scope(|scope| {
        for (space, seed) in spaces.iter().zip(1..) {
            let (wrong, enough, line) = (&wrong, &enough, &line);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut idle = Idle::take().unwrap();
                let mut expect = [0; PAGES as usize];
                line.wait();
                while !enough() {
                    let (page, value) = (random.u64(..PAGES), random.u64(..VALUES));
                    if get(space, &mut idle, page) != expect[page as usize] {
                        wrong.fetch_add(1, Relaxed);
                    }
                    // Most pages keep their contents for a while, so that KSM takes them as candidates.
                    if page < PAGES / 4 {
                        put(space, &mut idle, page, value);
                        expect[page as usize] = value;
                    }
                }
                let lost =
                    (0..PAGES).filter(|&page| get(space, &mut idle, page) != expect[page as usize]).count();
                wrong.fetch_add(lost as u64, Relaxed);
            });
        }
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            line.wait();
            while ksm.stats().merges < merges && !enough() {
                ksm.scan(&mut idle, u64::MAX);
            }
            over.store(true, Release);
        });
    });
    drop((ksm, spaces));
    assert_eq!(arena.stats().in_use, 0);
    wrong.into_inner() + arena.stats().stale_writes
}

#[test]
fn writers_beside_the_scanner_lose_nothing() {
    assert_eq!(race(3_000), 0);
}

/// Forks, migration, drops, protection and advice run beside the scanner.
#[test]
fn merging_beside_all_other_changes_keeps_contents() {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
    let ksm = Ksm::builder(&arena).max_page_sharing(4).use_zero_pages(true).build().unwrap();
    let space = space(&arena, &mut idle, PAGES);
    ksm.add(&space).unwrap();
    let over = AtomicBool::new(false);
    let children = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            while !over.load(Acquire) {
                ksm.scan(&mut idle, u64::MAX);
            }
        });
        let mut expect = [0; PAGES as usize];
        for round in 0_u64.. {
            if round > 2_000 && ksm.stats().merges > 500 {
                break;
            }
            let (page, value) = (round * 37 % PAGES, round * 7 % VALUES);
            put(&space, &mut idle, page, value);
            expect[page as usize] = value;
            let range = pages(page, (1 + round % 9).min(PAGES - page));
            match round % 8 {
                0 => drop(space.migrate(&mut idle, range).unwrap()),
                1 => {
                    space.mprotect(&mut idle, range, Prot::Read).unwrap();
                    space.mprotect(&mut idle, range, Prot::ReadWrite).unwrap();
                }
                2 => space.madvise(&mut idle, range, Advice::Unmergeable).unwrap(),
                3 => space.madvise(&mut idle, pages(0, PAGES), Advice::Mergeable).unwrap(),
                4 => {
                    space.dontneed(&mut idle, pages(page, 1)).unwrap();
                    expect[page as usize] = 0;
                }
                5 if round % 16 == 5 => {
                    let child = space.fork(&mut idle).unwrap();
                    ksm.add(&child).unwrap();
                    let mut children = children.lock();
                    children.push((child, expect));
                    if children.len() > 3 {
                        let (child, expect) = children.remove(0);
                        let found = |page| get(&child, &mut idle, page);
                        assert_eq!((0..PAGES).map(found).collect::<Vec<_>>(), expect, "round {round}");
                    }
                }
                _ => {}
            }
            let check = round * 11 % PAGES;
            assert_eq!(get(&space, &mut idle, check), expect[check as usize], "round {round}, page {check}");
        }
        over.store(true, Release);
    });
    drop((children, ksm, space));
    assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (0, 0));
}
