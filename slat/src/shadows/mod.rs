//! Shadows: tables in the host's format that map frames of L2 to frames of the host, one for each table of L1 in use.
//!
//! ```text
//! Shadows   of an address space, made with its first nested guest
//!   directory   for each shadow: its table of L1, and how many vCPUs hold it
//!   all         the shadows: a table each, filled by faults of L2
//!   reverse     L1 frame ─▶ (shadow, g2), any number of them
//! ```
//! A shadow acts as a TLB that L1's vCPUs share. T is not write-protected: L1's store to it takes effect at L1's flush,
//! or earlier. A change by L0's host takes effect at once: [`Shadows::reach`].
//!
//! **Holes have no numbers**, unlike those of L1's own tables: a fault freezes its entry, and then checks whether
//! anything was announced since it read T and asked the host ([`shadow`]).
//!
//! **The reverse map unlinks no table and no block** before the VM is dropped, so it is walked in no section. Tables of a shadow may
//! be [reclaimed](reclaim) at any time: faults walk them in a section of the read side, all other walks inside the
//! [`counted_walks`]. Roots stay. When all shadows are in use, the one that no vCPU pins and that was unused for longest serves
//! the next table of L1. Each vCPU then flushes before its first entry there.

mod aging;
mod counted_walks;
mod drops;
mod hints;
mod hooks;
mod invalidate;
mod leaf_rows;
#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
mod reach;
mod reclaim;
mod reverse;
#[cfg(all(test, not(any(loom, shuttle))))]
mod reverse_tests;
mod shadow;
mod split;
mod vcpu_state;

pub(crate) use counted_walks::CountedWalk;
pub(crate) use drops::{Dropping, Drops};
pub(crate) use hints::{HintAt, RmapHint};
pub(crate) use hooks::Shadowed;
pub(crate) use leaf_rows::{LeafRow, Rows, RowsOf, Spare};

pub(crate) use reverse::Stretches;
pub(crate) use shadow::{FlushLine, Frozen, HOLE, Reach, Shadow, drop_leaf, edit, frozen, is_leaf, maps};
pub(crate) use split::SplitPages;
pub(crate) use vcpu_state::VcpuShadows;
#[cfg(all(test, feature = "std", not(shuttle)))]
pub(crate) use {counted_walks::WalkCount, reclaim::unlink};

use crate::active::Active;
use crate::sync::once::Once;
use crate::sync::prim::{AtomicU64, Mutex, Relaxed, quiet};
use crate::table::retire::count_tables;
use crate::table::{Cache, Entry, Pool, TableCount, Version};
use crate::{Format, Gfn, Level, NoMemory, Span, TableMemory};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use hints::MAX_SHADOWS;
use leaf_rows::Half;
use reverse::Reverse;

/// A table of L1, of any format.
pub(crate) type AnyTable = Box<dyn Any + Send + Sync>;

/// The shadows of an address space. See the module's header.
// Aligned, so that the allocator does not decide which words share a cache line.
#[repr(align(64))]
pub(crate) struct Shadows<F> {
    pub(crate) reverse: Reverse<F>,
    pub(crate) drops: Drops,
    all: Box<[Once<Shadow<F>>]>,
    directory: Mutex<Vec<Named>>,
    /// Rows that no table has; next, the number of pages that were made into rows.
    halves: Mutex<Vec<Half>>,
    row_pages: AtomicU64,
    /// Number of passes over shadows for flushes by guests.
    passes: AtomicU64,
}

/// The table of L1 that a shadow is for.
struct Named {
    table: AnyTable,
    /// The number at which it got this table, unique among shadows.
    since: Version,
    /// Number of vCPUs that pin it.
    pins: u32,
    used: Version,
}

/// A shadow that a vCPU pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pin {
    pub(crate) index: usize,
    /// The number at which it got this table of L1.
    pub(crate) since: Version,
}

impl<F: Format> Shadows<F> {
    /// Shadows for `many` tables of L1 at once, at least eight.
    pub(crate) fn new<M: TableMemory>(memory: &M, pool: &Pool, many: usize) -> Result<Self, NoMemory> {
        let many = many.clamp(8, MAX_SHADOWS);
        Ok(Self {
            reverse: Reverse::new(memory, pool)?,
            all: (0..many).map(|_| Once::default()).collect(),
            drops: Drops::default(),
            directory: Mutex::default(),
            halves: Mutex::default(),
            row_pages: AtomicU64::new(0),
            passes: AtomicU64::new(0),
        })
    }

    /// Returns the shadow with this number, which a vCPU holds or a hint names.
    pub(crate) fn shadow(&self, index: usize) -> Option<&Shadow<F>> {
        self.all.get(index)?.get()
    }

    /// Returns the shadow, and begins a counted walk of it, for a walk outside of a fault.
    pub(crate) fn visit(&self, index: usize) -> Option<(&Shadow<F>, CountedWalk<'_>)> {
        let shadow = self.shadow(index)?;
        Some((shadow, shadow.walks.enter()))
    }

    fn shadows(&self) -> impl Iterator<Item = &Shadow<F>> {
        self.all.iter().filter_map(Once::get)
    }

    /// Counts a pass over a shadow for a flush by a guest.
    pub(crate) fn count_pass(&self) {
        quiet(&self.passes).fetch_add(1, Relaxed);
    }

    /// Returns the number of shadows, and of passes over them.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.shadows().count() as u64, quiet(&self.passes).load(Relaxed))
    }

    /// Returns the shadow for `table`, pinned for a vCPU until [`let_go`](Self::let_go).
    pub(crate) fn pin<T: Copy + Eq + Send + Sync + 'static, M: TableMemory>(
        &self,
        (memory, pool, active): (&M, &Pool, &Active),
        table: T,
    ) -> Result<Pin, NoMemory> {
        let mut directory = self.directory.lock();
        let is_it = |named: &Named| named.table.downcast_ref::<T>() == Some(&table);
        let used = active.now();
        if let Some(index) = directory.iter().position(is_it) {
            let named = &mut directory[index];
            (named.pins, named.used) = (named.pins + 1, used);
            return Ok(Pin { index, since: named.since });
        }
        let since = active.fresh();
        let fresh = Named { table: Box::new(table), since, pins: 1, used };
        let index = if directory.len() < self.all.len() {
            let index = directory.len();
            self.all[index].set(Shadow::new(memory, pool)?);
            directory.push(fresh);
            index
        } else {
            let free = directory.iter().enumerate().filter(|(_, named)| named.pins == 0);
            let (index, _) = free.min_by_key(|(_, named)| named.used).ok_or(NoMemory)?;
            directory[index] = fresh;
            index
        };
        Ok(Pin { index, since: directory[index].since })
    }

    /// Ends a pin.
    pub(crate) fn let_go(&self, hold: Pin) {
        self.directory.lock()[hold.index].pins -= 1;
    }

    /// Calls `visit` with each shadow that is for a table of this format for which `covers` is true.
    pub(crate) fn for_tables<T: Copy + Eq + Send + Sync + 'static>(
        &self,
        covers: impl Fn(&T) -> bool,
        mut visit: impl FnMut(Pin, T),
    ) {
        for (index, named) in self.directory.lock().iter().enumerate() {
            if let Some(table) = named.table.downcast_ref::<T>().filter(|table| covers(table)) {
                visit(Pin { index, since: named.since }, *table);
            }
        }
    }

    /// Gives a vCPU what a fault may need: rows that no table has, and blocks that hold no hints, or pages of its `cache`.
    #[cold]
    pub(crate) fn refill(&self, spare: &mut Spare, cache: &mut Cache) {
        while !spare.has_rows()
            && let Some(half) = self.half(cache)
        {
            spare.rows.push(half);
        }
        if spare.hints.is_empty() {
            self.reverse.refill(&mut spare.hints, cache);
        }
    }

    /// Takes a vCPU's spare rows and blocks back.
    pub(crate) fn give_back(&self, spare: &mut Spare) {
        self.halves.lock().append(&mut spare.rows);
        self.reverse.reclaim(&mut spare.hints);
    }

    /// F7: enters a hint for a page of `level` around `g1`, or finds it: see [`HintAt::stands`].
    pub(crate) fn enter_hint<'a, M: TableMemory>(
        &'a self,
        memory: &M,
        spare: (&mut Cache, &mut Spare),
        (g1, level): (Gfn, Level),
        hint: RmapHint,
    ) -> Result<HintAt<'a>, NoMemory> {
        let page = Span::sized(g1.base(level), level.pages());
        self.reverse.add(memory, spare, (g1, level), hint, |other| self.is_gone(memory, (page, level), other))
    }

    /// Whether no leaf is left that the hint of a page of L1 leads to. A frozen entry may become one.
    fn is_gone<M: TableMemory>(&self, memory: &M, (page, level): (Span<Gfn>, Level), hint: RmapHint) -> bool {
        let Some((shadow, _inside)) = self.visit(hint.shadow) else { return true };
        // SAFETY: in a counted walk.
        let at = unsafe { shadow.radix.descend(memory, hint.g2) };
        if at.level >= level {
            // SAFETY: as above.
            let row =
                || unsafe { Rows::of(memory, at.node) }.map(|rows| rows.get(F::index(hint.g2, at.level)));
            // A larger leaf has a hint of its own.
            let is_other = || at.level > level || row().is_some_and(|row| !row.may_name(page.start));
            return at.word.is_hole() || is_leaf::<F>(at.word) && is_other();
        }
        // The parts of a split leaf, or the leaves of pages that L1 has put in its place.
        // SAFETY: as above.
        let (entries, rows) = unsafe { (at.node.entries(), Rows::of(memory, at.node)) };
        let is_other = |(nth, entry): (usize, &Entry)| {
            let word = entry.load();
            let other = || rows.is_some_and(|rows| !rows.get(nth).may_lie_in(page));
            word.is_hole() || is_leaf::<F>(word) && other()
        };
        level == Level::M2 && entries.iter().enumerate().all(is_other)
    }

    /// Returns the number of table pages in shadows and in the reverse map.
    pub(crate) fn pages<M: TableMemory>(&self, memory: &M) -> u64 {
        let in_shadow = |shadow: &Shadow<F>| {
            let mut tables = TableCount::<F>::default();
            shadow.visit(memory, Level::M2, |at, g2s| {
                tables.see(at, g2s);
                None
            });
            tables.pages()
        };
        // No walk of the reverse map is in a section.
        let in_plane = |root| count_tables::<F, M>(memory, root, F::ROOT_LEVEL);
        self.row_pages.load(Relaxed)
            + self.reverse.block_pages()
            + self.shadows().map(in_shadow).sum::<u64>()
            + self.reverse.roots(memory).map(in_plane).sum::<u64>()
    }
}
