//! The keeper holds connections and journals, and restarts the worker.

use super::channel::{Channel, Keep, Take, What};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, umask};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Most connections that are kept; further ones are closed.
const MOST_CONNECTIONS: usize = 4096;

/// The process that restarts the worker. It does little, and reads nothing that comes from a guest. If it is killed
/// itself, the worker starts another keeper: [`Keeper::of_worker`]. Do not kill both at the same time.
#[derive(Debug)]
pub struct Keeper {
    sockets: Vec<UnixListener>,
    paths: Vec<PathBuf>,
    /// Becomes readable when the keeper is to drain.
    drain: Option<OwnedFd>,
    drains: bool,
    /// Becomes readable when the keeper is to end at once.
    leave: Option<OwnedFd>,
    /// Another process restarts a keeper for these sockets if this one is killed.
    is_supervised: bool,
    /// The worker that started this keeper.
    adopted: Option<(Channel, Option<OwnedFd>)>,
    /// A worker has served, so its arguments were right.
    was_ready: bool,
    kept: BTreeMap<u64, Kept>,
    next: u64,
}

/// A change of a daemon's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A worker serves, and has all guests.
    Ready,
    /// The daemon takes no further guest; this many are served until they end.
    Drains(usize),
}

#[derive(Debug)]
struct Kept {
    socket: usize,
    connection: OwnedFd,
    /// Journal, and swap file if there is one.
    files: Vec<OwnedFd>,
    version: Option<String>,
}

impl Keeper {
    /// Listens on these sockets. Only this user may connect to them. A socket that an earlier keeper left behind is
    /// replaced.
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
            leave: None,
            is_supervised: false,
            adopted: None,
            was_ready: false,
            kept: BTreeMap::new(),
            next: 0,
        })
    }

    /// Makes the keeper that a worker started after its own was killed. `channel` is its standard input, and `sockets`
    /// are those of the killed keeper. It gets the guests of the worker, and its sockets, unless they were closed or
    /// now belong to another keeper.
    ///
    /// # Errors
    /// The worker ended before it had sent everything.
    pub fn of_worker<P: AsRef<Path>>(
        channel: OwnedFd,
        sockets: impl IntoIterator<Item = P>,
    ) -> io::Result<Self> {
        let mut keeper = Self::listen::<P>([])?;
        let channel = Channel::new(channel);
        loop {
            let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the worker ended as well");
            let (take, fds) = channel.receive::<Take>(true)?.ok_or_else(ended)?;
            let mut fds = fds.into_iter();
            match (take.what, fds.next()) {
                (What::Guest, Some(connection)) => {
                    let Take { connection: number, socket, version, .. } = take;
                    let kept = Kept { socket, connection, files: fds.collect(), version };
                    keeper.kept.insert(number, kept);
                }
                (What::Socket, Some(socket)) => keeper.sockets.push(socket.into()),
                (What::All, _) => {
                    keeper.next = take.connection;
                    // Unless the worker has ended, and another process has its number.
                    let worker = Pid::from_raw(take.socket as i32).filter(|pid| getppid() == Some(*pid));
                    let process = worker.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                    keeper.adopted = Some((channel, process));
                    break;
                }
                _ => {}
            }
        }
        keeper.drains = keeper.sockets.is_empty();
        if !keeper.drains {
            keeper.paths = sockets.into_iter().map(|path| path.as_ref().into()).collect();
        }
        keeper.was_ready = true;
        Ok(keeper)
    }

    /// Makes the keeper drain when this descriptor becomes readable: it closes its sockets, waits for the end of its
    /// guests, and returns.
    #[must_use]
    pub fn drain_on(self, signal: OwnedFd) -> Self {
        Self { drain: Some(signal), ..self }
    }

    /// Makes the keeper end at once, with an error, when this descriptor becomes readable. Its worker serves its guests
    /// until they end.
    #[must_use]
    pub fn leave_on(self, signal: OwnedFd) -> Self {
        Self { leave: Some(signal), ..self }
    }

    /// Says that another process, such as systemd, restarts a keeper for the sockets if this one is killed. The keeper
    /// that the worker starts then has only the guests, and ends with the last of them.
    #[must_use]
    pub fn supervised(self, is_supervised: bool) -> Self {
        Self { is_supervised, ..self }
    }

    /// Runs the worker again and again until the daemon has drained. The worker's standard input is its end of the
    /// channel.
    ///
    /// # Errors
    /// The first worker exits by itself before it serves, because its arguments are wrong or the store is out of reach,
    /// and has printed why. Later workers are restarted. Or the keeper was asked to end at once.
    pub fn run(mut self, command: impl Fn() -> Command, mut told: impl FnMut(Event)) -> io::Result<()> {
        let mut quick = 0;
        loop {
            let began = Instant::now();
            let (channel, mut worker) = match self.adopted.take() {
                Some((channel, process)) => (channel, Process::Other(process)),
                None => self.start(command())?,
            };
            let status = self.serve(&channel, &mut worker, &mut told)?;
            if self.drains && self.kept.is_empty() {
                return Ok(());
            }
            if !self.was_ready && status.code().is_some_and(|code| code != 0) {
                return Err(io::Error::other(format!("the worker ended: {status}")));
            }
            // A worker that ends quickly is not restarted forever. Connections wait in the sockets.
            quick = if began.elapsed() > Duration::from_secs(10) { 0 } else { quick + 1 };
            std::thread::sleep(Duration::from_millis(1 << quick.min(10)));
        }
    }

    fn start(&self, mut command: Command) -> io::Result<(Channel, Process)> {
        let (channel, theirs) = Channel::pair()?;
        let child = command.stdin(theirs).spawn()?;
        // The command holds the worker's end, which must close when the worker ends.
        drop(command);
        for (number, socket) in self.sockets.iter().enumerate().filter(|_| !self.is_supervised) {
            // A killed worker gets no message, here and below.
            _ = channel
                .send(&Take { socket: number, what: What::Socket, ..Take::default() }, &[socket.as_fd()]);
        }
        for (connection, kept) in &self.kept {
            give(&channel, *connection, kept);
        }
        _ = channel.send(&Take { what: What::All, ..Take::default() }, &[]);
        Ok((channel, Process::Mine(child)))
    }

    /// Serves one worker until it ends.
    fn serve(
        &mut self,
        channel: &Channel,
        worker: &mut Process,
        told: &mut impl FnMut(Event),
    ) -> io::Result<ExitStatus> {
        loop {
            if self.drains && self.kept.is_empty() {
                // Otherwise the worker would wait.
                _ = channel.send(&Take { what: What::Leaves, ..Take::default() }, &[]);
                return worker.wait();
            }
            let mut fds = vec![PollFd::new(channel, PollFlags::IN)];
            for fd in [self.drain.as_ref().filter(|_| !self.drains), self.leave.as_ref()] {
                let never = PollFd::new(channel, PollFlags::empty());
                fds.push(fd.map_or(never, |fd| PollFd::new(fd, PollFlags::IN)));
            }
            fds.extend(self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            // The worker's messages come first: those sent before a kill count.
            if ready[0] && !self.hear(channel, told) {
                return worker.end();
            }
            if ready[2] && self.leave.is_some() {
                _ = channel.send(&Take { what: What::Leaves, ..Take::default() }, &[]);
                return Err(io::Error::new(io::ErrorKind::Interrupted, "it was told twice to end"));
            }
            if ready[1] && self.drain.is_some() && !self.drains {
                self.drains = true;
                _ = channel.send(&Take { what: What::Drains, ..Take::default() }, &[]);
                self.sockets.clear();
                self.paths.drain(..).for_each(|path| _ = std::fs::remove_file(path));
                told(Event::Drains(self.kept.len()));
                continue;
            }
            for (socket, _) in ready[3..].iter().enumerate().filter(|(_, ready)| **ready) {
                self.accept(socket, channel);
            }
        }
    }

    /// Reads the worker's messages. Returns whether the worker lives.
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
                // For instance, no descriptor is left. The connection waits in the socket, and the pause avoids a busy
                // loop.
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

/// If the send fails, the worker was killed, and the next one gets the connection.
fn give(channel: &Channel, connection: u64, kept: &Kept) {
    let mut fds = vec![kept.connection.as_fd()];
    fds.extend(kept.files.iter().map(AsFd::as_fd));
    let (socket, version) = (kept.socket, kept.version.clone());
    _ = channel.send(&Take { connection, socket, version, what: What::Guest }, &fds);
}

/// The worker's process.
enum Process {
    Mine(Child),
    /// The worker that started this keeper. `None`: it has ended.
    Other(Option<OwnedFd>),
}

impl Process {
    /// Waits for the end of a worker that closed its channel. Two workers must never serve the same guest.
    fn end(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Mine(child) => _ = child.kill(),
            Self::Other(Some(worker)) => _ = pidfd_send_signal(worker, Signal::KILL),
            Self::Other(None) => {}
        }
        self.wait()
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Mine(child) => child.wait(),
            Self::Other(process) => {
                if let Some(process) = process {
                    // Again after an interruption.
                    while poll(&mut [PollFd::new(process, PollFlags::IN)], None).is_err() {}
                }
                // Only the parent process can read the status.
                Ok(ExitStatus::from_raw(0))
            }
        }
    }
}

/// Returns the first connection to this socket, and removes the socket. Only this user may connect to it. This sleeps.
///
/// It changes the process's umask for a moment: call it before threads make files.
pub fn accept_one(path: &Path) -> io::Result<UnixStream> {
    let socket = bind(path)?;
    socket.set_nonblocking(false)?;
    let (connection, _) = socket.accept()?;
    remove_socket(path)?;
    Ok(connection)
}

/// Binds a socket to which only this user may connect. Changes the umask for a moment.
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
