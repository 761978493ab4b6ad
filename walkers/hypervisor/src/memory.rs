//! The host: a small primary MMU. Host addresses are the guest's frames; behind each page of RAM is a frame of the machine,
//! which is another one after a move, or none while the page is taken.
//!
//! ```text
//! page  ─▶ entry ─▶ Frame, one of 512 that follow each other (`whole`), or one alone
//!                   Stored in the reserve: taken, a fault brings it back into another frame, at once or [late](crate::late)
//!                   Zeroes: taken, and nothing had to be kept
//! ```
//! At first behind page n is frame n. [`moves`](crate::moves) changes entries, under the [lock](Machine::frames) and inside an
//! invalidation; faults read them without it. Everything else, such as devices, stays where it is.
//!
//! A frame that is free is filled with a pattern. Where something else is found when it is used again, a vCPU or the
//! hypervisor has written to a frame that the host had taken back: an error.

use crate::Error;
use crate::clock::Clocks;
use crate::events::Events;
use crate::late::Late;
use crate::layout::Layout;
use crate::options::{Mistake, Options};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use slat::table::Word;
use slat::trace::TraceEvent;
use slat::{
    Access, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span, TableMemory,
    VcpuId,
};
use slat_walker_x86::smp;
use spin::Mutex;

/// Frames of the reserve that pages of 2 MiB are moved to; the rest is for pages of 4 KiB.
const SPARE_BLOCKS: u64 = 4;
/// Words of a page.
pub const WORDS: usize = PAGE_SIZE as usize / 8;
/// What a free frame is filled with.
const PATTERN: u64 = 0x5eed_dead_f4ee_5eed;

/// What is behind a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// A frame.
    Frame {
        /// Which.
        pfn: Pfn,
        /// The frames behind all of its 2 MiB follow each other.
        whole: bool,
    },
    /// Nothing; its contents are kept in this frame of the reserve.
    Stored(Pfn),
    /// Nothing; it has no contents but zeroes.
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
    /// How large a device's pages are.
    page: Level,
    /// Where RAM is.
    pub layout: Layout,
    /// How often one processor has made another leave its guest; where vCPUs share a processor, how often one that waits for
    /// a page was woken.
    pub kicks: AtomicU64,
    /// What the engine has told.
    pub events: Events,
    /// What the guest's clocks share.
    pub clocks: Clocks,
    /// There is another processor to make leave its guest.
    has_other: bool,
    /// What is behind each page of RAM.
    entries: Box<[AtomicU64]>,
    /// A page that a fault has asked for lately.
    asked: AtomicU64,
    /// The host's lock, and its frames.
    pub frames: Mutex<Frames>,
}

/// The frames that are behind no page.
#[derive(Debug)]
pub struct Frames {
    /// Stretches of 2 MiB, by their first frames. Those that are free the longest are first.
    pub blocks: VecDeque<Pfn>,
    /// Frames for pages of 4 KiB, and for what is stored.
    pub small: VecDeque<Pfn>,
    /// How many pages are stored.
    pub stored: usize,
    /// Pages that were brought back, at once or late.
    pub brought: u64,
    /// Pages that are on their way.
    pub late: Late,
    /// A frame that was written to while it was free.
    overwritten: Option<Pfn>,
}

// SAFETY: the defaults take table pages from the global allocator; memory is mapped one to one, so their addresses are
// what the walker must be told.
unsafe impl TableMemory for Machine {}

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

    /// Brings a page back that was taken; or has it brought, where its contents are stored and another vCPU can run meanwhile.
    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let mut frames = self.frames.lock();
        if matches!(self.behind(hva), Behind::Stored(_)) && frames.late.ask(hva) {
            return Err(HostError::Pending);
        }
        self.bring(&mut frames, hva)?;
        drop(frames);
        self.lookup(hva, access).ok_or(HostError::Io)
    }

    /// L1's tables, for guests of its own. None where the page is taken.
    fn read(&self, hva: Hva) -> Option<Word> {
        // ORDER(behind): as in `behind`; what L1's processors store to their tables the machine orders.
        self.word(hva).map(|word| Word(word.load(Acquire)))
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let word = self.word(hva)?;
        Some(word.compare_exchange(current.0, new.0, AcqRel, Acquire).map(Word).map_err(Word))
    }

    /// The sender is out of its own guest, so the other processor is meant. A vCPU that shares this one is out, too: it
    /// looks before it enters.
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
    /// Behind each page is the frame of the same number.
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
            frames: Mutex::new(frames),
        }
    }

    /// A word of RAM, where it has a frame.
    fn word(&self, hva: Hva) -> Option<&AtomicU64> {
        let Behind::Frame { pfn, .. } = (hva.0 < self.layout.ram_end()).then(|| self.behind(hva))? else {
            return None;
        };
        // SAFETY: RAM, mapped one to one, 8 bytes of it as the engine asks; the frame is the page's as long as the section lasts
        // that the engine asks in. The guest's stores are the hardware's.
        Some(unsafe { AtomicU64::from_ptr((pfn.address() + hva.0 % PAGE_SIZE) as *mut u64) })
    }

    /// Gives a page that was taken a frame again, with its contents. Nothing where it has one.
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

    /// What is behind a page of RAM.
    pub fn behind(&self, hva: Hva) -> Behind {
        // ORDER(behind): Acquire; pairs with the Release in `set`, before which the frame was filled.
        Behind::unpack(self.entries[(hva.0 >> PAGE_SHIFT) as usize].load(Acquire))
    }

    /// Changes that: under the lock, and inside an invalidation where a vCPU may use the page.
    pub fn set(&self, hva: Hva, behind: Behind) {
        // ORDER(behind): Release; pairs with the Acquire in `behind`.
        self.entries[(hva.0 >> PAGE_SHIFT) as usize].store(behind.pack(), Release);
    }

    /// A page that a fault has asked for lately.
    pub fn asked(&self) -> Hva {
        Hva(self.asked.load(Relaxed))
    }

    /// The contents of a page of RAM, wherever they are. Under the lock, which `frames` is proof of.
    pub fn contents<T>(&self, _frames: &Frames, hva: Hva, look: impl FnOnce(&[u64; WORDS]) -> T) -> T {
        match self.behind(hva) {
            Behind::Frame { pfn, .. } | Behind::Stored(pfn) => look(words(pfn)),
            Behind::Zeroes => look(&[0; WORDS]),
        }
    }
}

impl Frames {
    /// Fills `to` with what is behind a page, and gives the frame of the store back.
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

    /// Gives a frame of 4 KiB back.
    pub fn free(&mut self, pfn: Pfn) {
        clear(pfn);
        self.small.push_back(pfn);
    }

    /// Nothing has been written to a free frame.
    pub fn check(&mut self, pfn: Pfn) {
        if words(pfn).iter().any(|&word| word != PATTERN) {
            self.overwritten.get_or_insert(pfn);
        }
    }

    /// An error, where something has been.
    pub fn verdict(&self) -> Result<(), Error> {
        let Some(pfn) = self.overwritten else { return Ok(()) };
        Err(format!("a frame was written to while it was free: {pfn:x?}, which the host had taken back")
            .into())
    }
}

/// The 2 MiB that an address is in.
pub fn block_of(hva: Hva) -> Span<Hva> {
    Span::sized(Hva(hva.0 & !(Level::M2.bytes() - 1)), Level::M2.bytes())
}

/// Makes a frame as free ones are.
pub fn clear(pfn: Pfn) {
    words(pfn).fill(PATTERN);
}

/// Whether there is nothing in a frame but zeroes.
pub fn is_zero(pfn: Pfn) -> bool {
    words(pfn).iter().all(|&word| word == 0)
}

/// A copy of a frame.
pub fn copy(from: Pfn, to: Pfn) {
    words(to).copy_from_slice(words(from));
}

/// A frame that the host looks at or writes to: one that no vCPU uses, or under a guest that goes on writing, whose words
/// are then some of before and some of after.
fn words(pfn: Pfn) -> &'static mut [u64; WORDS] {
    // SAFETY: RAM, mapped one to one; integers of any bits are integers. The host's lock is held, so no other processor's host
    // uses the frame; the guest's stores are the hardware's, which the compiler does not see.
    unsafe { &mut *(pfn.address() as *mut [u64; WORDS]) }
}
