//! `demo`: runs guests while the store is down for a second and while the daemon is killed, then a guest with a working
//! set. Checks every byte.

use super::failure::{Failure, other};
use slat_pager::twin::{Image, Report};
use slat_pager::{Folder, GuestStats, Library, PAGE, Source};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time for which the store is down.
const OUTAGE: Duration = Duration::from_secs(1);

/// Sizes of the demonstration.
#[derive(clap::Args)]
pub struct Demo {
    /// Guests that run at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    guests: u64,
    /// Memory of each one, in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mib: u64,
    /// Number of times that the daemon is killed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=20))]
    kills: u64,
}

/// Ends a daemon, also if the demonstration fails. The second SIGTERM ends it without waiting for its guests.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        for _ in 0..500 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            let pid = rustix::process::Pid::from_child(&self.0);
            _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Demo {
    pub fn run(&self) -> Result<(), Failure> {
        slat_pager::Uffd::new(slat_pager::Features::REMOVE)
            .map_err(|error| other(format!("this kernel offers no userfaultfd to this user: {error}")))?;
        let folder = std::env::temp_dir().join(format!("slat-pager-demo-{}", std::process::id()));
        let result = self.in_folder(&folder);
        _ = std::fs::remove_dir_all(&folder);
        result
    }

    fn in_folder(&self, folder: &Path) -> Result<(), Failure> {
        let image = Image { seed: 1, pages: (self.mib << 20) as usize / PAGE };
        let library = Library::new(Folder::open(folder.join("store")).map_err(other)?);
        let began = Instant::now();
        let size = self.mib << 20;
        let written = library.snapshot("demo", image.read(), size, 256 << 10).map_err(other)?.chunks;
        println!("template: {} MiB, {written} chunks written in {:.1?}", self.mib, began.elapsed());
        println!("verified: {} chunks", library.verify("demo").map_err(other)?.chunks);

        let socket = folder.join("socket");
        let (_daemon, log) = daemon(folder, &socket)?;
        let worker = |wait| {
            wait_for(&log, wait, |line| {
                serde_json::from_str::<serde_json::Value>(line).ok()?["worker"].as_i64()
            })
        };
        let mut pid = worker(Duration::from_secs(10)).ok_or_else(|| other("the daemon did not start"))?;
        let guests: Vec<Child> =
            (0..self.guests).map(|seed| self.guest(&socket, seed)).collect::<Result<_, _>>()?;
        // The first guest's working set is stored before the store goes down.
        let is_recorded = || library.open("demo").is_ok_and(|template| template.working_set().is_some());
        let began = Instant::now();
        while !is_recorded() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let down = folder.join("down");
        std::fs::write(&down, "").map_err(other)?;
        std::thread::sleep(OUTAGE);
        std::fs::remove_file(&down).map_err(other)?;
        println!("the store was down for {OUTAGE:?}");
        for kill in 0..self.kills {
            std::thread::sleep(Duration::from_millis(500));
            rustix::process::Pid::from_raw(pid as i32)
                .map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL))
                .transpose()
                .map_err(other)?;
            pid = worker(Duration::from_secs(10)).ok_or_else(|| other("the daemon was not started again"))?;
            println!("killed the daemon ({} of {}); it is process {pid} now", kill + 1, self.kills);
        }
        let mut wrong = 0;
        for (number, guest) in guests.into_iter().enumerate() {
            wrong += u64::from(!is_right(&format!("guest {number}"), guest)?);
        }
        for _ in 0..self.guests {
            print(&ended(&log)?);
        }
        // One more guest: it gets the pages that the first one touched ahead of its faults.
        wrong += u64::from(!is_right("a guest with a working set", self.guest(&socket, self.guests)?)?);
        let stats = ended(&log)?;
        println!("{} of its pages came ahead of faults", stats.ahead);
        print(&stats);
        if wrong > 0 {
            Err(Failure::Found(format!("{wrong} guests had wrong bytes, or stood still")))
        } else if stats.ahead == 0 {
            Err(Failure::Found("no page of the recorded guest came ahead of its faults".into()))
        } else {
            Ok(())
        }
    }

    fn guest(&self, socket: &Path, seed: u64) -> Result<Child, Failure> {
        let millis = 2500 + OUTAGE.as_millis() as u64 + 700 * self.kills;
        let words =
            format!("--memory {}M --seed {seed} --balloon --patience-ms 10000 --millis {millis}", self.mib);
        let mut command = Command::new(std::env::current_exe().map_err(other)?);
        command.arg("twin").arg(socket).args(words.split(' ')).stdout(Stdio::piped());
        command.spawn().map_err(other)
    }
}

/// Waits for a guest and prints its report. Returns whether it was right.
fn is_right(name: &str, guest: Child) -> Result<bool, Failure> {
    let output = guest.wait_with_output().map_err(other)?;
    let report: Report = serde_json::from_slice(&output.stdout).map_err(other)?;
    println!(
        "{name}: {} accesses, {} pages given back, {} wrong, longest wait {:.1?}{}",
        report.accesses,
        report.removed,
        report.wrong,
        Duration::from_nanos(report.longest),
        if report.frozen { ", FROZEN" } else { "" }
    );
    Ok(report.is_right())
}

/// Returns the counters of the guest that ends next.
fn ended(log: &Receiver<String>) -> Result<GuestStats, Failure> {
    let stats = wait_for(log, Duration::from_secs(10), |line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        serde_json::from_value::<GuestStats>(line.get("stats")?.clone()).ok()
    });
    stats.ok_or_else(|| other("the daemon did not see that its guests ended"))
}

fn daemon(folder: &Path, socket: &Path) -> Result<(Ended, Receiver<String>), Failure> {
    let mut command = Command::new(std::env::current_exe().map_err(other)?);
    command.args(["serve", "--cache", "8M", "--record", "0.8", "--store"]).arg(folder.join("store"));
    command.arg("--store-down").arg(folder.join("down"));
    command.arg("--guest").arg(format!("{}=demo", socket.display())).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(other)?;
    let log = BufReader::new(child.stderr.take().expect("it is piped"));
    let (send, receive) = channel();
    std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    Ok((Ended(child), receive))
}

/// Returns the first result of `find` on a line of the log.
fn wait_for<T>(log: &Receiver<String>, wait: Duration, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let until = Instant::now() + wait;
    loop {
        match log.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(found) = find(&line) {
                    return Some(found);
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

fn print(stats: &GuestStats) {
    println!("since the last start: {} pages filled, {} removals", stats.filled, stats.removes);
    for (name, latency) in stats.latency.iter().filter(|(_, latency)| latency.count > 0) {
        let time = |nanos: u64| format!("{:.1?}", Duration::from_nanos(nanos));
        let (p50, p99, p999) = (time(latency.p50), time(latency.p99), time(latency.p999));
        println!("  {:<8} {:>7} faults, p50 {p50}, p99 {p99}, p99.9 {p999}", name, latency.count);
    }
    debug_assert_eq!(stats.latency.len(), Source::ALL.len());
}
