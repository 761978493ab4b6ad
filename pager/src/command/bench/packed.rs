//! Measures what packs of a working set save: a guest touches few pages of each of many chunks.

use super::{Bench, Failure, median, other, page_of, register, spread, with_mapped};
use slat_pager::twin::{Image, Memory, is_page};
use slat_pager::{
    Cache, Folder, Guest, GuestStats, Journal, Library, Options, PAGE, Parts, Template, Trouble, WorkingSet,
};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// 1 GiB, in chunks of 256 KiB. The guest touches 38 MiB of it, in stretches of 4 pages.
const IMAGE: Image = Image { seed: 1, pages: 256 << 10 };
const CHUNK: usize = 64;
const TOUCHED: usize = 38 << 8;
const STRETCH: usize = 4;

/// The pages that the guest touches, in its order: stretches in an order without locality.
fn work() -> impl Iterator<Item = usize> {
    let stretches = IMAGE.pages / STRETCH;
    // An odd factor, so that no stretch occurs twice.
    (0..TOUCHED / STRETCH)
        .map(move |number| number * 26_557 % stretches * STRETCH)
        .flat_map(|first| first..first + STRETCH)
}

impl Bench {
    pub(super) fn packed(&self, folder: &Path) -> Result<(), Failure> {
        let size = (IMAGE.pages * PAGE) as u64;
        let library = Library::new(Folder::open(folder).map_err(other)?);
        let path = folder.join("image");
        let mut image = std::io::BufWriter::new(File::create(&path).map_err(other)?);
        IMAGE.write(&mut image).and_then(|()| image.flush()).map_err(other)?;
        for name in ["chunks", "packs"] {
            let image = File::open(&path).map_err(other)?;
            library.snapshot(name, image, size, CHUNK * PAGE).map_err(other)?;
        }
        let mut record = Options::default();
        record.record = Some(Duration::from_secs(3600));
        let template = library.open("packs").map_err(other)?;
        self.run_packed(&template, record)?;
        let set = template.working_set().ok_or_else(|| other("no working set was recorded"))?;
        let unpacked = WorkingSet::of_faults(set.runs().flatten());
        library.open("chunks").and_then(|open| open.keep_working_set(unpacked)).map_err(other)?;
        let slow = || {
            let folder = Folder::open(folder).map_err(other)?;
            Ok(Library::new(Trouble::new(folder, Duration::from_millis(self.store_delay_ms), 0)))
        };
        let slow = slow()?;
        let [chunks, packs] = ["chunks", "packs"].map(|name| slow.open(name).map_err(other));
        let (chunks, packs) = (chunks?, packs?);
        let mut off = Options::default();
        off.replay = 0;
        let names = ["mmap of a local file", "no working set", "a set of chunks", "a packed set"];
        let mut rows = [const { Vec::new() }; 4];
        for _ in 0..self.rounds {
            rows[0].push(self.mapped_file(&path)?);
            for (row, template, options) in
                [(1, &chunks, off), (2, &chunks, Options::default()), (3, &packs, Options::default())]
            {
                rows[row].push(self.run_packed(template, options)?.0);
            }
        }
        println!(
            "restore: a guest of {} MiB touches {} MiB in stretches of {STRETCH} pages, {} us of work for each page; the store takes {} ms",
            size >> 20,
            (TOUCHED * PAGE) >> 20,
            self.work_us,
            self.store_delay_ms
        );
        let base = median(rows[0].clone());
        for (name, row) in names.into_iter().zip(rows) {
            let ratio = median(row.clone()).as_secs_f64() / base.as_secs_f64();
            println!("  {name:<22} {}  {ratio:.2} x", spread(row));
        }
        Ok(())
    }

    /// Restores a guest and does its work.
    fn run_packed(&self, template: &Template, options: Options) -> Result<(Duration, GuestStats), Failure> {
        let memory = Memory::new(IMAGE, false).map_err(other)?;
        let (uffd, layout) = register(&memory, template)?;
        let (journal, cache) = (Journal::new(&layout).map_err(other)?, Arc::new(Cache::new(1 << 30)));
        let began = Instant::now();
        let parts = Parts { uffd, layout, template: template.clone(), cache, journal, life: None };
        let guest = Guest::serve(parts, options).map_err(other)?;
        // SAFETY: nothing writes to it but the pager.
        self.touch_packed(&|page| unsafe { memory.read(page) })?;
        let took = began.elapsed();
        Ok((took, guest.stop()))
    }

    fn touch_packed(&self, read: &dyn Fn(usize) -> [u64; PAGE / 8]) -> Result<(), Failure> {
        let time = Duration::from_micros(self.work_us);
        for page in work() {
            let words = read(page);
            let version = if IMAGE.is_zero(page) { None } else { Some(0) };
            if !is_page(&IMAGE, page, version, &words) {
                return Err(Failure::Found(format!("page {page} is wrong")));
            }
            let began = Instant::now();
            while began.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    fn mapped_file(&self, path: &Path) -> Result<Duration, Failure> {
        with_mapped(path, IMAGE.pages * PAGE, |image| self.touch_packed(&|page| page_of(image, page)))
    }
}
