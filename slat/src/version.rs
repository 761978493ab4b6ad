//! The numbers of invalidations, which entries of tables and versions of the slots have.

/// The number of an invalidation; zero is before the first. 52 bits last 142 years at a million invalidations a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub(crate) u64);

impl Version {
    /// Number of bits in a version.
    pub const BITS: u32 = 52;

    /// The greatest version.
    #[cfg(explored)]
    pub(crate) const LAST: Self = Self((1 << Self::BITS) - 1);

    /// The version as an integer.
    pub const fn get(self) -> u64 {
        self.0
    }
}
