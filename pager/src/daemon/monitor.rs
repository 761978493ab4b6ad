//! Shows operators what a worker does: as Prometheus' text, and as JSON.
//!
//! It serves two paths, one request for each connection, and reads no header. An HTTP server would add ten crates.

use super::channel::REFUSED;
use super::request::{Listed, daemons, list};
use super::sockets::{Place, bind};
use crate::cache::{Cache, CacheStats, Source};
use crate::guest::{GuestStats, Watch};
use crate::store::{Steady, StoreStats};
use parking_lot::Mutex;
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The most bytes of a request.
const MOST: usize = 8 << 10;
/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(2);

/// The guests of a worker, its cache and its store. A clone of the value refers to the same ones.
#[derive(Clone)]
pub struct Monitor(Arc<Inner>);

struct Inner {
    cache: Arc<Cache>,
    store: Option<Steady>,
    guests: Mutex<Guests>,
    /// The path of the control sockets of this host's daemons.
    control: OnceLock<PathBuf>,
    listening: Mutex<Option<Listening>>,
}

/// A socket for requests, and its place if it has a path.
struct Listening {
    socket: OwnedFd,
    place: Option<Place>,
}

#[derive(Default)]
struct Guests {
    live: BTreeMap<u64, (i32, String, Watch)>,
    /// Counters of the guests that have ended.
    ended: u64,
    faults: [u64; Source::ALL.len()],
    filled: u64,
}

/// State of a worker at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Moment {
    /// The worker's process id.
    pub worker: u32,
    /// The guests that it serves.
    pub guests: Vec<Serving>,
    /// Number of guests that have ended.
    pub ended: u64,
    /// Faults of the ended guests, by source.
    pub ended_faults: BTreeMap<String, u64>,
    /// Pages that the ended guests got.
    pub ended_filled: u64,
    /// Counters of the cache.
    pub cache: CacheStats,
    /// Counters of the store, if there is one.
    pub store: Option<StoreStats>,
    /// Other daemons with the same control path, such as one that drains.
    #[serde(default)]
    pub others: Vec<Listed>,
}

/// A guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Serving {
    /// The guest's number.
    pub guest: u64,
    /// Process id of its VMM. 0: unknown.
    pub pid: i32,
    /// Name of its template.
    pub template: String,
    /// Counters of the guest.
    pub stats: GuestStats,
}

impl Monitor {
    /// Makes a monitor without guests.
    pub fn new(cache: Arc<Cache>, store: Option<Steady>) -> Self {
        let (control, listening) = (OnceLock::new(), Mutex::default());
        Self(Arc::new(Inner { cache, store, guests: Mutex::default(), control, listening }))
    }

    /// Sets the path of the control socket. State and metrics have the guests of other daemons at this path, too.
    pub fn others_at(&self, control: &Path) {
        _ = self.0.control.set(control.into());
    }

    /// Returns the state of the other daemons that answer.
    fn others(&self) -> Vec<Listed> {
        let daemons = self.0.control.get().map(|control| daemons(control)).unwrap_or_default();
        let answers = daemons.iter().filter_map(|daemon| list(daemon).ok());
        answers.filter(|other| other.worker != std::process::id()).collect()
    }

    pub(super) fn begins(&self, guest: u64, pid: i32, template: &str, watch: Watch) {
        self.0.guests.lock().live.insert(guest, (pid, template.into(), watch));
    }

    pub(super) fn ends(&self, guest: u64, stats: &GuestStats) {
        let mut guests = self.0.guests.lock();
        guests.live.remove(&guest);
        guests.ended += 1;
        guests.filled += stats.filled;
        for source in Source::ALL {
            guests.faults[source as usize] += stats.faults(source);
        }
    }

    /// Returns the current state. Asks other daemons, and waits for their answers for a moment.
    pub fn moment(&self) -> Moment {
        let others = self.others();
        let guests = self.0.guests.lock();
        let serving = |(guest, (pid, template, watch)): (&u64, &(i32, String, Watch))| Serving {
            guest: *guest,
            pid: *pid,
            template: template.clone(),
            stats: watch.stats(),
        };
        Moment {
            worker: std::process::id(),
            guests: guests.live.iter().map(serving).collect(),
            ended: guests.ended,
            ended_faults: Source::ALL
                .map(|source| (source.name().into(), guests.faults[source as usize]))
                .into(),
            ended_filled: guests.filled,
            cache: self.0.cache.stats(),
            store: self.0.store.as_ref().map(Steady::stats),
            others,
        }
    }

    /// Returns the guests with faults that wait, with their number, their process, the number of such faults, and the
    /// reason of the last one.
    pub fn waiting(&self) -> Vec<(u64, i32, u64, String)> {
        let guests = self.0.guests.lock();
        let waits = |(guest, (pid, _, watch)): (&u64, &(i32, String, Watch))| {
            watch.waiting().map(|(faults, reason)| (*guest, *pid, faults, reason))
        };
        guests.live.iter().filter_map(waits).collect()
    }

    /// Answers requests of HTTP at an address and port, or at the path of a socket that only this user may connect to: `/metrics` for
    /// Prometheus, and `/state`, a [`Moment`] as JSON.
    ///
    /// # Errors
    /// `AddrInUse`: another process listens there. Or the address cannot be listened on.
    pub fn listen(&self, at: &str) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{at}: {error}"));
        if at.contains('/') {
            let (socket, place) = bind(Path::new(at), false)?;
            socket.set_nonblocking(false)?;
            let shared = socket.as_fd().try_clone_to_owned()?;
            self.answer_all(shared, Some(place), move || {
                let stream = socket.accept()?.0;
                stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)))?;
                Ok(stream)
            })
        } else {
            let socket = TcpListener::bind(at).map_err(named)?;
            let shared = socket.as_fd().try_clone_to_owned()?;
            self.answer_all(shared, None, move || {
                let stream = socket.accept()?.0;
                stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)))?;
                Ok(stream)
            })
        }
    }

    /// Answers the connections that `accept` returns, in a thread of its own, until [`Monitor::stop_listening`].
    fn answer_all<S: Read + Write>(
        &self,
        socket: OwnedFd,
        place: Option<Place>,
        accept: impl Fn() -> io::Result<S> + Send + 'static,
    ) -> io::Result<()> {
        *self.0.listening.lock() = Some(Listening { socket, place });
        let monitor = self.clone();
        let answer = move || {
            while monitor.0.listening.lock().is_some() {
                match accept() {
                    Ok(stream) => _ = monitor.answer(stream),
                    // For instance, no descriptor is left.
                    Err(_) => std::thread::sleep(REFUSED),
                }
            }
        };
        std::thread::Builder::new().name("monitor".into()).spawn(answer).map(drop)
    }

    /// Frees the address of the metrics, and removes the socket if it has a path.
    pub fn stop_listening(&self) {
        let Some(Listening { socket, place }) = self.0.listening.lock().take() else { return };
        _ = place.map(|place| place.remove());
        // The thread's `accept` returns.
        _ = rustix::net::shutdown(&socket, Shutdown::Both);
    }

    /// Returns whether it listens.
    pub fn is_listening(&self) -> bool {
        self.0.listening.lock().is_some()
    }

    pub(crate) fn answer(&self, mut stream: impl Read + Write) -> io::Result<()> {
        let (mut request, mut part) = (Vec::new(), [0; 1024]);
        let until = Instant::now() + PATIENCE;
        while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MOST {
            let read = stream.read(&mut part)?;
            if read == 0 || Instant::now() > until {
                return Ok(());
            }
            request.extend_from_slice(&part[..read]);
        }
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let (status, kind, body) = match line {
            line if line.starts_with(b"GET /metrics ") => {
                ("200 OK", "text/plain; version=0.0.4", text(&self.moment()))
            }
            line if line.starts_with(b"GET /state ") => {
                ("200 OK", "application/json", serde_json::to_string(&self.moment())?)
            }
            _ => ("404 Not Found", "text/plain", "/metrics and /state are here\n".into()),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

type Value = fn(&GuestStats) -> u64;

/// Formats Prometheus' text. A restarted worker begins at 0, which Prometheus expects of counters.
fn text(moment: &Moment) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
        _ = writeln!(text, "# HELP slat_pager_{name} {help}\n# TYPE slat_pager_{name} {kind}");
        for (labels, value) in samples {
            _ = writeln!(text, "slat_pager_{name}{labels} {value}");
        }
    };
    let one = |value: u64| vec![(String::new(), value as f64)];
    family("guests", "gauge", "Guests that are served.", one(moment.guests.len() as u64));
    let other = |value: fn(&Listed) -> u64| {
        let one = |other: &Listed| (format!("{{keeper=\"{}\"}}", other.keeper), value(other) as f64);
        moment.others.iter().map(one).collect::<Vec<_>>()
    };
    let guests = other(|other| other.sessions.len() as u64);
    family("other_guests", "gauge", "Guests of another daemon with the same control path.", guests);
    let waiting = other(|other| other.sessions.iter().map(|session| session.waiting).sum());
    family("other_faults_waiting", "gauge", "Faults of its guests that wait.", waiting);
    family("guests_ended_total", "counter", "Guests that have ended.", one(moment.ended));

    let mut faults: BTreeMap<&str, u64> =
        moment.ended_faults.iter().map(|(name, count)| (&**name, *count)).collect();
    for (name, latency) in moment.guests.iter().flat_map(|guest| &guest.stats.latency) {
        *faults.entry(name).or_default() += latency.count;
    }
    let by_source = faults.iter().map(|(name, count)| (format!("{{source=\"{name}\"}}"), *count as f64));
    family(
        "faults_total",
        "counter",
        "Faults that were answered, by where the page came from.",
        by_source.collect(),
    );
    let filled = moment.ended_filled + moment.guests.iter().map(|guest| guest.stats.filled).sum::<u64>();
    family(
        "pages_filled_total",
        "counter",
        "Pages that were filled, with those that came along.",
        one(filled),
    );

    let mut times = Vec::new();
    for guest in &moment.guests {
        for (source, latency) in guest.stats.latency.iter().filter(|(_, latency)| latency.count > 0) {
            for (quantile, nanos) in [("0.5", latency.p50), ("0.99", latency.p99), ("0.999", latency.p999)] {
                let labels =
                    format!("{{guest=\"{}\",source=\"{source}\",quantile=\"{quantile}\"}}", guest.guest);
                times.push((labels, nanos as f64 / 1e9));
            }
        }
    }
    family(
        "fault_seconds",
        "gauge",
        "How long faults of a live guest took, from their reading to the page.",
        times,
    );
    let each = |value: Value| {
        let label = |guest: &Serving| {
            let (guest, pid, template) = (guest.guest, guest.pid, &guest.template);
            format!("{{guest=\"{guest}\",pid=\"{pid}\",template=\"{template}\"}}")
        };
        moment.guests.iter().map(|guest| (label(guest), value(&guest.stats) as f64)).collect::<Vec<_>>()
    };
    let guests: [(&str, &str, Value); 7] = [
        ("guest_pages_filled", "Pages that were filled.", |stats| stats.filled),
        ("guest_pages_ahead", "Pages that were filled ahead of faults.", |stats| stats.ahead),
        ("guest_chunks_left", "Chunks of the working set that are to come.", |stats| stats.chunks_left),
        ("guest_removals", "Removals that the guest told.", |stats| stats.removes),
        ("guest_faults_again", "Times that a fault had to be tried again.", |stats| stats.again),
        ("guest_faults_waiting", "Faults that wait for the store or for memory.", |stats| stats.waiting),
        ("guest_pages_poisoned", "Pages that were given up.", |stats| stats.poisoned),
    ];
    for (name, help, value) in guests {
        family(name, "gauge", help, each(value));
    }

    let cache = &moment.cache;
    family("cache_hits_total", "counter", "Chunks that were in the cache.", one(cache.hits));
    family("cache_misses_total", "counter", "Chunks that were read from the store.", one(cache.misses));
    family("cache_evicted_total", "counter", "Chunks that had to leave the cache.", one(cache.evicted));
    family("cache_bytes", "gauge", "Bytes in the cache.", one(cache.bytes));
    if let Some(store) = &moment.store {
        family("store_up", "gauge", "0: the store is taken for down.", one(u64::from(!store.is_down)));
        let counters = [
            ("store_reads_total", "Reads that were asked for.", store.reads),
            ("store_bytes_total", "Bytes that were read.", store.bytes),
            ("store_other_calls_total", "Other calls that were asked for.", store.others),
            ("store_failures_total", "Calls that failed.", store.failures),
            ("store_retries_total", "Calls that were made again.", store.retries),
            ("store_hedges_total", "Reads that were made twice since they took long.", store.hedges),
            ("store_hedges_won_total", "Second reads that answered first.", store.hedges_won),
            ("store_breaks_total", "Times that the store was taken for down.", store.breaks),
            ("store_refused_total", "Calls that were not made meanwhile.", store.refused),
        ];
        for (name, help, value) in counters {
            family(name, "counter", help, one(value));
        }
    }
    text
}
