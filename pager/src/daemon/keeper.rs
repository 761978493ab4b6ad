//! The keeper holds connections and journals, and restarts the worker.

mod serve;
#[cfg(test)]
mod tests;

use super::channel::{Channel, Take, TakeKind};
use super::limits::{self, Closed};
use super::peer;
use super::sockets::{Place, bind, is_in_use};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

/// The process that restarts the worker. It does little, and reads nothing that comes from a guest. If it is killed
/// itself, the worker starts another keeper: [`Keeper::of_worker`]. Do not kill both at the same time.
#[derive(Debug)]
pub struct Keeper {
    sockets: Vec<UnixListener>,
    places: Vec<Place>,
    /// Number of sockets that another process used until now.
    taken_over: usize,
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
    /// The version of the template that new guests on a socket get, also from later workers.
    versions: BTreeMap<usize, String>,
    /// Becomes readable when new guests are to get the newest versions.
    reload: Option<OwnedFd>,
    closed: Closed,
    most_of_process: usize,
}

/// A change of a daemon's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A worker serves, and has all guests.
    Ready,
    /// The daemon takes no further guest; this many are served until they end.
    Drains(usize),
    /// Another process listened on so many of the sockets; new guests come to this one from now on.
    TakesOver(usize),
    /// The worker ended, or could not be started (`None`). The next one is started after the pause.
    Restarts(Option<ExitStatus>, Duration),
    /// So many connections were closed since the last such event, because there were too many: of one process, of one
    /// socket, or for the limit of descriptors. With the last one's process; 0: it is unknown. Told once a second.
    Closes(usize, i32),
}

#[derive(Debug)]
struct Kept {
    socket: usize,
    connection: OwnedFd,
    /// The process that made the connection.
    process: Option<Pid>,
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
        let (mut listeners, mut places, mut taken_over) = (Vec::new(), Vec::new(), 0);
        for path in sockets {
            taken_over += usize::from(is_in_use(path.as_ref()));
            listeners.push(bind(path.as_ref())?);
            places.push(Place::of(path.as_ref()));
        }
        Ok(Self {
            sockets: listeners,
            places,
            taken_over,
            drain: None,
            drains: false,
            leave: None,
            is_supervised: false,
            adopted: None,
            was_ready: false,
            kept: BTreeMap::new(),
            next: 0,
            versions: BTreeMap::new(),
            reload: None,
            closed: Closed::default(),
            most_of_process: limits::MOST_OF_PROCESS,
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
                (TakeKind::Guest, Some(connection)) => {
                    let Take { connection: number, socket, version, .. } = take;
                    let process = peer::pid(&connection);
                    let kept = Kept { socket, connection, process, files: fds.collect(), version };
                    keeper.kept.insert(number, kept);
                }
                (TakeKind::Socket, Some(socket)) => keeper.sockets.push(socket.into()),
                (TakeKind::Version, _) => {
                    keeper.versions.extend(take.version.map(|version| (take.socket, version)));
                }
                (TakeKind::All, _) => {
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
            keeper.places = sockets.into_iter().map(|path| Place::of(path.as_ref())).collect();
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

    /// Gives new guests the newest version of their template whenever this descriptor becomes readable; it is read then.
    /// Otherwise they get the version that the daemon's first worker opened, whichever worker serves them.
    #[must_use]
    pub fn reload_on(self, signal: OwnedFd) -> Self {
        Self { reload: Some(signal), ..self }
    }

    /// Says that another process, such as systemd, restarts a keeper for the sockets if this one is killed. The keeper
    /// that the worker starts then has only the guests, and ends with the last of them.
    #[must_use]
    pub fn supervised(self, is_supervised: bool) -> Self {
        Self { is_supervised, ..self }
    }

    /// Sets the most connections of one process that are kept: 32 unless this is called. A VMM has one; a process that
    /// connects for others needs more.
    #[must_use]
    pub fn most_of_process(self, most: usize) -> Self {
        Self { most_of_process: most, ..self }
    }
}
