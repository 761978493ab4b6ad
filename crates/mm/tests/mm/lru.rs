//! Tests of the LRU of an address space: generations, the pages that are evicted or stay, and the limit.

use crate::fixture::{at, get, pages};
use slat::{Hva, Idle, PAGE_SIZE, Span};
use slat_mm::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An address space with an LRU and swap, and no secondary MMU.
struct Machine {
    idle: Idle,
    arena: Arc<Arena>,
    swap: Arc<Swap>,
    space: Arc<AddressSpace>,
    /// The evicted pages, in order.
    evicted: Arc<Mutex<Vec<Hva>>>,
}

const NODE: Node = Node(0);

impl Machine {
    fn new() -> Self {
        Self::with(|builder| builder.lru(LruSettings::default()))
    }

    fn with(build: impl FnOnce(AddressSpaceBuilder) -> AddressSpaceBuilder) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().memory(16 << 20).build(&arena).unwrap();
        let space = build(AddressSpace::builder(&arena).swap(&swap)).build().unwrap();
        let evicted = Arc::new(Mutex::default());
        if let Some(lru) = space.lru() {
            let to: Arc<Mutex<Vec<Hva>>> = evicted.clone();
            lru.on_evict(Box::new(move |hva| to.lock().unwrap().push(hva)));
        }
        Self { idle: Idle::take().unwrap(), arena, swap, space, evicted }
    }

    fn lru(&self) -> &Lru {
        self.space.lru().unwrap()
    }

    /// Maps anonymous memory, and writes its own number into each page.
    fn map(&mut self, first: u64, count: u64) {
        let len = count * PAGE_SIZE;
        self.space.mmap(Place::Fixed(at(first)), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
        (first..first + count).for_each(|page| self.put(page, page));
    }

    fn put(&mut self, page: u64, value: u64) {
        self.space.write(&mut self.idle, at(page), &value.to_le_bytes()).unwrap();
    }

    fn get(&mut self, page: u64) -> u64 {
        get(&self.space, &mut self.idle, page)
    }

    /// Reads the pages.
    fn touch(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            self.get(page);
        }
    }

    fn max_seq(&self) -> u64 {
        self.lru().generations()[0].generations.last().unwrap().seq
    }

    /// Makes one aging pass over everything.
    fn age(&mut self) {
        let max = self.max_seq();
        assert_eq!(self.space.age(&mut self.idle, NODE, max, true, true), Ok(true));
    }

    fn evict(&mut self, min_seq: u64) -> u64 {
        self.space.evict(&mut self.idle, NODE, min_seq, None, None).unwrap()
    }

    /// The number and the anonymous pages of each generation.
    fn anon(&self) -> Vec<(u64, u64)> {
        self.lru().generations()[0].generations.iter().map(|found| (found.seq, found.anon)).collect()
    }

    fn total(&self) -> u64 {
        self.lru().generations()[0].generations.iter().map(|found| found.anon + found.file).sum()
    }

    fn is_there(&self, page: u64) -> bool {
        self.space.lookup(at(page), slat::Access::Read).is_some()
    }

    /// The pages evicted since the last call.
    fn evicted(&self) -> Vec<u64> {
        std::mem::take(&mut *self.evicted.lock().unwrap())
            .iter()
            .map(|hva| (hva.0 - at(0).0) / PAGE_SIZE)
            .collect()
    }

    /// Drops the address space. Returns whether every frame came back unharmed.
    fn all_free(self) -> bool {
        let Self { arena, swap, space, .. } = self;
        drop(space);
        let references = swap.stats().references;
        drop(swap);
        let stats = arena.stats();
        references == 0 && stats.in_use == 0 && stats.tables == 0 && stats.stale_writes == 0
    }
}

#[test]
fn each_page_tells_its_generation() {
    let mut machine = Machine::new();
    for page in [0, 3, 700] {
        machine.map(page, 1);
    }
    machine.age();
    machine.touch([3]);
    machine.age();
    let told = |machine: &Machine, pages: u64| {
        let mut told = Vec::new();
        let hvas = Span::new(at(0), at(pages));
        machine.lru().for_each_page(hvas, |hva, seq| told.push(((hva.0 - at(0).0) / PAGE_SIZE, seq)));
        told
    };
    let max = machine.max_seq();
    let all = told(&machine, 1024);
    assert_eq!(all.iter().map(|(page, _)| *page).collect::<Vec<_>>(), [0, 3, 700]);
    assert!(all[0].1 == all[2].1 && all[0].1 < all[1].1 && all[1].1 <= max, "{all:?}, {max}");
    for (seq, pages) in machine.anon() {
        assert_eq!(all.iter().filter(|(_, of)| *of == seq).count() as u64, pages);
    }
    assert_eq!(told(&machine, 700), all[..2], "no page past the end");
}

#[test]
fn a_pass_tells_pages_that_were_used_from_those_that_were_not() {
    let mut machine = Machine::new();
    machine.map(0, 1024);
    assert_eq!(machine.anon().last(), Some(&(3, 1024)), "faults put pages into the youngest generation");
    machine.age();
    assert_eq!(machine.anon(), [(1, 0), (2, 0), (3, 1024), (4, 0)]);
    machine.touch((0..1024).step_by(3));
    machine.age();
    let used = 1024_u64.div_ceil(3);
    assert_eq!(machine.anon(), [(2, 0), (3, 1024 - used), (4, used), (5, 0)]);
    for page in 0..1024 {
        let seq = if page % 3 == 0 { 4 } else { 3 };
        assert_eq!(machine.space.generation(at(page)), Some(seq), "page {page}");
    }
    assert_eq!(machine.space.generation(at(1024)), None);
    let stats = machine.lru().stats();
    assert_eq!((stats.passes, stats.young), (2, 1024 + used));
    assert!(machine.all_free());
}

#[test]
fn ages_are_counted_and_refused_as_the_kernel_does() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    let (space, mut idle) = (machine.space.clone(), Idle::take().unwrap_or(machine.idle));
    let mut age = |seq, force| space.age(&mut idle, NODE, seq, true, force);
    assert_eq!(age(4, true), Err(LruError::Invalid), "the generation does not exist yet");
    assert_eq!(age(2, true), Ok(false), "the generation was made before");
    assert_eq!(age(3, false), Err(LruError::OutOfRange), "there are four generations already");
    assert_eq!(age(3, true), Ok(true));
    assert_eq!(space.age(&mut idle, Node(1), 4, true, true), Err(LruError::NoSuchNode));
    assert_eq!(
        space.evict(&mut idle, NODE, 3, None, None),
        Err(LruError::Invalid),
        "the youngest two are not evicted"
    );
    assert_eq!(space.evict(&mut idle, NODE, u64::MAX, None, None), Err(LruError::Invalid));
    assert_eq!(space.evict(&mut idle, NODE, 2, Some(202), None), Err(LruError::Invalid));
    assert_eq!(space.evict(&mut idle, NODE, 2, None, None), Ok(0));
    let without = AddressSpace::builder(&machine.arena).build().unwrap();
    assert!(without.lru().is_none());
    assert_eq!(without.age(&mut idle, NODE, 3, true, true), Err(LruError::Off));
    assert_eq!(without.evict(&mut idle, NODE, 0, None, None), Err(LruError::Off));
    assert_eq!(without.reclaim(&mut idle, 1), 0);
    space.exit(&mut idle).unwrap();
    assert_eq!(space.evict(&mut idle, NODE, 1, None, None), Err(LruError::Interrupted));
    let errors = [LruError::Off, LruError::NoSuchNode, LruError::Invalid, LruError::OutOfRange];
    assert_eq!(errors.map(LruError::errno), [libc::EINVAL, libc::EINVAL, libc::EINVAL, libc::ERANGE]);
    assert_eq!(LruError::Interrupted.errno(), libc::EINTR);
}

#[test]
fn the_oldest_generations_are_evicted_and_come_back_with_what_they_held() {
    let mut machine = Machine::new();
    machine.map(0, 600);
    machine.age();
    machine.touch(0..200);
    machine.age();
    // Generation 3: the pages used only at first. Generation 4: the pages used since.
    assert_eq!(machine.anon(), [(2, 0), (3, 400), (4, 200), (5, 0)]);
    assert_eq!(
        machine.space.evict(&mut machine.idle, NODE, 3, None, Some(150)),
        Ok(150),
        "no more pages than asked for"
    );
    assert_eq!(machine.evict(2), 0, "there is no older generation");
    assert_eq!(machine.evict(3), 250);
    assert_eq!(machine.evicted(), (200..600).collect::<Vec<_>>());
    assert_eq!(machine.anon(), [(4, 200), (5, 0)]);
    for page in 0..600 {
        assert_eq!(machine.is_there(page), page < 200, "page {page}");
        assert_eq!(machine.get(page), page);
    }
    let stats = machine.lru().stats();
    assert_eq!((stats.evicted, stats.refaults, stats.promoted), (400, 400, 0));
    assert_eq!(machine.total(), 600);
    assert!(machine.all_free());
}

#[test]
fn a_candidate_that_was_used_after_all_has_a_second_chance() {
    let mut machine = Machine::new();
    machine.map(0, 100);
    machine.age();
    machine.age();
    assert_eq!(machine.space.generation(at(7)), Some(3));
    machine.get(7);
    assert_eq!(machine.evict(3), 100 - 1);
    assert_eq!(machine.evicted(), (0..100).filter(|&page| page != 7).collect::<Vec<_>>());
    assert_eq!(machine.space.generation(at(7)), Some(5), "young again");
    assert_eq!(machine.lru().stats().promoted, 1);
}

/// Without secondary MMUs, a young candidate makes the eviction look at its neighbours.
#[test]
fn eviction_looks_around_young_candidates() {
    let mut machine = Machine::new();
    machine.map(0, 512);
    machine.age();
    machine.age();
    // 70 is the first of these. 71 and 120 lie in the same 64 pages. 200 does not, so the eviction looks at it
    // later.
    machine.touch([70, 71, 120, 200]);
    assert_eq!(machine.space.evict(&mut machine.idle, NODE, 3, None, Some(74)), Ok(74));
    let seq = |page| machine.space.generation(at(page));
    assert_eq!([70, 71, 120, 200].map(seq), [Some(5), Some(5), Some(5), Some(3)]);
}

#[test]
fn pinned_pages_stay_and_shares_of_forks_are_evicted() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    let pinned = machine.space.pin(&mut machine.idle, pages(1, 1)).unwrap();
    let child = machine.space.fork(&mut machine.idle).unwrap();
    (4..8).for_each(|page| machine.put(page, page));
    assert!(child.lru().is_some(), "a fork has an LRU as well");
    machine.age();
    machine.age();
    // 0, 2 and 3 also belong to the child. 1 belongs to a device.
    assert_eq!(machine.evict(3), 7);
    assert_eq!(machine.evicted(), [0, 2, 3, 4, 5, 6, 7]);
    assert_eq!(machine.lru().stats().unevictable, 1);
    assert_eq!(machine.anon(), [(4, 1), (5, 0)], "the pinned page was skipped");
    drop(child);
    drop(pinned);
    assert_eq!((0..8).map(|page| machine.get(page)).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(machine.all_free());
}

#[test]
fn merged_pages_stay() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    (0..3).for_each(|page| machine.put(page, 77));
    machine.space.madvise(&mut machine.idle, pages(0, 4), Advice::Mergeable).unwrap();
    let ksm = Ksm::builder(&machine.arena).build().unwrap();
    ksm.add(&machine.space).unwrap();
    for _ in 0..4 {
        ksm.scan(&mut machine.idle, 4);
    }
    assert_eq!(ksm.stats().pages_sharing, 2);
    machine.age();
    machine.age();
    assert_eq!((machine.evict(3), machine.evicted()), (1, vec![3]));
    assert_eq!([0, 1, 2, 3].map(|page| machine.get(page)), [77, 77, 77, 3]);
}

#[test]
fn a_huge_page_ages_as_one_and_is_evicted_in_parts() {
    let mut machine = Machine::with(|builder| builder.thp(true).lru(LruSettings::default()));
    machine.map(0, 1024);
    assert_eq!(machine.space.stats().huge_mappings, 2);
    machine.age();
    machine.get(700);
    machine.age();
    assert_eq!(machine.anon(), [(2, 0), (3, 512), (4, 512), (5, 0)]);
    assert_eq!(machine.space.evict(&mut machine.idle, NODE, 3, None, Some(40)), Ok(40));
    assert_eq!(machine.space.stats().splits, 1);
    assert_eq!(machine.evict(3), 512 - 40, "the parts of an idle page are idle");
    machine.age();
    machine.age();
    machine.get(600);
    assert_eq!(machine.evict(5), 0, "one access makes the whole huge page young");
    assert_eq!(machine.lru().stats().promoted, 512);
    assert_eq!((0..1024).map(|page| machine.get(page)).collect::<Vec<_>>(), (0..1024).collect::<Vec<_>>());
    assert!(machine.all_free());
}

#[test]
fn a_limit_holds_and_nothing_is_lost() {
    for thp in [false, true] {
        // Tables and the pool count towards the limit, too.
        let limit = 3 << 20;
        let mut machine = Machine::with(|builder| builder.thp(thp).limit(limit));
        machine.map(0, 2048);
        for round in 0..3 {
            for page in 0..2048 {
                assert_eq!(machine.get(page), page + round);
                machine.put(page, page + round + 1);
                assert!(machine.space.charged() <= limit, "{}", machine.space.charged());
            }
        }
        let stats = machine.lru().stats();
        assert!(stats.direct_reclaims > 0 && stats.refaults > 2048, "{stats:?}");
        assert!(machine.all_free());
    }
}

/// A generation begins for each quarter of the limit that comes in. The first eviction therefore knows which
/// pages were used after they came.
#[test]
fn generations_begin_ahead_of_need() {
    let mut machine = Machine::with(|builder| builder.limit(4 << 20));
    for part in 0..3 {
        machine.map(part * 256, 256);
        machine.touch(0..64);
    }
    let stats = machine.lru().stats();
    assert_eq!((stats.passes, stats.direct_reclaims), (2, 0), "{stats:?}");
    machine.map(768, 300);
    let (stats, evicted) = (machine.lru().stats(), machine.evicted());
    assert!(stats.direct_reclaims > 0 && !evicted.is_empty(), "{stats:?}");
    assert!(evicted.iter().all(|page| (64..512).contains(page)), "{evicted:?}");
    assert_eq!(stats.promoted, 0, "no used page was a candidate");
}

/// The same without the limit.
#[test]
fn negative_control_without_a_limit_it_is_exceeded() {
    let mut machine = Machine::new();
    machine.map(0, 2048);
    assert!(machine.space.charged() > 8 << 20);
    assert_eq!(machine.lru().stats(), LruStats::default());
}

#[test]
fn memory_runs_out_where_nothing_can_be_evicted() {
    let arena = Arena::builder().limit(64 << 20).build().unwrap();
    let space = AddressSpace::builder(&arena).limit(1 << 20).build().unwrap();
    let mut idle = Idle::take().unwrap();
    space.mmap(Place::Fixed(at(0)), 4 << 20, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let fits = (0..1024).take_while(|&page| space.write(&mut idle, at(page), b"x").is_ok()).count() as u64;
    assert!((100..256).contains(&fits), "{fits}");
    assert!(space.charged() <= 1 << 20);
    let refused = space.write(&mut idle, at(fits), b"x");
    assert!(matches!(refused, Err(MmError::OutOfFrames(_))), "{refused:?}");
    assert_eq!(get(&space, &mut idle, 0), u64::from(b'x'));
    space.dontneed(&mut idle, pages(0, 1)).unwrap();
    assert_eq!(space.write(&mut idle, at(fits), b"x"), Ok(()));
}

/// A full arena acts as a limit, too: an address space with an LRU then evicts by itself.
#[test]
fn a_full_arena_makes_room_by_eviction() {
    let mut machine = Machine::new();
    let frames = machine.arena.stats().frames;
    machine.map(0, frames + 1000);
    assert!(machine.lru().stats().direct_reclaims > 0);
    assert_eq!(machine.get(0), 0);
    assert_eq!(machine.get(frames + 999), frames + 999);
}

#[test]
fn young_pages_are_kept_for_the_time_that_is_set() {
    let mut machine = Machine::with(|builder| {
        builder
            .limit(2 << 20)
            .lru(LruSettings { min_ttl: Duration::from_secs(3600), ..LruSettings::default() })
    });
    machine.space.mmap(Place::Fixed(at(0)), 4 << 20, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let refused = (0..1024).find(|&page| machine.space.write(&mut machine.idle, at(page), b"x").is_err());
    let refused = refused.expect("memory runs out instead");
    assert_eq!(machine.lru().stats().evicted, 0);
    machine.lru().set(LruSettings::default());
    machine.put(refused, 1);
    assert!(machine.lru().stats().evicted > 0);
}

#[test]
fn sparse_regions_are_passed_over_unless_that_is_forced() {
    let mut machine = Machine::new();
    machine.map(0, 2 * 512);
    let pass = |machine: &mut Machine, force| {
        let before = machine.lru().stats();
        let max = machine.max_seq();
        machine.space.evict(&mut machine.idle, NODE, max - 2, None, Some(0)).unwrap();
        assert_eq!(machine.space.age(&mut machine.idle, NODE, max, true, force), Ok(true));
        let after = machine.lru().stats();
        (after.regions_walked - before.regions_walked, after.regions_skipped - before.regions_skipped)
    };
    // 64 of 512 is one page for each cache line of a table. 63 is less.
    let use_some = |machine: &mut Machine| machine.touch((0..64).chain(512..512 + 63));
    for _ in 0..2 {
        assert_eq!(pass(&mut machine, true), (2, 0));
        use_some(&mut machine);
    }
    machine.evict(2);
    machine.map(2048, 1);
    assert_eq!(pass(&mut machine, true), (3, 0));
    use_some(&mut machine);
    machine.evict(3);
    machine.map(4096, 1);
    assert_eq!(pass(&mut machine, false), (3, 1), "the second region was sparse; the last is new");
    use_some(&mut machine);
    machine.touch([2048, 4096]);
    machine.evict(5);
    assert_eq!(pass(&mut machine, false), (4, 0), "the eviction found its pages in use");
}

/// The count is the same, however pages come and go.
#[test]
fn generations_hold_exactly_the_pages_that_are_there() {
    let mut machine = Machine::with(|builder| builder.thp(true).lru(LruSettings::default()));
    let file = File::zeroed(&machine.arena, 64 * PAGE_SIZE);
    machine.map(0, 1024);
    let shared = Backing::Shared { file: file.clone(), offset: 0 };
    machine.space.mmap(Place::Fixed(at(1024)), 32 * PAGE_SIZE, Prot::ReadWrite, shared).unwrap();
    let private = Backing::Private { file, offset: 0 };
    machine.space.mmap(Place::Fixed(at(1100)), 32 * PAGE_SIZE, Prot::ReadWrite, private).unwrap();
    machine.touch((1024..1056).chain(1100..1132));
    let count = |machine: &Machine| {
        let there = (0..8192).filter(|&page| machine.is_there(page)).count() as u64;
        let files: u64 = machine.lru().generations()[0].generations.iter().map(|found| found.file).sum();
        assert_eq!(machine.total(), there);
        (there, files)
    };
    assert_eq!(count(&machine), (1024 + 64, 64));
    (1100..1110).for_each(|page| machine.put(page, 1));
    assert_eq!(count(&machine), (1024 + 64, 54), "copies do not belong to the file");
    let (space, idle) = (machine.space.clone(), &mut machine.idle);
    space.munmap(idle, pages(100, 100)).unwrap();
    space.dontneed(idle, pages(600, 10)).unwrap();
    space.migrate(idle, pages(0, 1024)).unwrap();
    space.mremap(idle, pages(300, 100), 80 * PAGE_SIZE, Place::Fixed(at(3001))).unwrap();
    space.reap(idle, pages(700, 5)).unwrap();
    let child = space.fork(idle).unwrap();
    assert_eq!(count(&machine), (1024 + 64 - 135, 54));
    assert_eq!(machine.space.generation(at(3001)), Some(3));
    assert_eq!(machine.space.generation(at(300)), None);
    assert!(child.lru().unwrap().generations()[0].generations.last().unwrap().anon > 0);
    drop((child, space));
    (0..100).for_each(|page| machine.put(page, 5));
    machine.age();
    machine.age();
    machine.space.reclaim(&mut machine.idle, 100);
    let (there, _) = count(&machine);
    assert_eq!(there, 1024 + 64 - 135 - 100);
    machine.space.munmap(&mut machine.idle, Span::new(at(0), at(8192))).unwrap();
    assert_eq!(count(&machine), (0, 0));
    assert!(machine.all_free());
}

#[test]
fn each_node_has_its_own() {
    let arena = Arena::builder().limit(64 << 20).nodes(2).build().unwrap();
    let swap = Swap::builder().memory(16 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).lru(LruSettings::default()).build().unwrap();
    let mut idle = Idle::take().unwrap();
    space.mmap(Place::Fixed(at(0)), 100 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    for page in 0..100 {
        Node(u8::from(page >= 30)).run_here();
        space.write(&mut idle, at(page), &[1]).unwrap();
    }
    let anon = |space: &AddressSpace| {
        let of = |node: NodeGenerations| node.generations.iter().map(|found| found.anon).sum::<u64>();
        space.lru().unwrap().generations().into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(anon(&space), [30, 70]);
    for seq in [3, 4] {
        assert_eq!(space.age(&mut idle, Node(1), seq, true, true), Ok(true));
    }
    assert_eq!(space.age(&mut idle, Node(0), 3, true, true), Ok(false), "a pass covers all nodes");
    assert_eq!(space.evict(&mut idle, Node(1), 3, None, None), Ok(70));
    assert_eq!(anon(&space), [30, 0]);
    Node(1).run_here();
    for page in 0..10 {
        space.write(&mut idle, at(page), &[2]).unwrap();
    }
    space.migrate(&mut idle, pages(0, 10)).unwrap();
    assert_eq!(anon(&space), [20, 10], "moved pages are counted on their new node");
}

/// The pages of a shared file. Half of them are written to.
#[test]
fn pages_of_files_age_and_go_and_are_known_when_they_come_back() {
    let mut machine = Machine::new();
    let contents: Vec<u8> = (0..64 * PAGE_SIZE).map(|byte| (byte / PAGE_SIZE) as u8).collect();
    let file = File::with_contents(&machine.arena, contents);
    let shared = Backing::Shared { file, offset: 0 };
    machine.space.mmap(Place::Fixed(at(0)), 64 * PAGE_SIZE, Prot::ReadWrite, shared).unwrap();
    machine.touch(0..64);
    (0..32).for_each(|page| machine.put(page, page + 1000));
    let files = |machine: &Machine| {
        machine.lru().generations()[0].generations.iter().map(|found| found.file).collect::<Vec<_>>()
    };
    machine.age();
    machine.touch([3, 40]);
    machine.age();
    assert_eq!(files(&machine), [0, 62, 2, 0]);
    assert_eq!(
        machine.space.evict(&mut machine.idle, NODE, 3, Some(201), None),
        Ok(0),
        "only anonymous pages"
    );
    assert_eq!(machine.space.evict(&mut machine.idle, NODE, 3, Some(0), None), Ok(62));
    assert_eq!((files(&machine), machine.lru().stats().refaults), (vec![2, 0], 0));
    assert_eq!([0, 31].map(|page| machine.get(page)), [1000, 1031]);
    assert_eq!([32, 63].map(|page| machine.get(page).to_le_bytes()[0]), [32, 63]);
    assert_eq!(machine.lru().stats().refaults, 4);
    // A file that drops its other pages does not want them back.
    machine.space.dontneed(&mut machine.idle, pages(0, 64)).unwrap();
    machine.touch(0..64);
    assert_eq!(machine.lru().stats().refaults, 4);
    assert!(machine.all_free());
}
