//! `serve`: the keeper, and the worker that it starts.

use super::events::Event as Logged;
use super::failure::{Failure, other, size};
use super::log::{self, say};
use super::notify::notify;
use super::store_option::{DiskOption, StoreOption, seconds};
use super::watch::{listen, told, watch};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use slat_pager::{
    Ageing, Cache, Event, Firecracker, Guests, Keeper, Library, Listen, Lost, Monitor, OnFailure, Options,
    Store, TemplateSource, Trouble, Worker,
};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A daemon.
#[derive(clap::Args)]
pub struct Serve {
    /// A TOML file with flags of this command: `store = "/srv/templates"`. Flags on the command line take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The command line after `serve`, for the worker.
    #[arg(skip)]
    pub words: Vec<OsString>,
    /// Serve metrics (/metrics), health (/health, /ready) and state for `slat-pager top` here: ADDRESS:PORT, or the path of a
    /// socket
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    #[command(flatten)]
    store: StoreOption,
    #[command(flatten)]
    disk: DiskOption,
    /// A socket, and the template of the guests that connect to it
    #[arg(long = "guest", value_name = "SOCKET=TEMPLATE", value_parser = guest, required_unless_present_any = ["images", "control"], requires = "store")]
    guests: Vec<(PathBuf, String)>,
    /// A socket, and the memory image of the guests that connect to it: a file, a block device, `nbd://HOST:PORT/EXPORT`, or
    /// `nbd+unix:///EXPORT?socket=PATH`. An image needs no store, and its content is not checked
    #[arg(long = "image", value_name = "SOCKET=IMAGE", value_parser = image)]
    images: Vec<(PathBuf, String)>,
    /// Memory for cached chunks, shared by all guests
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    cache: usize,
    /// Threads for each guest, 1 to 16: the first reads its faults, the others wait for the store
    #[arg(long, default_value_t = 3)]
    threads: usize,
    /// Most pages that one fault brings: a power of two
    #[arg(long, default_value_t = 16)]
    window: usize,
    /// For a template without a working set, record the pages that its first guest touches in so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    record: Option<Duration>,
    /// Threads for each guest that fill its template's working set ahead of faults, 0 to 64
    #[arg(long, default_value_t = 16)]
    replay: usize,
    /// Treatment of a page whose chunk is missing or damaged in the store
    #[arg(long, value_enum, default_value = "wait")]
    lost: Lost,
    /// Treatment of a guest that can no longer be served, for example because its template is lost
    #[arg(long, value_enum, default_value = "wait")]
    on_failure: OnFailure,
    /// Move cold pages to swap files in this folder. Only for guests with shared memory whose VMM sends the memory's file
    #[arg(long, value_name = "FOLDER")]
    swap: Option<PathBuf>,
    /// Length of a tick: once a tick, the pager checks which pages were touched
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", requires = "swap")]
    tick: Duration,
    /// Number of ticks without a touch after which a page is moved; 0: only pages over a limit are
    #[arg(long, value_name = "TICKS", default_value_t = 20, requires = "swap")]
    cold: u8,
    /// Most memory of all guests of a template, or of all guests, together; the oldest pages over it are moved
    #[arg(long = "limit", value_name = "[TEMPLATE=]SIZE", value_parser = limit, requires = "swap")]
    limits: Vec<(Option<String>, u64)>,
    /// Most connections of one process, and at most half of all: a VMM has one for each guest
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 32, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    per_process: usize,
    /// A socket for `ctl` and `checkpoint`: sockets and templates at run time, snapshots of running guests
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Take sockets on which another daemon listens, for an upgrade; without it, they are refused
    #[arg(long)]
    replace: bool,
    /// A folder in /dev/shm for memory that clones share: VMMs map FOLDER/TEMPLATE privately, and clones share the pages that they do not write
    #[arg(long, value_name = "FOLDER")]
    share: Option<PathBuf>,
    #[arg(long, hide = true, default_value_t = 0)]
    store_delay_ms: u64,
    #[arg(long, hide = true, default_value_t = 0)]
    store_errors_percent: u64,
    /// While this file exists, the store is down.
    #[arg(long, hide = true)]
    store_down: Option<PathBuf>,
}

pub fn guest(text: &str) -> Result<(PathBuf, String), String> {
    let (socket, template) = text.rsplit_once('=').ok_or("no `=`: write SOCKET=TEMPLATE")?;
    Ok((socket.into(), template.into()))
}

/// Returns the path from the root, by which operators name a socket.
fn absolute(path: &std::path::Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// Returns the path of this program, for the next process. After its file was replaced, the kernel adds a word to the
/// file's name; the next process runs the new file.
pub fn program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(if path.exists() { path } else { replaced.unwrap_or(path) })
}

/// Splits `SOCKET=IMAGE` at the equals sign before an address of NBD, which may contain one.
fn image(text: &str) -> Result<(PathBuf, String), String> {
    match text.split_once("=nbd") {
        Some((socket, rest)) => Ok((socket.into(), format!("nbd{rest}"))),
        None => guest(text),
    }
}

fn limit(text: &str) -> Result<(Option<String>, u64), String> {
    match text.rsplit_once('=') {
        Some((template, bytes)) => Ok((Some(template.into()), size(bytes)? as u64)),
        None => Ok((None, size(text)? as u64)),
    }
}

impl Serve {
    /// Runs the keeper. It stays small: the worker opens the store.
    pub fn keep(&self) -> Result<(), Failure> {
        // If systemd waits for notifications, it also restarts the keeper.
        let is_supervised = std::env::var_os("NOTIFY_SOCKET").is_some();
        // Only before the first worker: a later one must serve its guests without the folder, too.
        if let Some(folder) = self.swap.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(other(format!("--swap {}: there is no such folder", folder.display())));
        }
        let keeper = Keeper::listen(self.sockets(), self.replace).map_err(other)?;
        self.run(keeper.supervised(is_supervised))
    }

    /// Runs the keeper that a worker started after its own was killed.
    pub fn keep_on(&self) -> Result<(), Failure> {
        let worker = std::io::stdin().as_fd().try_clone_to_owned().map_err(other)?;
        let keeper = Keeper::of_worker(worker).map_err(other)?;
        say(Logged::Keeper, serde_json::json!({ "keeper": std::process::id() }));
        log::flush();
        self.run(keeper)
    }

    fn sockets(&self) -> impl Iterator<Item = Listen> {
        let guests =
            self.guests.iter().map(|(socket, template)| Listen::template(absolute(socket), template));
        let images = self.images.iter().map(|(socket, image)| Listen::image(absolute(socket), image));
        guests.chain(images)
    }

    fn run(&self, keeper: Keeper) -> Result<(), Failure> {
        let program = program().map_err(other)?;
        let keeper = match &self.control {
            Some(control) => keeper.control_at(&absolute(control), self.replace).map_err(other)?,
            None => keeper,
        };
        // Keeper and worker have several descriptors for each guest; the worker inherits the limit.
        let limit = getrlimit(Resource::Nofile);
        _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let command = || {
            let mut command = Command::new(&program);
            command.arg("worker").args(&self.words).env_remove("NOTIFY_SOCKET");
            command
        };
        let told = |event| match event {
            Event::Ready => {
                // From now on the keeper may be killed: the worker has everything.
                say(Logged::Ready, serde_json::json!({}));
                notify("READY=1\nSTATUS=serving");
            }
            Event::TakesOver(sockets) => say(Logged::TakesOver, serde_json::json!({ "sockets": sockets })),
            Event::Restarts(status, pause) => {
                let end = status.map_or("it could not be started".into(), |status| status.to_string());
                say(Logged::Restarts, serde_json::json!({ "end": end, "pause": pause.as_secs_f64() }));
            }
            Event::Closes(connections, pid, limit) => {
                let limit = limit.to_string();
                say(
                    Logged::Closes,
                    serde_json::json!({ "connections": connections, "pid": pid, "limit": limit }),
                );
            }
            Event::Drains(guests) => {
                notify(&format!("STOPPING=1\nSTATUS=draining: {guests} guests are left"));
                say(Logged::Drains, serde_json::json!({ "guests": guests }));
            }
            _ => {}
        };
        let [drain, leave, reload] = signals().map_err(other)?;
        let keeper = keeper.drain_on(drain).leave_on(leave).reload_on(reload);
        let keeper = keeper.most_of_process(self.per_process);
        keeper.run(command, told).map_err(other)
    }

    /// Makes the store as slow and as faulty as the tests ask.
    fn trouble(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let (delay, percent, down) =
            (Duration::from_millis(self.store_delay_ms), self.store_errors_percent, self.store_down.clone());
        if delay.is_zero() && percent == 0 && down.is_none() {
            return store;
        }
        let store = Trouble::new(store, delay, percent);
        let Some(down) = down else { return Arc::new(store) };
        Arc::new(Trouble::calling(store, move |_| match down.try_exists() {
            Ok(true) => Err(std::io::Error::other("down on purpose")),
            _ => Ok(()),
        }))
    }

    pub fn work(&self) -> Result<(), Failure> {
        abort_on_panic();
        give_memory_back();
        // The keeper handles these signals.
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, Arc::default()).map_err(other)?;
        }
        let (mut library, mut steady) = (None, None);
        if self.store.store.is_some() {
            let store = self.store.steady(|store| self.trouble(store))?;
            steady = Some(store.clone());
            library = Some(self.disk.on(Library::new(store)));
        }
        let of_monitor = library.clone();
        let source = move |listen: &Listen| match (&library, &listen.template, &listen.image) {
            (Some(library), Some(template), _) => TemplateSource::of_library(library, template),
            (_, _, Some(image)) if image.starts_with("nbd://") || image.starts_with("nbd+unix://") => {
                TemplateSource::of_nbd(image)
            }
            // Without a store, a template is a path that cannot be opened.
            _ => TemplateSource::of_image(listen.name().as_ref()),
        };
        let mut options = Options::default();
        options.threads = self.threads;
        options.window = self.window;
        options.record = self.record;
        options.replay = self.replay;
        options.lost = self.lost;
        options.on_failure = self.on_failure;
        options.check().map_err(other)?;
        let cache = Arc::new(Cache::new(self.cache));
        let monitor = Monitor::new(cache.clone(), steady);
        _ = of_monitor.map(|library| monitor.of_library(&library));
        if let Some(address) = &self.metrics {
            listen(&monitor, address, self.control.as_deref()).map_err(other)?;
        }
        if let Some(control) = &self.control {
            monitor.others_at(&absolute(control));
        }
        watch(monitor.clone());
        let (wire, source) = (Firecracker, Box::new(source));
        let worker = Worker { wire, source, cache: cache.clone(), options, monitor };
        let mut guests = Guests::default();
        if let Some(folder) = &self.share {
            guests.share_in(folder);
        }
        guests.tell_templates_by(|template, opened| match opened {
            Ok(version) => {
                say(Logged::Opened, serde_json::json!({ "template": template, "version": version }));
            }
            Err(error) => {
                say(
                    Logged::NotOpened,
                    serde_json::json!({ "template": template, "error": error.to_string() }),
                );
            }
        });
        if let Some(folder) = &self.swap {
            guests.swap_in(folder);
            let cold = (self.cold > 0).then_some(self.cold);
            let ageing = Ageing { tick: self.tick, cold, limits: self.limits.clone() };
            let failed = |pid, error: &std::io::Error| {
                say(Logged::NotReclaimed, serde_json::json!({ "pid": pid, "error": error.to_string() }));
            };
            guests.age(ageing, failed).map_err(other)?;
        }
        let (program, words) = (program().map_err(other)?, self.words.clone());
        guests.start_keeper_by(move || {
            let mut command = Command::new(&program);
            command.arg("keeper").args(&words);
            command
        });
        let keeper = std::io::stdin().as_fd().try_clone_to_owned().map_err(other)?;
        say(Logged::Worker, serde_json::json!({ "worker": std::process::id() }));
        // Its line comes before those that follow from it, of the keeper.
        log::flush();
        let served = worker.run_with(keeper, &guests, |number, pid, end| told(number, pid, end, &cache));
        worker.monitor.stop_listening();
        log::say_omitted();
        log::flush();
        served.map_err(other)
    }
}

/// Ends the process when a thread panics. The thread would leave its guest frozen; the next worker serves it.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|what| {
        let trace = Backtrace::capture();
        let is_known = trace.status() == BacktraceStatus::Captured;
        log::last(if is_known { format!("{what}\n{trace}\n") } else { format!("{what}\n") });
        std::process::abort();
    }));
}

/// Makes freed chunks go back to the kernel at once. Otherwise the allocator learns from the first ones to keep such
/// blocks, and holds twice the cache's limit after some dozens of guests.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator, before there are other threads.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
    }
}

/// Returns three descriptors: one is readable after the first signal to end, the next after the second, and the last
/// after each signal to reload.
fn signals() -> std::io::Result<[OwnedFd; 3]> {
    let ((asked, signal), (drain, first), (leave, second)) =
        (UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?);
    let (hang_up, reload) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGHUP, hang_up)?;
    for number in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(number, signal.try_clone()?)?;
    }
    // Both stay open while the process lives.
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for mut asks in [first, second] {
            if (&asked).read_exact(&mut [0]).and_then(|()| asks.write_all(&[0])).is_err() {
                return;
            }
            std::mem::forget(asks);
        }
    })?;
    Ok([drain.into(), leave.into(), reload.into()])
}
