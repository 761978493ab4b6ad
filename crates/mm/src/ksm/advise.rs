//! Advice: which mappings take part in merging.

use crate::error::MmError;
use crate::pages::pages_of;
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::vma::aligned;
use slat::{Hva, Idle, Span};

/// Advice for a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Advice {
    /// Pages may be merged with others ([`Ksm`](crate::Ksm)). Has no effect on shared file mappings.
    Mergeable,
    /// Pages may not be merged; merged pages get copies at once.
    Unmergeable,
}

impl AddressSpace {
    /// Sets the advice of the range, all of which must be mapped; forks inherit it. May sleep. If memory runs
    /// out, some pages are still shared; no more are merged, and the same call can be repeated.
    ///
    /// ```
    /// # use slat_mm::*;
    /// # use slat::*;
    /// # let mut idle = Idle::take().unwrap();
    /// # let arena = Arena::builder().limit(64 << 20).build()?;
    /// let space = AddressSpace::builder(&arena).build()?;
    /// let memory = space.mmap(Place::Anywhere, 2 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous)?;
    /// space.madvise(&mut idle, memory, Advice::Mergeable)?;
    /// for page in [memory.start, memory.start + PAGE_SIZE] {
    ///     space.write(&mut idle, page, b"the same")?;
    /// }
    /// let ksm = Ksm::builder(&arena).build()?;
    /// ksm.add(&space)?;
    /// ksm.scan(&mut idle, u64::MAX); // the first pass learns checksums
    /// ksm.scan(&mut idle, u64::MAX);
    /// assert_eq!((ksm.stats().pages_shared, ksm.stats().pages_sharing), (1, 1));
    /// # Ok::<(), MmError>(())
    /// ```
    pub fn madvise(&self, idle: &mut Idle, hvas: Span<Hva>, advice: Advice) -> Result<(), MmError> {
        let hvas = aligned(hvas)?;
        let (claim, ()) = self.claim(&[hvas], |vmas| vmas.covered(hvas).map(|()| (vec![hvas], ())))?;
        self.edit(&claim, |edit| edit.change(hvas, |vma| vma.mergeable = advice == Advice::Mergeable));
        if advice == Advice::Mergeable {
            return Ok(());
        }
        // From here on no page is merged: a merge checks the mapping under the page lock.
        self.outlast(pages_of(hvas));
        let state = self.state.read();
        let mut merged = Vec::new();
        self.each_page(pages_of(hvas), |found| {
            if matches!(found.pte, Pte::Mapped { .. }) && self.arena.is_merged(found.pfn) {
                merged.push(found.page);
            }
            Ok(())
        })?;
        merged.into_iter().try_for_each(|page| self.break_share(&state, idle, page))
    }
}
