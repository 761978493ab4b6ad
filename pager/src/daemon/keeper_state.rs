//! The worker's copy of all that its keeper holds, so that it can start another keeper if the keeper is killed.
//!
//! A change is noted here first, under the lock, and then sent, without it: a thread that waits for room in the channel
//! delays no other. If the keeper is killed in between, the next one gets the change with the rest.

use super::channel::{Channel, Keep, Take, TakeKind};
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
    sockets: BTreeMap<usize, Arc<OwnedFd>>,
    guests: BTreeMap<u64, Guest>,
    /// The versions of the new guests, by socket.
    versions: BTreeMap<usize, String>,
    next: u64,
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
        let (sockets, guests, versions) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let parts = Parts { keeper: Line::new(keeper, true), sockets, guests, versions, next: 0 };
        Self { parts: Mutex::new(parts), child: Mutex::new(None) }
    }

    /// Returns the way to the keeper.
    pub fn keeper(&self) -> Arc<Line> {
        self.parts.lock().keeper.clone()
    }

    /// Adds a socket from the keeper.
    pub fn socket(&self, number: usize, socket: OwnedFd) {
        self.parts.lock().sockets.insert(number, Arc::new(socket));
    }

    /// Notes the version of the new guests on a socket, which the keeper knows.
    pub fn version(&self, socket: usize, version: String) {
        self.parts.lock().versions.insert(socket, version);
    }

    /// Tells the keeper the version of the new guests on a socket. `None`: there is no template any more.
    pub fn opened(&self, socket: usize, version: Option<&str>) {
        let version = version.map(str::to_owned);
        let keeper = {
            let mut parts = self.parts.lock();
            parts.versions.remove(&socket);
            parts.versions.extend(version.clone().map(|version| (socket, version)));
            parts.keeper.clone()
        };
        keeper.send(&Keep { opened: Some(socket), version, ..Keep::default() }, &[]);
    }

    /// Closes the sockets: the daemon takes no further guest.
    pub fn drains(&self) {
        self.parts.lock().sockets.clear();
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
                guest.fds.truncate(1);
                guest.fds.extend(files.iter().cloned());
            }
            parts.keeper.clone()
        };
        keeper.send(&Keep { connection, version, has_files: true, ..Keep::default() }, &files);
    }

    /// Removes a guest that has ended.
    pub fn ends(&self, connection: u64) {
        let keeper = {
            let mut parts = self.parts.lock();
            parts.guests.remove(&connection);
            parts.keeper.clone()
        };
        keeper.send(&Keep { connection, ..Keep::default() }, &[]);
    }

    /// Starts another keeper after a kill, if there are guests that need it, and gives it everything. Returns whether
    /// there is a keeper.
    pub fn next_keeper(&self, start: &StartKeeper) -> io::Result<bool> {
        if self.parts.lock().guests.is_empty() {
            return Ok(false);
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
        let (sockets, guests, versions, connection) = {
            let mut parts = self.parts.lock();
            parts.keeper = line.clone();
            (parts.sockets.clone(), parts.guests.clone(), parts.versions.clone(), parts.next)
        };
        // If this keeper is killed, too, the caller sees the closed channel.
        for (number, socket) in &sockets {
            let take = Take { socket: *number, what: TakeKind::Socket, ..Take::default() };
            _ = line.channel.send(&take, &[socket.as_fd()]);
        }
        for (socket, version) in versions {
            let take = Take { socket, version: Some(version), what: TakeKind::Version, ..Take::default() };
            _ = line.channel.send(&take, &[]);
        }
        for guest in guests.values() {
            let fds: Vec<_> = guest.fds.iter().map(|fd| fd.as_fd()).collect();
            _ = line.channel.send(&guest.take, &fds);
        }
        let socket = std::process::id() as usize;
        _ = line.channel.send(&Take { connection, socket, what: TakeKind::All, ..Take::default() }, &[]);
        line.open();
        Ok(true)
    }
}
