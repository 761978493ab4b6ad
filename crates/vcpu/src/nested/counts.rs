//! Counts of L1's edits, flushes and errors.

use super::vcpus::Scope;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of L1's edits, flushes and errors.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct L1Counts { $($(#[$doc])* pub $name: u64,)* }

        impl L1Counts {
            /// Returns all counts, by name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(super) struct Counts { $(pub(super) $name: AtomicU64,)* }

        impl Counts {
            pub(super) fn read(&self) -> L1Counts {
                L1Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Accesses refused by its table.
    refused,
    /// Pages write-protected.
    protected,
    /// D bits cleared.
    cleaned,
    /// A bits cleared.
    aged,
    /// Pages moved to another frame.
    moved,
    /// Pages swapped out.
    swapped,
    /// Tables moved to another frame, including roots.
    relocated,
    /// Leaves of 2 MiB split.
    split,
    /// Flushes of some frames.
    flushed_frames,
    /// Flushes of one table, or of all with its root.
    flushed_table,
    /// Flushes of everything.
    flushed_all,
    /// Pages compared with their expected contents.
    checked,
    /// Pages stored to although they were write-protected and flushed.
    stored_protected,
    /// Pages stored to although their D bit was cleared, flushed, and still clear.
    stored_clean,
    /// Exits that L1's tables do not explain.
    wrong,
}

impl L1Counts {
    /// Returns the number of errors found.
    pub fn mistakes(&self) -> u64 {
        self.stored_protected + self.stored_clean + self.wrong
    }

    /// Returns the number of random edits.
    pub fn edits(&self) -> u64 {
        let Self { protected, cleaned, aged, moved, swapped, relocated, split, .. } = self;
        protected + cleaned + aged + moved + swapped + relocated + split
    }
}

pub(super) fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Counts {
    pub(super) fn refused(&self) {
        one(&self.refused);
    }

    pub(super) fn wrong(&self) {
        one(&self.wrong);
    }

    pub(super) fn flushed(&self, scope: Scope) {
        one(match scope {
            Scope::Frames(_) => &self.flushed_frames,
            Scope::Table | Scope::Root => &self.flushed_table,
            Scope::All => &self.flushed_all,
        });
    }
}
