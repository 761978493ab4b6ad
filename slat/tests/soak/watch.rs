//! Who has done how much, what each does at the moment, and when all may go.
//!
//! No thread leaves before every thread has done its share, so that the last ones are not alone; except where something is
//! wrong: then all do. The watchdog ends the process, with a word on each thread, where one has made no step for a minute.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A thread that makes no step for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two reports of progress.
const REPORT: Duration = Duration::from_secs(5);

/// How much each thread is to do.
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

/// See the module's header.
pub struct Watch {
    amount: Amount,
    threads: Vec<Doing>,
    /// Threads that have not done their share.
    busy: AtomicU64,
    stopped: AtomicBool,
    over: AtomicBool,
}

/// One thread's part. Where the thread panics, all go.
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

    /// Something is wrong: all go.
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

    /// Whether what `thread` did when it had begun `steps` of them is over.
    pub fn is_over(&self, thread: usize, steps: u64) -> bool {
        self.steps(thread) != steps || self.threads[thread].left.load(SeqCst)
    }

    /// Steps that `thread` has begun.
    pub fn steps(&self, thread: usize) -> u64 {
        self.threads[thread].steps.load(SeqCst)
    }

    /// All have gone: the watchdog may go, too.
    pub fn over(&self) {
        self.over.store(true, SeqCst);
    }

    /// The watchdog. Calls `report` now and then; `state` says more where a thread hangs.
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
            // Who has gone makes no step; then all are about to.
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
    /// Begins a step. False: that was all, for every thread.
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

    /// What the thread is about to do.
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
