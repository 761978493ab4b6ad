//! Panics of a secondary MMU, which unwind through the change that it was notified of.
//!
//! The caller may catch the panic, and go on with the address space. The rule: **at each notification the state of the
//! address space is whole, or a guard makes it whole while the panic unwinds**, whether the change was made or not:
//!
//! | operation | state at the notification | the guard |
//! |---|---|---|
//! | `munmap` | the range is reserved | maps it again, and it can be unmapped again |
//! | `mprotect` | the mappings have less permission | gives it back: a second call withdraws it |
//! | `mremap` | both places are busy | finishes the move if the entries have moved, otherwise undoes it |
//! | `take_soft_dirty` | pages are recorded as clean, and not returned yet | removes the records: the pages count as changed |
//! | KSM's merge | entries map the merged frame | none: each has its own reference, taken before the entry changes |
//! | `fork`, `exit`, `dontneed`, `reap`, `migrate`, `pageout`, balancing | whole | none |

/// Runs a step if a panic unwinds past it.
#[must_use = "it guards only while it lives"]
pub(crate) struct IfUnwound<A: FnMut()>(A);

impl<A: FnMut()> IfUnwound<A> {
    pub(crate) fn run(step: A) -> Self {
        Self(step)
    }

    /// No panic came.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl<A: FnMut()> Drop for IfUnwound<A> {
    fn drop(&mut self) {
        (self.0)();
    }
}
