//! What KSM has found, in the kernel's terms.

/// What [`Ksm`](super::Ksm) has found so far. Exact when nothing changes meanwhile: frames are counted where they lie,
/// by their references; pages by what the last scan saw of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KsmStats {
    /// Frames that are shared.
    pub pages_shared: u64,
    /// Entries that share them, beyond the first of each: so many frames are saved. Those that forks made count too.
    pub pages_sharing: u64,
    /// Pages that do not change, and whose contents no other page has.
    pub pages_unshared: u64,
    /// Pages that changed since the pass before, or were seen for the first time.
    pub pages_volatile: u64,
    /// Entries that share the page of zeroes; none of the above.
    pub zero_pages: u64,
    /// Passes over all address spaces.
    pub full_scans: u64,
    /// Entries that came to share a frame, all in all; the first of each frame included.
    pub merges: u64,
}
