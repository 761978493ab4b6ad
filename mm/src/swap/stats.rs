//! What swap tells of itself.

/// What swap holds, and what it has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapStats {
    /// Pages that were stored.
    pub stored: u64,
    /// Of these, pages of zeroes.
    pub zero: u64,
    /// Pages that were read back; some of them more than once.
    pub loaded: u64,
    /// Pages that were refused: no room.
    pub refused: u64,
    /// Times that a device failed to store a page. Where another took it, it was stored all the same.
    pub store_errors: u64,
    /// Pages that could not be read back, or not as they were.
    pub load_errors: u64,
    /// References to copies that there are now: by entries that are swapped out, by files, and those that are
    /// [kept](super::SwapBuilder::keep_copies).
    pub references: u64,
    /// Bytes of compressed pages in memory now.
    pub compressed_bytes: u64,
    /// Bytes of the frames that they lie in.
    pub memory_bytes: u64,
    /// Bytes of blocks in use on the devices now.
    pub file_bytes: u64,
    /// Frames that hold what a copy holds, for entries that share both: the swap cache.
    pub cached: u64,
    /// Pages that were read ahead of need, and of these, those that were used.
    pub read_ahead: u64,
    /// See there.
    pub read_ahead_used: u64,
    /// Compressed pages that moved from memory to a device.
    pub written_back: u64,
}
