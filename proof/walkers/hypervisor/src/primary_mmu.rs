//! The host: a small primary MMU. Host addresses are the guest's frames. Each page of RAM has a frame of the machine,
//! which changes with a move; a taken page has none.
//!
//! ```text
//! page  ─▶ entry ─▶ Frame, one of 512 that follow each other (`whole`), or one alone
//!                   Stored in the reserve: taken, a fault brings it back into another frame, at once or [late](crate::late)
//!                   Zeroes: taken, and nothing had to be kept
//! ```
//! At first page n has frame n. [`moves`](crate::moves) changes entries under the [lock](Machine::frames) and inside an
//! invalidation; faults read them without the lock. Other ranges, such as devices, never move.
//!
//! A free frame has a pattern. If the pattern is damaged when the frame is used again, a vCPU or the hypervisor has
//! written to a frame that the host had taken back: an error.

use crate::clock::Clocks;
use crate::error::Error;
use crate::events::Events;
use crate::late::{Due, Late};
use crate::layout::Layout;
use crate::options::{Mistake, Options};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use core::array::from_fn;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use slat::table::Word;
use slat::trace::TraceEvent;
use slat::{
    Access, Format, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span,
    VcpuId, Vm,
};
use slat_walker_x86::smp;
use spin::Mutex;

/// Blocks of the reserve for moves of 2 MiB; the rest is for pages of 4 KiB.
const SPARE_BLOCKS: u64 = 4;
/// Words of a page.
pub const WORDS: usize = PAGE_SIZE as usize / 8;
/// The pattern of a free frame.
const PATTERN: u64 = 0x5eed_dead_f4ee_5eed;

/// The state of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// A frame.
    Frame {
        /// The frame.
        pfn: Pfn,
        /// The frames of all of its 2 MiB are consecutive.
        whole: bool,
    },
    /// No frame; its contents are in this frame of the reserve.
    Stored(Pfn),
    /// No frame; its contents are zeroes.
    Zeroes,
}

impl Behind {
    fn pack(self) -> u64 {
        match self {
            Self::Frame { pfn, whole } => pfn.address() | u64::from(whole),
            Self::Stored(pfn) => pfn.address() | 2,
            Self::Zeroes => 4,
        }
    }

    fn unpack(word: u64) -> Self {
        let pfn = Pfn(word >> PAGE_SHIFT);
        match word & 6 {
            0 => Self::Frame { pfn, whole: word & 1 == 1 },
            2 => Self::Stored(pfn),
            _ => Self::Zeroes,
        }
    }
}

/// The host.
#[derive(Debug)]
pub struct Machine {
    /// Size of a device's pages.
    page: Level,
    /// The layout of memory.
    pub layout: Layout,
    /// Number of kicks of another processor; if vCPUs share a processor, number of wake-ups of a vCPU that waits for a
    /// page.
    pub kicks: AtomicU64,
    /// The engine's events.
    pub events: Events,
    /// Shared state of the guest's clocks.
    pub clocks: Clocks,
    /// Whether there is another processor to kick.
    has_other: bool,
    /// The state of each page of RAM.
    entries: Box<[AtomicU64]>,
    /// A page that a recent fault needed.
    asked: AtomicU64,
    /// Pages that the hypervisor or the engine has stored to, a bit each.
    own_stores: Box<[AtomicU64]>,
    /// The host's lock, and its free frames.
    pub frames: Mutex<Frames>,
}

/// Frames that belong to no page.
#[derive(Debug)]
pub struct Frames {
    /// Free blocks of 2 MiB, by their first frames; the longest free ones come first.
    pub blocks: VecDeque<Pfn>,
    /// Free frames for pages of 4 KiB, and for stored contents.
    pub small: VecDeque<Pfn>,
    /// Number of stored pages.
    pub stored: usize,
    /// Number of pages that were brought back, at once or late.
    pub brought: u64,
    /// Pending pages.
    pub late: Late,
    /// A frame that was written while it was free.
    overwritten: Option<Pfn>,
}

impl Host for Machine {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let same = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: self.page, ..HostPage::PLAIN };
        if hva.0 >= self.layout.ram_end() {
            return Some(same);
        }
        match self.behind(hva) {
            Behind::Frame { pfn, whole } => {
                self.asked.store(hva.0, Relaxed);
                Some(HostPage { pfn, level: if whole { Level::M2 } else { Level::K4 }, ..HostPage::PLAIN })
            }
            Behind::Stored(_) | Behind::Zeroes => None,
        }
    }

    /// Brings a taken page back; or requests it, if its contents are stored and another vCPU can run meanwhile.
    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let mut frames = self.frames.lock();
        if matches!(self.behind(hva), Behind::Stored(_)) && frames.late.ask(hva) {
            return Err(HostError::Pending);
        }
        self.bring(&mut frames, hva)?;
        drop(frames);
        self.lookup(hva, access).ok_or(HostError::Io)
    }

    /// Reads L1's tables for its guests. `None` if the page is taken.
    fn read(&self, hva: Hva) -> Option<Word> {
        // ORDER(behind): as in `behind`; the machine orders the stores of L1's processors to their tables.
        self.word(hva).map(|word| Word(word.load(Acquire)))
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let word = self.word(hva)?;
        let done = word.compare_exchange(current.0, new.0, AcqRel, Acquire).map(Word).map_err(Word);
        if done.is_ok() && current != new {
            self.note_own_store(Gfn(hva.0 >> PAGE_SHIFT));
        }
        Some(done)
    }

    /// The sender is out of its own guest, so it kicks the other processor. A vCPU that shares this processor is out,
    /// too, and checks before it enters.
    fn kick(&self, _: VcpuId) {
        self.kicks.fetch_add(1, Relaxed);
        if self.has_other {
            smp::kick_other();
        }
    }

    fn observe(&self, event: TraceEvent) {
        self.events.count(event);
    }
}

impl Machine {
    /// Makes the host with frame n for page n.
    pub fn new(options: &Options, layout: Layout) -> Self {
        let (page, mistake) = (options.page, options.chores.mistake);
        let pages = layout.ram().end.0;
        let entry = |page: u64| {
            let whole = layout.is_ram(block_of(Hva(page << PAGE_SHIFT)));
            AtomicU64::new(Behind::Frame { pfn: Pfn(page), whole }.pack())
        };
        let reserve = layout.reserve();
        let (first, last) = (reserve.start.0 >> PAGE_SHIFT, reserve.end.0 >> PAGE_SHIFT);
        let small = first + SPARE_BLOCKS * Level::M2.pages();
        let frames = Frames {
            blocks: (first..small).step_by(Level::M2.pages() as usize).map(Pfn).collect(),
            small: (small..last).map(Pfn).collect(),
            stored: 0,
            brought: 0,
            late: Late::new(options.is_shared(), mistake),
            overwritten: None,
        };
        (first..last).for_each(|pfn| clear(Pfn(pfn)));
        let events = Events::new(mistake == Some(Mistake::LostEvent));
        Self {
            page,
            layout,
            kicks: AtomicU64::new(0),
            events,
            clocks: Clocks::new(options),
            has_other: options.processors > 1,
            entries: (0..pages).map(entry).collect(),
            asked: AtomicU64::new(0),
            own_stores: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            frames: Mutex::new(frames),
        }
    }

    /// Returns a word of RAM, if its page has a frame.
    fn word(&self, hva: Hva) -> Option<&AtomicU64> {
        let Behind::Frame { pfn, .. } = (hva.0 < self.layout.ram_end()).then(|| self.behind(hva))? else {
            return None;
        };
        // SAFETY: RAM, mapped one to one, 8 bytes of it as the engine asks; the frame is the page's as long as the section lasts
        // that the engine asks in. The guest's stores are the hardware's.
        Some(unsafe { AtomicU64::from_ptr((pfn.address() + hva.0 % PAGE_SIZE) as *mut u64) })
    }

    /// Gives a taken page a frame with its contents. Does nothing if it has one.
    pub fn bring(&self, frames: &mut Frames, hva: Hva) -> Result<(), HostError> {
        let behind = self.behind(hva);
        if !matches!(behind, Behind::Frame { .. }) {
            let pfn = frames.small.pop_front().ok_or(HostError::NoMemory)?;
            frames.check(pfn);
            frames.fill(behind, pfn);
            frames.brought += 1;
            self.set(hva, Behind::Frame { pfn, whole: false });
        }
        Ok(())
    }

    /// Returns the state of a page of RAM.
    pub fn behind(&self, hva: Hva) -> Behind {
        // ORDER(behind): Acquire; pairs with the Release in `set`, before which the frame was filled.
        Behind::unpack(self.entries[(hva.0 >> PAGE_SHIFT) as usize].load(Acquire))
    }

    /// Sets the state of a page: under the lock, and inside an invalidation if a vCPU may use the page.
    pub fn set(&self, hva: Hva, behind: Behind) {
        // ORDER(behind): Release; pairs with the Acquire in `behind`.
        self.entries[(hva.0 >> PAGE_SHIFT) as usize].store(behind.pack(), Release);
    }

    /// A page that a recent fault needed.
    pub fn asked(&self) -> Hva {
        Hva(self.asked.load(Relaxed))
    }

    /// Notes a store by the hypervisor or the engine: it makes the page dirty, and not young.
    pub fn note_own_store(&self, page: Gfn) {
        let Some(word) = self.own_stores.get((page.0 / 64) as usize) else { return };
        word.fetch_or(1 << (page.0 % 64), Relaxed);
    }

    /// Returns whether such a store has been noted since the last call for this page.
    pub fn take_own_store(&self, page: Gfn) -> bool {
        let Some(word) = self.own_stores.get((page.0 / 64) as usize) else { return false };
        word.fetch_and(!(1 << (page.0 % 64)), Relaxed) >> (page.0 % 64) & 1 == 1
    }

    /// Fails if a clock in the guest's memory differs from its last written value.
    pub fn compare_clocks(&self) -> Result<(), Error> {
        let frames = self.frames.lock();
        self.clocks.compare(|at| {
            let first = (at.0 % PAGE_SIZE / 8) as usize;
            self.contents(&frames, Hva(at.0), |words| from_fn(|word| words[first + word]))
        })
    }

    /// Calls `look` with the contents of a page of RAM, wherever they are. `frames` proves that the lock is held.
    pub fn contents<T>(&self, _frames: &Frames, hva: Hva, look: impl FnOnce(&[u64; WORDS]) -> T) -> T {
        match self.behind(hva) {
            Behind::Frame { pfn, .. } | Behind::Stored(pfn) => look(words(pfn)),
            Behind::Zeroes => look(&[0; WORDS]),
        }
    }
}

impl Frames {
    /// Fills `to` with a page's contents, and frees the frame that stored them.
    pub fn fill(&mut self, from: Behind, to: Pfn) {
        match from {
            Behind::Frame { pfn, .. } => copy(pfn, to),
            Behind::Zeroes => words(to).fill(0),
            Behind::Stored(pfn) => {
                copy(pfn, to);
                self.stored -= 1;
                self.free(pfn);
            }
        }
    }

    /// Frees a frame of 4 KiB.
    pub fn free(&mut self, pfn: Pfn) {
        clear(pfn);
        self.small.push_back(pfn);
    }

    /// Checks that a free frame is unchanged.
    pub fn check(&mut self, pfn: Pfn) {
        if words(pfn).iter().any(|&word| word != PATTERN) {
            self.overwritten.get_or_insert(pfn);
        }
    }

    /// Fails if a free frame was written.
    pub fn verdict(&self) -> Result<(), Error> {
        let Some(pfn) = self.overwritten else { return Ok(()) };
        Err(format!("a frame was written to while it was free: {pfn:x?}, which the host had taken back")
            .into())
    }
}

/// Handles a tick: brings back due pages, and then reports each one to the engine.
pub fn deliver<F: Format>(vm: &Vm<F, Machine>) -> Result<(), Error> {
    let host = vm.host();
    host.frames.lock().late.tick();
    loop {
        let mut frames = host.frames.lock();
        let Some(Due { page, comes, told }) = frames.late.due() else { return Ok(()) };
        if comes {
            let brought = host.bring(&mut frames, page);
            brought.map_err(|error| format!("a page cannot come back: {page:x?}: {error}"))?;
        }
        drop(frames);
        if told {
            let woken = vm.ready(host.token(page)) as u64;
            host.frames.lock().late.woken += woken;
        }
    }
}

/// Returns the block of 2 MiB of an address.
pub fn block_of(hva: Hva) -> Span<Hva> {
    Span::sized(Hva(hva.0 & !(Level::M2.bytes() - 1)), Level::M2.bytes())
}

/// Fills a frame with the pattern of free frames.
pub fn clear(pfn: Pfn) {
    words(pfn).fill(PATTERN);
}

/// Returns whether a frame has only zeroes.
pub fn is_zero(pfn: Pfn) -> bool {
    words(pfn).iter().all(|&word| word == 0)
}

/// Copies a frame.
pub fn copy(from: Pfn, to: Pfn) {
    words(to).copy_from_slice(words(from));
}

/// Returns the words of a frame that the host reads or writes. No vCPU uses it; or the guest still writes to it, and
/// the words are partly old and partly new.
fn words(pfn: Pfn) -> &'static mut [u64; WORDS] {
    // SAFETY: RAM, mapped one to one; integers of any bits are integers. The host's lock is held, so no other processor's host
    // uses the frame; the guest's stores are the hardware's, which the compiler does not see.
    unsafe { &mut *(pfn.address() as *mut [u64; WORDS]) }
}
