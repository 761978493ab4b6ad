//! Messages between keeper and worker.

use super::request::Request;
use super::sockets::Identity;
use crate::wire::{send_with, take};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The most bytes of a message.
const MOST_MESSAGE: usize = 16 << 10;

/// Pause before the next try of a send that the kernel refused for now.
pub const REFUSED: Duration = Duration::from_millis(10);

/// From the keeper: a connection, and the journal of its guest if there is one, as descriptors in this order. A worker
/// whose keeper was killed sends the same to the next keeper.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Take {
    pub connection: u64,
    /// Number of the socket on which the connection came.
    pub socket: usize,
    /// Version of the template of a guest that was served before, or of the new guests on a socket.
    #[serde(default)]
    pub version: Option<String>,
    #[serde(default)]
    pub what: TakeKind,
    /// With [`TakeKind::All`]: no worker of this daemon has served yet, so its arguments may be wrong. To the
    /// next keeper: the daemon drains. With [`TakeKind::Socket`]: the socket is of the command line.
    #[serde(default)]
    pub is_first: bool,
    /// With [`TakeKind::Socket`]: the socket. With [`TakeKind::Request`]: an operator's request.
    #[serde(default)]
    pub request: Option<Request>,
    /// Milliseconds since 1970 when the guest connected.
    #[serde(default)]
    pub since: u64,
    /// The guest has a journal, although it may not have arrived.
    #[serde(default)]
    pub has_files: bool,
    /// With [`TakeKind::Socket`]: the identity of the socket's file.
    #[serde(default)]
    pub place: Option<Identity>,
    /// With [`TakeKind::Socket`]: VMMs can connect.
    #[serde(default)]
    pub is_open: bool,
    #[serde(default)]
    pub counts: Option<Counts>,
}

/// State of the keeper that its worker shows to operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of times that a worker had to be restarted.
    pub restarts: u64,
    /// Connections that were closed because there were too many.
    pub closed: u64,
    /// The daemon takes no further guest.
    pub drains: bool,
}

/// The kind of a keeper's message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TakeKind {
    #[default]
    Guest,
    /// A socket on which guests connect, the version that they get, and the descriptor. The worker holds the descriptor in
    /// case the keeper is killed. Without one, the socket is not open.
    Socket,
    /// The worker closes its descriptor of a socket.
    Closes,
    /// No guest of a socket is left.
    Forgets,
    /// The control socket: the descriptor. `connection` is the number in its name.
    Control,
    /// New guests on a socket get the newest version from now on.
    Reload,
    /// An operator's request, with the connection on which to answer.
    Request,
    /// Another daemon needs the address of the metrics.
    Yields,
    /// The keeper's counters.
    Counts,
    /// The daemon takes no further guest: close the sockets.
    Drains,
    /// The keeper ends, and must not be replaced.
    Leaves,
    /// The end of the initial messages. To the next keeper it has the number of the next connection, and the worker's
    /// process in place of the number of a socket.
    All,
}

/// From the worker, with descriptors: the journal of a connection's guest, and then the guest's swap file, with the
/// version of its template, which may have a newer one when the next worker begins. Without a descriptor: the worker is
/// done with the connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Keep {
    pub connection: u64,
    #[serde(default)]
    pub version: Option<String>,
    /// The message is about no connection: the worker has all sockets and guests.
    #[serde(default)]
    pub is_ready: bool,
    /// The message is about the new guests on this socket: the version of their template, if there is one.
    #[serde(default)]
    pub opened: Option<usize>,
    /// With `opened`: the answer to a request to reload.
    #[serde(default)]
    pub is_reload: bool,
    /// With `opened`: why the template, or its newest version, could not be opened. With `waiting`: the reason.
    #[serde(default)]
    pub reason: Option<String>,
    /// So many faults of the guest wait now.
    #[serde(default)]
    pub waiting: Option<u64>,
    /// The guest has files, although none may have arrived.
    #[serde(default)]
    pub has_files: bool,
}

/// One end of the channel. A message arrives whole or not at all, and a sent message is received even if its sender has
/// been killed.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), other))
    }

    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Sends a message. Waits for room in the channel: the other end must not wait for this one meanwhile, and the caller
    /// must not hold a lock.
    ///
    /// # Errors
    /// The other end is closed.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        loop {
            match send_with(self.0.as_fd(), &text, fds, SendFlags::empty()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A message that is lost would be a guest that is lost.
                Err(error) if is_temporary(&error) => std::thread::sleep(REFUSED),
                sent => return sent,
            }
        }
    }

    /// As [`Channel::send`], without waiting. `WouldBlock`: there is no room.
    pub fn try_send(&self, message: &impl Serialize, fds: &[BorrowedFd]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        loop {
            match send_with(self.0.as_fd(), &text, fds, SendFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent,
            }
        }
    }

    /// Receives a message; `wait` says whether to wait for one. `None`: the other end is closed. `WouldBlock`: there is
    /// no message.
    pub fn receive<T: DeserializeOwned>(&self, wait: bool) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let (mut text, mut fds) = ([0; MOST_MESSAGE], Vec::new());
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let got = loop {
            match take(self.0.as_fd(), &mut text, &mut fds, flags) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The other process was killed with unread messages. The kernel says so once, before it delivers the
                // messages that the process had sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                got => break got?,
            }
        };
        if got == 0 { Ok(None) } else { Ok(Some((serde_json::from_slice(&text[..got])?, fds))) }
    }
}

/// Returns whether the same send may succeed later: there is no memory, or too many descriptors are under way.
pub fn is_temporary(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS))
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_process_that_was_killed_with_unread_messages_arrive() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::new(theirs);
        let send = |channel: &Channel, connection| {
            channel.try_send(&Keep { connection, ..Keep::default() }, &[]).unwrap();
        };
        send(&theirs, 1);
        send(&theirs, 2);
        // It is never read.
        send(&ours, 3);
        drop(theirs);
        let receive = || ours.receive::<Keep>(true).unwrap().map(|(keep, _)| keep.connection);
        assert_eq!([receive(), receive(), receive()], [Some(1), Some(2), None]);
    }
}
