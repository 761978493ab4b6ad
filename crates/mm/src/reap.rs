//! The reaper: takes memory away from an address space when the system is out of memory and nothing may wait.
//!
//! Threads may wait for memory while they hold locks, so the reaper must not wait for them. It tries each lock
//! instead of taking it, and its notifications may not block. If it would have to wait, it returns
//! [`MmError::Again`], and pages that it has not taken stay as they were. It does take the innermost locks of
//! the order: no thread sleeps while it holds one.
//!
//! The reaper allocates nothing: a huge page that crosses an end of the range stays, since a split needs a
//! table.

use crate::error::MmError;
use crate::pages::{hva_of, pages_of};
use crate::space::AddressSpace;
use crate::state::Reading;
use crate::stats::Counted;
use crate::vma::{Backing, Vma, aligned};
use slat::{Hva, Idle, Reason, Span};

impl AddressSpace {
    /// Removes the pages of anonymous mappings in the range, which read as zeroes afterwards, and returns how
    /// many (a huge page counts as one). Never sleeps. Waits only for locks that are held briefly, and for
    /// vCPUs to leave the guest.
    ///
    /// # Errors
    /// [`MmError::Again`] if it would have to wait. Pages removed before that are gone, the others are
    /// unchanged; try again later.
    pub fn reap(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<u64, MmError> {
        let hvas = aligned(hvas)?;
        let reaped = match self.state.try_read() {
            Some(state) => self.reap_all(&state, idle, hvas),
            None => Err(MmError::Again),
        };
        if reaped.is_err() {
            self.counters.add(Counted::ReapAgain);
        }
        reaped
    }

    fn reap_all(&self, state: &Reading<'_>, idle: &mut Idle, hvas: Span<Hva>) -> Result<u64, MmError> {
        let mut taken = 0;
        let is_anonymous = |vma: &Vma| matches!(vma.backing, Backing::Anonymous);
        for vma in state.vmas().over(hvas).filter(|vma| is_anonymous(vma)) {
            let pages = pages_of(vma.span.clamp(&hvas));
            let mut released = self.arena.released();
            let mut result = Ok(());
            self.try_around(state, idle, pages, Reason::Unmap, &mut |_, _| {
                result = self.each_filled_at_once(pages, |filled| {
                    // Another mapping may be there by now.
                    if !filled.lock.find(hva_of(filled.page)).is_some_and(is_anonymous) {
                        return;
                    }
                    self.clear(&filled, &mut released);
                    self.counters.add(Counted::Reaped);
                    taken += 1;
                });
            })?;
            result?;
        }
        Ok(taken)
    }
}
