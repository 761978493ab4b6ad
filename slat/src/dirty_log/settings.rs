//! Settings of dirty logging, chosen when a VM is built. Some can change later
//! ([`Vm::set_dirty_log`](crate::Vm::set_dirty_log)).

use super::DirtyError;
use crate::table::Format;

/// How a VM logs writes; see [`Builder::dirty_log`](crate::Builder::dirty_log).
///
/// ```
/// use slat::{DirtyLog, RingSize, Splitting, Track};
/// let quick_to_start = DirtyLog::bitmap().track(Track::DirtyBits).initially_set();
/// let as_kvm_before_5_17 = DirtyLog::bitmap().splitting(Splitting::Lazy);
/// let for_post_copy = DirtyLog::ring(RingSize::new(65_536)?);
/// # Ok::<(), slat::DirtyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirtyLog {
    pub(crate) track: Track,
    pub(crate) splitting: Splitting,
    pub(crate) initially_set: bool,
    pub(crate) ring: Option<RingSize>,
}

/// How a store to a page is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Track {
    /// Write protection: the first store to each page faults. Works with every format. Costs a fault for each page
    /// between two harvests.
    Writes,
    /// The Dirty bits that hardware walkers set: no store faults, and a harvest reads every leaf. In a format without D
    /// bits, the same as [`Writes`](Self::Writes). In a format with D bits, each store must be by hardware that sets them,
    /// or through [`Vcpu::access`](crate::Vcpu::access): other stores are lost after the first harvest.
    DirtyBits,
}

/// When large pages are split, so that stores are logged by 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Splitting {
    /// When the log is switched on; with [`DirtyLog::initially_set`], when the first of its 128 MiB is harvested. vCPUs
    /// keep running, and the walk yields.
    Eager,
    /// By the first store to it.
    Lazy,
}

impl Default for DirtyLog {
    fn default() -> Self {
        Self::bitmap()
    }
}

impl DirtyLog {
    /// A bitmap per slot, [`Track::Writes`], [`Splitting::Eager`]. A fresh log is empty, except for pages that were
    /// written before and zapped while it began.
    pub const fn bitmap() -> Self {
        let (track, splitting) = (Track::Writes, Splitting::Eager);
        Self { track, splitting, initially_set: false, ring: None }
    }

    /// A ring per vCPU: the pages that it has written, in order, without a scan. Implies [`Track::Writes`]: each store
    /// must fault to be pushed. Its memory is allocated when the VM is built.
    pub const fn ring(size: RingSize) -> Self {
        Self { ring: Some(size), ..Self::bitmap() }
    }

    /// Sets how stores are noticed. Ignored with a ring.
    #[must_use]
    pub const fn track(self, track: Track) -> Self {
        if self.ring.is_some() { self } else { Self { track, ..self } }
    }

    /// Sets when large pages are split.
    #[must_use]
    pub const fn splitting(self, splitting: Splitting) -> Self {
        Self { splitting, ..self }
    }

    /// A fresh log marks every page dirty. Switching it on then touches no table, whatever the slot's size; each part
    /// is tracked from its first harvest on. A migration copies every page once anyway. With rings,
    /// [`harvest_all`](crate::guest_space::GuestSpace::harvest_all) returns these pages.
    #[must_use]
    pub const fn initially_set(self) -> Self {
        Self { initially_set: true, ..self }
    }

    /// Whether the D bits of format `F` log writes.
    #[inline(always)]
    pub(crate) const fn by_bits<F: Format>(&self) -> bool {
        F::HARDWARE_AD && matches!(self.track, Track::DirtyBits)
    }
}

/// Size of a vCPU's ring, by KVM's rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingSize(u32);

impl RingSize {
    /// Bytes of an entry.
    pub const ENTRY: u32 = 16;
    /// Maximum number of entries.
    pub const MAX_ENTRIES: u32 = 1 << 16;
    /// Entries reserved for stores under way when the ring is full.
    pub const RESERVED: u32 = 64;

    /// A ring of `bytes` bytes, 16 for each entry.
    ///
    /// # Errors
    /// [`RingSize`](DirtyError::RingSize) unless a power of two of at least 4096 (`EINVAL`);
    /// [`RingTooLarge`](DirtyError::RingTooLarge) above 1 MiB (`E2BIG`).
    pub const fn new(bytes: u32) -> Result<Self, DirtyError> {
        if bytes > Self::MAX_ENTRIES * Self::ENTRY {
            return Err(DirtyError::RingTooLarge(bytes));
        }
        if !bytes.is_power_of_two() || bytes < 4096 {
            return Err(DirtyError::RingSize(bytes));
        }
        Ok(Self(bytes / Self::ENTRY))
    }

    /// Number of stores that it can hold.
    pub const fn entries(self) -> u32 {
        self.0
    }

    /// Number of entries from which on it counts as full: the vCPU's next store waits for a harvest.
    pub const fn soft_limit(self) -> u32 {
        self.0 - Self::RESERVED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_a_size_within_the_rules() {
        for (bytes, errno) in [(0, 22), (2048, 22), (4095, 22), (6000, 22), (1 << 21, 7), (u32::MAX, 7)] {
            assert_eq!(RingSize::new(bytes).unwrap_err().errno(), errno, "{bytes}");
        }
        assert_eq!(RingSize::new(4096).unwrap().soft_limit(), 192);
        assert_eq!(RingSize::new(1 << 20).unwrap().entries(), 65_536);
    }
}
