//! Traces inside the library, so that a first replay needs no file.
//!
//! Real programs and a real kernel, recorded and reduced by `crates/vcpu/examples/record`. The first lines of each say
//! what was run and how much was kept.

use super::{Error, Reader};

/// A trace inside the library.
#[derive(Clone, Copy, Debug)]
pub struct Bundled {
    /// Name of the trace.
    pub name: &'static str,
    /// The program, and what is special about its memory.
    pub about: &'static str,
    /// The file, compressed.
    pub bytes: &'static [u8],
}

impl Bundled {
    /// Starts reading it.
    ///
    /// # Errors
    /// Errors of [`Reader::new`]; reading memory does not fail.
    pub fn reader(&self) -> Result<Reader, Error> {
        Reader::new(self.name, self.bytes)
    }
}

/// Returns all bundled traces.
pub const fn bundled() -> &'static [Bundled] {
    &[
        Bundled {
            name: "cc1",
            about: "GNU C compiles a C file: much code, many small objects",
            bytes: include_bytes!("../../traces/cc1.lackey.zst"),
        },
        Bundled {
            name: "sort",
            about: "GNU sort sorts 66 MiB of long lines: few pages of code, data without locality",
            bytes: include_bytes!("../../traces/sort.lackey.zst"),
        },
        Bundled {
            name: "boot",
            about: "Debian's Linux boots: its faults, by guest-physical address, all unmapped by each timer interrupt",
            bytes: include_bytes!("../../traces/boot.lackey.zst"),
        },
    ]
}
