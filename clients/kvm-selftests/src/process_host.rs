//! The host: this process. A frame's number is its address, so no page ever moves. The host invalidates what the test
//! unmaps or frees.

use crate::moves;
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, Pfn, Span};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex};

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
        let hva = moves::address(hva).ok_or(HostError::Fault)?;
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
