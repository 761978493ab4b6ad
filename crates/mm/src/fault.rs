//! Faults: bring in the page that belongs at an address. A fault takes nothing away from a secondary MMU,
//! except when it breaks a share or moves a page to the faulting node.
//!
//! | entry | mapping | access | what happens |
//! |---|---|---|---|
//! | empty | anonymous | any | a page of zeroes, huge where it fits |
//! | empty | shared file | any | the file's page; read back first, if it is in swap |
//! | empty | private file | read | the file's page, not writable |
//! | empty | private file | write | a copy of the file's page |
//! | parked | any | any | mapped again, not writable yet |
//! | protnone | any | any | mapped again as it was; or, first, **moved to the faulting node** ([`Reason::Migrate`]) |
//! | swapped | any | any | read back, then parked |
//! | not writable | shared file | write | writable |
//! | not writable | private, sole owner | write | writable, in place |
//! | not writable | private, huge | write | split, then again |
//! | not writable | private | write | **a copy in its place** ([`Reason::ChangePte`]), then again |
//!
//! A fault on an empty entry may first wait for a registered handler ([`crate::user_fault`]).
//!
//! Rows without bold only give, so they notify no secondary MMU. Sole owner means that this entry holds the
//! frame's only reference. Only a fork could add another, and it takes the page lock first.
//!
//! **A fault reads the mapping under the page lock**, each time that it chooses a row: [`crate::mappings`]. A
//! fault that releases the lock to sleep or to notify reads the mapping again. A fault waits while its mapping
//! is busy.
//!
//! **Settle before you copy.** A copy of a page is whole only if no vCPU still stores to the old frame. A
//! change that notifies page by page (swap-out, merge, hint) edits an entry, releases the page lock, and
//! flushes when its notification ends. Another thread can meet the edited entry before that flush. So a change
//! copies a page only after that flush:
//!
//! | copy | flush before it |
//! |---|---|
//! | a broken share, here; also for pins, KSM's unmerging and guests of other VMs, which all fault | [`Pages::settle`](slat::Pages::settle), under the page lock |
//! | migration, NUMA | `Reason::Migrate` is eager: it has taken its whole range away, adopted the debts of others, and flushed |
//! | a pinned page, in a fork | `Reason::WriteProtect` is eager: it has write-protected its whole range, adopted the debts of others, and flushed |
//! | a private mapping's first write to its file's page | none: the entry was empty. The copy may or may not have concurrent stores through shared mappings |
//! | contents on their way to swap; the comparison before a merge | their own notification, which has ended. Its reference to the frame keeps other threads from writing in place; for swap, the frame's mark keeps them from a second swap-out. Other address spaces that share the frame lost permission earlier ([`crate::swap`]) |

use crate::error::MmError;
use crate::fault_queue::Asleep;
use crate::file::{File, Page};
use crate::held::Held;
use crate::lru::Kind;
use crate::pages::{hva_of, hvas_of, page_of};
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::state::State;
use crate::stats::Counted;
use crate::swap::{HeldCopy, Shadow};
use crate::vma::{Backing, Prot, Vma};
use slat::{Access, Gfn, HostPage, Hva, Idle, Level, PAGE_SIZE, Reason, Span};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

impl AddressSpace {
    /// Makes the page at `hva` present for this access, and returns it; for a write it is writable. May sleep;
    /// may notify secondary MMUs.
    pub fn fault(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, MmError> {
        self.counters.add(Counted::Fault);
        self.with_room(idle, |idle| self.fault_within(idle, hva, access))
    }

    /// The fault itself, without making room under a limit.
    fn fault_within(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, MmError> {
        let page = page_of(hva);
        loop {
            match self.bring_in(hva, access)? {
                Next::There(found) => return Ok(found),
                Next::Wait => self.mappings().wait(idle, hva),
                Next::BreakShare => self.break_share(&self.state.read(), idle, page)?,
                Next::BringHome(level) => self.bring_home(&self.state.read(), idle, page, level),
                Next::SwapIn(copy, shadow) => self.swap_in(idle, page, &copy, shadow)?,
                Next::SwapInFile(file, index) => {
                    file.swap_in(idle, index, hva)?;
                    self.counters.add(Counted::SwappedIn);
                }
                Next::Sleep(asleep) => asleep.sleep(idle),
            }
        }
    }

    /// Handles every row of the table but those in bold.
    fn bring_in(&self, hva: Hva, access: Access) -> Result<Next<'_>, MmError> {
        let page = page_of(hva);
        let lock = self.lock_region(page);
        let Some(vma) = lock.find(hva) else {
            return Err(if self.state.exited() { MmError::Exited } else { MmError::NotMapped(hva) });
        };
        if self.mappings().is_busy(vma) {
            return Ok(Next::Wait);
        }
        if !vma.prot.allows(access) {
            return Err(MmError::Denied(hva, access));
        }
        loop {
            let (level, entry) = self.map.find(page);
            let pte = Pte::of(entry.load(), level);
            let next = match pte {
                Pte::Empty => {
                    if let Some(asleep) = vma.post(page, access) {
                        return Ok(Next::Sleep(asleep));
                    }
                    match self.fill(vma, page, access)? {
                        None => continue,
                        Some((file, index)) => return Ok(Next::SwapInFile(file, index)),
                    }
                }
                Pte::Swapped { entry, shadow } => {
                    // Entries are swapped only with swap.
                    let swap = self.swap.as_ref().ok_or(MmError::SwapCorrupt(hva_of(page)))?;
                    return Ok(Next::SwapIn(swap.hold(entry), shadow));
                }
                Pte::Parked(pfn) => {
                    self.found_parked(vma.span, pfn);
                    Pte::Mapped { pfn, writable: false }
                }
                Pte::Protnone { pfn, .. } if self.hint(pfn, level) => return Ok(Next::BringHome(level)),
                Pte::Protnone { pfn, writable } => Pte::Mapped { pfn, writable },
                Pte::Mapped { writable, .. } if writable || access != Access::Write => {
                    return Ok(pte.host_page(page, level).map_or(Next::BreakShare, Next::There));
                }
                Pte::Mapped { pfn, .. } if vma.is_shared() || self.is_only_mapping(pfn, level) => {
                    self.counters.add(Counted::Reuse);
                    Pte::Mapped { pfn, writable: true }
                }
                Pte::Mapped { .. } if level > Level::K4 => {
                    self.split(level, entry)?;
                    continue;
                }
                Pte::Mapped { .. } => return Ok(Next::BreakShare),
            };
            if let Pte::Mapped { writable: true, .. } = next {
                self.no_longer_same(Span::sized(page.base(level), level.pages()));
            }
            entry.store(next.word(level));
        }
    }

    /// Fills an empty entry by its mapping. Returns the file and page index instead where that page of a file
    /// is in swap.
    fn fill(&self, vma: &Vma, page: Gfn, access: Access) -> Result<Option<(Arc<File>, u64)>, MmError> {
        self.may_take(Level::K4)?;
        let may_write = vma.prot == Prot::ReadWrite;
        let mut kind = Kind::of(vma);
        let (held, level, writable) = match &vma.backing {
            Backing::Anonymous => {
                self.counters.add(Counted::DemandZero);
                match self.huge(vma, page) {
                    Some(held) => (held, Level::M2, may_write),
                    None => (self.arena.zeroed(Level::K4)?, Level::K4, may_write),
                }
            }
            Backing::Shared { file, offset } | Backing::Private { file, offset } => {
                let index = vma.file_page(page, *offset);
                let held = match file.page(index)? {
                    Page::There(held) => held,
                    Page::Swapped => return Ok(Some((file.clone(), index))),
                    Page::PastEnd => return Err(MmError::PastEnd(hva_of(page))),
                };
                if vma.is_shared() {
                    (held, Level::K4, may_write)
                } else if access == Access::Write {
                    let copy = self.arena.page(Level::K4)?;
                    self.arena.copy(held.pfn(), copy.pfn(), Level::K4);
                    // The charge is for the file page, which the file's cache holds from now on.
                    self.charge(Level::K4, held.pfn(), Kind::File);
                    self.counters.add(Counted::CowBreak);
                    (copy, Level::K4, true)
                } else {
                    kind = Kind::File;
                    (held, Level::K4, false)
                }
            }
        };
        let entry = self.map.reach(page, level)?;
        self.lru_enter(page.base(level), level, held.pfn(), kind);
        // It may be writable from here on.
        self.clean.remove(Span::sized(page.base(level), level.pages()));
        entry.store(Pte::Mapped { pfn: held.keep(), writable }.word(level));
        Ok(None)
    }

    /// Returns a huge page for the region if no table is linked under it and the arena has one left.
    fn huge(&self, vma: &Vma, page: Gfn) -> Option<Held<'_>> {
        let fits = self.thp && vma.covers_huge(page) && self.map.find(page).0 >= Level::M2;
        let may = fits && self.may_take(Level::M2).is_ok();
        let held = may.then(|| self.arena.zeroed(Level::M2).ok()).flatten()?;
        self.counters.add(Counted::Huge);
        Some(held)
    }

    /// The last row: replaces a shared page by a copy. Reads the entry again under the page lock, and does
    /// nothing if the share has gone or something else is mapped there.
    ///
    /// The copy is read-only at first, so that a guest that reads the old page can map the new one. The fault
    /// then looks again and finds that it is the sole owner.
    pub(crate) fn break_share(&self, state: &State, idle: &mut Idle, page: Gfn) -> Result<(), MmError> {
        let mut fresh = Some(self.arena.page(Level::K4)?);
        let mut released = self.arena.released();
        let pages = Span::sized(page, 1);
        self.around(state, idle, pages, Reason::ChangePte, &mut |idle, told| {
            let lock = self.lock_region(page);
            let is_own = lock.find(hva_of(page)).is_some_and(|vma| !vma.is_shared());
            let (level, entry) = self.map.find(page);
            if let (Level::K4, Pte::Mapped { pfn, writable: false }) = (level, Pte::of(entry.load(), level))
                && is_own
                && let Some(fresh) = fresh.take()
            {
                // The share may not be flushed yet: "settle before you copy" in the header.
                told.settle(idle, hvas_of(pages));
                // From here on only shared mappings of the file write to the share, so the copy is whole.
                self.arena.copy(pfn, fresh.pfn(), level);
                self.lru_replace(page, level, fresh.pfn(), Some(Kind::Anon));
                let copy = Pte::Mapped { pfn: fresh.keep(), writable: false };
                entry.store(copy.word(level));
                told.changed(idle, hvas_of(pages), copy.host_page(page, level));
                // Flush before another thread can find the copy, see that it has a sole owner, and write to it
                // in place.
                told.flush(idle);
                released.add(pfn, level);
                self.counters.add(Counted::CowBreak);
            }
        });
        Ok(())
    }

    /// Copies memory into `buffer`, as this process sees it, and brings pages in as needed. Each page is read
    /// under its page lock, so no change happens in between; guests may write to it meanwhile.
    pub fn read(&self, idle: &mut Idle, hva: Hva, buffer: &mut [u8]) -> Result<(), MmError> {
        self.each_piece(idle, hva, buffer.len(), Access::Read, |frame, done, len| {
            // SAFETY: `len` bytes of a frame that an entry maps, under its page lock; the buffer's part.
            unsafe { frame.copy_to_nonoverlapping(buffer[done..done + len].as_mut_ptr(), len) };
        })
    }

    /// Copies `bytes` to memory, as this process sees it; brings pages in and breaks shares as needed. On an
    /// error the pages before the failing one are written.
    pub fn write(&self, idle: &mut Idle, hva: Hva, bytes: &[u8]) -> Result<(), MmError> {
        self.each_piece(idle, hva, bytes.len(), Access::Write, |frame, done, len| {
            // SAFETY: `len` bytes of a frame that an entry maps writable, under its page lock.
            unsafe { frame.copy_from_nonoverlapping(bytes[done..done + len].as_ptr(), len) };
        })
    }

    /// Calls `visit` for each page's piece of the range, with its address, the bytes before it, and its length.
    /// The page lock is held, so no change takes the frame away meanwhile.
    fn each_piece(
        &self,
        idle: &mut Idle,
        hva: Hva,
        len: usize,
        access: Access,
        mut visit: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), MmError> {
        if hva.0.checked_add(len as u64).is_none() {
            return Err(MmError::NotMapped(Hva(u64::MAX)));
        }
        let mut done = 0;
        while done < len {
            let at = hva + done as u64;
            let piece = (len - done).min((PAGE_SIZE - at.offset()) as usize);
            while !self.with_page(at, access, |frame| visit(frame, done, piece)) {
                self.fault(idle, at, access)?;
            }
            done += piece;
        }
        Ok(())
    }

    fn with_page(&self, hva: Hva, access: Access, visit: impl FnOnce(*mut u8)) -> bool {
        let _lock = self.lock_region(page_of(hva));
        self.there(hva, access).map(visit).is_some()
    }

    /// Calls `visit` with `count` eight-byte words from `hva` on. `None` if the words are unaligned or cross a
    /// page, the page is not present for this access, or its lock is taken. Never waits.
    pub(crate) fn with_words<R>(
        &self,
        hva: Hva,
        count: usize,
        access: Access,
        visit: impl FnOnce(&[AtomicU64]) -> R,
    ) -> Option<R> {
        if hva.offset() as usize + count * size_of::<u64>() > PAGE_SIZE as usize {
            return None;
        }
        let _lock = self.try_lock_region(page_of(hva))?;
        let first = self.there(hva, access).filter(|first| first.cast::<AtomicU64>().is_aligned())?;
        // SAFETY: aligned, and in a frame that an entry maps, which stays so under its page lock.
        Some(visit(unsafe { std::slice::from_raw_parts(first.cast(), count) }))
    }

    /// Returns where `hva` is in its frame, if the page is present for this access. The caller holds the page
    /// lock.
    fn there(&self, hva: Hva, access: Access) -> Option<*mut u8> {
        let page = self.lookup(hva, access).filter(|page| page.writable || access != Access::Write)?;
        Some(self.arena.frame(page.pfn).wrapping_add(hva.offset() as usize))
    }
}

/// The next step of a fault.
enum Next<'a> {
    /// Returns this page.
    There(HostPage),
    /// Waits until a change of the mapping ends.
    Wait,
    /// Breaks the share: the last row.
    BreakShare,
    /// Moves a protnone page of this size to the faulting node.
    BringHome(Level),
    /// Reads a swapped page back.
    SwapIn(HeldCopy<'a>, Shadow),
    /// Reads this page of a file back first.
    SwapInFile(Arc<File>, u64),
    /// Waits for a user's thread.
    Sleep(Asleep),
}
