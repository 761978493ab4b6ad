//! The keeper: holds connections and journals, and starts the worker again.

use super::channel::{Channel, Keep, Take};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::process::umask;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Connections that are kept at most; further ones are closed.
const MOST_CONNECTIONS: usize = 4096;

/// The process that must not be killed. It does little, and reads nothing that comes from a guest.
#[derive(Debug)]
pub struct Keeper {
    sockets: Vec<UnixListener>,
    paths: Vec<PathBuf>,
    /// Readable: no further guest is taken.
    drain: Option<OwnedFd>,
    drains: bool,
    /// A worker has served: what it was told made sense.
    was_ready: bool,
    kept: BTreeMap<u64, Kept>,
    next: u64,
}

/// What becomes of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A worker serves.
    Ready,
    /// No further guest is taken; so many have their service until they end.
    Drains(usize),
}

#[derive(Debug)]
struct Kept {
    socket: usize,
    connection: OwnedFd,
    /// Its journal, and its swap file if it has one.
    files: Vec<OwnedFd>,
    version: Option<String>,
}

impl Keeper {
    /// Listens on these sockets, which only this user may connect to. A socket that a keeper left behind is replaced.
    ///
    /// It changes the process's umask for a moment: call it before threads make files.
    pub fn listen<P: AsRef<Path>>(sockets: impl IntoIterator<Item = P>) -> io::Result<Self> {
        let paths: Vec<PathBuf> = sockets.into_iter().map(|path| path.as_ref().into()).collect();
        let sockets: io::Result<Vec<_>> = paths.iter().map(|path| bind(path)).collect();
        Ok(Self {
            sockets: sockets?,
            paths,
            drain: None,
            drains: false,
            was_ready: false,
            kept: BTreeMap::new(),
            next: 0,
        })
    }

    /// Once this descriptor is readable, the keeper closes its sockets, waits for the end of its guests, and returns.
    #[must_use]
    pub fn drain_on(self, signal: OwnedFd) -> Self {
        Self { drain: Some(signal), ..self }
    }

    /// Runs the worker, with its end of the channel as standard input, again and again: until it has drained.
    ///
    /// # Errors
    /// The first worker exits by itself before it serves: what it was told makes no sense, or the store is out of reach, and it has
    /// said so. Later ones are started again.
    pub fn run(mut self, command: impl Fn() -> Command, mut told: impl FnMut(Event)) -> io::Result<()> {
        let mut quick = 0;
        loop {
            let began = Instant::now();
            let status = self.worker(command(), &mut told)?;
            if self.drains && self.kept.is_empty() {
                return Ok(());
            }
            if !self.was_ready && status.code().is_some_and(|code| code != 0) {
                return Err(io::Error::other(format!("the worker ended: {status}")));
            }
            // One that cannot live is not started in a circle without end. Connections wait in the sockets.
            quick = if began.elapsed() > Duration::from_secs(10) { 0 } else { quick + 1 };
            std::thread::sleep(Duration::from_millis(1 << quick.min(10)));
        }
    }

    /// The life of one worker.
    fn worker(&mut self, mut command: Command, told: &mut impl FnMut(Event)) -> io::Result<ExitStatus> {
        let (channel, theirs) = Channel::pair()?;
        let mut child = command.stdin(theirs).spawn()?;
        // The command holds the worker's end, which must close when the worker ends.
        drop(command);
        for (connection, kept) in &self.kept {
            give(&channel, *connection, kept);
        }
        loop {
            if self.drains && self.kept.is_empty() {
                // That is what the worker waits for, too.
                drop(channel);
                return child.wait();
            }
            let mut fds = vec![PollFd::new(&channel, PollFlags::IN)];
            let drain = self.drain.as_ref().filter(|_| !self.drains);
            fds.push(
                drain.map_or(PollFd::new(&channel, PollFlags::empty()), |fd| PollFd::new(fd, PollFlags::IN)),
            );
            fds.extend(self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            // First what the worker says: what it said before it was killed counts.
            if ready[0] && !self.hear(&channel, told) {
                return end(&mut child);
            }
            if ready[1] && self.drain.is_some() && !self.drains {
                self.drains = true;
                self.sockets.clear();
                self.paths.drain(..).for_each(|path| _ = std::fs::remove_file(path));
                told(Event::Drains(self.kept.len()));
                continue;
            }
            for (socket, _) in ready[2..].iter().enumerate().filter(|(_, ready)| **ready) {
                self.accept(socket, &channel);
            }
        }
    }

    /// Whether the worker lives.
    fn hear(&mut self, channel: &Channel, told: &mut impl FnMut(Event)) -> bool {
        loop {
            match channel.receive::<Keep>(false) {
                Ok(Some((keep, _))) if keep.is_ready => {
                    self.was_ready = true;
                    told(Event::Ready);
                }
                Ok(Some((keep, files))) => match files {
                    files if files.is_empty() => _ = self.kept.remove(&keep.connection),
                    files => {
                        if let Some(kept) = self.kept.get_mut(&keep.connection) {
                            (kept.files, kept.version) = (files, keep.version);
                        }
                    }
                },
                Ok(None) => return false,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    fn accept(&mut self, socket: usize, channel: &Channel) {
        loop {
            let connection = match self.sockets[socket].accept() {
                Ok((connection, _)) => connection,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // No descriptor is left, for instance: it waits in the socket, which is not asked in a circle without pause.
                Err(_) => return std::thread::sleep(Duration::from_millis(10)),
            };
            if self.kept.len() >= MOST_CONNECTIONS {
                continue;
            }
            let kept = Kept { socket, connection: connection.into(), files: Vec::new(), version: None };
            give(channel, self.next, &kept);
            self.kept.insert(self.next, kept);
            self.next += 1;
        }
    }
}

/// A worker that cannot be told has been killed; the next one will be.
fn give(channel: &Channel, connection: u64, kept: &Kept) {
    let mut fds = vec![kept.connection.as_fd()];
    fds.extend(kept.files.iter().map(AsFd::as_fd));
    _ = channel.send(&Take { connection, socket: kept.socket, version: kept.version.clone() }, &fds);
}

/// The worker closed its channel, and is about to end. Two workers must never serve the same guest.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    _ = child.kill();
    child.wait()
}

/// The first connection to this socket, which only this user may connect to, and which is then removed. It sleeps.
///
/// It changes the process's umask for a moment: call it before threads make files.
pub fn accept_one(path: &Path) -> io::Result<UnixStream> {
    let socket = bind(path)?;
    socket.set_nonblocking(false)?;
    let (connection, _) = socket.accept()?;
    remove_socket(path)?;
    Ok(connection)
}

/// Only this user may connect to it. The umask is another one for a moment.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    remove_socket(path).map_err(named)?;
    let before = umask(Mode::from_raw_mode(0o177));
    let socket = UnixListener::bind(path).map_err(named);
    umask(before);
    let socket = socket?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Removes a socket that an earlier process left behind, and nothing else.
pub(super) fn remove_socket(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket { std::fs::remove_file(path) } else { Ok(()) }
}
