//! Cuts a stream into lines and hands the records out in batches.
//!
//! A record that lies whole in the buffer, newline included, is parsed where it lies, in one pass: nearly every
//! line of a trace. All else takes [`Reader::odd_line`]: lines that are no record, and the line at the edge of
//! the buffer, which is moved to its front before more is read. A line of which [`LONGEST`] bytes have arrived
//! without a newline is judged by them, and the rest is thrown away unseen.

use super::line::{Flaw, LONGEST, NoRecord, line, record};
use super::source::Source;
use super::{Access, Error};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes read at once. Fits the second-level cache of any machine.
const BUFFER: usize = 256 << 10;

/// A trace being read. Counts what it has seen so far.
pub struct Reader {
    name: String,
    source: Source,
    buffer: Box<[u8]>,
    /// First byte not yet parsed, and first not yet filled.
    next: usize,
    filled: usize,
    strict: bool,
    lines: u64,
    skipped: u64,
    garbled: u64,
    beyond: u64,
}

impl Reader {
    /// Opens a file: plain, gzip or zstd.
    ///
    /// # Errors
    /// [`Error::Open`] or [`Error::Read`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let name = path.as_ref().display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(name, file),
            Err(source) => Err(Error::Open { name, source }),
        }
    }

    /// Reads from anything, such as standard input: plain, gzip or zstd. `name` is what errors call it.
    /// `input` need not be buffered. Waits for its first bytes, which tell the compression.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn new(name: impl Into<String>, input: impl Read + Send + 'static) -> Result<Self, Error> {
        Self::with_buffer(name.into(), input, BUFFER)
    }

    pub(super) fn with_buffer(
        name: String,
        input: impl Read + Send + 'static,
        buffer: usize,
    ) -> Result<Self, Error> {
        assert!(buffer >= LONGEST, "a record must fit");
        let source = match Source::detect(input) {
            Ok(source) => source,
            Err(source) => return Err(Error::Read { name, source }),
        };
        let buffer = vec![0; buffer].into_boxed_slice();
        Ok(Self {
            name,
            source,
            buffer,
            next: 0,
            filled: 0,
            strict: false,
            lines: 0,
            skipped: 0,
            garbled: 0,
            beyond: 0,
        })
    }

    /// Whether a garbled line is an error; without it, garbled lines are counted.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Appends up to `max` accesses to `batch` and returns how many; 0 at the end of the trace, and only there
    /// (or for `max` 0). Blocks while its input does.
    ///
    /// # Errors
    /// Any but [`Error::Open`]. What precedes the error is in `batch`, and counted.
    pub fn fill(&mut self, batch: &mut Vec<Access>, max: usize) -> Result<usize, Error> {
        let before = batch.len();
        // Not all of `max` at once: it may be larger than any trace.
        batch.reserve(max.min(BUFFER / size_of::<Access>()));
        while batch.len() - before < max {
            let text = &self.buffer[self.next..self.filled];
            if let Ok((access, used)) = record(text)
                && text.get(used) == Some(&b'\n')
            {
                self.next += used + 1;
                self.lines += 1;
                batch.push(access);
                continue;
            }
            match self.odd_line()? {
                Some(Ok(access)) => batch.push(access),
                Some(Err(NoRecord::Other)) => self.skipped += 1,
                Some(Err(NoRecord::Garbled(flaw))) => {
                    self.garbled += 1;
                    self.beyond += u64::from(flaw == Flaw::Reach);
                    if self.strict {
                        return Err(Error::Line { name: self.name.clone(), line: self.lines, flaw });
                    }
                }
                None => break,
            }
        }
        Ok(batch.len() - before)
    }

    /// Lines read so far, of every sort.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Lines that are no record: valgrind's own, and the program's.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Lines that begin as a record and give none: truncated, garbled, or of an access that no guest can make.
    pub fn garbled(&self) -> u64 {
        self.garbled
    }

    /// Those of them that are well-formed, and reach beyond [`Access::LIMIT`].
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Takes the next line, whatever it is, and judges it. `None` at the end.
    fn odd_line(&mut self) -> Result<Option<Result<Access, NoRecord>>, Error> {
        loop {
            let text = &self.buffer[self.next..self.filled];
            if let Some(len) = newline(text) {
                let verdict = line(&text[..len]);
                self.next += len + 1;
                self.lines += 1;
                return Ok(Some(verdict));
            }
            if text.len() >= LONGEST {
                let verdict = line(text);
                self.lines += 1;
                self.skip_rest_of_line()?;
                return Ok(Some(verdict));
            }
            if !self.refill()? {
                let text = &self.buffer[self.next..self.filled];
                if text.is_empty() {
                    return Ok(None);
                }
                // The last line has no newline.
                let verdict = line(text);
                self.next = self.filled;
                self.lines += 1;
                return Ok(Some(verdict));
            }
        }
    }

    fn skip_rest_of_line(&mut self) -> Result<(), Error> {
        loop {
            if let Some(len) = newline(&self.buffer[self.next..self.filled]) {
                self.next += len + 1;
                return Ok(());
            }
            self.next = self.filled;
            if !self.refill()? {
                return Ok(());
            }
        }
    }

    /// Moves what is not yet parsed to the front, a part of a line, and reads more behind it. `false` at the end.
    fn refill(&mut self) -> Result<bool, Error> {
        self.buffer.copy_within(self.next..self.filled, 0);
        self.filled -= self.next;
        self.next = 0;
        loop {
            match self.source.bytes.read(&mut self.buffer[self.filled..]) {
                Ok(more) => {
                    self.filled += more;
                    return Ok(more > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    /// Says whether the input or its compression broke: what the system reports has a number.
    fn broken(&self, source: io::Error) -> Error {
        let name = self.name.clone();
        match self.source.format {
            Some(format) if source.raw_os_error().is_none() => Error::Compression { name, format, source },
            _ => Error::Read { name, source },
        }
    }
}

/// Bytes before the first newline.
fn newline(text: &[u8]) -> Option<usize> {
    text.iter().position(|&byte| byte == b'\n')
}
