//! A storm: clones of one template start at once, on hosts that share nothing but the store.

use super::{Bench, Failure, faults, median, other, register, spread};
use slat_pager::twin::{Image, Memory, is_page};
use slat_pager::{
    Cache, Folder, Guest, GuestStats, Journal, Library, Options, PAGE, Parts, Steady, SteadyOptions,
    Template, Trouble,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// 32 MiB, in chunks of 256 KiB. A clone touches 4 MiB of it.
const IMAGE: Image = Image { seed: 1, pages: 8 << 10 };
const CHUNK: usize = 64;
const TOUCHED: usize = 1 << 10;

/// The pages that a clone touches, in its order: a stretch of 8 in each chunk.
fn work() -> impl Iterator<Item = usize> {
    let chunks = IMAGE.pages / CHUNK;
    (0..TOUCHED).map(move |number| number / 8 * 37 % chunks * CHUNK + number % 8)
}

/// Result of one clone.
struct Clone {
    took: Duration,
    stats: GuestStats,
}

impl Bench {
    pub(super) fn storm(&self, folder: &Path) -> Result<(), Failure> {
        let size = (IMAGE.pages * PAGE) as u64;
        let library = Library::new(Folder::open(folder).map_err(other)?);
        library.snapshot("storm", IMAGE.read(), size, CHUNK * PAGE).map_err(other)?;
        let (hosts, clones) = (self.hosts as usize, self.clones as usize);
        println!(
            "storm: {clones} clones on each of {hosts} hosts, {} MiB each, {} MiB of them touched; the store takes {} ms for a chunk of 256 KiB",
            size >> 20,
            (TOUCHED * PAGE) >> 20,
            self.store_delay_ms
        );
        self.wave(folder, "without a working set", None)?;
        let mut record = Options::default();
        (record.record, record.replay) = (Some(Duration::from_secs(3600)), 0);
        let template = library.open("storm").map_err(other)?;
        clone(&template, &Arc::new(Cache::new(1 << 30)), record, &Barrier::new(1))?;
        self.wave(folder, "with its working set", Some(()))
    }

    /// Runs all clones once, with empty caches.
    fn wave(&self, folder: &Path, name: &str, set: Option<()>) -> Result<(), Failure> {
        let (hosts, clones) = (self.hosts as usize, self.clones as usize);
        let mut options = Options::default();
        // Fewer threads for each guest suffice when a host has many clones.
        (options.threads, options.replay) = (2, if set.is_some() { 4 } else { 0 });
        let reads = Arc::new(AtomicU64::new(0));
        let mut places = Vec::new();
        for _ in 0..hosts {
            let (delay, reads) = (Duration::from_millis(self.store_delay_ms), reads.clone());
            let slow = Trouble::calling(Folder::open(folder).map_err(other)?, move |_| {
                reads.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(delay);
                Ok(())
            });
            let template =
                Library::new(Steady::new(slow, SteadyOptions::default())).open("storm").map_err(other)?;
            places.push((template, Arc::new(Cache::new(256 << 20))));
        }
        let start = Barrier::new(hosts * clones);
        let results: Vec<Result<Clone, Failure>> = std::thread::scope(|scope| {
            let start = &start;
            let run = move |(template, cache)| scope.spawn(move || clone(template, cache, options, start));
            let all =
                places.iter().flat_map(|(template, cache)| std::iter::repeat_n((template, cache), clones));
            let threads: Vec<_> = all.map(run).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(other("a clone panicked"))))
                .collect()
        });
        let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        let needed: BTreeSet<_> = work().map(|page| places[0].0.chunks()[page / CHUNK]).collect();
        let needed = needed.iter().flatten().count() as u64;
        let cached: u64 = places.iter().map(|(_, cache)| cache.stats().bytes).sum();
        let filled: u64 = results.iter().map(|clone| clone.stats.filled).sum();
        let all = results.len() as u64;
        let faulted: Vec<Duration> =
            results.iter().map(|clone| Duration::from_nanos(faults(&clone.stats))).collect();
        println!("  {name}");
        println!("    a clone's work        {}", spread(results.iter().map(|clone| clone.took).collect()));
        println!("    its faults            {}", median(faulted).as_nanos());
        println!(
            "    reads of the store    {} of {needed} chunks that a clone needs: {:.2} for each host and chunk, {:.3} for each clone and chunk",
            reads.load(Ordering::Relaxed),
            reads.load(Ordering::Relaxed) as f64 / (self.hosts * needed) as f64,
            reads.load(Ordering::Relaxed) as f64 / (all * needed) as f64,
        );
        println!(
            "    memory of a host      {} KiB of chunks in the cache, and {} KiB of pages for each clone",
            (cached / self.hosts) >> 10,
            filled / all * (PAGE as u64 >> 10)
        );
        Ok(())
    }
}

/// Starts with the other clones, and does the work.
fn clone(
    template: &Template,
    cache: &Arc<Cache>,
    options: Options,
    start: &Barrier,
) -> Result<Clone, Failure> {
    let memory = Memory::new(IMAGE, false).map_err(other);
    let parts = memory.and_then(|memory| Ok((register(&memory, template)?, memory)));
    start.wait();
    let ((uffd, layout), memory) = parts?;
    let (journal, began) = (Journal::new(&layout).map_err(other)?, Instant::now());
    let parts = Parts { uffd, layout, template: template.clone(), cache: cache.clone(), journal, life: None };
    let guest = Guest::serve(parts, options).map_err(other)?;
    for page in work() {
        // SAFETY: nothing writes to it but the pager.
        if !is_page(&IMAGE, page, Some(0), &unsafe { memory.read(page) }) {
            return Err(Failure::Found(format!("page {page} is wrong")));
        }
    }
    let took = began.elapsed();
    let stats = guest.stats();
    guest.stop();
    Ok(Clone { took, stats })
}
