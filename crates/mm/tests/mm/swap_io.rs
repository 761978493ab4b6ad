//! Tests of how the swap uses its devices: many requests at once, beside unrelated faults; by priority; ahead
//! of need; and again after a failure. Also tests of what moves from memory to devices.

use crate::fixture::*;
use crate::swap::{TempFile, contents};
use crate::swap_device::{Disk, PAGES, filled, intact, noise};
use crate::swap_others::{Gate, HANGS, OpensAtLast, anon, ends};
use slat::{Access, Idle, PAGE_SIZE};
use slat_mm::{AddressSpace, Arena, Evictor, MmError, Swap, SwapBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

fn arena() -> Arc<Arena> {
    Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap()
}

fn fill(space: &AddressSpace, idle: &mut Idle, pages: u64) {
    (0..pages).for_each(|page| space.write(idle, at(page), &noise(page)).unwrap());
}

/// The device holds a write until the test lets it go, which is worse than a write of 100 ms.
#[test]
fn a_device_that_holds_its_writes_costs_faults_elsewhere_nothing() {
    const QUIET: u64 = 256;
    let (mut idle, (gate, begun)) = (Idle::take().unwrap(), Gate::new());
    let arena = arena();
    let swap = Swap::builder().memory(4 << 20).device(gate.clone(), 16 << 20).build(&arena).unwrap();
    let [busy, quiet] = [(); 2].map(|()| AddressSpace::builder(&arena).swap(&swap).build().unwrap());
    anon(&busy, 0, 64);
    fill(&busy, &mut idle, 64);
    anon(&quiet, 0, 2 * QUIET);
    let write = |idle: &mut Idle, page: u64| quiet.write(idle, at(page), &page.to_le_bytes()).unwrap();
    (0..QUIET).for_each(|page| write(&mut idle, page));
    assert_eq!(quiet.pageout(&mut idle, pages(0, QUIET)), Ok(QUIET));
    thread::scope(|scope| {
        let _at_last = OpensAtLast(&gate);
        let out = scope.spawn(|| busy.pageout(&mut Idle::take().unwrap(), pages(0, 64)).unwrap());
        begun.recv_timeout(HANGS).expect("the swap writes to the device");
        let other = quiet.clone();
        let done = ends(move |idle| {
            (0..QUIET).for_each(|page| assert_eq!(get(&other, idle, page), page, "a page in memory"));
            for page in QUIET..2 * QUIET {
                assert!(other.fault(idle, at(page), Access::Write).is_ok(), "a fresh page");
            }
            assert_eq!(other.pageout(idle, pages(0, QUIET)), Ok(QUIET), "page-out to memory");
        });
        assert!(done && !gate.is_open(), "the work waited for the device");
        assert_eq!((quiet.stats().swapped_in, busy.stats().swapped_out), (QUIET, 0));
        gate.open(false);
        assert_eq!(out.join().unwrap(), 64);
    });
}

/// Blocks that are not adjacent need several writes. No write waits for another to end.
#[test]
fn writes_of_a_batch_are_on_their_way_at_once() {
    let (mut idle, (gate, begun)) = (Idle::take().unwrap(), Gate::new());
    let arena = arena();
    let swap = Swap::builder().device(gate.clone(), 16 << 20).keep_copies(false).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    anon(&space, 0, 32);
    fill(&space, &mut idle, 16);
    gate.open(false);
    assert_eq!(space.pageout(&mut idle, pages(0, 16)), Ok(16));
    (0..16).step_by(2).for_each(|page| space.munmap(&mut idle, pages(page, 1)).unwrap());
    (16..24).for_each(|page| space.write(&mut idle, at(page), &noise(page)).unwrap());
    gate.close();
    assert_eq!(begun.try_iter().count(), 16);
    thread::scope(|scope| {
        let _at_last = OpensAtLast(&gate);
        let out = scope.spawn(|| space.pageout(&mut Idle::take().unwrap(), pages(16, 8)).unwrap());
        (0..8).for_each(|_| begun.recv_timeout(HANGS).expect("every write begins before one ends"));
        gate.open(false);
        assert_eq!(out.join().unwrap(), 8);
    });
    let mut bytes = vec![0; 4096];
    for page in 16..24 {
        space.read(&mut idle, at(page), &mut bytes).unwrap();
        assert_eq!(bytes, noise(page));
    }
}

/// Through the kernel's ring where there is one, and through threads.
#[test]
fn files_give_back_what_went_by_ring_and_by_threads() {
    for ring in [true, false] {
        let files = [TempFile::new("asked-one"), TempFile::new("asked-other")];
        let swap = Swap::builder().file(&files[0].0).priority(1).file(&files[1].0).priority(1).ring(ring);
        let (mut machine, swap) = Machine::with_swap(swap.keep_copies(false));
        assert!(ring || !swap.has_ring());
        machine.map(0, 600);
        let put = |machine: &mut Machine, pages: std::ops::Range<u64>, seed: u64| {
            pages.for_each(|page| machine.fill(page, &contents(page + seed, 64)));
        };
        put(&mut machine, 0..600, 0);
        assert_eq!(machine.page_out(0, 600), 600);
        // Every third page comes back, and leaves again to the free blocks between the others.
        let third = |machine: &mut Machine, seed: u64| {
            (0..600).step_by(3).for_each(|page| assert_eq!(machine.bytes(page), contents(page + seed, 64)));
        };
        third(&mut machine, 0);
        (0..600).step_by(3).for_each(|page| put(&mut machine, page..page + 1, 1000));
        machine.page_out(0, 600);
        third(&mut machine, 1000);
        for page in (0..600).filter(|page| page % 3 != 0) {
            assert_eq!(machine.bytes(page), contents(page, 64), "page {page}");
        }
        assert_eq!((swap.stats().references, swap.stats().load_errors), (0, 0));
        assert!(machine.all_free());
    }
}

/// A machine with three devices of these sizes in pages. Two are used in turn, and the third after them.
fn three(rooms: [u64; 3]) -> ([Arc<Disk>; 3], Machine, Arc<Swap>) {
    let disks = [(); 3].map(|()| Disk::new());
    let device = |swap: SwapBuilder, at: usize| swap.device(disks[at].clone(), rooms[at] * PAGE_SIZE);
    let swap = device(device(device(Swap::builder(), 0).priority(1), 1).priority(7), 2).priority(7);
    let (machine, swap) = Machine::with_swap(swap.keep_copies(false));
    (disks, filled(machine), swap)
}

#[test]
fn pages_go_to_the_device_with_the_highest_priority_that_has_room() {
    let (disks, mut machine, swap) = three([64, 4, 6]);
    let writes = || disks.each_ref().map(|disk| disk.writes());
    for page in 0..8 {
        assert_eq!(machine.page_out(page, 1), 1);
    }
    assert_eq!(writes(), [0, 4, 4], "in turn");
    assert_eq!(machine.page_out(8, 8), 8);
    assert_eq!(writes(), [6, 4, 6], "the rest goes to the next device");
    assert_eq!((intact(&mut machine), swap.stats().references), (PAGES, 0));
    assert_eq!((machine.page_out(0, PAGES), swap.stats().file_bytes), (PAGES, PAGES * PAGE_SIZE));
    assert_eq!((intact(&mut machine), swap.stats().refused), (PAGES, 0));
    assert!(machine.all_free());
}

#[test]
fn a_device_that_fails_and_recovers_loses_nothing_and_is_used_again_by_itself() {
    let (disks, mut machine, swap) = three([64, 64, 0]);
    let [last, first, _] = &disks;
    first.fail(Some(libc::EIO), None);
    assert_eq!(
        (machine.page_out(0, PAGES), swap.stats().store_errors),
        (PAGES, PAGES),
        "the other device took the pages"
    );
    assert_eq!((intact(&mut machine), last.writes()), (PAGES, PAGES));
    for round in 0..8 {
        assert_eq!((machine.page_out(round, 1), machine.page_out(round + 8, 1)), (1, 1));
        assert_eq!(intact(&mut machine), PAGES);
    }
    assert!(
        swap.stats().store_errors <= PAGES + 2,
        "the failing device is asked too often: {:?}",
        swap.stats()
    );
    first.fail(None, None);
    let mut rounds = 0;
    while first.writes() < 3 {
        assert!(machine.page_out(0, 4) == 4 && intact(&mut machine) == PAGES);
        rounds += 1;
        assert!(rounds < 40, "the recovered device is not used");
    }
    assert!(machine.all_free());
}

/// There is no other device.
#[test]
fn eviction_resumes_when_the_only_device_works_again() {
    const LIMIT: u64 = 1 << 20;
    let (mut idle, disk) = (Idle::take().unwrap(), Disk::new());
    let arena = arena();
    let swap = Swap::builder().device(disk.clone(), 16 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).build().unwrap();
    anon(&space, 0, 1024);
    disk.fail(Some(libc::EIO), None);
    let write = |idle: &mut Idle, page: u64| space.write(idle, at(page), &noise(page));
    let refused = (0..1024).find(|&page| write(&mut idle, page).is_err()).unwrap();
    for _ in 0..3 {
        assert!(matches!(write(&mut idle, refused), Err(MmError::OutOfFrames(_))));
    }
    assert_eq!(swap.stats().stored, 0);
    disk.fail(None, None);
    (refused..512).for_each(|page| write(&mut idle, page).unwrap());
    let mut bytes = vec![0; 4096];
    for page in 0..512 {
        space.read(&mut idle, at(page), &mut bytes).unwrap();
        assert_eq!(bytes, noise(page), "page {page}");
    }
    assert!(space.charged() <= LIMIT && swap.stats().stored > 256);
}

/// Faults go on up to the limit while the device holds the evictor's writes. Above the limit, they go on as
/// memory becomes free.
#[test]
fn an_evictor_makes_room_before_a_fault_has_to() {
    const LIMIT: u64 = 4 << 20;
    let (mut idle, (gate, begun)) = (Idle::take().unwrap(), Gate::new());
    let arena = arena();
    let swap = Swap::builder().device(gate.clone(), 32 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).build().unwrap();
    let evictor = Evictor::start(&space, 2).unwrap();
    let _at_last = OpensAtLast(&gate);
    anon(&space, 0, 4096);
    let write = |idle: &mut Idle, page: u64| space.write(idle, at(page), &noise(page)).unwrap();
    let stats = || space.lru().unwrap().stats();
    let mut next = 0;
    while LIMIT - space.charged() > PAGE_SIZE {
        write(&mut idle, next);
        next += 1;
    }
    begun.recv_timeout(HANGS).expect("the evictor has begun");
    assert_eq!((stats().direct_reclaims, stats().evicted, gate.is_open()), (0, 0, false));
    gate.open(false);
    while stats().evicted == 0 {
        thread::yield_now();
    }
    (next..2 * next).for_each(|page| write(&mut idle, page));
    drop(evictor);
    let mut bytes = vec![0; 4096];
    for page in 0..2 * next {
        space.read(&mut idle, at(page), &mut bytes).unwrap();
        assert_eq!(bytes, noise(page), "page {page}");
    }
    assert!(space.charged() <= LIMIT + LIMIT / 50);
}

#[test]
fn pages_that_are_used_in_order_are_read_ahead() {
    const MANY: u64 = 256;
    let read = |ahead: u8, order: fn(u64) -> u64| {
        let disk = Disk::new();
        let swap = Swap::builder().device(disk.clone(), 16 << 20).keep_copies(false).read_ahead(ahead);
        let (mut machine, swap) = Machine::with_swap(swap);
        machine.map(0, MANY);
        (0..MANY).for_each(|page| machine.fill(page, &noise(page)));
        assert_eq!(machine.page_out(0, MANY), MANY);
        let faults = machine.space.stats().faults;
        for page in (0..MANY).map(order) {
            assert_eq!(machine.bytes(page), noise(page));
        }
        let stats = swap.stats();
        assert_eq!((stats.loaded, stats.references, machine.space.stats().swapped_in), (MANY, 0, MANY));
        assert_eq!(machine.space.stats().faults - faults, MANY, "a fault notices the first use of each page");
        assert!(machine.all_free());
        (stats.read_ahead, stats.read_ahead_used)
    };
    assert_eq!(read(1, |page| page), (0, 0));
    let (ahead, used) = read(8, |page| page);
    assert!(ahead > MANY / 2 && used == ahead, "{ahead}, {used}");
    let (ahead, _) = read(8, |page| page * 101 % MANY);
    assert!(ahead < MANY / 8, "{ahead} pages read ahead of random accesses");
}

/// Nothing is read ahead where memory suffices only for the page itself.
#[test]
fn no_page_is_read_ahead_where_memory_would_have_to_be_freed() {
    const LIMIT: u64 = 1 << 20;
    let (mut idle, arena) = (Idle::take().unwrap(), arena());
    let swap = Swap::builder().device(Disk::new(), 16 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).build().unwrap();
    anon(&space, 0, 1024);
    let write = |idle: &mut Idle, page: u64| space.write(idle, at(page), &noise(page));
    (0..512).for_each(|page| write(&mut idle, page).unwrap());
    for page in 0..512 {
        let evicted = || space.lru().unwrap().stats().evicted;
        let (before, left) = ((swap.stats().read_ahead, evicted()), LIMIT - space.charged());
        space.fault(&mut idle, at(page), Access::Read).unwrap();
        let ahead = swap.stats().read_ahead - before.0;
        assert!(space.charged() <= LIMIT);
        assert!(
            ahead == 0 || evicted() > before.1 || ahead * PAGE_SIZE < left,
            "{ahead} pages, {left} bytes"
        );
    }
}

/// A swap with a device, and with memory for about 64 pages that compress to a half.
fn small(disk: &Arc<Disk>) -> SwapBuilder {
    Swap::builder().memory(32 * PAGE_SIZE).device(disk.clone(), 16 << 20).keep_copies(false)
}

fn half(page: u64) -> Vec<u8> {
    contents(page, 28)
}

#[test]
fn the_oldest_copies_leave_memory_when_it_is_full() {
    let disk = Disk::new();
    let (mut machine, swap) = Machine::with_swap(small(&disk));
    machine.map(0, 256);
    (0..256).for_each(|page| machine.fill(page, &half(page)));
    assert_eq!((machine.page_out(0, 32), disk.writes()), (32, 0));
    assert_eq!(machine.page_out(32, 224), 224);
    let stats = swap.stats();
    assert!(stats.written_back >= 32 && stats.memory_bytes <= 32 * PAGE_SIZE, "{stats:?}");
    let reads = disk.calls();
    (0..16).for_each(|page| assert_eq!(machine.bytes(page), half(page)));
    assert!(disk.calls() > reads, "the oldest copies are on the device");
    assert!((16..256).all(|page| machine.bytes(page) == half(page)));
    assert_eq!((swap.stats().references, swap.stats().file_bytes, swap.stats().memory_bytes), (0, 0, 0));
    assert!(machine.all_free());
}

/// The owner pays only for copies in memory.
#[test]
fn copies_that_leave_memory_are_not_charged() {
    let disk = Disk::new();
    let (mut machine, swap) = Machine::with_swap(small(&disk));
    machine.map(0, 32);
    (0..32).for_each(|page| machine.fill(page, &half(page)));
    assert_eq!(machine.page_out(0, 32), 32);
    let tables = machine.space.table_bytes();
    assert!(machine.space.charged() > tables);
    disk.fail(Some(libc::EIO), None);
    assert_eq!((swap.write_back(32), swap.stats().written_back), (0, 0), "the copies stay in memory");
    disk.fail(None, None);
    assert_eq!((swap.write_back(8), swap.write_back(100)), (8, 24));
    assert_eq!((machine.space.charged(), swap.stats().memory_bytes), (tables, 0));
    assert!((0..32).all(|page| machine.bytes(page) == half(page)));
    assert!(machine.all_free());
}

/// A thread reads copies in memory while they move. If a copy moved during a read, the thread would find the
/// bytes of another.
#[test]
fn a_copy_that_is_read_does_not_move() {
    let disk = Disk::new();
    let (machine, swap) = Machine::with_swap(small(&disk));
    machine.map(0, 64);
    let over = AtomicBool::new(false);
    let Machine { mut idle, arena, space, recorder } = machine;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                swap.write_back(4);
            }
        });
        let mut bytes = vec![0; 4096];
        let mut wrong = 0;
        for round in 0..60 {
            (0..64).for_each(|page| space.write(&mut idle, at(page), &half(page + round)).unwrap());
            space.pageout(&mut idle, pages(0, 64)).unwrap();
            for page in 0..64 {
                let read = space.read(&mut idle, at(page), &mut bytes);
                wrong += u64::from(read.is_err() || bytes != half(page + round));
                if read.is_err() {
                    space.dontneed(&mut idle, pages(page, 1)).unwrap();
                }
            }
        }
        over.store(true, SeqCst);
        assert_eq!(wrong, 0);
    });
    drop((space, recorder));
    assert_eq!((swap.stats().references, arena.stats().in_use, arena.stats().stale_writes), (0, 0, 0));
}
