//! An address space: mappings, the page table that caches them, and the secondary MMUs that hold copies of its
//! entries.
//!
//! ```text
//! THE LOCKS (outermost first)
//!
//! (the LRU's reclaimers, and its walker: one aging pass at a time)
//! a claim of ranges            changes of the mappings; changes of overlapping ranges wait         crate::mappings
//! └── state                    read: operations that notify       write: registrations           crate::state
//!     └── notify               SecondaryMmu::around, one inside the other     (slat's own order follows from here)
//!         └── page lock of a 2 MiB region          edits of its entries; two at once only in mremap
//!             └── a file's cache or the kept copies, then swap's table, then the arena; a queue of
//!                 user faults; the LRU's regions, then a shard of its counters
//! the mappings' own lock       no lock is taken while it is held
//! ```
//! **A fault takes the page lock and no other lock**, unless it breaks a share or moves a page: then it
//! notifies. A fault reads the current version of the mappings under the page lock; [`crate::mappings`] says
//! why that is enough.
//!
//! No notification begins under a page lock. A change takes the page lock inside the innermost `around` call,
//! reads the entry again, and edits it; so one change of a long range is one notification. A change that
//! notifies page by page does so under the page lock. A shootdown waits only for vCPUs in the guest, and a vCPU
//! in the guest waits for no page lock.
//!
//! **Outside a notification** a change may only give: a page where there was none, write permission to a page's
//! sole owner, smaller leaves for the same frames. **Only inside a notification** may it take a page away, move
//! it, or withdraw permission. Frames are freed after the notification has ended
//! ([`Released`](crate::held::Released)).
//!
//! [`lookup`](AddressSpace::lookup) takes no lock: entries are atomic, and table pages stay until the address
//! space is dropped. Its answer may be out of date; the engine's stamp detects that.

mod builder;

pub use builder::AddressSpaceBuilder;

use crate::arena::Arena;
use crate::clean::Clean;
use crate::error::MmError;
use crate::group::Member;
use crate::held::Released;
use crate::lru::{ForkFamily, Lru};
use crate::mappings::{Claim, Mappings};
use crate::page_lock::{PageLocks, RegionLock};
use crate::pages::{page_of, pages_of};
use crate::pte::Pte;
use crate::state::Shared;
use crate::stats::{Counted, Counters, MmStats, numa};
use crate::swap::{Account, KeptCopies, Readahead, Swap};
use crate::table::{Entry, Table};
use crate::vma::{ADDRESSES, Backing, EVERYWHERE, Place, Prot, Stage, Vma};
use crate::vmas::{VmaEdit, Vmas};
use slat::table::{Word, formats::X64};
use slat::{Access, Format, Gfn, HostPage, Hva, Level, PAGE_SIZE, Pfn, Span};
use std::sync::Arc;

/// An address space on an [`Arena`]. Build one with [`AddressSpace::builder`].
#[derive(Debug)]
pub struct AddressSpace {
    pub(crate) arena: Arc<Arena>,
    pub(crate) map: Table,
    pub(crate) state: Shared,
    pub(crate) page_locks: PageLocks,
    pub(crate) thp: bool,
    pub(crate) clean: Clean,
    /// Backing store of the entries that are swapped out.
    pub(crate) swap: Option<Arc<Swap>>,
    /// Counts what this address space has stored in swap.
    pub(crate) stored: Arc<Account>,
    /// Copies in swap of pages that are mapped.
    pub(crate) kept: KeptCopies,
    /// Address spaces that are related to this one by forks.
    pub(crate) family: Arc<ForkFamily>,
    /// State of read-ahead from swap.
    pub(crate) ahead: Readahead,
    pub(crate) counters: Counters,
    pub(crate) numa: numa::Counters,
    /// Boxed, since most address spaces have no LRU.
    pub(crate) lru: Option<Box<Lru>>,
    /// Membership in its group, if it has one.
    pub(crate) member: Option<Member>,
}

impl AddressSpace {
    /// Returns the arena that this address space allocates from.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Maps `len` bytes and returns the range. Pages are brought in at their first access.
    ///
    /// ```
    /// # use slat_mm::*;
    /// # use slat::{Hva, Span};
    /// let arena = Arena::builder().limit(64 << 20).build()?;
    /// let space = AddressSpace::builder(&arena).build()?;
    /// let span = space.mmap(Place::Fixed(Hva(0x10_0000)), 8192, Prot::ReadWrite, Backing::Anonymous)?;
    /// assert_eq!(span, Span::sized(Hva(0x10_0000), 8192));
    /// # Ok::<(), MmError>(())
    /// ```
    pub fn mmap(&self, place: Place, len: u64, prot: Prot, backing: Backing) -> Result<Span<Hva>, MmError> {
        if let Backing::Shared { file, offset } | Backing::Private { file, offset } = &backing {
            if !Arc::ptr_eq(file.arena(), &self.arena) {
                return Err(MmError::ForeignFile);
            }
            if !offset.is_multiple_of(PAGE_SIZE) || offset.checked_add(len).is_none() {
                return Err(MmError::BadOffset(*offset));
            }
        }
        // `claim` waits first for changes that are under way at a fixed place.
        let fixed = match place {
            Place::Fixed(hva) => vec![Span::sized(hva, len)],
            _ => Vec::new(),
        };
        let (claim, span) = self.claim(&fixed, |vmas| {
            let span = vmas.place(place, len)?;
            Ok((vec![span], span))
        })?;
        let stage = Stage::Here;
        self.edit(&claim, |edit| {
            edit.insert(Vma { span, prot, backing, served: None, mergeable: false, stage });
        });
        self.clean.remove(pages_of(span));
        Ok(span)
    }

    /// Returns what is mapped at `hva` now, without a lock, as [`slat::Host::lookup`] requires. `None` where a
    /// fault would have to bring the page in. For a write the answer may be a page that is not writable.
    #[inline]
    pub fn lookup(&self, hva: Hva, _access: Access) -> Option<HostPage> {
        if hva >= ADDRESSES.end {
            return None;
        }
        let page = page_of(hva);
        let (level, entry) = self.map.find(page);
        let word = entry.load();
        let found = Pte::of(word, level).host_page(page, level);
        // Only an LRU clears Accessed. The caller is about to use the page.
        if found.is_some() && word.0 & X64::ACCESSED == 0 {
            entry.accessed(word);
        }
        found
    }

    /// Returns the event counts so far.
    pub fn stats(&self) -> MmStats {
        self.counters.sum()
    }

    /// Returns the event counts of NUMA balancing so far.
    pub fn numa_stats(&self) -> numa::NumaStats {
        self.numa.sum()
    }

    /// Returns the bytes of page tables in use.
    pub fn table_bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// Whether all secondary MMUs take a change page by page.
    pub(crate) fn heeds_pages(&self) -> bool {
        self.state.read().listeners.heed_pages()
    }

    pub(crate) fn mappings(&self) -> &Mappings {
        &self.state.mappings
    }

    /// [`Mappings::claim`], refused after the address space has exited.
    pub(crate) fn claim<R>(
        &self,
        first: &[Span<Hva>],
        mut decide: impl FnMut(Vmas<'_>) -> Result<(Vec<Span<Hva>>, R), MmError>,
    ) -> Result<(Claim<'_>, R), MmError> {
        self.mappings()
            .claim(first, |vmas| if self.state.exited() { Err(MmError::Exited) } else { decide(vmas) })
    }

    /// Changes mappings in the claimed ranges. The caller holds no lock.
    pub(crate) fn edit(&self, claim: &Claim<'_>, with: impl FnOnce(&mut VmaEdit<'_>)) {
        if self.mappings().edit(claim, with) {
            self.free_versions();
        }
    }

    /// Frees what earlier versions of the mappings have replaced. Postpones this while an operation that
    /// notifies is under way. The caller holds no lock.
    #[cold]
    pub(crate) fn free_versions(&self) {
        let retired = self.mappings().take_retired();
        self.page_locks.outlast_all();
        if self.state.is_outlasted() {
            // SAFETY: every thread that held a page lock or the listeners has released it since.
            unsafe { self.mappings().free(retired) };
        } else {
            self.mappings().keep_retired(retired);
        }
    }

    /// Waits until no thread edits entries of `pages` by an older version. Called after a version was
    /// published.
    pub(crate) fn outlast(&self, pages: Span<Gfn>) {
        self.page_locks.outlast(pages);
    }

    /// Takes the page lock of the region around `page`.
    pub(crate) fn lock_region(&self, page: Gfn) -> RegionLock<'_> {
        self.page_locks.lock(page, self.mappings(), || self.counters.add(Counted::LockWait))
    }

    /// Takes the same lock if it is free.
    pub(crate) fn try_lock_region(&self, page: Gfn) -> Option<RegionLock<'_>> {
        self.page_locks.try_lock(page, self.mappings())
    }

    /// Visits each entry in `pages` that maps frames, in order, under its page lock. An entry that would reach
    /// out of `pages` is split first. Stops at the first error, the visitor's included.
    pub(crate) fn each_page(
        &self,
        pages: Span<Gfn>,
        mut visit: impl FnMut(Found<'_>) -> Result<(), MmError>,
    ) -> Result<(), MmError> {
        self.each_filled(pages, |filled| filled.found().map_or(Ok(()), &mut visit))
    }

    /// Like [`each_page`](Self::each_page), with entries that are swapped out too.
    pub(crate) fn each_filled(
        &self,
        pages: Span<Gfn>,
        mut visit: impl FnMut(Filled<'_>) -> Result<(), MmError>,
    ) -> Result<(), MmError> {
        let mut at = pages.start;
        while at < pages.end {
            let (level, _) = self.map.find(at);
            if level > Level::M2 {
                // No table is linked here: nothing is mapped under this entry, or a fault that comes after this
                // walk is mapping it now. A change of the mappings has outlasted earlier faults.
                at = at.base(level) + level.pages();
                continue;
            }
            let region = Span::sized(at.base(Level::M2), Level::M2.pages());
            let part = region.clamp(&pages);
            let lock = self.lock_region(at);
            if part != region {
                let (level, entry) = self.map.find(at);
                self.split(level, entry)?;
            }
            let mut result = Ok(());
            self.map.for_each(part, |covers, level, entry| {
                let pte = Pte::of(entry.load(), level);
                if result.is_ok() && pte != Pte::Empty {
                    result = visit(Filled { page: covers.start, level, entry, pte, lock: &lock });
                }
            });
            result?;
            at = region.end;
        }
        Ok(())
    }

    /// [`each_filled`](Self::each_filled) for callers that may not wait and may not allocate. Stops with
    /// [`MmError::Again`] where a page lock is not free; skips huge entries that reach out of `pages`.
    pub(crate) fn each_filled_at_once(
        &self,
        pages: Span<Gfn>,
        mut visit: impl FnMut(Filled<'_>),
    ) -> Result<(), MmError> {
        let mut at = pages.start;
        while at < pages.end {
            let (level, _) = self.map.find(at);
            let next = at.base(level.max(Level::M2)) + level.max(Level::M2).pages();
            if level <= Level::M2 {
                let lock = self.try_lock_region(at).ok_or(MmError::Again)?;
                self.map.for_each(Span::new(at, next.min(pages.end)), |covers, level, entry| {
                    let pte = Pte::of(entry.load(), level);
                    if pte != Pte::Empty && pages.covers(&covers) {
                        visit(Filled { page: covers.start, level, entry, pte, lock: &lock });
                    }
                });
            }
            at = next;
        }
        Ok(())
    }

    /// Splits a huge entry in place; leaves other entries as they are. Translations do not change, so no
    /// secondary MMU is notified. The caller holds the page lock.
    pub(crate) fn split(&self, level: Level, entry: Entry<'_>) -> Result<(), MmError> {
        let mut word = entry.load();
        let pte = Pte::of(word, level);
        if level > Level::K4
            && let Some(pfn) = pte.pfn()
        {
            let small = |word: Word, index| {
                let small = pte.with_frame(pfn + index);
                // A huge page whose accessed bit is clear has no part that was accessed.
                let idle = word.0 & X64::ACCESSED == 0;
                if idle { small.idle_word(Level::K4) } else { small.word(Level::K4) }
            };
            // Only the Accessed bit can change meanwhile, so the loop ends.
            while !entry.split(word, |index| small(word, index))? {
                word = entry.load();
            }
            self.counters.add(Counted::Split);
        }
        Ok(())
    }

    /// Forgets that `pages` are clean, and their kept copies in swap: they are written to from now on, or gone. (Where
    /// there is no kept copy, an entry that is filled, or a mapping that is new, forgets the first alone.)
    /// The caller holds their page lock.
    #[inline]
    pub(crate) fn no_longer_same(&self, pages: Span<Gfn>) {
        self.clean.remove(pages);
        self.kept.remove(self.swap.as_deref(), pages);
    }

    /// Gives back what `pte`, which is no longer in an entry, held: frames through `released`, a copy in swap at
    /// once, since no secondary MMU maps that.
    pub(crate) fn release(&self, pte: Pte, level: Level, released: &mut Released<'_>) {
        if let Some(pfn) = pte.pfn() {
            released.add(pfn, level);
        }
        if let (Pte::Swapped { entry, .. }, Some(swap)) = (pte, &self.swap) {
            swap.put(entry);
        }
    }

    /// Whether this entry's references are the only ones to its frames.
    pub(crate) fn is_sole(&self, pfn: Pfn, level: Level) -> bool {
        (0..level.pages()).all(|frame| self.arena.references(pfn + frame) == 1)
    }
}

/// An entry, under its page lock, that holds frames or a copy in swap.
pub(crate) struct Filled<'a> {
    /// First page that it maps.
    pub(crate) page: Gfn,
    pub(crate) level: Level,
    pub(crate) entry: Entry<'a>,
    pub(crate) pte: Pte,
    pub(crate) lock: &'a RegionLock<'a>,
}

impl<'a> Filled<'a> {
    /// Sets the entry to `pte`.
    pub(crate) fn set(&self, pte: Pte) {
        self.entry.store(pte.word(self.level));
    }

    /// Returns the entry as one that maps frames, if it does.
    pub(crate) fn found(&self) -> Option<Found<'a>> {
        let &Self { page, level, entry, pte, lock } = self;
        pte.pfn().map(|pfn| Found { page, level, entry, pte, pfn, lock })
    }
}

/// An entry, under its page lock, that maps frames.
pub(crate) struct Found<'a> {
    /// First page that it maps.
    pub(crate) page: Gfn,
    pub(crate) level: Level,
    pub(crate) entry: Entry<'a>,
    pub(crate) pte: Pte,
    /// First frame that it maps.
    pub(crate) pfn: Pfn,
    pub(crate) lock: &'a RegionLock<'a>,
}

impl Found<'_> {
    /// Sets the entry to `pte`.
    pub(crate) fn set(&self, pte: Pte) {
        self.entry.store(pte.word(self.level));
    }
}

impl Drop for AddressSpace {
    /// Gives every frame back. No secondary MMU is registered any more: each holds a
    /// [`HostView`](crate::HostView), which holds this address space.
    fn drop(&mut self) {
        let mut released = self.arena.released();
        self.map.for_each(pages_of(EVERYWHERE), |_, level, entry| {
            self.release(Pte::of(entry.load(), level), level, &mut released);
        });
        if let Some(swap) = &self.swap {
            self.kept.clear(swap);
        }
    }
}
