//! A device that keeps a translation for each page and uses it without asking, beside a host that moves,
//! shares, protects and drops everything all the time. What the device writes, it must read back, and no frame
//! may be written after it was freed. The negative control is the same device, deaf to notifications.

use crate::fixture::{at, pages};
use parking_lot::Mutex;
use slat::{Access, HostPage, Hva, Idle, Level, PAGE_SIZE, Pfn, SecondaryMmu, Span, Why};
use slat_mm::{AddressSpace, Arena, Backing, Place, Prot};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;

const PAGES: u64 = 512 + 64;

/// One page as the device sees it.
#[derive(Default)]
struct Cached {
    page: Option<HostPage>,
    /// Invalidations that have begun, and those among them that have not ended.
    begun: u64,
    active: u64,
}

struct Device {
    space: Arc<AddressSpace>,
    cache: Vec<Mutex<Cached>>,
    deaf: bool,
    corrupt: AtomicU64,
}

impl SecondaryMmu for Device {
    fn around(&self, idle: &mut Idle, hvas: Span<Hva>, _: Why, change: &mut dyn FnMut(&mut Idle)) {
        let number = |hva: Hva| ((hva.0 - at(0).0) / PAGE_SIZE).min(PAGES) as usize;
        let cells = &self.cache[number(hvas.start)..number(hvas.end)];
        if self.deaf {
            return change(idle);
        }
        for cell in cells {
            let mut cell = cell.lock();
            cell.page = None;
            cell.begun += 1;
            cell.active += 1;
        }
        change(idle);
        for cell in cells {
            cell.lock().active -= 1;
        }
    }
}

impl Device {
    fn new(deaf: bool) -> Arc<Self> {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let space = AddressSpace::builder(&arena).thp(true).build().unwrap();
        space.mmap(Place::Fixed(at(0)), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let cache = (0..PAGES).map(|_| Mutex::default()).collect();
        let device = Arc::new(Self { space: space.clone(), cache, deaf, corrupt: AtomicU64::new(0) });
        space.register(&device);
        device
    }

    /// Checks that the word at the device's place in a page is `old`, and makes it `new`; through the cached
    /// translation, which is fetched first where there is none. An answer is believed if no change of the page
    /// was in progress when it was asked for, and none has begun since.
    fn update(&self, idle: &mut Idle, page: u64, lane: u64, (old, new): (u64, u64)) {
        loop {
            let mut cell = self.cache[page as usize].lock();
            if let Some(mapped) = cell.page {
                let word = word(self.space.arena(), mapped.pfn, lane);
                if word.load(Relaxed) != old {
                    self.corrupt.fetch_add(1, Relaxed);
                }
                return word.store(new, Relaxed);
            }
            let (begun, quiet) = (cell.begun, cell.active == 0);
            drop(cell);
            let found = self.space.fault(idle, at(page), Access::Write).unwrap();
            cell = self.cache[page as usize].lock();
            if quiet && cell.begun == begun {
                cell.page = Some(found);
            }
        }
    }
}

/// The device thread's own word in a frame.
fn word(arena: &Arena, pfn: Pfn, lane: u64) -> &AtomicU64 {
    // SAFETY: an aligned word of a frame of this arena, used as an atomic by the device; whoever copies the
    // frame does so while no device uses it.
    unsafe { AtomicU64::from_ptr(arena.frame(pfn).cast::<u64>().add(lane as usize)) }
}

/// Every kind of change that keeps contents, over all of the memory.
fn churn(space: &AddressSpace, idle: &mut Idle, round: u64) {
    let (first, count) = (round * 37 % PAGES, 1 + round * 101 % 200);
    let range = pages(first, count.min(PAGES - first));
    match round % 4 {
        0 | 1 => drop(space.migrate(idle, range).unwrap()),
        2 => drop(space.fork(idle).unwrap()),
        _ => {
            // Reads are not checked by the device, so that this may come between two of its updates.
            let child = space.fork(idle).unwrap();
            space.migrate(idle, range).unwrap();
            drop(child);
        }
    }
}

/// Two device threads beside one that churns; returns updates that found something else than was written, and
/// frames written after they were freed.
fn run(deaf: bool, rounds: u64) -> (u64, u64) {
    let device = Device::new(deaf);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for lane in 0..2 {
            let (device, over) = (&device, &over);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut pass = 0;
                loop {
                    // The last pass comes after the last change: it finds whatever was lost.
                    let last = over.load(Acquire);
                    for page in 0..PAGES {
                        device.update(&mut idle, page, lane, (pass, pass + 1));
                    }
                    pass += 1;
                    if last && pass > 1 {
                        return;
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            for round in 0..rounds {
                churn(&device.space, &mut idle, round);
            }
            over.store(true, Release);
        });
    });
    let arena = device.space.arena().clone();
    let corrupt = device.corrupt.load(Relaxed);
    drop(device);
    (corrupt, arena.stats().stale_writes + arena.stats().in_use)
}

#[test]
fn a_device_that_listens_never_loses_a_write() {
    assert_eq!(run(false, 400), (0, 0));
}

/// Deterministic: the device's page moves between two of its updates.
#[test]
fn negative_control_a_deaf_device_loses_writes_and_hits_freed_frames() {
    let mut idle = Idle::take().unwrap();
    for deaf in [false, true] {
        let device = Device::new(deaf);
        device.update(&mut idle, 3, 0, (0, 1));
        device.space.migrate(&mut idle, pages(0, 8)).unwrap();
        device.update(&mut idle, 3, 0, (1, 2));
        assert_eq!(device.corrupt.load(Relaxed) > 0, deaf);
        let arena = device.space.arena().clone();
        while arena.page(Level::K4).map(std::mem::forget).is_ok() {}
        assert_eq!(arena.stats().stale_writes > 0, deaf);
    }
    // And in the race itself: what the deaf device sees is not what it wrote.
    let (corrupt, stale) = run(true, 400);
    assert!(corrupt + stale > 0, "400 rounds of changes went unnoticed by the test, too");
}
