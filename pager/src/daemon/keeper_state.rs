//! What a worker holds besides serving guests: all that its keeper has. So a keeper that is killed is followed by another one.

use super::channel::{Channel, Keep, Take, What};
use crate::sabotage::Sabotage;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;

/// By which a keeper is started, with its end of a channel as standard input.
pub(super) type StartKeeper = Arc<dyn Fn() -> Command + Send + Sync>;

/// Its parts change together with what the keeper is told.
pub(super) struct KeeperState(Mutex<Parts>);

struct Parts {
    keeper: Arc<Channel>,
    sockets: BTreeMap<usize, OwnedFd>,
    guests: BTreeMap<u64, Guest>,
    next: u64,
    /// A keeper that this process started.
    child: Option<Child>,
}

/// A guest, as the keeper has it.
struct Guest {
    take: Take,
    /// Its connection, its journal, and its swap file if it has one.
    fds: Vec<OwnedFd>,
}

impl KeeperState {
    pub fn new(keeper: Channel) -> Self {
        let (sockets, guests) = (BTreeMap::new(), BTreeMap::new());
        Self(Mutex::new(Parts { keeper: Arc::new(keeper), sockets, guests, next: 0, child: None }))
    }

    /// The keeper, to hear it.
    pub fn keeper(&self) -> Arc<Channel> {
        self.0.lock().keeper.clone()
    }

    /// Holds a socket that the keeper gave.
    pub fn socket(&self, number: usize, socket: OwnedFd) {
        self.0.lock().sockets.insert(number, socket);
    }

    /// No further guest is taken.
    pub fn drains(&self) {
        self.0.lock().sockets.clear();
    }

    /// Holds a guest that the keeper gave.
    pub fn begins(&self, take: &Take, fds: &[OwnedFd]) -> io::Result<()> {
        let fds = fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let mut parts = self.0.lock();
        parts.next = parts.next.max(take.connection + 1);
        parts.guests.insert(take.connection, Guest { take: take.clone(), fds });
        Ok(())
    }

    /// Tells the keeper that this worker has all that there was when it began.
    pub fn tell_ready(&self) {
        _ = self.keeper().send(&Keep { is_ready: true, ..Keep::default() }, &[]);
    }

    /// A guest has a journal, and maybe a swap file: the keeper gets them before the first event is read. Where it was just killed, the
    /// next one will.
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

    /// A guest is over.
    pub fn ends(&self, connection: u64) {
        let mut parts = self.0.lock();
        parts.guests.remove(&connection);
        // The keeper may be gone.
        _ = parts.keeper.send(&Keep { connection, ..Keep::default() }, &[]);
    }

    /// The keeper was killed: starts another one, if there are guests that need it, and gives it all. Whether there is one.
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
        // One before it has ended.
        if let Some(mut before) = parts.child.replace(child) {
            _ = before.wait();
        }
        // Where this one is killed as well, the caller hears of it.
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
