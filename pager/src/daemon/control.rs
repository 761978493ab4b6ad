//! Requests of an operator to a running worker: snapshots of its guests.
//!
//! A request is one line of JSON, such as `{"pid":4711,"name":"debian.3"}`. The worker answers
//! `{"instant":{"pages":9}}` when the guest may run on, and then `{"stored":{…}}`; or `{"error":"…"}` instead of
//! either.

use super::keeper_state::StartKeeper;
use super::sockets::bind;
use crate::guest::{Backing, Handle, Stored, swap_file};
use crate::share::Share;
use crate::store::{StoreError, Template};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The most bytes of a request.
const MOST_REQUEST: u64 = 4096;

/// The guests that a worker serves. A clone of the value refers to the same guests.
#[derive(Clone, Default)]
pub struct Guests {
    guests: Arc<Mutex<BTreeMap<u64, (i32, Handle)>>>,
    /// The folder of the memory that clones share, and the memory of each version of a template.
    share: Option<PathBuf>,
    shares: Arc<Mutex<BTreeMap<String, Share>>>,
    swap: Option<PathBuf>,
    start_keeper: Option<StartKeeper>,
    templates: Option<TellTemplates>,
}

/// Tells the name of a template, and the version that new guests get from now on, or why it cannot be opened.
type TellTemplates = Arc<dyn Fn(&str, Result<&str, &StoreError>) + Send + Sync>;

/// A request for a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// The VMM's process.
    pub pid: i32,
    /// Name of the snapshot's template.
    pub name: String,
}

/// An answer of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Answer {
    /// The guest may run on; the worker will store the pages.
    Instant {
        /// Number of pages to store.
        pages: usize,
    },
    /// The snapshot is a template.
    Stored(Stored),
    /// There is no snapshot.
    Error(String),
}

impl Guests {
    /// Lets clones of the worker's templates map the files in this folder, one file of each template's name. A guest
    /// shares the template's pages that it does not write, if its VMM maps the file and sends a descriptor of it after
    /// its userfaultfd.
    pub fn share_in(&mut self, folder: &Path) {
        self.share = Some(folder.into());
    }

    /// Makes the file that clones of this template share, if they do.
    pub(super) fn share(&self, template: &Template) -> io::Result<()> {
        let Some(folder) = &self.share else { return Ok(()) };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        let share = Share::open(folder, template).map_err(named)?;
        // A guest may have opened it first.
        self.shares.lock().entry(template.version().into()).or_insert(share);
        Ok(())
    }

    /// Sets the function that tells of templates, with their name: the version that new guests get after a reload, or why
    /// a later worker of the daemon cannot open one. The latter also for a guest that continues and has to wait for its
    /// template.
    pub fn tell_templates_by(
        &mut self,
        tell: impl Fn(&str, Result<&str, &StoreError>) + Send + Sync + 'static,
    ) {
        self.templates = Some(Arc::new(tell));
    }

    pub(super) fn tell_template(&self, template: &str, opened: Result<&str, &StoreError>) {
        if let Some(tell) = &self.templates {
            tell(template, opened);
        }
    }

    /// Sets the command by which the worker starts another keeper, if its keeper is killed while there are guests. The
    /// command's standard input is one end of a channel: [`Keeper::of_worker`](crate::Keeper::of_worker). Without a
    /// command the worker serves its guests without a keeper, until they end or the worker does.
    pub fn start_keeper_by(&mut self, command: impl Fn() -> Command + Send + Sync + 'static) {
        self.start_keeper = Some(Arc::new(command));
    }

    pub(super) fn start_keeper(&self) -> Option<&StartKeeper> {
        self.start_keeper.as_ref()
    }

    /// Lets cold pages of guests with shared memory go to swap files in this folder.
    pub fn swap_in(&mut self, folder: &Path) {
        self.swap = Some(folder.into());
    }

    /// Returns the guests that have a swap file.
    pub(super) fn with_swap(&self) -> Vec<(i32, Handle)> {
        let has_swap = |guest: &&(i32, Handle)| guest.1.has_swap();
        self.guests.lock().values().filter(has_swap).cloned().collect()
    }

    /// Returns the backing of a guest whose VMM sent this descriptor with its userfaultfd. `swap` is its swap file, if
    /// it has one already.
    pub(super) fn backing(
        &self,
        template: &Template,
        memory: Option<OwnedFd>,
        swap: Option<OwnedFd>,
    ) -> io::Result<Backing> {
        let Some(memory) = memory else { return Ok(Backing::Own) };
        let mut shares = self.shares.lock();
        if let Some(folder) = &self.share
            && !shares.contains_key(template.version())
        {
            // The guest began with an earlier version of the template.
            if let Some(share) = Share::open_again(folder, template)? {
                shares.insert(template.version().into(), share);
            }
        }
        match shares.get(template.version()) {
            Some(share) if share.is(&memory) => Ok(Backing::Share(share.clone())),
            _ => match (swap, &self.swap) {
                (Some(swap), _) => Ok(Backing::Swapped { memory, swap }),
                (None, Some(folder)) => Ok(Backing::Swapped { memory, swap: swap_file(folder)? }),
                (None, None) => Ok(Backing::Memory(memory)),
            },
        }
    }

    pub(super) fn add(&self, connection: u64, pid: i32, guest: Handle) {
        self.guests.lock().insert(connection, (pid, guest));
    }

    pub(super) fn remove(&self, connection: u64) {
        self.guests.lock().remove(&connection);
    }

    fn find(&self, pid: i32) -> Option<Handle> {
        self.guests.lock().values().find(|(of, _)| *of == pid).map(|(_, guest)| guest.clone())
    }

    /// Answers requests on this socket in threads of its own. Only this user may connect to it.
    ///
    /// This changes the process's umask for a moment, so call it before threads make files.
    pub fn answer_on(&self, socket: &Path) -> io::Result<()> {
        let listener = bind(socket)?;
        listener.set_nonblocking(false)?;
        let guests = self.clone();
        std::thread::Builder::new().name("control".into()).spawn(move || guests.accept(&listener))?;
        Ok(())
    }

    fn accept(&self, listener: &UnixListener) {
        loop {
            let Ok((connection, _)) = listener.accept() else {
                // For instance, no descriptor is left.
                std::thread::sleep(std::time::Duration::from_millis(10));
                continue;
            };
            let guests = self.clone();
            // If no thread can be started, the connection is closed.
            _ = std::thread::Builder::new().spawn(move || guests.hear(&connection));
        }
    }

    /// Serves one request after the other, until the other end closes. If the other end does not read the answer, the
    /// snapshot is still made.
    fn hear(&self, connection: &UnixStream) {
        use std::io::Read;
        let mut reader = BufReader::new(connection);
        loop {
            let mut line = String::new();
            match reader.by_ref().take(MOST_REQUEST).read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let say = |answer: &Answer| {
                let mut line = serde_json::to_vec(answer).expect("numbers and strings are JSON");
                line.push(b'\n');
                _ = (&*connection).write_all(&line);
            };
            match serde_json::from_str(&line) {
                Ok(request) => self.snapshot(&request, say),
                Err(error) => say(&Answer::Error(format!("the request is not understood: {error}"))),
            }
        }
    }

    fn snapshot(&self, request: &Request, say: impl Fn(&Answer)) {
        let Some(guest) = self.find(request.pid) else {
            return say(&Answer::Error(format!("process {} is no guest of this pager", request.pid)));
        };
        let harvest = match guest.harvest() {
            Ok(harvest) => harvest,
            Err(error) => return say(&Answer::Error(error.to_string())),
        };
        // It keeps the guest alive.
        drop(guest);
        say(&Answer::Instant { pages: harvest.pages() });
        match harvest.store(&request.name) {
            Ok(stored) => say(&Answer::Stored(stored)),
            Err(error) => say(&Answer::Error(error.to_string())),
        }
    }
}

/// Asks a worker for a snapshot. Calls `instant` with the number of pages when the guest may run on.
///
/// # Errors
/// The worker's error, or that of the connection.
pub fn checkpoint(socket: &Path, request: &Request, instant: impl FnOnce(usize)) -> io::Result<Stored> {
    let connection = UnixStream::connect(socket)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&connection).write_all(&line)?;
    let (mut reader, mut instant) = (BufReader::new(&connection), Some(instant));
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the pager ended: ask the next one"));
        }
        match serde_json::from_str(&line)? {
            Answer::Instant { pages } => {
                if let Some(instant) = instant.take() {
                    instant(pages);
                }
            }
            Answer::Stored(stored) => return Ok(stored),
            Answer::Error(error) => return Err(io::Error::other(error)),
        }
    }
}
