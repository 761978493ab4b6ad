//! A device keeps a translation for each page, and uses it without asking. Meanwhile the host moves and shares
//! everything. The device must read back what it wrote, and no thread may write to a freed frame. The negative
//! control is the same device, but deaf to notifications.

use crate::fixture::{at, pages};
use parking_lot::Mutex;
use slat::notify::NoPages;
use slat::{Access, Again, Event, HostPage, Hva, Idle, Level, PAGE_SIZE, Pages, Pfn, SecondaryMmu};
use slat_mm::{AddressSpace, Arena, Backing, Place, Prot};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Barrier};
use std::thread;

const PAGES: u64 = 512 + 64;

/// One page as the device sees it.
#[derive(Default)]
struct Cached {
    page: Option<HostPage>,
    /// The number of invalidations that have begun, and the number of those that have not ended.
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
    fn around(
        &self,
        idle: &mut Idle,
        Event { hvas, .. }: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let number = |hva: Hva| ((hva.0 - at(0).0) / PAGE_SIZE).min(PAGES) as usize;
        let cells = &self.cache[number(hvas.start)..number(hvas.end)];
        if self.deaf {
            change(idle, &mut NoPages);
            return Ok(());
        }
        for cell in cells {
            let mut cell = cell.lock();
            cell.page = None;
            cell.begun += 1;
            cell.active += 1;
        }
        change(idle, &mut NoPages);
        for cell in cells {
            cell.lock().active -= 1;
        }
        Ok(())
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

    /// Checks that the device's word in a page is `old`, and stores `new`. Uses the cached translation, and
    /// fetches one where none is cached. A fetched translation is used only if no change of the page was in
    /// progress when it was requested, and none has begun since.
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
#[expect(clippy::cast_ptr_alignment, reason = "frames are aligned to pages")]
fn word(arena: &Arena, pfn: Pfn, lane: u64) -> &AtomicU64 {
    // SAFETY: an aligned word in a frame of this arena. The device uses it as an atomic. A thread copies the
    // frame only while no device uses it.
    unsafe { AtomicU64::from_ptr(arena.frame(pfn).cast::<u64>().add(lane as usize)) }
}

/// Makes every kind of change that keeps contents, in different places. Beside a deaf device, only changes that
/// make no tables: the device writes to freed frames, and none of them may be a table.
fn churn(device: &Device, idle: &mut Idle, round: u64) {
    let (first, count) = (round * 37 % PAGES, 1 + round * 101 % 200);
    let range = pages(first, count.min(PAGES - first));
    let child = (round % 2 == 1 && !device.deaf).then(|| device.space.fork(idle).unwrap());
    if round % 4 < 3 {
        device.space.migrate(idle, range).unwrap();
    }
    drop(child);
}

/// Sets the flag on drop, also where a failing assertion ends the thread.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// Runs two device threads beside one that churns. Returns the number of updates that found a wrong word, and
/// the number of frames that were written after they were freed or never given back.
fn run(deaf: bool, rounds: u64) -> (u64, u64) {
    let device = Device::new(deaf);
    let (over, warm) = (AtomicBool::new(false), Barrier::new(3));
    thread::scope(|scope| {
        for lane in 0..2 {
            let (device, over, warm) = (&device, &over, &warm);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let value = |page: u64, pass: u64| if pass == 0 { 0 } else { page << 32 | pass };
                for pass in 0.. {
                    // The last pass comes after the last change, so it finds every lost store.
                    let last = over.load(Acquire);
                    for page in 0..PAGES {
                        device.update(&mut idle, page, lane, (value(page, pass), value(page, pass + 1)));
                    }
                    if pass == 0 {
                        warm.wait();
                    } else if last {
                        return;
                    }
                }
            });
        }
        scope.spawn(|| {
            let _over = Over(&over);
            let mut idle = Idle::take().unwrap();
            warm.wait();
            for round in 0..rounds {
                churn(&device, &mut idle, round);
            }
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

#[test]
fn negative_control_a_deaf_device_loses_writes() {
    let (corrupt, _) = run(true, 400);
    assert!(corrupt > 0);
}

/// The same without threads: the page moves between two updates.
#[test]
fn negative_control_a_deaf_device_writes_to_freed_frames() {
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
}
