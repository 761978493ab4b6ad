//! Tests of files, permissions and placement, of memory that runs out, and of memory that comes back.

use crate::fixture::*;
use slat::{Access, HostError, Hva, Level, PAGE_SIZE, Pfn, Span};
use slat_mm::{AddressSpace, Arena, Backing, File, Held, MmError, Place, Prot};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[test]
fn a_shared_file_is_one_memory_in_many_places() {
    let mut machine = Machine::new();
    let file = File::zeroed(&machine.arena, 4 * PAGE_SIZE);
    let shared = |offset| Backing::Shared { file: file.clone(), offset };
    let map =
        |place, backing| machine.space.mmap(Place::Fixed(place), 2 * PAGE_SIZE, Prot::ReadWrite, backing);
    map(at(0), shared(0)).unwrap();
    map(at(10), shared(PAGE_SIZE)).unwrap();
    machine.put(1, 5);
    assert_eq!(machine.get(10), 5);
    let child = machine.space.fork(&mut machine.idle).unwrap();
    child.write(&mut machine.idle, at(11), &6u64.to_le_bytes()).unwrap();
    machine.space.dontneed(&mut machine.idle, pages(0, 12)).unwrap();
    assert_eq!([1, 10, 11].map(|page| machine.get(page)), [5, 5, 6], "the file keeps the stores");
    assert_eq!(
        machine.space.migrate(&mut machine.idle, pages(0, 12)),
        Ok(0),
        "other processes may have the file mapped"
    );
    machine.map(2, 1);
    machine.put(2, 2);
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(0, 12)), Ok(1), "only the private page moves");
    machine.put(1, 7);
    assert_eq!([1, 2, 10].map(|page| machine.get(page)), [7, 2, 7]);
    drop((child, file));
    assert!(machine.all_free());
}

#[test]
fn a_mapping_ends_with_its_file() {
    let mut machine = Machine::new();
    let file = File::with_contents(&machine.arena, vec![1; 5000]);
    let backing = Backing::Private { file, offset: 0 };
    machine.space.mmap(Place::Fixed(at(0)), 3 * PAGE_SIZE, Prot::Read, backing).unwrap();
    let mut bytes = [9; 8];
    machine.space.read(&mut machine.idle, at(0) + 4996, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 1, 1, 1, 0, 0, 0, 0], "the rest of the last page is zero");
    let past = machine.space.read(&mut machine.idle, at(2), &mut bytes);
    assert_eq!(past, Err(MmError::PastEnd(at(2))));
    assert!(machine.all_free());
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    machine.number(0, 4);
    let other = Arena::builder().limit(2 << 20).build().unwrap();
    let file = File::zeroed(&machine.arena, PAGE_SIZE);
    let refused = |place, len, backing| machine.space.mmap(place, len, Prot::Read, backing).unwrap_err();
    let foreign = Backing::Shared { file: File::zeroed(&other, PAGE_SIZE), offset: 0 };
    assert_eq!(refused(Place::Anywhere, PAGE_SIZE, foreign), MmError::ForeignFile);
    let odd = Backing::Shared { file, offset: 7 };
    assert_eq!(refused(Place::Anywhere, PAGE_SIZE, odd), MmError::BadOffset(7));
    let occupied = refused(Place::Fixed(at(3)), PAGE_SIZE, Backing::Anonymous);
    assert_eq!(occupied, MmError::Occupied(pages(3, 1)));

    let (space, idle) = (&machine.space, &mut machine.idle);
    let (gap, odd) = (pages(2, 5), Span::new(at(0) + 1, at(1)));
    assert_eq!(space.mprotect(idle, gap, Prot::None), Err(MmError::NotMapped(at(4))));
    assert_eq!(space.mremap(idle, gap, PAGE_SIZE, Place::Anywhere), Err(MmError::NotMapped(at(4))));
    let onto_itself = space.mremap(idle, pages(0, 2), 2 * PAGE_SIZE, Place::Fixed(at(1)));
    assert_eq!(onto_itself, Err(MmError::Occupied(pages(1, 2))));
    assert_eq!(space.mremap(idle, pages(0, 2), 0, Place::Anywhere), Err(MmError::BadRange(pages(0, 0))));
    for refused in [space.munmap(idle, odd), space.dontneed(idle, odd), space.migrate(idle, odd).map(drop)] {
        assert_eq!(refused, Err(MmError::BadRange(odd)));
    }
    assert_eq!(space.write(idle, Hva(u64::MAX), &[1, 2]), Err(MmError::NotMapped(Hva(u64::MAX))));
    assert_eq!(space.read(idle, Hva(1 << 63), &mut [0]), Err(MmError::NotMapped(Hva(1 << 63))));
    assert_eq!(space.fault(idle, at(9), Access::Read), Err(MmError::NotMapped(at(9))));
    assert_eq!(
        space.lookup(Hva((1 << 48) + BASE.0), Access::Read),
        None,
        "a second name for an address is refused"
    );
    assert!(machine.recorder.take().is_empty());
    assert_eq!([0, 1, 2, 3].map(|page| machine.get(page)), [0, 1, 2, 3]);
    assert!(machine.all_free());
}

#[test]
fn permissions_decide_who_may_fault() {
    let mut machine = Machine::new();
    for (page, prot) in [(0, Prot::None), (1, Prot::Read), (2, Prot::ReadWrite)] {
        machine.space.mmap(Place::Fixed(at(page)), PAGE_SIZE, prot, Backing::Anonymous).unwrap();
        for access in [Access::Read, Access::Write, Access::Fetch] {
            let found = machine.space.fault(&mut machine.idle, at(page), access);
            if prot.allows(access) {
                assert!(found.unwrap().writable || access != Access::Write);
            } else {
                assert_eq!(found, Err(MmError::Denied(at(page), access)));
            }
        }
    }
    assert!(machine.all_free());
}

/// The limit counts tables, too. After an error everything is still usable, and freeing makes room.
#[test]
fn memory_that_runs_out_is_an_error_and_comes_back() {
    let mut idle = slat::Idle::take().unwrap();
    let arena = Arena::builder().limit(4 << 20).poison(0xdd).build().unwrap();
    let space = AddressSpace::builder(&arena).build().unwrap();
    space.mmap(Place::Fixed(at(0)), 16 << 20, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let write = |idle: &mut _, page| space.write(idle, at(page), &[1]);
    let fits = (0..4096).take_while(|&page| write(&mut idle, page).is_ok()).count() as u64;
    assert_eq!(fits, 1024 - 64, "all frames but the tables");
    assert_eq!(write(&mut idle, fits), Err(MmError::OutOfFrames(Level::K4)));
    assert_eq!(HostError::from(MmError::OutOfFrames(Level::K4)), HostError::NoMemory);
    assert_eq!(space.migrate(&mut idle, pages(0, 4)), Err(MmError::OutOfFrames(Level::K4)));
    let fork = space.fork(&mut idle).map(drop);
    assert_eq!(fork, Err(MmError::OutOfTables));
    space.dontneed(&mut idle, pages(0, 10)).unwrap();
    assert_eq!(space.migrate(&mut idle, pages(10, 5)), Ok(5));
    assert_eq!((write(&mut idle, fits), write(&mut idle, 700)), (Ok(()), Ok(())));
    drop(space);
    assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (0, 0));
    let tiny = Arena::builder().limit(2 << 20).build().unwrap();
    let _hoard = tiny.page(Level::M2).unwrap();
    assert_eq!(AddressSpace::builder(&tiny).build().map(drop), Err(MmError::OutOfTables));
}

/// A fork that runs out of memory half-way leaves only write protection behind, which faults undo.
#[test]
fn a_fork_that_fails_half_way_is_undone() {
    let mut idle = slat::Idle::take().unwrap();
    let arena = Arena::builder().limit(4 << 20).build().unwrap();
    let space = AddressSpace::builder(&arena).build().unwrap();
    // A page in each of 40 GiB. Each page needs its own tables, which fill more than one chunk.
    let far = |page: u64| Hva(page << 30);
    for page in 1..40 {
        space.mmap(Place::Fixed(far(page)), PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        space.write(&mut idle, far(page), &[page as u8]).unwrap();
    }
    let in_use = arena.stats().in_use;
    let mut hoard: Vec<_> = std::iter::from_fn(|| arena.page(Level::K4).ok()).collect();
    // There is room for one chunk, but not for two.
    hoard.sort_by_key(slat_mm::Held::pfn);
    let chunk =
        hoard.windows(64).position(|run| run[0].pfn().0 % 64 == 0 && run[63].pfn() == run[0].pfn() + 63);
    drop(hoard.drain(chunk.unwrap()..chunk.unwrap() + 64));
    assert_eq!(space.fork(&mut idle).map(drop), Err(MmError::OutOfTables));
    drop(hoard);
    assert_eq!(arena.stats().in_use, in_use);
    for page in 1..40 {
        let mut byte = [0];
        space.read(&mut idle, far(page), &mut byte).unwrap();
        assert_eq!(byte, [page as u8]);
        space.write(&mut idle, far(page), &[0]).unwrap();
    }
    assert_eq!(space.stats().cow_breaks, 0);
}

/// To unmap a part of a huge page needs a table. Without one, nothing is unmapped and no MMU is told.
#[test]
fn an_unmapping_that_cannot_split_changes_nothing() {
    let mut machine = Machine::huge();
    machine.map(0, 512);
    machine.number(0, 512);
    let arena = machine.arena.clone();
    let hoard: Vec<_> = std::iter::from_fn(|| arena.page(Level::M2).ok()).collect();
    // The same page of a file, mapped in many distant places, uses up the memory left for tables.
    let file = File::zeroed(&machine.arena, PAGE_SIZE);
    let full = (2..10_000).map(|page| Hva(page << 30)).find_map(|far| {
        let backing = Backing::Shared { file: file.clone(), offset: 0 };
        machine.space.mmap(Place::Fixed(far), PAGE_SIZE, Prot::Read, backing).unwrap();
        machine.space.fault(&mut machine.idle, far, Access::Read).err()
    });
    assert_eq!(full, Some(MmError::OutOfTables));
    let refused = machine.space.munmap(&mut machine.idle, pages(100, 10));
    assert_eq!(refused, Err(MmError::OutOfTables));
    assert!(machine.recorder.take().is_empty());
    assert_eq!((machine.get(105), machine.look(105).unwrap().level), (105, Level::M2));
    drop((hoard, file));
    machine.space.munmap(&mut machine.idle, pages(100, 10)).unwrap();
    assert_eq!((machine.look(105), machine.get(99), machine.get(110)), (None, 99, 110));
    assert!(machine.all_free());
}

#[test]
fn every_frame_comes_back() {
    let mut machine = Machine::huge();
    machine.map(0, 2000);
    machine.number(0, 2000);
    assert!(machine.arena.stats().in_use > 2000);
    assert!(machine.all_free());
}

#[test]
fn negative_control_a_leaked_frame_is_noticed() {
    let mut machine = Machine::new();
    machine.map(0, 10);
    machine.number(0, 10);
    std::mem::forget(machine.arena.page(Level::K4).unwrap());
    assert!(!machine.all_free());
}

#[test]
fn negative_control_a_write_to_a_freed_frame_is_noticed() {
    let mut machine = Machine::new();
    machine.map(0, 10);
    machine.number(0, 10);
    let stale: Pfn = machine.look(3).unwrap().pfn;
    machine.space.migrate(&mut machine.idle, pages(3, 1)).unwrap();
    // SAFETY: the frame belongs to the arena. It is free, which is the mistake that the test must find.
    unsafe { machine.arena.frame(stale).write(0) };
    machine.space.dontneed(&mut machine.idle, pages(0, 10)).unwrap();
    machine.number(0, 10);
    assert!(!machine.all_free());
}

/// Frames go back to the system while other threads take, use and free them. In each second round threads take their frames when the trim
/// has looked which ones are free.
#[test]
fn no_frame_is_trimmed_that_another_thread_takes() {
    const ROUNDS: u64 = 200;
    const FRAME: usize = 4096;
    let arena = Arena::builder().limit(2 << 20).build().unwrap();
    let (step, unzeroed, lost) = (Barrier::new(3), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for byte in [1, 2] {
            let (arena, step, unzeroed, lost) = (&arena, &step, &unzeroed, &lost);
            // The thread holds the page.
            let frame = |page: &Held<'_>| arena.frame(page.pfn()).cast::<[u8; FRAME]>();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    step.wait();
                    std::thread::sleep(Duration::from_millis(round % 2));
                    let pages: Vec<_> = (0..40).map(|_| arena.zeroed(Level::K4).unwrap()).collect();
                    for page in &pages {
                        // SAFETY: see `frame`.
                        unzeroed.fetch_add(u64::from(unsafe { *frame(page) } != [0; FRAME]), Relaxed);
                        // SAFETY: as above.
                        unsafe { *frame(page) = [byte; FRAME] };
                    }
                    step.wait();
                    // SAFETY: as above.
                    let gone = pages.iter().filter(|page| unsafe { *frame(page) } != [byte; FRAME]);
                    lost.fetch_add(gone.count() as u64, Relaxed);
                }
            });
        }
        for _ in 0..ROUNDS {
            step.wait();
            arena.trim().unwrap();
            step.wait();
        }
    });
    assert_eq!(
        (unzeroed.into_inner(), lost.into_inner()),
        (0, 0),
        "frames that were not zeroed, and that were given back"
    );
    assert_eq!(arena.stats().in_use, 0);
}

/// A node of this size has several zones of free frames. Threads whose own zone is empty find frames in the
/// others.
#[test]
fn threads_find_the_last_frame_wherever_it_is() {
    const BLOCKS: u64 = 64;
    const FRAMES: usize = 512 * BLOCKS as usize;
    let arena = Arena::builder().limit(BLOCKS << 21).build().unwrap();
    for (level, threads) in [(Level::M2, 1), (Level::M2, 3), (Level::K4, 1), (Level::K4, 3), (Level::M2, 3)] {
        let held: Vec<_> = std::thread::scope(|scope| {
            let take = || std::iter::from_fn(|| arena.page(level).ok()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut taken: Vec<_> = held.iter().flatten().map(Held::pfn).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len() * level.pages() as usize, FRAMES, "all frames of {level:?}, each once");
        assert_eq!(arena.page(level).map(drop), Err(MmError::OutOfFrames(level)));
        drop(held);
        assert_eq!(arena.stats().in_use, 0);
    }
}

#[test]
fn frames_that_were_zeroed_ahead_hold_zeroes() {
    let arena = Arena::builder().limit(4 << 20).build().unwrap();
    let all = |take: fn(&Arena) -> Result<Held<'_>, MmError>| {
        std::iter::from_fn(|| take(&arena).ok()).collect::<Vec<_>>()
    };
    for page in all(|arena| arena.page(Level::K4)) {
        // SAFETY: this thread holds the page.
        unsafe { arena.frame(page.pfn()).write(7) };
    }
    assert!(arena.zero_ahead(64) >= 64);
    let zeroed = all(|arena| arena.zeroed(Level::K4));
    assert!(zeroed.len() >= 64);
    // SAFETY: as above.
    assert!(zeroed.iter().all(|page| unsafe { arena.frame(page.pfn()).read() } == 0));
}

#[test]
fn frames_that_were_zeroed_ahead_are_found_by_threads_that_need_any() {
    for level in [Level::K4, Level::M2] {
        let arena = Arena::builder().limit(8 << 20).nodes(2).poison(0xdd).build().unwrap();
        assert!(arena.zero_ahead(1000) > 1500, "most of each node");
        let all: Vec<_> = std::iter::from_fn(|| arena.page(level).ok()).collect();
        assert_eq!((all.len() as u64 * level.pages(), arena.stats().stale_writes), (2048, 0));
    }
}

/// One thread zeroes frames ahead. Another uses each of them as soon as it is offered.
#[test]
fn a_frame_is_zeroed_before_another_thread_can_have_it() {
    let arena = Arena::builder().limit(4 << 20).build().unwrap();
    let byte = |page: &Held<'_>| arena.frame(page.pfn());
    std::thread::scope(|scope| {
        let ahead = scope.spawn(|| arena.zero_ahead(64));
        let mut held = Vec::new();
        while held.len() < 100 {
            let page = arena.zeroed(Level::K4).unwrap();
            // SAFETY: this thread holds the page.
            unsafe { byte(&page).write(7) };
            if arena.list_stats().zeroed > 0 {
                held.push(page);
            } else {
                drop(page);
                std::thread::yield_now();
            }
        }
        assert!(ahead.join().unwrap() >= 64, "the frames taken meanwhile are replaced");
        // SAFETY: as above.
        assert!(held.iter().all(|page| unsafe { byte(page).read() } == 7), "a store was lost");
    });
    assert_eq!(arena.stats().in_use, 0);
}
