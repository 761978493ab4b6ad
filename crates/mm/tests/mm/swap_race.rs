//! Tests of pages that leave and return while others use and change them. First another thread acts at the
//! exact moments where it could win a race: the device lets it. Later tests use threads. The negative control
//! is a swap that does not check the page again once the device is done.

use crate::fixture::*;
use crate::swap_device::Disk;
use parking_lot::Mutex;
use slat::{Access, Hva, Idle, PAGE_SIZE};
use slat_mm::{AddressSpace, Arena, Backing, MmError, Place, Prot, Swap, SwapDevice};
use std::any::Any;
use std::panic::resume_unwind;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Barrier};
use std::thread;

pub type Act = Box<dyn FnOnce(&AddressSpace, &mut Idle) + Send>;

/// A device that lets another thread act during its next write or read.
#[derive(Default)]
pub struct Stage {
    pub disk: Arc<Disk>,
    pub space: Mutex<Option<Arc<AddressSpace>>>,
    pub during_write: Mutex<Option<Act>>,
    pub during_read: Mutex<Option<Act>>,
    /// The panic of an act: slat-mm takes a panic in the device for a failure of the device.
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a stage")
    }
}

impl Stage {
    /// Runs the act on its own thread, and waits for its end.
    fn act(&self, act: &Mutex<Option<Act>>) {
        let Some(act) = act.lock().take() else { return };
        let space = self.space.lock().clone().unwrap();
        let run = move || act(&space, &mut Idle::take().unwrap());
        *self.panicked.lock() = thread::spawn(run).join().err();
    }

    /// Called when no act can follow.
    pub fn ends(&self) {
        self.space.lock().take();
        if let Some(panic) = self.panicked.lock().take() {
            resume_unwind(panic);
        }
    }
}

impl SwapDevice for Stage {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<usize> {
        let written = self.disk.write_at(bytes, offset);
        self.act(&self.during_write);
        written
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let read = self.disk.read_at(bytes, offset);
        self.act(&self.during_read);
        read
    }
}

const PAGE: u64 = 3;

/// A machine whose page [`PAGE`] holds 3, and its device.
fn staged() -> (Machine, Arc<Swap>, Arc<Stage>) {
    let stage = Arc::<Stage>::default();
    let (mut machine, swap) = Machine::with_swap(Swap::builder().device(stage.clone(), 1 << 20));
    *stage.space.lock() = Some(machine.space.clone());
    machine.map(0, 8);
    machine.put(PAGE, 3);
    (machine, swap, stage)
}

fn put(space: &AddressSpace, idle: &mut Idle, page: u64, value: u64) {
    space.write(idle, at(page), &value.to_le_bytes()).unwrap();
}

/// Another thread acts while the page leaves. Returns what the page holds in the end, whether it left, and how
/// many copies and frames are left over.
fn out_beside(act: fn(&AddressSpace, &mut Idle)) -> (u64, bool, u64) {
    let (mut machine, swap, stage) = staged();
    *stage.during_write.lock() = Some(Box::new(act));
    let gone = machine.page_out(PAGE, 1) == 1;
    assert!(stage.during_write.lock().is_none(), "the thread did not act");
    let value = machine.get(PAGE);
    stage.ends();
    let arena = machine.arena.clone();
    let clean = machine.all_free();
    (value, gone, swap.stats().references + arena.stats().in_use + u64::from(!clean))
}

/// The same while the page comes back.
fn back_beside(act: fn(&AddressSpace, &mut Idle)) -> (u64, u64) {
    let (mut machine, swap, stage) = staged();
    assert_eq!(machine.page_out(PAGE, 1), 1);
    *stage.during_read.lock() = Some(Box::new(act));
    let value = machine.get(PAGE);
    assert!(stage.during_read.lock().is_none(), "the thread did not act");
    stage.ends();
    let arena = machine.arena.clone();
    let clean = machine.all_free();
    (value, swap.stats().references + arena.stats().in_use + u64::from(!clean))
}

#[test]
fn a_page_that_is_used_during_its_swap_out_stays() {
    assert_eq!(out_beside(|_, _| {}), (3, true, 0));
    let read = out_beside(|space, idle| assert_eq!(get(space, idle, PAGE), 3));
    assert_eq!(read, (3, false, 0));
    let write = out_beside(|space, idle| put(space, idle, PAGE, 5));
    assert_eq!(write, (5, false, 0));
    let dropped = out_beside(|space, idle| space.dontneed(idle, pages(PAGE, 1)).unwrap());
    assert_eq!(dropped, (0, false, 0));
    let pinned = out_beside(|space, idle| drop(space.pin(idle, pages(PAGE, 1)).unwrap()));
    assert_eq!(pinned, (3, false, 0));
}

/// The permissions of the mapping may change while a page is read back.
#[test]
fn a_page_that_lost_its_permissions_during_a_swap_in_is_not_mapped() {
    let (mut machine, _swap, stage) = staged();
    assert_eq!(machine.page_out(PAGE, 1), 1);
    *stage.during_read.lock() =
        Some(Box::new(|space, idle| space.mprotect(idle, pages(PAGE, 1), Prot::None).unwrap()));
    let (space, idle) = (machine.space.clone(), &mut machine.idle);
    assert_eq!(space.fault(idle, at(PAGE), Access::Read), Err(MmError::Denied(at(PAGE), Access::Read)));
    assert_eq!(space.lookup(at(PAGE), Access::Read), None, "a look-up finds the page");
    space.mprotect(idle, pages(PAGE, 1), Prot::ReadWrite).unwrap();
    assert_eq!(get(&space, idle, PAGE), 3);
    stage.ends();
}

/// The page must stay. The soft-dirty clear during its way out is not forgotten.
#[test]
fn soft_dirty_that_is_cleared_on_the_way_stays_cleared() {
    let (mut machine, _swap, stage) = staged();
    machine.put(PAGE + 1, 4);
    let (disk, both) = (stage.disk.clone(), pages(PAGE, 2));
    *stage.during_write.lock() = Some(Box::new(move |space, idle| {
        space.clear_soft_dirty(idle, both).unwrap();
        disk.fail(Some(libc::EIO), None);
    }));
    assert_eq!(machine.page_out(PAGE, 2), 1, "the second page must stay");
    assert_eq!(machine.space.soft_dirty(both).unwrap(), []);
    machine.put(PAGE + 1, 5);
    assert_eq!(machine.space.soft_dirty(both).unwrap(), [pages(PAGE + 1, 1)]);
    machine.put(PAGE, 5);
    assert_eq!(machine.space.soft_dirty(both).unwrap(), [both]);
    stage.ends();
    assert!(machine.all_free());
}

/// A process that writes meanwhile writes to a copy. Otherwise a second swap-out of the same frame, with other
/// contents, could begin. The end of the first would then look like the end of the second.
#[test]
fn a_page_is_swapped_out_once_at_a_time() {
    let twice = out_beside(|space, idle| {
        put(space, idle, PAGE, 5);
        assert_eq!(space.pageout(idle, pages(PAGE, 1)), Ok(1), "page-out of the copy");
        assert_eq!(get(space, idle, PAGE), 5);
        assert_eq!(space.pageout(idle, pages(PAGE, 1)), Ok(1));
    });
    assert_eq!(twice, (5, false, 0));
    let read_then_out = out_beside(|space, idle| {
        assert_eq!(get(space, idle, PAGE), 3);
        assert_eq!(space.pageout(idle, pages(PAGE, 1)), Ok(0), "the frame has two holders");
    });
    assert_eq!(read_then_out, (3, false, 0));
}

#[test]
fn a_change_during_a_swap_in_is_kept() {
    assert_eq!(back_beside(|_, _| {}), (3, 0));
    assert_eq!(back_beside(|space, idle| assert_eq!(get(space, idle, PAGE), 3)), (3, 0));
    assert_eq!(back_beside(|space, idle| put(space, idle, PAGE, 5)), (5, 0));
    let dropped = |space: &AddressSpace, idle: &mut Idle| space.dontneed(idle, pages(PAGE, 1)).unwrap();
    assert_eq!(back_beside(dropped), (0, 0));
    let mapped_anew = |space: &AddressSpace, idle: &mut Idle| {
        space.munmap(idle, pages(PAGE, 1)).unwrap();
        space.mmap(Place::Fixed(at(PAGE)), PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    };
    assert_eq!(back_beside(mapped_anew), (0, 0));
    let moved_and_back = |space: &AddressSpace, idle: &mut Idle| {
        space.mremap(idle, pages(PAGE, 1), PAGE_SIZE, Place::Fixed(at(100))).unwrap();
        put(space, idle, 100, 9);
        space.mremap(idle, pages(100, 1), PAGE_SIZE, Place::Fixed(at(PAGE))).unwrap();
    };
    assert_eq!(back_beside(moved_and_back), (9, 0));
    let forked = |space: &AddressSpace, idle: &mut Idle| {
        let child = space.fork(idle).unwrap();
        put(&child, idle, PAGE, 7);
        assert_eq!(get(&child, idle, PAGE), 7);
    };
    assert_eq!(back_beside(forked), (3, 0));
    let written_and_out_again = |space: &AddressSpace, idle: &mut Idle| {
        put(space, idle, PAGE, 6);
        assert_eq!(space.pageout(idle, pages(PAGE, 1)), Ok(1));
    };
    assert_eq!(back_beside(written_and_out_again), (6, 0));
}

/// All threads find the page. One of them brings it in.
#[test]
fn many_threads_fault_on_one_swapped_page() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 50;
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, ROUNDS);
    machine.number(0, ROUNDS);
    assert_eq!(machine.page_out(0, ROUNDS), ROUNDS);
    let line = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS as u64 {
            let (line, space) = (&line, &machine.space);
            scope.spawn(move || {
                let idle = &mut Idle::take().unwrap();
                for page in 0..ROUNDS {
                    line.wait();
                    assert_eq!(get(space, idle, page), page);
                    // Each thread writes its own word.
                    let own: Hva = at(page) + 8 * (number + 1);
                    space.write(idle, own, &(page + number).to_le_bytes()).unwrap();
                }
            });
        }
    });
    for page in 0..ROUNDS {
        for number in 0..THREADS as u64 {
            let mut word = [0; 8];
            machine.space.read(&mut machine.idle, at(page) + 8 * (number + 1), &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), page + number);
        }
    }
    assert_eq!((machine.space.stats().swapped_in, swap.stats().references), (ROUNDS, 0));
    assert!(machine.all_free());
}

const PAGES: u64 = 96;

/// Two threads write to their own words, and check what they wrote before. Two other threads swap out `out`
/// pages. Returns how often a wrong word was found. The first such find ends the race.
fn race(out: u64) -> u64 {
    let arena = Arena::builder().limit(32 << 20).poison(0xdd).build().unwrap();
    let swap = Swap::builder().memory(8 << 12).device(Disk::new(), 1 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    space.mmap(Place::Fixed(at(0)), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let (wrong, gone, over, line) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false), Barrier::new(4));
    let found = || wrong.load(Relaxed) > 0;
    thread::scope(|scope| {
        for lane in 0..2u64 {
            let (space, over, line, wrong) = (&space, &over, &line, &wrong);
            scope.spawn(move || {
                let idle = &mut Idle::take().unwrap();
                line.wait();
                for pass in 0u64.. {
                    // The last pass comes after the last change, so it finds every lost store.
                    let last = over.load(Acquire);
                    for page in 0..PAGES {
                        let hva = at(page) + 8 * lane;
                        let mut word = [0; 8];
                        let there = space.read(idle, hva, &mut word).is_ok();
                        if !there || u64::from_le_bytes(word) != pass {
                            wrong.fetch_add(1, Relaxed);
                        }
                        let _ = space.write(idle, hva, &(pass + 1).to_le_bytes());
                    }
                    if last {
                        return;
                    }
                }
            });
        }
        for first in 0..2u64 {
            let (space, over, line, gone, found) = (&space, &over, &line, &gone, &found);
            scope.spawn(move || {
                let idle = &mut Idle::take().unwrap();
                line.wait();
                let mut at = first * PAGES / 2;
                while gone.load(Relaxed) < out && !found() {
                    let part = pages(at, 16.min(PAGES - at));
                    gone.fetch_add(space.pageout(idle, part).unwrap(), Relaxed);
                    at = (at + 16) % PAGES;
                }
                over.store(true, Release);
            });
        }
    });
    let wrong = wrong.load(Relaxed);
    if wrong == 0 {
        drop(space);
        assert_eq!((swap.stats().references, arena.stats().in_use, arena.stats().stale_writes), (0, 0, 0));
    }
    wrong
}

#[test]
fn no_write_is_lost_beside_swapping() {
    assert_eq!(race(3000), 0);
}
