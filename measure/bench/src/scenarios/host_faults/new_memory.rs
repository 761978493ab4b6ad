//! New memory that threads fill: how much, in pages of which size, and the result of one sample.

use crate::parts::mm_vm::machine as vm_of;
pub use crate::parts::sim_host::BASE;
use crate::scenarios::demand_paging::first_touch::Fixture;
use crate::scenarios::threads_prelude::*;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The name of the entrant that fills the memory.
pub const SLAT: &str = "slat on slat-mm";
pub const LINUX: &str = "Linux";

/// A job, and who does it.
pub type Entrant = (Job, &'static str);

/// The job, the same for both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    pub threads: u16,
    /// Of each thread's part: whole pages of 2 MiB.
    pub bytes: u64,
    /// A page of 4 KiB or of 2 MiB.
    pub page: Level,
}

impl Job {
    /// All of the memory, in bytes.
    pub fn all(&self) -> u64 {
        u64::from(self.threads) * self.bytes
    }

    /// Faults of all threads.
    pub fn faults(&self) -> u64 {
        self.all() / self.page.bytes()
    }

    /// The size of a page, in words.
    pub fn pages(&self) -> &'static str {
        if self.page == Level::K4 { "4K" } else { "2M" }
    }

    /// A sample of it.
    pub fn sample(&self, [fill_ns, unmap_ns]: [f64; 2], tally: Vec<Tally>) -> Sample {
        let pages = (self.all() / PAGE_SIZE) as f64;
        Sample { fill_ns: fill_ns / self.faults() as f64, unmap_ns: unmap_ns / pages, tally }
    }
}

/// The result of one sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// From the line until the last thread was done, in nanoseconds for each fault.
    pub fill_ns: f64,
    /// The call that unmapped all of it, for each page of 4 KiB.
    pub unmap_ns: f64,
    /// The conditions that must hold.
    pub tally: Vec<Tally>,
}

/// Checks of both.
pub const RIGHT: &str = "every page holds what it has to";
pub const GONE: &str = "munmap left none";

// slat: vCPUs that fault in memory which slat-mm has mapped and not filled.

/// As much memory as is measured.
pub const MOST: u64 = 1 << 42;

/// A VM, registered.
pub type Machine = Arc<Vm<Npt4, HostView>>;

/// A VM whose guest memory is `bytes` bytes of a new address space on `arena`, with this behind it.
pub fn machine(
    arena: &Arc<Arena>,
    vcpus: u16,
    bytes: u64,
    backing: Backing,
    thp: bool,
) -> Result<(Arc<AddressSpace>, Machine)> {
    let space = AddressSpace::builder(arena).thp(thp).build()?;
    let vm = vm_of(&space, bytes, backing, |vm| vm.vcpus(vcpus.into())).map_err(Error::Machine)?;
    Ok((space, vm))
}

/// One sample: built anew, filled, unmapped.
pub fn slat_sample(job: &Job, arena: &Arc<Arena>) -> Result<Sample> {
    let (space, vm) = machine(arena, job.threads, job.all(), Backing::Anonymous, job.page == Level::M2)?;
    let pages = job.bytes / PAGE_SIZE;
    let parts: Vec<_> =
        (0..u64::from(job.threads)).map(|number| Span::sized(Gfn(number * pages), pages)).collect();
    let vcpus: Result<Vec<_>, _> = (0..u32::from(job.threads)).map(|number| Bare::new(&vm, number)).collect();
    let mut vcpus = vcpus.map_err(Error::Machine)?;
    let right = (RIGHT, host_has(&space, job.page));
    let fixture = Fixture { vm: &*vm, parts: &parts, page: job.page, right };
    let lap = fixture.run(&Costs::SERVER, &mut vcpus, || (), None).map_err(Error::Machine)?;
    let waits = space.stats().lock_waits + u64::from(vm.lock_waits().1 > 0);
    drop(vcpus);

    let began = Instant::now();
    space.munmap(&mut idle()?, Span::sized(BASE, job.all()))?;
    let unmap_ns = began.elapsed().as_nanos() as f64;
    let pages = (0..job.all()).step_by(job.page.bytes() as usize);
    let gone = pages.filter(|&at| space.lookup(BASE + at, Access::Read).is_none()).count() as u64;
    let faults = job.faults();
    let mut tally = lap.tally;
    tally.push((GONE, [gone, faults]));
    tally.push(("no fault waited for a lock", [faults.saturating_sub(waits), faults]));
    Ok(job.sample([lap.stats.wall_ns as f64, unmap_ns], tally))
}

// Linux: threads that store to anonymous memory for the first time.

/// Whether this is the system that slat-mm is compared with.
pub fn linux_is_here() -> bool {
    cfg!(target_os = "linux")
}

/// Whether the kernel gives huge pages where it is asked to.
pub fn has_huge() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|enabled| !enabled.contains("[never]"))
}

/// One sample: mapped anew, filled, unmapped.
pub fn linux_sample(job: &Job) -> Result<Sample> {
    let memory = Memory::map(job)?;
    let faults = job.faults();
    let fill = |_: &mut Idle, number, ()| Ok::<_, Error>(fill(&memory, number, job));
    let (stats, faulted) = each_vcpu(&Costs::SERVER, (0..job.threads).map(|_| ()), fill, None)?;
    let fill_ns = stats.wall_ns as f64;
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
    fn map(job: &Job) -> Result<Self> {
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
    fn unmap(self) -> Result<u64> {
        // SAFETY: the mapping from above, which no thread uses any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        unmapped.map(|()| self.bytes as u64).map_err(|error| Error::Machine(format!("munmap: {error}")))
    }
}

/// Fills the part of thread `number`, and returns the faults that the kernel counted.
fn fill(memory: &Memory, number: u32, job: &Job) -> u64 {
    let (before, base) = (faults(), memory.at(u64::from(number) * job.bytes));
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
