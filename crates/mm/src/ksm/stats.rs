//! Statistics of KSM, in the kernel's terms.

/// Counts of [`Ksm`](super::Ksm) so far. Exact if nothing changes meanwhile: frames are counted by their
/// references, pages by their state in the last scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KsmStats {
    /// Shared frames.
    pub pages_shared: u64,
    /// Entries that share them, beyond the first of each: the number of frames saved. Includes entries made by
    /// forks.
    pub pages_sharing: u64,
    /// Unchanged pages whose contents no other page has.
    pub pages_unshared: u64,
    /// Pages that changed since the last pass, or are new.
    pub pages_volatile: u64,
    /// Entries that share the zero page; not included above.
    pub zero_pages: u64,
    /// Completed passes over all address spaces.
    pub full_scans: u64,
    /// Entries merged in total, including the first of each frame.
    pub merges: u64,
}
