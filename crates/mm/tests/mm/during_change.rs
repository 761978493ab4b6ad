//! Tests of faults that run during a change of the mappings. A fault elsewhere goes on. A fault in the same
//! place finds either what was there before the change or what is there after it.

use crate::fixture::{at, pages};
use parking_lot::Mutex;
use slat::notify::NoPages;
use slat::{Access, Again, Event, Hva, Idle, PAGE_SIZE, Pages, Reason, SecondaryMmu, Span};
use slat_mm::{AddressSpace, Advice, Arena, Backing, File, Ksm, MmError, Place, Prot};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

fn space(thp: bool) -> Arc<AddressSpace> {
    let arena = Arena::builder().limit(256 << 20).build().unwrap();
    AddressSpace::builder(&arena).thp(thp).build().unwrap()
}

fn map(space: &AddressSpace, first: u64, count: u64) {
    space.mmap(Place::Fixed(at(first)), count * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
}

fn put(space: &AddressSpace, idle: &mut Idle, hva: Hva, value: u64) {
    space.write(idle, hva, &value.to_le_bytes()).unwrap();
}

fn get(space: &AddressSpace, idle: &mut Idle, hva: Hva) -> Result<u64, MmError> {
    let mut word = [0; 8];
    space.read(idle, hva, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// The code that a test runs in the middle of a change.
type Hook = Box<dyn FnOnce() + Send>;

/// Runs a hook in the middle of the next change for one reason.
struct MidChange {
    of: Reason,
    hook: Mutex<Option<Hook>>,
}

impl MidChange {
    fn register(space: &AddressSpace, of: Reason, hook: impl FnOnce() + Send + 'static) -> Arc<Self> {
        let listener = Arc::new(Self { of, hook: Mutex::new(Some(Box::new(hook))) });
        space.register(&listener);
        listener
    }

    fn ran(&self) -> bool {
        self.hook.lock().is_none()
    }
}

impl SecondaryMmu for MidChange {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let hook = (event.why == self.of).then(|| self.hook.lock().take()).flatten();
        if let Some(hook) = hook {
            hook();
        }
        change(idle, &mut NoPages);
        Ok(())
    }
}

/// Runs `work` on its own thread, and waits for it.
fn elsewhere(work: impl FnOnce(&mut Idle) + Send + 'static) {
    thread::spawn(move || work(&mut Idle::take().unwrap())).join().unwrap();
}

#[test]
fn a_fault_elsewhere_waits_for_no_change_of_mappings() {
    type Change = fn(&AddressSpace, &mut Idle);
    let changes: [(Reason, Change); 5] = [
        (Reason::Unmap, |space, idle| space.munmap(idle, pages(0, 5)).unwrap()),
        (Reason::Protect, |space, idle| space.mprotect(idle, pages(0, 5), Prot::Read).unwrap()),
        (Reason::Clear, |space, idle| space.mprotect(idle, pages(0, 5), Prot::None).unwrap()),
        (Reason::Remap, |space, idle| {
            space.mremap(idle, pages(0, 5), 5 * PAGE_SIZE, Place::Fixed(at(4096))).unwrap();
        }),
        (Reason::WriteProtect, |space, idle| drop(space.fork(idle).unwrap())),
    ];
    for (why, change) in changes {
        let (space, mut idle) = (space(true), Idle::take().unwrap());
        map(&space, 0, 8);
        put(&space, &mut idle, at(0), 1);
        // A fork write-protects all private memory. Shared memory therefore counts as elsewhere for every
        // change.
        let file = File::zeroed(space.arena(), 4 << 20);
        let backing = Backing::Shared { file, offset: 0 };
        space.mmap(Place::Fixed(at(1024)), 4 << 20, Prot::ReadWrite, backing).unwrap();
        map(&space, 8192, 8);
        let other = space.clone();
        let listener = MidChange::register(&space, why, move || {
            elsewhere(move |idle| {
                put(&other, idle, at(1024), 5);
                assert_eq!(get(&other, idle, at(1024)), Ok(5));
                if why != Reason::WriteProtect {
                    put(&other, idle, at(8192), 6);
                    put(&other, idle, at(7), 7);
                }
                let more = other.mmap(Place::Anywhere, PAGE_SIZE, Prot::Read, Backing::Anonymous).unwrap();
                other.munmap(idle, more).unwrap();
            });
        });
        change(&space, &mut idle);
        assert!(listener.ran(), "{why:?}");
        assert_eq!(get(&space, &mut idle, at(1024)), Ok(5));
    }
}

/// Each round uses memory without tables. The unmap must find the tables that a fault links there.
#[test]
fn munmap_leaves_no_page_behind() {
    let space = space(true);
    let mut idle = Idle::take().unwrap();
    let (mut faulted, mut refused) = (0, 0);
    for round in 0..400 {
        let place = Span::sized(at(0) + (round << 30), 2 << 20);
        space.mmap(Place::Fixed(place.start), place.len(), Prot::ReadWrite, Backing::Anonymous).unwrap();
        let start = Barrier::new(2);
        let found = thread::scope(|scope| {
            let fault = scope.spawn(|| {
                let mut idle = Idle::take().unwrap();
                start.wait();
                space.fault(&mut idle, place.start, Access::Write)
            });
            start.wait();
            // The fault may come sooner or later.
            (0..round % 16 * 256).for_each(|_| std::hint::spin_loop());
            space.munmap(&mut idle, place).unwrap();
            fault.join().unwrap()
        });
        match found {
            Ok(_) => faulted += 1,
            Err(MmError::NotMapped(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert_eq!(space.lookup(place.start, Access::Read), None, "round {round}");
    }
    println!("{faulted} faults came before munmap, {refused} after");
    let arena = space.arena().clone();
    drop(space);
    assert_eq!(arena.stats().in_use, 0);
}

#[test]
fn munmap_does_not_empty_a_new_mapping() {
    const PAGES: u64 = 4096;
    let space = space(false);
    let mut idle = Idle::take().unwrap();
    map(&space, 0, PAGES);
    for _ in 0..12 {
        (0..PAGES).for_each(|page| put(&space, &mut idle, at(page), page));
        thread::scope(|scope| {
            let again = scope.spawn(|| {
                let mut idle = Idle::take().unwrap();
                loop {
                    let last = space.mmap(
                        Place::Fixed(at(PAGES - 1)),
                        PAGE_SIZE,
                        Prot::ReadWrite,
                        Backing::Anonymous,
                    );
                    match last {
                        Ok(_) => break,
                        Err(error) => assert!(matches!(error, MmError::Occupied(_)), "{error}"),
                    }
                }
                put(&space, &mut idle, at(PAGES - 1), 7);
            });
            space.munmap(&mut idle, pages(0, PAGES)).unwrap();
            again.join().unwrap();
        });
        assert_eq!(get(&space, &mut idle, at(PAGES - 1)), Ok(7));
        map(&space, 0, PAGES - 1);
    }
}

/// A thread stores first to one page, then to the other. A fork that has the second store must have the first.
#[test]
fn a_fork_shows_one_moment() {
    const LAST: u64 = 3000;
    let space = space(false);
    let mut idle = Idle::take().unwrap();
    map(&space, 0, 1);
    map(&space, 1, LAST - 1);
    map(&space, LAST, 1);
    (0..=LAST).for_each(|page| put(&space, &mut idle, at(page), 0));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            for value in 1.. {
                put(&space, &mut idle, at(0), value);
                put(&space, &mut idle, at(LAST), value);
                if over.load(SeqCst) {
                    break;
                }
            }
        });
        let torn = (0..60).find_map(|_| {
            let child = space.fork(&mut idle).unwrap();
            let [first, second] = [0, LAST].map(|page| get(&child, &mut idle, at(page)).unwrap());
            (second > first).then_some((first, second))
        });
        over.store(true, SeqCst);
        assert_eq!(torn, None, "the fork has the second store without the first");
    });
}

#[test]
fn a_range_that_moves_is_found_whole_or_not_at_all() {
    const PAGES: u64 = 1500;
    let space = space(true);
    let mut idle = Idle::take().unwrap();
    // The target has another alignment than the source, so the move splits huge pages.
    let places = [at(512), at(512 * 64 + 7)];
    space.mmap(Place::Fixed(places[0]), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    (0..PAGES).for_each(|page| put(&space, &mut idle, places[0] + page * PAGE_SIZE, page + 1));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut idle, mut found) = (Idle::take().unwrap(), 0);
            for page in (0..PAGES).cycle() {
                for place in places {
                    match get(&space, &mut idle, place + page * PAGE_SIZE) {
                        Ok(value) if value == page + 1 => found += 1,
                        Ok(value) => return Err((page, value)),
                        Err(error) => assert!(matches!(error, MmError::NotMapped(_)), "{error}"),
                    }
                }
                if over.load(SeqCst) {
                    break;
                }
            }
            Ok(found)
        });
        for round in 0..60 {
            let (from, to) = (places[round % 2], places[1 - round % 2]);
            let old = Span::sized(from, PAGES * PAGE_SIZE);
            space.mremap(&mut idle, old, old.len(), Place::Fixed(to)).unwrap();
        }
        over.store(true, SeqCst);
        assert!(reader.join().unwrap().unwrap() > 0);
    });
    (0..PAGES)
        .for_each(|page| assert_eq!(get(&space, &mut idle, places[0] + page * PAGE_SIZE), Ok(page + 1)));
}

#[test]
fn no_share_is_broken_after_the_mapping_changed() {
    let space = space(false);
    let mut idle = Idle::take().unwrap();
    map(&space, 0, 4);
    put(&space, &mut idle, at(3), 1);
    let _child = space.fork(&mut idle).unwrap();
    let file = File::zeroed(space.arena(), PAGE_SIZE);
    let shared = || Backing::Shared { file: file.clone(), offset: 0 };
    space.mmap(Place::Fixed(at(100)), PAGE_SIZE, Prot::ReadWrite, shared()).unwrap();
    let (other, backing) = (space.clone(), shared());
    let listener = MidChange::register(&space, Reason::ChangePte, move || {
        elsewhere(move |idle| {
            other.munmap(idle, pages(3, 1)).unwrap();
            other.mmap(Place::Fixed(at(3)), PAGE_SIZE, Prot::Read, backing).unwrap();
            assert_eq!(get(&other, idle, at(3)), Ok(0));
        });
    });
    let refused = space.write(&mut idle, at(3), &[9]);
    assert!(listener.ran());
    assert_eq!(refused, Err(MmError::Denied(at(3), Access::Write)));
    put(&space, &mut idle, at(100), 77);
    assert_eq!(get(&space, &mut idle, at(3)), Ok(77), "the page is still the file's");
}

#[test]
fn a_page_that_refuses_merging_is_not_merged() {
    let space = space(false);
    let mut idle = Idle::take().unwrap();
    map(&space, 0, 2);
    space.madvise(&mut idle, pages(0, 2), Advice::Mergeable).unwrap();
    (0..2).for_each(|page| put(&space, &mut idle, at(page), 5));
    let ksm = Ksm::builder(space.arena()).build().unwrap();
    ksm.add(&space).unwrap();
    let other = space.clone();
    let listener = MidChange::register(&space, Reason::ChangePte, move || {
        elsewhere(move |idle| other.madvise(idle, pages(0, 2), Advice::Unmergeable).unwrap());
    });
    for _ in 0..3 {
        ksm.scan(&mut idle, u64::MAX);
    }
    assert!(listener.ran());
    let is_merged = |page: &u64| space.arena().is_merged(space.lookup(at(*page), Access::Read).unwrap().pfn);
    assert!(![0, 1].iter().any(is_merged), "the mapping refused merging before KSM replaced the entry");
}
