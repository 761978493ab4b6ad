//! Connections in memory.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// `SplitMix64`.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The faults of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes of the sender that arrive, if it is cut.
    pub up: Option<u64>,
    /// The sender sees no error of its writes where it is cut.
    pub silent: bool,
    /// Bytes of the receiver that arrive, if it is cut.
    pub down: Option<u64>,
    /// This byte of the sender's, and of the receiver's, arrives changed.
    pub flips: [Option<u64>; 2],
}

impl Plan {
    pub const WHOLE: Self = Self { up: None, silent: false, down: None, flips: [None; 2] };
}

#[derive(Default)]
struct Bytes {
    waiting: VecDeque<u8>,
    /// All that was put in, for a replay.
    all: Vec<u8>,
    most: Option<u64>,
    flip: Option<u64>,
    closed: bool,
    /// Its reader waits for more.
    waited_for: bool,
}

impl Bytes {
    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.waiting.len());
        self.waiting.drain(..len).zip(into).for_each(|(byte, into)| *into = byte);
        len
    }

    fn is_waited_for(&self) -> bool {
        self.waited_for && self.waiting.is_empty() && !self.closed
    }
}

/// One direction of a connection.
#[derive(Default)]
pub struct Pipe(Mutex<Bytes>, Condvar);

impl Pipe {
    fn new(most: Option<u64>, flip: Option<u64>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Bytes { most, flip, ..Bytes::default() }), Condvar::new()))
    }

    /// Writes what fits; returns whether all did. A closed pipe swallows everything, so that nothing depends on when the
    /// other side has closed it.
    fn put(&self, bytes: &[u8]) -> bool {
        let mut pipe = self.0.lock().unwrap();
        let room = pipe.most.map_or(usize::MAX, |most| most as usize - pipe.all.len());
        let fits = bytes.len().min(room);
        for &byte in &bytes[..fits] {
            let changed = if pipe.flip == Some(pipe.all.len() as u64) { byte ^ 0x10 } else { byte };
            pipe.all.push(changed);
            if !pipe.closed {
                pipe.waiting.push_back(changed);
            }
        }
        pipe.closed |= fits < bytes.len();
        self.1.notify_all();
        fits == bytes.len()
    }

    fn get(&self, into: &mut [u8]) -> usize {
        let mut pipe = self.0.lock().unwrap();
        pipe.waited_for = true;
        pipe = self.1.wait_while(pipe, |pipe| pipe.waiting.is_empty() && !pipe.closed).unwrap();
        pipe.waited_for = false;
        pipe.take(into)
    }

    /// The same where `back` is the other direction: `None` if each side waits for the other, as after a changed length.
    fn get_in_time(&self, into: &mut [u8], back: &Self) -> Option<usize> {
        loop {
            let pipe = self.0.lock().unwrap();
            let wait = Duration::from_millis(5);
            let (mut pipe, waited) = self
                .1
                .wait_timeout_while(pipe, wait, |pipe| pipe.waiting.is_empty() && !pipe.closed)
                .unwrap();
            if !waited.timed_out() {
                return Some(pipe.take(into));
            }
            drop(pipe);
            // Only this thread writes to `back`: its reader waits until this one gives up.
            let waits = { back.0.lock().unwrap().is_waited_for() };
            let pipe = self.0.lock().unwrap();
            if waits && pipe.waiting.is_empty() && !pipe.closed {
                return None;
            }
        }
    }

    fn close(&self) {
        self.0.lock().unwrap().closed = true;
        self.1.notify_all();
    }

    /// All that was put in so far.
    pub fn all(&self) -> Vec<u8> {
        self.0.lock().unwrap().all.clone()
    }
}

/// The sender's end of a connection.
pub struct Here {
    pub up: Arc<Pipe>,
    down: Arc<Pipe>,
    silent: bool,
    /// No receiver has accepted it, as far as the sender can wait.
    waits: bool,
}

/// The receiver's end.
pub struct There {
    up: Arc<Pipe>,
    down: Arc<Pipe>,
}

/// A connection. The sender of one that `waits` sees no answer in time.
pub fn connection(plan: Plan, waits: bool) -> (Here, There) {
    let (up, down) = (Pipe::new(plan.up, plan.flips[0]), Pipe::new(plan.down, plan.flips[1]));
    let there = There { up: Arc::clone(&up), down: Arc::clone(&down) };
    (Here { up, down, silent: plan.silent, waits }, there)
}

/// A connection of which these bytes arrive, and whose sender is gone.
pub fn replay(bytes: &[u8]) -> There {
    let (here, there) = connection(Plan::WHOLE, false);
    here.up.put(bytes);
    drop(here);
    there
}

impl Read for Here {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = if self.waits { None } else { self.down.get_in_time(into, &self.up) };
        read.ok_or(ErrorKind::TimedOut.into())
    }
}

impl Write for Here {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.up.put(bytes) || self.silent {
            Ok(bytes.len())
        } else {
            Err(ErrorKind::ConnectionReset.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.up.close();
        self.down.close();
    }
}

impl Read for There {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.up.get(into))
    }
}

impl Write for There {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.down.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for There {
    fn drop(&mut self) {
        self.down.close();
    }
}
