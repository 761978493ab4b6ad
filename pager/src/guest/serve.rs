//! A serving thread of a guest: it reads events, notes removals, answers faults, and retries unanswered faults.

use super::fault::{Answer, CHANGE, Fault, Kind};
use super::{Inner, Life};
use crate::journal::{MESSAGES, Reader};
use crate::uffd::abi::{self, Message};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pause of a fault that may have found no huge page.
const MOMENT: Duration = Duration::from_millis(1);

/// Pause after the guest's process made reads of its userfaultfd wait.
const BLOCKING: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Numbers of the descriptors whose events the first thread awaits.
const STOP: u64 = 0;
const FAULTS: u64 = 1;

/// Number of events to read at a time. The kernel looks for each event that a read asks for, and a guest of one vCPU has
/// one. So after a single event, seven reads ask for one.
#[derive(Default)]
struct Batch {
    singles: usize,
}

impl Batch {
    fn most(&self) -> usize {
        if self.singles.is_multiple_of(8) { MESSAGES } else { 1 }
    }

    /// Notes the number of events that came.
    fn note(&mut self, count: usize) {
        self.singles = if count > 1 { 0 } else { self.singles.wrapping_add(1) };
    }
}

impl Inner {
    /// Makes the descriptor at which the first thread waits. It costs less for each fault than `poll` of all.
    pub(super) fn await_events(&self) -> io::Result<()> {
        let life = match &self.life {
            Some(Life::Process(process)) => Some((process.as_fd(), EventFlags::IN)),
            // The connection may have unread bytes; the kernel reports a hang-up anyway.
            Some(Life::Connection(connection)) => Some((connection.as_fd(), EventFlags::empty())),
            None => None,
        };
        let all = [(self.stop.as_fd(), EventFlags::IN), (self.uffd.as_fd(), EventFlags::IN)];
        for (number, (fd, flags)) in (STOP..).zip(all.into_iter().chain(life)) {
            epoll::add(&self.events, fd, EventData::new_u64(number), flags)?;
        }
        Ok(())
    }

    /// Serves until the guest ends or is stopped.
    ///
    /// The first thread reads all events, and answers faults at once. If there are other threads, it hands them faults
    /// that need the store, and never waits for the store itself. So while the store is down, the guest's other faults
    /// are answered and its removals are noted. Only one thread reads, because the kernel would wake each reader for
    /// each event.
    pub(super) fn run(&self, number: usize) {
        let mut reader = if number == 0 { self.journal.reader(number) } else { None };
        let may_sleep = number > 0 || self.options.threads == 1;
        let (mut faults, mut batch) = (Vec::new(), Batch::default());
        while self.wait(reader.is_some(), may_sleep) {
            if let Some(reader) = &mut reader {
                self.read(reader, &mut batch, &mut faults);
            }
            self.due(may_sleep, &mut faults);
            for fault in faults.drain(..) {
                self.answer(fault, may_sleep);
            }
        }
    }

    /// Waits for an event, or a due fault. Returns whether to continue.
    fn wait(&self, reads: bool, may_sleep: bool) -> bool {
        let mine = |fault: &&Fault| may_sleep || !fault.slow;
        let due = self.later.lock().iter().filter(mine).map(|fault| fault.due).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        if !reads {
            let mut fds = [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.handed, PollFlags::IN)];
            if poll(&mut fds, left.as_ref()).is_ok() && !fds[1].revents().is_empty() {
                // One count for each fault that was handed over; another thread may have been quicker.
                _ = rustix::io::read(&self.handed, &mut [0; 8]);
            }
            return fds[0].revents().is_empty();
        }
        // Only `poll` has waits of less than a millisecond.
        if let Some(left) = left {
            _ = poll(&mut [PollFd::new(&self.events, PollFlags::IN)], Some(&left));
        }
        let now = Timespec::default();
        let mut found = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 3];
        let Ok(count) = epoll::wait(&self.events, &mut found, left.map(|_| &now)) else {
            // Interrupted.
            return true;
        };
        let (mut is_stopped, mut is_blocking) = (false, false);
        for event in &found[..count] {
            match event.data.u64() {
                STOP => is_stopped = true,
                FAULTS => is_blocking = { event.flags }.contains(EventFlags::ERR),
                _ => {
                    self.finish();
                    is_stopped = true;
                }
            }
        }
        if is_blocking && !is_stopped {
            // The guest's process cleared O_NONBLOCK. Without the pause it could take a processor by doing so again and
            // again. Events that are there are read all the same.
            _ = self.uffd.set_nonblocking();
            _ = poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], Some(&BLOCKING));
        }
        !is_stopped
    }

    /// Reads events. Notes removals before any thread can fill the removed pages.
    fn read(&self, reader: &mut Reader, batch: &mut Batch, faults: &mut Vec<Fault>) {
        let order = self.order.write();
        let most = self.before_events(batch.most());
        if most == 0 {
            return;
        }
        let Ok(count) = self.uffd.read(&mut reader.0[..most]) else {
            drop(order);
            return self.finish();
        };
        batch.note(count);
        // Note each event once.
        let mut messages = [Message::default(); MESSAGES];
        let messages = &mut messages[..count];
        messages.copy_from_slice(&reader.0[..count]);
        self.journal.note_all(count, reader, &self.layout);
        for message in messages.iter() {
            self.note_removal(message);
        }
        drop(order);
        let now = Instant::now();
        for message in messages {
            match message.event {
                abi::EVENT_PAGEFAULT => faults.push(Fault::new(message, now, self.layout.page_size() as u64)),
                abi::EVENT_REMOVE | abi::EVENT_UNMAP => _ = self.removes.fetch_add(1, Ordering::Relaxed),
                // When a process forks, the reader gets the child's userfaultfd, which this pager does not serve.
                // SAFETY: the kernel made this descriptor for this read.
                abi::EVENT_FORK => drop(unsafe { OwnedFd::from_raw_fd(message.words[0] as i32) }),
                _ => {}
            }
        }
    }

    /// Takes the due faults, but only one of those that need the store: other threads take the others.
    fn due(&self, may_sleep: bool, faults: &mut Vec<Fault>) {
        let mut later = self.later.lock();
        if later.is_empty() {
            return;
        }
        let (now, mut slow) = (Instant::now(), 0);
        later.retain(|fault| {
            slow += usize::from(fault.slow && fault.due <= now);
            let take = fault.due <= now && (!fault.slow || may_sleep && slow == 1);
            faults.extend(take.then_some(*fault));
            !take
        });
    }

    fn answer(&self, mut fault: Fault, may_sleep: bool) {
        match self.resolve(&fault, may_sleep) {
            Answer::Done | Answer::Ignored if fault.waits => self.waits.end(fault.since),
            Answer::Done | Answer::Ignored => {}
            Answer::Gone => self.finish(),
            Answer::Again => {
                fault.due = Instant::now() + CHANGE;
                self.put_off(fault);
            }
            Answer::Unclear => {
                fault.kind = Kind::Unclear;
                fault.due = Instant::now() + MOMENT;
                self.put_off(fault);
            }
            Answer::Elsewhere => {
                fault.slow = true;
                self.hand_over(fault);
            }
            Answer::NoContent => {
                fault.due = Instant::now() + super::pause(fault.failures);
                fault.failures += 1;
                fault.slow = self.options.threads > 1;
                self.again.fetch_add(1, Ordering::Relaxed);
                self.hand_over(fault);
            }
        }
    }

    fn put_off(&self, fault: Fault) {
        self.again.fetch_add(1, Ordering::Relaxed);
        self.later.lock().push_back(fault);
    }

    /// Hands a fault to a thread that may sleep.
    fn hand_over(&self, mut fault: Fault) {
        if !std::mem::replace(&mut fault.waits, true) {
            self.waits.begin(fault.since);
        }
        self.later.lock().push_back(fault);
        // It cannot be full.
        _ = rustix::io::write(&self.handed, &1u64.to_ne_bytes());
    }
}
