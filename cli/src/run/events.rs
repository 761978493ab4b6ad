//! `--trace-events`: what happens in the VM, as text in the manner of `perf script`.
//!
//! ```text
//! slat  4711 [001]     0.012345: slat:fault: vcpu=0 gfn=0x108 access=write result=mapped-4k
//! ```
//! The program, the thread that did it, the processor that it was on, seconds since the run began, the event. Threads that make
//! events may hold what others wait for, so they only queue them: a thread of its own writes. Lines are in the order in which
//! events were queued.

use crate::error::Error;
use crate::thread::start_free;
use parking_lot::Mutex;
use rustix::thread::{gettid, sched_getcpu};
use slat::trace::{Observer, TraceEvent};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where events go.
pub struct Events {
    began: Instant,
    path: String,
    /// `None` is the last one.
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
    /// This thread's number, or 0 before it was asked for.
    static THREAD: Cell<i32> = const { Cell::new(0) };
}

fn this_thread() -> i32 {
    THREAD.with(|known| {
        if known.get() == 0 {
            known.set(gettid().as_raw_nonzero().get());
        }
        known.get()
    })
}

impl Events {
    /// To this file, which is emptied, or to standard output.
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

    /// Returns when all events until now are written. There are none afterwards.
    pub fn end(&self) -> Result<(), Error> {
        let Some(writer) = self.writer.lock().take() else { return Ok(()) };
        // Where that fails the writer has ended, and says why.
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
        let (at, thread) = (self.began.elapsed(), this_thread());
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
