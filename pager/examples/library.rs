//! Uses the library without the daemon: pages of this process's memory come from a template. Prints the times of
//! faults, from the read of the fault to the present page; `slat-pager bench` compares them with the least that a pager
//! can do.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use slat_pager::{
    Cache, Features, Folder, Guest, GuestStats, Journal, Layout, Library, MOST_CHUNK, Options, PAGE, Parts,
    Region, Uffd,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

const PAGES: usize = 8192;
const SIZE: usize = PAGES * PAGE;

/// Makes empty memory, and a userfaultfd for its faults.
fn memory() -> Result<(u64, Uffd), Box<dyn Error>> {
    let (prot, any) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: a new mapping, where the kernel finds room; it stays until the process ends.
    let start = unsafe { mmap_anonymous(any, SIZE, prot, MapFlags::PRIVATE | MapFlags::NORESERVE) }?;
    // SAFETY: it is this mapping's. Huge pages would be filled by the kernel, unasked.
    _ = unsafe { madvise(start, SIZE, Advice::LinuxNoHugepage) };
    let uffd = Uffd::new(Features::REMOVE)?;
    uffd.register(start as u64, SIZE as u64, false)?;
    Ok((start as u64, uffd))
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("slat-pager-embed-{}", std::process::id()));
    let image: Vec<u8> = (0..SIZE).map(|at| (at / PAGE % 255) as u8 + 1).collect();
    let library = Library::new(Folder::open(&folder)?);
    library.snapshot("embed", &*image, SIZE as u64, MOST_CHUNK)?;

    // The pager, with all chunks in its cache after the first guest; one page at a time.
    let cache = Arc::new(Cache::new(2 * SIZE));
    let mut options = Options::default();
    (options.threads, options.window) = (1, 1);
    let mut served = GuestStats::default();
    for _ in 0..2 {
        let (start, uffd) = memory()?;
        let template = library.open("embed")?;
        let layout =
            Layout::new(vec![Region { base: start, size: SIZE as u64, offset: 0 }], template.size())?;
        let (journal, cache) = (Journal::new(&layout)?, cache.clone());
        let guest = Guest::serve(Parts { uffd, layout, template, cache, journal, life: None }, options)?;
        for number in 0..PAGES {
            // SAFETY: it is mapped, and nothing writes to it but the pager.
            let byte = unsafe { ((start + (number * PAGE) as u64) as *const u8).read_volatile() };
            assert_eq!(byte, image[number * PAGE]);
        }
        served = guest.stats();
    }
    std::fs::remove_dir_all(folder)?;
    for (source, latency) in served.latency.iter().filter(|(_, latency)| latency.count > 0) {
        let time = Duration::from_nanos;
        let (p50, p99, p999) = (time(latency.p50), time(latency.p99), time(latency.p999));
        println!("fault from {source}: {p50:?}, p99 {p99:?}, p99.9 {p999:?} ({} faults)", latency.count);
    }
    Ok(())
}
