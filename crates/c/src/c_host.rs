//! Implements slat's host by the host's functions, and a TLB by a vCPU's functions. Checks the answers of C.

use crate::status::slat_status;
use crate::types::{SLAT_PAGE_NO_EXECUTE, SLAT_PAGE_WRITE, memory};
use crate::{
    slat_access, slat_event, slat_event_kind, slat_host, slat_page, slat_status_raw, slat_thread, slat_tlb,
};
use core::ffi::c_void;
use core::ptr::NonNull;
use slat::table::{Heap, Own, TableMemory, TablesOf};
use slat::trace::{FaultResult, TraceEvent};
use slat::{
    Access, CpuId, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span, Token,
    Translations, VcpuId,
};

/// The host's functions.
#[derive(Debug)]
pub(crate) struct CHost {
    host: slat_host,
    /// Upper bound of the frames that the format can express.
    frames: u64,
}

// SAFETY: `slat_vm_new` has its caller promise that any thread may be in any of these functions.
unsafe impl Send for CHost {}
// SAFETY: as above.
unsafe impl Sync for CHost {}

impl CHost {
    /// Returns `None` if a required function is missing. `address` is the format's address bits.
    pub(crate) fn new(host: &slat_host, address: u64) -> Option<Self> {
        let is_whole = host.size == size_of::<slat_host>()
            && host.resolve.is_some()
            && host.alloc_tables.is_some() == host.free_tables.is_some()
            && host.table_offset.is_multiple_of(1 << PAGE_SHIFT);
        is_whole.then_some(Self { host: *host, frames: 1 << address.count_ones() })
    }

    /// Checks and converts the host's answer.
    pub(crate) fn page(&self, page: &slat_page) -> Option<HostPage> {
        let level = Level::new(page.level.clamp(1, 4) as u8).filter(|level| *level <= Level::G1)?;
        let writable = page.flags & SLAT_PAGE_WRITE != 0;
        let execute = page.flags & SLAT_PAGE_NO_EXECUTE == 0;
        let memory = memory(page.memory)?;
        (page.pfn < self.frames).then_some(HostPage { pfn: Pfn(page.pfn), level, writable, execute, memory })
    }
}

// SAFETY: memory comes from the heap or from the host, which promises that it is unused, and is refused where it is misaligned
// or the format cannot name it; frame and address differ by the same number of whole pages.
unsafe impl TableMemory for CHost {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let bytes = pages << PAGE_SHIFT;
        let first = match self.host.alloc_tables {
            // SAFETY: the host's own function and pointer.
            Some(alloc) => NonNull::new(unsafe { alloc(self.host.user, bytes) }.cast::<u8>())?,
            None => Heap.lend(pages)?.0,
        };
        let pfn =
            Pfn((first.as_ptr().expose_provenance() as u64).wrapping_sub(self.host.table_offset)
                >> PAGE_SHIFT);
        let fits = pfn.0.checked_add(pages as u64).is_some_and(|end| end <= self.frames) && pfn != Pfn(0);
        if fits && first.addr().get().is_multiple_of(bytes) {
            return Some((first, pfn));
        }
        // SAFETY: allocated above.
        unsafe { self.take_back(first, pfn, pages) };
        None
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        match self.host.free_tables {
            // SAFETY: the host's own function and pointer; the memory is its own, and unused, by the caller's contract.
            Some(free) => unsafe { free(self.host.user, first.as_ptr().cast(), pages << PAGE_SHIFT) },
            // SAFETY: allocated by the heap; required of the caller.
            None => unsafe { Heap.take_back(first, pfn, pages) },
        }
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        let address = pfn.address().wrapping_add(self.host.table_offset);
        // SAFETY: the address of a table page, which is never null.
        unsafe { NonNull::new_unchecked(core::ptr::with_exposed_provenance_mut(address as usize)) }
    }
}

const OK: slat_status_raw = slat_status::SLAT_OK as u32;
const NO_MEMORY: slat_status_raw = slat_status::SLAT_ENOMEM as u32;
const POISONED: slat_status_raw = slat_status::SLAT_EPOISONED as u32;
const IO: slat_status_raw = slat_status::SLAT_EIO as u32;
const PENDING: slat_status_raw = slat_status::SLAT_EINPROGRESS as u32;
const NEEDS_PAGE: slat_status_raw = slat_status::SLAT_ENODATA as u32;

fn named(access: Access) -> u32 {
    let name = match access {
        Access::Read => slat_access::SLAT_READ,
        Access::Write => slat_access::SLAT_WRITE,
        Access::Fetch => slat_access::SLAT_FETCH,
    };
    name as u32
}

impl Host for CHost {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let mut page = slat_page::default();
        // SAFETY: the host's own function and pointer; `page` is ours.
        let status = unsafe { self.host.lookup?(self.host.user, hva.0, named(access), &raw mut page) };
        if status == OK { self.page(&page) } else { None }
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let resolve = self.host.resolve.ok_or(HostError::Fault)?;
        let (mut page, thread) = (slat_page::default(), slat_thread::lent(idle));
        // SAFETY: the host's own function and pointer; `page` and the token are ours until it returns.
        let status =
            unsafe { resolve(self.host.user, &raw const thread, hva.0, named(access), &raw mut page) };
        match status {
            OK => self.page(&page).ok_or(HostError::Fault),
            NO_MEMORY => Err(HostError::NoMemory),
            POISONED => Err(HostError::Poisoned),
            IO => Err(HostError::Io),
            PENDING => Err(HostError::Pending),
            NEEDS_PAGE => Err(HostError::NeedsPage),
            _ => Err(HostError::Fault),
        }
    }

    fn token(&self, hva: Hva) -> Token {
        Token(match self.host.token {
            // SAFETY: the host's own function and pointer.
            Some(token) => unsafe { token(self.host.user, hva.0) },
            None => hva.0 & !(PAGE_SIZE - 1),
        })
    }

    fn kick(&self, vcpu: VcpuId) {
        if let Some(kick) = self.host.kick {
            // SAFETY: the host's own function and pointer.
            unsafe { kick(self.host.user, vcpu.0) }
        }
    }

    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        // SAFETY: the host's own function and pointer.
        self.host
            .broadcast_flush
            .is_some_and(|flush| unsafe { flush(self.host.user, gfns.start.0, gfns.len()) })
    }

    #[inline]
    fn observe(&self, event: TraceEvent) {
        if let Some(observe) = self.host.observe
            && let Some(event) = told(event)
        {
            // SAFETY: the host's own function and pointer; the event is ours until it returns.
            unsafe { observe(self.host.user, &raw const event) }
        }
    }
}

/// Converts an event for C. `None` if `slat.h` has no name for it.
fn told(event: TraceEvent) -> Option<slat_event> {
    use slat_event_kind as Kind;
    let about = |kind, gfns: Span<Gfn>| slat_event {
        kind: kind as u32,
        vcpu: 0,
        gfn: gfns.start.0,
        frames: gfns.len(),
        count: 0,
        level: 0,
        access: 0,
        cause: core::ptr::null(),
        cause_bytes: 0,
    };
    let nowhere = Span::sized(Gfn(0), 0);
    let because = |event: slat_event, cause: &'static str| slat_event {
        cause: cause.as_ptr().cast(),
        cause_bytes: cause.len(),
        ..event
    };
    let number = |level: Level| u32::from(level.number());
    Some(match event {
        TraceEvent::Fault { vcpu, gfn, access, result } => {
            let (kind, level) = match result {
                FaultResult::Mapped(level) => (Kind::SLAT_EVENT_MAPPED, number(level)),
                FaultResult::Fixed => (Kind::SLAT_EVENT_FIXED, 0),
                FaultResult::Spurious => (Kind::SLAT_EVENT_SPURIOUS, 0),
                FaultResult::Mmio => (Kind::SLAT_EVENT_MMIO, 0),
                FaultResult::Deferred => (Kind::SLAT_EVENT_DEFERRED, 0),
                FaultResult::Failed => (Kind::SLAT_EVENT_FAILED, 0),
                _ => return None,
            };
            slat_event { vcpu: vcpu.0, level, access: named(access), ..about(kind, Span::sized(gfn, 1)) }
        }
        TraceEvent::Retry { vcpu, gfn, cause } => {
            let retry = about(Kind::SLAT_EVENT_RETRY, Span::sized(gfn, 1));
            because(slat_event { vcpu: vcpu.0, ..retry }, cause.name())
        }
        TraceEvent::Zap { gfns, level, leaves, cause } => {
            let zap = about(Kind::SLAT_EVENT_ZAP, gfns);
            because(slat_event { level: number(level), count: leaves, ..zap }, cause.name())
        }
        TraceEvent::Split { gfn, level } => {
            slat_event { level: number(level), ..about(Kind::SLAT_EVENT_SPLIT, Span::sized(gfn, 1)) }
        }
        TraceEvent::Recovered { gfn, level } => {
            let gfns = Span::sized(gfn, level.pages());
            slat_event { level: number(level), ..about(Kind::SLAT_EVENT_RECOVERED, gfns) }
        }
        TraceEvent::Flush { gfns, cause, edits, .. } => {
            because(slat_event { count: edits, ..about(Kind::SLAT_EVENT_FLUSH, gfns) }, cause.name())
        }
        TraceEvent::GracePeriod => about(Kind::SLAT_EVENT_GRACE_PERIOD, nowhere),
        TraceEvent::TablesFreed { level, leaves } => {
            let freed = about(Kind::SLAT_EVENT_TABLES_FREED, nowhere);
            slat_event { level: number(level), count: leaves, ..freed }
        }
        TraceEvent::Reclaimed { subtrees } => {
            slat_event { count: subtrees, ..about(Kind::SLAT_EVENT_RECLAIMED, nowhere) }
        }
        _ => return None,
    })
}

/// A vCPU's TLB on its current processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CTlb {
    user: *mut c_void,
    flush_all: unsafe extern "C" fn(*mut c_void),
    flush: Option<unsafe extern "C" fn(*mut c_void, u64, u64)>,
    pub(crate) cpu: CpuId,
}

impl CTlb {
    pub(crate) fn new(tlb: &slat_tlb) -> Option<Self> {
        Some(Self { user: tlb.user, flush_all: tlb.flush_all?, flush: tlb.flush, cpu: CpuId(0) })
    }
}

impl Translations for CTlb {
    fn cpu(&self) -> CpuId {
        self.cpu
    }

    fn flush_all(&mut self) {
        // SAFETY: the vCPU's own function and pointer.
        unsafe { (self.flush_all)(self.user) }
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        match self.flush {
            // SAFETY: as above.
            Some(flush) => unsafe { flush(self.user, gfns.start.0, gfns.len()) },
            None => self.flush_all(),
        }
    }
}
