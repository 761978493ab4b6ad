//! `checkpoint` makes a snapshot of a guest that a daemon serves; `retain` removes old ones.

use super::failure::{Failure, other};
use super::store_option::StoreOption;
use std::io::Write;
use std::path::PathBuf;

/// A guest, and the name of its snapshot.
#[derive(clap::Args)]
pub struct Checkpoint {
    /// Process number of the VMM
    pid: i32,
    /// The new template's name
    name: String,
    /// The socket that `serve --control` was given
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
}

impl Checkpoint {
    pub fn run(&self) -> Result<(), Failure> {
        let instant = |pages| {
            println!("instant: the guest may run; {pages} pages to store");
            // The reader may wait at a pipe.
            _ = std::io::stdout().flush();
        };
        let stored = slat_pager::checkpoint(&self.control, self.pid, &self.name, instant)
            .map_err(|error| other(format!("{}: {error}", self.control.display())))?;
        println!(
            "{}: {} pages in {} chunks, {} of them new",
            self.name, stored.pages, stored.chunks, stored.written
        );
        Ok(())
    }
}

/// The snapshots to keep.
#[derive(clap::Args)]
pub struct Retain {
    /// Templates called `BASE.N`, N a number, are the snapshots of a guest
    base: String,
    /// Number of snapshots that stay: those with the highest numbers
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    keep: u64,
    #[command(flatten)]
    store: StoreOption,
}

impl Retain {
    pub fn run(&self) -> Result<(), Failure> {
        let removed = self.store.library()?.retain(&self.base, self.keep as usize).map_err(other)?;
        println!("{} snapshots removed; the next gc deletes their chunks", removed.len());
        Ok(())
    }
}
