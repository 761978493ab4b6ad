//! A copy-on-write map from ranges of host addresses to values: the memslots' tree, for embedders with a read
//! side of their own.
//!
//! ```text
//! RangeMap ── edit ──▶ RangeEdit ── publish ──▶ RangeRoot      one word: the embedder publishes it to its readers
//!    ▲                                   └────▶ RetiredRanges  nodes that only older versions contain
//!    └─────────── reclaim ◀── all readers of older versions have finished ──┘
//! ```
//! Ranges do not overlap. A published version never changes: a reader sees one version, and takes no lock. An
//! edit costs O(log n); dropping it discards its changes.
//!
//! ```
//! use slat_slots::{Hva, Span, ranges::RangeMap};
//! let [a, b] = [Span::new(Hva(0x1000), Hva(0x3000)), Span::new(Hva(0x8000), Hva(0x9000))];
//! let mut map = RangeMap::new();
//! let mut edit = map.edit();
//! edit.insert(a, 'a')?;
//! edit.insert(b, 'b')?;
//! let (_, retired) = edit.publish();
//! // SAFETY: no version was read through a root.
//! unsafe { map.reclaim(retired) };
//! assert_eq!(map.view().find(Hva(0x2fff)), Some((a, 'a')));
//! assert_eq!(map.view().find(Hva(0x3000)), None);
//! assert!(map.view().from(Hva(0x3000)).eq([(b, 'b')]));
//! # Ok::<(), slat_slots::ranges::NoMemory>(())
//! ```

pub use crate::pool::NoMemory;

use crate::addr::{Hva, Span};
use crate::tree::{Edit, Retired, Root, Tree, View};
use core::fmt;

/// The writer's side: the current version, and the memory of all versions.
pub struct RangeMap<V: Copy>(Tree<Hva, V, Hva>);

/// The next version under construction. Dropping it discards its changes.
#[must_use = "an edit that is not published is undone"]
pub struct RangeEdit<'m, V: Copy>(Edit<'m, Hva, V, Hva>);

/// One version, to be published to readers.
#[derive(Clone, Copy)]
pub struct RangeRoot<V: Copy>(Root<Hva, V, Hva>);

/// One version, protected during `'g`.
#[derive(Clone, Copy)]
pub struct RangeView<'g, V: Copy>(View<'g, Hva, V, Hva>);

/// Nodes that are not in the current version, but may be read in an older one. Several can be joined.
#[must_use = "the memory of dropped nodes is lost: reclaim them when no reader is left"]
pub struct RetiredRanges<V: Copy>(Retired<Hva, V, Hva>);

impl<V: Copy> Default for RangeMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Copy> fmt::Debug for RangeMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeMap").field("bytes", &self.0.bytes()).finish_non_exhaustive()
    }
}

impl<V: Copy> fmt::Debug for RetiredRanges<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetiredRanges").field("nodes", &self.0.len).finish_non_exhaustive()
    }
}

impl<V: Copy> RangeMap<V> {
    /// Creates a map without ranges; allocates nothing.
    pub fn new() -> Self {
        Self(Tree::new())
    }

    /// Returns the current version.
    pub fn view(&self) -> RangeView<'_, V> {
        // SAFETY: the borrow excludes edits and reclaims.
        RangeView(unsafe { self.0.root().read() })
    }

    /// Begins the next version.
    pub fn edit(&mut self) -> RangeEdit<'_, V> {
        RangeEdit(self.0.edit())
    }

    /// Takes back retired nodes for later edits.
    ///
    /// # Safety
    /// `retired` comes from this map. All readers of versions older than it have finished.
    pub unsafe fn reclaim(&mut self, retired: RetiredRanges<V>) {
        // SAFETY: the caller keeps the condition.
        unsafe { self.0.reclaim(retired.0) };
    }
}

impl<V: Copy> RangeEdit<'_, V> {
    /// Returns the version under construction.
    pub fn view(&self) -> RangeView<'_, V> {
        RangeView(self.0.view())
    }

    /// Sets the value of `range`, which is not empty and overlaps no other range.
    ///
    /// # Errors
    /// [`NoMemory`]; this call has changed nothing.
    pub fn insert(&mut self, range: Span<Hva>, value: V) -> Result<(), NoMemory> {
        debug_assert!(self.view().from(range.start).next().is_none_or(|(next, _)| next.start >= range.end));
        self.0.insert(range.start, value, range.end).map(|_| ())
    }

    /// Removes the range that begins at `start`, if it exists, and returns its value.
    ///
    /// # Errors
    /// [`NoMemory`]; this call has changed nothing.
    pub fn remove(&mut self, start: Hva) -> Result<Option<V>, NoMemory> {
        self.0.remove(start)
    }

    /// Makes this version current. Cannot fail.
    ///
    /// Readers may read the retired nodes until the new root has replaced the older ones for all of them, and
    /// earlier readers have finished.
    pub fn publish(self) -> (RangeRoot<V>, RetiredRanges<V>) {
        let (root, retired) = self.0.publish();
        (RangeRoot(root), RetiredRanges(retired))
    }
}

impl<V: Copy> RangeRoot<V> {
    /// The version of a map without ranges.
    pub const EMPTY: Self = Self(Root::EMPTY);

    /// Converts the root to a pointer, for an atomic word.
    pub fn into_raw(self) -> *mut () {
        self.0.into_raw()
    }

    /// Converts a pointer of [`into_raw`](Self::into_raw) back to the root.
    ///
    /// # Safety
    /// `raw` came from `into_raw` of a root of this type.
    pub unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: the caller keeps the condition.
        Self(unsafe { Root::from_raw(raw) })
    }

    /// Reads this version.
    ///
    /// # Safety
    /// During `'g` the map lives, and nodes that it has retired since it published this root are not reclaimed.
    #[inline]
    pub unsafe fn read<'g>(self) -> RangeView<'g, V> {
        // SAFETY: the caller keeps the condition.
        RangeView(unsafe { self.0.read() })
    }
}

impl<'g, V: Copy + 'g> RangeView<'g, V> {
    /// Returns the range that contains `at`, and its value.
    #[inline]
    pub fn find(self, at: Hva) -> Option<(Span<Hva>, V)> {
        let (start, value, end) = self.0.floor_interval(at)?;
        (at < end).then_some((Span::new(start, end), value))
    }

    /// Returns the ranges that end after `at`, in order.
    pub fn from(self, at: Hva) -> impl Iterator<Item = (Span<Hva>, V)> + use<'g, V> {
        self.0
            .overlapping(at, Hva(0)..Hva(u64::MAX))
            .map(|(start, value, end)| (Span::new(start, end), value))
    }
}

impl<V: Copy> RetiredRanges<V> {
    /// No nodes.
    pub fn none() -> Self {
        Self(Retired::default())
    }

    /// Adds the nodes of `other`.
    pub fn append(&mut self, other: Self) {
        self.0.append(other.0);
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn span(start: u64, end: u64) -> Span<Hva> {
        Span::new(Hva(start), Hva(end))
    }

    proptest! {
        /// Compared with a `BTreeMap`. Published versions do not change until they are reclaimed.
        #[test]
        fn every_version_contains_what_was_inserted(steps in prop::collection::vec((0u64..200, 1u64..20, any::<bool>(), any::<bool>()), 1..120)) {
            let mut map = RangeMap::new();
            let mut model: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
            let (mut retired, mut versions) = (RetiredRanges::none(), Vec::new());
            for (number, (start, len, remove, keep)) in steps.into_iter().enumerate() {
                let before = model.clone();
                let mut edit = map.edit();
                if remove {
                    let known = edit.remove(Hva(start)).unwrap();
                    prop_assert_eq!(known, model.remove(&start).map(|(_, value)| value));
                } else if edit.view().from(Hva(start)).next().is_none_or(|(next, _)| next.start >= Hva(start + len)) {
                    edit.insert(span(start, start + len), number).unwrap();
                    model.insert(start, (start + len, number));
                }
                if keep {
                    let (root, more) = edit.publish();
                    retired.append(more);
                    versions.push((root, model.clone()));
                } else {
                    drop(edit);
                    model = before;
                }
            }
            for (root, model) in &versions {
                // SAFETY: nothing has been reclaimed yet. The roots also go through `into_raw` and back.
                let view = unsafe { RangeRoot::from_raw(root.into_raw()).read() };
                for at in (0..220).step_by(7) {
                    let found = model.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
                    prop_assert_eq!(view.find(Hva(at)), found.map(|(&start, &(end, value))| (span(start, end), value)));
                }
                let all = model.iter().map(|(&start, &(end, value))| (span(start, end), value));
                prop_assert!(view.from(Hva(0)).eq(all));
            }
            prop_assert!(retired.is_empty() || !versions.is_empty());
            // SAFETY: no reader is left.
            unsafe { map.reclaim(retired) };
        }
    }
}
