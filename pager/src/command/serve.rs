//! `serve`: the keeper; and the worker that it starts.

use super::{Failure, other, size};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slat_pager::{
    Ageing, Cache, Firecracker, Folder, GuestStats, Guests, Keeper, Library, Lost, Options, Sabotage,
    Template, Trouble, Worker, WorkerError,
};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A daemon.
#[derive(clap::Args)]
pub struct Serve {
    /// The folder that is the store
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// A socket, and the template of the guests that connect to it
    #[arg(long = "guest", value_name = "SOCKET=TEMPLATE", value_parser = guest, required_unless_present = "images", requires = "store")]
    guests: Vec<(PathBuf, String)>,
    /// A socket, and a file with the memory of the guests that connect to it: no store, and no check of what is read
    #[arg(long = "image", value_name = "SOCKET=FILE", value_parser = guest)]
    images: Vec<(PathBuf, String)>,
    /// Content that stays in this host's memory, for all guests
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    cache: usize,
    /// Threads for each guest, 1 to 16: the first reads its faults, the others wait for the store
    #[arg(long, default_value_t = 3)]
    threads: usize,
    /// Pages that come with one that faults, at most: a power of two
    #[arg(long, default_value_t = 16)]
    window: usize,
    /// Record the first guest of a template that has no working set: the pages that it touches in so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    record: Option<Duration>,
    /// Threads for each guest that fill its template's working set ahead of faults, 0 to 64
    #[arg(long, default_value_t = 16)]
    replay: usize,
    /// What becomes of a page that the store lost
    #[arg(long, value_enum, default_value = "wait")]
    lost: Lost,
    /// A folder for swap files: cold pages leave for them, of guests whose memory is shared memory and whose VMM sends its file
    #[arg(long, value_name = "FOLDER")]
    swap: Option<PathBuf>,
    /// How often it is looked at which pages were touched
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", requires = "swap")]
    tick: Duration,
    /// After how many such times without a touch a page leaves; 0: only where there is a limit
    #[arg(long, value_name = "TICKS", default_value_t = 20, requires = "swap")]
    cold: u8,
    /// Memory that the guests of a template, or all guests, may have together; the oldest pages of those that have more leave
    #[arg(long = "limit", value_name = "[TEMPLATE=]SIZE", value_parser = limit, requires = "swap")]
    limits: Vec<(Option<String>, u64)>,
    /// A socket on which `checkpoint` asks for snapshots of guests
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// A folder of shared memory, in /dev/shm: VMMs map FOLDER/TEMPLATE privately, and clones share what they do not write
    #[arg(long, value_name = "FOLDER")]
    share: Option<PathBuf>,
    #[arg(long, hide = true, default_value_t = 0)]
    store_delay_ms: u64,
    #[arg(long, hide = true, default_value_t = 0)]
    store_errors_percent: u64,
    #[arg(long, hide = true, value_enum)]
    sabotage: Option<Sabotage>,
}

fn guest(text: &str) -> Result<(PathBuf, String), String> {
    let (socket, template) = text.rsplit_once('=').ok_or("SOCKET=TEMPLATE is wanted")?;
    Ok((socket.into(), template.into()))
}

fn limit(text: &str) -> Result<(Option<String>, u64), String> {
    match text.rsplit_once('=') {
        Some((template, bytes)) => Ok((Some(template.into()), size(bytes)? as u64)),
        None => Ok((None, size(text)? as u64)),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("{text:?} is no number of seconds"))
}

impl Serve {
    /// The keeper. It stays small: the store is opened by the worker.
    pub fn keep(&self) -> Result<(), Failure> {
        let keeper = Keeper::listen(self.guests.iter().chain(&self.images).map(|(socket, _)| socket))
            .map_err(other)?;
        let program = std::env::current_exe().map_err(other)?;
        // Keeper and worker have a handful of descriptors for each guest; the worker inherits the limit.
        let limit = getrlimit(Resource::Nofile);
        _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let command = || {
            let mut command = Command::new(&program);
            // The same flags: after the program's name and `serve`.
            command.arg("worker").args(crate::words().into_iter().skip(2));
            command
        };
        Err(other(keeper.run(command)))
    }

    pub fn work(&self) -> Result<(), Failure> {
        // A thread that panics would leave its guest frozen. The next worker serves it.
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            print(what);
            std::process::abort();
        }));
        let mut templates = Vec::new();
        if let Some(store) = &self.store {
            let store = Folder::open(store).map_err(other)?;
            let store =
                Trouble::new(store, Duration::from_millis(self.store_delay_ms), self.store_errors_percent);
            let library = Library::new(store).sabotage(self.sabotage);
            for (_, template) in &self.guests {
                templates.push(library.open(template).map_err(other)?);
            }
        }
        for (_, image) in &self.images {
            templates.push(Template::of_image(image.as_ref()).map_err(other)?);
        }
        let mut options = Options::default();
        options.threads = self.threads;
        options.window = self.window;
        options.record = self.record;
        options.replay = self.replay;
        options.lost = self.lost;
        options.sabotage = self.sabotage;
        options.check().map_err(other)?;
        let cache = Arc::new(Cache::new(self.cache));
        let worker = Worker { wire: Firecracker, templates, cache: cache.clone(), options };
        let mut guests = Guests::default();
        if let Some(folder) = &self.share {
            let named = |error: std::io::Error| other(format!("{}: {error}", folder.display()));
            guests.share_in(folder, &worker.templates).map_err(named)?;
        }
        if let Some(folder) = &self.swap {
            guests.swap_in(folder);
            let cold = (self.cold > 0).then_some(self.cold);
            let ageing = Ageing { tick: self.tick, cold, limits: self.limits.clone() };
            let failed = |pid, error: &std::io::Error| {
                say(&serde_json::json!({ "pid": pid, "not reclaimed": error.to_string() }).to_string());
            };
            guests.age(ageing, failed).map_err(other)?;
        }
        if let Some(control) = &self.control {
            guests.answer_on(control).map_err(other)?;
        }
        let keeper = std::io::stdin().as_fd().try_clone_to_owned().map_err(other)?;
        say(&format!("worker={}", std::process::id()));
        worker.run_with(keeper, &guests, |number, pid, end| told(number, pid, end, &cache)).map_err(other)
    }
}

/// One line of JSON for each guest.
fn told(guest: u64, pid: i32, end: Result<GuestStats, WorkerError>, cache: &Cache) {
    let stats = cache.stats();
    let cache = serde_json::json!({ "hits": stats.hits, "misses": stats.misses, "evicted": stats.evicted, "bytes": stats.bytes });
    let line = match end {
        Ok(stats) => {
            serde_json::json!({ "guest": guest, "pid": pid, "end": "gone", "stats": stats, "cache": cache })
        }
        Err(error) => serde_json::json!({ "guest": guest, "pid": pid, "refused": error.to_string() }),
    };
    say(&line.to_string());
}

/// A line of the log. Where none reads it any more, the guests are served all the same.
fn say(line: &str) {
    _ = writeln!(std::io::stderr(), "{line}");
}
