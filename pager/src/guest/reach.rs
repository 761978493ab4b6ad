//! The content of a guest's memory, read without touching a page that is not there.

use super::Life;
use crate::layout::Layout;
use crate::uffd::PAGE;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// By which it is read.
#[derive(Debug)]
pub(super) enum Reach {
    /// `/proc/PID/mem`. The kernel refuses to wait for a page there: one that is missing is an error, EIO.
    Process(File),
    /// The file that is its shared memory. Its offsets are those of the image.
    Memory(File),
}

impl Reach {
    /// That of the process with this life. It needs the right to look into it, as a debugger has.
    pub fn of_process(life: Option<&Life>) -> io::Result<Self> {
        let Some(Life::Process(process)) = life else {
            let what = "the guest's process is not known: it cannot be looked into";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        };
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
        let number = about.lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim);
        // One that ended has -1.
        let number = number.and_then(|number| number.parse::<u32>().ok());
        let number = number.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let path = format!("/proc/{number}/mem");
        let memory = File::open(&path).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{path}: {error}: run as the VMM's user, or with CAP_SYS_PTRACE"),
            )
        })?;
        // Its number may have become that of another process meanwhile; then the first one has ended.
        let again = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
        if again.lines().any(|line| line.strip_prefix("Pid:").is_some_and(|pid| pid.trim() == "-1")) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(Self::Process(memory))
    }

    /// Reads pages of the image. One that is not there is zeros.
    pub fn read(&self, layout: &Layout, pages: Range<usize>, into: &mut [u8]) -> io::Result<()> {
        let first = pages.start;
        for (address, part) in layout.places(pages) {
            let bytes = (part.start - first) * PAGE..(part.end - first) * PAGE;
            match self {
                Self::Memory(file) => file.read_exact_at(&mut into[bytes], (part.start * PAGE) as u64)?,
                Self::Process(memory) => read(memory, address, &mut into[bytes])?,
            }
        }
        Ok(())
    }
}

fn read(memory: &File, address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        match memory.read_at(&mut into[at..], address + at as u64) {
            // There is no memory any more.
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Ok(got) => at += got,
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                let end = (at / PAGE + 1) * PAGE;
                into[at..end].fill(0);
                at = end;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
