//! The keeper's list of sockets and sessions, and the requests that change it. The keeper alone changes it; workers and the
//! next keeper get a copy.

use super::clients::Waits;
use super::{Event, Keeper, Socket, Stage};
use crate::daemon::channel::Keep;
use crate::daemon::outbox::{Letter, Running};
use crate::daemon::request::{Listed, ListedSocket, Listen, Request, Session};
use crate::daemon::sockets::{bind, give};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time in milliseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Keeper {
    /// Answers the operators whose requests have come.
    pub(super) fn serve_clients(&mut self, worker: &mut Running, told: &mut impl FnMut(Event)) {
        let numbers: Vec<u64> = self.clients.all().map(|(number, ..)| number).collect();
        for number in numbers {
            self.clients.work(number);
            while let Some(request) = self.clients.request(number) {
                let answer = match request {
                    Ok(request) => self.handle(number, request, worker, told),
                    Err(error) => Some(Err(error)),
                };
                if let Some(answer) = answer {
                    self.clients.answer(number, &answer);
                }
            }
        }
    }

    /// Handles a request. `None`: the answer comes later.
    fn handle(
        &mut self,
        number: u64,
        request: Request,
        worker: &mut Running,
        told: &mut impl FnMut(Event),
    ) -> Option<Result<Value, String>> {
        Some(match request {
            Request::List => serde_json::to_value(self.listed(worker.process.id(self.adopted_id)))
                .map_err(|error| error.to_string()),
            Request::Add(listen) => match self.add(listen) {
                Ok(socket) => {
                    worker.outbox.push(Letter::Socket(socket));
                    let (sockets, is_reload) = (BTreeSet::from([socket]), false);
                    self.clients.wait(number, Waits::Opens { sockets, is_reload, errors: Vec::new() });
                    return None;
                }
                Err(error) => Err(error),
            },
            Request::Remove { socket } => {
                let found =
                    self.sockets.iter().find(|(_, other)| other.is_open() && other.listen.socket == socket);
                match found.map(|(socket, _)| *socket) {
                    Some(found) => {
                        self.shut(found);
                        self.clients.wait(number, Waits::Sent(Letter::Closes(found), json!({})));
                        return None;
                    }
                    None => Err(format!("{}: the daemon does not listen there", socket.display())),
                }
            }
            Request::Reload { template } => {
                let sockets = self.reload(template.as_deref(), worker);
                if sockets.is_empty() {
                    let name = template.as_deref().unwrap_or("any template");
                    Err(format!("no socket serves {name} in a version that a reload changes"))
                } else {
                    self.clients.wait(number, Waits::Opens { sockets, is_reload: true, errors: Vec::new() });
                    return None;
                }
            }
            Request::Drain => {
                let is_told = self.drains && !self.is_closing() && !worker.outbox.has(Letter::Drains);
                let answer = json!({ "guests": self.kept.len() });
                if !is_told {
                    if !self.drains {
                        self.begin_to_drain(worker, told);
                    }
                    self.clients.wait(number, Waits::Sent(Letter::Drains, answer));
                    return None;
                }
                Ok(answer)
            }
            Request::Yield if self.sockets.values().any(|socket| socket.is_first && socket.is_open()) => {
                Err("this daemon takes further guests: drain it first".into())
            }
            Request::Yield => {
                worker.outbox.push(Letter::Yields);
                Ok(json!({}))
            }
            Request::Checkpoint { .. } | Request::Health => {
                self.clients.wait(number, Waits::Request(request));
                worker.outbox.push(Letter::Request(number));
                return None;
            }
        })
    }

    fn listed(&self, worker: u32) -> Listed {
        let guests = |number: usize| self.kept.values().filter(|kept| kept.socket == number).count();
        let sockets = self.sockets.iter().map(|(number, socket)| ListedSocket {
            socket: socket.listen.socket.clone(),
            template: socket.listen.name().into(),
            version: socket.version.clone(),
            guests: guests(*number),
            is_open: socket.is_open(),
        });
        let time = now();
        let sessions = self.kept.iter().map(|(number, kept)| {
            let listen = self.sockets.get(&kept.socket).map(|socket| &socket.listen);
            let state = match (kept.has_files, kept.waiting) {
                (false, _) => "connects",
                (_, 0) => "runs",
                _ => "waits",
            };
            Session {
                session: *number,
                socket: listen.map(|listen| listen.socket.clone()).unwrap_or_default(),
                template: listen.map(|listen| listen.name().to_owned()).unwrap_or_default(),
                version: kept.version.clone(),
                pid: kept.process.map_or(0, |pid| pid.as_raw_nonzero().get()),
                state: state.into(),
                age: time.saturating_sub(kept.since) as f64 / 1e3,
                waiting: kept.waiting,
                reason: kept.reason.clone().filter(|_| kept.waiting > 0),
            }
        });
        let (sockets, sessions) = (sockets.collect(), sessions.collect());
        Listed { keeper: std::process::id(), worker, drains: self.drains, sockets, sessions }
    }

    /// Notes a socket whose template the worker is to open. It is bound when the template is open.
    fn add(&mut self, listen: Listen) -> Result<usize, String> {
        if self.drains {
            return Err("the daemon drains: it takes no further guest".into());
        }
        if let Some(error) = listen.error() {
            return Err(error);
        }
        let is_taken = |socket: &Socket| {
            (socket.is_open() || socket.stage == Stage::Pending) && socket.listen.socket == listen.socket
        };
        if self.sockets.values().any(is_taken) {
            return Err(format!("{}: the daemon listens there already", listen.socket.display()));
        }
        Ok(self.insert(listen, false))
    }

    /// Inserts a socket that is not open.
    pub(super) fn insert(&mut self, listen: Listen, is_first: bool) -> usize {
        let number = self.next_socket;
        self.sockets.insert(number, Socket::new(listen, is_first));
        self.next_socket += 1;
        number
    }

    /// Binds a socket.
    pub(super) fn open(&mut self, number: usize, replaces: bool) -> io::Result<()> {
        let Some(socket) = self.sockets.get_mut(&number) else { return Ok(()) };
        let listen = &socket.listen;
        let (listener, place) = bind(&listen.socket, replaces)?;
        if let Err(error) = give(&listen.socket, listen.uid, listen.gid, listen.mode) {
            place.remove();
            return Err(error);
        }
        (socket.listener, socket.place, socket.stage) = (Some(listener), Some(place), Stage::Settled);
        Ok(())
    }

    /// Removes a socket's file, so that no further VMM connects. The keeper accepts those that have connected, then closes it.
    pub(super) fn shut(&mut self, number: usize) {
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.shut();
        }
    }

    /// Closes a socket whose queue is empty.
    pub(super) fn close(&mut self, number: usize, worker: &mut Running) {
        let Some(socket) = self.sockets.get_mut(&number) else { return };
        (socket.listener, socket.place, socket.stage) = (None, None, Stage::Settled);
        worker.outbox.push(Letter::Closes(number));
        self.forget(number, worker);
        if self.drains && !self.is_closing() {
            worker.outbox.push(Letter::Drains);
        }
    }

    /// Returns the sockets whose queues are being accepted before they close.
    pub(super) fn closing(&self) -> Vec<usize> {
        let closes = |(number, socket): (&usize, &Socket)| (socket.stage == Stage::Closes).then_some(*number);
        self.sockets.iter().filter_map(closes).collect()
    }

    /// Returns whether there is one.
    pub(super) fn is_closing(&self) -> bool {
        self.sockets.values().any(|socket| socket.stage == Stage::Closes)
    }

    /// Removes a closed socket from the list if it has no guest.
    pub(super) fn forget(&mut self, number: usize, worker: &mut Running) {
        let is_needed = |socket: &Socket| socket.listener.is_some() || socket.stage == Stage::Pending;
        if self.sockets.get(&number).is_none_or(is_needed)
            || self.kept.values().any(|kept| kept.socket == number)
        {
            return;
        }
        self.sockets.remove(&number);
        worker.outbox.push(Letter::Forgets(number));
    }

    /// Asks the worker to open the newest versions of this template, or of all. Returns the sockets that get them.
    pub(super) fn reload(&mut self, template: Option<&str>, worker: &mut Running) -> BTreeSet<usize> {
        let changes = |socket: &Socket| {
            let is_it = template.is_none_or(|template| socket.listen.name() == template);
            socket.is_open() && socket.listen.version.is_none() && is_it
        };
        let sockets = self.sockets.iter_mut().filter(|(_, socket)| changes(socket));
        let numbers = sockets.map(|(number, socket)| {
            // Also from the next worker, if this one is killed.
            socket.reloads = true;
            worker.outbox.push(Letter::Reload(*number));
            *number
        });
        numbers.collect()
    }

    /// Notes the version that the worker opened for new guests, or why it did not.
    pub(super) fn opened(&mut self, number: usize, keep: Keep, worker: &mut Running) {
        let Some(socket) = self.sockets.get_mut(&number) else { return };
        let mut error = keep.reason;
        // A session's version does not change.
        socket.version = socket.listen.version.clone().or(keep.version);
        socket.reloads &= !keep.is_reload;
        if socket.stage == Stage::Pending {
            if error.is_none() {
                error = self.open(number, false).err().map(|error| error.to_string());
            }
            if error.is_none() {
                worker.outbox.push(Letter::Socket(number));
                return self.clients.opens(number);
            }
            self.sockets.remove(&number);
            worker.outbox.push(Letter::Forgets(number));
        }
        self.clients.opened(number, keep.is_reload, error.as_deref());
    }

    /// Closes the sockets.
    pub(super) fn begin_to_drain(&mut self, worker: &mut Running, told: &mut impl FnMut(Event)) {
        self.shut_all(told);
        if !self.is_closing() {
            worker.outbox.push(Letter::Drains);
        }
    }

    /// As [`Keeper::begin_to_drain`], between two workers.
    pub(super) fn shut_all(&mut self, told: &mut impl FnMut(Event)) {
        self.drains = true;
        let pending = self
            .sockets
            .iter()
            .filter(|(_, socket)| socket.stage == Stage::Pending)
            .map(|(number, _)| *number);
        for number in pending.collect::<Vec<_>>() {
            self.clients.opened(number, false, Some("the daemon drains: it takes no further guest"));
        }
        self.sockets.values_mut().for_each(Socket::shut);
        told(Event::Drains(self.kept.len()));
    }
}

impl Socket {
    /// Returns whether VMMs can connect.
    pub(super) fn is_open(&self) -> bool {
        self.listener.is_some() && self.stage != Stage::Closes
    }

    fn shut(&mut self) {
        self.stage = if self.listener.is_some() { Stage::Closes } else { Stage::Settled };
        _ = self.place.take().map(|place| place.remove());
    }
}
