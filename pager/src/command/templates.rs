//! `snapshot`, `overlay`, `verify`, `ls`, `rm`, `gc`, `fsck`.

use super::failure::{Failure, other, size};
use super::store_option::{StoreOption, seconds};
use slat_pager::{ImageFile, MOST_CHUNK, PAGE};
use std::fs::File;
use std::io::Read;
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
        let overlay = template
            .overlay()
            .map_or(String::new(), |(base, pages)| format!(" of {base}, below {pages} pages"));
        println!("{name}: {mib} MiB, {all} chunks of {kib} KiB{overlay}, {zero} of them zero; {set}");
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
    /// that long before. Hosts renew their leases every two minutes: with less than 300, chunks of running guests may
    /// be deleted
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

/// An overlay to make.
#[derive(clap::Args)]
pub struct Overlay {
    /// The template below
    base: String,
    /// The overlay's name, for `serve --guest` and `ctl add`
    name: String,
    #[command(flatten)]
    store: StoreOption,
    /// An offset in the base's memory, in bytes, also hexadecimal as 0x1000; and the file whose bytes are there. The later
    /// one counts where two overlap
    #[arg(long = "at", value_name = "OFFSET=FILE", value_parser = patch, required = true)]
    patches: Vec<(u64, PathBuf)>,
}

fn patch(text: &str) -> Result<(u64, PathBuf), String> {
    let (offset, file) = text.split_once('=').ok_or("no `=`: write OFFSET=FILE")?;
    let number = match offset.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => offset.parse(),
    };
    let number = number.map_err(|error| format!("{offset:?} is no offset in bytes: {error}"))?;
    Ok((number, file.into()))
}

impl Overlay {
    pub fn run(&self) -> Result<(), Failure> {
        let library = self.store.library()?;
        let read = |(offset, file): &(u64, PathBuf)| {
            // One byte more than an overlay can have, so that a larger file is refused and not cut off.
            let mut bytes = Vec::new();
            let read =
                File::open(file).and_then(|open| open.take(MOST_CHUNK as u64 + 1).read_to_end(&mut bytes));
            read.map_err(|error| other(format!("{}: {error}", file.display())))?;
            Ok((*offset, bytes))
        };
        let patches = self.patches.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
        library.overlay(&self.base, &patches, &self.name).map_err(other)?;
        let template = library.open(&self.name).map_err(other)?;
        let pages = template.overlay().map_or(0, |(_, pages)| pages);
        println!("{}: {pages} pages over {}", self.name, self.base);
        Ok(())
    }
}
