//! Everything at once, for as long as it is told: guests with balloons on a store that takes 100 ms and fails in 5% of its reads, that
//! is down for a tenth of the time, with a daemon that is killed. Each guest that ends is followed by another, so that the store is
//! needed all the time. Beside them a guest that needs no page.
//!
//! `SLAT_PAGER_SOAK_SECONDS=600 SLAT_PAGER_SOAK_MIB=512 SLAT_PAGER_SOAK_GUESTS=8`; three seconds, 16 MiB and two guests otherwise.

use crate::daemon::{Daemon, folder, is_offered, library};
use slat_pager::twin::{Image, Memory, is_page};
use slat_pager::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pages of the guest that needs none, once it has them.
const CALM: usize = 4096;

/// What a guest may take for its last look at all of its memory.
const REST: Duration = Duration::from_secs(300);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Descriptors, threads, and KiB of memory of its own.
fn usage(worker: i32) -> [u64; 3] {
    let count = |what| std::fs::read_dir(format!("/proc/{worker}/{what}")).unwrap().count() as u64;
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    [count("fd"), count("task"), memory.split_whitespace().next().unwrap().parse().unwrap()]
}

/// A guest of this process that has all its pages: it reads them again and again, and counts.
fn calm(folder: &Path, image: Image, down: &Path, reads: &AtomicU64, end: &AtomicBool) {
    let down = down.to_owned();
    let store = Trouble::calling(Folder::open(folder.join("store")).unwrap(), move |_| {
        if down.exists() { Err(std::io::Error::other("down")) } else { Ok(()) }
    });
    let template = Library::new(Steady::new(store, SteadyOptions::default())).open("twin").unwrap();
    let memory = Memory::new(image, false).unwrap();
    let uffd = Uffd::new(Features::REMOVE).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).unwrap();
    }
    let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
    let parts = Parts { uffd, layout, template, cache, journal, life: None };
    let guest = Guest::serve(parts, Options::default()).unwrap();
    let pages = image.pages.min(CALM);
    while !end.load(Ordering::Relaxed) {
        for page in 0..pages {
            // SAFETY: nothing writes to it but the pager.
            assert!(is_page(&image, page, Some(0), &unsafe { memory.read(page) }), "page {page}");
            reads.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(guest);
}

fn wait_for(reads: &AtomicU64, count: u64) {
    let since = Instant::now();
    while reads.load(Ordering::Relaxed) < count {
        assert!(since.elapsed() < REST, "the guest that needs no page stands still");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets all guests go on, and ends the one that needs no page.
struct Ends<'a>(&'a AtomicBool, &'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        _ = std::fs::remove_file(self.1);
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn guests_of_a_store_that_is_slow_fails_and_goes_down_are_right_to_the_last_byte() {
    if !is_offered() {
        return;
    }
    let seconds = number("SLAT_PAGER_SOAK_SECONDS", 3);
    let (mib, guests) = (number("SLAT_PAGER_SOAK_MIB", 16), number("SLAT_PAGER_SOAK_GUESTS", 2));
    let delay = number("SLAT_PAGER_SOAK_DELAY_MS", if seconds < 60 { 10 } else { 100 });
    let (time, outage) = (Duration::from_secs(seconds), Duration::from_millis(seconds * 100));
    let image = Image { seed: 1, pages: (mib << 20) as usize / PAGE };
    let folder = folder("soak");
    library(&folder).snapshot("twin", image.read(), mib << 20, 256 << 10).unwrap();
    let (down, cache) = (folder.join("down"), (mib / 8) << 20);
    let flags = format!(
        "--cache {}M --record 2 --store-delay-ms {delay} --store-errors-percent 5 --store-down {}",
        cache >> 20,
        down.display()
    );
    let mut daemon = Daemon::in_folder(folder.clone(), &flags);
    let before = usage(daemon.worker);
    let (reads, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let (next, count, waited) = (AtomicU64::new(0), AtomicU64::new(0), &AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        // Also where the test fails: else it would not end.
        let _ends = Ends(&end, &down);
        scope.spawn(|| calm(&folder, image, &down, &reads, &end));
        // While the store is down, those that need it wait.
        let patience = outage.as_millis() as u64 + 60_000;
        let (daemon_now, next, count) = (&daemon, &next, &count);
        let run = move |time: Duration| {
            let (seed, millis) = (next.fetch_add(1, Ordering::Relaxed), time.as_millis());
            let words = format!("--balloon --millis {millis} --patience-ms {patience} --seed {seed}");
            let report = daemon_now.twin_of(mib as usize, &words).report_within(time + outage + REST);
            println!("{report:?}");
            assert!(report.is_right() && report.removed > 0, "{report:?}");
            waited.fetch_max(report.longest, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
        };
        let mut slots = Vec::new();
        for slot in 0..guests as u32 {
            slots.push(scope.spawn(move || {
                while began.elapsed() < time {
                    // They do not end all at the same time.
                    run(time / (6 + slot));
                }
            }));
        }
        std::thread::sleep(time / 3);
        wait_for(&reads, CALM as u64);
        std::fs::write(&down, "").unwrap();
        slots.push(scope.spawn(move || run(time / 6)));
        let last = reads.load(Ordering::Relaxed);
        std::thread::sleep(outage);
        // The guest that needs no page has read all of its pages meanwhile, or does so before the store is back.
        wait_for(&reads, last + 2 * CALM as u64);
        daemon.kill_worker();
        std::fs::remove_file(&down).unwrap();
        for slot in slots {
            slot.join().unwrap();
        }
    });
    // Those that needed the store while it was down have waited for it.
    let longest = Duration::from_nanos(waited.load(Ordering::Relaxed));
    println!(
        "{} guests; the longest wait was {longest:.1?} of an outage of {outage:.1?}",
        count.load(Ordering::Relaxed)
    );
    assert!(longest > outage / 3, "the store was not needed while it was down");
    daemon.next_worker();
    // The last threads may still be on their way out, and those that call the store end when they have had nothing to do.
    let limits = [before[0], before[1] + 4, before[2] + (cache >> 10) + (32 << 10)];
    let mut after = usage(daemon.worker);
    for _ in 0..400 {
        if (0..3).all(|what| after[what] <= limits[what]) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        after = usage(daemon.worker);
    }
    println!("after {:.0?}: descriptors, threads, KiB: {before:?}, then {after:?}", began.elapsed());
    assert!((0..3).all(|what| after[what] <= limits[what]), "{before:?} became {after:?}");
}
