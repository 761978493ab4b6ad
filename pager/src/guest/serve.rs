//! A thread of a guest: reads events, notes removals, answers faults, and tries again those that could not be answered.

use super::fill::Answer;
use super::{Inner, Life};
use crate::journal::Reader;
use crate::sabotage::Sabotage;
use crate::uffd::PAGE;
use crate::uffd::abi::{self, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An access that waits for its page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub address: u64,
    /// The page is in the shared memory.
    pub minor: bool,
    /// When it was read.
    pub since: Instant,
    /// When it is to be tried again, and how often the store did not answer.
    pub due: Instant,
    pub failures: u32,
}

/// How long a fault waits that met a change of the guest's memory: about as long as such a change takes.
pub(super) const CHANGE: Duration = Duration::from_micros(50);

impl Inner {
    /// Until the guest ends, or is stopped.
    pub(super) fn run(&self, number: usize) {
        let Some(mut reader) = self.journal.reader(number) else { return };
        // One event at a time where there are other threads for the next.
        let most = if self.options.threads == 1 { reader.0.len() } else { 1 };
        let mut faults = Vec::new();
        while self.wait() {
            self.read(&mut reader, most, &mut faults);
            faults.extend(self.due());
            for fault in faults.drain(..) {
                self.answer(fault);
            }
        }
    }

    /// Waits for an event, or a fault that is due. Whether to go on.
    fn wait(&self) -> bool {
        let due = self.later.lock().iter().map(|fault| fault.due).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.uffd.as_fd(), PollFlags::IN),
        ];
        match &self.life {
            Some(Life::Process(process)) => fds.push(PollFd::new(process, PollFlags::IN)),
            // What it sent may lie there unread; a hang-up is told anyway.
            Some(Life::Connection(connection)) => fds.push(PollFd::new(connection, PollFlags::empty())),
            None => {}
        }
        if poll(&mut fds, left.as_ref()).is_err() {
            // Interrupted.
            return true;
        }
        if fds.get(2).is_some_and(|life| !life.revents().is_empty()) {
            self.finish();
        }
        fds[0].revents().is_empty()
    }

    /// Reads events. Removals are noted before any page can be filled that they cover.
    fn read(&self, reader: &mut Reader, most: usize, faults: &mut Vec<Fault>) {
        let order = self.order.write();
        let Ok(count) = self.uffd.read(&mut reader.0[..most]) else {
            drop(order);
            return self.finish();
        };
        let messages = &reader.0[..count];
        if self.options.sabotage != Some(Sabotage::Remove) {
            for message in messages {
                self.journal.note(message, &self.layout);
            }
        }
        drop(order);
        let now = Instant::now();
        for message in messages {
            match message.event {
                // Write protection is nothing that was asked for: its faults are the VMM's own.
                abi::EVENT_PAGEFAULT if message.words[0] & abi::FAULT_WP != 0 => {}
                abi::EVENT_PAGEFAULT => faults.push(Fault::new(message, now)),
                abi::EVENT_REMOVE | abi::EVENT_UNMAP => _ = self.removes.fetch_add(1, Ordering::Relaxed),
                // A process that forks gives its child's userfaultfd to whom reads: no pager was asked for that one.
                // SAFETY: the kernel made this descriptor for this read.
                abi::EVENT_FORK => drop(unsafe { OwnedFd::from_raw_fd(message.words[0] as i32) }),
                _ => {}
            }
        }
    }

    /// The faults whose time has come.
    fn due(&self) -> Vec<Fault> {
        let (mut later, now) = (self.later.lock(), Instant::now());
        let due = later.iter().filter(|fault| fault.due <= now).copied().collect();
        later.retain(|fault| fault.due > now);
        due
    }

    fn answer(&self, mut fault: Fault) {
        match self.resolve(&fault) {
            Answer::Done | Answer::Ignored => {}
            Answer::Gone => self.finish(),
            Answer::Again => {
                fault.due = Instant::now() + CHANGE;
                self.put_off(fault);
            }
            Answer::NoContent => {
                fault.due = Instant::now() + super::pause(fault.failures);
                fault.failures += 1;
                self.put_off(fault);
            }
        }
    }

    fn put_off(&self, fault: Fault) {
        self.again.fetch_add(1, Ordering::Relaxed);
        self.later.lock().push_back(fault);
    }
}

impl Fault {
    /// The address of its page.
    pub(super) fn page(&self) -> u64 {
        self.address / PAGE as u64 * PAGE as u64
    }

    fn new(message: &Message, since: Instant) -> Self {
        let [flags, address, _] = message.words;
        Self { address, minor: flags & abi::FAULT_MINOR != 0, since, due: since, failures: 0 }
    }
}
