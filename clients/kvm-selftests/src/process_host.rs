//! The host: this process. A frame's number is its address, so no page ever moves. The host invalidates what the test
//! unmaps or frees.

use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, Pfn, PrivateMemory, Span};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex, RwLock};

/// This process as a host: frame numbers are its own addresses.
#[derive(Debug)]
pub struct Process;

/// A VM on this host.
pub type Engine = slat::Vm<slat::table::formats::Ept4, Process>;

/// The addresses for which the test has asked for transparent large pages.
static LARGE: Mutex<Vec<Span<Hva>>> = Mutex::new(Vec::new());

const LARGE_BYTES: u64 = Level::M2.pages() * slat::PAGE_SIZE;

/// Notes that `madvise(MADV_HUGEPAGE)`, or `MADV_NOHUGEPAGE`, of these addresses has succeeded.
pub fn advised(hvas: Span<Hva>, large: bool) {
    let mut all = LARGE.lock().unwrap();
    all.retain(|other| !other.overlaps(&hvas));
    if large {
        all.push(hvas);
    }
}

/// The addresses of each private memory in this process, empty once it has gone.
static PRIVATE: RwLock<Vec<Span<Hva>>> = RwLock::new(Vec::new());

impl Process {
    /// Maps `fd`, the memory of a guest_memfd, for guests alone.
    pub fn add_private(fd: c_int, bytes: u64) -> Result<PrivateMemory, c_int> {
        let mut all = PRIVATE.write().unwrap();
        let number = u16::try_from(all.len()).ok().filter(|&number| number < PrivateMemory::COUNT);
        let number = number.ok_or(libc::EMFILE)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(libc::ENOMEM);
        }
        all.push(Span::sized(Hva(at as u64), bytes));
        Ok(PrivateMemory(number))
    }

    /// From now on the memory has no pages. Returns its addresses, which the caller unmaps when no guest uses them.
    pub fn forget_private(memory: PrivateMemory) -> Span<Hva> {
        std::mem::replace(&mut PRIVATE.write().unwrap()[usize::from(memory.0)], Span::sized(Hva(0), 0))
    }

    /// The address in this process of an address in private memory, or of one in the process.
    fn address(hva: Hva) -> Option<Hva> {
        let Some((PrivateMemory(number), offset)) = hva.private_memory() else { return Some(hva) };
        let memory = PRIVATE.read().unwrap()[usize::from(number)];
        (offset < memory.len()).then(|| memory.start + offset)
    }
}

/// Makes pages present as KVM does: through the process's own fault handler (userfaultfd, where it is registered).
/// False on failure.
fn populate(hvas: Span<Hva>, access: Access) -> bool {
    let how = if access == Access::Write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: contents do not change. By number: `madvise` of this library listens to the test's.
    unsafe { libc::syscall(libc::SYS_madvise, hvas.start.0, hvas.end.0 - hvas.start.0, how) == 0 }
}

/// The flushes that the host leaves out: all, or those of harvests.
static SABOTAGE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("SLAT_SABOTAGE").ok());
static HARVESTING: AtomicBool = AtomicBool::new(false);

/// Runs `work`, which collects dirty pages.
pub fn harvesting<R>(work: impl FnOnce() -> R) -> R {
    HARVESTING.store(true, SeqCst);
    let result = work();
    HARVESTING.store(false, SeqCst);
    result
}

/// The large page around `hva`, if the test has asked for large pages there.
pub fn large_page(hva: Hva) -> Option<Span<Hva>> {
    let page = Span::sized(Hva(hva.0 & !(LARGE_BYTES - 1)), LARGE_BYTES);
    LARGE.lock().unwrap().iter().any(|large| large.covers(&page)).then_some(page)
}

/// Whether all of a large page is present.
fn is_resident(page: Span<Hva>) -> bool {
    let mut present = [0u8; Level::M2.pages() as usize];
    // SAFETY: one byte for each page.
    let asked = unsafe { libc::mincore(page.start.0 as *mut _, LARGE_BYTES as usize, present.as_mut_ptr()) };
    asked == 0 && present.iter().all(|present| present & 1 != 0)
}

impl Host for Process {
    /// Answers for large pages: the engine recovers those that a dirty log has split.
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let page = if hva.private_memory().is_some() { None } else { large_page(hva) };
        let pfn = Pfn(hva.0 >> slat::PAGE_SHIFT);
        page.filter(|&page| is_resident(page)).map(|_| HostPage { pfn, level: Level::M2, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let hva = Self::address(hva).ok_or(HostError::Fault)?;
        let pfn = Pfn(hva.0 >> slat::PAGE_SHIFT);
        if large_page(hva).is_some_and(|page| populate(page, access)) {
            return Ok(HostPage { pfn, level: Level::M2, ..HostPage::PLAIN });
        }
        if populate(Span::sized(Hva(pfn.0 << slat::PAGE_SHIFT), slat::PAGE_SIZE), access) {
            Ok(HostPage { pfn, ..HostPage::PLAIN })
        } else {
            Err(HostError::Fault)
        }
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        // Negative controls: says that it is done, and does nothing.
        match SABOTAGE.as_deref() {
            Some("flushes") => true,
            Some("rearm") => HARVESTING.load(SeqCst),
            _ => false,
        }
    }

    // `kick` does nothing: processors check for flushes at each block of instructions.
}
