//! Reads the content of a guest's memory without touching missing pages.

use crate::journal::Journal;
use crate::layout::Layout;
use crate::uffd::PAGE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Means to see the end of a guest's process.
#[derive(Debug)]
pub enum Life {
    /// A descriptor of the process.
    Process(OwnedFd),
    /// The connection, which the kernel closes when the process ends.
    Connection(OwnedFd),
}

impl Life {
    /// Waits for the end of the process. Returns whether it has ended.
    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut fds = [match self {
            Self::Process(process) => PollFd::new(process, PollFlags::IN),
            Self::Connection(connection) => PollFd::new(connection, PollFlags::empty()),
        }];
        // If it is interrupted, the caller tries again earlier.
        poll(&mut fds, Some(&time)).is_ok() && !fds[0].revents().is_empty()
    }
}

/// The source of the reads.
#[derive(Debug)]
pub(super) enum MemoryReader {
    /// `/proc/PID/mem`, for which the kernel does not wait for a missing page but returns EIO; and `pagemap`.
    Process(File, File),
    /// The file of its shared memory, with the offsets of the image; and the swap file, which may have some of the
    /// pages.
    Memory(File, Option<File>),
}

impl MemoryReader {
    /// Opens the memory of the process with this life. This needs the rights of a debugger.
    pub fn of_process(life: Option<&Life>) -> io::Result<Self> {
        let [memory, pagemap] = open(life, ["mem", "pagemap"])?;
        Ok(Self::Process(memory, pagemap))
    }

    /// Reads pages of the image. Calls `missing` for each missing page with its part of the buffer, which is unchanged.
    pub fn read(
        &self,
        layout: &Layout,
        journal: &Journal,
        pages: Range<usize>,
        into: &mut [u8],
        mut missing: impl FnMut(usize, &mut [u8]),
    ) -> io::Result<()> {
        let first = pages.start;
        for (address, part) in layout.places(pages) {
            let into = &mut into[(part.start - first) * PAGE..(part.end - first) * PAGE];
            match self {
                // A missing page is zeros.
                Self::Memory(file, None) => file.read_exact_at(into, (part.start * PAGE) as u64)?,
                Self::Memory(file, Some(swap)) => {
                    // No page is reclaimed while a snapshot reads. A page that comes back is still in the swap file.
                    for (page, into) in part.zip(into.chunks_exact_mut(PAGE)) {
                        let file = if journal.is_away(page) { swap } else { file };
                        file.read_exact_at(into, (page * PAGE) as u64)?;
                    }
                }
                Self::Process(memory, _) => {
                    read(memory, address, into, |page, into| missing(part.start + page, into))?;
                }
            }
        }
        Ok(())
    }

    /// Calls `own` for the guest's own present pages: in a private mapping of a file, those that it wrote.
    pub fn own_pages(&self, layout: &Layout, mut own: impl FnMut(usize)) -> io::Result<()> {
        const IS_THERE: u64 = 1 << 63;
        const IS_SWAPPED: u64 = 1 << 62;
        const IS_OF_A_FILE: u64 = 1 << 61;
        let pagemap = match self {
            Self::Process(_, pagemap) => pagemap,
            Self::Memory(file, _) => {
                let there = data(file, &(0..layout.image_pages()))?;
                there.into_iter().flatten().for_each(own);
                return Ok(());
            }
        };
        let mut entries = vec![0; 64 << 10];
        for region in layout.regions() {
            let (mut page, end) = ((region.offset / PAGE as u64) as usize, region.offset + region.size);
            let mut at = region.base / PAGE as u64 * 8;
            while (page * PAGE) as u64 != end {
                let most = entries.len().min((end as usize / PAGE - page) * 8);
                pagemap.read_exact_at(&mut entries[..most], at)?;
                for entry in entries[..most].chunks_exact(8) {
                    let entry = u64::from_ne_bytes(entry.try_into().expect("8 bytes"));
                    if entry & IS_SWAPPED != 0 || entry & (IS_THERE | IS_OF_A_FILE) == IS_THERE {
                        own(page);
                    }
                    page += 1;
                }
                at += most as u64;
            }
        }
        Ok(())
    }
}

/// Returns whether the mapping at an address of the process with this life is a shared mapping.
pub(super) fn is_shared(life: Option<&Life>, address: u64) -> io::Result<bool> {
    let [maps] = open(life, ["maps"])?;
    let holds = |line: &&str| {
        let ends = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let ends = ends.map(|(start, end)| (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)));
        matches!(ends, Some((Ok(start), Ok(end))) if (start..end).contains(&address))
    };
    let maps = io::read_to_string(maps)?;
    // `7f0000000000-7f0000200000 rw-s …`
    let flags = maps.lines().find(holds).and_then(|line| line.split_whitespace().nth(1));
    flags.map(|flags| flags.ends_with('s')).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))
}

/// Returns the pages of a range that are not holes in a file.
pub(super) fn data(file: &File, pages: &Range<usize>) -> io::Result<Vec<Range<usize>>> {
    let seek = |from: usize, whence| {
        // SAFETY: the call takes numbers.
        let found = unsafe { libc::lseek(file.as_raw_fd(), (from * PAGE) as i64, whence) };
        match usize::try_from(found) {
            Ok(found) => Ok(Some(found / PAGE)),
            // Only holes to the end.
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
                error => Err(error),
            },
        }
    };
    let (mut found, mut next) = (Vec::new(), pages.start);
    while let Some(start) = seek(next, libc::SEEK_DATA)?.filter(|start| *start < pages.end) {
        let end = seek(start, libc::SEEK_HOLE)?.unwrap_or(pages.end).min(pages.end);
        found.push(start..end);
        next = end;
        if next >= pages.end {
            break;
        }
    }
    Ok(found)
}

/// Opens files of `/proc/PID` of the process with this life.
fn open<const N: usize>(life: Option<&Life>, names: [&str; N]) -> io::Result<[File; N]> {
    let Some(Life::Process(process)) = life else {
        let what = "the guest's process is not known: it cannot be looked into";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    };
    let number = || {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
        let number = about.lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim);
        // A process that ended has -1.
        let number = number.and_then(|number| number.parse::<u32>().ok());
        number.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    };
    let before = number()?;
    let open = |name: &str| {
        let path = format!("/proc/{before}/{name}");
        let hint = "run as the VMM's user, or with CAP_SYS_PTRACE";
        let said = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}: {hint}"));
        File::open(&path).map_err(said)
    };
    let mut files = Vec::new();
    for name in names {
        files.push(open(name)?);
    }
    // Another process may have got the number meanwhile; then the first one has ended.
    number()?;
    Ok(files.try_into().expect("as many as there are names"))
}

fn read(
    memory: &File,
    address: u64,
    into: &mut [u8],
    mut missing: impl FnMut(usize, &mut [u8]),
) -> io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        match memory.read_at(&mut into[at..], address + at as u64) {
            // The memory is gone.
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Ok(got) => at += got,
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                let page = at / PAGE;
                missing(page, &mut into[page * PAGE..(page + 1) * PAGE]);
                at = (page + 1) * PAGE;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
