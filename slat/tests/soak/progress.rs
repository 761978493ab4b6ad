//! The progress of each thread, its present action, and the end of all threads.
//!
//! No thread ends before every thread has done its share, so that the last ones are not alone. After a failure all end.
//! The watchdog ends the process, with a message on each thread, if one has made no step for a minute.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A thread that makes no step for this long hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two progress reports.
const REPORT: Duration = Duration::from_secs(5);

/// The share of each thread.
#[derive(Clone, Copy)]
pub enum Amount {
    Steps(u64),
    Until(Instant),
}

struct Doing {
    steps: AtomicU64,
    left: AtomicBool,
    what: Mutex<&'static str>,
}

/// The progress of all threads. See the module's header.
pub struct Watch {
    amount: Amount,
    threads: Vec<Doing>,
    /// Number of threads that have not done their share.
    busy: AtomicU64,
    stopped: AtomicBool,
    over: AtomicBool,
}

/// One thread's part. If the thread panics, all end.
pub struct Share<'w> {
    watch: &'w Watch,
    thread: usize,
    done: bool,
}

impl Watch {
    pub fn new(amount: Amount, threads: usize) -> Self {
        let doing =
            |_| Doing { steps: AtomicU64::new(0), left: AtomicBool::new(false), what: Mutex::new("begins") };
        Self {
            amount,
            threads: (0..threads).map(doing).collect(),
            busy: AtomicU64::new(threads as u64),
            stopped: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    pub fn share(&self, thread: usize) -> Share<'_> {
        Share { watch: self, thread, done: false }
    }

    /// Ends all threads after a failure.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// Whether a thread still has to do its share.
    pub fn goes_on(&self) -> bool {
        self.busy.load(SeqCst) > 0 && !self.is_stopped()
    }

    /// Whether `thread` has finished what it did when it had begun `steps` of its steps.
    pub fn is_over(&self, thread: usize, steps: u64) -> bool {
        self.steps(thread) != steps || self.threads[thread].left.load(SeqCst)
    }

    /// Returns the steps that `thread` has begun.
    pub fn steps(&self, thread: usize) -> u64 {
        self.threads[thread].steps.load(SeqCst)
    }

    /// All threads have ended: the watchdog may end, too.
    pub fn over(&self) {
        self.over.store(true, SeqCst);
    }

    /// The watchdog. Calls `report` now and then; `state` adds details if a thread hangs.
    pub fn guard(&self, report: impl Fn(), state: impl Fn() -> String) {
        let steps = || (0..self.threads.len()).map(|thread| self.steps(thread)).collect::<Vec<_>>();
        let mut last: Vec<_> = steps().into_iter().map(|steps| (steps, Instant::now())).collect();
        let mut reported = Instant::now();
        while !self.over.load(SeqCst) {
            std::thread::park_timeout(Duration::from_millis(500));
            for (last, now) in last.iter_mut().zip(steps()) {
                if last.0 != now {
                    *last = (now, Instant::now());
                }
            }
            // A thread that has ended makes no step; then all are about to end.
            if last.iter().any(|(_, since)| since.elapsed() > PATIENCE) {
                eprintln!("no step for a minute:\n{}{}", self.describe(), state());
                std::process::exit(1);
            }
            if reported.elapsed() > REPORT {
                reported = Instant::now();
                report();
            }
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (index, doing) in self.threads.iter().enumerate() {
            let what = doing.what.lock().map_or("panics", |what| *what);
            let _ = writeln!(text, "  thread {index}: {} steps, {what}", doing.steps.load(SeqCst));
        }
        text
    }
}

impl Share<'_> {
    /// Begins a step. Returns false when every thread is to end.
    pub fn next(&mut self) -> bool {
        let watch = self.watch;
        let steps = watch.threads[self.thread].steps.fetch_add(1, SeqCst);
        let enough = match watch.amount {
            Amount::Steps(all) => steps >= all,
            Amount::Until(deadline) => Instant::now() >= deadline,
        };
        if enough && !std::mem::replace(&mut self.done, true) {
            watch.busy.fetch_sub(1, SeqCst);
        }
        watch.goes_on()
    }

    /// Records the thread's next action.
    pub fn about_to(&self, what: &'static str) {
        *self.watch.threads[self.thread].what.lock().unwrap() = what;
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.watch.stop();
        }
        self.watch.threads[self.thread].left.store(true, SeqCst);
    }
}
