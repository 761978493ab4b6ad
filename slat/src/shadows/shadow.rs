//! One shadow: its table, the line of L1's flushes, and what becomes of entries that are reached.
//!
//! ```text
//! hole ──fault──▶ frozen ──fault──▶ leaf ──edit──▶ hole
//!                   └─────edit────▶ condemned ──fault──▶ hole
//! ```
//! A frozen entry belongs to its fault until that has written the row, and the leaf. An edit **condemns** it, and so leaves the row to one
//! writer: then the fault installs nothing.
//!
//! **A flush by L1 announces itself on the line**, and then looks at leaves and frozen entries. A fault freezes its entry, and then looks whether
//! the line is what it was before it read T. So a flush leaves holes as they are: either it meets the frozen entry, or the fault finds the line
//! moved.

use super::door::Door;
use super::drops::Taking;
use super::{Numbers, Reach};
use crate::addr::Level;
use crate::sync::prim::{AcqRel, Acquire, AtomicBool, AtomicU64, Mutex, Relaxed, fence_after_rmw};
use crate::table::entry::{Entry, Version, Word};
use crate::table::format::Format;
use crate::table::memory::TableMemory;
use crate::table::pool::{NoMemory, Pool};
use crate::table::radix::{At, Radix};
use crate::trace::VcpuId;

/// See the module's header.
#[derive(Debug)]
// As `Shadows`.
#[repr(align(64))]
pub(crate) struct Shadow<F> {
    pub(crate) radix: Radix<F>,
    pub(crate) line: FlushLine,
    pub(crate) door: Door,
    /// Where the clock over its links goes on.
    pub(super) hand: AtomicU64,
    /// The number that the newest flush began with that has ended.
    flushed: Mutex<Version>,
}

/// How many flushes by L1 have been announced; and what those of one address have to look at.
#[derive(Debug, Default)]
pub(crate) struct FlushLine {
    announced: AtomicU64,
    /// A page of T's was mapped by smaller ones once: a flush of an address in it is about all of them.
    splinters: AtomicBool,
}

impl FlushLine {
    /// F2 and F8: before T is read, and when the entry is frozen.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        // ORDER(shadow-line): Acquire: T is read after it.
        self.announced.load(Acquire)
    }

    /// A flush by L1 begins. To be followed by a walk of what is there.
    pub(crate) fn announce(&self) {
        if seeded!(LineUnmoved) {
            return;
        }
        // ORDER(shadow-line): before the walk; pairs with the fence between freezing an entry and the look at the line. Release: what L1
        // has stored comes with it.
        self.announced.fetch_add(1, AcqRel);
        fence_after_rmw();
    }

    /// A fault is about to map a part of a page of T's: before it freezes its entry.
    pub(crate) fn will_splinter(&self) {
        // ORDER(shadow-line): before the freeze, so a flush of an address, which has moved the line, finds this, or the fault finds the
        // line moved.
        if !self.splinters() {
            self.splinters.store(true, Relaxed);
        }
    }

    /// Whether any fault did: after the line has moved.
    pub(crate) fn splinters(&self) -> bool {
        // ORDER(shadow-line): after the fence in `announce`.
        self.splinters.load(Relaxed)
    }
}

/// Nothing mapped. All are alike: when a fault has frozen one, it looks whether anything was announced since it began.
pub(crate) const HOLE: Word = Word::OLDEST;

/// In the mark of a frozen entry: its fault installs nothing.
const CONDEMNED: u64 = 1 << (Version::BITS - 2);

/// An entry in the hands of a vCPU's fault.
pub(crate) fn frozen(vcpu: VcpuId) -> Word {
    Word::frozen(u64::from(vcpu.0))
}

/// The same, after an edit.
fn condemned(word: Word) -> Word {
    Word::frozen(word.version().get() | CONDEMNED)
}

impl<F: Format> Shadow<F> {
    /// An empty one.
    pub(super) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        let radix = Radix::new(memory, pool)?;
        Ok(Self {
            radix,
            line: FlushLine::default(),
            door: Door::default(),
            hand: AtomicU64::new(0),
            flushed: Mutex::new(Version::default()),
        })
    }

    /// A flush by L1 of the whole shadow, asked for when the newest number was `asked`: `walk` makes it now, unless one that began later
    /// has ended. One at a time.
    pub(crate) fn flush(&self, active: &impl Numbers, asked: Version, walk: impl FnOnce()) {
        let mut flushed = self.flushed.lock();
        if *flushed > asked || seeded!(FlushBelieved) && *flushed > Version::default() {
            return;
        }
        let began = active.fresh();
        self.line.announce();
        walk();
        *flushed = began;
    }
}

/// A leaf that does not serve goes, without a flush: the L1 frame that it was made of keeps its hint.
pub(crate) fn drop_leaf(taking: &Taking<'_, impl Numbers>, entry: &Entry, word: Word) {
    taking.begin();
    let _ = entry.cas(word, HOLE);
}

/// A flush by L1 takes a leaf that T does not say any more, or an entry from the fault that has it frozen.
pub(crate) fn drop_or_condemn<F: Format>(
    taking: &Taking<'_, impl Numbers>,
    entry: &Entry,
    word: Word,
    level: Level,
) {
    if !(word.is_frozen() && seeded!(FrozenPassedBy)) {
        edit::<F>(taking, entry, word, level, Reach::Zap);
    }
}

/// A frozen entry is given up by the thread that has it, condemned or not. What another one has made of it, where a mistake lets that be, stays.
#[cold]
pub(crate) fn thaw(entry: &Entry, mine: Word) {
    let mut word = mine;
    while let Err(found) = entry.cas(word, HOLE) {
        if !found.is_frozen() {
            return;
        }
        word = found;
    }
}

/// Edits one entry, until it is as it should be. A link that stands there is returned.
pub(crate) fn edit<F: Format>(
    taking: &Taking<'_, impl Numbers>,
    entry: &Entry,
    mut word: Word,
    level: Level,
    how: Reach,
) -> Option<Word> {
    loop {
        if F::is_table(word, level) {
            return Some(word);
        }
        let is_leaf = is_leaf::<F>(word);
        let new = match how {
            Reach::Zap if word.is_hole() => return None,
            Reach::Zap if word.is_frozen() && !seeded!(FrozenTaken) => condemned(word),
            Reach::Zap => HOLE,
            Reach::WithdrawWrite if is_leaf => F::write_withdrawn(word),
            Reach::WithdrawWrite => return None,
        };
        if is_leaf {
            taking.begin();
        }
        match entry.cas(word, new) {
            Ok(()) => return None,
            Err(found) => word = found,
        }
    }
}

/// Whether an entry of this level maps a page.
#[inline(always)]
pub(crate) fn maps<F: Format>(at: &At<'_>) -> bool {
    is_leaf::<F>(at.word) && !F::is_table(at.word, at.level)
}

/// The same, present or tracked, of one that is no link.
#[inline(always)]
pub(crate) fn is_leaf<F: Format>(word: Word) -> bool {
    F::is_present(word) || word.is_tracked()
}
