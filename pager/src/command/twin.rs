//! `twin`: a guest for tests and the demonstration.

use super::{Failure, other, size};
use slat_pager::PAGE;
use slat_pager::twin::{Image, Twin};
use std::path::PathBuf;
use std::time::Duration;

/// What it does.
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
    #[arg(long, default_value_t = 3000)]
    patience_ms: u64,
}

impl Flags {
    /// Prints the report; exit status 3 where something is wrong.
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
            patience: Duration::from_millis(self.patience_ms),
        };
        let report = twin.run().map_err(other)?;
        println!("{}", serde_json::to_string(&report).map_err(other)?);
        if report.is_right() {
            return Ok(());
        }
        // Threads of a frozen guest would not let the process end.
        eprintln!("twin: {}", if report.frozen { "frozen" } else { "wrong bytes" });
        std::process::exit(3)
    }
}
