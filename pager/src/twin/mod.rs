//! The protocol twin: a simulated VMM, a process that checks each byte of its memory.
//!
//! It maps memory in two regions, registers it with a userfaultfd, and sends Firecracker's handshake. Threads touch
//! random pages as vCPUs; another one gives pages back as a balloon. Each page has a lock and the version of its last
//! content.

mod bare_loop;
mod image;
mod memory;
mod vcpus;

pub use bare_loop::{bare, copy_each, copy_mapped};
#[cfg(test)]
pub(crate) use image::mix;
pub use image::{Image, Versions, is_page};
pub use memory::Memory;
pub use vcpus::Report;

use crate::daemon::checkpoint;
use crate::uffd::{Features, HUGE_PAGE, Uffd};
use crate::wire::send;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Options of a twin.
#[derive(Debug, Clone)]
pub struct Twin {
    /// The pager's socket.
    pub socket: PathBuf,
    /// The template's image.
    pub image: Image,
    /// Seed of this guest's accesses.
    pub seed: u64,
    /// Number of threads that touch pages.
    pub vcpus: usize,
    /// Length of the run.
    pub time: Duration,
    /// True if a balloon thread gives pages back.
    pub balloon: bool,
    /// True for shared memory, with minor faults.
    pub shared: bool,
    /// Bytes of a page of the memory: 4 KiB, or 2 MiB.
    pub page_size: usize,
    /// True if the balloon always removes the pages that it gives back from shared memory.
    pub only_removes: bool,
    /// A file that clones share, which is mapped privately.
    pub clone_of: Option<PathBuf>,
    /// Time without an access after which the guest counts as frozen.
    pub patience: Duration,
    /// Initial versions of the pages, if not the template's.
    pub begin: Option<Versions>,
    /// The snapshots that it requests.
    pub checkpoints: Option<Checkpoints>,
}

/// Snapshots that a twin requests while it runs.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    /// The pager's control socket.
    pub control: PathBuf,
    /// Number of snapshots, called `NAME.1` and so on.
    pub count: u64,
    /// Base of their names.
    pub name: String,
    /// A folder with a file for each snapshot, which has the versions of its pages.
    pub oracle: PathBuf,
}

impl Twin {
    /// Runs the guest, and checks each page at the end. Threads of a frozen guest do not end, so end the process.
    pub fn run(&self) -> io::Result<Report> {
        let memory = Box::leak(Box::new(match &self.clone_of {
            Some(file) => Memory::clone_of(self.image, file)?,
            None if self.page_size == HUGE_PAGE => Memory::huge(self.image, self.shared)?,
            None => Memory::new(self.image, self.shared)?,
        }));
        let (connection, uffd) = connect(&self.socket, memory, self.shared)?;
        let shared: &'static vcpus::Shared =
            Box::leak(Box::new(vcpus::Shared::new(memory, self.begin.as_ref())));
        let until = Instant::now() + self.time;
        let mut threads = Vec::new();
        for number in 0..self.vcpus as u64 {
            let seed = self.seed << 8 | number;
            threads.push(std::thread::spawn(move || shared.vcpu(seed, until)));
        }
        if self.balloon {
            let (seed, is_shared, only) = (self.seed << 8 | 0xFF, self.shared, self.only_removes);
            threads.push(std::thread::spawn(move || shared.balloon(seed, until, is_shared, only)));
        }
        let checkpoints = self.checkpoints.clone().map(|checkpoints| {
            let pause = self.time / (checkpoints.count as u32 + 1);
            std::thread::spawn(move || checkpoints.run(shared, pause))
        });
        // The last check is a thread, too, because it may freeze as well.
        let last = std::thread::spawn(move || {
            for thread in threads {
                _ = thread.join();
            }
            // The guest runs until its snapshots are stored.
            while checkpoints.as_ref().is_some_and(|thread| !thread.is_finished()) {
                shared.look_at_all();
            }
            shared.look_at_all();
            checkpoints.map(|thread| thread.join().unwrap_or_default()).unwrap_or_default()
        });
        let frozen = !self.watch(&shared.accesses, || last.is_finished());
        drop((connection, uffd));
        let (stored, refused) = if frozen { (0, Vec::new()) } else { last.join().unwrap_or_default() };
        Ok(Report { frozen, stored, refused, ..shared.report() })
    }

    /// Waits until `finished`, while there are accesses. Returns whether it finished.
    fn watch(&self, accesses: &AtomicU64, finished: impl Fn() -> bool) -> bool {
        let (mut before, mut since) = (0, Instant::now());
        while !finished() {
            std::thread::sleep(Duration::from_millis(5));
            let now = accesses.load(Ordering::Relaxed);
            if now != before {
                (before, since) = (now, Instant::now());
            } else if since.elapsed() > self.patience {
                return false;
            }
        }
        true
    }
}

impl Checkpoints {
    /// Requests the snapshots. Returns the number of stored ones, and the errors of the others.
    fn run(&self, shared: &vcpus::Shared, pause: Duration) -> (u64, Vec<String>) {
        let (mut stored, mut refused) = (0, Vec::new());
        for number in 1..=self.count {
            std::thread::sleep(pause);
            let name = format!("{}.{number}", self.name);
            match self.one(shared, &name) {
                Ok(()) => stored += 1,
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
        (stored, refused)
    }

    fn one(&self, shared: &vcpus::Shared, name: &str) -> io::Result<()> {
        let pid = std::process::id() as i32;
        let (resume, resumed) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            // It requests the snapshot when all threads have stopped, and resumes them at the instant, or at an error.
            let (asking, versions) = shared.stopped(|versions| {
                let asking = scope.spawn(|| {
                    let resume = resume;
                    checkpoint(&self.control, pid, name, move |_| drop(resume))
                });
                _ = resumed.recv();
                (asking, versions)
            });
            asking.join().map_err(|_| io::Error::other("the asking thread panicked"))??;
            std::fs::write(self.oracle.join(name), serde_json::to_vec(&versions)?)
        })
    }
}

/// Registers memory, and sends it to a pager. Both results stay open until the guest's end, as in Firecracker, so that
/// without a pager a fault waits and gets no zeros.
pub fn connect(socket: &Path, memory: &Memory, is_shared: bool) -> io::Result<(UnixStream, Uffd)> {
    let mut features = Features::REMOVE.and(Features::POISON);
    if is_shared || memory.is_clone() {
        features = features.and(Features::SHARED).and(Features::MINOR);
    }
    let uffd = Uffd::new(features)?;
    for (start, size, _) in memory.regions() {
        uffd.register(start, size, is_shared)?;
    }
    let connection = UnixStream::connect(socket)?;
    let mut fds = vec![uffd.as_fd()];
    fds.extend(memory.file());
    send(connection.as_fd(), handshake(memory).as_bytes(), &fds)?;
    Ok((connection, uffd))
}

/// Returns the handshake as Firecracker writes it, with a field that no pager knows yet.
fn handshake(memory: &Memory) -> String {
    let page = memory.page_size();
    let mapping = |(base, size, offset)| {
        format!(
            r#"{{"base_host_virt_addr":{base},"size":{size},"offset":{offset},"page_size":{page},"page_size_kib":{page},"gpa_start":{offset}}}"#
        )
    };
    let mappings: Vec<String> = memory.regions().into_iter().map(mapping).collect();
    format!("[{}]", mappings.join(","))
}
