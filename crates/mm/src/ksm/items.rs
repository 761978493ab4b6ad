//! The state of each page between two passes: the checksum gate.
//!
//! A page whose checksum changed since the last pass is **volatile** and not a candidate: it would be written,
//! and copied, soon after the merge. A pass meets the pages of an address space in order, so two ordered lists
//! are enough: pages of the last pass, and pages of this one so far. Pages that this pass does not meet are
//! forgotten when it ends.

use slat::Gfn;

/// State of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Changed since the last pass, or new.
    Volatile,
    /// Unchanged, and no other page has the same contents.
    Unshared,
    /// It is shared.
    Merged,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    page: Gfn,
    checksum: u64,
    kind: Kind,
}

/// The pages of one address space.
#[derive(Debug, Default)]
pub(super) struct Items {
    before: Vec<Item>,
    /// Number of these that the pass has gone by.
    behind: usize,
    now: Vec<Item>,
}

impl Items {
    /// Records `page`, which comes after all pages met so far; returns whether its checksum is that of the last
    /// pass.
    pub(super) fn meet(&mut self, page: Gfn, checksum: u64) -> bool {
        let ahead = &self.before[self.behind..];
        self.behind += ahead.iter().take_while(|item| item.page < page).count();
        let stays =
            self.before.get(self.behind).is_some_and(|item| (item.page, item.checksum) == (page, checksum));
        self.now.push(Item { page, checksum, kind: Kind::Volatile });
        stays
    }

    /// Sets the state of a page that this pass has met.
    pub(super) fn set(&mut self, page: Gfn, kind: Kind) {
        if let Ok(at) = self.now.binary_search_by_key(&page, |item| item.page) {
            self.now[at].kind = kind;
        }
    }

    /// Ends a pass that has met all pages.
    pub(super) fn end_pass(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.behind = 0;
    }

    /// Returns the number of pages in this state.
    pub(super) fn count(&self, kind: Kind) -> u64 {
        let last = self.now.last().map(|item| item.page);
        let ahead = self.before[self.behind..].iter().filter(|item| Some(item.page) > last);
        self.now.iter().chain(ahead).filter(|item| item.kind == kind).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_candidate_when_two_passes_saw_the_same() {
        let mut items = Items::default();
        for page in [1, 2, 3] {
            assert!(!items.meet(Gfn(page), page), "a new page");
        }
        assert_eq!(items.count(Kind::Volatile), 3);
        items.end_pass();
        assert!(items.meet(Gfn(1), 1));
        items.set(Gfn(1), Kind::Unshared);
        assert_eq!([Kind::Volatile, Kind::Unshared].map(|kind| items.count(kind)), [2, 1], "3 in total");
        assert!(!items.meet(Gfn(3), 4), "the checksum has changed");
        items.end_pass();
        assert_eq!([Kind::Volatile, Kind::Unshared].map(|kind| items.count(kind)), [1, 1], "2 is forgotten");
        assert!(!items.meet(Gfn(2), 2));
        assert!(items.meet(Gfn(3), 4));
    }
}
