//! Settings of KSM. Names, defaults and meanings are the kernel's where the kernel has the setting.

use crate::arena::Arena;
use crate::error::MmError;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Builds a [`Ksm`](super::Ksm).
#[derive(Clone, Debug)]
#[must_use]
pub struct KsmBuilder {
    pub(super) arena: Arc<Arena>,
    pub(super) settings: Settings,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) pages_to_scan: u64,
    pub(super) sleep: Duration,
    pub(super) max_page_sharing: u32,
    pub(super) use_zero_pages: bool,
    pub(super) merge_together: u32,
}

impl KsmBuilder {
    pub(super) fn new(arena: &Arc<Arena>) -> Self {
        let settings = Settings {
            pages_to_scan: 100,
            sleep: Duration::from_millis(20),
            max_page_sharing: 256,
            use_zero_pages: false,
            merge_together: 64,
        };
        Self { arena: arena.clone(), settings }
    }

    /// Number of pages that the scanner thread scans before it sleeps, at least 1; 100 by default.
    pub fn pages_to_scan(mut self, pages: u64) -> Self {
        self.settings.pages_to_scan = pages;
        self
    }

    /// Time that the thread sleeps then; 20 ms by default. Zero: it only yields.
    pub fn sleep(mut self, time: Duration) -> Self {
        self.settings.sleep = time;
        self
    }

    /// Most entries that share one frame, at least 2; 256 by default. Further pages share a duplicate, which
    /// bounds the work of finding all entries of a frame. Forks may exceed it.
    pub fn max_page_sharing(mut self, entries: u32) -> Self {
        self.settings.max_page_sharing = entries;
        self
    }

    /// Whether all zero pages share one frame, outside the trees; off by default.
    pub fn use_zero_pages(mut self, on: bool) -> Self {
        self.settings.use_zero_pages = on;
        self
    }

    /// Most pages merged together, 1 to 512; 64 by default. A batch costs two notifications and two flushes. A
    /// thread that writes to one of its pages waits for the whole batch.
    ///
    /// ```
    /// # use slat_mm::{Arena, Ksm};
    /// # let arena = Arena::builder().limit(64 << 20).build()?;
    /// let one_by_one = Ksm::builder(&arena).merge_together(1).build()?;
    /// assert!(Ksm::builder(&arena).merge_together(0).build().is_err());
    /// # Ok::<(), slat_mm::MmError>(())
    /// ```
    pub fn merge_together(mut self, pages: u32) -> Self {
        self.settings.merge_together = pages;
        self
    }
}

pub(super) fn within(name: &'static str, value: u64, allowed: RangeInclusive<u64>) -> Result<(), MmError> {
    let (least, most) = allowed.clone().into_inner();
    if allowed.contains(&value) { Ok(()) } else { Err(MmError::BadSetting { name, value, least, most }) }
}
