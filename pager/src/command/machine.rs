//! `receive` and `restore`: machines of Cloud Hypervisor.

use super::events::Event;
use super::failure::{Failure, other, size};
use super::log::{self, say};
use super::serve::{abort_on_panic, guest, program};
use super::store_option::{DiskOption, StoreOption, seconds};
use slat_pager::{Cache, Library, Restore, TemplateSource, accept_one, keep_machines, serve_machines};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A machine to receive.
#[derive(clap::Args)]
pub struct Receive {
    /// The socket to which the VMM sends the machine
    socket: PathBuf,
    /// The template's name
    name: String,
    #[command(flatten)]
    store: StoreOption,
    /// Bytes of a chunk: a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    chunk: usize,
    /// Most seconds from the VMM's connection to the end of the transfer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    patience: Duration,
}

impl Receive {
    pub fn run(&self) -> Result<(), Failure> {
        let library = self.store.library_to_write()?;
        let named = |error: std::io::Error| other(format!("{}: {error}", self.socket.display()));
        let connection = accept_one(&self.socket).map_err(named)?;
        let received =
            slat_pager::receive_machine(&library, &self.name, &connection, self.chunk, self.patience);
        let received = received.map_err(other)?;
        println!("{}: a machine of {} MiB, {} new chunks", self.name, received.memory >> 20, received.chunks);
        Ok(())
    }
}

/// Machines to restore.
#[derive(clap::Args)]
pub struct Machines {
    #[command(flatten)]
    store: StoreOption,
    #[command(flatten)]
    disk: DiskOption,
    /// The socket at which a VMM waits for its machine, and the template
    #[arg(long = "guest", value_name = "SOCKET=TEMPLATE", value_parser = guest, required = true)]
    guests: Vec<(PathBuf, String)>,
    /// Leave the guests paused; an operator resumes them
    #[arg(long)]
    paused: bool,
    /// Memory for cached chunks, shared by all guests
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    cache: usize,
    /// For a template without a working set, record the pages that its first guest touches in so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    record: Option<Duration>,
    /// Threads for each guest that fill its memory ahead of faults, the working set first, 0 to 64
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=64))]
    replay: u64,
    /// The command line after `restore`, for the worker.
    #[arg(skip)]
    pub words: Vec<OsString>,
}

impl Machines {
    /// Runs the keeper. It stays small: the worker opens the store.
    pub fn keep(&self) -> Result<(), Failure> {
        let program = program().map_err(other)?;
        let command = || {
            let mut command = Command::new(&program);
            command.arg("restore-worker").args(&self.words);
            command
        };
        let restored = keep_machines(self.guests.len(), command).map_err(other)?;
        let failed = restored.iter().filter(|is_restored| !**is_restored).count();
        if failed == 0 { Ok(()) } else { Err(other(format!("{failed} machines were not restored"))) }
    }

    /// Serves all machines until their VMMs have all pages, or end.
    pub fn work(&self) -> Result<(), Failure> {
        abort_on_panic();
        let library = self.disk.on(Library::new(self.store.steady(|store| store)?));
        let source = |name: &String| TemplateSource::of_library(&library, name);
        let machines: Vec<_> =
            self.guests.iter().map(|(socket, template)| (socket.clone(), source(template))).collect();
        let mut with = Restore::default();
        (with.paused, with.replay, with.record) = (self.paused, self.replay as usize, self.record);
        let keeper = std::io::stdin().as_fd().try_clone_to_owned().map_err(other)?;
        say(Event::Worker, serde_json::json!({ "worker": std::process::id() }));
        // Its line comes before those that follow from it, of the keeper.
        log::flush();
        serve_machines(keeper, &machines, &Cache::new(self.cache), &with, |number, result| {
            let (socket, name) = &self.guests[number];
            let guest = format!("{}={name}", socket.display());
            match result {
                Ok(stats) => say(Event::Ended, serde_json::json!({ "guest": guest, "stats": stats })),
                Err(error) => {
                    say(Event::Failed, serde_json::json!({ "guest": guest, "error": error.to_string() }));
                }
            }
        })
        .map_err(other)
    }
}
