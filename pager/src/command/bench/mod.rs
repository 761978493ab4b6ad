//! `bench`: measures the time that a working set saves, and the time of a fault, in this process.

mod compare;
mod idle;
mod image;
mod packed;
mod storm;

use super::failure::{Failure, other};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use slat_pager::twin::{Image, Memory, bare, copy_mapped, is_page};
use slat_pager::{
    Cache, Features, Folder, Guest, GuestStats, Journal, Layout, Library, Options, PAGE, Parts, Region,
    Template, Trouble, Uffd,
};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sizes of the measurement.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Bench {
    /// Number of measurements of each row
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Latency of the store, in milliseconds
    #[arg(long, default_value_t = 10)]
    store_delay_ms: u64,
    /// Microseconds of work of the guest for each page that it touches
    #[arg(long, default_value_t = 40)]
    work_us: u64,
    /// Measure a storm instead: clones of one template start at once, on simulated hosts that share only the store
    #[arg(long)]
    storm: bool,
    /// Compare the start of a guest with restores without a pager instead, with stores at 0, 10 and 100 ms
    #[arg(long, conflicts_with = "storm")]
    compare: bool,
    /// Measure faults of an image on this host instead, beside a handler that maps the file
    #[arg(long, conflicts_with_all = ["storm", "compare"])]
    image: bool,
    /// Measure restores from a packed working set instead, of a guest that touches 38 MiB of 1 GiB
    #[arg(long, conflicts_with_all = ["storm", "compare", "image"])]
    packed: bool,
    /// Measure the memory and the processor time of a daemon for so many guests that do nothing instead
    #[arg(long, value_name = "GUESTS", conflicts_with_all = ["storm", "compare", "image", "packed"], value_parser = clap::value_parser!(u64).range(1..=2000))]
    idle: Option<u64>,
    /// Hosts of a storm
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
    hosts: u64,
    /// Clones of a storm on each host
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
    clones: u64,
}

/// An image of 128 MiB, in chunks of 256 KiB. The recorded work touches 32 MiB of it, in stretches of 8 pages in random
/// order.
const IMAGE: Image = Image { seed: 1, pages: 32 << 10 };
const CHUNK: usize = 64;
const TOUCHED: usize = 8 << 10;
const STRETCH: usize = 8;
/// Number of faults in a round.
const FAULTS: usize = 2048;

/// The pages that the guest's work touches.
fn work() -> impl Iterator<Item = usize> {
    let stretches = IMAGE.pages / STRETCH;
    // A guest's work is local: within 16 chunks for a while.
    let place = move |number: usize| {
        let (area, within) = (number / 32, number % 32);
        let stretch = area * 128 + within * 37 % 128;
        stretch % stretches * STRETCH
    };
    (0..TOUCHED / STRETCH).flat_map(move |number| (0..STRETCH).map(move |page| place(number) + page))
}

/// Result of a run.
struct Run {
    took: Duration,
    stats: GuestStats,
}

impl Bench {
    pub fn run(&self) -> Result<(), Failure> {
        let folder = std::env::temp_dir().join(format!("slat-pager-bench-{}", std::process::id()));
        let result = if self.storm {
            self.storm(&folder)
        } else if self.compare {
            self.compare(&folder)
        } else if self.image {
            self.image(&folder)
        } else if self.packed {
            self.packed(&folder)
        } else if self.idle.is_some() {
            self.idle(&folder)
        } else {
            self.restore(&folder).and_then(|template| self.fault(&template))
        };
        _ = std::fs::remove_dir_all(&folder);
        result
    }

    /// Measures the guest's work with all memory present, without a working set, and with one. The cache is empty each
    /// time.
    fn restore(&self, folder: &Path) -> Result<Template, Failure> {
        let size = (IMAGE.pages * PAGE) as u64;
        let store = || Folder::open(folder).map_err(other);
        Library::new(store()?).snapshot("bench", IMAGE.read(), size, CHUNK * PAGE).map_err(other)?;
        let slow = Trouble::new(store()?, Duration::from_millis(self.store_delay_ms), 0);
        let template = Library::new(slow).open("bench").map_err(other)?;
        let mut record = Options::default();
        record.record = Some(Duration::from_secs(3600));
        self.guest(&template, record)?;
        let set = template.working_set().ok_or_else(|| other("no working set was recorded"))?;
        let (mut off, on) = (Options::default(), Options::default());
        off.replay = 0;
        let (mut present, mut without, mut with) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            present.push(self.present()?);
            without.push(self.guest(&template, off)?);
            with.push(self.guest(&template, on)?);
        }
        let kib = |pages: u64| pages * (PAGE as u64 >> 10);
        println!(
            "restore: a guest of {} MiB touches {} MiB, {} us of work for each page; the store takes {} ms for a chunk of 256 KiB",
            size >> 20,
            (TOUCHED * PAGE) >> 20,
            self.work_us,
            self.store_delay_ms
        );
        let base = median(present.clone());
        println!("  all memory present     {}", spread(present));
        for (name, runs) in [("without a working set", without), ("with its working set", with)] {
            let ratio = median(runs.iter().map(|run| run.took).collect()).as_secs_f64() / base.as_secs_f64();
            let mut faults: Vec<u64> = runs.iter().map(|run| faults(&run.stats)).collect();
            faults.sort_unstable();
            let stats = &runs[0].stats;
            let unused = kib(stats.filled.saturating_sub(TOUCHED as u64));
            println!(
                "  {name:<22} {}  {ratio:.2} x, {} faults ({} to {}), {} KiB ahead, {unused} KiB came and were not touched",
                spread(runs.iter().map(|run| run.took).collect()),
                faults[faults.len() / 2],
                faults[0],
                faults[faults.len() - 1],
                kib(stats.ahead),
            );
        }
        println!(
            "  the working set        {} KiB of {} KiB touched",
            kib(set.pages() as u64),
            kib(TOUCHED as u64)
        );
        Ok(template)
    }

    /// Measures a fault whose page is in the cache, beside the least that a pager can do: a thread that polls, reads,
    /// and copies a page. The thread that touches the page takes both times, one page at a time, in turns.
    fn fault(&self, template: &Template) -> Result<(), Failure> {
        let cache = Arc::new(Cache::new(256 << 20));
        let mut options = Options::default();
        (options.window, options.replay) = (1, 0);
        let mut alone = options;
        alone.threads = 1;
        // This fills the cache.
        self::touch(template, Pager::Guest(&cache, options))?;
        let mut image = Vec::with_capacity(IMAGE.pages * PAGE);
        IMAGE.write(&mut image).map_err(other)?;
        let mut rows = [const { Vec::new() }; 4];
        for _ in 0..self.rounds * 4 {
            rows[0].push(self::touch(template, Pager::Bare(&image))?);
            rows[1].push(self::touch(template, Pager::OnePage)?);
            rows[2].push(self::touch(template, Pager::Guest(&cache, alone))?);
            rows[3].push(self::touch(template, Pager::Guest(&cache, options))?);
        }
        let floor = median(rows[0].clone());
        println!(
            "fault: a page of 4 KiB from the cache, until the thread that touched it goes on; medians of {FAULTS} faults"
        );
        let names =
            ["poll, read, COPY alone", "the same of one page", "the pager, 1 thread", "the pager, 3 threads"];
        for (name, times) in names.iter().zip(rows) {
            let ratio = median(times.clone()).as_secs_f64() / floor.as_secs_f64();
            println!("  {name:<22} {}  {ratio:.2} x", spread(times));
        }
        Ok(())
    }

    /// Restores a guest and does its work.
    fn guest(&self, template: &Template, options: Options) -> Result<Run, Failure> {
        let memory = Memory::new(IMAGE, false).map_err(other)?;
        let (uffd, layout) = register(&memory, template)?;
        let (journal, cache) = (Journal::new(&layout).map_err(other)?, Arc::new(Cache::new(256 << 20)));
        let began = Instant::now();
        let parts = Parts { uffd, layout, template: template.clone(), cache, journal, life: None };
        let guest = Guest::serve(parts, options).map_err(other)?;
        self.work(&memory)?;
        let took = began.elapsed();
        while guest.stats().chunks_left > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stats = guest.stats();
        guest.stop();
        Ok(Run { took, stats })
    }

    /// Does the same work in memory that is all present.
    fn present(&self) -> Result<Duration, Failure> {
        let memory = Memory::new(IMAGE, false).map_err(other)?;
        for page in 0..IMAGE.pages {
            let words = std::array::from_fn(|word| IMAGE.word(page, 0, word));
            // SAFETY: nothing else uses it.
            unsafe { memory.write(page, &words) };
        }
        let began = Instant::now();
        self.work(&memory)?;
        Ok(began.elapsed())
    }

    fn work(&self, memory: &Memory) -> Result<(), Failure> {
        let time = Duration::from_micros(self.work_us);
        for page in work() {
            check(memory, page)?;
            let began = Instant::now();
            while began.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
}

/// Reads a page of a guest, and compares it with the template's.
fn check(memory: &Memory, page: usize) -> Result<(), Failure> {
    // SAFETY: nothing writes to it but the pager.
    let is_right = is_page(&memory.image, page, Some(0), &unsafe { memory.read(page) });
    if is_right { Ok(()) } else { Err(Failure::Found(format!("page {page} is wrong"))) }
}

/// A server of faults.
#[derive(Clone, Copy)]
enum Pager<'a> {
    /// A thread that polls, reads, and copies the page from an image in memory.
    Bare(&'a [u8]),
    /// A thread that copies the same page each time, which stays in the processor's cache.
    OnePage,
    Guest(&'a Arc<Cache>, Options),
}

/// Returns the median time of a touch of a missing page.
fn touch(template: &Template, pager: Pager) -> Result<Duration, Failure> {
    let memory = Memory::new(IMAGE, false).map_err(other)?;
    let (uffd, layout) = register(&memory, template)?;
    let touch = || {
        let times = (0..FAULTS).map(|page| {
            let began = Instant::now();
            // SAFETY: nothing writes to it but the pager.
            unsafe { memory.touch(page) };
            began.elapsed()
        });
        median(times.collect())
    };
    let (cache, options) = match pager {
        Pager::Guest(cache, options) => (cache, options),
        Pager::Bare(image) => {
            return Ok(std::thread::scope(|scope| {
                scope.spawn(|| copy_mapped(&uffd, &memory.regions(), image, FAULTS));
                touch()
            }));
        }
        Pager::OnePage => {
            return Ok(std::thread::scope(|scope| {
                scope.spawn(|| bare(&uffd, &[1; PAGE], FAULTS));
                touch()
            }));
        }
    };
    let (journal, cache) = (Journal::new(&layout).map_err(other)?, cache.clone());
    let parts = Parts { uffd, layout, template: template.clone(), cache, journal, life: None };
    let guest = Guest::serve(parts, options).map_err(other)?;
    let median = touch();
    guest.stop();
    Ok(median)
}

fn register(memory: &Memory, template: &Template) -> Result<(Uffd, Layout), Failure> {
    let uffd = Uffd::new(Features::REMOVE)
        .map_err(|error| other(format!("this kernel offers no userfaultfd to this user: {error}")))?;
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).map_err(other)?;
    }
    Ok((uffd, Layout::new(regions.to_vec(), template.size()).map_err(other)?))
}

/// Maps a file of `size` bytes, to which nothing writes meanwhile, and returns the time that `work` takes from the
/// mapping on.
fn with_mapped(
    path: &Path,
    size: usize,
    work: impl FnOnce(&[u8]) -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    let file = File::open(path).map_err(other)?;
    let began = Instant::now();
    // SAFETY: a new mapping, where the kernel finds room.
    let start = unsafe { mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }
        .map_err(other)?;
    // SAFETY: the mapping is there until `work` has returned, and nothing writes to the file.
    let result = work(unsafe { std::slice::from_raw_parts(start.cast(), size) });
    let took = began.elapsed();
    // SAFETY: every use of it has ended.
    unsafe { munmap(start, size) }.map_err(other)?;
    result.map(|()| took)
}

/// Reads a page of an image. It copies the bytes, as a guest's access does.
fn page_of(image: &[u8], page: usize) -> [u64; PAGE / 8] {
    let words = image[page * PAGE..][..PAGE].chunks_exact(8);
    let mut read = [0; PAGE / 8];
    read.iter_mut()
        .zip(words)
        .for_each(|(to, word)| *to = u64::from_ne_bytes(word.try_into().expect("8 bytes")));
    read
}

fn faults(stats: &GuestStats) -> u64 {
    stats.latency.iter().map(|(_, latency)| latency.count).sum()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Formats the median, the least and the greatest time.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    format!("{:.1?} ({:.1?} to {:.1?})", times[times.len() / 2], times[0], times[times.len() - 1])
}
