//! Tests of what swapping out costs others: they do not wait for the device, pay nothing, and get memory again.

use crate::fixture::{at, pages};
use crate::listener::Listener;
use slat::{Access, Idle, Level, PAGE_SIZE};
use slat_mm::*;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// A timeout. Work that does not wait for the device ends earlier on every machine.
pub const HANGS: Duration = Duration::from_secs(20);

/// A device that keeps what is written.
#[derive(Debug, Default)]
pub struct Blocks(Mutex<Vec<u8>>);

impl SwapDevice for Blocks {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let (start, mut blocks) = (offset as usize, self.0.lock().unwrap());
        let len = blocks.len().max(start + bytes.len());
        blocks.resize(len, 0);
        blocks[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        bytes.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..bytes.len()]);
        Ok(bytes.len())
    }
}

/// A device that holds each write until the test opens it. Then it makes the write, or fails it.
#[derive(Debug)]
pub struct Gate {
    begun: Mutex<Sender<()>>,
    /// Whether the gate is open, and whether writes fail from then on.
    open: Mutex<Option<bool>>,
    opened: Condvar,
    blocks: Blocks,
}

impl Gate {
    /// A closed gate, and a receiver that gets a message for each write that has begun.
    pub fn new() -> (Arc<Self>, Receiver<()>) {
        let (sender, begun) = channel();
        let (open, opened, blocks) = (Mutex::default(), Condvar::new(), Blocks::default());
        (Arc::new(Self { begun: Mutex::new(sender), open, opened, blocks }), begun)
    }

    pub fn close(&self) {
        *self.open.lock().unwrap() = None;
    }

    pub fn is_open(&self) -> bool {
        self.open.lock().unwrap().is_some()
    }

    pub fn open(&self, fails: bool) {
        self.open.lock().unwrap().get_or_insert(fails);
        self.opened.notify_all();
    }
}

impl SwapDevice for Gate {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let _ = self.begun.lock().unwrap().send(());
        let open = self.opened.wait_while(self.open.lock().unwrap(), |open| open.is_none()).unwrap();
        if *open == Some(true) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.blocks.write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.blocks.read_at(bytes, offset)
    }
}

/// Opens the device when the test ends, also where the test fails.
pub struct OpensAtLast<'a>(pub &'a Gate);

impl Drop for OpensAtLast<'_> {
    fn drop(&mut self) {
        self.0.open(false);
    }
}

pub fn anon(space: &AddressSpace, first: u64, count: u64) {
    let len = count * PAGE_SIZE;
    space.mmap(Place::Fixed(at(first)), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
}

/// The contents of page `page`. They compress to a half.
fn noise(page: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(page);
    (0..2000).map(|_| random.u8(..)).collect()
}

fn fill(space: &AddressSpace, idle: &mut Idle, page: u64) -> Result<(), MmError> {
    space.write(idle, at(page), &noise(page))
}

fn holds(space: &AddressSpace, idle: &mut Idle, page: u64) -> bool {
    let mut found = vec![0; 2000];
    space.read(idle, at(page), &mut found).unwrap();
    found == noise(page)
}

/// An address space that swaps to a gate.
fn gated(lru: bool) -> (Arc<Arena>, Arc<AddressSpace>, Arc<Gate>, Receiver<()>) {
    let (gate, begun) = Gate::new();
    let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
    let swap = Swap::builder().device(gate.clone(), 16 << 20).build(&arena).unwrap();
    let builder = AddressSpace::builder(&arena).swap(&swap);
    let builder = if lru { builder.lru(LruSettings::default()) } else { builder };
    (arena, builder.build().unwrap(), gate, begun)
}

/// Whether `work` ends on its own thread, whatever the device does.
pub fn ends(work: impl FnOnce(&mut Idle) + Send + 'static) -> bool {
    let (sender, done) = channel();
    thread::spawn(move || {
        work(&mut Idle::take().unwrap());
        let _ = sender.send(());
    });
    done.recv_timeout(HANGS).is_ok()
}

#[test]
fn neither_faults_nor_changes_nor_listeners_wait_for_pages_on_their_way_to_the_device() {
    type Way = fn(&AddressSpace, &mut Idle) -> u64;
    let ways: [Way; 2] =
        [|space, idle| space.pageout(idle, pages(0, 64)).unwrap(), |space, idle| space.reclaim(idle, 64)];
    for (lru, way) in [false, true].into_iter().zip(ways) {
        let mut idle = Idle::take().unwrap();
        let (_arena, space, gate, begun) = gated(lru);
        anon(&space, 0, 64);
        anon(&space, 4096, 2);
        (0..64).for_each(|page| fill(&space, &mut idle, page).unwrap());
        thread::scope(|scope| {
            let _at_last = OpensAtLast(&gate);
            let out = scope.spawn(|| way(&space, &mut Idle::take().unwrap()));
            begun.recv_timeout(HANGS).expect("the swap writes to the device");
            let shared = || space.clone();
            let other = shared();
            assert!(ends(move |idle| other.munmap(idle, pages(4096, 1)).unwrap()), "another mapping");
            let other = shared();
            assert!(
                ends(move |idle| assert!(other.fault(idle, at(4097), Access::Write).is_ok())),
                "another page"
            );
            let other = shared();
            assert!(
                ends(move |idle| assert!(holds(&other, idle, 5))),
                "a read of a page on its way to the device"
            );
            let other = shared();
            assert!(
                ends(move |idle| other.write(idle, at(6), &[6; 2000]).unwrap()),
                "a write to a page on its way"
            );
            let other = shared();
            assert!(
                ends(move |idle| other.munmap(idle, pages(7, 1)).unwrap()),
                "an unmapping of a page on its way"
            );
            let other = shared();
            assert!(ends(move |_| other.register(&Arc::new(Listener::default()))), "a VM that registers");
            gate.open(false);
            assert!(out.join().unwrap() > 0, "the other pages left");
        });
        assert!((0..64).filter(|page| ![6, 7].contains(page)).all(|page| holds(&space, &mut idle, page)));
        let mut found = [0; 2000];
        space.read(&mut idle, at(6), &mut found).unwrap();
        assert_eq!(found, [6; 2000], "the store made meanwhile");
        assert!(space.lookup(at(7), Access::Read).is_none());
    }
}

/// The mapping changes while the device is busy. Then the device fails, and the page comes back to the
/// permissions of that moment.
#[test]
fn a_page_that_cannot_be_stored_comes_back_only_where_its_mapping_still_allows_it() {
    let mut idle = Idle::take().unwrap();
    let (arena, space, gate, begun) = gated(false);
    anon(&space, 0, 1);
    fill(&space, &mut idle, 0).unwrap();
    let file = File::zeroed(&arena, PAGE_SIZE);
    let backing = Backing::Shared { file: file.clone(), offset: 0 };
    space.mmap(Place::Fixed(at(1)), PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
    fill(&space, &mut idle, 1).unwrap();
    thread::scope(|scope| {
        let _at_last = OpensAtLast(&gate);
        let out = [0, 1].map(|page| {
            let space = &space;
            let out = scope.spawn(move || space.pageout(&mut Idle::take().unwrap(), pages(page, 1)).unwrap());
            begun.recv_timeout(HANGS).expect("the swap writes to the device");
            out
        });
        let other = space.clone();
        assert!(ends(move |idle| other.mprotect(idle, pages(0, 1), Prot::None).unwrap()));
        let other = space.clone();
        assert!(ends(move |idle| other.munmap(idle, pages(1, 1)).unwrap()));
        anon(&space, 1, 1);
        gate.open(true);
        assert_eq!(out.map(|out| out.join().unwrap()), [0, 0]);
    });
    assert!(space.lookup(at(0), Access::Read).is_none(), "no access is allowed");
    space.mprotect(&mut idle, pages(0, 1), Prot::Read).unwrap();
    assert!(holds(&space, &mut idle, 0));
    assert!(space.lookup(at(1), Access::Read).is_none(), "another mapping");
    let mut found = [7];
    space.read(&mut idle, at(1), &mut found).unwrap();
    assert_eq!(found, [0]);
    let table_frames = arena.stats().tables;
    space.exit(&mut idle).unwrap();
    drop(file);
    assert_eq!(arena.stats().in_use, table_frames, "every reference was given back");
}

/// A device that has no room until the test says otherwise.
#[derive(Debug, Default)]
struct Tight {
    has_room: AtomicBool,
    blocks: Blocks,
}

impl SwapDevice for Tight {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if !self.has_room.load(SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.blocks.write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.blocks.read_at(bytes, offset)
    }
}

const LIMIT: u64 = 1 << 20;

/// Writes to fresh pages up to the limit. Returns the next page.
fn up_to_the_limit(space: &AddressSpace, idle: &mut Idle) -> u64 {
    anon(space, 0, 1024);
    (0..1024).find(|&page| space.charged() >= LIMIT || fill(space, idle, page).is_err()).unwrap()
}

#[test]
fn a_device_that_was_full_for_a_moment_is_asked_again() {
    let (mut idle, device) = (Idle::take().unwrap(), Arc::<Tight>::default());
    let arena = Arena::builder().limit(8 << 20).build().unwrap();
    let swap = Swap::builder().device(device.clone(), 4 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).build().unwrap();
    let next = up_to_the_limit(&space, &mut idle);
    for _ in 0..3 {
        let refused = space.write(&mut idle, at(next), &[1]);
        assert_eq!((refused, swap.has_room()), (Err(MmError::OutOfFrames(Level::K4)), false));
    }
    device.has_room.store(true, SeqCst);
    assert_eq!((space.write(&mut idle, at(next), &[1]), swap.has_room()), (Ok(()), true));
    assert!((0..next).all(|page| page == next || holds(&space, &mut idle, page)));
}

#[test]
fn an_arena_that_was_full_for_a_moment_does_not_make_the_swap_full() {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(8 << 20).build().unwrap();
    let swap = Swap::builder().memory(4 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).build().unwrap();
    up_to_the_limit(&space, &mut idle);
    let passing: Vec<_> = std::iter::from_fn(|| arena.page(Level::K4).ok()).collect();
    assert!(space.write(&mut idle, at(900), &[1]).is_err(), "a write found a frame in a full arena");
    assert!(swap.has_room(), "the pool is far from its limit");
    drop(passing);
    assert_eq!(space.write(&mut idle, at(901), &[1]), Ok(()), "{:?}", arena.stats());
}

#[test]
fn an_address_space_pays_for_its_own_copies_only() {
    const MANY: u64 = 2048;
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(64 << 20).build().unwrap();
    let swap = Swap::builder().memory(16 << 20).build(&arena).unwrap();
    let noisy = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    let quiet = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).build().unwrap();
    anon(&noisy, 0, MANY);
    anon(&quiet, 0, 16);
    (0..MANY).for_each(|page| fill(&noisy, &mut idle, page).unwrap());
    let before = noisy.charged();
    assert_eq!(noisy.pageout(&mut idle, pages(0, MANY)), Ok(MANY));
    assert_eq!(quiet.write(&mut idle, at(1), &[1]), Ok(()), "charged {} KiB", quiet.charged() >> 10);
    let (pool, paid) = (swap.pool_bytes(), noisy.charged() - before);
    assert!(pool > LIMIT && paid <= pool && paid >= pool - 4 * PAGE_SIZE, "{paid} of {pool}");

    // The parent pays for what it shares with a fork, as long as either refers to it.
    let fork = noisy.fork(&mut idle).unwrap();
    assert_eq!(fork.charged(), fork.table_bytes());
    noisy.exit(&mut idle).unwrap();
    assert_eq!(noisy.charged() - noisy.table_bytes(), paid);
    assert!((0..MANY).all(|page| holds(&fork, &mut idle, page)));
    assert_eq!((noisy.charged() - noisy.table_bytes(), swap.pool_bytes()), (0, 0));
}
