//! The pager, started as users start it, and killed with `kill -9`.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The result of what a drive does.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The name of the template.
pub const TEMPLATE: &str = "debian";

/// A daemon. Its drop tells it to end, once and then again, since its worker starts another keeper if the first is
/// killed. The worker ends with its last guest, which must have ended by then.
pub struct Daemon {
    keeper: Child,
    log: PathBuf,
    /// The number of workers seen so far.
    workers: usize,
    worker: i32,
    pub kills: usize,
}

impl Daemon {
    pub fn start(pager: &Path, work: &Path, store: &str, flags: &[String]) -> Outcome<Self> {
        let log = work.join("pager.txt");
        let mut serve = Command::new(pager);
        serve.args(["serve", "--store", store, "--guest"]);
        serve.arg(format!("{}={TEMPLATE}", work.join("socket").display())).args(flags);
        let keeper = serve.stderr(File::create(&log)?).spawn()?;
        let mut daemon = Self { keeper, log, workers: 0, worker: 0, kills: 0 };
        daemon.next_worker()?;
        Ok(daemon)
    }

    /// Kills the serving process by `kill -9`, and returns when the next one serves.
    pub fn kill(&mut self) -> Outcome<()> {
        let pid = rustix::process::Pid::from_raw(self.worker).ok_or("the worker has no number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        self.next_worker()?;
        self.kills += 1;
        Ok(())
    }

    /// The log's lines.
    pub fn said(&self) -> Outcome<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// Checks that pages went to swap; the last worker reports it when its guest has ended.
    pub fn has_reclaimed(&self) -> Outcome<()> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) {
            let said = self.said()?;
            let pages = said
                .lines()
                .rev()
                .find_map(|line| line.split_once("\"reclaimed\":")?.1.split([',', '}']).next());
            match pages {
                Some("0") => return Err("no page left for the swap file".into()),
                Some(pages) => {
                    println!("since the last kill {pages} pages left for the swap file");
                    return Ok(());
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err("the pager did not see that its guest ended".into())
    }

    fn next_worker(&mut self) -> Outcome<()> {
        let began = Instant::now();
        loop {
            let said = self.said()?;
            // A line without its end is not an event yet.
            let events = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let numbers: Vec<i64> = events
                .filter(|event| event["event"] == "worker")
                .filter_map(|event| event["worker"].as_i64())
                .collect();
            if numbers.len() > self.workers {
                self.workers = numbers.len();
                self.worker = numbers[numbers.len() - 1].try_into()?;
                return Ok(());
            }
            if self.keeper.try_wait()?.is_some() || began.elapsed() > Duration::from_secs(20) {
                return Err(format!("the pager did not start: {}", said.trim()).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.keeper);
        for _ in 0..2 {
            _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let began = Instant::now();
            while matches!(self.keeper.try_wait(), Ok(None)) && began.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !matches!(self.keeper.try_wait(), Ok(None)) {
                // Another process may have its number by now.
                break;
            }
        }
        // The next daemon has the same log. A process that has ended and is not waited for has no command line.
        let line = format!("/proc/{}/cmdline", self.worker);
        let began = Instant::now();
        while std::fs::read(&line).is_ok_and(|line| !line.is_empty())
            && began.elapsed() < Duration::from_secs(10)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
