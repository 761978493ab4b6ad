//! `--serve PATH`: the running guest on a Unix socket. Clients read samples; with `--lru-gen PATH` they also read and
//! change the generations of its pages.
//!
//! ```console
//! $ slat run --limit 64M --swap mem --lru-gen /run/guest &
//! $ socat - UNIX-CONNECT:/run/guest
//! read                                  the format of /sys/kernel/debug/lru_gen
//! memcg     1 /guest
//!  node     0
//!           2        812       5120          0
//!           3        402        311          0
//! ok
//! + 1 0 3                               a command of that file; commas or semicolons separate commands
//! ok
//! - 1 0 9
//! error EINVAL: no such generation, or one of the youngest
//! stats                                 one line with the figures of `slat top` ([`Sample`])
//! {"watch":1,"ended":false,"at_ms":5120,…
//! ok
//! watch 500                             the same now and every 500 ms, until the run ends or `watch 0`
//! {"watch":1,"ended":false,"at_ms":5130,…
//! ```
//! **The protocol.** A client sends lines. Each line gets an answer whose last line is `ok`, or `error` with the name
//! of an errno and the reason. The other commands are `enabled [MASK]` and `min_ttl_ms [MS]`, which read or write the
//! files of that name in `/sys/kernel/mm/lru_gen/`. Empty lines get no answer. Several clients may be connected. A
//! client that watches may send other commands meanwhile; lines that begin with `{` are samples, not answers. When
//! the run ends, each watching client gets a last line in which `ended` is true.
//!
//! **The path** is created at the start and removed at the end. A stale socket of a killed run is replaced. A socket
//! that answers, and a file that is not a socket, are refused.

use crate::error::Error;
use crate::live::Watching;
use crate::sample::{Sample, Samples};
use crate::temporary::Temporary;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slat::Idle;
use slat_mm::lru_gen::{LruGen, LruGenError};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// Clients at a time.
const CLIENTS: usize = 16;
/// Bytes per line.
const LONGEST: usize = 4096;
/// A client that does not read its answers for this long is dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// The bound socket. Its file is removed on drop.
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
    _temporary: Temporary,
}

impl Socket {
    /// Binds `path`, which was given with `flag`.
    pub fn bind(flag: &str, path: &Path) -> Result<Self, Error> {
        let refused = |why: &dyn std::fmt::Display| Error::Usage(format!("{flag} {}: {why}", path.display()));
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(refused(&"the file exists and is not a socket"));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(refused(&"another run is serving it")),
            Ok(_) => fs::remove_file(path).map_err(|error| refused(&error))?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&error)),
        }
        let listener = UnixListener::bind(path).map_err(|error| refused(&error))?;
        let temporary = Temporary::at(path).map_err(|error| refused(&error))?;
        Ok(Self { path: path.into(), listener, _temporary: temporary })
    }

    /// Serves `lru_gen` and `samples` until the returned value is dropped.
    pub fn serve<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        lru_gen: &'scope LruGen,
        samples: &'scope dyn Samples,
    ) -> Result<Serving<'scope>, Error> {
        let failed = |error: io::Error| Error::Machine(format!("{}: {error}", self.path.display()));
        let (keep, stop) = UnixStream::pair().map_err(failed)?;
        self.listener.set_nonblocking(true).map_err(failed)?;
        // Without a listener thread clients get no answer. The guest continues.
        crate::thread::start(scope, move || accept(&self.listener, &stop, (lru_gen, samples)).is_ok());
        Ok(Serving { _keep: keep, lru_gen })
    }
}

/// A served socket. Each of its threads also polls the other end of `keep`, so that a drop wakes all of them.
#[must_use = "dropping it ends the service"]
pub struct Serving<'s> {
    _keep: UnixStream,
    lru_gen: &'s LruGen,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.lru_gen.interrupt();
    }
}

/// Starts one thread per client.
fn accept(listener: &UnixListener, stop: &UnixStream, served: Served<'_>) -> io::Result<()> {
    // Each client has a clone.
    let clients = Arc::new(());
    thread::scope(|scope| {
        while ready(listener.as_fd(), stop.as_fd(), None)? != Woken::End {
            let mut client = match listener.accept() {
                Ok((client, _)) => client,
                // The client has closed the connection.
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted].contains(&error.kind()) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            if Arc::strong_count(&clients) > CLIENTS {
                let _ = client.write_all(b"error EBUSY: too many clients\n");
                continue;
            }
            let counted = clients.clone();
            // An error affects only this client, which is dropped.
            let _ = thread::Builder::new().spawn_scoped(scope, move || {
                let _ = talk(&mut client, stop, served);
                drop(counted);
            });
        }
        Ok(())
    })
}

/// The data that clients query.
type Served<'s> = (&'s LruGen, &'s dyn Samples);

/// A client that watches: its interval, and the time of its next sample.
struct Watch<'s> {
    every: Duration,
    due: Instant,
    _watching: Watching<'s>,
}

/// Serves one client until the client or the run ends.
fn talk(client: &mut UnixStream, stop: &UnixStream, (lru_gen, samples): Served<'_>) -> io::Result<()> {
    let mut idle = Idle::take().ok_or(ErrorKind::Other)?;
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (mut text, mut buffer) = (Vec::new(), [0; LONGEST]);
    let mut watch: Option<Watch<'_>> = None;
    loop {
        if let Some(watch) = watch.as_mut().filter(|watch| watch.due <= Instant::now()) {
            client.write_all((samples.sample(&mut idle).line() + "\n").as_bytes())?;
            watch.due = Instant::now() + watch.every;
        }
        match ready(client.as_fd(), stop.as_fd(), watch.as_ref().map(|watch| watch.due))? {
            Woken::Due => continue,
            Woken::Input => {}
            Woken::End => {
                let last = Sample { ended: true, ..samples.sample(&mut idle) };
                return if watch.is_some() {
                    client.write_all((last.line() + "\n").as_bytes())
                } else {
                    Ok(())
                };
            }
        }
        let more = client.read(&mut buffer)?;
        text.extend_from_slice(&buffer[..more]);
        if more == 0 {
            // The last line may lack its newline.
            text.push(b'\n');
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let answer = match line.trim().strip_prefix("watch ").map(period) {
                None => answer(&mut idle, (lru_gen, samples), &line),
                Some(Err(why)) => format!("error EINVAL: {why}\n"),
                Some(Ok(None)) => {
                    watch = None;
                    "ok\n".into()
                }
                Some(Ok(Some(every))) => {
                    watch = Some(Watch { every, due: Instant::now(), _watching: samples.watch() });
                    continue;
                }
            };
            client.write_all(answer.as_bytes())?;
        }
        if text.len() >= LONGEST {
            client.write_all(b"error EINVAL: the line is too long\n")?;
            break;
        }
        if more == 0 {
            break;
        }
    }
    Ok(())
}

/// The interval that a `watch` command asks for; `None` stops the samples.
fn period(ms: &str) -> Result<Option<Duration>, &'static str> {
    match ms.trim().parse() {
        Ok(0) => Ok(None),
        Ok(ms @ 50..=3_600_000) => Ok(Some(Duration::from_millis(ms))),
        _ => Err("watch MS: from 50 to 3600000, or 0 to end it"),
    }
}

/// The answer to one line.
fn answer(idle: &mut Idle, (lru_gen, samples): Served<'_>, line: &str) -> String {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let result = match (word, rest.trim()) {
        ("", _) => return String::new(),
        ("stats", "") => Ok(samples.sample(idle).line() + "\n"),
        ("read", "") => Ok(lru_gen.read()),
        ("enabled", "") => Ok(lru_gen.read_enabled()),
        ("enabled", mask) => lru_gen.write_enabled(mask).map(|()| String::new()),
        ("min_ttl_ms", "") => Ok(lru_gen.read_min_ttl_ms()),
        ("min_ttl_ms", ms) => lru_gen.write_min_ttl_ms(ms).map(|()| String::new()),
        _ => lru_gen.write(idle, line).map(|()| String::new()),
    };
    result
        .map_or_else(|error: LruGenError| format!("error {}: {error}\n", error.name()), |text| text + "ok\n")
}

/// Why a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Woken {
    /// Input has arrived, or the other end was closed.
    Input,
    /// The deadline has passed.
    Due,
    /// The run has ended.
    End,
}

/// Waits for input on `from`, the deadline, or the end of the run.
fn ready(from: BorrowedFd<'_>, stop: BorrowedFd<'_>, due: Option<Instant>) -> io::Result<Woken> {
    let mut both = [from, stop].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        // A duration that exceeds a timespec means no deadline.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut both, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => return Ok(Woken::Due),
            Ok(_) if !both[1].revents().is_empty() => return Ok(Woken::End),
            Ok(_) => return Ok(Woken::Input),
        }
    }
}

#[cfg(test)]
mod tests;
