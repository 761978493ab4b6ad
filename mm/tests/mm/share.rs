//! Pages that forks share: they go to swap as others do, are written once, come back shared, and are charged once.

use crate::fixture::*;
use crate::swap::contents;
use crate::swap_device::Disk;
use crate::swap_race::{Act, Stage};
use slat::{Idle, PAGE_SIZE, Why};
use slat_mm::*;
use std::sync::Arc;

const PAGES: u64 = 192;

/// An address space with pages that compress to nothing of use, and so many forks of it, in a group without a limit.
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

    /// Anonymous pages in frames, and copies, that the group has; references to copies; frames in the swap cache.
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

    /// Whatever can go from address space `of`, goes.
    fn evict(&mut self, of: usize) {
        self.all[of].reclaim(&mut self.idle, PAGES);
    }

    /// All go, and everything is given back.
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
        assert_eq!(family.has(), (0, PAGES, entries, 0), "{forks} forks: all entries say the copy");
        assert_eq!(family.swap.stats().stored, PAGES, "each once");
        family.reads_right(0);
        assert_eq!(family.has(), (PAGES, PAGES, entries - PAGES, PAGES), "the others would share the frames");
        (1..=forks).for_each(|fork| family.reads_right(fork));
        assert_eq!(family.has(), (PAGES, 0, 0, 0), "{forks} forks: they do");
        assert_eq!(family.swap.stats().loaded, PAGES, "each once");
        family.end();
    }
}

#[test]
fn a_share_of_a_huge_page_goes_in_parts() {
    let mut family = Family::new(2, true);
    assert_eq!(family.has().0, 512);
    (0..3).for_each(|_| family.evict(0));
    let (anon, swapped, references, cached) = family.has();
    // The rest is of zeroes, of which there is one copy that counts for none.
    assert_eq!((anon, swapped, references, cached), (0, PAGES, 3 * 512, 0));
    (0..3).for_each(|of| family.reads_right(of));
    family.end();
}

/// A world that stood still: all that the group has is shared, and is more than twice its limit.
#[test]
fn forks_that_share_all_their_pages_live_under_half_of_them() {
    for (forks, seed) in [(2, 1), (3, 2), (3, 3)] {
        let mut family = Family::new(forks, false);
        let tables = family.group.stats().page_tables;
        let limit = tables + PAGES * PAGE_SIZE / 2 - (8 << 12);
        family.group.set_limit(Some(limit));
        // A limit counts from the next page on that is taken.
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
                // One ends; its copies are the others' yet.
                drop(family.all.pop());
                held.pop();
                family.all.push(family.all[0].fork(&mut family.idle).unwrap());
                held.push(held[0].clone());
            }
            let charged = family.group.charged();
            assert!(charged as f64 <= 1.02 * limit as f64, "step {step}: {charged} of {limit}");
            let all = family.arena.stats();
            assert_eq!(family.has().0, all.in_use - all.tables, "each frame is charged");
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

/// What one has in use stays there. Who writes to it gets a page of its own, and the other reads what was there.
#[test]
fn a_page_that_a_fork_uses_stays_with_it_and_is_written_by_it_alone() {
    let mut family = Family::new(1, false);
    family.reads_right(1);
    family.evict(0);
    assert_eq!(family.has(), (PAGES, PAGES, PAGES, PAGES), "in frames for the fork, in copies for the other");
    family.all[1].write(&mut family.idle, at(5), b"another").unwrap();
    family.reads_right(0);
    assert_eq!(&family.read(1, 5)[..7], b"another");
    assert_eq!(family.has(), (PAGES + 1, 0, 0, 0));
    assert_eq!(family.swap.stats().loaded, 0, "nothing was read back");
    family.end();
}

/// Forks have settings of their own: what they promise holds wherever the eviction began.
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

/// Frames that entries said by way of the cache go when the last of these does, and not before.
#[test]
fn a_frame_that_only_the_cache_has_goes_to_who_needs_room() {
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

/// `act` is done by another thread while page 0 of a family of two is written to the device; what that thread saw.
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
    assert!(stage.during_write.lock().is_none(), "it has acted");
    stage.space.lock().take();
    (machine, fork)
}

#[test]
fn a_share_on_its_way_is_taken_by_no_other_thread() {
    let (mut machine, fork) = on_its_way(Box::new(|space, idle| {
        assert_eq!(get(space, idle, 0), 3, "it is wanted, and stays");
        let told = space.stats().notified(Why::Reclaim);
        assert_eq!(space.reclaim(idle, 8), 0, "another thread has it in hand");
        assert_eq!(space.stats().notified(Why::Reclaim), told, "and its flush may be to come");
    }));
    assert_eq!(machine.get(0), 3);
    assert_eq!(get(&fork, &mut machine.idle, 0), 3);
    drop(fork);
    assert!(machine.all_free());
}

/// The frame is stored while another maps it: that one writes to a copy.
#[test]
fn a_share_that_is_written_on_its_way_is_stored_as_it_was() {
    let (mut machine, fork) =
        on_its_way(Box::new(|space, idle| space.write(idle, at(0), &5u64.to_le_bytes()).unwrap()));
    assert_eq!((machine.get(0), get(&fork, &mut machine.idle, 0)), (5, 3));
    drop(fork);
    assert!(machine.all_free());
}
