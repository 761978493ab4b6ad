//! `clones`: measures the memory of many guests of one template, in this process.

use super::failure::{Failure, other};
use slat_pager::twin::{Image, Memory, is_page};
use slat_pager::{
    Backing, Cache, Features, Folder, Guest, Journal, Layout, Library, Options, PAGE, Parts, Region, Share,
    Template, Uffd,
};
use std::path::Path;
use std::sync::Arc;

/// Number and size of the guests.
#[derive(clap::Args)]
pub struct Clones {
    /// Guests of the template
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clones: u64,
    /// Memory of each one, in MiB
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mib: u64,
    /// Percent of its pages that a clone writes; it reads all of them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=100))]
    written: u64,
}

impl Clones {
    pub fn run(&self) -> Result<(), Failure> {
        let memory = Path::new("/dev/shm");
        let folder = memory.join(format!("slat-pager-clones-{}", std::process::id()));
        let result = self.in_folder(&folder);
        _ = std::fs::remove_dir_all(&folder);
        result
    }

    fn in_folder(&self, folder: &Path) -> Result<(), Failure> {
        let image = Image { seed: 1, pages: (self.mib << 20) as usize / PAGE };
        let store = std::env::temp_dir().join(format!("slat-pager-clones-{}", std::process::id()));
        let library = Library::new(Folder::open(&store).map_err(other)?);
        let made = library.snapshot("clones", image.read(), self.mib << 20, 256 << 10);
        let template = made.and_then(|_| library.open("clones")).map_err(other);
        let result = template.and_then(|template| self.measure(folder, image, &template));
        _ = std::fs::remove_dir_all(store);
        result
    }

    fn measure(&self, folder: &Path, image: Image, template: &Template) -> Result<(), Failure> {
        let share = Share::open(folder, template).map_err(other)?;
        let pages = image.pages as u64 * self.written / 100;
        let mut guests = Vec::new();
        for number in 0..self.clones {
            let memory = Memory::clone_of(image, &folder.join("clones")).map_err(other)?;
            let guest = serve(&memory, template, Backing::Share(share.clone()))?;
            touch(&memory, number, pages)?;
            guests.push((memory, guest));
        }
        let own: Result<u64, _> = guests.iter().map(|(memory, _)| memory.own_bytes()).sum();
        let (own, shared) = (own.map_err(other)?, share.bytes());
        let (template, written) = (self.mib << 20, self.clones * pages * PAGE as u64);
        let mib = |bytes: u64| bytes >> 20;
        println!(
            "{} clones of {} MiB read all of it, and write {} MiB in all: {} MiB are shared, {} MiB are their own",
            self.clones,
            self.mib,
            mib(written),
            mib(shared),
            mib(own)
        );
        println!("  a copy for each would be {} MiB", mib(template * self.clones));
        let most = template + written * 11 / 10;
        let ratio = (shared + own) as f64 / most as f64;
        println!("  template + 1.1 x written is {} MiB: {ratio:.3} of it", mib(most));
        if shared + own > most {
            return Err(Failure::Found(
                "the clones take more than the template and 1.1 x what they wrote".into(),
            ));
        }
        Ok(())
    }
}

fn serve(memory: &Memory, template: &Template, backing: Backing) -> Result<Guest, Failure> {
    let uffd = Uffd::new(Features::REMOVE.and(Features::SHARED).and(Features::MINOR))
        .map_err(|error| other(format!("this kernel offers no userfaultfd to this user: {error}")))?;
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).map_err(other)?;
    }
    let layout = Layout::new(regions.to_vec(), template.size()).map_err(other)?;
    let (journal, cache) = (Journal::new(&layout).map_err(other)?, Arc::new(Cache::new(0)));
    let parts = Parts { uffd, layout, template: template.clone(), cache, journal, life: None };
    let mut options = Options::default();
    options.threads = 1;
    Guest::serve_on(parts, backing, options).map_err(other)
}

/// Reads all pages, and writes some.
fn touch(memory: &Memory, number: u64, written: u64) -> Result<(), Failure> {
    let image = &memory.image;
    for page in 0..image.pages {
        // SAFETY: nothing writes to it but the pager and this thread.
        if !is_page(image, page, Some(0), &unsafe { memory.read(page) }) {
            return Err(Failure::Found(format!("page {page} of clone {number} is wrong")));
        }
    }
    for write in 0..written {
        let page = (number.wrapping_mul(7919) + write * 31) as usize % image.pages;
        let words = std::array::from_fn(|word| image.word(page, number as u32 + 1, word));
        // SAFETY: as above.
        unsafe { memory.write(page, &words) };
    }
    Ok(())
}
