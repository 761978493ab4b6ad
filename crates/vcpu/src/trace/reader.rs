//! Splits a stream into lines and returns the records in batches.
//!
//! A record that is complete in the buffer, with its newline, is parsed in place, in one pass; this is nearly
//! every line of a trace. [`Reader::odd_line`] handles the rest: other lines, and the line at the end of the
//! buffer, which is moved to the front before more is read. A line without a newline in its first [`LONGEST`]
//! bytes is judged by these, and the rest is dropped.

use super::flaw::{Flaw, LONGEST, NoRecord};
use super::formats::Format;
use super::line::{Line, line, record};
use super::source::{NoSource, Source};
use super::{Access, Error};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes read at once. Fits the second-level cache of common machines.
const BUFFER: usize = 256 << 10;

/// Reads a trace, and counts what it has seen.
pub struct Reader {
    name: String,
    source: Source,
    buffer: Box<[u8]>,
    /// Index of the first byte not yet parsed, and of the first not filled.
    next: usize,
    filled: usize,
    strict: bool,
    /// The format of the first record that is not spelled as lackey does.
    format: Option<Format>,
    lines: u64,
    skipped: u64,
    garbled: u64,
    beyond: u64,
}

impl Reader {
    /// Opens a file: plain, gzip or zstd.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Read`] or [`Error::Format`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let name = path.as_ref().display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(name, file),
            Err(source) => Err(Error::Open { name, source }),
        }
    }

    /// Reads from any input, such as standard input: plain, gzip or zstd. `name` is used in errors. `input`
    /// need not be buffered. Waits for its first bytes, which identify the compression.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Format`].
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
            Err(NoSource::Io(source)) => return Err(Error::Read { name, source }),
            Err(NoSource::Format(format, convert)) => {
                // A zip is how DynamoRIO keeps its traces.
                let how = match format {
                    "zip" => {
                        format!(
                            "`{convert} {name}` if it holds text; drmemtrace's own records are not text: print them by its tool view"
                        )
                    }
                    _ => format!("`{convert} {name}` prints what is read, to a file or to standard input"),
                };
                return Err(Error::Format { name, format, how });
            }
        };
        let buffer = vec![0; buffer].into_boxed_slice();
        Ok(Self {
            name,
            source,
            buffer,
            next: 0,
            filled: 0,
            strict: false,
            format: None,
            lines: 0,
            skipped: 0,
            garbled: 0,
            beyond: 0,
        })
    }

    /// Whether a garbled line is an error. Otherwise garbled lines are counted.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Appends up to `max` accesses to `batch` and returns how many; 0 only at the end of the trace (or for
    /// `max` 0). Blocks if its input does.
    ///
    /// # Errors
    /// All but [`Error::Open`]. Accesses before the error are in `batch`, and counted.
    pub fn fill(&mut self, batch: &mut Vec<Access>, max: usize) -> Result<usize, Error> {
        let before = batch.len();
        // Not `max`: it may be larger than any trace.
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
                Some(Ok((access, None))) => batch.push(access),
                Some(Ok((access, Some(format)))) => {
                    // Earlier records without a format were spelled as lackey does.
                    let lackeys = self.lines > 1 + self.skipped + self.garbled;
                    let known = if lackeys { Format::Lackey } else { format };
                    if *self.format.get_or_insert(known) == format {
                        batch.push(access);
                    } else {
                        self.skipped += 1;
                    }
                }
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

    /// Returns the number of lines read so far, of any kind.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns the number of lines that are no records: valgrind's, the program's, other events.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the number of garbled records: truncated, malformed, or of an access that no guest can make.
    pub fn garbled(&self) -> u64 {
        self.garbled
    }

    /// Returns the number of these that are well-formed and extend beyond [`Access::LIMIT`].
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Parses the next line, of any kind. `None` at the end.
    fn odd_line(&mut self) -> Result<Option<Line>, Error> {
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

    /// Moves the unparsed part of a line to the front, and reads more behind it. `false` at the end.
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

    /// Decides whether the input or its compression failed: system errors have a number.
    fn broken(&self, source: io::Error) -> Error {
        let name = self.name.clone();
        match self.source.format {
            Some(format) if source.raw_os_error().is_none() => Error::Compression { name, format, source },
            _ => Error::Read { name, source },
        }
    }
}

/// Returns the number of bytes before the first newline.
fn newline(text: &[u8]) -> Option<usize> {
    text.iter().position(|&byte| byte == b'\n')
}
