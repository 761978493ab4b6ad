//! `receive` and `restore`: machines of Cloud Hypervisor.

use super::place::{Place, seconds};
use super::serve::{guest, say};
use super::{Failure, other, size};
use slat_pager::{Cache, Restore, Template, accept_one};
use std::path::PathBuf;
use std::time::Duration;

/// A machine to be kept.
#[derive(clap::Args)]
pub struct Receive {
    /// The socket to which the VMM sends it, once
    socket: PathBuf,
    /// The template's name
    name: String,
    #[command(flatten)]
    place: Place,
    /// Bytes of a chunk: a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    chunk: usize,
    /// Seconds that the VMM may take until all has come, once it has connected
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    patience: Duration,
}

impl Receive {
    pub fn run(&self) -> Result<(), Failure> {
        let library = self.place.library()?;
        let named = |error: std::io::Error| other(format!("{}: {error}", self.socket.display()));
        let connection = accept_one(&self.socket).map_err(named)?;
        let received =
            slat_pager::receive_machine(&library, &self.name, &connection, self.chunk, self.patience);
        let received = received.map_err(other)?;
        println!("{}: a machine of {} MiB, {} new chunks", self.name, received.memory >> 20, received.chunks);
        Ok(())
    }
}

/// Machines to be restored.
#[derive(clap::Args)]
pub struct Machines {
    #[command(flatten)]
    place: Place,
    /// The socket at which a VMM waits for its machine, and the template
    #[arg(long = "guest", value_name = "SOCKET=TEMPLATE", value_parser = guest, required = true)]
    guests: Vec<(PathBuf, String)>,
    /// They stand still until their VMM resumes them
    #[arg(long)]
    paused: bool,
    /// Content that stays in this host's memory, for all of them
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    cache: usize,
    /// Record the first guest of a template that has no working set: the pages that it touches in so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    record: Option<Duration>,
    /// Threads for each guest that fill its memory ahead of faults, its template's working set first, 0 to 64
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=64))]
    replay: u64,
}

impl Machines {
    /// Serves all until their VMMs have all pages, or end.
    pub fn run(&self) -> Result<(), Failure> {
        let library = self.place.library()?;
        let opened = self.guests.iter().map(|(_, template)| library.open(template).map_err(other));
        let templates = opened.collect::<Result<Vec<_>, _>>()?;
        let mut with = Restore::default();
        (with.paused, with.replay, with.record) = (self.paused, self.replay as usize, self.record);
        let cache = Cache::new(self.cache);
        let serve = &|(socket, name): &(PathBuf, String), template: &Template| {
            let guest = format!("{}={name}", socket.display());
            let result = slat_pager::restore_machine(template, socket, &cache, &with);
            let (event, line) = match &result {
                Ok(stats) => ("ended", serde_json::json!({ "guest": guest, "stats": stats })),
                Err(error) => ("failed", serde_json::json!({ "guest": guest, "error": error.to_string() })),
            };
            say(event, line);
            result.is_ok()
        };
        let failed = std::thread::scope(|scope| {
            let pairs = self.guests.iter().zip(&templates);
            let threads: Vec<_> = pairs.map(|(guest, of)| scope.spawn(move || serve(guest, of))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(false)).filter(|is_ok| !is_ok).count()
        });
        if failed == 0 { Ok(()) } else { Err(other(format!("{failed} machines were not restored"))) }
    }
}
