//! Tests of groups: each frame is charged to one group, limits hold, and a group that lacks memory takes none
//! from another group.

use crate::fixture::{at, get, pages};
use crate::swap::contents;
use crate::swap_device::Disk;
use slat::{Access, Idle, PAGE_SIZE};
use slat_mm::*;
use std::sync::{Arc, Barrier};
use std::thread;

fn arena() -> Arc<Arena> {
    Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap()
}

fn map(space: &AddressSpace, first: u64, count: u64, backing: Backing) {
    space.mmap(Place::Fixed(at(first)), count * PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
}

fn put(space: &AddressSpace, idle: &mut Idle, page: u64, value: u64) {
    space.write(idle, at(page), &value.to_le_bytes()).unwrap();
}

/// The anonymous and the file pages that are charged to a group.
fn charged(group: &Group) -> (u64, u64) {
    let stats = group.stats();
    assert_eq!(stats.charged(), group.charged());
    (stats.anon / PAGE_SIZE, stats.file / PAGE_SIZE)
}

#[test]
fn each_page_is_charged_once_to_the_group_that_had_it_first() {
    let (mut idle, arena) = (Idle::take().unwrap(), arena());
    let swap = Swap::builder().memory(4 << 20).build(&arena).unwrap();
    let [one, other] = [(); 2].map(|()| Group::new(&arena, None).unwrap());
    let space = |group| AddressSpace::builder(&arena).swap(&swap).group(group).build().unwrap();
    let (first, second) = (space(&one), space(&other));
    map(&first, 0, 16, Backing::Anonymous);
    (0..16).for_each(|page| put(&first, &mut idle, page, page));
    assert_eq!((charged(&one), charged(&other)), ((16, 0), (0, 0)));

    let file = File::zeroed(&arena, 8 * PAGE_SIZE);
    let shared = || Backing::Shared { file: file.clone(), offset: 0 };
    map(&first, 100, 8, shared());
    map(&second, 100, 8, shared());
    (100..104).for_each(|page| put(&first, &mut idle, page, 1));
    (102..108).for_each(|page| put(&second, &mut idle, page, 2));
    assert_eq!(
        (charged(&one), charged(&other)),
        ((16, 4), (0, 4)),
        "each group pays for the pages it used first"
    );
    first.munmap(&mut idle, pages(100, 8)).unwrap();
    assert_eq!(charged(&one), (16, 4), "the file still holds the pages");

    let fork = first.fork(&mut idle).unwrap();
    assert!(Arc::ptr_eq(fork.group().unwrap(), &one));
    assert_eq!(charged(&one), (16, 4), "shares");
    (0..4).for_each(|page| put(&fork, &mut idle, page, 7));
    assert_eq!(charged(&one), (20, 4), "copies");
    drop(fork);
    assert_eq!(charged(&one), (16, 4));

    map(&second, 0, 8, Backing::Private { file: file.clone(), offset: 0 });
    put(&second, &mut idle, 0, 5);
    assert_eq!(get(&second, &mut idle, 4), 2);
    assert_eq!(charged(&other), (1, 4), "a copy of the file's page, and one of its pages");

    let huge = AddressSpace::builder(&arena).thp(true).group(&other).build().unwrap();
    map(&huge, 512, 512, Backing::Anonymous);
    put(&huge, &mut idle, 700, 1);
    assert_eq!(charged(&other), (513, 4));
    drop(huge);
    assert_eq!(charged(&other), (1, 4));

    let before = swap.pool_bytes();
    assert_eq!(first.pageout(&mut idle, pages(0, 8)), Ok(8));
    let stats = one.stats();
    assert_eq!(
        (stats.anon / PAGE_SIZE, stats.swapped / PAGE_SIZE, before),
        (8, 7, 0),
        "one page held zeroes"
    );
    assert!(stats.compressed > 0 && stats.compressed <= swap.pool_bytes());
    assert_eq!(other.stats().compressed, 0);
    drop((first, second, file));
    for group in [&one, &other] {
        assert_eq!((group.charged(), group.stats().swapped), (0, 0));
    }
}

#[test]
fn merged_pages_are_charged_to_the_group_whose_page_they_were() {
    let (mut idle, arena) = (Idle::take().unwrap(), arena());
    let ksm = Ksm::builder(&arena).build().unwrap();
    let [one, other] = [(); 2].map(|()| Group::new(&arena, None).unwrap());
    let spaces = [&one, &other].map(|group| AddressSpace::builder(&arena).group(group).build().unwrap());
    for space in &spaces {
        map(space, 0, 8, Backing::Anonymous);
        space.madvise(&mut idle, pages(0, 8), Advice::Mergeable).unwrap();
        ksm.add(space).unwrap();
        (0..8).for_each(|page| put(space, &mut idle, page, 42 + page));
    }
    assert_eq!((charged(&one).0, charged(&other).0), (8, 8));
    ksm.scan(&mut idle, u64::MAX);
    assert_eq!(ksm.scan(&mut idle, u64::MAX), 16);
    assert_eq!(charged(&one).0 + charged(&other).0, 8, "one frame per pair");
    (0..4).for_each(|page| put(&spaces[1], &mut idle, page, 1));
    assert_eq!(charged(&one).0 + charged(&other).0, 12, "writes made copies again");
    let [first, second] = spaces;
    drop((first, second, ksm));
    assert_eq!((one.charged(), other.charged()), (0, 0));
}

/// Whatever operations run, in whatever order: every frame in use is charged, except tables and the pool.
#[test]
fn the_sums_are_exact_whatever_is_done() {
    for seed in 1..=8 {
        let (mut idle, mut random) = (Idle::take().unwrap(), fastrand::Rng::with_seed(seed));
        let arena = arena();
        let swap = Swap::builder().memory(1 << 20).device(Disk::new(), 16 << 20).build(&arena).unwrap();
        let groups = [(); 2].map(|()| Group::new(&arena, None).unwrap());
        let file = File::zeroed(&arena, 16 * PAGE_SIZE);
        let space = |group: &Arc<Group>| {
            let space = AddressSpace::builder(&arena).swap(&swap).group(group).build().unwrap();
            map(&space, 0, 64, Backing::Anonymous);
            map(&space, 64, 16, Backing::Shared { file: file.clone(), offset: 0 });
            map(&space, 80, 16, Backing::Private { file: file.clone(), offset: 0 });
            space
        };
        let mut spaces: Vec<_> = groups.iter().chain(&groups).map(space).collect();
        for _ in 0..600 {
            let at_random = random.usize(..spaces.len());
            let (page, count) = (random.u64(..96), random.u64(1..16));
            let space = &spaces[at_random];
            let some = pages(page, count.min(96 - page));
            match random.u8(..12) {
                0..5 => put(space, &mut idle, page, random.u64(..)),
                5..7 => drop(space.fault(&mut idle, at(page), Access::Read)),
                7..9 => drop(space.pageout(&mut idle, some).unwrap()),
                9 => space.dontneed(&mut idle, some).unwrap(),
                10 => drop(space.migrate(&mut idle, some).unwrap()),
                _ if spaces.len() < 6 => spaces.push(spaces[at_random].fork(&mut idle).unwrap()),
                _ => drop(spaces.swap_remove(at_random)),
            }
            let stats = groups.each_ref().map(|group| group.stats());
            let frames: u64 = stats.iter().map(|stats| (stats.anon + stats.file) / PAGE_SIZE).sum();
            let (all, pool) = (arena.stats(), swap.pool_bytes() / PAGE_SIZE);
            assert_eq!(frames, all.in_use - all.tables - pool, "seed {seed}: {stats:?}");
        }
        drop((spaces, file));
        assert_eq!(groups.map(|group| group.charged()), [0, 0]);
    }
}

/// The sums are read while all threads stand still. A thread that is stopped in the middle of a charge makes
/// the usage look larger than it is.
#[test]
fn threads_keep_a_groups_limit_within_two_percent() {
    const LIMIT: u64 = 8 << 20;
    let arena = arena();
    let swap = Swap::builder().memory(2 << 20).device(Disk::new(), 64 << 20).build(&arena).unwrap();
    let group = Group::new(&arena, Some(LIMIT)).unwrap();
    let still = Barrier::new(3);
    let most = thread::scope(|scope| {
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                let (group, arena, swap, still) = (&group, &arena, &swap, &still);
                scope.spawn(move || {
                    let mut idle = Idle::take().unwrap();
                    let space = AddressSpace::builder(arena).swap(swap).group(group).build().unwrap();
                    map(&space, 0, 2048, Backing::Anonymous);
                    let mut most = 0;
                    for page in 0..2048 {
                        space.write(&mut idle, at(page), &contents(page ^ thread << 20, 40)).unwrap();
                        if page % 8 == 7 {
                            still.wait();
                            most = most.max(group.charged());
                            still.wait();
                        }
                    }
                    let mut bytes = vec![0; 4096];
                    for page in (0..2048).step_by(7) {
                        space.read(&mut idle, at(page), &mut bytes).unwrap();
                        assert_eq!(bytes, contents(page ^ thread << 20, 40), "a page lost its contents");
                    }
                    most
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    });
    assert!(most as f64 <= 1.02 * LIMIT as f64 && most > LIMIT / 2, "{most} of {LIMIT}");
    assert_eq!(group.charged(), 0);
}

/// The refaults of a guest with a limit that loops over more memory than fits. `noisy` runs after each round.
/// With `forks`, a fork that does nothing shares, by the middle, all that the guest has.
fn refaults(arena: &Arc<Arena>, swap: &Arc<Swap>, forks: bool, mut noisy: impl FnMut(&mut Idle, u64)) -> u64 {
    let mut idle = Idle::take().unwrap();
    let group = Group::new(arena, Some(1 << 20)).unwrap();
    let space = AddressSpace::builder(arena).swap(swap).group(&group).build().unwrap();
    map(&space, 0, 1024, Backing::Anonymous);
    let mut random = fastrand::Rng::with_seed(5);
    let mut fork = None;
    for round in 0..400 {
        if forks && round == 200 {
            fork = Some(space.fork(&mut idle).unwrap());
        }
        // A working set that fits, and sometimes a page outside it.
        for _ in 0..16 {
            let page = random.u64(..96);
            space.fault(&mut idle, at(page), Access::Write).unwrap();
        }
        space.write(&mut idle, at(100 + random.u64(..500)), &contents(round, 64)).unwrap();
        noisy(&mut idle, round);
        assert!(group.charged() * 100 <= 102 << 20);
    }
    drop(fork);
    space.lru().unwrap().stats().refaults
}

/// Compares counts, not times: one thread makes all accesses, in the same order.
#[test]
fn a_group_over_its_limit_leaves_the_working_set_of_another_alone() {
    let swap = |arena: &Arc<Arena>| {
        Swap::builder().memory(1 << 20).device(Disk::new(), 64 << 20).read_ahead(1).build(arena).unwrap()
    };
    for forks in [false, true] {
        let alone = {
            let arena = arena();
            let swap = swap(&arena);
            refaults(&arena, &swap, forks, |_, _| {})
        };
        let arena = arena();
        let swap = swap(&arena);
        let group = Group::new(&arena, Some(1 << 20)).unwrap();
        let mut noisy = vec![AddressSpace::builder(&arena).swap(&swap).group(&group).build().unwrap()];
        map(&noisy[0], 0, 4096, Backing::Anonymous);
        let beside = refaults(&arena, &swap, forks, |idle, round| {
            if forks && round % 100 == 50 {
                noisy.truncate(2);
                noisy.push(noisy[0].fork(idle).unwrap());
            }
            for page in 0..16 {
                let page = (round * 16 + page) % 4096;
                noisy[0].write(idle, at(page), &contents(page, if page % 2 == 0 { 64 } else { 20 })).unwrap();
            }
            // Also what forks share with the first process that uses it.
            for fork in &noisy[1..] {
                for page in 0..8 {
                    fork.fault(idle, at(round * 8 + page), Access::Read).unwrap();
                }
            }
        });
        let thrashed = noisy[0].lru().unwrap().stats();
        assert!(thrashed.evicted > 4000, "{thrashed:?}");
        assert!(alone > 20, "the working set is near the limit: {alone}");
        assert!(
            beside.abs_diff(alone) * 20 <= alone,
            "{beside} beside the other, {alone} alone, forks {forks}"
        );
    }
}

/// All pages of the group are pinned. No fault scans them again until a device unpins one.
#[test]
fn while_nothing_can_be_evicted_faults_are_refused_at_once() {
    let (mut idle, arena) = (Idle::take().unwrap(), arena());
    let swap = Swap::builder().device(Disk::new(), 16 << 20).build(&arena).unwrap();
    let group = Group::new(&arena, Some(2 << 20)).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).group(&group).build().unwrap();
    map(&space, 0, 1024, Backing::Anonymous);
    let (mut pinned, mut page) = (Vec::new(), 0);
    while let Ok(one) = space.pin(&mut idle, pages(page, 1)) {
        pinned.push(one);
        page += 1;
    }
    assert!(page > 300);
    let looked = || (space.lru().unwrap().stats().unevictable, group.stats().lru.refused);
    let (before, refused) = looked();
    for again in 1..=60 {
        let done = space.fault(&mut idle, at(page), Access::Read);
        assert_eq!(done, Err(MmError::OutOfFrames(slat::Level::K4)));
        assert_eq!(looked(), (before, refused + again), "a fault scanned pages");
    }
    pinned.pop();
    space.fault(&mut idle, at(page), Access::Read).unwrap();
    assert_eq!(get(&space, &mut idle, page - 2), 0);
    assert!(group.stats().to_string().contains(&format!("oom {}\n", refused + 60)));
}

#[test]
fn a_groups_usage_reads_as_memory_stat() {
    let (mut idle, arena) = (Idle::take().unwrap(), arena());
    let group = Group::new(&arena, None).unwrap();
    let space = AddressSpace::builder(&arena).group(&group).build().unwrap();
    map(&space, 0, 4, Backing::Anonymous);
    (0..3).for_each(|page| put(&space, &mut idle, page, 1));
    let text = group.stats().to_string();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {text}")).parse::<u64>().unwrap()
    };
    assert_eq!((of("anon"), of("file"), of("zswap"), of("pgfault")), (3 * PAGE_SIZE, 0, 0, 3));
    assert!(of("pagetables") > 0 && of("pagetables").is_multiple_of(PAGE_SIZE));
    let other = Arena::builder().limit(4 << 20).build().unwrap();
    let foreign = AddressSpace::builder(&other).group(&group).build();
    assert_eq!(foreign.map(drop), Err(MmError::ForeignGroup));
}
