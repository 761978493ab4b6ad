//! Changes that take pages away. Each notifies the secondary MMUs with its reason, edits entries inside, and
//! frees frames afterwards.
//!
//! | operation | why | entries |
//! |---|---|---|
//! | [`munmap`](AddressSpace::munmap) | unmap | emptied |
//! | [`exit`](AddressSpace::exit), or [`unregister`](AddressSpace::unregister) | exit | emptied, all of them |
//! | [`dontneed`](AddressSpace::dontneed) | clear | emptied |
//! | [`reap`](AddressSpace::reap) | unmap, without waiting | emptied |
//! | [`mprotect`](AddressSpace::mprotect) to read-only | protect | lose write permission |
//! | [`mprotect`](AddressSpace::mprotect) to none | clear | parked: the frames stay |
//! | [`mprotect`](AddressSpace::mprotect) to more | – | unchanged; faults raise the permission |
//! | [`fork`](AddressSpace::fork) | write-protect | lose write permission, and are shared with the child |
//! | [`clear_soft_dirty`](AddressSpace::clear_soft_dirty) | soft-dirty | lose write permission |
//! | [`mremap`](AddressSpace::mremap) | remap | move to other addresses |
//! | [`migrate`](AddressSpace::migrate) | migrate | get other frames |
//! | [`pageout`](AddressSpace::pageout) | reclaim | swapped |
//! | a write to a share ([`crate::fault`]) | change-pte | a copy |
//!
//! Swapped entries are emptied, shared and moved like others. A fault has to read them back before their
//! permission or frame can change.
//!
//! A change publishes the mappings before it notifies. When the notification begins, no thread edits entries of
//! the range by the old mappings; [`crate::mappings`] says what faults find meanwhile. `lookup` reads entries
//! only.
//!
//! **A huge page that crosses an end of the range** is split first, which may fail. The range is busy until the
//! split has succeeded: faults wait, and a refused change has no effect.

use crate::error::MmError;
use crate::fault_queue::Served;
use crate::held::Released;
use crate::mappings::Claim;
use crate::pages::pages_of;
use crate::pte::Pte;
use crate::space::{AddressSpace, Filled};
use crate::state::State;
use crate::unwound::IfUnwound;
use crate::vma::{Backing, EVERYWHERE, Prot, Stage, Vma, aligned};
use slat::notify::NoPages;
use slat::{Gfn, Hva, Idle, Level, Pages, Reason, Span};
use std::sync::Arc;

impl AddressSpace {
    /// Unmaps all mappings in the range. May sleep.
    pub fn munmap(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        let hvas = aligned(hvas)?;
        let claim = self.mappings().claim_one(hvas);
        self.unmap(&claim, idle, hvas)
    }

    /// Unmaps a range that the caller has claimed.
    pub(crate) fn unmap(&self, claim: &Claim<'_>, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        if !self.mappings().any_over(claim, hvas) {
            return Ok(());
        }
        let pages = pages_of(hvas);
        self.divide(claim, hvas)?;
        let mut gone = Vec::new();
        self.edit(claim, |edit| {
            gone = edit.cut(hvas);
            edit.insert(Vma::kept(hvas));
        });
        self.outlast(pages);
        end_service(gone.iter_mut().filter_map(Vma::end_service));
        let mapped = IfUnwound::run(|| {
            self.edit(claim, |edit| {
                edit.free(hvas);
                for vma in &gone {
                    edit.insert(Vma { stage: Stage::Here, ..vma.clone() });
                }
            });
        });
        let result = self.empty(&self.state.read(), idle, pages, Reason::Unmap);
        mapped.disarm();
        self.edit(claim, |edit| edit.free(hvas));
        self.let_files_go(&gone);
        result
    }

    /// Frees versions at once if a removed mapping kept a file; versions keep files alive otherwise.
    fn let_files_go(&self, gone: &[Vma]) {
        if gone.iter().any(|vma| !matches!(vma.backing, Backing::Anonymous)) {
            self.free_versions();
        }
    }

    /// Splits entries that cross an end of the claimed range, so that the change cannot fail half-way. On an
    /// error nothing has changed. On success the range may be busy, until the caller changes the mappings.
    fn divide(&self, claim: &Claim<'_>, hvas: Span<Hva>) -> Result<(), MmError> {
        let pages = pages_of(hvas);
        if [pages.start, pages.end].iter().all(|end| *end == end.base(Level::M2)) {
            return Ok(());
        }
        self.edit(claim, |edit| edit.change(hvas, |vma| vma.stage = Stage::Busy));
        // From here on no fault makes a huge page that crosses an end of the range.
        self.outlast(pages);
        self.split_ends(pages).inspect_err(|_| {
            self.edit(claim, |edit| edit.change(hvas, |vma| vma.stage = Stage::Here));
        })
    }

    /// Changes the protection of the range, all of which must be mapped. May sleep.
    pub fn mprotect(&self, idle: &mut Idle, hvas: Span<Hva>, prot: Prot) -> Result<(), MmError> {
        let hvas = aligned(hvas)?;
        let pages = pages_of(hvas);
        let (claim, before) = self.claim(&[hvas], |vmas| {
            vmas.covered(hvas)?;
            Ok((vec![hvas], vmas.over(hvas).map(|vma| (vma.span.clamp(&hvas), vma.prot)).collect::<Vec<_>>()))
        })?;
        let less = before.iter().any(|(_, before)| prot < *before);
        if less {
            self.divide(&claim, hvas)?;
        }
        self.edit(&claim, |edit| {
            edit.change(hvas, |vma| {
                vma.prot = prot;
                vma.stage = Stage::Here;
            });
        });
        if !less {
            return Ok(());
        }
        self.outlast(pages);
        let (why, edit): (_, fn(Pte) -> Pte) = match prot {
            Prot::None => (Reason::Clear, Pte::parked),
            _ => (Reason::Protect, Pte::read_only),
        };
        let as_before = IfUnwound::run(|| {
            self.edit(&claim, |edit| {
                for &(span, prot) in &before {
                    edit.change(span, |vma| vma.prot = prot);
                }
            });
        });
        let mut result = Ok(());
        self.around(&self.state.read(), idle, pages, why, &mut |_, _| {
            result = self.each_page(pages, |found| {
                found.set(edit(found.pte));
                Ok(())
            });
        });
        as_before.disarm();
        result
    }

    /// Drops the contents of the range (`MADV_DONTNEED`): anonymous memory reads as zeroes afterwards, private
    /// file mappings read their file again. Skips parts that are not mapped. May sleep.
    pub fn dontneed(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        let pages = pages_of(aligned(hvas)?);
        let state = self.state.read();
        self.empty(&state, idle, pages, Reason::Clear)
    }

    /// Ends the address space: unmaps everything, and refuses later faults, maps and forks
    /// ([`MmError::Exited`]). Notifies every secondary MMU once. May sleep.
    pub fn exit(&self, idle: &mut Idle) -> Result<(), MmError> {
        let Ok((claim, ())) = self.claim(&[EVERYWHERE], |_| Ok((vec![EVERYWHERE], ()))) else {
            return Ok(()); // it has exited before
        };
        let mut gone = Vec::new();
        self.edit(&claim, |edit| {
            self.mappings().set_exited();
            gone = edit.cut(EVERYWHERE);
        });
        self.outlast(pages_of(EVERYWHERE));
        end_service(gone.iter_mut().filter_map(Vma::end_service));
        let result = self.empty(&self.state.read(), idle, pages_of(EVERYWHERE), Reason::Exit);
        self.let_files_go(&gone);
        result
    }

    /// Makes a copy of this address space, like `fork`. Private pages are shared until either side writes;
    /// shared mappings stay shared. The copy has no secondary MMUs. May sleep. If memory runs out there is no
    /// copy, and faults make this side's pages writable again one by one.
    pub fn fork(&self, idle: &mut Idle) -> Result<Arc<Self>, MmError> {
        let child = self.builder_of_same().build()?;
        let (_claim, vmas) = self.claim(&[], |vmas| {
            let vmas: Vec<Vma> = vmas.over(EVERYWHERE).cloned().collect();
            Ok((vmas.iter().filter(|vma| !vma.is_shared()).map(|vma| vma.span).collect(), vmas))
        })?;
        let forking = self.mappings().begin_fork();
        self.page_locks.outlast_all();
        for vma in vmas.iter().filter(|vma| !vma.is_shared()) {
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
                        // A shared frame would leave the device with the old frame at this side's next write.
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
                    // The child has not accessed the page yet.
                    copy.store(pte.idle_word(found.level));
                    Ok(())
                });
            };
            if vma.prot == Prot::ReadWrite {
                self.around(&self.state.read(), idle, pages, Reason::WriteProtect, &mut share);
            } else {
                share(idle, &mut NoPages); // nothing is writable: nothing is withdrawn
            }
            result?;
        }
        drop(forking);
        let all = child.mappings().claim_one(EVERYWHERE);
        // The child does not inherit registrations with user faults.
        let own = |vma| Vma { served: None, stage: Stage::Here, ..vma };
        child.edit(&all, |edit| vmas.into_iter().map(own).for_each(|vma| edit.insert(vma)));
        drop(all);
        Ok(child)
    }

    /// Empties the range inside a notification, then frees frames that have no other reference.
    fn empty(&self, state: &State, idle: &mut Idle, pages: Span<Gfn>, why: Reason) -> Result<(), MmError> {
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

    /// Splits entries that cross an end of the range.
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

/// Wakes threads that sleep at handlers whose registration has ended. No thread posts there any more: the
/// version that named the handlers has been outlasted.
pub(crate) fn end_service(ended: impl Iterator<Item = (Served, Span<Gfn>)>) {
    ended.for_each(|(served, pages)| served.wake(pages));
}
