//! Limits of the connections that a keeper keeps: in all, for each socket, and for each process.

use rustix::process::{Pid, Resource, getrlimit};
use std::time::{Duration, Instant};

/// Most connections that are kept; further ones are closed.
const MOST_CONNECTIONS: usize = 4096;
/// Most connections of one process that are kept, unless the keeper is told otherwise. A VMM has one.
pub const MOST_OF_PROCESS: usize = 32;
/// Connections reserved for each socket.
const RESERVE: usize = 32;
/// Descriptors that a process needs for each guest: the worker has that many.
const FDS_OF_GUEST: u64 = 12;

/// Why a connection was closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Connections of one process.
    #[default]
    Process,
    /// Guests of a socket.
    Socket,
    /// Connections of a socket, so that other sockets have some left.
    Share,
    /// Connections in all.
    All,
    /// Open files of a process (`ulimit -n`), which allow this many connections.
    Files(usize),
    /// The daemon has drained, and ends.
    Ends,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process => write!(f, "a process has too many (--per-process)"),
            Self::Socket => write!(f, "the socket has its most guests"),
            Self::Share => write!(f, "the socket has its share of all connections"),
            Self::All => write!(f, "a daemon keeps {MOST_CONNECTIONS}"),
            Self::Files(most) => write!(f, "the limit of open files allows {most}: raise it (ulimit -n)"),
            Self::Ends => write!(f, "the daemon has drained"),
        }
    }
}

/// Returns the number of connections that a keeper keeps with this limit of open files.
fn most_with(files: u64) -> usize {
    (files.saturating_sub(64) / FDS_OF_GUEST).clamp(1, MOST_CONNECTIONS as u64) as usize
}

/// Returns the number of those that one process has at most, whatever `--per-process` says: half.
pub fn most_of_one_process(files: u64) -> usize {
    (most_with(files) / 2).max(1)
}

/// Returns the limit for which a keeper of so many sockets does not keep one more connection of this process. `kept` has the
/// socket and the process of each one that it keeps; the process may be unknown.
pub fn limit(
    kept: impl Iterator<Item = (usize, Option<Pid>)>,
    sockets: usize,
    socket: usize,
    process: Option<Pid>,
    most_of_process: usize,
) -> Option<Limit> {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = most_with(files);
    let others = sockets.saturating_sub(1);
    let most_of_socket = most.saturating_sub(RESERVE * others).max(most / 2).max(1);
    let most_of_process = most_of_process.min(most_of_one_process(files));
    let (mut all, mut of_socket, mut of_process) = (0, 0, 0);
    for (at, of) in kept {
        all += 1;
        of_socket += usize::from(at == socket);
        of_process += usize::from(of.is_some() && of == process);
    }
    if of_process >= most_of_process {
        Some(Limit::Process)
    } else if all >= most && most < MOST_CONNECTIONS {
        Some(Limit::Files(most))
    } else if all >= most {
        Some(Limit::All)
    } else {
        (of_socket >= most_of_socket).then_some(Limit::Share)
    }
}

/// Connections that were closed and not told yet.
#[derive(Debug, Default)]
pub struct Closed {
    count: usize,
    /// All since the keeper began.
    pub total: u64,
    /// The worker does not know the total that was told last.
    pub is_new: bool,
    process: i32,
    limit: Limit,
    told: Option<Instant>,
}

impl Closed {
    pub fn add(&mut self, process: Option<Pid>, limit: Limit) {
        self.count += 1;
        self.limit = limit;
        self.total += 1;
        self.process = process.map_or(0, |pid| pid.as_raw_nonzero().get());
    }

    /// As [`Closed::tell`], at once.
    pub fn tell_now(&mut self, told: impl FnOnce(usize, i32, Limit)) -> Option<Duration> {
        self.told = None;
        self.tell(told)
    }

    /// Passes the number of closed connections, and the process and the limit of the last one, to `told`: once a second. Returns
    /// the time until the next call, if there will be one.
    pub fn tell(&mut self, told: impl FnOnce(usize, i32, Limit)) -> Option<Duration> {
        const PERIOD: Duration = Duration::from_secs(1);
        if self.count == 0 {
            return None;
        }
        match self.told.map(|told| told.elapsed()) {
            Some(since) if since < PERIOD => Some(PERIOD.saturating_sub(since)),
            _ => {
                told(std::mem::take(&mut self.count), self.process, self.limit);
                (self.told, self.is_new) = (Some(Instant::now()), true);
                None
            }
        }
    }
}
