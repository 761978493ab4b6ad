//! The protocol twin: a process that does what a VMM does, and knows what each byte must be.
//!
//! It maps memory in two regions, registers it with a userfaultfd, and sends Firecracker's handshake. Threads touch pages at random
//! as vCPUs; another one gives pages back as a balloon. Each page has a lock and a version: what was last done to it.

mod bare;
mod image;
mod memory;
mod vcpus;

pub use bare::{bare, copy_each};
pub use image::{Image, is_page};
pub use memory::Memory;

use crate::uffd::{Features, PAGE, Uffd};
use crate::wire::send;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a twin does.
#[derive(Debug, Clone)]
pub struct Twin {
    /// The pager's socket.
    pub socket: PathBuf,
    /// What the template's image was made of.
    pub image: Image,
    /// What this guest does with it.
    pub seed: u64,
    /// Threads that touch pages.
    pub vcpus: usize,
    /// How long.
    pub time: Duration,
    /// Whether there is a balloon.
    pub balloon: bool,
    /// Whether the memory is shared memory, with faults of pages that are in it.
    pub shared: bool,
    /// After how long without an access the guest counts as frozen.
    pub patience: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Pages that were touched, each time counted.
    pub accesses: u64,
    /// Pages that were given back.
    pub removed: u64,
    /// Pages with a wrong byte, each time counted.
    pub wrong: u64,
    /// What the first one was.
    pub first: Option<String>,
    /// No access for a long time.
    pub frozen: bool,
    /// Nanoseconds of the longest access.
    pub longest: u64,
}

impl Report {
    /// Whether every byte was right, and the guest ran.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && !self.frozen && self.accesses > 0
    }
}

impl Twin {
    /// Runs the guest, and looks at each page at the end. Threads of a frozen guest do not come back: end the process.
    pub fn run(&self) -> io::Result<Report> {
        let mut features = Features::REMOVE.and(Features::POISON);
        if self.shared {
            features = features.and(Features::SHARED).and(Features::MINOR);
        }
        let uffd = Uffd::new(features)?;
        let memory = Box::leak(Box::new(Memory::new(self.image, self.shared)?));
        for (start, size, _) in memory.regions() {
            uffd.register(start, size, self.shared)?;
        }
        // Kept open until the end, as Firecracker does; and so is the userfaultfd: no pager means no page, not zeros.
        let connection = UnixStream::connect(&self.socket)?;
        send(connection.as_fd(), handshake(memory).as_bytes(), &[uffd.as_fd()])?;
        let shared: &'static vcpus::Shared = Box::leak(Box::new(vcpus::Shared::new(memory)));
        let until = Instant::now() + self.time;
        let mut threads = Vec::new();
        for number in 0..self.vcpus as u64 {
            let seed = self.seed << 8 | number;
            threads.push(std::thread::spawn(move || shared.vcpu(seed, until)));
        }
        if self.balloon {
            let (seed, can_stay) = (self.seed << 8 | 0xFF, self.shared);
            threads.push(std::thread::spawn(move || shared.balloon(seed, until, can_stay)));
        }
        // The last look is a thread too: it may freeze as well.
        let last = std::thread::spawn(move || {
            for thread in threads {
                _ = thread.join();
            }
            shared.look_at_all();
        });
        let frozen = !self.watch(&shared.accesses, || last.is_finished());
        drop((connection, uffd));
        Ok(Report { frozen, ..shared.report() })
    }

    /// Waits until `finished`, while there are accesses. Whether it finished.
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

/// As Firecracker writes it, with a field that no pager knows yet.
fn handshake(memory: &Memory) -> String {
    let mapping = |(base, size, offset)| {
        format!(
            r#"{{"base_host_virt_addr":{base},"size":{size},"offset":{offset},"page_size":{PAGE},"page_size_kib":{PAGE},"gpa_start":{offset}}}"#
        )
    };
    let mappings: Vec<String> = memory.regions().into_iter().map(mapping).collect();
    format!("[{}]", mappings.join(","))
}
