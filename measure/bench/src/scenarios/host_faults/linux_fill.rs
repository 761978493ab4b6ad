//! Linux: threads that store to anonymous memory for the first time.

use super::fill_job::{GONE, Job, RIGHT, Sample};
use crate::scenarios::threads_prelude::*;
use crate::world::Job as Thread;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::{self, NonNull};

/// Whether this is the system that slat-mm is compared with.
pub fn is_here() -> bool {
    cfg!(target_os = "linux")
}

/// Whether the kernel gives huge pages where it is asked to.
pub fn has_huge() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|enabled| !enabled.contains("[never]"))
}

/// One sample: mapped anew, filled, unmapped.
pub fn sample(job: &Job) -> Result<Sample, Error> {
    let memory = Memory::map(job)?;
    let faults = job.faults();
    let mut faulted = vec![0; job.threads.into()];
    let threads = faulted.iter_mut().zip(0..).map(|(faulted, number): (_, u64)| {
        let memory = &memory;
        Thread::new("fill", move || *faulted = fill(memory, number, job))
    });
    let fill_ns = run(&Costs::SERVER, threads.collect()).wall_ns as f64;
    let faulted: u64 = faulted.iter().sum();
    let right = (0..job.all()).step_by(job.page.bytes() as usize).filter(|&at| {
        // SAFETY: a word of the mapping, which no thread uses now.
        unsafe { memory.at(at).read() == word(at % job.bytes) && memory.at(at + 8).read() == 0 }
    });
    let right = right.count() as u64;
    let bytes = job.all();
    let began = Instant::now();
    let gone = memory.unmap()?;
    let unmap_ns = began.elapsed().as_nanos() as f64;
    // The threads' own stacks fault, too, now and then.
    let gone = gone.min(bytes) / job.page.bytes();
    let tally = vec![
        ("every page was faulted in once", [faulted.min(faults), faults]),
        (RIGHT, [right, faults]),
        (GONE, [gone, faults]),
    ];
    Ok(job.sample([fill_ns, unmap_ns], tally))
}

/// The value that is stored at this offset of a part.
fn word(offset: u64) -> u64 {
    offset | 1
}

/// Anonymous memory, aligned to 2 MiB.
struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    /// Where the first page of 2 MiB begins.
    skip: usize,
}

// SAFETY: each thread uses a part of its own.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(job: &Job) -> Result<Self, Error> {
        let bytes = (job.all() + Level::M2.bytes()) as usize;
        let failed = |error: rustix::io::Errno| Error::Machine(format!("anonymous memory: {error}"));
        // SAFETY: a new mapping, at no address that is asked for.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let base: NonNull<u8> =
            NonNull::new(base.map_err(failed)?.cast()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let skip = base.as_ptr().align_offset(Level::M2.bytes() as usize);
        let memory = Self { base, bytes, skip };
        let advice = if job.page == Level::M2 { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the mapping from above. Where the kernel has no huge pages, it refuses both.
        let advised = unsafe { madvise(memory.base.as_ptr().cast(), bytes, advice) };
        if job.page == Level::M2 {
            advised.map_err(failed)?;
        }
        Ok(memory)
    }

    fn at(&self, offset: u64) -> *mut u64 {
        self.base.as_ptr().wrapping_add(self.skip + offset as usize).cast()
    }

    /// Unmaps it, and returns how many bytes that were.
    fn unmap(self) -> Result<u64, Error> {
        // SAFETY: the mapping from above, which no thread uses any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        unmapped.map(|()| self.bytes as u64).map_err(|error| Error::Machine(format!("munmap: {error}")))
    }
}

/// Fills the part of thread `number`, and returns the faults that the kernel counted.
fn fill(memory: &Memory, number: u64, job: &Job) -> u64 {
    let (before, base) = (faults(), memory.at(number * job.bytes));
    for at in (0..job.bytes).step_by(job.page.bytes() as usize) {
        // SAFETY: a word of this thread's part.
        unsafe { base.wrapping_byte_add(at as usize).write_volatile(word(at)) };
    }
    faults() - before
}

/// Minor faults of this thread so far.
fn faults() -> u64 {
    // SAFETY: all-zero is a valid `rusage`, and the call writes no more than one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    usage.ru_minflt as u64
}
