//! A daemon with a store of its own, and guests of it.

use slat_pager::twin::{Image, Report};
use slat_pager::{Features, Folder, GuestStats, Library, PAGE, Uffd};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Memory of a guest in MiB.
pub const MIB: usize = 16;
/// The image of the templates.
pub const IMAGE: Image = Image { seed: 1, pages: (MIB << 20) / PAGE };
/// Time limit of each step of a process.
const BOUND: Duration = Duration::from_secs(30);

pub fn is_offered() -> bool {
    Uffd::new(Features::REMOVE).inspect_err(|error| println!("skipped: no userfaultfd: {error}")).is_ok()
}

pub fn folder(name: &str) -> PathBuf {
    // In memory if possible: nothing here must survive a crash.
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    remove_abandoned(&base);
    let folder = base.join(format!("slat-pager-{name}-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Removes the folders of processes that have gone: a test that fails leaves its folder, which is memory.
fn remove_abandoned(base: &Path) {
    for entry in std::fs::read_dir(base).unwrap().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().and_then(|name| name.strip_prefix("slat-pager-")?.rsplit_once('-'));
        let process = ours.and_then(|(_, process)| process.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[test]
fn a_folder_of_a_process_that_has_gone_is_removed() {
    let mine = folder("mine");
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let theirs = mine.with_file_name(format!("slat-pager-theirs-{}", gone.id()));
    std::fs::create_dir(&theirs).unwrap();
    std::fs::create_dir(mine.join("more")).unwrap();
    let other = folder("other");
    assert_eq!([&theirs, &mine, &other].map(|folder| folder.exists()), [false, true, true]);
    std::fs::remove_dir_all(mine).unwrap();
    std::fs::remove_dir_all(other).unwrap();
}

/// Makes a file with the image of the templates.
pub fn image(folder: &Path) -> PathBuf {
    let path = folder.join("image");
    let mut image = std::fs::File::create(&path).map(std::io::BufWriter::new).unwrap();
    IMAGE.write(&mut image).unwrap();
    path
}

pub fn library(folder: &Path) -> Library {
    Library::new(Folder::open(folder.join("store")).unwrap())
}

/// Makes a folder with a store, and the template `twin` in it.
pub fn with_template(name: &str) -> PathBuf {
    let folder = folder(name);
    library(&folder).snapshot("twin", IMAGE.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    folder
}

/// Returns the command that serves a template of a store at `socket` in this folder.
fn serve(folder: &Path, store: &str, template: &str) -> Command {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
    serve.args(["serve", "--store", store, "--guest"]);
    serve.arg(format!("{}={template}", folder.join("socket").display()));
    serve
}

/// Restores a guest of `mib` MiB from a snapshot in the store of this folder, in a daemon of its own, beside a balloon.
/// Compares its bytes with the snapshot's versions in `oracle` in this folder.
pub fn restored(folder: &Path, name: &str, mib: usize) -> Report {
    let own = folder.join(format!("restored.{name}"));
    std::fs::create_dir(&own).unwrap();
    let serve = serve(&own, folder.join("store").to_str().unwrap(), name);
    let oracle = folder.join("oracle").join(name);
    let words = format!("--millis 50 --balloon --patience-ms 20000 --begin {}", oracle.display());
    Daemon::run(own, serve).twin_of(mib, &words).report_within(10 * BOUND)
}

pub struct Daemon {
    pub folder: PathBuf,
    pub worker: i32,
    keeper: Child,
    log: Mutex<Receiver<String>>,
    /// Lines of the log before an awaited one, which still count.
    early: Mutex<VecDeque<String>>,
}

impl Daemon {
    /// Serves the template `twin`, in a folder of its own. `None`: there is no userfaultfd.
    pub fn start(name: &str, flags: &str) -> Option<Self> {
        is_offered().then(|| Self::in_folder(with_template(name), flags))
    }

    /// Serves an image, by the command line of Firecracker's example handlers.
    pub fn of_image(name: &str) -> Option<Self> {
        is_offered().then(|| {
            let folder = folder(name);
            image(&folder);
            let mut handler = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
            handler.arg(folder.join("socket")).arg(folder.join("image"));
            Self::run(folder, handler)
        })
    }

    /// Serves an image of an NBD server.
    pub fn of_nbd(folder: PathBuf, address: &str) -> Self {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        serve.args(["serve", "--cache", "1M", "--image"]);
        serve.arg(format!("{}={address}", folder.join("socket").display()));
        Self::run(folder, serve)
    }

    pub fn in_folder(folder: PathBuf, flags: &str) -> Self {
        let store = folder.join("store").display().to_string();
        Self::of_store(folder, &store, flags, &[])
    }

    /// Serves the template `twin` of a store, with these variables in its environment.
    pub fn of_store(folder: PathBuf, store: &str, flags: &str, environment: &[(&str, &str)]) -> Self {
        let mut serve = serve(&folder, store, "twin");
        serve.args(flags.split_whitespace()).envs(environment.iter().copied());
        Self::run(folder, serve)
    }

    /// Serves the template `twin` by another program.
    pub fn of_program(program: &Path, folder: PathBuf, flags: &str) -> Self {
        let mut words = serve(&folder, folder.join("store").to_str().unwrap(), "twin");
        words.args(flags.split_whitespace());
        let mut command = Command::new(program);
        command.args(words.get_args());
        Self::run(folder, command)
    }

    fn run(folder: PathBuf, command: Command) -> Self {
        let mut daemon = Self::spawn(folder, command);
        daemon.next_worker();
        daemon
    }

    /// Serves the template `twin`, without waiting until the daemon serves.
    pub fn unready(folder: PathBuf) -> Self {
        let serve = serve(&folder, folder.join("store").to_str().unwrap(), "twin");
        Self::spawn(folder, serve)
    }

    fn spawn(folder: PathBuf, mut command: Command) -> Self {
        // A process group, so that all processes can be ended at once: keeper and worker restart each other.
        let mut keeper = command.process_group(0).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(keeper.stderr.take().unwrap()).lines();
        let (send, log) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { folder, worker: 0, keeper, log: Mutex::new(log), early: Mutex::default() }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Waits for the next worker.
    pub fn started(&self) -> i32 {
        self.find(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(line["worker"].as_i64()? as i32)
        })
    }

    /// Returns the first result of `find` on a line of the log.
    pub fn find<T>(&self, find: impl Fn(&str) -> Option<T>) -> T {
        let (until, mut others) = (Instant::now() + BOUND, Vec::new());
        loop {
            let early = self.early.lock().unwrap().pop_front();
            let line = early.unwrap_or_else(|| self.line(until, &others));
            if let Some(found) = find(&line) {
                return found;
            }
            others.push(line);
        }
    }

    fn line(&self, until: Instant, others: &[String]) -> String {
        let left = until.saturating_duration_since(Instant::now());
        let line = self.log.lock().unwrap().recv_timeout(left);
        line.unwrap_or_else(|error| panic!("the log has no such line, {error}: {others:#?}"))
    }

    /// Waits until the last worker has all guests. From then on the keeper may be killed.
    pub fn is_ready(&self) {
        let until = Instant::now() + BOUND;
        let mut early = self.early.lock().unwrap();
        loop {
            let line = self.line(until, &[]);
            if line.contains("\"ready\"") {
                return;
            }
            early.push_back(line);
        }
    }

    /// Kills the worker, and waits for the next one.
    pub fn kill(&mut self) {
        self.kill_worker();
        self.next_worker();
    }

    pub fn kill_worker(&self) {
        let pid = rustix::process::Pid::from_raw(self.worker).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    pub fn next_worker(&mut self) {
        self.worker = self.started();
        self.is_ready();
    }

    /// Asks the daemon to take no further guest, and to end with its last one.
    pub fn drain(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Sends a signal to the keeper.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.keeper);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end of a draining daemon.
    pub fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + BOUND;
        loop {
            if let Some(status) = self.keeper.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal to keeper and worker, as a terminal does.
    pub fn signal_all(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process_group(rustix::process::Pid::from_child(&self.keeper), signal).unwrap();
    }

    /// Kills the keeper.
    pub fn kill_keeper(&self) {
        let keeper = rustix::process::Pid::from_child(&self.keeper);
        rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
    }

    /// Waits for the keeper that follows a killed one.
    pub fn next_keeper(&self) -> rustix::process::Pid {
        let keeper = self.find(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            line["keeper"].as_i64()
        });
        rustix::process::Pid::from_raw(keeper as i32).unwrap()
    }

    /// Returns the rest of the log, once all of its processes have ended.
    pub fn rest(&self) -> Vec<String> {
        let (until, mut lines) = (Instant::now() + BOUND, Vec::new());
        loop {
            match self.log.lock().unwrap().recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => return lines,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {lines:?}"),
            }
        }
    }

    pub fn twin(&self, flags: &str) -> Twin {
        self.twin_of(MIB, flags)
    }

    /// Starts a guest with `mib` MiB of memory.
    pub fn twin_of(&self, mib: usize, flags: &str) -> Twin {
        Twin::at(&self.socket(), mib, flags)
    }

    /// Returns the counters of the guest that ends next.
    pub fn stats(&self) -> GuestStats {
        self.find(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            serde_json::from_value(line.get("stats")?.clone()).ok()
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.keeper);
        _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        _ = self.keeper.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A process with its output.
pub struct Twin(pub Child);

impl Twin {
    /// Starts a guest with `mib` MiB of memory that connects to this socket.
    pub fn at(socket: &Path, mib: usize, flags: &str) -> Twin {
        let mut twin = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        twin.arg("twin").arg(socket).arg(format!("--memory={mib}M")).args(flags.split_whitespace());
        Self(twin.stdout(Stdio::piped()).spawn().unwrap())
    }

    pub fn report(self) -> Report {
        self.report_within(BOUND)
    }

    pub fn report_within(self, bound: Duration) -> Report {
        let (status, output) = self.end_within(bound);
        let report: Report =
            serde_json::from_str(&output).unwrap_or_else(|error| panic!("{status}: {error}: {output}"));
        assert_eq!(status.code(), Some(if report.is_right() { 0 } else { 3 }));
        report
    }

    pub fn end(self) -> (ExitStatus, String) {
        self.end_within(BOUND)
    }

    fn end_within(mut self, bound: Duration) -> (ExitStatus, String) {
        let until = Instant::now() + bound;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        // A pipe's buffer exceeds a report.
        let output = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        (self.0.wait().unwrap(), output)
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
