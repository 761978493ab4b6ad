//! One shadow: its table, the line of L1's flushes, and the edits of its entries.
//!
//! ```text
//! hole ──fault──▶ frozen ──fault──▶ leaf ──edit──▶ hole
//!                   └─────edit────▶ condemned ──fault──▶ hole
//! ```
//! A frozen entry belongs to its fault until the fault has written the row and the leaf. An edit **condemns** it, so
//! that the row keeps one writer: the fault then installs nothing.
//!
//! **A flush by L1 announces itself on the line**, and then looks at leaves and frozen entries. A fault freezes its
//! entry, and then checks that the line is as it was before it read T. A flush can therefore leave holes as they are:
//! it meets the frozen entry, or the fault finds the line moved.

use super::Dropping;
use super::counted_walks::WalkCount;
use super::reverse::STRETCH;
use crate::active::Active;
use crate::sync::prim::{AtomicBool, AtomicU64, Mutex, Relaxed, fence_after_rmw};
use crate::table::{At, Cursor, Entry, Pool, Radix, Version};
use crate::{Format, Gfn, Level, NoMemory, Span, TableMemory, VcpuId, Word};

/// A shadow. See the module's header.
// As for `Shadows`.
#[repr(align(64))]
pub(crate) struct Shadow<F> {
    pub(crate) radix: Radix<F>,
    pub(crate) line: FlushLine,
    pub(crate) walks: WalkCount,
    /// Where the clock over its links continues.
    pub(super) hand: AtomicU64,
    /// The number at the begin of the newest flush that has ended.
    flushed: Mutex<Version>,
}

/// Number of flushes that L1 has announced; and whether a flush of one address must look at a whole page.
#[derive(Debug, Default)]
pub(crate) struct FlushLine {
    announced: AtomicU64,
    /// Whether a page of T's was ever mapped by smaller ones: a flush of an address then covers all of them.
    splinters: AtomicBool,
}

impl FlushLine {
    /// F2 and F8: read before T is read, and when the entry is frozen.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        // T is read after it.
        self.announced.load(order!(shadow_line.read, Acquire))
    }

    /// Announces a flush by L1. The caller then walks the shadow.
    pub(crate) fn announce(&self) {
        // Release carries what L1 has stored. The fence, before the walk, pairs with the one between freezing an entry and
        // reading the line.
        self.announced.fetch_add(1, order!(shadow_line.announce, Release));
        fence_after_rmw();
    }

    /// Records that a fault is about to map a part of a page of T's. Called before it freezes its entry.
    pub(crate) fn will_splinter(&self) {
        // Before the freeze: a flush of an address, which has moved the line, sees this, or the fault finds the line
        // moved.
        if !self.splinters() {
            self.splinters.store(true, Relaxed);
        }
    }

    /// Whether any fault mapped a part. Called after the line has moved.
    pub(crate) fn splinters(&self) -> bool {
        // After the fence in `announce`.
        self.splinters.load(Relaxed)
    }
}

/// A hole. All are equal: a fault that has frozen one checks whether anything was announced since it began.
pub(crate) const HOLE: Word = Word::OLDEST;

/// Bit in the mark of a frozen entry: its fault installs nothing.
const CONDEMNED: u64 = 1 << (Version::BITS - 2);

/// An entry that a vCPU's fault has frozen.
pub(crate) fn frozen(vcpu: VcpuId) -> Word {
    Word::frozen(u64::from(vcpu.0))
}

/// A frozen entry after an edit.
fn condemned(word: Word) -> Word {
    Word::frozen(word.version().get() | CONDEMNED)
}

impl<F: Format> Shadow<F> {
    /// An empty shadow.
    pub(super) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        let radix = Radix::new(memory, pool)?;
        Ok(Self {
            radix,
            line: FlushLine::default(),
            walks: WalkCount::default(),
            hand: AtomicU64::new(0),
            flushed: Mutex::new(Version::default()),
        })
    }

    /// Calls `visit` with all entries down to level `lowest`, in a counted walk, which it leaves now and then: tables of
    /// this shadow may go meanwhile. `visit` returns a link that it has found, if it looked again.
    pub(super) fn visit<M: TableMemory>(
        &self,
        memory: &M,
        lowest: Level,
        mut visit: impl FnMut(&At<'_>, Span<Gfn>) -> Option<Word>,
    ) {
        let mut left = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
        while !left.is_empty() {
            let _inside = self.walks.enter();
            // SAFETY: the root stays.
            let mut cursor = Cursor::<F>::new(unsafe { self.radix.root(memory) }, left, lowest);
            let mut entries = 0;
            left.start = loop {
                // SAFETY: in a counted walk.
                let Some(step) = (unsafe { cursor.next(memory) }) else { break left.end };
                entries += 1;
                if let Some(link) = visit(&step.at, step.gfns) {
                    cursor.saw(link);
                }
                if entries == STRETCH {
                    break cursor.goal();
                }
            };
        }
    }

    /// Flushes the whole shadow for L1, requested when the newest number was `asked`: calls `walk`, unless a flush that
    /// began later has ended. One at a time.
    pub(crate) fn flush(&self, active: &Active, asked: Version, walk: impl FnOnce()) {
        let mut flushed = self.flushed.lock();
        if *flushed > asked {
            return;
        }
        let began = active.fresh();
        self.line.announce();
        walk();
        *flushed = began;
    }
}

/// Drops a leaf that does not serve, without a flush: the L1 frame that it was made of keeps its hint.
pub(crate) fn drop_leaf(taking: &Dropping<'_>, entry: &Entry, word: Word) {
    taking.begin();
    let _ = entry.cas(word, HOLE);
}

/// An entry that this thread has frozen, condemned or not. Dropping it makes the entry a hole. Only the thread whose
/// exchange froze the entry has one, so no thread thaws what another froze.
#[must_use = "a frozen entry that is dropped is a hole at once"]
pub(crate) struct Frozen<'w> {
    entry: &'w Entry,
    mine: Word,
}

impl<'w> Frozen<'w> {
    /// Replaces `was` by `mine`, a frozen word that no other thread uses meanwhile. Returns the word found if the entry
    /// has changed.
    #[inline(always)]
    pub(crate) fn new(entry: &'w Entry, was: Word, mine: Word) -> Result<Self, Word> {
        entry.cas(was, mine).map(|()| Self { entry, mine })
    }

    /// Thaws the entry by `exchange`, which replaces the frozen word that it gets. If the exchange fails, an edit has
    /// condemned the entry, and it becomes a hole.
    #[inline(always)]
    pub(crate) fn thaw<T>(self, exchange: impl FnOnce(&Entry, Word) -> Result<T, Word>) -> Option<T> {
        let thawed = exchange(self.entry, self.mine).ok()?;
        core::mem::forget(self);
        Some(thawed)
    }
}

impl Drop for Frozen<'_> {
    #[cold]
    fn drop(&mut self) {
        // If it has changed, it was condemned.
        if self.entry.cas(self.mine, HOLE).is_err() {
            let _ = self.entry.cas(condemned(self.mine), HOLE);
        }
    }
}

/// The edit of leaves that are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// A leaf becomes a hole.
    Zap,
    /// A leaf loses write permission: the next store faults. Holes stay.
    WithdrawWrite,
}

/// Edits one entry until `how` is done. Returns the link if the entry is one.
pub(crate) fn edit<F: Format>(
    taking: &Dropping<'_>,
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
            Reach::Zap if word.is_frozen() => condemned(word),
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

/// Whether an entry that is no link is a leaf, present or withdrawn.
#[inline(always)]
pub(crate) fn is_leaf<F: Format>(word: Word) -> bool {
    F::is_present(word) || word.is_withdrawn()
}
