//! The worker's copy of all that its keeper holds, so that it can start another keeper if the keeper is killed.

use super::channel::{Channel, Keep, Take, What};
use crate::sabotage::Sabotage;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;

/// The command that starts a keeper, with its end of a channel as standard input.
pub(super) type StartKeeper = Arc<dyn Fn() -> Command + Send + Sync>;

/// A change of the parts and its message to the keeper are one step, under this lock.
pub(super) struct KeeperState(Mutex<Parts>);

struct Parts {
    keeper: Arc<Channel>,
    sockets: BTreeMap<usize, OwnedFd>,
    guests: BTreeMap<u64, Guest>,
    next: u64,
    /// A keeper that this process started.
    child: Option<Child>,
}

/// The keeper's data of a guest.
struct Guest {
    take: Take,
    /// Connection, journal, and swap file if there is one.
    fds: Vec<OwnedFd>,
}

impl KeeperState {
    pub fn new(keeper: Channel) -> Self {
        let (sockets, guests) = (BTreeMap::new(), BTreeMap::new());
        Self(Mutex::new(Parts { keeper: Arc::new(keeper), sockets, guests, next: 0, child: None }))
    }

    /// Returns the keeper's channel.
    pub fn keeper(&self) -> Arc<Channel> {
        self.0.lock().keeper.clone()
    }

    /// Adds a socket from the keeper.
    pub fn socket(&self, number: usize, socket: OwnedFd) {
        self.0.lock().sockets.insert(number, socket);
    }

    /// Closes the sockets: the daemon takes no further guest.
    pub fn drains(&self) {
        self.0.lock().sockets.clear();
    }

    /// Adds a guest from the keeper.
    pub fn begins(&self, take: &Take, fds: &[OwnedFd]) -> io::Result<()> {
        let fds = fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let mut parts = self.0.lock();
        parts.next = parts.next.max(take.connection + 1);
        parts.guests.insert(take.connection, Guest { take: take.clone(), fds });
        Ok(())
    }

    /// Tells the keeper that this worker has everything that existed when it began.
    pub fn tell_ready(&self) {
        _ = self.keeper().send(&Keep { is_ready: true, ..Keep::default() }, &[]);
    }

    /// Gives the keeper a guest's journal, and its swap file if there is one, before the guest's first event is read.
    /// If the keeper was just killed, the next one gets them.
    pub fn keep(&self, connection: u64, version: &str, files: Vec<OwnedFd>) {
        let mut parts = self.0.lock();
        let version = Some(version.to_owned());
        let keep = Keep { connection, version: version.clone(), is_ready: false };
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        _ = parts.keeper.send(&keep, &fds);
        if let Some(guest) = parts.guests.get_mut(&connection) {
            guest.take.version = version;
            guest.fds.truncate(1);
            guest.fds.extend(files);
        }
    }

    /// Removes a guest that has ended.
    pub fn ends(&self, connection: u64) {
        let mut parts = self.0.lock();
        parts.guests.remove(&connection);
        // The keeper may be gone.
        _ = parts.keeper.send(&Keep { connection, ..Keep::default() }, &[]);
    }

    /// Starts another keeper after a kill, if there are guests that need it, and gives it everything. Returns whether
    /// there is a keeper.
    pub fn next_keeper(&self, start: &StartKeeper, sabotage: Option<Sabotage>) -> io::Result<bool> {
        let parts = &mut *self.0.lock();
        if parts.guests.is_empty() {
            return Ok(false);
        }
        let (channel, theirs) = Channel::pair()?;
        let mut command = start();
        let child = command.stdin(theirs).spawn()?;
        // The command holds the keeper's end, which must close when the keeper ends.
        drop(command);
        // An earlier keeper has ended.
        if let Some(mut before) = parts.child.replace(child) {
            _ = before.wait();
        }
        // If this keeper is killed, too, the caller sees the closed channel.
        for (number, socket) in &parts.sockets {
            let take = Take { socket: *number, what: What::Socket, ..Take::default() };
            _ = channel.send(&take, &[socket.as_fd()]);
        }
        for guest in parts.guests.values().filter(|_| sabotage != Some(Sabotage::Heir)) {
            let fds: Vec<_> = guest.fds.iter().map(AsFd::as_fd).collect();
            _ = channel.send(&guest.take, &fds);
        }
        let (connection, socket) = (parts.next, std::process::id() as usize);
        _ = channel.send(&Take { connection, socket, what: What::All, version: None }, &[]);
        parts.keeper = Arc::new(channel);
        Ok(true)
    }
}
