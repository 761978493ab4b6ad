//! The keeper holds connections and journals, and restarts the worker.

mod accept;
mod clients;
mod list;
mod serve;
#[cfg(test)]
mod tests;

use super::channel::{Channel, Take, TakeKind};
use super::limits::{self, Closed, Limit};
use super::peer;
use super::request::{Listen, Request, daemons};
use super::sockets::{Identity, Place, bind, is_in_use};
use clients::Clients;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// The process that restarts the worker. It does little, and reads nothing that comes from a guest. If it is killed
/// itself, the worker starts another keeper: [`Keeper::of_worker`]. Do not kill both at the same time.
#[derive(Debug)]
pub struct Keeper {
    /// The sockets, by number. Numbers are not used again. A closed one stays while it has guests.
    sockets: BTreeMap<usize, Socket>,
    next_socket: usize,
    /// Number of sockets that another process used until now.
    taken_over: usize,
    control: Option<Control>,
    clients: Clients,
    /// Becomes readable when the keeper is to drain.
    drain: Option<OwnedFd>,
    drains: bool,
    /// Becomes readable when the keeper is to end at once.
    leave: Option<OwnedFd>,
    /// Another process restarts a keeper for these sockets if this one is killed.
    is_supervised: bool,
    /// The worker that started this keeper, and its id.
    adopted: Option<(Channel, Option<OwnedFd>)>,
    adopted_id: u32,
    /// A worker has served, so its arguments were right.
    was_ready: bool,
    kept: BTreeMap<u64, Kept>,
    next: u64,
    /// Becomes readable when new guests are to get the newest versions.
    reload: Option<OwnedFd>,
    closed: Closed,
    restarts: u64,
    most_of_process: usize,
}

/// A socket on which guests connect.
#[derive(Debug)]
struct Socket {
    listen: Listen,
    /// `None`: it is closed, or not open yet.
    listener: Option<UnixListener>,
    place: Option<Place>,
    stage: Stage,
    /// The version of the template that new guests get, also from later workers.
    version: Option<String>,
    /// It is of the command line.
    is_first: bool,
    /// The worker is asked for the newest version.
    reloads: bool,
}

/// The stage of a socket that is not simply open or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is bound when the worker has opened its template.
    Pending,
    Settled,
    /// It has lost its path. The connections in its queue are accepted, then it is closed.
    Closes,
}

/// The control socket. It is removed when the keeper ends.
#[derive(Debug)]
struct Control {
    listener: UnixListener,
    /// The number in its own name.
    number: u64,
    /// Its own name, `PATH.NUMBER`, and `PATH`, which the daemon that started last has.
    places: [Option<Place>; 2],
}

impl Drop for Control {
    fn drop(&mut self) {
        self.places.iter().flatten().for_each(Place::remove);
    }
}

fn own_name(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
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
    /// So many connections were closed since the last such event, because there were too many. With the last one's process
    /// (0: it is unknown), and the limit that it met. Told once a second.
    Closes(usize, i32, Limit),
}

#[derive(Debug)]
struct Kept {
    socket: usize,
    connection: OwnedFd,
    /// The process that made the connection.
    process: Option<Pid>,
    /// Journal, and swap file if there is one.
    files: Vec<OwnedFd>,
    /// There is a journal, although it may not have arrived here.
    has_files: bool,
    version: Option<String>,
    /// Milliseconds since 1970 when it connected.
    since: u64,
    /// Faults that wait, and why the last one does.
    waiting: u64,
    reason: Option<String>,
}

impl Keeper {
    /// Listens on these sockets. Only this user may connect to them, unless they say otherwise. A socket that an earlier
    /// keeper left behind is replaced. A socket of a daemon that lives is replaced if this one `replaces` it.
    ///
    /// It changes the process's umask for a moment: call it before threads make files.
    ///
    /// # Errors
    /// A daemon listens on one of the sockets. Then all of them stay as they were.
    pub fn listen(sockets: impl IntoIterator<Item = Listen>, replaces: bool) -> io::Result<Self> {
        let mut keeper = Self {
            sockets: BTreeMap::new(),
            next_socket: 0,
            taken_over: 0,
            control: None,
            clients: Clients::default(),
            drain: None,
            drains: false,
            leave: None,
            is_supervised: false,
            adopted: None,
            adopted_id: 0,
            was_ready: false,
            kept: BTreeMap::new(),
            next: 0,
            reload: None,
            closed: Closed::default(),
            restarts: 0,
            most_of_process: limits::MOST_OF_PROCESS,
        };
        for listen in sockets {
            if let Some(error) = listen.error() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
            let mut others = keeper.sockets.values().map(|socket| &socket.listen.socket);
            let is_twice = others.any(|other| *other == listen.socket);
            let is_live = is_in_use(&listen.socket);
            keeper.taken_over += usize::from(is_live);
            let number = keeper.insert(listen, true);
            let opened = if is_twice {
                let what = format!("{}: it is named twice", keeper.sockets[&number].listen.socket.display());
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            } else {
                keeper.open(number, replaces)
            };
            if let Err(error) = opened {
                keeper.sockets.values().filter_map(|socket| socket.place.as_ref()).for_each(Place::remove);
                return Err(error);
            }
        }
        Ok(keeper)
    }

    /// Answers operators on a socket at this path, and at `PATH.N`, N the process id: [`Request`]. Only this user may
    /// connect. The socket at `PATH` belongs to the daemon that started last. A keeper that a worker started has the
    /// killed keeper's, or its own at `PATH.N` alone.
    ///
    /// # Errors
    /// A daemon listens there, and this one does not `replace` it.
    pub fn control_at(mut self, path: &Path, replaces: bool) -> io::Result<Self> {
        if let Some(control) = &mut self.control {
            let own = Place::of(&own_name(path, control.number));
            control.places = [Some(own.named(path)), Some(own)];
            return Ok(self);
        }
        // Sockets of killed daemons.
        for other in daemons(path).iter().filter(|other| !is_in_use(other)) {
            Place::of(other).remove();
        }
        // Another pid namespace may have a daemon of the same process id.
        let mut numbers = u64::from(std::process::id())..;
        let number = numbers.find(|number| !is_in_use(&own_name(path, *number))).unwrap_or_default();
        let name = own_name(path, number);
        let (listener, first, own) = if self.adopted.is_some() {
            let (listener, own) = bind(&name, false)?;
            (listener, None, own)
        } else {
            let (listener, place) = bind(path, replaces)?;
            _ = std::fs::remove_file(&name);
            std::fs::hard_link(path, &name)?;
            let own = place.named(&name);
            (listener, Some(place), own)
        };
        self.control = Some(Control { listener, number, places: [first, Some(own)] });
        Ok(self)
    }

    /// Makes the keeper that a worker started after its own was killed. `channel` is its standard input. It gets the
    /// guests of the worker, and its sockets, unless they were closed.
    ///
    /// # Errors
    /// The worker ended before it had sent everything.
    pub fn of_worker(channel: OwnedFd) -> io::Result<Self> {
        let mut keeper = Self::listen([], false)?;
        let channel = Channel::new(channel);
        loop {
            let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the worker ended as well");
            let (take, fds) = channel.receive::<Take>(true)?.ok_or_else(ended)?;
            let mut fds = fds.into_iter();
            match (take.what, fds.next()) {
                (TakeKind::Guest, Some(connection)) => {
                    let Take { connection: number, socket, version, since, has_files, .. } = take;
                    let kept = Kept {
                        process: peer::pid(&connection),
                        files: fds.collect(),
                        has_files,
                        ..Kept::new(socket, connection, version, since)
                    };
                    keeper.kept.insert(number, kept);
                }
                (TakeKind::Socket, listener) => {
                    let Some(Request::Add(listen)) = take.request else { continue };
                    let socket = Socket { version: take.version, ..Socket::new(listen, take.is_first) };
                    keeper.sockets.insert(take.socket, socket.adopted(listener, take.place));
                    keeper.next_socket = keeper.next_socket.max(take.socket + 1);
                }
                (TakeKind::Control, Some(listener)) => {
                    let (listener, number) = (listener.into(), take.connection);
                    keeper.control = Some(Control { listener, number, places: [None, None] });
                }
                (TakeKind::All, _) => {
                    keeper.next = take.connection;
                    keeper.adopted_id = take.socket as u32;
                    // Where another process has the sockets, this one has the guests alone.
                    let has_none = !keeper.sockets.values().any(Socket::is_open);
                    keeper.drains = take.is_first || (keeper.control.is_none() && has_none);
                    // Unless the worker has ended, and another process has its number.
                    let worker = Pid::from_raw(take.socket as i32).filter(|pid| getppid() == Some(*pid));
                    let process = worker.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                    keeper.adopted = Some((channel, process));
                    break;
                }
                _ => {}
            }
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

    /// Sets the most connections of one process that are kept: 32 unless this is called, and at most half of all. A VMM has
    /// one; a process that connects for others needs more.
    #[must_use]
    pub fn most_of_process(self, most: usize) -> Self {
        Self { most_of_process: most, ..self }
    }
}

impl Socket {
    /// Returns a socket that is not open. One that is added is pending.
    fn new(listen: Listen, is_first: bool) -> Self {
        Self {
            version: listen.version.clone(),
            listen,
            listener: None,
            place: None,
            stage: if is_first { Stage::Settled } else { Stage::Pending },
            is_first,
            reloads: false,
        }
    }

    /// The same with the descriptor that a worker has. If no path leads to the socket any more, the killed keeper was closing
    /// it. Without a descriptor, its file is of no use.
    fn adopted(mut self, listener: Option<OwnedFd>, identity: Option<Identity>) -> Self {
        let place = Place::with(&self.listen.socket, identity);
        self.stage = Stage::Settled;
        if let Some(listener) = listener {
            if !place.is_there() {
                self.stage = Stage::Closes;
            }
            (self.listener, self.place) = (Some(listener.into()), Some(place));
        } else {
            place.remove();
        }
        self
    }
}

impl Kept {
    /// Returns a guest without a journal.
    fn new(socket: usize, connection: OwnedFd, version: Option<String>, since: u64) -> Self {
        let (files, has_files, waiting) = (Vec::new(), false, 0);
        Self { socket, connection, process: None, files, has_files, version, since, waiting, reason: None }
    }
}
