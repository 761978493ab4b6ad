//! Moves cold pages of a guest to a swap file, and back when they are touched.
//!
//! This works only for shared memory whose file the pager has: no process can take pages of private memory from
//! another.
//!
//! **Age.** At each tick the kernel takes all pages out of the page table, and leaves them in the file. A page that is
//! touched until the next tick faults, and the pager maps it again. An untouched page is a tick older.
//!
//! **To leave.** Under the exclusive lock, so that no thread fills or unprotects pages meanwhile, the pager does these
//! steps in order: it protects the page, writes it to the swap file, notes it in the journal as away, and punches it
//! out of the memory's file. A pager that is killed in between leaves a page that is in the memory, and maybe noted as
//! away: then the content of the memory counts.
//!
//! **To come back.** When a page that is noted as away faults, the pager reads it from the swap file, fills it, and
//! then notes it as back.

use super::fault::{Answer, Fault};
use super::harvest::Handle;
use super::memory_reader::data;
use super::{Backing, Inner, Life};
use crate::cache::Source;
use crate::uffd::{PAGE, Refusal};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Most pages that leave, or come back, at a time.
const BATCH: usize = 32;

/// Makes a swap file in this folder, without a name, for this user only.
pub fn swap_file(folder: &Path) -> io::Result<OwnedFd> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
    Ok(options.open(folder)?.into())
}

impl Backing {
    /// Returns the swap file.
    pub(crate) fn swap(&self) -> Option<BorrowedFd<'_>> {
        self.files().map(|(_, swap)| swap)
    }

    /// Returns the memory's file, and the swap file.
    fn files(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        match self {
            Self::Swapped { memory, swap } => Some((memory.as_fd(), swap.as_fd())),
            _ => None,
        }
    }
}

impl Handle {
    /// Returns the bytes of the guest's memory that are present, if known.
    pub fn resident(&self) -> io::Result<Option<u64>> {
        let Some((memory, _)) = self.0.backing.files() else { return Ok(None) };
        Ok(Some(File::from(memory.try_clone_to_owned()?).metadata()?.blocks() * 512))
    }

    /// Does a tick: pages that were not touched since the last one are a tick older. From now on touches are noted.
    ///
    /// # Errors
    /// `Unsupported`: the guest's memory is not shared memory with a swap file, or its process is not known. Others:
    /// the kernel refuses; it requires the rights of a debugger, and `CAP_SYS_NICE`.
    pub fn age(&self) -> io::Result<()> {
        let inner = &self.0;
        let unsupported = |what| io::Error::new(io::ErrorKind::Unsupported, what);
        let Some(Life::Process(process)) = &inner.life else {
            return Err(unsupported("the guest's process is not known"));
        };
        if inner.backing.files().is_none() {
            return Err(unsupported("the guest's memory is not shared memory with a swap file"));
        }
        let mut ages = inner.ages.lock();
        let young = inner.young.take();
        for (page, age) in ages.iter_mut().enumerate() {
            *age = if young.has(page) { 0 } else { age.saturating_add(1) };
        }
        drop(ages);
        inner.layout.regions().iter().try_for_each(|region| unmap(process.as_fd(), region.base, region.size))
    }

    /// Returns the ages of its pages in memory, in ticks, without those that were touched in the last one.
    pub(crate) fn ages(&self) -> Vec<u8> {
        let inner = &self.0;
        let ages = inner.ages.lock();
        let mut found = [false; 256];
        for (page, age) in ages.iter().enumerate().filter(|(_, age)| **age > 0) {
            found[usize::from(*age)] |= inner.is_there(page);
        }
        (1..=u8::MAX).filter(|age| found[usize::from(*age)]).collect()
    }

    /// Reclaims at most `most` pages that are `age` ticks old. Returns the number of reclaimed pages.
    pub fn reclaim(&self, age: u8, most: usize) -> io::Result<usize> {
        let inner = &self.0;
        let Some((memory, swap)) = inner.backing.files() else { return Ok(0) };
        let (memory, swap) =
            (File::from(memory.try_clone_to_owned()?), File::from(swap.try_clone_to_owned()?));
        let (mut gone, mut page) = (0, 0);
        let pages = inner.layout.image_pages();
        while gone < most && page < pages {
            let end = pages.min(page + BATCH);
            let old = {
                let ages = inner.ages.lock();
                let is_old = |page: &usize| ages[*page] >= age && inner.is_there(*page);
                let start = (page..end).find(is_old);
                start.map(|start| start..(start..end).find(|page| !is_old(page)).unwrap_or(end))
            };
            let Some(old) = old else {
                page = end;
                continue;
            };
            page = old.end;
            // Holes have no pages.
            for data in data(&memory, &old)? {
                let data = data.start..data.end.min(data.start.saturating_add(most - gone));
                gone += inner.take_away(&memory, &swap, data)?;
            }
        }
        Ok(gone)
    }

    /// Returns the name of the template that the guest began with.
    pub fn template(&self) -> &str {
        self.0.template.name()
    }

    /// Returns whether the guest has a swap file.
    pub fn has_swap(&self) -> bool {
        self.0.backing.files().is_some()
    }

    /// Returns the number of pages in the swap file.
    pub fn away(&self) -> usize {
        self.0.journal.away()
    }
}

impl Inner {
    /// Returns whether a page is only in the swap file. A guest without one does not need that part of its journal.
    pub(super) fn is_away(&self, page: usize) -> bool {
        matches!(self.backing, Backing::Swapped { .. }) && self.journal.is_away(page)
    }

    /// Returns whether the guest may have this page in memory.
    fn is_there(&self, page: usize) -> bool {
        self.journal.is_settled(page) && !self.journal.is_away(page) && !self.young.has(page)
    }

    fn take_away(&self, memory: &File, swap: &File, pages: Range<usize>) -> io::Result<usize> {
        let mut content = vec![0; pages.len() * PAGE];
        let mut gone = 0;
        for (address, part) in self.layout.places(pages) {
            let _order = self.order.write();
            // A snapshot reads pages in the memory. And a page that was touched meanwhile is not cold.
            if self.tracking.is_capturing() || !part.clone().all(|page| self.is_there(page)) {
                continue;
            }
            let size = part.len() * PAGE;
            match self.uffd.protect(address, size as u64) {
                Ok(()) => {}
                // A removal's event waits to be read: try another time.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => continue,
                Err(error) => return Err(error),
            }
            let (content, at) = (&mut content[..size], (part.start * PAGE) as u64);
            memory.read_exact_at(content, at)?;
            swap.write_all_at(content, at)?;
            self.journal.leave(part.clone());
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if let Err(error) = fallocate(memory, hole, at, size as u64) {
                // The pages are still in the memory.
                self.journal.come_back(part);
                return Err(error.into());
            }
            gone += part.len();
        }
        self.reclaimed.fetch_add(gone as u64, Ordering::Relaxed);
        Ok(gone)
    }

    /// Brings back a page that is away and faults, with its neighbours that are away.
    pub(super) fn bring_back(&self, fault: &Fault, page: usize, may_sleep: bool) -> Answer {
        let Some((_, swap)) = self.backing.files() else { return Answer::NoContent };
        if !may_sleep {
            return Answer::Elsewhere;
        }
        let window = self.options.window.min(BATCH);
        let start = page / window * window;
        let last = self.layout.image_pages().min(start + window);
        let is_away = |page: &usize| self.journal.is_away(*page);
        let first = (start..page).rev().take_while(is_away).last().unwrap_or(page);
        let pages = first..(page..last).take_while(is_away).last().unwrap_or(page) + 1;
        let mut content = vec![0; pages.len() * PAGE];
        let Ok(swap) = swap.try_clone_to_owned().map(File::from) else { return Answer::NoContent };
        if let Err(error) = swap.read_exact_at(&mut content, (pages.start * PAGE) as u64) {
            self.waits.because(format_args!("the swap file: {error}"));
            return Answer::NoContent;
        }
        let _order = self.order.read();
        let mut answer = Answer::Ignored;
        // The page itself comes first.
        let others = pages.clone().filter(|other| *other != page);
        for other in std::iter::once(page).chain(others) {
            // The page may have been removed meanwhile, or be back.
            let Some((address, _)) = self.layout.places(other..other + 1).next().filter(|_| is_away(&other))
            else {
                if other == page {
                    // The thread faults again if it must.
                    _ = self.uffd.wake(fault.address, PAGE as u64);
                }
                continue;
            };
            let is_write = other == page && fault.write;
            let is_protected = self.before_return(other, is_write);
            // Whether those that come along are touched is told from the next tick on.
            self.young.set(other);
            let bytes = &content[(other - pages.start) * PAGE..][..PAGE];
            let (_, refusal) = self.uffd.copy_as(address, bytes, is_protected);
            if matches!(refusal, None | Some(Refusal::Exists)) {
                self.journal.come_back(other..other + 1);
            }
            if other == page {
                answer = match refusal {
                    None => self.done(fault, Source::Swap),
                    Some(refusal) => self.refused(&refusal, fault),
                };
                if !matches!(answer, Answer::Done) {
                    return answer;
                }
            }
        }
        answer
    }

    /// After a restart: a page that is in the memory is not away, whatever the journal says.
    pub(super) fn recover(&self) -> io::Result<()> {
        let Some((memory, _)) = self.backing.files() else { return Ok(()) };
        let memory = File::from(memory.try_clone_to_owned()?);
        for there in data(&memory, &(0..self.layout.image_pages()))? {
            self.journal.come_back(there);
        }
        Ok(())
    }
}

/// Takes pages out of the page table of a process. Pages of shared memory stay in the file.
fn unmap(process: BorrowedFd, start: u64, len: u64) -> io::Result<()> {
    let (mut start, end) = (start, start + len);
    while start < end {
        let part = libc::iovec { iov_base: start as *mut _, iov_len: (end - start) as usize };
        // SAFETY: the call reads one range. It changes no content of the other process.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                process.as_raw_fd(),
                &raw const part,
                1,
                libc::MADV_PAGEOUT,
                0,
            )
        };
        match u64::try_from(done) {
            Ok(0) => return Err(io::Error::other("the kernel takes no pages out of the page table")),
            Ok(done) => start += done,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}
