//! `twin`: a guest for tests and the demonstration.

use super::failure::{Failure, other, size};
use slat_pager::PAGE;
use slat_pager::twin::{Checkpoints, Image, Twin, Versions};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of the twin.
#[derive(clap::Args)]
pub struct Flags {
    socket: PathBuf,
    #[arg(long, value_parser = size)]
    memory: usize,
    #[arg(long, default_value_t = 1)]
    image_seed: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 2)]
    vcpus: usize,
    #[arg(long)]
    millis: u64,
    #[arg(long)]
    balloon: bool,
    #[arg(long)]
    shared: bool,
    #[arg(long, value_parser = size, default_value = "4K")]
    page_size: usize,
    #[arg(long)]
    only_removes: bool,
    #[arg(long, conflicts_with = "shared")]
    clone_of: Option<PathBuf>,
    #[arg(long, default_value_t = 3000)]
    patience_ms: u64,
    #[arg(long)]
    begin: Option<PathBuf>,
    #[arg(long, requires = "control")]
    checkpoints: Option<u64>,
    #[arg(long, default_value = "saved")]
    name: String,
    #[arg(long)]
    control: Option<PathBuf>,
    #[arg(long, default_value = ".")]
    oracle: PathBuf,
}

/// Reads the versions that the oracle of another twin wrote.
fn versions(path: &Path) -> Result<Versions, Failure> {
    let text = std::fs::read(path).map_err(other)?;
    serde_json::from_slice(&text).map_err(other)
}

impl Flags {
    /// Prints the report. Exit status 3 means a wrong byte or a frozen guest.
    pub fn run(&self) -> Result<(), Failure> {
        let image = Image { seed: self.image_seed, pages: self.memory / PAGE };
        let twin = Twin {
            socket: self.socket.clone(),
            image,
            seed: self.seed,
            vcpus: self.vcpus,
            time: Duration::from_millis(self.millis),
            balloon: self.balloon,
            shared: self.shared,
            page_size: self.page_size,
            only_removes: self.only_removes,
            clone_of: self.clone_of.clone(),
            patience: Duration::from_millis(self.patience_ms),
            begin: self.begin.as_ref().map(|begin| versions(begin)).transpose()?,
            checkpoints: self.control.clone().zip(self.checkpoints).map(|(control, count)| Checkpoints {
                control,
                count,
                name: self.name.clone(),
                oracle: self.oracle.clone(),
            }),
        };
        let report = twin.run().map_err(other)?;
        println!("{}", serde_json::to_string(&report).map_err(other)?);
        if report.is_right() {
            return Ok(());
        }
        // Threads of a frozen guest would keep the process from ending.
        eprintln!("twin: {}", if report.frozen { "frozen" } else { "wrong bytes" });
        std::process::exit(3)
    }
}
