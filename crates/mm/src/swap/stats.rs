//! Statistics of a swap.

/// The contents and event counts of a swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapStats {
    /// Pages stored.
    pub stored: u64,
    /// Zero pages among these.
    pub zero: u64,
    /// Pages read back; a page may count several times.
    pub loaded: u64,
    /// Pages refused for lack of room.
    pub refused: u64,
    /// Failures of a device to store a page. Another device may have stored it.
    pub store_errors: u64,
    /// Pages that could not be read back, or failed their checksum.
    pub load_errors: u64,
    /// Current references to copies: by swapped entries, by files, and by
    /// [kept](super::SwapBuilder::keep_copies) copies.
    pub references: u64,
    /// Current bytes of compressed pages in memory.
    pub compressed_bytes: u64,
    /// Bytes of the frames that hold them.
    pub memory_bytes: u64,
    /// Current bytes of used blocks on devices.
    pub file_bytes: u64,
    /// Frames in the swap cache: they equal a copy, for entries that share both.
    pub cached: u64,
    /// Pages read ahead.
    pub read_ahead: u64,
    /// Pages read ahead that were used.
    pub read_ahead_used: u64,
    /// Compressed pages moved from memory to a device.
    pub written_back: u64,
}
