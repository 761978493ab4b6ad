//! `snapshot`, `verify`, `ls`, `rm`, `gc`, `fsck`.

use super::failure::{Failure, other, size};
use super::store_option::{StoreOption, seconds};
use slat_pager::{ImageFile, PAGE};
use std::path::PathBuf;
use std::time::Duration;

pub fn list(store: &StoreOption) -> Result<(), Failure> {
    let library = store.library()?;
    let mut unopened = 0;
    for name in library.list().map_err(other)? {
        let template = match library.open(&name) {
            Ok(template) => template,
            Err(error) => {
                println!("{name}: {error}");
                unopened += 1;
                continue;
            }
        };
        let chunks = template.chunks();
        let zero = chunks.iter().filter(|chunk| chunk.is_none()).count();
        let (mib, all, kib) = (template.size() >> 20, chunks.len(), template.chunk_size() >> 10);
        let set = template.working_set().map_or("no working set".into(), |set| {
            format!("a working set of {} KiB", set.pages() * (PAGE >> 10))
        });
        println!("{name}: {mib} MiB, {all} chunks of {kib} KiB, {zero} of them zero; {set}");
    }
    if unopened > 0 {
        return Err(Failure::Found(format!("{unopened} templates cannot be opened")));
    }
    Ok(())
}

/// A collection.
#[derive(clap::Args)]
pub struct Collect {
    #[command(flatten)]
    store: StoreOption,
    /// Seconds after which a host that did not renew its lease counts as dead. A collection must have seen the lease
    /// that long before. Hosts renew their leases every two minutes
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    patience: Duration,
}

impl Collect {
    pub fn run(&self) -> Result<(), Failure> {
        let gc = self.store.library()?.gc(self.patience).map_err(other)?;
        println!("{} chunks removed, {} kept", gc.removed, gc.kept);
        if gc.ended + gc.given_up > 0 {
            println!("{} leases of dead hosts ended, {} of their uploads given up", gc.ended, gc.given_up);
        }
        Ok(())
    }
}

/// A check of a store.
#[derive(clap::Args)]
pub struct Check {
    #[command(flatten)]
    store: StoreOption,
    /// Rebuild a damaged or lost catalog from the manifests, remove working sets that cannot be used, and write missing
    /// names of templates
    #[arg(long)]
    repair: bool,
}

impl Check {
    pub fn run(&self) -> Result<(), Failure> {
        let fsck = self.store.library()?.fsck(self.repair).map_err(other)?;
        fsck.repairs.iter().for_each(|line| println!("repaired: {line}"));
        fsck.problems.iter().for_each(|line| println!("{line}"));
        if !fsck.problems.is_empty() {
            return Err(Failure::Found(format!("{} problems", fsck.problems.len())));
        }
        println!("{} templates, no problem is left", fsck.templates);
        Ok(())
    }
}

/// A template.
#[derive(clap::Args)]
pub struct Named {
    /// The template's name
    name: String,
    #[command(flatten)]
    store: StoreOption,
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
        println!("{}: {} chunks checked, none damaged", self.name, verified.chunks);
        Ok(())
    }

    pub fn forget(&self) -> Result<(), Failure> {
        self.store.library()?.forget(&self.name).map_err(other)
    }

    pub fn remove(&self) -> Result<(), Failure> {
        self.store.library()?.remove(&self.name).map_err(other)
    }
}

/// A template to make.
#[derive(clap::Args)]
pub struct Snapshot {
    /// The image: a guest's memory in a file or on a block device, in whole pages
    image: PathBuf,
    #[command(flatten)]
    named: Named,
    /// Bytes of a chunk: a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    chunk: usize,
}

impl Snapshot {
    pub fn run(&self) -> Result<(), Failure> {
        let image = ImageFile::open(&self.image).map_err(other)?;
        let size = image.size();
        let library = self.named.store.library_to_write()?;
        let written = library.snapshot_file(&self.named.name, image, self.chunk).map_err(other)?;
        println!("{}: {} MiB, {} new chunks", self.named.name, size >> 20, written.chunks);
        Ok(())
    }
}
