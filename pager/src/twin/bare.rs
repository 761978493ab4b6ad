//! The least that a pager can do: what a fault costs where nothing is looked up, noted or counted.

use crate::uffd::abi::{self, Message};
use crate::uffd::{PAGE, Uffd};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;

/// Answers so many faults, one after the other, each by a COPY of this page: poll, read, COPY.
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
