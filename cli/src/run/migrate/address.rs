//! The address of the other process: `HOST:PORT`, or the path of a Unix socket.

use crate::error::Error;
use crate::temporary::Temporary;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A connection without a byte for this long is closed.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// A connection. Reads and writes fail after a minute without a byte.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Address {
    /// Connects, and retries for `patience` where no process listens yet.
    pub fn connect(&self, patience: Duration) -> io::Result<Stream> {
        let end = Instant::now() + patience;
        loop {
            let stream = match self {
                Self::Tcp(address) => TcpStream::connect(address).map(Stream::Tcp),
                Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            };
            match stream {
                Err(error)
                    if [ErrorKind::ConnectionRefused, ErrorKind::NotFound].contains(&error.kind())
                        && Instant::now() < end
                        && !crate::interrupt::asked() =>
                {
                    sleep(Duration::from_millis(20));
                }
                stream => return stream?.patient(),
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
    pub fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Self::Unix(listener, _) => Stream::Unix(listener.accept()?.0),
        };
        stream.patient()
    }
}

impl Stream {
    fn patient(self) -> io::Result<Self> {
        let patience = Some(PATIENCE);
        match &self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)?;
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)?;
            }
        }
        Ok(self)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
