//! A keeper runs its workers, one after the other.
//!
//! It waits for nothing but `poll`, which always watches for the requests to end: not for room in the worker's channel,
//! not for the end of a worker that is stuck. The worker may wait for the keeper, and so the two never wait for each
//! other.

use super::clients::Waits;
use super::{Event, Keeper};
use crate::daemon::channel::{Channel, Counts, Keep, REFUSED, Take, TakeKind, is_temporary};
use crate::daemon::outbox::{Letter, Outbox, Process, Running, second_signal};
use crate::daemon::request::Request;
use crate::daemon::sockets::Place;
use crate::wire::Foreign;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Most connections, and most messages of the worker, that are taken before the keeper looks around again.
pub(super) const AT_ONCE: usize = 64;
/// Time in which a worker without guests ends before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

impl Keeper {
    /// Runs the worker again and again until the daemon has drained. The worker's standard input is its end of the
    /// channel.
    ///
    /// A worker that ends is restarted after a pause, which doubles while workers end within 10 seconds: up to a second,
    /// or up to 8 seconds if they end before they serve.
    ///
    /// # Errors
    /// The first worker exits by itself before it serves, because its arguments are wrong or the store is out of reach,
    /// and has printed why. Later workers are restarted. Or the keeper was asked to end at once.
    pub fn run(mut self, command: impl Fn() -> Command, mut told: impl FnMut(Event)) -> io::Result<()> {
        if self.taken_over > 0 {
            told(Event::TakesOver(self.taken_over));
        }
        let mut quick = 0;
        loop {
            let began = Instant::now();
            let (mut status, mut is_ready) = (None, false);
            match self.next_worker(&command) {
                Ok(mut worker) => {
                    status = Some(self.serve(&mut worker, &mut told)?);
                    is_ready = worker.is_ready;
                }
                // For instance, the program is being replaced, or there is no memory.
                Err(_) if self.was_ready => {}
                Err(error) => return Err(error),
            }
            if self.drains && self.kept.is_empty() {
                self.refuse_queues(&mut told);
                return Ok(());
            }
            if !self.was_ready
                && let Some(status) = status
                && status.code().is_some_and(|code| code != 0)
            {
                return Err(io::Error::other(format!("the worker ended: {status}")));
            }
            // A worker that ends quickly is not restarted forever at once. Connections wait in the sockets.
            quick = if began.elapsed() > Duration::from_secs(10) { 0 } else { quick + 1 };
            let pause = Duration::from_millis(1 << quick.min(if is_ready { 10 } else { 13 }));
            self.restarts += 1;
            told(Event::Restarts(status, pause));
            self.pause(pause, &mut told)?;
            if self.drains && self.kept.is_empty() {
                self.refuse_queues(&mut told);
                return Ok(());
            }
        }
    }

    /// Waits between two workers.
    fn pause(&mut self, pause: Duration, told: &mut impl FnMut(Event)) -> io::Result<()> {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let (drain, leave) = (self.drain.as_ref().filter(|_| !self.drains), self.leave.as_ref());
            let mut fds: Vec<_> =
                leave.iter().chain(drain.iter()).map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
            _ = poll(&mut fds, Some(&timespec(left)));
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            if leave.is_some() && ready.next() == Some(true) {
                return Err(second_signal());
            }
            if ready.next() == Some(true) {
                self.shut_all(told);
                return Ok(());
            }
        }
    }

    /// Returns the worker that started this keeper, or starts one.
    pub(super) fn next_worker(&mut self, command: &impl Fn() -> Command) -> io::Result<Running> {
        let mut outbox = Outbox::default();
        if let Some((channel, process)) = self.adopted.take() {
            return Ok(Running { channel, process: Process::Other(process), outbox, is_ready: true });
        }
        let (channel, theirs) = Channel::pair()?;
        let mut command = command();
        let child = command.stdin(theirs).spawn()?;
        // The command holds the worker's end, which must close when the worker ends.
        drop(command);
        self.sockets.keys().for_each(|number| outbox.push(Letter::Socket(*number)));
        if !self.is_supervised && self.control.is_some() {
            outbox.push(Letter::Control);
        }
        if self.drains && !self.is_closing() {
            outbox.push(Letter::Drains);
        }
        self.kept.keys().for_each(|connection| outbox.push(Letter::Guest(*connection)));
        outbox.push(Letter::Counts);
        outbox.push(Letter::All);
        // No process has what an operator wanted to be closed.
        let sockets = &self.sockets;
        self.clients.sent(|letter| match letter {
            Letter::Closes(number) => sockets.get(&number).is_none_or(|socket| socket.listener.is_none()),
            _ => false,
        });
        // Reloads that the last worker has not done.
        let reloads = self.sockets.iter().filter(|(_, socket)| socket.reloads);
        reloads.for_each(|(number, _)| outbox.push(Letter::Reload(*number)));
        let asks = self.clients.all().filter(|(number, ..)| self.request_of(*number).is_some());
        asks.for_each(|(number, ..)| outbox.push(Letter::Request(number)));
        Ok(Running { channel, process: Process::mine(child), outbox, is_ready: false })
    }

    /// Serves one worker until it ends.
    fn serve(&mut self, worker: &mut Running, told: &mut impl FnMut(Event)) -> io::Result<ExitStatus> {
        let mut kill_at: Option<Instant> = None;
        loop {
            // First: a request to drain may come from an operator who has gone since, and then nothing else wakes the keeper.
            self.serve_clients(worker, told);
            self.accept_queues(worker, told);
            let is_last = self.kept.is_empty() && !(worker.is_ready && self.is_closing());
            if self.drains && is_last && kill_at.is_none() {
                // Otherwise the worker would wait. One that does not serve yet may wait for its store, or for an image,
                // for ever, and has nothing to lose.
                if worker.is_ready {
                    worker.outbox.push(Letter::Leaves);
                } else {
                    worker.process.kill();
                }
                kill_at = Some(Instant::now() + PATIENCE);
            }
            if self.send_all(worker) {
                // An operator who was answered may have sent the next request already.
                continue;
            }
            let channel = &worker.channel;
            let room = if worker.outbox.waits_for_room() { PollFlags::OUT } else { PollFlags::empty() };
            let mut fds = vec![PollFd::new(channel, PollFlags::IN | room)];
            let never = || PollFd::new(channel, PollFlags::empty());
            let drain = self.drain.as_ref().filter(|_| !self.drains);
            for fd in [drain, self.leave.as_ref(), self.reload.as_ref()] {
                fds.push(fd.map_or_else(never, |fd| PollFd::new(fd, PollFlags::IN)));
            }
            let control = self.control.as_ref();
            fds.push(control.map_or_else(never, |control| PollFd::new(&control.listener, PollFlags::IN)));
            let clients = self.clients.all();
            fds.extend(clients.map(|(_, connection, flags)| PollFd::new(connection, flags)));
            let sockets_at = fds.len();
            let accepts = |number: &usize| worker.outbox.is_empty() && self.is_accepting(*number);
            let accepting: Vec<usize> = self.sockets.keys().copied().filter(accepts).collect();
            let listeners = accepting.iter().filter_map(|number| self.sockets[number].listener.as_ref());
            fds.extend(listeners.map(|listener| PollFd::new(listener, PollFlags::IN)));
            let left = kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.or(worker.outbox.is_refused().then_some(REFUSED));
            let next = self.closed.tell(|count, process, limit| told(Event::Closes(count, process, limit)));
            if std::mem::take(&mut self.closed.is_new) {
                worker.outbox.push(Letter::Counts);
                continue;
            }
            let left = left.or(next).map(timespec);
            if poll(&mut fds, left.as_ref()).is_err() {
                continue;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            // The worker's messages come first: those sent before a kill count.
            if ready[0] && !self.hear(worker, told) {
                return worker.process.end(self.leave.as_ref().map(AsFd::as_fd));
            }
            if ready[2] && self.leave.is_some() {
                return Err(self.leave(worker));
            }
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                worker.process.kill();
                kill_at = Some(Instant::now() + PATIENCE);
            }
            if ready[1] && self.drain.is_some() && !self.drains {
                self.begin_to_drain(worker, told);
                continue;
            }
            if ready[3] && self.has_to_reload() {
                self.reload(None, worker);
            }
            if ready[4]
                && let Some(control) = &self.control
            {
                self.clients.accept(&control.listener);
            }
            for (socket, _) in accepting.iter().zip(&ready[sockets_at..]).filter(|(_, ready)| **ready) {
                self.accept(*socket, worker, told);
            }
        }
    }

    /// Takes the requests to reload. Returns whether there are any.
    fn has_to_reload(&mut self) -> bool {
        let Some(signal) = &self.reload else { return false };
        match rustix::io::read(signal, &mut [0; 64]) {
            Ok(got) if got > 0 => true,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => false,
            // It is closed.
            _ => {
                self.reload = None;
                false
            }
        }
    }

    /// Sends the waiting messages for which there is room. The connection of an operator's request belongs to the worker
    /// then. Returns whether an operator was answered.
    pub(super) fn send_all(&mut self, worker: &mut Running) -> bool {
        let mut sent = Vec::new();
        worker.outbox.send(|letter| {
            self.send(&worker.channel, letter)?;
            sent.push(letter);
            Ok(())
        });
        let mut answers = false;
        for letter in sent {
            match letter {
                Letter::Request(number) => self.clients.remove(number),
                _ => answers |= self.clients.sent(|other| other == letter),
            }
        }
        answers
    }

    /// Returns the request that is to be passed on for an operator.
    fn request_of(&self, number: u64) -> Option<(&UnixStream, &Request)> {
        let client = self.clients.get(number)?;
        if let Waits::Request(request) = &client.waits { Some((&client.connection, request)) } else { None }
    }

    /// Ends at once, and returns the reason. The worker starts no other keeper.
    fn leave(&self, worker: &mut Running) -> io::Error {
        let until = Instant::now() + Duration::from_secs(1);
        if !worker.is_ready && !self.kept.values().any(|kept| kept.has_files) {
            // It serves no guest, and may wait for its store for ever.
            worker.process.kill();
            return second_signal();
        }
        while let Err(error) = self.send(&worker.channel, Letter::Leaves) {
            let may_pass = error.kind() == io::ErrorKind::WouldBlock || is_temporary(&error);
            if !may_pass || Instant::now() > until {
                break;
            }
            // It may wait for room, too.
            while matches!(worker.channel.receive::<Keep>(false), Ok(Some(_))) {}
            _ = poll(&mut [PollFd::new(&worker.channel, PollFlags::OUT)], Some(&timespec(REFUSED)));
        }
        second_signal()
    }

    /// Sends a message to the worker, without waiting for room.
    fn send(&self, channel: &Channel, letter: Letter) -> io::Result<()> {
        let (mut take, mut fds) = (Take::default(), Vec::new());
        match letter {
            Letter::Socket(number) => {
                // It may have been removed meanwhile.
                let Some(socket) = self.sockets.get(&number) else { return Ok(()) };
                (take.what, take.socket, take.is_first) = (TakeKind::Socket, number, socket.is_first);
                take.is_open = socket.is_open();
                take.request = Some(Request::Add(socket.listen.clone()));
                take.version.clone_from(&socket.version);
                take.place = socket.place.as_ref().and_then(Place::identity);
                // The keeper that systemd starts gets the sockets of the command line.
                let is_shared = !(self.is_supervised && socket.is_first);
                fds.extend(socket.listener.iter().filter(|_| is_shared).map(AsFd::as_fd));
            }
            Letter::Closes(number) => (take.what, take.socket) = (TakeKind::Closes, number),
            Letter::Forgets(number) => (take.what, take.socket) = (TakeKind::Forgets, number),
            Letter::Control => {
                let Some(control) = &self.control else { return Ok(()) };
                (take.what, take.connection) = (TakeKind::Control, control.number);
                fds.push(control.listener.as_fd());
            }
            Letter::Request(number) => {
                let Some((connection, request)) = self.request_of(number) else { return Ok(()) };
                (take.what, take.request) = (TakeKind::Request, Some(request.clone()));
                fds.push(connection.as_fd());
            }
            Letter::Yields => take.what = TakeKind::Yields,
            Letter::Guest(connection) => {
                let Some(kept) = self.kept.get(&connection) else { return Ok(()) };
                take = Take {
                    connection,
                    socket: kept.socket,
                    version: kept.version.clone(),
                    since: kept.since,
                    has_files: kept.has_files,
                    ..take
                };
                fds.push(kept.connection.as_fd());
                fds.extend(kept.files.iter().map(AsFd::as_fd));
            }
            Letter::Reload(number) => (take.what, take.socket) = (TakeKind::Reload, number),
            Letter::All => (take.what, take.is_first) = (TakeKind::All, !self.was_ready),
            Letter::Counts => {
                let (restarts, closed, drains) = (self.restarts, self.closed.total, self.drains);
                (take.what, take.counts) = (TakeKind::Counts, Some(Counts { restarts, closed, drains }));
            }
            Letter::Drains => take.what = TakeKind::Drains,
            Letter::Leaves => take.what = TakeKind::Leaves,
        }
        channel.try_send(&take, &fds)
    }

    /// Reads the worker's messages. Returns whether the worker lives.
    fn hear(&mut self, worker: &mut Running, told: &mut impl FnMut(Event)) -> bool {
        for _ in 0..AT_ONCE {
            match worker.channel.receive::<Keep>(false) {
                Ok(Some((keep, _))) if keep.is_ready => {
                    (self.was_ready, worker.is_ready) = (true, true);
                    told(Event::Ready);
                }
                Ok(Some((keep, _))) if keep.opened.is_some() => {
                    self.opened(keep.opened.unwrap_or_default(), keep, worker);
                }
                Ok(Some((keep, _))) if keep.waiting.is_some() => {
                    if let Some(kept) = self.kept.get_mut(&keep.connection) {
                        (kept.waiting, kept.reason) = (keep.waiting.unwrap_or_default(), keep.reason);
                    }
                }
                Ok(Some((keep, files))) if keep.has_files => {
                    if let Some(kept) = self.kept.get_mut(&keep.connection) {
                        // Without a descriptor to spare, the files of a guest do not arrive.
                        (kept.files, kept.has_files, kept.version) = (files, true, keep.version);
                        let socket = kept.socket;
                        self.end_session(socket, worker, told);
                    }
                }
                Ok(Some((keep, _))) => {
                    if let Some(kept) = self.kept.remove(&keep.connection) {
                        self.forget(kept.socket, worker);
                        // It may hold descriptors of the VMM, which the kernel closes with it.
                        drop(Foreign::from(kept.connection));
                    }
                }
                Ok(None) => return false,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}
