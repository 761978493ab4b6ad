//! `swap`: pages are stored, damaged, and read back. A read returns the written bytes or an error.
//!
//! The device does what the input says: it does a part of a request, fails, is full, or changes its contents. A read of
//! a damaged page must fail; a read of another page must not.

use crate::Input;
use slat::{Hva, Idle, PAGE_SIZE, Span};
use slat_mm::{AddressSpace, Arena, Backing, Place, Prot, Swap, SwapDevice};
use std::io::{Error, Result};
use std::sync::{Arc, Mutex};

const STEPS: usize = 64;
const PAGES: u64 = 12;
const PAGE: usize = PAGE_SIZE as usize;
const BASE: Hva = Hva(0x4000_0000);
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A device in memory that follows the input.
#[derive(Debug, Default)]
struct Disk(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    bytes: Vec<u8>,
    /// Most bytes of one request.
    piece: usize,
    fails: [bool; 2],
    room: u64,
}

impl SwapDevice for Disk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let disk = &mut *self.0.lock().unwrap();
        if disk.fails[0] {
            return Err(Error::from_raw_os_error(EIO));
        }
        let len = bytes.len().min(disk.piece).min(disk.room.saturating_sub(offset) as usize);
        if len == 0 {
            return Err(Error::from_raw_os_error(ENOSPC));
        }
        let (from, to) = (offset as usize, offset as usize + len);
        disk.bytes.resize(disk.bytes.len().max(to), 0);
        disk.bytes[from..to].copy_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let disk = self.0.lock().unwrap();
        if disk.fails[1] {
            return Err(Error::from_raw_os_error(EIO));
        }
        let there = disk.bytes.get(offset as usize..).unwrap_or_default();
        let len = bytes.len().min(disk.piece).min(there.len());
        bytes[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }
}

/// Expected state of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    seed: u64,
    /// Bytes of each 64 that do not compress.
    noise: usize,
}

impl Known {
    fn contents(self) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        (0..PAGE).map(|at| if at % 64 < self.noise { random.u8(..) } else { 0 }).collect()
    }
}

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let disk = Arc::new(Disk(Mutex::new(Inner { piece: PAGE, room: 1 << 20, ..Inner::default() })));
    let arena = Arena::builder().limit(4 << 20).build().unwrap();
    let memory = input.pick(&[0, 16 << 10, 1 << 20]);
    let swap = Swap::builder().memory(memory).device(disk.clone(), 1 << 20).keep_copies(input.flag());
    let swap = swap.build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    space.mmap(Place::Fixed(BASE), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let mut idle = Idle::take().expect("one test at a time on a thread");
    let mut known = [Known { seed: 0, noise: 0 }; PAGES as usize];
    // Whether any contents of the device were changed, or cannot be read now.
    let (mut damaged, mut seed) = (false, 0);
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        let page = input.below(PAGES);
        let at = BASE + page * PAGE_SIZE;
        match input.below(8) {
            0 | 1 => {
                seed += 1;
                let new = Known { seed, noise: input.pick(&[0, 1, 16, 40, 64]) };
                let written = space.write(&mut idle, at, &new.contents());
                assert!(written.is_ok() || damaged, "{written:?}");
                if written.is_ok() {
                    known[page as usize] = new;
                }
            }
            2..4 => {
                let pages =
                    Span::new(at, (at + (1 + input.below(PAGES)) * PAGE_SIZE).min(BASE + PAGES * PAGE_SIZE));
                space.pageout(&mut idle, pages).expect("a page that cannot be stored stays");
            }
            4 => {
                let disk = &mut *disk.0.lock().unwrap();
                let place = input.below(1 << 16) as usize % disk.bytes.len().max(1);
                let flip = 1 + input.below(255) as u8;
                if let Some(byte) = disk.bytes.get_mut(place) {
                    *byte ^= flip;
                    damaged = true;
                }
            }
            5 => {
                let disk = &mut *disk.0.lock().unwrap();
                match input.below(4) {
                    0 => {
                        // Overwrites one block by another.
                        let blocks = (disk.bytes.len() / PAGE).max(1) as u64;
                        let (from, to) = (input.below(blocks) as usize, input.below(blocks) as usize);
                        if from != to {
                            disk.bytes.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
                            damaged = true;
                        }
                    }
                    1 => {
                        // Truncates the device.
                        let len = input.below(1 << 16) as usize;
                        damaged |= len < disk.bytes.len();
                        disk.bytes.truncate(len);
                    }
                    2 => disk.piece = input.pick(&[PAGE, 1000, 7]),
                    _ => disk.room = input.pick(&[1 << 20, 3 << 12, 5000, 0]),
                }
            }
            6 => {
                let fails = [input.below(4) == 3, input.below(4) == 3];
                disk.0.lock().unwrap().fails = fails;
                damaged |= fails[1];
            }
            _ => check(&space, &mut idle, (at, &known[page as usize]), damaged),
        }
    }
    disk.0.lock().unwrap().fails = [false; 2];
    for (page, known) in (0..PAGES).zip(&known) {
        check(&space, &mut idle, (BASE + page * PAGE_SIZE, known), damaged);
    }
    drop(space);
    let stats = arena.stats();
    assert_eq!((stats.tables, stats.in_use), (0, swap.stats().memory_bytes / PAGE_SIZE));
    assert_eq!((swap.stats().references, swap.stats().memory_bytes), (0, 0), "nothing is left over");
}

/// Checks that a read returns the written bytes, or an error after damage.
fn check(space: &AddressSpace, idle: &mut Idle, (at, known): (Hva, &Known), damaged: bool) {
    let mut bytes = vec![0; PAGE];
    match space.read(idle, at, &mut bytes) {
        Ok(()) => assert!(bytes == known.contents(), "{at:?} is not what was written there"),
        Err(error) => assert!(damaged, "{at:?}: {error}"),
    }
}
