//! The keeper's messages to its worker, and how it ends.
//!
//! The keeper never waits for the worker: a message for which the channel has no room stays in the outbox. The worker
//! may wait for the keeper. So the two cannot wait for each other.

use super::channel::{Channel, is_temporary};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

/// A message to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Letter {
    /// The socket with this number.
    Socket(usize),
    /// The connection with this number.
    Guest(u64),
    /// The socket with this number is closed.
    Closes(usize),
    /// The socket with this number has no guest any more.
    Forgets(usize),
    Control,
    /// New guests on the socket with this number get the newest version.
    Reload(usize),
    /// The request of the operator with this number.
    Request(u64),
    Yields,
    /// The keeper's counters.
    Counts,
    All,
    Drains,
    Leaves,
}

/// Messages for which the channel had no room, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    letters: VecDeque<Letter>,
    /// The kernel refused the first one for now.
    is_refused: bool,
}

impl Outbox {
    pub fn push(&mut self, letter: Letter) {
        self.letters.push_back(letter);
    }

    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    pub fn has(&self, letter: Letter) -> bool {
        self.letters.contains(&letter)
    }

    /// Sends messages by `send`, which must not wait, while there is room.
    pub fn send(&mut self, mut send: impl FnMut(Letter) -> io::Result<()>) {
        self.is_refused = false;
        while let Some(letter) = self.letters.front() {
            match send(*letter) {
                Ok(()) => _ = self.letters.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_temporary(&error) => {
                    self.is_refused = true;
                    return;
                }
                // The worker has ended. The next one gets everything.
                Err(_) => self.letters.clear(),
            }
        }
    }

    /// Returns whether the channel's next room should wake the keeper.
    pub fn waits_for_room(&self) -> bool {
        !self.letters.is_empty() && !self.is_refused
    }

    /// Returns whether to try again after a pause.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }
}

/// A worker, and its messages.
pub struct Running {
    pub channel: Channel,
    pub process: Process,
    pub outbox: Outbox,
    /// It has served, so it reads its messages.
    pub is_ready: bool,
}

/// The worker's process.
pub enum Process {
    /// The process, and a descriptor of it that tells its end.
    Mine(Child, Option<OwnedFd>),
    /// The worker that started this keeper. `None`: it has ended.
    Other(Option<OwnedFd>),
}

impl Process {
    pub fn mine(child: Child) -> Self {
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        Self::Mine(child, process)
    }

    /// Returns the id of the process. 0: it has ended.
    pub fn id(&self, adopted: u32) -> u32 {
        match self {
            Self::Mine(child, _) => child.id(),
            Self::Other(process) => process.as_ref().map_or(0, |_| adopted),
        }
    }

    pub fn kill(&mut self) {
        match self {
            Self::Mine(child, _) => _ = child.kill(),
            Self::Other(Some(worker)) => _ = pidfd_send_signal(worker, Signal::KILL),
            Self::Other(None) => {}
        }
    }

    /// Kills the worker and waits for its end: two workers must never serve the same guest.
    ///
    /// # Errors
    /// `Interrupted`: `leave` became readable first.
    pub fn end(&mut self, leave: Option<BorrowedFd>) -> io::Result<ExitStatus> {
        self.kill();
        if let Self::Mine(_, Some(process)) | Self::Other(Some(process)) = self {
            loop {
                let mut fds = vec![PollFd::new(process, PollFlags::IN)];
                fds.extend(leave.map(|leave| PollFd::from_borrowed_fd(leave, PollFlags::IN)));
                // Again after an interruption.
                if poll(&mut fds, None).is_err() {
                    continue;
                }
                if !fds[0].revents().is_empty() {
                    break;
                }
                return Err(second_signal());
            }
        }
        match self {
            Self::Mine(child, _) => child.wait(),
            // Only the parent process can read the status.
            Self::Other(_) => Ok(ExitStatus::from_raw(0)),
        }
    }
}

/// Returns the error of a keeper that was asked to end at once.
pub fn second_signal() -> io::Error {
    io::Error::new(
        io::ErrorKind::Interrupted,
        "a second signal ended the keeper; the worker serves its guests until they end",
    )
}
