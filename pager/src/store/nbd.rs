//! A client of network block devices: far memory, read by offset.
//!
//! It speaks the protocol of the NBD project's `proto.md`: the fixed newstyle handshake, `NBD_OPT_GO`, and simple
//! replies.

use parking_lot::Mutex;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const MAGIC: u64 = 0x4E42_444D_4147_4943;
const HAS_OPTIONS: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY: u64 = 0x0003_E889_0455_65A9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Of the server: the handshake is the fixed one. Of both: no zeroes follow it.
const FIXED: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPTION_GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const IS_READ_ONLY: u16 = 1 << 1;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// Most bytes of a reply to an option.
const MOST_REPLY: u32 = 4096;
/// Most replies to an option.
const MOST_REPLIES: usize = 64;
/// Time limit of a whole call, or of the handshake, in however many pieces the server answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most idle connections. Each concurrent call has a connection of its own.
const MOST_IDLE: usize = 64;

/// An export of a server. Many threads may call it. A broken connection fails its call; the next call gets a new
/// connection.
pub struct Nbd {
    at: Address,
    size: u64,
    is_read_only: bool,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    server: Server,
    export: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Server {
    Tcp(String),
    Unix(String),
}

struct Connection {
    stream: Box<dyn Stream>,
    /// Deadline of the call under way.
    until: Instant,
    cookie: u64,
    /// The server answered the last request by an error, so the connection can be used again.
    is_refused: bool,
}

/// A connection to a server.
pub(crate) trait Stream: Read + Write + Send {
    /// Sets the time limit of a read or write.
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience)).and(self.set_write_timeout(Some(patience)))
    }
}

impl Stream for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience)).and(self.set_write_timeout(Some(patience)))
    }
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

impl Nbd {
    /// Opens the export at `nbd://HOST:PORT/EXPORT`, or at `nbd+unix:///EXPORT?socket=PATH`.
    ///
    /// # Errors
    /// `InvalidInput`: the address is malformed. `InvalidData`: the server does not speak NBD. Or there is no such
    /// server or export.
    pub fn open(address: &str) -> io::Result<Self> {
        let at = parse(address).ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidInput, "no address of an export: write nbd://HOST:PORT/EXPORT")
        })?;
        let (connection, size, flags) = connect(&at)?;
        let (idle, is_read_only) = (Mutex::new(vec![connection]), flags & IS_READ_ONLY != 0);
        Ok(Self { at, size, is_read_only, idle })
    }

    /// Returns the bytes of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `bytes` from an offset.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(bytes.len(), offset)?;
        let length = bytes.len() as u32;
        self.call(|connection| {
            connection.ask(READ, offset, length, &[])?;
            connection.read_exact(bytes)
        })
    }

    /// Writes all of `bytes` at an offset.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check(bytes.len(), offset)?;
        if self.is_read_only {
            return Err(io::Error::new(ErrorKind::ReadOnlyFilesystem, "the export is read-only"));
        }
        self.call(|connection| connection.ask(WRITE, offset, bytes.len() as u32, bytes))
    }

    /// Makes earlier writes survive a crash of the server.
    pub fn flush(&self) -> io::Result<()> {
        self.call(|connection| connection.ask(FLUSH, 0, 0, &[]))
    }

    fn check(&self, length: usize, offset: u64) -> io::Result<()> {
        let fits = offset.checked_add(length as u64).is_some_and(|end| end <= self.size);
        if fits && u32::try_from(length).is_ok() {
            return Ok(());
        }
        let what = format!("{length} bytes at {offset} of an export of {}", self.size);
        Err(io::Error::new(ErrorKind::InvalidInput, what))
    }

    fn call(&self, call: impl FnOnce(&mut Connection) -> io::Result<()>) -> io::Result<()> {
        let idle = self.idle.lock().pop();
        let mut connection = if let Some(connection) = idle {
            connection
        } else {
            let (connection, size, _) = connect(&self.at)?;
            if size != self.size {
                return Err(wrong(format!("the export has {size} bytes now, and had {}", self.size)));
            }
            connection
        };
        connection.until = Instant::now() + PATIENCE;
        let result = call(&mut connection);
        let mut idle = self.idle.lock();
        if result.is_err() && !connection.is_refused {
            // The other connections to that server are normally broken, too.
            idle.clear();
        } else if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
        result
    }
}

impl Connection {
    /// Sends a request, and reads the head of its reply.
    fn ask(&mut self, kind: u16, offset: u64, length: u32, content: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        self.is_refused = false;
        let mut request = Vec::with_capacity(28 + content.len());
        request.extend(REQUEST.to_be_bytes());
        request.extend([0; 2]);
        request.extend(kind.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(content);
        self.write_all(&request)?;
        let [magic, error, high, low] = self.words::<4>()?;
        if magic != REPLY || u64::from(high) << 32 | u64::from(low) != self.cookie {
            return Err(wrong("the server's reply is none to this request"));
        }
        // The protocol uses Linux's error numbers.
        self.is_refused = error != 0;
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error as i32)) }
    }

    /// Returns the stream, limited to the rest of the call's time.
    fn patient(&mut self) -> io::Result<&mut dyn Stream> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "the NBD server takes too long"));
        }
        self.stream.set_patience(left)?;
        Ok(&mut *self.stream)
    }

    fn read_exact(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.patient()?.read(bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(got) => bytes = &mut bytes[got..],
                // If the time is up, the next iteration returns the error.
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.patient()?.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(put) => bytes = &bytes[put..],
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn words<const N: usize>(&mut self) -> io::Result<[u32; N]> {
        let mut words = [[0; 4]; N];
        self.read_exact(words.as_flattened_mut())?;
        Ok(words.map(u32::from_be_bytes))
    }

    fn u16(&mut self) -> io::Result<u16> {
        let mut bytes = [0; 2];
        self.read_exact(&mut bytes)?;
        Ok(u16::from_be_bytes(bytes))
    }

    fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }
}

fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock)
}

pub(crate) fn parse(address: &str) -> Option<Address> {
    if let Some(rest) = address.strip_prefix("nbd+unix:///") {
        let (export, socket) = rest.split_once("?socket=")?;
        return Some(Address { server: Server::Unix(socket.into()), export: export.into() });
    }
    let rest = address.strip_prefix("nbd://")?;
    let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let host = if has_port { host.to_owned() } else { format!("{host}:10809") };
    (!host.starts_with(':')).then(|| Address { server: Server::Tcp(host), export: export.into() })
}

/// Opens a connection. Returns it with the export's size and flags.
fn connect(at: &Address) -> io::Result<(Connection, u64, u16)> {
    match &at.server {
        Server::Tcp(host) => {
            let mut last = io::Error::new(ErrorKind::NotFound, "the server has no address");
            for address in host.to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return shake_hands(Box::new(stream), &at.export);
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
        Server::Unix(path) => shake_hands(Box::new(UnixStream::connect(path)?), &at.export),
    }
}

fn shake_hands(stream: Box<dyn Stream>, export: &str) -> io::Result<(Connection, u64, u16)> {
    let until = Instant::now() + PATIENCE;
    let mut connection = Connection { stream, until, cookie: 0, is_refused: false };
    if connection.u64()? != MAGIC || connection.u64()? != HAS_OPTIONS {
        return Err(wrong("what answers is no NBD server of the newstyle"));
    }
    let flags = connection.u16()?;
    if flags & FIXED == 0 {
        return Err(wrong("the NBD server does not have the fixed handshake"));
    }
    let mut hello = u32::from(flags & (FIXED | NO_ZEROES)).to_be_bytes().to_vec();
    hello.extend(HAS_OPTIONS.to_be_bytes());
    hello.extend(OPTION_GO.to_be_bytes());
    hello.extend((export.len() as u32 + 6).to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.as_bytes());
    hello.extend([0; 2]);
    connection.write_all(&hello)?;
    let mut about = None;
    for _ in 0..MOST_REPLIES {
        let (magic, [option, kind, length]) = (connection.u64()?, connection.words()?);
        if magic != OPTION_REPLY || option != OPTION_GO || length > MOST_REPLY {
            return Err(wrong("the NBD server's reply makes no sense"));
        }
        let mut content = vec![0; length as usize];
        connection.read_exact(&mut content)?;
        match (kind, &content[..]) {
            (ACK, _) => {
                let (size, flags) =
                    about.ok_or_else(|| wrong("the NBD server does not say how large it is"))?;
                return Ok((connection, size, flags));
            }
            (INFO, [kind @ .., _, _, _, _, _, _, _, _, _, _]) if kind == INFO_EXPORT.to_be_bytes() => {
                let size = u64::from_be_bytes(content[2..10].try_into().expect("it has 12 bytes"));
                about = Some((size, u16::from_be_bytes([content[10], content[11]])));
            }
            (INFO, _) => {}
            _ => {
                let said = String::from_utf8_lossy(&content).into_owned();
                return Err(io::Error::new(
                    ErrorKind::NotFound,
                    format!("the NBD server has no export {export:?} for us: {said:?}"),
                ));
            }
        }
    }
    Err(wrong("the NBD server does not come to an end with what it says of the export"))
}

/// Runs the client against a server's bytes: its handshake, then replies to reads.
pub(crate) fn converse(stream: impl Stream + 'static, reads: usize) -> io::Result<()> {
    let (mut connection, size, _) = shake_hands(Box::new(stream), "a")?;
    let mut bytes = [0; 512];
    (0..reads).try_for_each(|read| {
        connection.ask(READ, read as u64 % size.max(1), 512, &[])?;
        connection.read_exact(&mut bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let tcp = |host: &str, export: &str| {
            Some(Address { server: Server::Tcp(host.into()), export: export.into() })
        };
        assert_eq!(parse("nbd://host/a/b"), tcp("host:10809", "a/b"));
        assert_eq!(parse("nbd://[::1]:7"), tcp("[::1]:7", ""));
        let unix = Address { server: Server::Unix("/run/a=b".into()), export: "x".into() };
        assert_eq!(parse("nbd+unix:///x?socket=/run/a=b"), Some(unix));
        assert!(
            ["nbd://", "nbd:///a", "nbd+unix:///a", "http://a"].iter().all(|wrong| parse(wrong).is_none())
        );
    }

    #[test]
    fn a_server_that_does_not_speak_nbd_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("nbd://{}/a", listener.local_addr().unwrap());
        let head = [&MAGIC.to_be_bytes()[..], &HAS_OPTIONS.to_be_bytes(), &3u16.to_be_bytes()].concat();
        let reply = |kind: u32, length: u32| {
            let words = [OPTION_GO, kind, length].map(u32::to_be_bytes).concat();
            [&head[..], &OPTION_REPLY.to_be_bytes(), &words].concat()
        };
        let answers = [
            (b"SSH-2.0-OpenSSH_9.2p1 and more".to_vec(), "no NBD server"),
            ([&head[..16], &[0; 2]].concat(), "fixed handshake"),
            ([&head[..], &[7; 20]].concat(), "makes no sense"),
            (reply(INFO, 1 << 30), "makes no sense"),
            (reply(ACK, 0), "how large"),
            (reply(0x8000_0006, 0), "no export \"a\""),
            (head.clone(), ""),
        ];
        for (answer, what) in answers {
            let server = std::thread::scope(|scope| {
                let serve = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    _ = stream.write_all(&answer);
                });
                let error = Nbd::open(&address).err().expect("it is refused");
                serve.join().unwrap();
                error.to_string()
            });
            assert!(server.contains(what), "{server}, and not {what}");
        }
    }
}
