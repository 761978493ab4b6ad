//! The private frames of a VM, and the slots that have memory for them.
//!
//! The engine keeps the attribute of each frame in a slot with a `guest_memfd`, and converts such frames while vCPUs fault.
//! KVM keeps attributes of a VM's other frames, too. This table has all of them, and gives them to the slots that come
//! later.

use slat::{Gfn, Hva, SlotId, Span};
use std::collections::BTreeMap;

/// The private memory of a VM of the type `KVM_X86_SW_PROTECTED_VM`.
#[derive(Default)]
pub struct Attributes {
    /// Private frames: the end of each range, by its start. Ranges neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
    pub bound: Vec<Bound>,
}

/// A slot with private memory.
pub struct Bound {
    pub slot: SlotId,
    pub gfns: Span<Gfn>,
    /// Its addresses in the `guest_memfd`.
    pub memory: Span<Hva>,
}

impl Attributes {
    pub fn is_private(&self, gfn: Gfn) -> bool {
        self.ranges.range(..=gfn.0).next_back().is_some_and(|(_, &end)| gfn.0 < end)
    }

    /// Whether the frame's slot has private memory, so that the engine keeps its attribute.
    pub fn is_bound(&self, gfn: Gfn) -> bool {
        self.bound.iter().any(|bound| bound.gfns.contains(gfn))
    }

    /// The first private frame in `gfns` of which no slot has private memory.
    pub fn first_without_memory(&self, gfns: Span<Gfn>) -> Option<Gfn> {
        self.inside(gfns).into_iter().find_map(|range| {
            let mut at = range.start;
            while let Some(bound) = self.bound.iter().find(|bound| bound.gfns.contains(at)) {
                at = bound.gfns.end;
            }
            (at < range.end).then_some(at)
        })
    }

    /// The private ranges in `gfns`.
    pub fn inside(&self, gfns: Span<Gfn>) -> Vec<Span<Gfn>> {
        let ranges = self.ranges.iter().map(|(&start, &end)| Span::new(Gfn(start), Gfn(end)).clamp(&gfns));
        ranges.filter(|range| !range.is_empty()).collect()
    }

    pub fn set(&mut self, gfns: Span<Gfn>, private: bool) {
        let (mut start, mut end) = (gfns.start.0, gfns.end.0);
        let touching: Vec<_> =
            self.ranges.range(..=end).filter(|(_, other)| **other >= start).map(|(&a, &b)| (a, b)).collect();
        for (a, b) in touching {
            self.ranges.remove(&a);
            if private {
                (start, end) = (start.min(a), end.max(b));
                continue;
            }
            for (a, b) in [(a, b.min(start)), (a.max(end), b)] {
                if a < b {
                    self.ranges.insert(a, b);
                }
            }
        }
        if private {
            self.ranges.insert(start, end);
        }
    }

    /// Forgets a slot that is deleted.
    pub fn unbind(&mut self, slot: SlotId) {
        self.bound.retain(|bound| bound.slot != slot);
    }
}
