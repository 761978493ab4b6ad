//! A stream that breaks. `tests/vm_log.rs` includes this file, too, so it uses nothing of the crate.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// A stream that breaks after this many bytes written.
pub struct Breaks(pub UnixStream, pub usize);

impl Read for Breaks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Breaks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.1);
        self.1 -= len;
        if len == 0 { Err(io::ErrorKind::ConnectionReset.into()) } else { self.0.write(&bytes[..len]) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
