//! The least that a pager can do: a fault without look-ups, notes or counters.

use crate::uffd::abi::{self, Message};
use crate::uffd::{PAGE, Uffd};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// Answers `faults` faults, one after the other, each by a COPY of this page: poll, read, COPY.
pub fn bare(uffd: &Uffd, content: &[u8; PAGE], faults: usize) {
    let mut message = [Message::default()];
    let mut left = faults;
    while left > 0 {
        _ = poll(&mut [PollFd::from_borrowed_fd(uffd.as_fd(), PollFlags::IN)], None);
        let Ok(1) = uffd.read(&mut message) else { continue };
        if message[0].event == abi::EVENT_PAGEFAULT {
            uffd.copy(message[0].words[1] / PAGE as u64 * PAGE as u64, content);
            left -= 1;
        }
    }
}

/// Answers `faults` faults by a COPY of each one's page of a file, which it reads.
pub fn copy_each(uffd: &Uffd, regions: &[(u64, u64, u64)], file: &File, faults: usize) {
    let mut page = [0; PAGE];
    each(uffd, regions, faults, |address, offset| {
        if file.read_exact_at(&mut page, offset).is_ok() {
            uffd.copy(address, &page);
        }
    });
}

/// Answers `faults` faults as Firecracker's example of a handler does: each by a COPY from its page of a mapped file.
pub fn copy_mapped(uffd: &Uffd, regions: &[(u64, u64, u64)], image: &[u8], faults: usize) {
    each(uffd, regions, faults, |address, offset| {
        uffd.copy(address, &image[offset as usize..][..PAGE]);
    });
}

/// Calls `fill` for each of `faults` faults, with the address of its page and the page's offset in the image.
fn each(uffd: &Uffd, regions: &[(u64, u64, u64)], faults: usize, mut fill: impl FnMut(u64, u64)) {
    let mut message = [Message::default()];
    let mut left = faults;
    while left > 0 {
        _ = poll(&mut [PollFd::from_borrowed_fd(uffd.as_fd(), PollFlags::IN)], None);
        let Ok(1) = uffd.read(&mut message) else { continue };
        let address = message[0].words[1] / PAGE as u64 * PAGE as u64;
        let region = regions.iter().find(|(start, size, _)| (*start..start + size).contains(&address));
        let Some((start, _, offset)) = region.filter(|_| message[0].event == abi::EVENT_PAGEFAULT) else {
            continue;
        };
        fill(address, address - start + offset);
        left -= 1;
    }
}
