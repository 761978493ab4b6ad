//! Shadows: tables in the host's format, from a frame of L2 to a frame of the host. One for each table of L1 that a vCPU uses.
//!
//! ```text
//! Shadows   of an address space, made with its first nested guest
//!   directory   which table of L1 each shadow is for, and how many vCPUs hold it
//!   all         the shadows: a table each, filled by faults of L2
//!   reverse     L1 frame ─▶ (shadow, g2)
//! ```
//! A shadow is a TLB that L1's vCPUs share. T is not write-protected: what L1 stores there comes into effect at its flush, or earlier.
//! What L0's host does comes into effect at once: [`Shadows::reach`].
//!
//! **Holes are fresh.** An entry that is not to be filled by faults under way becomes a hole whose number nothing else has
//! ([`Numbers::fresh_hole`]). A fault installs by compare-and-swap from the very word that it met before it read T. So it need not compare
//! numbers, and no word comes back.
//!
//! **Nothing is unlinked** from a shadow or from the reverse map before the VM is dropped, so they are walked in no section. A shadow whose
//! vCPUs have all gone to other tables of L1 serves another one: the one that has not been used for longest. For each vCPU it is then a shadow
//! where it has never been, so a flush comes before its first entry.

mod reverse;
mod visits;

pub(crate) use reverse::Hint;
pub(crate) use visits::{Held, VcpuShadows};

use crate::addr::{Gfn, Level, Span};
use crate::sync::once::Once;
use crate::sync::prim::Mutex;
use crate::table::cursor::Cursor;
use crate::table::entry::{Entry, Version, Word};
use crate::table::format::Format;
use crate::table::memory::{Node, TableMemory};
use crate::table::pool::{NoMemory, Pool};
use crate::table::radix::Radix;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use reverse::{MOST, Reverse};

/// Where numbers come from: the active set.
pub(crate) trait Numbers {
    /// A hole with a number that no invalidation has, nor any other hole: of an entry that becomes one, no thread has seen it before. A
    /// thread that meets it sees listed what was numbered before.
    fn fresh_hole(&self) -> Word;
    /// The newest number.
    fn now(&self) -> Version;
}

/// A table of L1, whatever its format.
pub(crate) type AnyTable = Box<dyn Any + Send + Sync>;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Shadows<F> {
    pub(crate) reverse: Reverse<F>,
    all: Box<[Once<Shadow<F>>]>,
    directory: Mutex<Vec<Named>>,
}

/// One shadow.
#[derive(Debug)]
pub(crate) struct Shadow<F> {
    pub(crate) radix: Radix<F>,
    /// The number that the newest flush began with that has ended.
    flushed: Mutex<Version>,
}

/// Which table of L1 a shadow is for.
#[derive(Debug)]
struct Named {
    table: AnyTable,
    /// Since when: a number that no other has.
    since: Version,
    /// vCPUs that hold it.
    holders: u32,
    used: Version,
}

/// A shadow that a vCPU holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hold {
    pub(crate) index: usize,
    /// Since when it is for this table of L1.
    pub(crate) since: Version,
}

/// What becomes of leaves that are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// They become holes.
    Zap,
    /// They lose write permission: the next store faults. Holes stay.
    WithdrawWrite,
}

impl<F: Format> Shadows<F> {
    pub(crate) fn new<M: TableMemory>(memory: &M, pool: &Pool, vcpus: u32) -> Result<Self, NoMemory> {
        let many = (2 * vcpus as usize).clamp(8, MOST);
        Ok(Self {
            reverse: Reverse::new(memory, pool)?,
            all: (0..many).map(|_| Once::default()).collect(),
            directory: Mutex::default(),
        })
    }

    /// The shadow with this number, which a vCPU holds or a hint names.
    pub(crate) fn shadow(&self, index: usize) -> Option<&Shadow<F>> {
        self.all.get(index)?.get()
    }

    fn shadows(&self) -> impl Iterator<Item = &Shadow<F>> {
        self.all.iter().filter_map(Once::get)
    }

    /// The shadow for `table`, held for a vCPU until [`let_go`](Self::let_go).
    pub(crate) fn hold<T: Copy + Eq + Send + Sync + 'static, M: TableMemory>(
        &self,
        (memory, pool, active): (&M, &Pool, &impl Numbers),
        table: T,
    ) -> Result<Hold, NoMemory> {
        let mut directory = self.directory.lock();
        let is_it = |named: &Named| named.table.downcast_ref::<T>() == Some(&table);
        let used = active.now();
        if let Some(index) = directory.iter().position(is_it) {
            let named = &mut directory[index];
            (named.holders, named.used) = (named.holders + 1, used);
            return Ok(Hold { index, since: named.since });
        }
        let since = active.fresh_hole().version();
        let fresh = Named { table: Box::new(table), since, holders: 1, used };
        let index = if directory.len() < self.all.len() {
            let index = directory.len();
            let shadow = Shadow { radix: Radix::new(memory, pool)?, flushed: Mutex::new(Version::default()) };
            self.all[index].set(shadow);
            directory.push(fresh);
            index
        } else {
            let free = directory.iter().enumerate().filter(|(_, named)| named.holders == 0);
            let (index, _) = free.min_by_key(|(_, named)| named.used).ok_or(NoMemory)?;
            let before = core::mem::replace(&mut directory[index], fresh);
            if seeded!(RecycledUnflushed) {
                directory[index].since = before.since;
            }
            index
        };
        Ok(Hold { index, since: directory[index].since })
    }

    /// A vCPU holds it no longer.
    pub(crate) fn let_go(&self, hold: Hold) {
        self.directory.lock()[hold.index].holders -= 1;
    }

    /// Calls `visit` with each shadow that is for a table of this format which `covers` takes.
    pub(crate) fn for_tables<T: Copy + Eq + Send + Sync + 'static>(
        &self,
        covers: impl Fn(&T) -> bool,
        mut visit: impl FnMut(Hold),
    ) {
        for (index, named) in self.directory.lock().iter().enumerate() {
            if named.table.downcast_ref::<T>().is_some_and(&covers) {
                visit(Hold { index, since: named.since });
            }
        }
    }

    /// What was made of `g1s` goes, or can be written no more. True where anything was ever made of them that an invalidation has not
    /// removed: then **the caller owes a flush of L2's tag**, whatever it was that stood there. For a fault may since have put the leaf of
    /// another L1 frame in the place of what a TLB still has.
    ///
    /// After the invalidation is announced: so a fault that enters its hint too late for this sees it, and begins again.
    pub(crate) fn reach<M: TableMemory>(
        &self,
        memory: &M,
        active: &impl Numbers,
        g1s: Span<Gfn>,
        how: Reach,
    ) -> bool {
        let mut any = false;
        // ORDER(nested-hint): after the fence in `Ticket::announce`; pairs with the one in `stands`.
        self.reverse.for_each(memory, g1s, |hint| {
            any = true;
            match hint {
                Hint::At(index, g2) => {
                    if let Some(shadow) = self.shadow(index) {
                        shadow.reach(memory, active, g2, how);
                    }
                }
                Hint::Many => self.reach_all(memory, active, how),
            }
        });
        any
    }

    /// The same for whatever there is.
    pub(crate) fn reach_all<M: TableMemory>(&self, memory: &M, active: &impl Numbers, how: Reach) {
        let all = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
        self.shadows().for_each(|shadow| {
            shadow.edit(memory, all, |entry, word, level| edit::<F>(active, entry, word, level, how));
        });
    }

    /// After the flush, while faults on `g1s` wait: their hints go.
    pub(crate) fn forget<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>) {
        self.reverse.remove(memory, g1s);
    }

    /// The roots of all tables, to count pages by.
    pub(crate) fn roots<M: TableMemory>(&self, memory: &M) -> Vec<Node> {
        // SAFETY: roots stay.
        let shadows = self.shadows().map(|shadow| unsafe { shadow.radix.root(memory) });
        shadows.chain(self.reverse.roots(memory)).collect()
    }
}

impl<F: Format> Shadow<F> {
    /// What stands for `g2`, whatever its level, is edited.
    pub(crate) fn reach<M: TableMemory>(&self, memory: &M, active: &impl Numbers, g2: Gfn, how: Reach) {
        loop {
            // SAFETY: nothing is ever unlinked from a shadow.
            let at = unsafe { self.radix.descend(memory, g2) };
            if edit::<F>(active, at.entry, at.word, at.level, how).is_none() {
                return;
            }
        }
    }

    /// Edits each entry that maps or could map any of `g2s`, but for links. `edit` says which link it met instead.
    fn edit<M: TableMemory>(
        &self,
        memory: &M,
        g2s: Span<Gfn>,
        edit: impl Fn(&Entry, Word, Level) -> Option<Word>,
    ) {
        // SAFETY: nothing is ever unlinked from a shadow.
        let root = unsafe { self.radix.root(memory) };
        let mut cursor = Cursor::<F>::new(root, g2s, Level::K4);
        // SAFETY: as above.
        while let Some(step) = unsafe { cursor.next(memory) } {
            if let Some(link) = edit(step.at.entry, step.at.word, step.at.level) {
                cursor.saw(link);
            }
        }
    }

    /// Nothing is mapped for `g2s` afterwards that was made of what T said before. What TLBs have is the caller's to flush.
    pub(crate) fn empty<M: TableMemory>(&self, memory: &M, active: &impl Numbers, g2s: Span<Gfn>) {
        self.edit(memory, g2s, |entry, word, level| edit::<F>(active, entry, word, level, Reach::Zap));
    }

    /// A flush of the whole shadow that L1 has asked for when the newest number was `asked`: made now, unless one that began later has
    /// ended. One at a time.
    pub(crate) fn flush<M: TableMemory>(&self, memory: &M, active: &impl Numbers, asked: Version) {
        let mut flushed = self.flushed.lock();
        if *flushed > asked || seeded!(FlushBelieved) && *flushed > Version::default() {
            return;
        }
        let began = active.fresh_hole().version();
        self.empty(memory, active, Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        *flushed = began;
    }
}

/// A leaf that does not serve goes, without a flush: the L1 frame that it was made of keeps its hint.
pub(crate) fn drop_leaf(active: &impl Numbers, entry: &Entry, word: Word) {
    let _ = entry.cas(word, active.fresh_hole());
}

/// Edits one entry, until it is as it should be. A link that stands there is returned.
pub(crate) fn edit<F: Format>(
    active: &impl Numbers,
    entry: &Entry,
    mut word: Word,
    level: Level,
    how: Reach,
) -> Option<Word> {
    loop {
        if F::is_table(word, level) {
            return Some(word);
        }
        let is_leaf = F::is_present(word) || word.is_tracked();
        let new = match how {
            Reach::Zap => active.fresh_hole(),
            Reach::WithdrawWrite if is_leaf => F::write_withdrawn(word),
            Reach::WithdrawWrite => return None,
        };
        match entry.cas(word, new) {
            Ok(()) => return None,
            Err(found) => word = found,
        }
    }
}
