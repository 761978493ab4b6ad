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

/// Returns whether a keeper of so many sockets keeps one more connection of this process. `kept` has the socket and the
/// process of each one that it keeps; the process may be unknown.
pub fn has_room(
    kept: impl Iterator<Item = (usize, Option<Pid>)>,
    sockets: usize,
    socket: usize,
    process: Option<Pid>,
    most_of_process: usize,
) -> bool {
    let fds = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = (fds.saturating_sub(64) / FDS_OF_GUEST).clamp(1, MOST_CONNECTIONS as u64) as usize;
    let others = sockets.saturating_sub(1);
    let most_of_socket = most.saturating_sub(RESERVE * others).max(most / 2).max(1);
    let (mut all, mut of_socket, mut of_process) = (0, 0, 0);
    for (at, of) in kept {
        all += 1;
        of_socket += usize::from(at == socket);
        of_process += usize::from(of.is_some() && of == process);
    }
    all < most && of_socket < most_of_socket && of_process < most_of_process
}

/// Connections that were closed and not told yet.
#[derive(Debug, Default)]
pub struct Closed {
    count: usize,
    /// All since the keeper began.
    pub total: u64,
    process: i32,
    told: Option<Instant>,
}

impl Closed {
    pub fn add(&mut self, process: Option<Pid>) {
        self.count += 1;
        self.total += 1;
        self.process = process.map_or(0, |pid| pid.as_raw_nonzero().get());
    }

    /// Passes the number of closed connections, and the process of the last one, to `told`: once a second. Returns the time
    /// until the next call, if there will be one.
    pub fn tell(&mut self, told: impl FnOnce(usize, i32)) -> Option<Duration> {
        const PERIOD: Duration = Duration::from_secs(1);
        if self.count == 0 {
            return None;
        }
        match self.told.map(|told| told.elapsed()) {
            Some(since) if since < PERIOD => Some(PERIOD.saturating_sub(since)),
            _ => {
                told(std::mem::take(&mut self.count), self.process);
                self.told = Some(Instant::now());
                None
            }
        }
    }
}
