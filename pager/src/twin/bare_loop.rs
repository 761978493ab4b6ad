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

/// Answers `faults` faults as the public examples of handlers do: each by a COPY of its page of a file.
pub fn copy_each(uffd: &Uffd, regions: &[(u64, u64, u64)], file: &File, faults: usize) {
    let (mut message, mut page) = ([Message::default()], [0; PAGE]);
    let mut left = faults;
    while left > 0 {
        _ = poll(&mut [PollFd::from_borrowed_fd(uffd.as_fd(), PollFlags::IN)], None);
        let Ok(1) = uffd.read(&mut message) else { continue };
        let address = message[0].words[1] / PAGE as u64 * PAGE as u64;
        let region = regions.iter().find(|(start, size, _)| (*start..start + size).contains(&address));
        let Some((start, _, offset)) = region.filter(|_| message[0].event == abi::EVENT_PAGEFAULT) else {
            continue;
        };
        if file.read_exact_at(&mut page, address - start + offset).is_err() {
            return;
        }
        uffd.copy(address, &page);
        left -= 1;
    }
}
