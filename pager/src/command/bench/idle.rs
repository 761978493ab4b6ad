//! Measures the memory and the processor time that a daemon takes for guests that do nothing.

use super::{Bench, Failure, check, other};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};
use slat_pager::twin::{Image, Memory, connect};
use slat_pager::{Folder, Library, PAGE, most_of_one_process};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Memory of each guest: 256 MiB. It has touched 16 pages, spread over all of it.
const IMAGE: Image = Image { seed: 1, pages: 64 << 10 };
const TOUCHED: usize = 16;
/// Length of the measurement of processor time.
const TIME: Duration = Duration::from_secs(10);

/// A daemon. The drop ends its processes.
struct Daemon {
    keeper: Child,
    worker: u32,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both at once: each would start the other again.
        _ = kill_process_group(Pid::from_child(&self.keeper), Signal::KILL);
        _ = self.keeper.wait();
    }
}

impl Daemon {
    fn start(folder: &Path, guests: u64) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe().map_err(other)?);
        command.arg("serve").arg("--store").arg(folder).args(["--per-process", &guests.to_string()]);
        command.arg("--guest").arg(format!("{}=idle", folder.join("socket").display()));
        let mut keeper = command.process_group(0).stderr(Stdio::piped()).spawn().map_err(other)?;
        let log = BufReader::new(keeper.stderr.take().ok_or_else(|| other("the daemon has no log"))?);
        let mut daemon = Self { keeper, worker: 0 };
        let mut lines = log.lines().map_while(Result::ok);
        for line in &mut lines {
            let line: serde_json::Value = serde_json::from_str(&line).map_err(|_| other(line))?;
            daemon.worker = line["worker"].as_u64().map_or(daemon.worker, |worker| worker as u32);
            if line["event"] == "ready" {
                // So that it never waits for this reader.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(daemon);
            }
        }
        Err(other("the daemon does not start"))
    }

    fn processes(&self) -> [(&'static str, u32); 2] {
        [("keeper", self.keeper.id()), ("worker", self.worker)]
    }
}

/// Returns the resident bytes of a process, without the pages of files, and its threads.
fn memory(process: u32) -> Result<(u64, u64), Failure> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).map_err(other)?;
    let number = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let kib = number("RssAnon:").zip(number("RssShmem:")).map(|(own, shared)| own + shared);
    Ok((kib.unwrap_or(0) << 10, number("Threads:").unwrap_or(0)))
}

/// Returns the processor time of a process.
fn time(process: u32) -> Result<Duration, Failure> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).map_err(other)?;
    let of_task = |path: &Path| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    let all = tasks.flatten().filter_map(|task| of_task(&task.path())).sum();
    Ok(Duration::from_nanos(all))
}

impl Bench {
    pub(super) fn idle(&self, folder: &Path) -> Result<(), Failure> {
        let guests = self.idle.unwrap_or(1);
        let size = (IMAGE.pages * PAGE) as u64;
        let library = Library::new(Folder::open(folder).map_err(other)?);
        library.snapshot("idle", IMAGE.read(), size, 256 << 10).map_err(other)?;
        let limit = getrlimit(Resource::Nofile);
        _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let most = most_of_one_process(limit.maximum.unwrap_or(u64::MAX));
        if guests >= most as u64 {
            return Err(other(format!("a daemon takes {most} guests of this process: raise `ulimit -Hn`")));
        }
        let daemon = Daemon::start(folder, guests + 1)?;
        // The first guest fills the cache of chunks.
        let mut all = vec![guest(folder)?];
        let before = daemon.processes().map(|(_, process)| memory(process));
        for _ in 0..guests {
            all.push(guest(folder)?);
        }
        println!(
            "idle: {guests} guests of {} MiB, {TOUCHED} pages of each touched; processor time of {} s",
            size >> 20,
            TIME.as_secs()
        );
        let times = daemon.processes().map(|(_, process)| time(process));
        let began = Instant::now();
        std::thread::sleep(TIME);
        let took = began.elapsed();
        let (mut bytes, mut percent) = (0, 0.0);
        for (((name, process), before), spent) in daemon.processes().into_iter().zip(before).zip(times) {
            let ((after, threads), (before, _)) = (memory(process)?, before?);
            let share = (time(process)?.saturating_sub(spent?)).as_secs_f64() / took.as_secs_f64() * 100.0;
            let each = after.saturating_sub(before) / guests;
            println!(
                "  {name}  {:.1} KB a guest, {threads} threads, {share:.2} % of a processor",
                each as f64 / 1e3
            );
            (bytes, percent) = (bytes + each, percent + share);
        }
        println!("  both    {:.1} KB a guest, {percent:.2} % of a processor", bytes as f64 / 1e3);
        Ok(())
    }
}

/// Starts a guest that touches its pages, and then does nothing.
fn guest(folder: &Path) -> Result<impl Sized, Failure> {
    let memory = Memory::new(IMAGE, false).map_err(other)?;
    let held = connect(&folder.join("socket"), &memory, false).map_err(other)?;
    for page in (0..IMAGE.pages).step_by(IMAGE.pages / TOUCHED) {
        check(&memory, page)?;
    }
    Ok((held, memory))
}
