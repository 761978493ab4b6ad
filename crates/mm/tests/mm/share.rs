//! Tests of pages that forks share: they go to swap like others, are written once, come back shared, and are
//! charged once.

use crate::fixture::*;
use crate::swap::contents;
use crate::swap_device::Disk;
use crate::swap_race::{Act, Stage};
use slat::{Idle, PAGE_SIZE, Reason};
use slat_mm::*;
use std::sync::Arc;

const PAGES: u64 = 192;

/// An address space whose pages hardly compress, and `forks` forks of it, in a group without a limit.
struct Family {
    idle: Idle,
    arena: Arc<Arena>,
    swap: Arc<Swap>,
    group: Arc<Group>,
    all: Vec<Arc<AddressSpace>>,
}

impl Family {
    fn new(forks: usize, thp: bool) -> Self {
        let mut idle = Idle::take().unwrap();
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().device(Disk::new(), 16 << 20).read_ahead(1).build(&arena).unwrap();
        let group = Group::new(&arena, None).unwrap();
        let space = AddressSpace::builder(&arena).thp(thp).swap(&swap).group(&group).build().unwrap();
        space.mmap(Place::Fixed(at(0)), 2 << 20, Prot::ReadWrite, Backing::Anonymous).unwrap();
        (0..PAGES).for_each(|page| space.write(&mut idle, at(page), &contents(page, 64)).unwrap());
        let mut all = vec![space];
        (0..forks).for_each(|_| all.push(all[0].fork(&mut idle).unwrap()));
        Self { idle, arena, swap, group, all }
    }

    /// Returns the group's charges: anonymous pages in frames, copies, further references to copies, and frames in the
    /// swap cache.
    fn has(&self) -> (u64, u64, u64, u64) {
        let (stats, swap) = (self.group.stats(), self.swap.stats());
        (stats.anon / PAGE_SIZE, stats.swapped / PAGE_SIZE, swap.references, swap.cached)
    }

    fn read(&mut self, of: usize, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_SIZE as usize];
        self.all[of].read(&mut self.idle, at(page), &mut bytes).unwrap();
        bytes
    }

    fn reads_right(&mut self, of: usize) {
        for page in 0..PAGES {
            assert_eq!(self.read(of, page), contents(page, 64), "{of}, page {page}");
        }
    }

    /// Evicts all that can go from address space `of`.
    fn evict(&mut self, of: usize) {
        self.all[of].reclaim(&mut self.idle, PAGES);
    }

    /// Drops all of them. Every page must come back.
    fn end(self) {
        let Self { arena, swap, group, all, .. } = self;
        drop(all);
        let (swap, stats) = (swap.stats(), arena.stats());
        assert_eq!((swap.references, swap.cached, swap.file_bytes), (0, 0, 0));
        assert_eq!((group.charged(), group.stats().swapped), (0, 0));
        assert_eq!((stats.in_use, stats.tables, stats.stale_writes), (0, 0, 0));
    }
}

#[test]
fn a_page_that_forks_share_is_written_once_and_comes_back_shared() {
    for forks in [1, 2, 3] {
        let mut family = Family::new(forks, false);
        let entries = PAGES * (forks as u64 + 1);
        assert_eq!(family.has(), (PAGES, 0, 0, 0), "{forks} forks");
        family.evict(0);
        assert_eq!(family.has(), (0, PAGES, entries, 0), "{forks} forks: all entries point to the copy");
        assert_eq!(family.swap.stats().stored, PAGES, "each page is stored once");
        family.reads_right(0);
        assert_eq!(
            family.has(),
            (PAGES, PAGES, entries - PAGES, PAGES),
            "the other forks may share the frames"
        );
        (1..=forks).for_each(|fork| family.reads_right(fork));
        assert_eq!(family.has(), (PAGES, 0, 0, 0), "{forks} forks: the other forks share the frames");
        assert_eq!(family.swap.stats().loaded, PAGES, "each page is loaded once");
        family.end();
    }
}

#[test]
fn a_share_of_a_huge_page_goes_in_parts() {
    let mut family = Family::new(2, true);
    assert_eq!(family.has().0, 512);
    (0..3).for_each(|_| family.evict(0));
    let (anon, swapped, references, cached) = family.has();
    // The other pages are zero. They share one copy, which is not charged.
    assert_eq!((anon, swapped, references, cached), (0, PAGES, 3 * 512, 0));
    (0..3).for_each(|of| family.reads_right(of));
    family.end();
}

/// All that the group has is shared. It is more than twice the limit.
#[test]
fn forks_that_share_all_their_pages_live_under_half_of_them() {
    for (forks, seed) in [(2, 1), (3, 2), (3, 3)] {
        let mut family = Family::new(forks, false);
        let tables = family.group.stats().page_tables;
        let limit = tables + PAGES * PAGE_SIZE / 2 - (8 << 12);
        family.group.set_limit(Some(limit));
        // The limit applies from the next page that the group takes.
        family.evict(0);
        let mut held = vec![(0..PAGES).collect::<Vec<u64>>(); forks + 1];
        let mut random = fastrand::Rng::with_seed(seed);
        for step in 0..3000 {
            let (of, page) = (random.usize(..=forks), random.u64(..PAGES));
            assert_eq!(
                family.read(of, page),
                contents(held[of][page as usize], 64),
                "step {step}: {of}, {page}"
            );
            if random.u8(..8) == 0 {
                let next = PAGES + step;
                family.all[of].write(&mut family.idle, at(page), &contents(next, 64)).unwrap();
                held[of][page as usize] = next;
            }
            if step == 2000 {
                // One fork ends. Its copies still belong to the others.
                drop(family.all.pop());
                held.pop();
                family.all.push(family.all[0].fork(&mut family.idle).unwrap());
                held.push(held[0].clone());
            }
            let charged = family.group.charged();
            assert!(charged as f64 <= 1.02 * limit as f64, "step {step}: {charged} of {limit}");
            let all = family.arena.stats();
            assert_eq!(family.has().0, all.in_use - all.tables, "a frame is not charged");
        }
        family.group.set_limit(None);
        for (of, held) in held.iter().enumerate() {
            for (page, &held) in (0..).zip(held) {
                assert_eq!(family.read(of, page), contents(held, 64));
            }
        }
        family.end();
    }
}

/// A page stays with the fork that uses it. A fork that writes to it gets its own page, and the other fork
/// reads the old contents.
#[test]
fn a_fork_keeps_the_page_that_it_uses_and_writes_to_its_own() {
    let mut family = Family::new(1, false);
    family.reads_right(1);
    family.evict(0);
    assert_eq!(family.has(), (PAGES, PAGES, PAGES, PAGES), "in frames for the fork, in copies for the other");
    family.all[1].write(&mut family.idle, at(5), b"another").unwrap();
    family.reads_right(0);
    assert_eq!(&family.read(1, 5)[..7], b"another");
    assert_eq!(family.has(), (PAGES + 1, 0, 0, 0));
    assert_eq!(family.swap.stats().loaded, 0, "a page was read back");
    family.end();
}

/// Forks have their own settings. Each setting holds wherever the eviction began.
#[test]
fn a_fork_that_does_not_swap_or_keeps_young_pages_keeps_its_share() {
    let hour = std::time::Duration::from_secs(3600);
    let settings = |swappiness, min_ttl| LruSettings { swappiness, min_ttl, ..LruSettings::default() };
    let none = std::time::Duration::ZERO;
    for (kept, goes, set) in
        [(0, PAGES, settings(60, none)), (PAGES, 0, settings(0, none)), (PAGES, 0, settings(60, hour))]
    {
        let mut family = Family::new(1, false);
        family.all[1].lru().unwrap().set(set.clone());
        family.evict(0);
        assert_eq!(family.has(), (kept, PAGES, PAGES + goes, kept), "{set:?}");
        family.reads_right(1);
        family.end();
    }
}

/// Frames that entries reach through the cache leave with the last such entry, and not before.
#[test]
fn a_frame_that_only_the_cache_holds_is_freed_on_demand() {
    let mut family = Family::new(1, false);
    family.reads_right(1);
    family.evict(0);
    for page in 0..PAGES {
        family.all[1].write(&mut family.idle, at(page), b"another").unwrap();
    }
    assert_eq!(family.has(), (2 * PAGES, PAGES, PAGES, PAGES));
    family.all[1].reclaim(&mut family.idle, 1);
    assert_eq!(family.has(), (PAGES, PAGES, PAGES, 0));
    family.reads_right(0);
    family.end();
}

/// Another thread runs `act` while page 0 of a family of two is written to the device. Returns what that thread
/// saw.
fn on_its_way(act: Act) -> (Machine, Arc<AddressSpace>) {
    let stage = Arc::<Stage>::default();
    let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
    let swap = Swap::builder().device(stage.clone(), 1 << 20).build(&arena).unwrap();
    let mut machine = Machine::on(AddressSpace::builder(&arena).swap(&swap).lru(LruSettings::default()));
    machine.map(0, 1);
    machine.put(0, 3);
    let fork = machine.space.fork(&mut machine.idle).unwrap();
    *stage.space.lock() = Some(machine.space.clone());
    *stage.during_write.lock() = Some(act);
    machine.space.reclaim(&mut machine.idle, 1);
    assert!(stage.during_write.lock().is_none(), "the thread did not act");
    stage.ends();
    (machine, fork)
}

#[test]
fn no_other_thread_takes_a_share_that_is_being_stored() {
    let (mut machine, fork) = on_its_way(Box::new(|space, idle| {
        assert_eq!(get(space, idle, 0), 3, "the page is in use, and stays");
        let told = space.stats().notified(Reason::Reclaim);
        assert_eq!(space.reclaim(idle, 8), 0, "another thread evicts the page");
        assert_eq!(space.stats().notified(Reason::Reclaim), told, "its flush may still come");
    }));
    assert_eq!(machine.get(0), 3);
    assert_eq!(get(&fork, &mut machine.idle, 0), 3);
    drop(fork);
    assert!(machine.all_free());
}

/// The frame is stored while another process maps it. That process then writes to a copy.
#[test]
fn a_share_that_is_written_while_being_stored_is_stored_unchanged() {
    let (mut machine, fork) =
        on_its_way(Box::new(|space, idle| space.write(idle, at(0), &5u64.to_le_bytes()).unwrap()));
    assert_eq!((machine.get(0), get(&fork, &mut machine.idle, 0)), (5, 3));
    drop(fork);
    assert!(machine.all_free());
}
