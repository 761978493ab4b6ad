//! Makes a template of a machine that a VMM sends.

use crate::layout::MOST_REGIONS;
use crate::store::{Library, Machine};
use crate::wire::{HEADER, MigrationError, MigrationRequest, Slots, answer, take};
use rustix::fs::fstatfs;
use rustix::net::RecvFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// File-system magic of hugetlbfs, whose files have huge pages.
const HUGETLBFS: u64 = 0x9584_58f6;

/// Counters of a received machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes of its memory.
    pub memory: u64,
    /// Chunks that were new to the store.
    pub chunks: usize,
}

/// Makes the template `name` of a machine that Cloud Hypervisor sends on this connection, by `send-migration` with
/// `local=on`. Cuts its image into chunks of `chunk` bytes. The VMM learns that the migration is complete once the
/// template is in the store; its guest stands still until then. The messages before may take `patience` together. This
/// sleeps.
///
/// ```no_run
/// # use slat_pager::*;
/// let library = Library::new(Folder::open("/srv/templates")?);
/// let connection = accept_one("/run/receive.sock".as_ref())?;
/// receive_machine(&library, "debian", &connection, 256 << 10, std::time::Duration::from_secs(60))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A malformed message of the VMM, or an error of the store. The VMM learns that the migration failed, and keeps its
/// guest.
pub fn receive_machine(
    library: &Library,
    name: &str,
    mut connection: &UnixStream,
    chunk: usize,
    patience: Duration,
) -> Result<Received, MigrationError> {
    let result =
        collect(connection, Instant::now() + patience).and_then(|sent| sent.keep(library, name, chunk));
    // The VMM may abandon the migration. If the VMM has ended, it gets no answer; a stored template stays.
    let is_ok = matches!(result, Ok(_) | Err(MigrationError::Abandoned));
    _ = connection.write_all(&answer(is_ok));
    result
}

/// All parts of a machine. Its guest stands still, and the VMM waits for an answer.
pub(crate) struct Sent {
    slots: Slots,
    /// The memory file of each memslot.
    files: Vec<File>,
    config: Vec<u8>,
    state: Vec<u8>,
}

/// Reads a VMM's messages until it says that the migration is complete. Leaves that message without an answer.
pub(crate) fn collect(connection: &UnixStream, until: Instant) -> Result<Sent, MigrationError> {
    let mut vmm = Vmm { connection, until, fds: Vec::new() };
    match vmm.request()? {
        MigrationRequest::Start => vmm.yes()?,
        request => return Err(request.out_of_turn("Start")),
    }
    let mut files = Vec::new();
    let config = loop {
        match vmm.request()? {
            MigrationRequest::MemoryFd if files.len() < MOST_REGIONS => files.push(vmm.memory()?),
            MigrationRequest::Config(length) => break vmm.payload(length)?,
            request => return Err(request.out_of_turn("Config")),
        }
        vmm.yes()?;
    };
    let slots = Slots::parse(&config)?;
    let files = in_order(&slots, files)?;
    vmm.yes()?;
    let state = match vmm.request()? {
        MigrationRequest::State(length) => vmm.payload(length)?,
        request => return Err(request.out_of_turn("State")),
    };
    vmm.yes()?;
    match vmm.request()? {
        MigrationRequest::Complete { .. } => Ok(Sent { slots, files, config, state }),
        request => Err(request.out_of_turn("Complete")),
    }
}

/// Checks the files, and returns them in the order of the memslots.
fn in_order(slots: &Slots, mut sent: Vec<(u32, File)>) -> Result<Vec<File>, MigrationError> {
    let mut files = Vec::new();
    for slot in &slots.slots {
        let wrong = |what| MigrationError::Slot(slot.slot, what);
        let place = sent.iter().position(|(number, _)| *number == slot.slot);
        let (_, file) = sent.remove(place.ok_or_else(|| wrong("its memory did not come"))?);
        let about = file.metadata()?;
        if !about.is_file() || slot.end().is_none_or(|end| end > about.len()) {
            return Err(wrong("its memory is no file that is long enough"));
        }
        if fstatfs(&file).map_err(io::Error::from)?.f_type as u64 == HUGETLBFS {
            return Err(wrong("its memory has huge pages, which are not served"));
        }
        files.push(file);
    }
    match sent.first() {
        Some((slot, _)) => Err(MigrationError::Slot(*slot, "it is none of the machine's, or came twice")),
        None => Ok(files),
    }
}

impl Sent {
    fn keep(self, library: &Library, name: &str, chunk: usize) -> Result<Received, MigrationError> {
        let (config, state) = (self.config.len() as u64, self.state.len() as u64);
        let machine = Machine { memory: self.slots.size(), config, state };
        let size = machine.size().ok_or_else(|| MigrationError::Sense("it is too large".into()))?;
        let memory = MemoryReader { sent: &self, slot: 0, done: 0 };
        let image = memory.chain(&*self.config).chain(&*self.state).chain(io::repeat(0));
        let written = library.keep(name, image, size, chunk, Some(machine))?;
        Ok(Received { memory: machine.memory, chunks: written.chunks })
    }
}

/// Reads the memory of a machine, one memslot after the other. A file that ends early is an error.
struct MemoryReader<'a> {
    sent: &'a Sent,
    slot: usize,
    done: u64,
}

impl Read for MemoryReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(slot) = self.sent.slots.slots.get(self.slot) else { return Ok(0) };
        let most = bytes.len().min((slot.size - self.done) as usize);
        let got = self.sent.files[self.slot].read_at(&mut bytes[..most], slot.file_offset + self.done)?;
        if got == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.done += got as u64;
        if self.done == slot.size {
            (self.slot, self.done) = (self.slot + 1, 0);
        }
        Ok(got)
    }
}

/// A sending VMM, with a time limit.
struct Vmm<'a> {
    connection: &'a UnixStream,
    until: Instant,
    /// Received descriptors: one at a time.
    fds: Vec<OwnedFd>,
}

impl Vmm<'_> {
    fn yes(&mut self) -> io::Result<()> {
        self.connection.write_all(&answer(true))
    }

    fn request(&mut self) -> Result<MigrationRequest, MigrationError> {
        let mut bytes = [0; HEADER];
        self.read_exact(&mut bytes)?;
        match MigrationRequest::parse(&bytes)? {
            MigrationRequest::Abandon => Err(MigrationError::Abandoned),
            request => Ok(request),
        }
    }

    /// Reads a payload. The buffer grows with the received bytes, because the length may be a lie.
    fn payload(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads the number of a memslot, and its memory file.
    fn memory(&mut self) -> Result<(u32, File), MigrationError> {
        let mut number = [0; 4];
        self.read_exact(&mut number)?;
        let slot = u32::from_le_bytes(number);
        let fd = self.fds.pop().ok_or(MigrationError::Slot(slot, "no descriptor came with it"))?;
        Ok((slot, fd.into()))
    }
}

impl Read for Vmm<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it took too long");
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        self.connection.set_read_timeout(Some(left))?;
        let got = match take(self.connection.as_fd(), bytes, &mut self.fds, RecvFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            got => got?,
        };
        // Extra descriptors would be missing elsewhere.
        if self.fds.len() > 1 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it sent several descriptors for one memslot",
            ));
        }
        Ok(got)
    }
}
