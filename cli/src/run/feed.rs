//! Traces as streams of batches.
//!
//! One thread reads and parses each trace. It sends every batch to all vCPUs that replay the trace. They share the
//! batch and the channels are short, so memory does not grow with the trace, and the slowest vCPU limits the reader.

use crate::error::Error;
use crate::thread::joined;
use serde::Serialize;
use slat_vcpu::trace::{self, Access, Reader, bundled};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Accesses per batch, and batches queued per vCPU.
const BATCH: usize = 16 << 10;
const UNDER_WAY: usize = 4;

/// A trace that can be read once or several times.
pub struct Source {
    name: String,
    reader: Reader,
    /// Further passes, and how to start one.
    again: u32,
    open: Box<dyn Fn() -> Result<Reader, trace::Error> + Send>,
}

/// The name of standard input in reports and errors.
const STDIN: &str = "standard input";

/// The passes of the bundled traces, which are short.
const BUNDLED_PASSES: u32 = 10;

/// The traces that one vCPU replays, in order.
pub type Jobs = Vec<Receiver<Arc<Vec<Access>>>>;

/// The reader threads.
pub struct Feeds {
    names: String,
    threads: Vec<JoinHandle<Result<Fed, trace::Error>>>,
}

/// The counters of all traces, or of one, under the keys of the report.
#[derive(Debug, Default, Serialize)]
pub struct Fed {
    /// The names of all traces.
    pub traces: String,
    pub lines: u64,
    pub skipped_lines: u64,
    pub garbled_lines: u64,
    /// Accesses beyond the addresses that any format maps.
    pub beyond_lines: u64,
}

/// Opens all traces; the bundled ones if `paths` is empty.
pub fn open(paths: &[String], strict: bool, passes: Option<u32>) -> Result<Vec<Source>, Error> {
    if paths.iter().filter(|path| *path == "-").count() > 1 {
        return Err(Error::Usage("standard input can be read once: `--trace -` is given more often".into()));
    }
    if passes.is_some_and(|passes| passes > 1) && paths.iter().any(|path| path == "-") {
        return Err(Error::Usage("standard input can be read once: it has no second iteration".into()));
    }
    let mut sources = Vec::new();
    for path in paths {
        let (file, passes) = (path.clone(), passes.unwrap_or(1));
        sources.push(match path.as_str() {
            "-" => Source::new(STDIN, strict, passes, || Reader::new(STDIN, std::io::stdin()))?,
            path => Source::new(path, strict, passes, move || Reader::open(&file))?,
        });
    }
    if paths.is_empty() {
        for bundled in bundled() {
            let passes = passes.unwrap_or(BUNDLED_PASSES);
            sources.push(Source::new(bundled.name, strict, passes, || bundled.reader())?);
        }
    }
    Ok(sources)
}

/// The names of the traces, for reports.
pub fn names(sources: &[Source]) -> String {
    sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Source {
    fn new(
        name: &str,
        strict: bool,
        passes: u32,
        open: impl Fn() -> Result<Reader, trace::Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let open = move || Ok(open()?.strict(strict));
        Ok(Self { name: name.into(), reader: open()?, again: passes - 1, open: Box::new(open) })
    }
}

/// Starts the reader threads. With at least as many vCPUs as traces, vCPU n replays trace n modulo their number. With
/// fewer, vCPU n replays every vcpus-th trace.
pub fn start(sources: Vec<Source>, vcpus: usize) -> (Vec<Jobs>, Feeds) {
    let (traces, names) = (sources.len(), names(&sources));
    let mut jobs: Vec<Jobs> = (0..vcpus).map(|_| Vec::new()).collect();
    let mut threads = Vec::new();
    for (index, source) in sources.into_iter().enumerate() {
        let mut listeners = Vec::new();
        for (vcpu, jobs) in jobs.iter_mut().enumerate() {
            if vcpu % traces == index || index % vcpus == vcpu {
                let (send, receive) = sync_channel(UNDER_WAY);
                listeners.push(send);
                jobs.push(receive);
            }
        }
        threads.push(crate::thread::start_free(move || read(source, &listeners)));
    }
    (jobs, Feeds { names, threads })
}

/// Reads one trace to its end, or until its last vCPU has stopped.
fn read(source: Source, listeners: &[SyncSender<Arc<Vec<Access>>>]) -> Result<Fed, trace::Error> {
    let Source { name: _, mut reader, mut again, open } = source;
    let mut fed = Fed::default();
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        let more = reader.fill(&mut batch, BATCH);
        let batch = Arc::new(batch);
        let listening = listeners.iter().filter(|listener| listener.send(batch.clone()).is_ok()).count();
        if more? > 0 && listening > 0 {
            continue;
        }
        fed.lines += reader.lines();
        fed.skipped_lines += reader.skipped();
        fed.garbled_lines += reader.garbled() - reader.beyond();
        fed.beyond_lines += reader.beyond();
        if again == 0 || listening == 0 {
            return Ok(fed);
        }
        again -= 1;
        reader = open()?;
    }
}

impl Feeds {
    /// Joins the readers and sums their counters. A reader that waits for input after its vCPUs have stopped is not
    /// joined.
    pub fn finish(self) -> Result<Fed, Error> {
        let mut all = Fed { traces: self.names, ..Fed::default() };
        let interrupted = crate::interrupt::asked();
        for thread in self.threads {
            if interrupted && !thread.is_finished() {
                continue;
            }
            let fed = joined(thread.join())?;
            all.lines += fed.lines;
            all.skipped_lines += fed.skipped_lines;
            all.garbled_lines += fed.garbled_lines;
            all.beyond_lines += fed.beyond_lines;
        }
        Ok(all)
    }
}
