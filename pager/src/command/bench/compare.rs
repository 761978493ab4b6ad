//! Compares the pager with restores without one: the time until a guest has done its first 100 ms of work.

use super::{Bench, CHUNK, Failure, IMAGE, median, other, page_of, register, spread, with_mapped, work};
use slat_pager::twin::{Memory, copy_each, is_page};
use slat_pager::{
    Cache, Folder, Guest, Journal, Library, Options, PAGE, Parts, Steady, SteadyOptions, Store, Trouble,
};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time of the guest's work, without its waits.
const WORK: Duration = Duration::from_millis(100);
/// Delays of the store, in milliseconds.
const DELAYS: [u64; 3] = [0, 10, 100];
/// Threads that read the whole snapshot.
const READERS: usize = 16;

/// A way to restore a guest.
struct Way<'a> {
    name: &'a str,
    run: &'a dyn Fn() -> Result<Duration, Failure>,
}

/// A store that counts its reads.
struct Place {
    steady: Steady,
    reads: Arc<AtomicU64>,
}

impl Place {
    fn new(folder: &Path, delay: u64) -> Result<Self, Failure> {
        let reads = Arc::new(AtomicU64::new(0));
        let counted = reads.clone();
        let slow = Trouble::calling(Folder::open(folder).map_err(other)?, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(delay));
            Ok(())
        });
        Ok(Self { steady: Steady::new(slow, SteadyOptions::default()), reads })
    }
}

impl Bench {
    pub(super) fn compare(&self, folder: &Path) -> Result<(), Failure> {
        let size = (IMAGE.pages * PAGE) as u64;
        let library = Library::new(Folder::open(folder).map_err(other)?);
        library.snapshot("bench", IMAGE.read(), size, CHUNK * PAGE).map_err(other)?;
        let path = folder.join("image");
        let mut image = std::io::BufWriter::new(File::create(&path).map_err(other)?);
        IMAGE.write(&mut image).and_then(|()| image.flush()).map_err(other)?;
        let mut record = Options::default();
        record.record = Some(Duration::from_secs(3600));
        self.guest(&library.open("bench").map_err(other)?, record)?;
        println!(
            "until a guest of {} MiB has done {WORK:?} of work, of which each page takes {} us; medians of {}",
            size >> 20,
            self.work_us,
            self.rounds
        );
        let present = || {
            self.start(&|memory| {
                for page in 0..IMAGE.pages {
                    let words = std::array::from_fn(|word| IMAGE.word(page, 0, word));
                    // SAFETY: nothing else uses it.
                    unsafe { memory.write(page, &words) };
                }
                Ok(())
            })
        };
        let local = [
            Way { name: "all memory present", run: &present },
            Way { name: "mmap of a local file", run: &|| self.mapped(&path) },
            Way { name: "one thread, page by page, local file", run: &|| self.one_by_one(&path) },
        ];
        for way in local {
            let times: Result<Vec<_>, _> = (0..self.rounds).map(|_| (way.run)()).collect();
            println!("  {:<40} {}", way.name, spread(times?));
        }
        for delay in DELAYS {
            let mut off = Options::default();
            off.replay = 0;
            for (name, options) in [
                ("the whole snapshot first", None),
                ("the pager without a working set", Some(off)),
                ("the pager with its working set", Some(Options::default())),
            ] {
                let (mut times, mut reads) = (Vec::new(), Vec::new());
                for _ in 0..self.rounds {
                    let place = Place::new(folder, delay)?;
                    times.push(match options {
                        Some(options) => self.paged(&place, options)?,
                        None => self.whole(&place)?,
                    });
                    reads.push(Duration::from_nanos(place.reads.load(Ordering::Relaxed)));
                }
                let what = format!("{name}, store at {delay} ms");
                println!("  {what:<40} {}, {} chunks read", spread(times), median(reads).as_nanos());
            }
        }
        Ok(())
    }

    /// Does the work in memory that `fill` has filled; measures from the end of the fill.
    fn start(&self, fill: &dyn Fn(&Memory) -> Result<(), Failure>) -> Result<Duration, Failure> {
        let memory = Memory::new(IMAGE, false).map_err(other)?;
        fill(&memory)?;
        let began = Instant::now();
        // SAFETY: nothing writes to it.
        self.first_work(&|page| unsafe { memory.read(page) })?;
        Ok(began.elapsed())
    }

    /// The first part of the work.
    fn first_work(&self, read: &dyn Fn(usize) -> [u64; PAGE / 8]) -> Result<(), Failure> {
        let time = Duration::from_micros(self.work_us);
        let pages = (WORK.as_micros() as u64 / self.work_us.max(1)) as usize;
        for page in work().take(pages.max(1)) {
            if !is_page(&IMAGE, page, Some(0), &read(page)) {
                return Err(Failure::Found(format!("page {page} is wrong")));
            }
            let began = Instant::now();
            while began.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    fn mapped(&self, path: &Path) -> Result<Duration, Failure> {
        with_mapped(path, IMAGE.pages * PAGE, |image| self.first_work(&|page| page_of(image, page)))
    }

    /// One thread copies each faulting page from the file, as the public examples of handlers do.
    fn one_by_one(&self, path: &Path) -> Result<Duration, Failure> {
        let memory = Memory::new(IMAGE, false).map_err(other)?;
        let uffd = slat_pager::Uffd::new(slat_pager::Features::REMOVE).map_err(other)?;
        let regions = memory.regions();
        for (start, size, _) in regions {
            uffd.register(start, size, false).map_err(other)?;
        }
        let file = File::open(path).map_err(other)?;
        let pages = (WORK.as_micros() as u64 / self.work_us.max(1)) as usize;
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| copy_each(&uffd, &regions, &file, pages.max(1)));
            // SAFETY: nothing writes to it but that thread.
            self.first_work(&|page| unsafe { memory.read(page) })
        })?;
        Ok(began.elapsed())
    }

    /// Reads all chunks before the guest begins.
    fn whole(&self, place: &Place) -> Result<Duration, Failure> {
        let memory = Memory::new(IMAGE, false).map_err(other)?;
        let template = Library::new(place.steady.clone()).open("bench").map_err(other)?;
        let (next, failed, began) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    while let Some(hash) = template.chunks().get(next.fetch_add(1, Ordering::Relaxed)) {
                        let Some(hash) = hash else { continue };
                        failed.fetch_add(
                            usize::from(place.steady.get(&hash.key(), 4 << 20).is_err()),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
        });
        let read = began.elapsed();
        if failed.into_inner() > 0 {
            return Err(other("a chunk could not be read"));
        }
        // The time to expand and copy them is not counted, in favour of this method.
        let words = |page| std::array::from_fn(|word| IMAGE.word(page, 0, word));
        for page in 0..IMAGE.pages {
            // SAFETY: nothing else uses it.
            unsafe { memory.write(page, &words(page)) };
        }
        let began = Instant::now();
        // SAFETY: nothing writes to it.
        self.first_work(&|page| unsafe { memory.read(page) })?;
        Ok(read + began.elapsed())
    }

    fn paged(&self, place: &Place, options: Options) -> Result<Duration, Failure> {
        let memory = Memory::new(IMAGE, false).map_err(other)?;
        let template = Library::new(place.steady.clone()).open("bench").map_err(other)?;
        let (uffd, layout) = register(&memory, &template)?;
        let (journal, cache) = (Journal::new(&layout).map_err(other)?, Arc::new(Cache::new(256 << 20)));
        let began = Instant::now();
        let parts = Parts { uffd, layout, template, cache, journal, life: None };
        let guest = Guest::serve(parts, options).map_err(other)?;
        // SAFETY: nothing writes to it but the pager.
        self.first_work(&|page| unsafe { memory.read(page) })?;
        let took = began.elapsed();
        guest.stop();
        Ok(took)
    }
}
