//! What an operator may ask of a worker while it serves: snapshots of its guests.
//!
//! A request is one line of JSON, such as `{"pid":4711,"name":"debian.3"}`. The answers are `{"instant":{"pages":9}}`, when the guest
//! may run on, and `{"stored":{…}}`; or `{"error":"…"}` instead of either.

use super::keeper::bind;
use super::keeper_state::StartKeeper;
use crate::guest::{Backing, Handle, Stored, swap_file};
use crate::share::Share;
use crate::store::Template;
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

/// The guests that a worker serves. A clone is the same.
#[derive(Clone, Default)]
pub struct Guests {
    guests: Arc<Mutex<BTreeMap<u64, (i32, Handle)>>>,
    /// Where the memory of clones is, and that of each version of a template.
    share: Option<PathBuf>,
    shares: Arc<Mutex<BTreeMap<String, Share>>>,
    swap: Option<PathBuf>,
    start_keeper: Option<StartKeeper>,
}

/// A snapshot is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// The VMM's process.
    pub pid: i32,
    /// What the snapshot's template is to be called.
    pub name: String,
}

/// What a worker answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Answer {
    /// The guest may run on: so many pages are to be stored.
    Instant {
        /// How many.
        pages: usize,
    },
    /// The snapshot is a template.
    Stored(Stored),
    /// There is none.
    Error(String),
}

impl Guests {
    /// Clones of these templates may map what is in this folder: a file of each template's name. Guests whose VMM does that, and sends
    /// a descriptor of the file after its userfaultfd, share the pages of the template that they do not write.
    pub fn share_in(&mut self, folder: &Path, templates: &[Template]) -> io::Result<()> {
        for template in templates {
            self.shares.lock().insert(template.version().into(), Share::open(folder, template)?);
        }
        self.share = Some(folder.into());
        Ok(())
    }

    /// If the keeper is killed while there are guests, the worker starts another one by this command, with its end of a channel as standard
    /// input: [`Keeper::of_worker`](crate::Keeper::of_worker). Otherwise the guests are served without one, until they end or the worker
    /// does.
    pub fn start_keeper_by(&mut self, command: impl Fn() -> Command + Send + Sync + 'static) {
        self.start_keeper = Some(Arc::new(command));
    }

    pub(super) fn start_keeper(&self) -> Option<&StartKeeper> {
        self.start_keeper.as_ref()
    }

    /// Cold pages of guests with shared memory may leave for files in this folder.
    pub fn swap_in(&mut self, folder: &Path) {
        self.swap = Some(folder.into());
    }

    /// The guests of which pages may leave.
    pub(super) fn with_swap(&self) -> Vec<(i32, Handle)> {
        let has_swap = |guest: &&(i32, Handle)| guest.1.has_swap();
        self.guests.lock().values().filter(has_swap).cloned().collect()
    }

    /// What a guest's memory is, whose VMM sent this descriptor with its userfaultfd. `swap`: its swap file, if it has one already.
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
            // The guest began with what the template was before it was replaced.
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

    /// Answers requests on this socket, which only this user may connect to, in threads of its own.
    ///
    /// It changes the process's umask for a moment: call it before threads make files.
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
                // No descriptor is left, for instance.
                std::thread::sleep(std::time::Duration::from_millis(10));
                continue;
            };
            let guests = self.clone();
            // Where there is no thread, the connection is closed.
            _ = std::thread::Builder::new().spawn(move || guests.hear(&connection));
        }
    }

    /// One request after the other, until the other end closes. Where that does not hear the answer, the snapshot is made all the
    /// same.
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
        // It holds the guest.
        drop(guest);
        say(&Answer::Instant { pages: harvest.pages() });
        match harvest.store(&request.name) {
            Ok(stored) => say(&Answer::Stored(stored)),
            Err(error) => say(&Answer::Error(error.to_string())),
        }
    }
}

/// Asks a worker for a snapshot. `instant` is called when the guest may run on.
///
/// # Errors
/// What the worker says, or the connection to it.
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
