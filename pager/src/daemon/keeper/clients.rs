//! Connections of operators to the control socket. Nothing here waits for them.

use rustix::event::PollFlags;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::daemon::outbox::Letter;
use crate::daemon::request::{MOST_REQUEST, Request};

/// Most connections. If one more comes, the oldest one is closed.
const MOST: usize = 16;

/// The connections, by number.
#[derive(Debug, Default)]
pub struct Clients {
    clients: BTreeMap<u64, Client>,
    next: u64,
}

#[derive(Debug)]
pub struct Client {
    pub connection: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    pub waits: Waits,
    /// The other end sends nothing more.
    is_done: bool,
}

/// An answer that an operator waits for.
#[derive(Debug, Default)]
pub enum Waits {
    #[default]
    Nothing,
    /// These sockets' templates are opened, or their newest versions. With the errors so far.
    Opens { sockets: BTreeSet<usize>, is_reload: bool, errors: Vec<String> },
    /// This answer comes when this message is sent to the worker: a kill of the keeper does not undo what an operator was
    /// told.
    Sent(Letter, Value),
    /// The request will be passed to the worker.
    Request(Request),
}

impl Clients {
    /// Accepts a connection.
    pub fn accept(&mut self, socket: &UnixListener) {
        let Ok((connection, _)) = socket.accept() else { return };
        if connection.set_nonblocking(true).is_err() {
            return;
        }
        if self.clients.len() >= MOST {
            self.clients.pop_first();
        }
        let (input, output) = (Vec::new(), Vec::new());
        let client = Client { connection, input, output, waits: Waits::Nothing, is_done: false };
        self.clients.insert(self.next, client);
        self.next += 1;
    }

    /// Returns the connections, and the events that they need.
    pub fn all(&self) -> impl Iterator<Item = (u64, &UnixStream, PollFlags)> {
        self.clients.iter().map(|(number, client)| {
            let flags = match (&client.waits, client.output.is_empty()) {
                (_, false) => PollFlags::OUT,
                (Waits::Nothing, true) if !client.is_done => PollFlags::IN,
                _ => PollFlags::empty(),
            };
            (*number, &client.connection, flags)
        })
    }

    pub fn get(&self, number: u64) -> Option<&Client> {
        self.clients.get(&number)
    }

    /// Removes a connection, which another process answers from now on.
    pub fn remove(&mut self, number: u64) {
        self.clients.remove(&number);
    }

    /// Reads and writes what is possible. Closes a connection that is over.
    pub fn work(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if client.flush().and_then(|()| client.read()).is_err() || client.is_over() {
            self.clients.remove(&number);
        }
    }

    /// Takes the next request of a connection. `Err`: it is not understood.
    pub fn request(&mut self, number: u64) -> Option<Result<Request, String>> {
        let client = self.clients.get_mut(&number)?;
        if !client.output.is_empty() || !matches!(client.waits, Waits::Nothing) {
            return None;
        }
        let Some(end) = client.input.iter().position(|byte| *byte == b'\n') else {
            if client.input.len() <= MOST_REQUEST {
                return None;
            }
            client.input.clear();
            client.is_done = true;
            return Some(Err(format!("a request has at most {MOST_REQUEST} bytes")));
        };
        let line: Vec<u8> = client.input.drain(..=end).collect();
        Some(serde_json::from_slice(&line).map_err(|error| format!("the request is not understood: {error}")))
    }

    /// Answers a connection.
    pub fn answer(&mut self, number: u64, answer: &Result<Value, String>) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.waits = Waits::Nothing;
        client.output.extend(line(answer).bytes());
        self.work(number);
    }

    /// Makes a connection wait.
    pub fn wait(&mut self, number: u64, waits: Waits) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.waits = waits;
        }
    }

    /// Answers those that waited for a message that is sent now. Returns whether there were any.
    pub fn sent(&mut self, is_sent: impl Fn(Letter) -> bool) -> bool {
        let answers = self.clients.iter().filter_map(|(number, client)| match &client.waits {
            Waits::Sent(letter, answer) if is_sent(*letter) => Some((*number, answer.clone())),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        let any = !answers.is_empty();
        for (number, answer) in answers {
            self.answer(number, &Ok(answer));
        }
        any
    }

    /// Notes that an added socket is open. The worker must be sent it before the operator is answered.
    pub fn opens(&mut self, socket: usize) {
        for client in self.clients.values_mut() {
            let Waits::Opens { sockets, is_reload: false, .. } = &client.waits else { continue };
            if sockets.contains(&socket) {
                client.waits = Waits::Sent(Letter::Socket(socket), json!({}));
            }
        }
    }

    /// Notes that a socket's template, or its newest version, was opened, or why it was not. Answers those that waited.
    pub fn opened(&mut self, socket: usize, reload: bool, error: Option<&str>) {
        let mut answers = Vec::new();
        for (number, client) in &mut self.clients {
            let Waits::Opens { sockets, is_reload, errors } = &mut client.waits else { continue };
            if *is_reload == reload && sockets.remove(&socket) {
                errors.extend(error.map(str::to_owned));
                if sockets.is_empty() {
                    let text = errors.join("; ");
                    answers.push((*number, if text.is_empty() { Ok(json!({})) } else { Err(text) }));
                }
            }
        }
        for (number, answer) in answers {
            self.answer(number, &answer);
        }
    }
}

impl Client {
    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.connection.write(&self.output) {
                Ok(sent) => _ = self.output.drain(..sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads at most a little more than a request, so that no connection needs much memory.
    fn read(&mut self) -> io::Result<()> {
        let mut part = [0; 1024];
        while self.output.is_empty() && !self.is_done && self.input.len() <= MOST_REQUEST {
            match self.connection.read(&mut part) {
                Ok(0) => self.is_done = true,
                Ok(got) => self.input.extend_from_slice(&part[..got]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let has_request = self.input.contains(&b'\n');
        self.is_done && self.output.is_empty() && !has_request && matches!(self.waits, Waits::Nothing)
    }
}

fn line(answer: &Result<Value, String>) -> String {
    match answer {
        Ok(answer) => {
            let mut answer = answer.clone();
            answer["ok"] = true.into();
            format!("{answer}\n")
        }
        Err(error) => format!("{}\n", json!({ "error": error })),
    }
}
