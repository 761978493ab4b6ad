//! Sources of samples: a run of this process, or the socket of another one.

use crate::error::Error;
use crate::sample::{Sample, Samples};
use crate::thread::Stop;
use slat::Idle;
use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Maximum bytes per line: several times what a run with 1,000 vCPUs sends.
const LONGEST: u64 = 4 << 20;
/// A server that sends nothing for this long after the first command is not a run.
const PATIENCE: Duration = Duration::from_secs(10);

/// The next item of a source.
#[derive(Debug)]
pub enum Item {
    /// A sample. The last one of the run has `ended` set.
    Sample(Box<Sample>),
    /// The source has ended without a last sample.
    Lost,
}

/// A source of samples.
pub trait Source {
    /// Waits for the next item up to `patience`; `None` if none came.
    fn next(&mut self, patience: Duration) -> Result<Option<Item>, Error>;

    /// Sets the interval.
    fn set_interval(&mut self, every: Duration) -> Result<(), Error>;
}

/// A run of this process.
pub struct Local<'s> {
    samples: &'s dyn Samples,
    idle: Idle,
    every: Duration,
    due: Instant,
    /// Asked when the run ends.
    stop: Stop,
    _watching: crate::live::Watching<'s>,
}

impl<'s> Local<'s> {
    /// The idle token of the watching thread; `None` if the thread already runs a vCPU.
    pub fn new(samples: &'s dyn Samples, every: Duration, stop: Stop) -> Option<Self> {
        let idle = Idle::take()?;
        Some(Self { samples, idle, every, due: Instant::now(), stop, _watching: samples.watch() })
    }
}

impl Source for Local<'_> {
    fn next(&mut self, patience: Duration) -> Result<Option<Item>, Error> {
        let left = self.due.saturating_duration_since(Instant::now());
        let ended = self.stop.asked_within(left.min(patience));
        if !ended && left > patience {
            return Ok(None);
        }
        let sample = self.samples.sample(&mut self.idle);
        self.due = Instant::now() + self.every;
        Ok(Some(Item::Sample(Box::new(Sample { ended, ..sample }))))
    }

    fn set_interval(&mut self, every: Duration) -> Result<(), Error> {
        self.due = Instant::now() + every;
        self.every = every;
        Ok(())
    }
}

/// The socket of a run.
pub struct Remote {
    path: PathBuf,
    stream: UnixStream,
    /// Lines from the reading thread. An error is the last item.
    lines: Receiver<io::Result<String>>,
    /// Samples received.
    seen: u64,
}

impl Remote {
    /// Asks the run that serves `path` for samples. Returns after the first one.
    pub fn connect(path: &Path, every: Duration) -> Result<Self, Error> {
        let refused = |why: &dyn Display| Error::Usage(format!("{}: {why}", path.display()));
        match fs::metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(refused(&"no socket: `slat run --serve PATH` makes one"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(refused(&"no such socket: is `slat run --serve PATH` running?"));
            }
            _ => {}
        }
        let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => refused(&"nothing serves this socket: its run has ended"),
            _ => refused(&error),
        })?;
        let reader = stream.try_clone().map_err(|error| refused(&error))?;
        let (send, lines) = sync_channel(4);
        crate::thread::start_free(move || {
            let mut reader = BufReader::new(reader);
            loop {
                let line = read_line(&mut reader);
                let last = !matches!(&line, Ok(line) if !line.is_empty());
                if send.send(line).is_err() || last {
                    return;
                }
            }
        });
        let mut this = Self { path: path.into(), stream, lines, seen: 0 };
        // If the run has ended, the first read fails with the reason.
        let _ = this.set_interval(every);
        Ok(this)
    }

    fn refused(&self, why: &dyn Display) -> Error {
        Error::Usage(format!("{}: {why}", self.path.display()))
    }

    fn item(&mut self, line: &str) -> Result<Item, Error> {
        if let Some(error) = line.strip_prefix("error ") {
            return Err(match error.split_once(':') {
                Some(("EINVAL", _)) => self.refused(&"an older slat, which cannot be watched"),
                _ => self.refused(&error.trim()),
            });
        }
        let sample = Sample::parse(line).map_err(|why| self.refused(&why))?;
        self.seen += 1;
        Ok(Item::Sample(Box::new(sample)))
    }
}

/// Reads a line; an empty one means the end.
fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.take(LONGEST).read_line(&mut line)?;
    if line.len() as u64 == LONGEST {
        return Err(io::Error::new(ErrorKind::InvalidData, "a line without end"));
    }
    Ok(line)
}

impl Source for Remote {
    fn next(&mut self, patience: Duration) -> Result<Option<Item>, Error> {
        let first = self.seen == 0;
        match self.lines.recv_timeout(if first { PATIENCE } else { patience }) {
            Ok(Ok(line)) if !line.is_empty() => self.item(&line).map(Some),
            Err(RecvTimeoutError::Timeout) if first => {
                Err(self.refused(&format!("no answer in {} s", PATIENCE.as_secs())))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(self.refused(&format!("not a sample: {error}")))
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) if first => {
                Err(self.refused(&"no answer: its run has ended, or another program serves it"))
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => Ok(Some(Item::Lost)),
        }
    }

    fn set_interval(&mut self, every: Duration) -> Result<(), Error> {
        // If the run has ended, its last line is still to be read.
        let _ = (&self.stream).write_all(format!("watch {}\n", every.as_millis()).as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::sample;
    use std::net::Shutdown;
    use std::os::unix::net::UnixListener;

    const EVERY: Duration = Duration::from_millis(500);

    /// The error for a server that sends this answer to `watch` and closes the connection.
    fn items(name: &str, says: &str) -> Result<Vec<Item>, String> {
        let path = std::env::temp_dir().join(format!("slat-{}-top-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let result = std::thread::scope(|scope| {
            crate::thread::start(scope, || {
                let (mut client, _) = listener.accept().unwrap();
                let mut asked = [0; 10];
                client.read_exact(&mut asked).unwrap();
                assert_eq!(&asked, b"watch 500\n");
                client.write_all(says.as_bytes()).unwrap();
                client.shutdown(Shutdown::Both).unwrap();
            });
            let mut remote = Remote::connect(&path, EVERY)?;
            let mut all = Vec::new();
            loop {
                let Some(next) = remote.next(PATIENCE)? else { continue };
                let last = matches!(next, Item::Lost);
                all.push(next);
                if last {
                    return Ok(all);
                }
            }
        });
        fs::remove_file(&path).unwrap();
        result.map_err(|error: Error| error.to_string())
    }

    #[test]
    fn samples_come_one_by_one_and_the_end_is_seen() {
        let all = items("samples", &format!("{}\n{}\n", sample(1).line(), sample(2).line())).unwrap();
        let [Item::Sample(one), Item::Sample(two), Item::Lost] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&**one, &**two), (&sample(1), &sample(2)));
    }

    #[test]
    fn a_run_that_cannot_be_watched_is_refused_in_one_line() {
        for (name, says, why) in [
            ("old", "error EINVAL: `watch 500` is no command\n", "an older slat, which cannot be watched"),
            ("busy", "error EBUSY: too many clients\n", "EBUSY: too many clients"),
            ("silent", "", "no answer"),
            ("new", "{\"watch\":9}\n", "version 9, this slat reads 1"),
            ("other", "HTTP/1.1 400 Bad Request\r\n\r\n", "not a sample"),
            ("cut", &sample(1).line()[..99], "not a sample"),
        ] {
            let error = items(name, says).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{name}: {error}");
        }
        let garbled = format!("{}\nnonsense\n", sample(1).line());
        assert!(items("garbled", &garbled).unwrap_err().contains("not a sample"));
    }

    #[test]
    fn a_missing_socket_is_one_line() {
        let path = std::env::temp_dir().join(format!("slat-{}-top-none", std::process::id()));
        let why = |path: &Path| Remote::connect(path, EVERY).err().unwrap().to_string();
        assert!(why(&path).contains("no such socket"));
        fs::write(&path, "").unwrap();
        assert!(why(&path).contains("no socket"));
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert!(why(&path).contains("its run has ended"));
        fs::remove_file(&path).unwrap();
        assert!(why(Path::new("/proc/self/mem/x")).starts_with("/proc/self/mem/x: "));
    }
}
