//! The worker's copy of all that its keeper holds, so that it can start another keeper if the keeper is killed.
//!
//! A change is noted here first, under the lock, and then sent, without it: a thread that waits for room in the channel
//! delays no other. If the keeper is killed in between, the next one gets the change with the rest.

use super::channel::{Channel, Keep, Take, TakeKind};
use super::request::Request;
use crate::store::StoreError;
use crate::wire::Foreign;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;

/// The command that starts a keeper, with its end of a channel as standard input.
pub(super) type StartKeeper = Arc<dyn Fn() -> Command + Send + Sync>;

pub(super) struct KeeperState {
    parts: Mutex<Parts>,
    /// A keeper that this process started.
    child: Mutex<Option<Child>>,
}

struct Parts {
    keeper: Arc<Line>,
    sockets: BTreeMap<usize, Socket>,
    /// The control socket, with the number in its name.
    control: Option<(u64, Arc<OwnedFd>)>,
    guests: BTreeMap<u64, Guest>,
    next: u64,
    /// The daemon takes no further guest.
    drains: bool,
    /// The keeper has sent all sockets.
    has_all: bool,
}

/// The keeper's data of a socket, with the version of its new guests.
#[derive(Clone)]
struct Socket {
    take: Take,
    /// `None`: it is not open.
    fd: Option<Arc<OwnedFd>>,
}

/// The keeper's data of a guest.
#[derive(Clone)]
struct Guest {
    take: Take,
    /// Connection, journal, and swap file if there is one.
    fds: Vec<Arc<OwnedFd>>,
}

/// The channel of a keeper. Changes are sent after the initial messages.
pub(super) struct Line {
    channel: Channel,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Line {
    fn new(channel: Channel, is_open: bool) -> Arc<Self> {
        Arc::new(Self { channel, is_open: Mutex::new(is_open), opened: Condvar::new() })
    }

    /// Returns the channel, to receive.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Sends a change. If the keeper was just killed, the next one gets the change.
    fn send(&self, keep: &Keep, fds: &[Arc<OwnedFd>]) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            self.opened.wait(&mut is_open);
        }
        drop(is_open);
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        _ = self.channel.send(keep, &fds);
    }

    fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }
}

impl KeeperState {
    pub fn new(keeper: Channel) -> Self {
        let (sockets, guests) = (BTreeMap::new(), BTreeMap::new());
        let keeper = Line::new(keeper, true);
        let parts = Parts { keeper, sockets, control: None, guests, next: 0, drains: false, has_all: false };
        Self { parts: Mutex::new(parts), child: Mutex::new(None) }
    }

    /// Returns the way to the keeper.
    pub fn keeper(&self) -> Arc<Line> {
        self.parts.lock().keeper.clone()
    }

    /// Adds a socket from the keeper, or its descriptor.
    pub fn socket(&self, take: Take, fd: Option<OwnedFd>) {
        let socket = Socket { fd: fd.map(Arc::new), take };
        self.parts.lock().sockets.insert(socket.take.socket, socket);
    }

    /// Closes a socket.
    pub fn closes(&self, socket: usize) {
        if let Some(socket) = self.parts.lock().sockets.get_mut(&socket) {
            socket.fd = None;
        }
    }

    /// Removes a socket.
    pub fn forgets(&self, socket: usize) {
        self.parts.lock().sockets.remove(&socket);
    }

    /// Adds the control socket.
    pub fn control(&self, number: u64, socket: OwnedFd) {
        self.parts.lock().control = Some((number, Arc::new(socket)));
    }

    /// Tells the keeper the version of the new guests on a socket. `None`: there is no template any more.
    pub fn opened(&self, socket: usize, version: Option<&str>, is_reload: bool) {
        let version = version.map(str::to_owned);
        self.tell_opened(socket, is_reload, None, |before| before.clone_from(&version));
    }

    /// Tells the keeper why a template, or its newest version, cannot be opened. New guests get the same as before.
    pub fn not_opened(&self, socket: usize, is_reload: bool, error: &StoreError) {
        let reason = Some(short(&error.to_string()));
        let is_gone = is_reload && matches!(error, StoreError::Missing(_));
        self.tell_opened(socket, is_reload, reason, |version| {
            if is_gone {
                *version = None;
            }
        });
    }

    fn tell_opened(
        &self,
        number: usize,
        is_reload: bool,
        reason: Option<String>,
        change: impl FnOnce(&mut Option<String>),
    ) {
        let (keeper, version) = {
            let mut parts = self.parts.lock();
            let Some(socket) = parts.sockets.get_mut(&number) else { return };
            change(&mut socket.take.version);
            let version = socket.take.version.clone();
            (parts.keeper.clone(), version)
        };
        keeper.send(&Keep { opened: Some(number), version, is_reload, reason, ..Keep::default() }, &[]);
    }

    /// Tells the keeper that so many faults of a guest wait.
    pub fn waits(&self, connection: u64, waiting: u64, reason: &str) {
        let (waiting, reason) = (Some(waiting), Some(short(reason)));
        self.keeper().send(&Keep { connection, reason, waiting, ..Keep::default() }, &[]);
    }

    /// Closes the sockets: the daemon takes no further guest.
    pub fn drains(&self) {
        let mut parts = self.parts.lock();
        parts.drains = true;
        parts.sockets.values_mut().for_each(|socket| socket.fd = None);
    }

    /// Adds a guest from the keeper.
    pub fn begins(&self, take: &Take, fds: &[OwnedFd]) -> io::Result<()> {
        let fds = fds.iter().map(|fd| fd.try_clone().map(Arc::new)).collect::<io::Result<_>>()?;
        let mut parts = self.parts.lock();
        parts.next = parts.next.max(take.connection + 1);
        parts.guests.insert(take.connection, Guest { take: take.clone(), fds });
        Ok(())
    }

    /// Tells the keeper that this worker has everything that existed when it began.
    pub fn tell_ready(&self) {
        self.parts.lock().has_all = true;
        self.keeper().send(&Keep { is_ready: true, ..Keep::default() }, &[]);
    }

    /// Gives the keeper a guest's journal, and its swap file if there is one, before the guest's first event is read.
    pub fn keep(&self, connection: u64, version: &str, files: Vec<OwnedFd>) {
        let version = Some(version.to_owned());
        let files: Vec<_> = files.into_iter().map(Arc::new).collect();
        let keeper = {
            let mut parts = self.parts.lock();
            if let Some(guest) = parts.guests.get_mut(&connection) {
                guest.take.version.clone_from(&version);
                guest.take.has_files = true;
                guest.fds.truncate(1);
                guest.fds.extend(files.iter().cloned());
                let socket = guest.take.socket;
                // A session has its guest now, also if the guest ends before there is a next keeper.
                if let Some(socket) = parts.sockets.get_mut(&socket)
                    && matches!(&socket.take.request, Some(Request::Add(listen)) if listen.once)
                {
                    socket.fd = None;
                }
            }
            parts.keeper.clone()
        };
        keeper.send(&Keep { connection, version, has_files: true, ..Keep::default() }, &files);
    }

    /// Removes a guest that has ended.
    pub fn ends(&self, connection: u64) {
        let (keeper, guest) = {
            let mut parts = self.parts.lock();
            let guest = parts.guests.remove(&connection);
            (parts.keeper.clone(), guest)
        };
        // The connection may hold descriptors of the VMM.
        let fds = guest.into_iter().flat_map(|guest| guest.fds).filter_map(Arc::into_inner);
        drop(Foreign(fds.collect()));
        keeper.send(&Keep { connection, ..Keep::default() }, &[]);
    }

    /// Starts another keeper after a kill, if there are guests or open sockets that need it, and gives it everything.
    /// Returns whether there is a keeper.
    pub fn next_keeper(&self, start: &StartKeeper) -> io::Result<bool> {
        {
            let parts = self.parts.lock();
            // A part of the sockets of the command line is no daemon. Where systemd starts the next keeper, it has all
            // of them and the control socket, and this process has none.
            let needs = |socket: &Socket| socket.fd.is_some() && (parts.has_all || !socket.take.is_first);
            let has_control = parts.has_all && !parts.drains && parts.control.is_some();
            if parts.guests.is_empty() && !has_control && !parts.sockets.values().any(needs) {
                return Ok(false);
            }
        }
        let (channel, theirs) = Channel::pair()?;
        let mut command = start();
        let child = command.stdin(theirs).spawn()?;
        // The command holds the keeper's end, which must close when the keeper ends.
        drop(command);
        // An earlier keeper has ended.
        if let Some(mut before) = self.child.lock().replace(child) {
            _ = before.wait();
        }
        // Later changes wait until the keeper has what there is now.
        let line = Line::new(channel, false);
        let (sockets, control, guests, connection, is_first) = {
            let mut parts = self.parts.lock();
            parts.keeper = line.clone();
            (parts.sockets.clone(), parts.control.clone(), parts.guests.clone(), parts.next, parts.drains)
        };
        // If this keeper is killed, too, the caller sees the closed channel.
        for socket in sockets.values() {
            let fds: Vec<_> = socket.fd.iter().map(|fd| fd.as_fd()).collect();
            _ = line.channel.send(&socket.take, &fds);
        }
        if let Some((connection, socket)) = &control {
            let take = Take { connection: *connection, what: TakeKind::Control, ..Take::default() };
            _ = line.channel.send(&take, &[socket.as_fd()]);
        }
        for guest in guests.values() {
            let fds: Vec<_> = guest.fds.iter().map(|fd| fd.as_fd()).collect();
            _ = line.channel.send(&guest.take, &fds);
        }
        let socket = std::process::id() as usize;
        _ = line
            .channel
            .send(&Take { connection, socket, is_first, what: TakeKind::All, ..Take::default() }, &[]);
        line.open();
        Ok(true)
    }
}

/// Returns the beginning of a reason, which must fit into a message.
fn short(text: &str) -> String {
    text.chars().take(500).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::request::Listen;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_session_whose_guest_has_begun_is_not_open_for_the_next_keeper() {
        let (ours, theirs) = Channel::pair().unwrap();
        let state = KeeperState::new(Channel::new(theirs));
        let fd = || OwnedFd::from(UnixStream::pair().unwrap().0);
        for (socket, once) in [(0, true), (1, false)] {
            let listen = Listen { once, ..Listen::template("/run/a", "debian") };
            let take = Take { socket, request: Some(Request::Add(listen)), ..Take::default() };
            state.socket(take, Some(fd()));
            let take = Take { connection: socket as u64, socket, ..Take::default() };
            state.begins(&take, &[fd()]).unwrap();
            state.keep(socket as u64, "1", vec![fd()]);
            // The guest ends before there is a next keeper.
            state.ends(socket as u64);
        }
        let open = state.parts.lock().sockets.values().map(|socket| socket.fd.is_some()).collect::<Vec<_>>();
        assert_eq!(open, [false, true]);
        drop(ours);
    }
}
