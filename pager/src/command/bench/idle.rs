//! Measures the memory, threads and processor time of guests that touch nothing.

use super::{Bench, CHUNK, Failure, IMAGE, other, register};
use rustix::time::{ClockId, clock_gettime};
use slat_pager::twin::Memory;
use slat_pager::{Cache, Folder, Guest, Journal, Library, Options, PAGE, Parts};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Number of guests.
const GUESTS: usize = 100;
/// Time in which they are watched.
const WATCH: Duration = Duration::from_secs(5);

/// Resources of this process.
struct Used {
    kib: f64,
    threads: f64,
    descriptors: f64,
    processor: Duration,
}

impl Used {
    fn now() -> Result<Self, Failure> {
        let status = std::fs::read_to_string("/proc/self/status").map_err(other)?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
        };
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Ok(Self {
            kib: number("VmRSS:"),
            threads: number("Threads:"),
            descriptors: std::fs::read_dir("/proc/self/fd").map_err(other)?.count() as f64,
            processor: Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        })
    }
}

impl Bench {
    pub(super) fn idle(folder: &Path) -> Result<(), Failure> {
        let size = (IMAGE.pages * PAGE) as u64;
        let library = Library::new(Folder::open(folder).map_err(other)?);
        library.snapshot("bench", IMAGE.read(), size, CHUNK * PAGE).map_err(other)?;
        let (template, cache) = (library.open("bench").map_err(other)?, Arc::new(Cache::new(0)));
        let before = Used::now()?;
        let (mut memories, mut guests) = (Vec::new(), Vec::new());
        for _ in 0..GUESTS {
            let memory = Memory::new(IMAGE, false).map_err(other)?;
            let (uffd, layout) = register(&memory, &template)?;
            let journal = Journal::new(&layout).map_err(other)?;
            let (template, cache) = (template.clone(), cache.clone());
            let parts = Parts { uffd, layout, template, cache, journal, life: None };
            guests.push(Guest::serve(parts, Options::default()).map_err(other)?);
            memories.push(memory);
        }
        std::thread::sleep(WATCH / 5);
        let then = Used::now()?;
        std::thread::sleep(WATCH);
        let now = Used::now()?;
        let each = |value: fn(&Used) -> f64| (value(&now) - value(&before)) / GUESTS as f64;
        let share = now.processor.saturating_sub(then.processor).as_secs_f64() / WATCH.as_secs_f64();
        println!(
            "idle: {GUESTS} guests of {} MiB; each has {:.0} KiB, {:.1} threads, {:.1} descriptors; all take {:.2}% of a processor",
            size >> 20,
            each(|used| used.kib),
            each(|used| used.threads),
            each(|used| used.descriptors),
            100.0 * share
        );
        for guest in guests {
            guest.stop();
        }
        Ok(())
    }
}
