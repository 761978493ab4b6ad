//! Hints for notify: the slot behind a host range without a search.
//!
//! A primary MMU takes pages away in streams, and asks for the same slot again and again. For each of sixteen
//! stretches of host memory (64 MiB each, by address) the slot found last is kept, while no two slots share host
//! addresses: then the answer to any range inside it is frames of this slot alone.

use super::remembered::Remembered;
use super::version::{Interval, Version};
use crate::addr::{Gfn, Hva, Span};

const HINTS: usize = 16;
const STRETCH: u32 = 26;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct HvaHints([HvaHint; HINTS]);

/// A slot that is alone behind its host addresses.
#[derive(Debug, Default)]
#[repr(align(64))]
struct HvaHint(Remembered);

impl HvaHints {
    /// The frames behind `hvas` in version `number`, where they are known to be one slot's and no other's.
    #[inline]
    pub(super) fn alone_over(
        &self,
        (version, number): (Version<'_>, u64),
        hvas: Span<Hva>,
    ) -> Option<Span<Gfn>> {
        let hint = &self.0[(hvas.start.0 >> STRETCH) as usize % HINTS];
        if let Some(slot) = hint.get(number).filter(|slot| slot.hvas.covers(&hvas) && !hvas.is_empty()) {
            return Some(slot.part(hvas));
        }
        let slot = version.alone_over(hvas)?;
        if slot.hvas.len() > hvas.len() {
            hint.put(&slot, number);
        }
        Some(slot.part(hvas))
    }
}

impl HvaHint {
    /// What it holds, if that is of `version`.
    #[inline]
    fn get(&self, version: u64) -> Option<Interval> {
        let [start, end, gfn] = self.0.get(version)?;
        Some(Interval { hvas: Span::new(Hva(start), Hva(end)), gfn: Gfn(gfn) })
    }

    fn put(&self, slot: &Interval, version: u64) {
        self.0.put([slot.hvas.start.0, slot.hvas.end.0, slot.gfn.0], version);
    }
}
