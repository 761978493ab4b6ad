//! The keeper accepts connections: one at a time, and only when no message waits for the worker. Those that wait are in
//! their sockets, which the worker has, too. So a kill of the keeper loses at most the one connection that it has accepted and
//! not sent.

use super::list::now;
use super::serve::AT_ONCE;
use super::{Event, Keeper, Kept};
use crate::daemon::limits::{self, Limit};
use crate::daemon::outbox::{Letter, Running};
use crate::daemon::peer;
use crate::wire::Foreign;
use rustix::process::Pid;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

impl Keeper {
    /// Accepts the connections of a socket that can be sent. Returns whether none is left.
    pub(super) fn accept(
        &mut self,
        socket: usize,
        worker: &mut Running,
        told: &mut impl FnMut(Event),
    ) -> bool {
        // Not forever, although a process may connect again and again.
        for _ in 0..AT_ONCE {
            if !worker.outbox.is_empty() || !self.is_accepting(socket) {
                return false;
            }
            let connection = match self.next_of(socket) {
                Ok(connection) => connection,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // For instance, no descriptor is left. The connection waits in the socket, and the pause avoids a busy loop.
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(10));
                    return false;
                }
            };
            let process = peer::pid(&connection);
            if let Some(limit) = self.limit(socket, process) {
                self.refuse(connection, process, limit, told);
                continue;
            }
            // From here to its end the guest has this version, whatever happens.
            let version = self.sockets.get(&socket).and_then(|socket| socket.version.clone());
            let kept = Kept { process, ..Kept::new(socket, connection.into(), version, now()) };
            self.kept.insert(self.next, kept);
            worker.outbox.push(Letter::Guest(self.next));
            self.next += 1;
            self.send_all(worker);
        }
        false
    }

    /// Returns the next connection of a socket. `WouldBlock`: there is none.
    fn next_of(&self, socket: usize) -> io::Result<UnixStream> {
        let listener = self.sockets.get(&socket).and_then(|socket| socket.listener.as_ref());
        Ok(listener.ok_or(io::ErrorKind::WouldBlock)?.accept()?.0)
    }

    /// Accepts the connections of the sockets that close, and closes those that have none left, while there is room in the
    /// channel.
    pub(super) fn accept_queues(&mut self, worker: &mut Running, told: &mut impl FnMut(Event)) {
        for number in self.closing() {
            self.send_all(worker);
            if self.is_session_with_guest(number) {
                self.refuse_queue(number, Limit::Socket, told);
                self.close(number, worker);
            } else if self.accept(number, worker, told) {
                self.close(number, worker);
            }
        }
    }

    /// Closes the socket of a session whose guest has begun.
    pub(super) fn end_session(&mut self, number: usize, worker: &mut Running, told: &mut impl FnMut(Event)) {
        let is_session = self.sockets.get(&number).is_some_and(|socket| socket.listen.once);
        if is_session && self.sockets[&number].listener.is_some() {
            self.shut(number);
            self.refuse_queue(number, Limit::Socket, told);
            self.close(number, worker);
        }
    }

    /// Refuses the connections that a daemon leaves in its sockets.
    pub(super) fn refuse_queues(&mut self, told: &mut impl FnMut(Event)) {
        for number in self.closing() {
            self.refuse_queue(number, Limit::Ends, told);
        }
        _ = self.closed.tell_now(|count, process, limit| told(Event::Closes(count, process, limit)));
    }

    fn refuse_queue(&mut self, number: usize, limit: Limit, told: &mut impl FnMut(Event)) {
        while let Ok(connection) = self.next_of(number) {
            let process = peer::pid(&connection);
            self.refuse(connection, process, limit, told);
        }
    }

    fn refuse(
        &mut self,
        connection: UnixStream,
        process: Option<Pid>,
        limit: Limit,
        told: &mut impl FnMut(Event),
    ) {
        drop(Foreign::from(OwnedFd::from(connection)));
        self.closed.add(process, limit);
        _ = self.closed.tell(|count, process, limit| told(Event::Closes(count, process, limit)));
    }

    /// Returns whether the keeper accepts connections on a socket now. A session has one connection.
    pub(super) fn is_accepting(&self, number: usize) -> bool {
        let is_there = self.sockets.get(&number).is_some_and(|socket| socket.listener.is_some());
        is_there && !self.is_session_with_guest(number)
    }

    fn is_session_with_guest(&self, number: usize) -> bool {
        self.sockets.get(&number).is_some_and(|socket| socket.listen.once)
            && self.kept.values().any(|kept| kept.socket == number)
    }

    /// Returns the limit for which one more connection of this process is not kept.
    pub(super) fn limit(&self, socket: usize, process: Option<Pid>) -> Option<Limit> {
        let kept = || self.kept.values().map(|kept| (kept.socket, kept.process));
        let most = self.sockets.get(&socket).and_then(|socket| socket.listen.most).unwrap_or(usize::MAX);
        if kept().filter(|(at, _)| *at == socket).count() >= most {
            return Some(Limit::Socket);
        }
        let open = self.sockets.values().filter(|socket| socket.listener.is_some()).count();
        limits::limit(kept(), open, socket, process, self.most_of_process)
    }
}
