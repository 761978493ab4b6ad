//! The reaper: takes memory from an address space that is to give it back, when there is none left to wait with.
//!
//! Threads may be waiting for memory, and hold locks. The reaper must not wait for them. So it tries each lock instead of
//! taking it, and its notifications may not block. Where it would have to wait it returns [`MmError::Again`]; what it has
//! not taken by then is as it was. It does take the locks at the end of the order: no thread sleeps while it holds one.
//!
//! It takes no memory either: a huge page that reaches out of the range stays, since dividing it takes a table.

use crate::error::MmError;
use crate::pte::{hva_of, pages_of};
use crate::space::AddressSpace;
use crate::state::Reading;
use crate::stats::Counted;
use crate::vma::{Backing, Vma, aligned};
use slat::{Hva, Idle, Span, Why};

impl AddressSpace {
    /// Takes the pages of anonymous mappings in the range away, which read as zeroes afterwards, and returns how many (a
    /// huge page is one). Never sleeps; waits for no lock but those that are held for a moment, and for vCPUs to
    /// leave the guest.
    ///
    /// # Errors
    /// [`MmError::Again`] where it would have to wait. Pages that were taken before that are gone, the others are
    /// untouched; ask again later.
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
            self.try_around(state, idle, pages, Why::Unmap, &mut |_, _| {
                result = self.each_filled_at_once(pages, |filled| {
                    // Something else may be mapped there by now.
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
