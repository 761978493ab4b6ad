//! The protocol of the control socket: lines of JSON. A request is one line, and its answer is one line, with `"ok":true` or
//! with `"error"`. A checkpoint has two answers, and is the last request of its connection.
//!
//! ```text
//! {"do":"list"}                                        {"ok":true,"keeper":7,"worker":8,"sockets":[…],"sessions":[…]}
//! {"do":"add","socket":"/run/a","template":"debian"}   {"ok":true}
//! {"do":"remove","socket":"/run/a"}                    {"ok":true}
//! {"do":"reload"}                                      {"ok":true}
//! {"do":"drain"}                                       {"ok":true,"guests":3}
//! {"do":"health"}                                      {"ok":true,"healthy":true,"ready":false,"why":"…"}
//! {"do":"checkpoint","pid":4711,"name":"debian.3"}     {"ok":true,"instant":{"pages":9}}  {"ok":true,"stored":{…}}
//! ```

use crate::guest::Stored;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most bytes of a request.
pub(crate) const MOST_REQUEST: usize = 4096;

/// A request of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Request {
    /// Returns the sockets and the sessions: [`Listed`].
    List,
    /// Listens on a further socket. The answer comes when its template is open.
    Add(Listen),
    /// Closes a socket and removes it. Its guests are served until they end.
    Remove {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// Gives new guests the newest version of this template, or of all templates.
    Reload {
        /// Name of the template, or path of the image.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template: Option<String>,
    },
    /// Takes no further guest. The daemon ends with its last guest.
    Drain,
    /// Gives the address of the metrics to another daemon. Refused by a daemon that takes further guests.
    Yield,
    /// Returns whether the daemon is healthy and ready: `healthy`, `ready`, and `why` not.
    Health,
    /// Makes a snapshot of a running guest.
    Checkpoint {
        /// The VMM's process.
        pid: i32,
        /// Name of the snapshot's template.
        name: String,
    },
}

/// A socket on which guests connect, and what they get. With `once` it is a session: it serves one guest, and is removed
/// when the guest begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Listen {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Name of the template in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The memory image, if there is no template: a path, or the address of an NBD server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The exact version of the template. A reload does not change it. `None`: the newest version, until a reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The socket serves one guest.
    #[serde(default)]
    pub once: bool,
    /// Most guests at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
    /// Owner of the socket's file. `None`: the daemon's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group of the socket's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Permissions of the socket's file. `None`: 0o600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

impl Listen {
    /// Serves a template of the store.
    pub fn template(socket: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self { socket: socket.into(), template: Some(name.into()), ..Self::default() }
    }

    /// Serves a memory image.
    pub fn image(socket: impl Into<PathBuf>, image: impl Into<String>) -> Self {
        Self { socket: socket.into(), image: Some(image.into()), ..Self::default() }
    }

    /// Returns the name of the template, or the image.
    pub fn name(&self) -> &str {
        self.template.as_deref().or(self.image.as_deref()).unwrap_or_default()
    }

    /// Returns why a daemon does not accept it.
    pub(crate) fn error(&self) -> Option<String> {
        let shown = self.socket.display();
        if self.template.is_some() == self.image.is_some() {
            return Some(format!("{shown}: name either a template or an image"));
        }
        if self.version.is_some() && self.image.is_some() {
            return Some(format!("{shown}: an image has no versions"));
        }
        if self.mode.is_some_and(|mode| mode & !0o777 != 0) {
            return Some(format!("{shown}: the mode has other bits than 0o777"));
        }
        if self.most == Some(0) {
            return Some(format!("{shown}: a socket for 0 guests serves none: 1 at least"));
        }
        if !self.socket.is_absolute() {
            return Some(format!("{shown}: write the path from the root, with a leading /"));
        }
        None
    }
}

/// State of a daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Listed {
    /// The keeper's process.
    pub keeper: u32,
    /// The worker's process. 0: there is none at the moment.
    pub worker: u32,
    /// The daemon takes no further guest.
    pub drains: bool,
    /// The sockets, with those that are closed and still have guests.
    pub sockets: Vec<ListedSocket>,
    /// The connected guests.
    pub sessions: Vec<Session>,
}

/// State of a socket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedSocket {
    /// Its path.
    pub socket: PathBuf,
    /// Name of its template, or its image.
    pub template: String,
    /// The version that new guests get. `None`: the template is not open.
    pub version: Option<String>,
    /// Number of its guests.
    pub guests: usize,
    /// VMMs can connect.
    pub is_open: bool,
}

/// A guest: one restore.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Session {
    /// Its number.
    pub session: u64,
    /// Path of its socket.
    pub socket: PathBuf,
    /// Name of its template, or its image.
    pub template: String,
    /// The version of its template.
    pub version: Option<String>,
    /// Process of its VMM. 0: unknown.
    pub pid: i32,
    /// `connects` until its handshake is accepted, then `runs`, or `waits` while a fault waits.
    pub state: String,
    /// Seconds since it connected.
    pub age: f64,
    /// Faults that wait for the store or for memory.
    pub waiting: u64,
    /// The reason of one of them.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn connected(socket: &Path, request: &Request, patience: Option<Duration>) -> io::Result<UnixStream> {
    let connection = UnixStream::connect(socket)?;
    connection.set_read_timeout(patience)?;
    connection.set_write_timeout(patience)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&connection).write_all(&line)?;
    Ok(connection)
}

/// Reads an answer. `Err`: the daemon's error, or that of the connection.
fn answer(reader: &mut impl BufRead) -> io::Result<serde_json::Value> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the pager ended: ask the next one"));
    }
    let answer: serde_json::Value = serde_json::from_str(&line)?;
    match answer["error"].as_str() {
        Some(error) => Err(io::Error::other(error)),
        None => Ok(answer),
    }
}

/// Sends a request to the daemon at a control socket, and returns its answer. Without `patience` it waits as long as the
/// daemon does.
///
/// # Errors
/// The daemon's error, or that of the connection.
pub fn ask(socket: &Path, request: &Request, patience: Option<Duration>) -> io::Result<serde_json::Value> {
    answer(&mut BufReader::new(connected(socket, request, patience)?))
}

/// Asks a daemon for its sockets and sessions.
///
/// # Errors
/// As of [`ask`].
pub fn list(socket: &Path) -> io::Result<Listed> {
    Ok(serde_json::from_value(ask(socket, &Request::List, Some(Duration::from_secs(2)))?)?)
}

/// Asks for a snapshot of a guest, of the daemon that serves it: of those at a control path, which [`daemons`] lists.
/// Calls `instant` with the number of pages when the guest may run on.
///
/// # Errors
/// The daemon's error, or that of the connection.
pub fn checkpoint(control: &Path, pid: i32, name: &str, instant: impl FnOnce(usize)) -> io::Result<Stored> {
    // A daemon that drains, or whose keeper was killed, has guests that the last one does not know.
    let serves = |socket: &PathBuf| {
        list(socket).is_ok_and(|listed| listed.sessions.iter().any(|session| session.pid == pid))
    };
    let socket = daemons(control).into_iter().find(serves);
    let request = Request::Checkpoint { pid, name: name.into() };
    let connection = connected(socket.as_deref().unwrap_or(control), &request, None)?;
    let mut reader = BufReader::new(&connection);
    let first = answer(&mut reader)?;
    instant(first["instant"]["pages"].as_u64().unwrap_or(0) as usize);
    Ok(serde_json::from_value(answer(&mut reader)?["stored"].take())?)
}

/// Returns the control sockets of the daemons at this path: each has one at `PATH.N`, N a number, and the daemon that
/// started last has `PATH`, too.
pub fn daemons(control: &Path) -> Vec<PathBuf> {
    let (Some(name), Some(folder)) = (control.file_name(), control.parent()) else { return Vec::new() };
    let folder = if folder == Path::new("") { Path::new(".") } else { folder };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = format!("{}.", name.to_string_lossy());
    let is_one = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()?.strip_prefix(&prefix)).is_some_and(is_number)
    };
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(is_one)
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented_and_unknown_fields_of_a_socket_are_refused() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        let add = parse(r#"{"do":"add","socket":"/run/a","template":"debian","once":true}"#).unwrap();
        let expected = Listen { once: true, ..Listen::template("/run/a", "debian") };
        assert_eq!(add, Request::Add(expected));
        assert_eq!(parse(r#"{"do":"reload"}"#).unwrap(), Request::Reload { template: None });
        for request in [Request::List, Request::Drain, Request::Health, add] {
            assert_eq!(parse(&serde_json::to_string(&request).unwrap()).unwrap(), request);
        }
        assert!(parse(r#"{"do":"add","socket":"/run/a","tmplate":"debian"}"#).is_err());
        assert!(parse(r#"{"do":"other"}"#).is_err() && parse("{}").is_err());
        let error = |listen: Listen| listen.error().unwrap_or_default();
        assert_eq!(error(Listen::template("/a", "b")), "");
        assert!(error(Listen::default()).contains("either a template or an image"));
        assert!(
            error(Listen { version: Some("1".into()), ..Listen::image("/a", "b") }).contains("no versions")
        );
        assert!(error(Listen { mode: Some(0o4600), ..Listen::image("/a", "b") }).contains("0o777"));
        assert!(error(Listen { most: Some(0), ..Listen::image("/a", "b") }).contains("1 at least"));
    }
}
