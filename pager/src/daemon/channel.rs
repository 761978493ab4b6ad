//! What keeper and worker say to each other.

use crate::wire::{send, take};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The keeper gives a connection, and the journal of its guest if there is one: the descriptors, in this order. A worker whose keeper was
/// killed gives the same to the next keeper.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Take {
    pub connection: u64,
    /// The number of the socket on which it came.
    pub socket: usize,
    /// Of a guest that was served before: the version of its template.
    #[serde(default)]
    pub version: Option<String>,
    #[serde(default)]
    pub what: What,
}

/// What a message of the keeper is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    #[default]
    Guest,
    /// A socket on which guests connect: the descriptor. The worker holds it, in case that the keeper is killed.
    Socket,
    /// No further guest is taken: the sockets are to be closed.
    Drains,
    /// The keeper ends, and wants no other one in its place.
    Leaves,
    /// That was all of what there is. To the next keeper it has the number of the next connection, and the worker's process as the number
    /// of a socket.
    All,
}

/// The worker gives the journal of a connection's guest, the descriptor, and the version of its template, which may have another one
/// when the next worker begins, and after it the guest's swap file; or without a descriptor it is done with the connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Keep {
    pub connection: u64,
    #[serde(default)]
    pub version: Option<String>,
    /// It is about no connection: the worker has all sockets and guests that there are.
    #[serde(default)]
    pub is_ready: bool,
}

/// One end. A message is whole or not there, and one that was sent is received even if its sender has been killed.
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

    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd]) -> io::Result<()> {
        send(self.0.as_fd(), &serde_json::to_vec(message)?, fds)
    }

    /// Waits for a message, if it may. `None`: the other end is closed. `WouldBlock`: there is none.
    pub fn receive<T: DeserializeOwned>(&self, wait: bool) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let (mut text, mut fds) = ([0; 512], Vec::new());
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let got = loop {
            match take(self.0.as_fd(), &mut text, &mut fds, flags) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                got => break got?,
            }
        };
        if got == 0 { Ok(None) } else { Ok(Some((serde_json::from_slice(&text[..got])?, fds))) }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
