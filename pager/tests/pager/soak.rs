//! Everything at once, for a given time. Guests with balloons run on a store that takes 100 ms, fails in 5% of its
//! reads, and is down for a tenth of the time. The test kills the daemon, and its keeper if the run lasts a minute.
//! Every second guest is a clone of the template. The test takes snapshots of each guest while it runs. When the guest
//! has ended, guests are restored from them, and each of their bytes is compared. Another guest follows each one that
//! ends, so that the store is always needed. Beside them runs a guest that needs no page.
//!
//! `SLAT_PAGER_SOAK_SECONDS=600 SLAT_PAGER_SOAK_MIB=512 SLAT_PAGER_SOAK_GUESTS=8`; the defaults are three seconds, 16
//! MiB and two guests.

use crate::daemon::{Daemon, folder, is_offered, library, restored};
use crate::snapshot::may_look;
use slat_pager::twin::{Image, Memory, Report, is_page};
use slat_pager::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pages of the guest that needs no page after its start.
const CALM: usize = 4096;

/// Time limit of a guest's last check of all of its memory.
const REST: Duration = Duration::from_secs(300);

/// Snapshots of each guest: the second one has the writes since the first.
const SNAPSHOTS: u64 = 2;

/// Most guests until a snapshot is stored.
const MOST_GUESTS: u64 = 20;

pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Descriptors, threads, and KiB of memory of its own.
fn usage(worker: i32) -> [u64; 3] {
    let count = |what| std::fs::read_dir(format!("/proc/{worker}/{what}")).unwrap().count() as u64;
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    [count("fd"), count("task"), memory.split_whitespace().next().unwrap().parse().unwrap()]
}

/// A daemon, and the shared settings of its guests.
struct Host {
    daemon: Daemon,
    image: Image,
    /// Time limit of a guest's wait for one page.
    patience: Duration,
    /// Clones need a folder of shared memory.
    has_clones: bool,
    has_snapshots: bool,
    guests: AtomicU64,
    /// Restored snapshots of other guests and of clones.
    restored: [AtomicU64; 2],
}

impl Host {
    /// Makes a daemon with a template of `mib` MiB.
    fn new(folder: PathBuf, mib: u64, flags: &str, patience: Duration) -> Self {
        let image = Image { seed: 1, pages: (mib << 20) as usize / PAGE };
        library(&folder).snapshot("twin", image.read(), mib << 20, 256 << 10).unwrap();
        std::fs::create_dir(folder.join("oracle")).unwrap();
        let has_clones = folder.starts_with("/dev/shm");
        let share = if has_clones { format!("--share {}/share", folder.display()) } else { String::new() };
        let flags = format!("--control {}/control {share} {flags}", folder.display());
        let daemon = Daemon::in_folder(folder, &flags);
        let restored = [const { AtomicU64::new(0) }; 2];
        let has_snapshots = may_look();
        Self { daemon, image, patience, has_clones, has_snapshots, guests: AtomicU64::new(0), restored }
    }

    /// Runs a guest, and the guests restored from its snapshots. Returns their reports.
    fn guest(&self, time: Duration, is_clone: bool) -> (Report, Vec<Report>) {
        let (number, folder) = (self.guests.fetch_add(1, Ordering::Relaxed), &self.daemon.folder);
        let (mib, oracle) = (self.image.pages * PAGE >> 20, folder.join("oracle"));
        let (millis, patience) = (time.as_millis(), self.patience.as_millis());
        let mut words = vec![format!("--balloon --millis {millis} --patience-ms {patience} --seed {number}")];
        if is_clone {
            words.push(format!("--clone-of {}/share/twin", folder.display()));
        }
        if self.has_snapshots {
            words.push(format!("--checkpoints {SNAPSHOTS} --name saved-{number}"));
            words.push(format!("--oracle {} --control {}/control", oracle.display(), folder.display()));
        }
        let report = self.daemon.twin_of(mib, &words.join(" ")).report_within(time + self.patience + REST);
        // The guest does not know about a snapshot that was stored at the moment of the kill.
        let names = (1..=SNAPSHOTS).map(|snapshot| format!("saved-{number}.{snapshot}"));
        let reports: Vec<_> = names
            .filter(|name| oracle.join(name).exists())
            .map(|name| restored(folder, &name, mib))
            .collect();
        self.restored[usize::from(is_clone)].fetch_add(reports.len() as u64, Ordering::Relaxed);
        // Chunks of compared snapshots are deleted while others are stored.
        let library = library(folder);
        library.retain(&format!("saved-{number}"), 0).unwrap();
        library.gc(PATIENCE).unwrap();
        (report, reports)
    }

    /// As [`Host::guest`]; all reports must be right.
    fn right(&self, time: Duration, is_clone: bool) -> Report {
        let (report, restored) = self.guest(time, is_clone);
        println!("{report:?}");
        assert!(report.is_right() && report.removed > 0, "{report:?}");
        for restored in restored {
            assert!(restored.is_right(), "restored from a snapshot: {restored:?}");
        }
        report
    }

    fn restored(&self, is_clone: bool) -> u64 {
        self.restored[usize::from(is_clone)].load(Ordering::Relaxed)
    }
}

/// Runs a guest of this process that has all its pages: it reads them again and again, and counts.
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

/// Resumes all guests, and ends the one that needs no page.
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
    let folder = folder("soak");
    let (down, cache) = (folder.join("down"), (mib / 8) << 20);
    let flags = format!(
        "--cache {}M --record 2 --store-delay-ms {delay} --store-errors-percent 5 --store-down {}",
        cache >> 20,
        down.display()
    );
    // While the store is down, guests that need it wait.
    let mut host = Host::new(folder.clone(), mib, &flags, outage + Duration::from_secs(60));
    let before = usage(host.daemon.worker);
    let (reads, end, waited) = (AtomicU64::new(0), AtomicBool::new(false), &AtomicU64::new(0));
    let (began, mut worker) = (Instant::now(), 0);
    std::thread::scope(|scope| {
        // Also if the test fails; otherwise it would not end.
        let _ends = Ends(&end, &down);
        scope.spawn(|| calm(&folder, host.image, &down, &reads, &end));
        let host = &host;
        let run = move |time: Duration, is_clone| {
            let report = host.right(time, is_clone && host.has_clones);
            waited.fetch_max(report.longest, Ordering::Relaxed);
        };
        let mut slots = Vec::new();
        for slot in 0..guests as u32 {
            slots.push(scope.spawn(move || {
                while began.elapsed() < time {
                    // The guests must not all end at the same time.
                    run(time / (6 + slot), slot % 2 == 1);
                }
            }));
        }
        std::thread::sleep(time / 3);
        wait_for(&reads, CALM as u64);
        std::fs::write(&down, "").unwrap();
        slots.push(scope.spawn(move || run(time / 6, false)));
        let last = reads.load(Ordering::Relaxed);
        std::thread::sleep(outage);
        // The guest that needs no page has read all of its pages meanwhile, or does so before the store is back.
        wait_for(&reads, last + 2 * CALM as u64);
        host.daemon.kill_worker();
        std::fs::remove_file(&down).unwrap();
        worker = host.daemon.started();
        host.daemon.is_ready();
        if seconds >= 60 {
            // There are always guests; otherwise the worker would end with its keeper.
            host.daemon.kill_keeper();
            host.daemon.next_keeper();
        }
        for slot in slots {
            slot.join().unwrap();
        }
    });
    // Guests that needed the store while it was down have waited for it.
    let longest = Duration::from_nanos(waited.load(Ordering::Relaxed));
    assert!(longest > outage / 3, "the store was not needed while it was down");
    host.daemon.worker = worker;
    // If each snapshot met a store that was down, or a kill: take one now, when neither happens.
    for is_clone in [false, true] {
        let is_offered = host.has_snapshots && (host.has_clones || !is_clone);
        let more = (0..MOST_GUESTS).take_while(|_| is_offered && host.restored(is_clone) == 0);
        more.for_each(|_| _ = host.right(time / 6, is_clone));
        assert!(!is_offered || host.restored(is_clone) > 0, "no snapshot was stored");
    }
    println!(
        "{} guests; {} snapshots restored, {} of clones; the longest wait was {longest:.1?} of an outage of {outage:.1?}",
        host.guests.load(Ordering::Relaxed),
        host.restored(false) + host.restored(true),
        host.restored(true)
    );
    let library = library(&folder);
    assert_eq!(library.list().unwrap(), ["twin"]);
    assert!(library.verify("twin").unwrap().damaged.is_empty());
    // The last threads may still be ending, and threads that call the store end after an idle time.
    let limits = [before[0], before[1] + 4, before[2] + (cache >> 10) + (32 << 10)];
    let mut after = usage(host.daemon.worker);
    for _ in 0..400 {
        if (0..3).all(|what| after[what] <= limits[what]) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        after = usage(host.daemon.worker);
    }
    println!("after {:.0?}: descriptors, threads, KiB: {before:?}, then {after:?}", began.elapsed());
    assert!((0..3).all(|what| after[what] <= limits[what]), "{before:?} became {after:?}");
}
