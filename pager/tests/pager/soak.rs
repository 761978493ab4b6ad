//! Everything at once, for as long as it is told: guests with balloons on a store that takes 100 ms and fails in 5% of its reads, that
//! is down for a tenth of the time, with a daemon that is killed. Beside them a guest that needs no page.
//!
//! `SLAT_PAGER_SOAK_SECONDS=600 SLAT_PAGER_SOAK_MIB=512 SLAT_PAGER_SOAK_GUESTS=8`; three seconds, 16 MiB and two guests otherwise.

use crate::daemon::{Daemon, folder, is_offered, library};
use slat_pager::twin::{Image, Memory, is_page};
use slat_pager::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    let pages = image.pages.min(4096);
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
    let down = folder.join("down");
    let flags = format!(
        "--cache 64M --record 2 --store-delay-ms {delay} --store-errors-percent 5 --store-down {}",
        down.display()
    );
    let mut daemon = Daemon::in_folder(folder.clone(), &flags);
    let before = usage(daemon.worker);
    let (reads, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| calm(&folder, image, &down, &reads, &end));
        // While the store is down, those that need it wait.
        let patience = outage.as_millis() as u64 + 60_000;
        let words = format!("--balloon --millis {} --patience-ms {patience}", time.as_millis());
        let twins: Vec<_> =
            (0..guests).map(|seed| daemon.twin_of(mib as usize, &format!("{words} --seed {seed}"))).collect();
        std::thread::sleep(time / 3);
        std::fs::write(&down, "").unwrap();
        std::thread::sleep(outage / 10);
        let mut last = reads.load(Ordering::Relaxed);
        for _ in 0..8 {
            std::thread::sleep(outage / 10);
            let now = reads.load(Ordering::Relaxed);
            assert!(now > last, "the guest that needs no page stood still");
            last = now;
        }
        daemon.kill();
        std::fs::remove_file(&down).unwrap();
        for twin in twins {
            let report = twin.report_within(time + outage + Duration::from_secs(300));
            println!("{report:?}");
            assert!(report.is_right() && report.removed > 0, "{report:?}");
        }
        end.store(true, Ordering::Relaxed);
    });
    (0..guests).for_each(|_| _ = daemon.stats());
    // The last threads may still be on their way out, and those that call the store end when they have had nothing to do.
    let limits = [before[0], before[1] + 4, before[2] + (64 << 10) + (32 << 10)];
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
