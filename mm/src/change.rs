//! Changes that take away: each tells the secondary MMUs why, edits inside, and frees frames afterwards.
//!
//! | operation | why | entries |
//! |---|---|---|
//! | [`munmap`](AddressSpace::munmap) | unmap | emptied |
//! | [`exit`](AddressSpace::exit), or [`unregister`](AddressSpace::unregister) | exit | emptied, all of them |
//! | [`dontneed`](AddressSpace::dontneed) | clear | emptied |
//! | [`reap`](AddressSpace::reap) | unmap, without waiting | emptied |
//! | [`mprotect`](AddressSpace::mprotect) to read-only | protect | lose write permission |
//! | [`mprotect`](AddressSpace::mprotect) to none | clear | parked: the frames stay |
//! | [`mprotect`](AddressSpace::mprotect) to more | – | as they are; faults find out |
//! | [`fork`](AddressSpace::fork) | write-protect | lose write permission, and are shared with the child |
//! | [`clear_soft_dirty`](AddressSpace::clear_soft_dirty) | soft-dirty | lose write permission |
//! | [`mremap`](AddressSpace::mremap) | remap | move to other addresses |
//! | [`migrate`](AddressSpace::migrate) | migrate | get other frames |
//! | [`pageout`](AddressSpace::pageout) | reclaim | swapped |
//! | a write to a share ([`crate::fault`]) | change-pte | a copy |
//!
//! Entries that are swapped out are emptied, shared and moved as others are; to change permissions, or frames, they have
//! to come back first.
//!
//! Mappings change before the notification: their lock is held, so no thread sees the new mapping beside the old
//! entries, except `lookup`, which sees entries only.

use crate::error::MmError;
use crate::held::Released;
use crate::pte::{Pte, pages_of};
use crate::space::{AddressSpace, Filled, State};
use crate::vma::{EVERYWHERE, Prot, Vma, Vmas, aligned};
use parking_lot::RwLockWriteGuard;
use slat::notify::NoPages;
use slat::{Gfn, Hva, Idle, Level, Pages, Span, Why};
use std::sync::Arc;

impl AddressSpace {
    /// Unmaps whatever is mapped in the range. May sleep.
    pub fn munmap(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        let hvas = aligned(hvas)?;
        self.unmap(&mut self.state.write(), idle, hvas)
    }

    pub(crate) fn unmap(
        &self,
        state: &mut RwLockWriteGuard<'_, State>,
        idle: &mut Idle,
        hvas: Span<Hva>,
    ) -> Result<(), MmError> {
        let pages = pages_of(hvas);
        self.split_ends(pages)?;
        let mut gone = state.vmas.cut(hvas);
        if gone.is_empty() {
            return Ok(());
        }
        gone.iter_mut().for_each(Vma::end_service);
        self.empty(state, idle, pages, Why::Unmap)
    }

    /// Changes what is allowed in the range, all of which must be mapped. May sleep.
    pub fn mprotect(&self, idle: &mut Idle, hvas: Span<Hva>, prot: Prot) -> Result<(), MmError> {
        let hvas = aligned(hvas)?;
        let pages = pages_of(hvas);
        let mut state = self.state.write();
        state.vmas.covered(hvas)?;
        let less = state.vmas.over(hvas).any(|vma| prot < vma.prot);
        if less {
            self.split_ends(pages)?;
        }
        for mut vma in state.vmas.cut(hvas) {
            vma.prot = prot;
            state.vmas.insert(vma);
        }
        if !less {
            return Ok(());
        }
        let (why, edit): (_, fn(Pte) -> Pte) = match prot {
            Prot::None => (Why::Clear, Pte::parked),
            _ => (Why::Protect, Pte::read_only),
        };
        let mut result = Ok(());
        self.around(&state, idle, pages, why, &mut |_, _| {
            result = self.each_page(pages, |found| {
                found.set(edit(found.pte));
                Ok(())
            });
        });
        result
    }

    /// Drops the contents of the range (`MADV_DONTNEED`): anonymous memory reads as zeroes afterwards, private
    /// file mappings as their file. What is not mapped is passed over. May sleep.
    pub fn dontneed(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        let pages = pages_of(aligned(hvas)?);
        let state = self.state.read();
        self.empty(&state, idle, pages, Why::Clear)
    }

    /// Ends the address space: nothing is mapped any more, and nothing can be; faults, maps and forks are refused
    /// ([`MmError::Exited`]). Every secondary MMU is told once. May sleep.
    pub fn exit(&self, idle: &mut Idle) -> Result<(), MmError> {
        let mut state = self.state.write();
        if std::mem::replace(&mut state.exited, true) {
            return Ok(());
        }
        state.vmas.cut(EVERYWHERE).iter_mut().for_each(Vma::end_service);
        self.empty(&state, idle, pages_of(EVERYWHERE), Why::Exit)
    }

    /// A copy of this address space, as fork makes: what is private is shared until either side writes, what is
    /// shared stays shared. The copy has no secondary MMUs. May sleep. Where memory runs out there is no copy,
    /// and this side's pages come back writable one by one, at faults.
    pub fn fork(&self, idle: &mut Idle) -> Result<Arc<Self>, MmError> {
        let state = self.state.write();
        if state.exited {
            return Err(MmError::Exited);
        }
        let child = self.builder_of_same().build()?;
        for vma in state.vmas.iter().filter(|vma| !vma.is_shared()) {
            let pages = pages_of(vma.span);
            let mut result = Ok(());
            let mut share = |_: &mut Idle, _: &mut dyn Pages| {
                result = self.each_filled(pages, |filled| {
                    let copy = child.map.reach(filled.page, filled.level)?;
                    if let (Pte::Swapped { entry, .. }, Some(swap)) = (filled.pte, &self.swap) {
                        swap.hold(entry).keep();
                        copy.store(filled.pte.word(filled.level));
                    }
                    let Some(found) = filled.found() else { return Ok(()) };
                    if self.is_pinned(found.pfn, found.level) {
                        // Shared, the next write here would leave the device behind.
                        let own = self.arena.page(found.level)?;
                        self.arena.copy(found.pfn, own.pfn(), found.level);
                        child.lru_enter(found.page, found.level, own.pfn(), self.lru_kind(found.page));
                        copy.store(found.pte.with_frame(own.keep()).word(found.level));
                        return Ok(());
                    }
                    let pte = found.pte.read_only();
                    found.set(pte);
                    self.arena.share(Span::sized(found.pfn, found.level.pages()));
                    child.lru_enter(found.page, found.level, found.pfn, self.lru_kind(found.page));
                    copy.store(pte.word(found.level));
                    Ok(())
                });
            };
            if vma.prot == Prot::ReadWrite {
                self.around(&state, idle, pages, Why::WriteProtect, &mut share);
            } else {
                share(idle, &mut NoPages); // nothing is writable: nothing is withdrawn
            }
            result?;
        }
        // Registrations with user faults stay behind.
        let mut vmas = Vmas::default();
        state.vmas.iter().for_each(|vma| vmas.insert(Vma { served: None, ..vma.clone() }));
        child.state.write().vmas = vmas;
        Ok(child)
    }

    /// Empties the range inside a notification, and then frees the frames that have no other reference.
    fn empty(&self, state: &State, idle: &mut Idle, pages: Span<Gfn>, why: Why) -> Result<(), MmError> {
        let mut released = self.arena.released();
        let mut result = Ok(());
        self.around(state, idle, pages, why, &mut |_, _| {
            result = self.each_filled(pages, |filled| {
                self.clear(&filled, &mut released);
                Ok(())
            });
        });
        self.lru_forget(pages);
        result
    }

    /// Empties an entry; `released` gives its frames back.
    pub(crate) fn clear(&self, filled: &Filled<'_>, released: &mut Released<'_>) {
        filled.set(Pte::Empty);
        self.no_longer_same(Span::sized(filled.page, filled.level.pages()));
        if filled.pte.pfn().is_some() {
            self.lru_leave(filled.page, filled.level);
        }
        self.release(filled.pte, filled.level, released);
    }

    /// Makes sure that no entry reaches over an end of the range, for callers that hold the mappings for
    /// writing and must not fail half-way.
    pub(crate) fn split_ends(&self, pages: Span<Gfn>) -> Result<(), MmError> {
        for end in [pages.start, pages.end] {
            if end != end.base(Level::M2) {
                let _lock = self.lock_region(end);
                let (level, entry) = self.map.find(end);
                self.split(level, entry)?;
            }
        }
        Ok(())
    }
}
