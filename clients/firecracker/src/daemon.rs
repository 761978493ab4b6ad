//! The pager, started as users start it, and its processes, killed by `kill -9`.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The result of a step.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The time limit of each step of a process.
pub const BOUND: Duration = Duration::from_secs(60);

/// Runs a command of the pager, and returns its output.
pub fn pager(program: &Path, words: &[&str]) -> Outcome<String> {
    let made = Command::new(program).args(words).output()?;
    if made.status.success() {
        Ok(String::from_utf8(made.stdout)?)
    } else {
        Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&made.stderr).trim()).into())
    }
}

/// A daemon: a keeper, and the worker that serves. Each starts the other anew when it is killed.
pub struct Daemon {
    first: Child,
    keeper: i32,
    worker: i32,
    log: PathBuf,
    /// The lines of the log that were read.
    read: usize,
    /// The number of kills.
    pub kills: usize,
}

impl Daemon {
    /// Starts `slat-pager serve` with these words.
    pub fn start(program: &Path, log: PathBuf, words: &[&str]) -> Outcome<Self> {
        let first = Command::new(program).arg("serve").args(words).stderr(File::create(&log)?).spawn()?;
        let keeper = i32::try_from(first.id())?;
        let mut daemon = Self { first, keeper, worker: 0, log, read: 0, kills: 0 };
        daemon.next_worker()?;
        Ok(daemon)
    }

    /// Kills the worker, or the keeper if `nth` is odd, and returns when the next one is there.
    pub fn kill(&mut self, nth: usize) -> Outcome<()> {
        self.kills += 1;
        if nth.is_multiple_of(2) {
            signal(self.worker, Signal::KILL)?;
            return self.next_worker();
        }
        signal(self.keeper, Signal::KILL)?;
        // The first one is this process's child.
        _ = self.first.try_wait();
        self.keeper = self.next("keeper")?["keeper"].as_i64().ok_or("no process")?.try_into()?;
        Ok(())
    }

    fn next_worker(&mut self) -> Outcome<()> {
        self.worker = self.next("worker")?["worker"].as_i64().ok_or("no process")?.try_into()?;
        self.next("ready").map(|_| ())
    }

    /// Waits for the next event of this kind in the log.
    pub fn next(&mut self, event: &str) -> Outcome<Value> {
        let began = Instant::now();
        loop {
            let said = std::fs::read_to_string(&self.log)?;
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            for line in whole.lines().skip(self.read) {
                self.read += 1;
                let line: Value = serde_json::from_str(line).unwrap_or_default();
                if line["event"] == event {
                    return Ok(line);
                }
            }
            if began.elapsed() > BOUND {
                return Err(format!("the pager's log has no {event:?}: {}", said.trim()).into());
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// Drains the daemon, whose guests have ended, and waits for the end of its processes.
    pub fn end(mut self) -> Outcome<()> {
        signal(self.keeper, Signal::TERM)?;
        let began = Instant::now();
        while [self.keeper, self.worker].into_iter().any(|process| !self.has_ended(process)) {
            if began.elapsed() > BOUND {
                return Err("the pager does not drain".into());
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn has_ended(&mut self, process: i32) -> bool {
        _ = self.first.try_wait();
        // A process that has ended and was not waited for has no command line.
        std::fs::read(format!("/proc/{process}/cmdline")).map_or(true, |line| line.is_empty())
    }
}

impl Drop for Daemon {
    /// Ends what an error has left.
    fn drop(&mut self) {
        for process in [self.keeper, self.worker] {
            if !self.has_ended(process) {
                _ = signal(process, Signal::KILL);
            }
        }
    }
}

fn signal(process: i32, signal: Signal) -> Outcome<()> {
    Ok(kill_process(Pid::from_raw(process).ok_or("no process")?, signal)?)
}
