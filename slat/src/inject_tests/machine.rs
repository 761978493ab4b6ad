//! A host whose every callback may panic, on the thread that has planned it.

use crate::table::{Heap, Own, TableMemory, TablesOf, Word};
use crate::trace::TraceEvent;
use crate::*;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::vec::Vec;

/// Host address of RAM.
pub(super) const HVA: Hva = Hva(0x7f00_0000_0000);
/// Host address of the pages that hold L1's tables, and the number of these pages.
pub(super) const TABLES: Hva = Hva(0x7e00_0000_0000);
pub(super) const TABLE_PAGES: u64 = 8;

/// Which of the counted calls panic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Panics {
    Never,
    /// The call with this number, counted from 0.
    Once(u64),
    /// That call and each later one, as with a poisoned lock.
    From(u64),
}

std::thread_local! {
    static PLAN: Cell<Option<(Panics, u64)>> = const { Cell::new(None) };
    static CALLED: Cell<&'static str> = const { Cell::new("") };
}

/// The panic of a callback.
struct Planned;

/// Each callback begins or ends with this.
pub(super) fn called(name: &'static str) {
    let Some((panics, passed)) = PLAN.get() else { return };
    PLAN.set(Some((panics, passed + 1)));
    let is_due = match panics {
        Panics::Never => false,
        Panics::Once(nth) => nth == passed,
        Panics::From(nth) => nth <= passed,
    };
    if is_due {
        if matches!(panics, Panics::Once(_)) || matches!(panics, Panics::From(nth) if nth == passed) {
            CALLED.set(name);
        }
        resume_unwind(Box::new(Planned));
    }
}

/// Runs `work` under a plan. Returns the number of calls, and the name of the first one that panicked.
pub(super) fn planned(panics: Panics, work: impl FnOnce()) -> (u64, &'static str) {
    CALLED.set("");
    PLAN.set(Some((panics, 0)));
    let ended = catch_unwind(AssertUnwindSafe(work));
    let calls = PLAN.take().map_or(0, |(_, passed)| passed);
    if let Err(panic) = ended
        && !panic.is::<Planned>()
    {
        resume_unwind(panic);
    }
    (calls, CALLED.get())
}

/// The state of the host.
pub(super) struct Machine {
    /// Pages that are not what they were at first: frame, and whether they are writable.
    pages: Mutex<BTreeMap<u64, (Pfn, bool)>>,
    /// L1's tables.
    pub(super) words: Vec<AtomicU64>,
    /// Each word of all other memory.
    elsewhere: AtomicU64,
    /// Whether the first 4 MiB are large pages.
    pub(super) large: AtomicBool,
    /// Whether each page must be resolved.
    pub(super) sleeps: AtomicBool,
    /// Whether pages are pending.
    pub(super) late: AtomicBool,
    /// Blocks of table memory that are lent, and those among them that were lost in a panic.
    pub(super) lent: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl Machine {
    pub(super) fn new() -> Self {
        Self {
            pages: Mutex::default(),
            words: (0..TABLE_PAGES * 512).map(|_| AtomicU64::new(0)).collect(),
            elsewhere: AtomicU64::new(0),
            large: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            late: AtomicBool::new(false),
            lent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// The host's own page table.
    pub(super) fn page(&self, hva: Hva) -> HostPage {
        let (pages, number) = (self.pages.lock().unwrap(), hva.0 >> PAGE_SHIFT);
        let (pfn, writable) = pages.get(&number).copied().unwrap_or((Pfn(number), true));
        let whole = number & !511;
        let plain = pages.range(whole..whole + 512).next().is_none();
        let is_large = self.large.load(SeqCst) && plain && hva >= HVA;
        HostPage { pfn, writable, level: if is_large { Level::M2 } else { Level::K4 }, ..HostPage::PLAIN }
    }

    pub(super) fn set(&self, hva: Hva, pfn: Pfn, writable: bool) {
        self.pages.lock().unwrap().insert(hva.0 >> PAGE_SHIFT, (pfn, writable));
    }

    fn word(&self, hva: Hva) -> &AtomicU64 {
        let nth = hva.0.wrapping_sub(TABLES.0) / 8;
        self.words.get(nth as usize).unwrap_or(&self.elsewhere)
    }
}

/// The machine as a host, of chunks or of single pages.
pub(super) struct On<'m, const SINGLE: bool>(pub(super) &'m Machine);

// SAFETY: the heap's own functions, counted.
unsafe impl<const SINGLE: bool> TableMemory for On<'_, SINGLE> {
    const SINGLE_PAGES: bool = SINGLE;

    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        called("lend");
        self.0.lent.fetch_add(1, SeqCst);
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        self.0.lost.fetch_add(1, SeqCst);
        called("free");
        self.0.lost.fetch_sub(1, SeqCst);
        self.0.lent.fetch_sub(1, SeqCst);
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

impl<const SINGLE: bool> Host for On<'_, SINGLE> {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        called("lookup");
        let page = Some(self.0.page(hva)).filter(|page| page.allows(access));
        page.filter(|_| !self.0.sleeps.load(SeqCst))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        called("resolve");
        if self.0.late.load(SeqCst) {
            return Err(HostError::Pending);
        }
        let page = self.0.page(hva);
        if access == Access::Write && !page.writable {
            self.0.set(hva, page.pfn, true);
        }
        Ok(self.0.page(hva))
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        called("read");
        Some(Word(self.0.word(hva).load(SeqCst)))
    }

    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        called("read_all");
        for (nth, word) in words.iter_mut().enumerate() {
            *word = Word(self.0.word(hva + nth as u64 * 8).load(SeqCst));
        }
        true
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        called("compare_exchange");
        Some(self.0.word(hva).compare_exchange(current.0, new.0, SeqCst, SeqCst).map(Word).map_err(Word))
    }

    fn token(&self, hva: Hva) -> Token {
        called("token");
        Token(hva.0 >> PAGE_SHIFT)
    }

    fn kick(&self, _: VcpuId) {
        called("kick");
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        called("broadcast_flush");
        // The guests of these tests are flushed by numbers.
        false
    }

    fn observe(&self, _: TraceEvent) {
        called("observe");
    }
}
