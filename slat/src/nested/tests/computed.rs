//! A host whose memory is a function: for tests whose tables of L1 follow a rule and are never written.

use crate::table::Word;
use crate::*;

/// The host address of L1's first frame.
pub(super) const BASE: Hva = Hva(0x4000_0000);
/// The rights and the memory type of a leaf of EPT.
pub(super) const RIGHTS: u64 = 6 << 3 | 7;

/// The contents of L1's memory.
pub(super) trait Contents: Sync + Send {
    /// The host has pages of 2 MiB from this frame of L1 on.
    const LARGE_FROM: u64 = u64::MAX;

    /// Returns the `nth` word of a frame.
    fn word(&self, frame: u64, nth: u64) -> u64;
}

/// A host with these contents. Frame and address are equal.
#[derive(Default)]
pub(super) struct Computed<C>(pub(super) C);

impl<C: Contents> Host for Computed<C> {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let level = if (hva.0 - BASE.0) >> PAGE_SHIFT < C::LARGE_FROM { Level::K4 } else { Level::M2 };
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.0.word((hva.0 - BASE.0) >> PAGE_SHIFT, hva.offset() / 8)))
    }
}
