//! `--trace-events`: the VM's events as text in the format of `perf script`.
//!
//! ```text
//! slat  4711 [001]     0.012345: slat:fault: vcpu=0 gfn=0x108 access=write result=mapped-4k
//! ```
//! The fields are: program, thread, processor, seconds since the run began, event. The thread that makes an event may
//! hold a lock, so it only queues the event; a separate thread writes. Lines are in the order of the queue.

use crate::error::Error;
use crate::thread::start_free;
use parking_lot::Mutex;
use rustix::thread::{gettid, sched_getcpu};
use slat::trace::{Observer, TraceEvent};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The destination of events.
pub struct Events {
    began: Instant,
    path: String,
    /// `None` ends the queue.
    queue: Sender<Option<Queued>>,
    writer: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

struct Queued {
    at: Duration,
    thread: i32,
    processor: usize,
    event: TraceEvent,
}

thread_local! {
    /// This thread's number.
    static THREAD: i32 = gettid().as_raw_nonzero().get();
}

impl Events {
    /// Writes to this file, which is truncated, or to standard output.
    pub fn to(path: &str) -> Result<Self, Error> {
        let out: Box<dyn Write + Send> = if path == "-" {
            Box::new(io::stdout())
        } else {
            let file = File::create(path);
            Box::new(file.map_err(|error| Error::Usage(format!("--trace-events {path}: {error}")))?)
        };
        let (queue, queued) = channel();
        let writer = start_free(move || write(&queued, BufWriter::new(out)));
        Ok(Self { began: Instant::now(), path: path.into(), queue, writer: Mutex::new(Some(writer)) })
    }

    /// Waits until all queued events are written. No event may follow.
    pub fn end(&self) -> Result<(), Error> {
        let Some(writer) = self.writer.lock().take() else { return Ok(()) };
        // If the send fails, the writer has ended and reports why.
        _ = self.queue.send(None);
        match crate::thread::joined(writer.join()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Error::Report(error)),
            Err(error) => Err(Error::Machine(format!("--trace-events {}: {error}", self.path))),
            Ok(()) => Ok(()),
        }
    }
}

impl Observer for Events {
    fn observe(&self, event: TraceEvent) {
        let (at, thread) = (self.began.elapsed(), THREAD.with(|thread| *thread));
        _ = self.queue.send(Some(Queued { at, thread, processor: sched_getcpu(), event }));
    }
}

fn write(queued: &Receiver<Option<Queued>>, mut out: impl Write) -> io::Result<()> {
    while let Ok(Some(Queued { at, thread, processor, event })) = queued.recv() {
        let seconds = at.as_secs_f64();
        writeln!(out, "slat {thread:>6} [{processor:03}] {seconds:>12.6}: slat:{event}")?;
    }
    out.flush()
}
