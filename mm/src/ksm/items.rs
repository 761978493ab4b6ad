//! What is remembered of each page between two scans: the checksum gate.
//!
//! A page whose checksum moved since the last pass is **volatile** and no candidate: it would be written, and
//! copied, soon after it was merged. A pass meets the pages of an address space in order, so what it remembers
//! are two lists in order: what the last pass saw, and what this one has seen so far. Pages that this one does
//! not meet are forgotten when it ends.

use slat::Gfn;

/// What became of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// It has changed since the last pass, or was not there.
    Volatile,
    /// It has not, and no other page has the same contents.
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
    /// So many of these lie behind.
    behind: usize,
    now: Vec<Item>,
}

impl Items {
    /// The pass meets `page`, which lies behind all that it has met; returns whether it is what it was.
    pub(super) fn meet(&mut self, page: Gfn, checksum: u64) -> bool {
        let ahead = &self.before[self.behind..];
        self.behind += ahead.iter().take_while(|item| item.page < page).count();
        let stays =
            self.before.get(self.behind).is_some_and(|item| (item.page, item.checksum) == (page, checksum));
        self.now.push(Item { page, checksum, kind: Kind::Volatile });
        stays
    }

    /// Says what became of a page that this pass has met.
    pub(super) fn set(&mut self, page: Gfn, kind: Kind) {
        if let Ok(at) = self.now.binary_search_by_key(&page, |item| item.page) {
            self.now[at].kind = kind;
        }
    }

    /// The pass has met all of them.
    pub(super) fn end_pass(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.behind = 0;
    }

    /// How many pages are of this kind.
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
            assert!(!items.meet(Gfn(page), page), "a page that was not seen before");
        }
        assert_eq!(items.count(Kind::Volatile), 3);
        items.end_pass();
        assert!(items.meet(Gfn(1), 1));
        items.set(Gfn(1), Kind::Unshared);
        assert_eq!(
            [Kind::Volatile, Kind::Unshared].map(|kind| items.count(kind)),
            [2, 1],
            "3 of them in all"
        );
        assert!(!items.meet(Gfn(3), 4), "it has changed");
        items.end_pass();
        assert_eq!([Kind::Volatile, Kind::Unshared].map(|kind| items.count(kind)), [1, 1], "2 is forgotten");
        assert!(!items.meet(Gfn(2), 2));
        assert!(items.meet(Gfn(3), 4));
    }
}
