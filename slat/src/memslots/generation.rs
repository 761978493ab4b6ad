//! The number of a version of the memslots.

/// The number of a published version. The result of a look-up stays valid while the number stays the same.
///
/// As in KVM, the number starts at the number of the address space, and each change adds the number of address spaces.
/// Versions of different spaces therefore never share a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation(pub(super) u64);

impl Generation {
    /// Bit 63: see [`is_in_progress`](Self::is_in_progress).
    pub(super) const IN_PROGRESS: u64 = 1 << 63;

    /// Whether readers of an older version may still exist: the transaction took something away and has not returned.
    /// Do not keep anything longer than a section under such a number. The final number differs from it.
    pub const fn is_in_progress(self) -> bool {
        self.0 & Self::IN_PROGRESS != 0
    }

    /// The number without the flag.
    pub const fn number(self) -> u64 {
        self.0 & !Self::IN_PROGRESS
    }
}
