//! Answers operators' requests: metrics, state, health, and readiness.
//!
//! It serves four paths, one request for each connection, and reads no header. An HTTP server would add ten crates.

use super::channel::REFUSED;
use super::metrics::text;
use super::monitor::{Listening, Monitor};
use super::sockets::{Place, bind};
use rustix::net::Shutdown;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most bytes of a request.
const MOST: usize = 8 << 10;
/// Most clients at a time.
const MOST_CLIENTS: usize = 32;
/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(2);

impl Monitor {
    /// Answers requests of HTTP at an address and port, or at the path of a socket that only this user may connect to:
    ///
    /// | path | answer |
    /// |---|---|
    /// | `/metrics` | Prometheus' text |
    /// | `/state` | a [`Moment`](crate::Moment) as JSON |
    /// | `/health` | status 200 if [`Monitor::is_healthy`], else 503; one line says why |
    /// | `/ready` | the same of [`Monitor::is_ready`] |
    ///
    /// # Errors
    /// `AddrInUse`: another process listens there. Or the address cannot be listened on.
    pub fn listen(&self, at: &str) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{at}: {error}"));
        if at.contains('/') {
            let (socket, place) = bind(Path::new(at), false)?;
            socket.set_nonblocking(false)?;
            let shared = socket.as_fd().try_clone_to_owned()?;
            self.answer_all(shared, Some(place), move || {
                let stream = socket.accept()?.0;
                stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)))?;
                Ok(stream)
            })
        } else {
            if !at.contains(':') {
                let what = "write ADDRESS:PORT, or the path of a socket with a `/`";
                return Err(named(io::Error::new(io::ErrorKind::InvalidInput, what)));
            }
            let socket = TcpListener::bind(at).map_err(named)?;
            let shared = socket.as_fd().try_clone_to_owned()?;
            self.answer_all(shared, None, move || {
                let stream = socket.accept()?.0;
                stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)))?;
                Ok(stream)
            })
        }
    }

    /// Answers the connections that `accept` returns, each in a thread of its own, until [`Monitor::stop_listening`]. So a
    /// client that is slow delays no other, unless there are many.
    fn answer_all<S: Read + Write + Send + 'static>(
        &self,
        socket: OwnedFd,
        place: Option<Place>,
        accept: impl Fn() -> io::Result<S> + Send + 'static,
    ) -> io::Result<()> {
        *self.0.listening.lock() = Some(Listening { socket, place });
        let monitor = self.clone();
        let slots = Arc::new(());
        let answer = move || {
            while monitor.is_listening() {
                match accept() {
                    // Without a slot or a thread it is closed.
                    Ok(stream) if Arc::strong_count(&slots) <= MOST_CLIENTS => {
                        let (monitor, slot) = (monitor.clone(), slots.clone());
                        let answer = move || {
                            _ = monitor.answer(stream);
                            drop(slot);
                        };
                        _ = std::thread::Builder::new().name("answer".into()).spawn(answer);
                    }
                    Ok(_) => {}
                    // For instance, no descriptor is left.
                    Err(_) => std::thread::sleep(REFUSED),
                }
            }
        };
        std::thread::Builder::new().name("monitor".into()).spawn(answer).map(drop)
    }

    /// Frees the address of the metrics, and removes the socket if it has a path.
    pub fn stop_listening(&self) {
        let Some(Listening { socket, place }) = self.0.listening.lock().take() else { return };
        _ = place.map(|place| place.remove());
        // The thread's `accept` returns.
        _ = rustix::net::shutdown(&socket, Shutdown::Both);
    }

    /// Returns whether it listens.
    pub fn is_listening(&self) -> bool {
        self.0.listening.lock().is_some()
    }

    pub(crate) fn answer(&self, mut stream: impl Read + Write) -> io::Result<()> {
        let (mut request, mut part) = (Vec::new(), [0; 1024]);
        let until = Instant::now() + PATIENCE;
        while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MOST {
            let read = stream.read(&mut part)?;
            if read == 0 || Instant::now() > until {
                return Ok(());
            }
            request.extend_from_slice(&part[..read]);
        }
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let checked = |check: super::health::Check, good: &str| match check {
            Ok(()) => ("200 OK", "text/plain", format!("{good}\n")),
            Err(why) => ("503 Service Unavailable", "text/plain", format!("not {good}: {why}\n")),
        };
        let (status, kind, body) = match line {
            line if line.starts_with(b"GET /metrics ") => {
                ("200 OK", "text/plain; version=0.0.4", text(&self.families()))
            }
            line if line.starts_with(b"GET /state ") => {
                ("200 OK", "application/json", serde_json::to_string(&self.moment())?)
            }
            line if line.starts_with(b"GET /health ") => checked(self.is_healthy(), "healthy"),
            line if line.starts_with(b"GET /ready ") => checked(self.is_ready(), "ready"),
            _ => {
                ("404 Not Found", "text/plain", "/metrics, /state, /health and /ready are here\n".to_owned())
            }
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    /// Answers an operator's request for health, in a thread of its own. If no thread can be started, the connection is
    /// closed.
    pub(super) fn answer_health(&self, connection: OwnedFd) {
        let (monitor, connection) = (self.clone(), UnixStream::from(connection));
        let answer = move || {
            let (healthy, ready) = (monitor.is_healthy(), monitor.is_ready());
            let why = healthy.clone().and(ready.clone()).err();
            let answer = serde_json::json!({
                "ok": true, "healthy": healthy.is_ok(), "ready": ready.is_ok(), "why": why,
            });
            _ = connection.set_nonblocking(false).and(connection.set_write_timeout(Some(PATIENCE)));
            _ = (&connection).write_all(format!("{answer}\n").as_bytes());
        };
        _ = std::thread::Builder::new().name("health".into()).spawn(answer);
    }
}
