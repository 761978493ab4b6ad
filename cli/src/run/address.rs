//! The address of the other process: `HOST:PORT`, or the path of a Unix socket.

use crate::error::Error;
use crate::migration::{patient, patient_tcp};
use crate::temporary::Temporary;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// A value that contains `/` is a path.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        match port {
            _ if text.contains('/') => Ok(Self::Unix(text.into())),
            Some((host, _)) if !host.is_empty() => Ok(Self::Tcp(text.into())),
            _ => Err("an address is HOST:PORT, or the path of a Unix socket, with a `/`"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connection.
pub trait Stream: Read + Write {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Address {
    /// Connects, and retries for `patience` where no process listens yet.
    pub fn connect(&self, patience: Duration) -> io::Result<Box<dyn Stream>> {
        let end = Instant::now() + patience;
        loop {
            let stream = match self {
                Self::Tcp(address) => TcpStream::connect(address).and_then(tcp),
                Self::Unix(path) => UnixStream::connect(path).and_then(unix),
            };
            match stream {
                Err(error)
                    if [ErrorKind::ConnectionRefused, ErrorKind::NotFound].contains(&error.kind())
                        && Instant::now() < end
                        && !crate::interrupt::asked() =>
                {
                    sleep(Duration::from_millis(20));
                }
                stream => return stream,
            }
        }
    }

    /// Listens at the address.
    pub fn listen(&self) -> Result<Listener, Error> {
        let failed = |error: io::Error| Error::Usage(format!("--migrate-from {self}: {error}"));
        match self {
            Self::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).map_err(failed)?)),
            Self::Unix(path) => {
                let listener = UnixListener::bind(path).map_err(failed)?;
                Ok(Listener::Unix(listener, Temporary::at(path).map_err(failed)?))
            }
        }
    }
}

/// A listening socket. The file of a Unix socket is removed on drop.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, #[allow(dead_code, reason = "the path is removed when it is dropped")] Temporary),
}

impl Listener {
    /// Waits for the next connection.
    pub fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => tcp(listener.accept()?.0),
            Self::Unix(listener, _) => unix(listener.accept()?.0),
        }
    }
}

fn tcp(stream: TcpStream) -> io::Result<Box<dyn Stream>> {
    Ok(Box::new(patient_tcp(stream)?))
}

fn unix(stream: UnixStream) -> io::Result<Box<dyn Stream>> {
    Ok(Box::new(patient(stream)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_or_is_a_path() {
        assert_eq!("localhost:7000".parse(), Ok(Address::Tcp("localhost:7000".into())));
        assert_eq!("[::1]:7000".parse(), Ok(Address::Tcp("[::1]:7000".into())));
        assert_eq!("./guest".parse(), Ok(Address::Unix("./guest".into())));
        for text in ["", "guest", ":7000", "localhost:", "localhost:70000", "localhost:port"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
