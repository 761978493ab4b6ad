//! `snapshot`, `verify`, `ls`, `rm`, `gc`.

use super::{Failure, other, size};
use slat_pager::{Folder, Library, PAGE};
use std::fs::File;
use std::path::PathBuf;

/// The store.
#[derive(clap::Args)]
pub struct Store {
    /// The folder that is the store
    #[arg(long, value_name = "FOLDER")]
    store: PathBuf,
}

impl Store {
    pub fn library(&self) -> Result<Library, Failure> {
        Ok(Library::new(
            Folder::open(&self.store).map_err(|error| other(format!("{}: {error}", self.store.display())))?,
        ))
    }

    pub fn list(&self) -> Result<(), Failure> {
        let library = self.library()?;
        for name in library.list().map_err(other)? {
            let template = library.open(&name).map_err(other)?;
            let chunks = template.chunks();
            let zero = chunks.iter().filter(|chunk| chunk.is_none()).count();
            let (mib, all, kib) = (template.size() >> 20, chunks.len(), template.chunk_size() >> 10);
            let set = template.working_set().map_or("no working set".into(), |set| {
                format!("a working set of {} KiB", set.pages() * (PAGE >> 10))
            });
            println!("{name}: {mib} MiB, {all} chunks of {kib} KiB, {zero} of them zero; {set}");
        }
        Ok(())
    }

    pub fn gc(&self) -> Result<(), Failure> {
        let gc = self.library()?.gc(slat_pager::PATIENCE).map_err(other)?;
        println!("{} chunks removed, {} kept", gc.removed, gc.kept);
        Ok(())
    }
}

/// A template.
#[derive(clap::Args)]
pub struct Named {
    /// The template's name
    name: String,
    #[command(flatten)]
    store: Store,
}

impl Named {
    pub fn verify(&self) -> Result<(), Failure> {
        let verified = self.store.library()?.verify(&self.name).map_err(other)?;
        verified.damaged.iter().for_each(|line| println!("{line}"));
        if !verified.damaged.is_empty() {
            return Err(Failure::Found(format!(
                "{} of {} chunks are damaged",
                verified.damaged.len(),
                verified.chunks
            )));
        }
        println!("{}: {} chunks are right", self.name, verified.chunks);
        Ok(())
    }

    pub fn forget(&self) -> Result<(), Failure> {
        self.store.library()?.forget(&self.name).map_err(other)
    }

    pub fn remove(&self) -> Result<(), Failure> {
        self.store.library()?.remove(&self.name).map_err(other)
    }
}

/// A template to be.
#[derive(clap::Args)]
pub struct Snapshot {
    /// The image: a guest's memory, in whole pages
    image: PathBuf,
    #[command(flatten)]
    named: Named,
    /// Bytes of a chunk: a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    chunk: usize,
}

impl Snapshot {
    pub fn run(&self) -> Result<(), Failure> {
        let named = |error: std::io::Error| other(format!("{}: {error}", self.image.display()));
        let image = File::open(&self.image).map_err(named)?;
        let size = image.metadata().map_err(named)?.len();
        let library = self.named.store.library()?;
        let written = library.snapshot(&self.named.name, image, size, self.chunk).map_err(other)?;
        println!("{}: {} MiB, {} new chunks", self.named.name, size >> 20, written.chunks);
        Ok(())
    }
}
