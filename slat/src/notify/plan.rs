//! The plan: what an invalidation does to a leaf. It is one match; `slat plan` prints it, and a test checks each row.
//!
//! | why | when | leaf | the host's page now | edit |
//! |---|---|---|---|---|
//! | unmap, remap, exit, slot | at begin | any | | zap, and free the range's tables |
//! | clear, migrate | at begin | any | | zap |
//! | protect, write-protect, soft-dirty | at begin | writable now, or when the host gave it | | drop write |
//! | protect, write-protect, soft-dirty | at begin | read-only both ways | | nothing |
//! | reclaim, numa | page by page | any | | zap |
//! | change-pte | page by page | read-only | another | **replace** |
//! | change-pte | page by page | read-only | the same | nothing |
//! | change-pte | page by page | writable | the same, read-only | drop write |
//! | change-pte | page by page | writable | the same, writable | nothing |
//! | change-pte | page by page | writable | another | zap |
//! | change-pte | page by page | any | none | zap |
//! | change-pte | page by page | larger than 4 KiB | any | zap |
//! | change-pte | page by page | any | of another memory type, or no longer executable | zap |
//! | any | | larger, and reaches out of the changed range | | nothing if its part would stay as it is; else **split** |
//!
//! Three transitions of one page leave no hole, as in the change-pte series: read-only to writable on any page,
//! writable to read-only on the same page, and read-only to read-only on another page. In the last, the host promises
//! equal contents. A replaced leaf is read-only whatever the host offers: a vCPU with the old page in its TLB must not
//! miss a store to the new one. The first store asks the host, after the flush.
//!
//! A split leaf becomes a table of smaller leaves with the same translations. The leaves in the range are then edited
//! by the rows above; the others stay mapped. If the invalidation has no spare table page (`reserve` says when), it
//! zaps the whole leaf, and faults map the remainder again.

use crate::{Access, HostPage, Leaf, Level, Perms, Pfn, Reason};
use alloc::vec::Vec;
use slat_slots::MemoryType;

/// The edit of one leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Edit {
    /// The leaf stays as it is.
    Nothing,
    /// The leaf loses write permission, and the record that the host allowed writes.
    DropWrite,
    /// The leaf maps this frame instead, read-only, without being a hole in between.
    Replace(Pfn),
    /// The leaf becomes a table of smaller leaves, of which the changed ones are edited.
    Split,
    /// The leaf becomes a hole.
    Zap,
}

impl Edit {
    /// Returns its name, as `slat plan` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::DropWrite => "drop write",
            Self::Replace(_) => "replace in place",
            Self::Split => "split",
            Self::Zap => "zap",
        }
    }
}

/// Returns the least drastic edit that `why` allows for `old`, a leaf of `level`. `now` is the host's page, if the host
/// told it (only [page by page](Reason::page_by_page)).
#[inline]
pub fn plan(why: Reason, old: &Leaf, level: Level, now: Option<HostPage>) -> Edit {
    let writable = old.host_writable || old.perms.allows(Access::Write);
    let executes = old.perms.allows(Access::Fetch);
    match (why, now) {
        _ if zaps(why) => Edit::Zap,
        (Reason::Protect | Reason::WriteProtect | Reason::SoftDirty, _) if writable => Edit::DropWrite,
        (Reason::ChangePte, None) => Edit::Zap,
        (Reason::ChangePte, _) if level > Level::K4 => Edit::Zap,
        // The memslot may also narrow the leaf's memory type or permissions. Such slots are for devices: rare.
        (Reason::ChangePte, Some(page)) if page.memory != old.memory || executes && !page.execute => {
            Edit::Zap
        }
        (Reason::ChangePte, Some(page)) => match (writable, page.pfn == old.pfn) {
            (false, true) => Edit::Nothing,
            (false, false) => Edit::Replace(page.pfn),
            (true, true) if page.writable => Edit::Nothing,
            (true, true) => Edit::DropWrite,
            (true, false) => Edit::Zap,
        },
        _ => Edit::Nothing,
    }
}

/// Like [`plan`], for a leaf larger than 4 KiB of which only a part changes. `part` is the small leaf that would map
/// that part; `now` holds for all of it.
#[inline]
pub fn plan_part(why: Reason, part: &Leaf, now: Option<HostPage>) -> Edit {
    match plan(why, part, Level::K4, now) {
        Edit::Nothing => Edit::Nothing,
        _ => Edit::Split,
    }
}

/// Whether the reason zaps every leaf, whatever its contents.
#[inline]
pub(super) const fn zaps(why: Reason) -> bool {
    matches!(
        why,
        Reason::Unmap
            | Reason::Remap
            | Reason::Exit
            | Reason::Clear
            | Reason::Migrate
            | Reason::Reclaim
            | Reason::Numa
            | Reason::Slot
    )
}

/// Whether the reason takes a held frame back; `write` says whether it is held to write. As for a leaf.
#[inline]
pub(super) const fn withdraws(why: Reason, write: bool) -> bool {
    write || zaps(why) || matches!(why, Reason::ChangePte)
}

/// One row of the plan, as [`rows`] lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The reason.
    pub why: Reason,
    /// The leaf's size: 4 KiB, or 2 MiB where the size matters.
    pub level: Level,
    /// Whether the leaf reaches out of the changed range.
    pub part: bool,
    /// Whether the leaf is writable, or the host gave it so.
    pub writable: bool,
    /// The host's page now, if told: whether it is the same frame, and whether it is writable.
    pub now: Option<(bool, bool)>,
    /// The edit.
    pub edit: Edit,
}

/// Returns every case that [`plan`] distinguishes, with its edit.
pub fn rows() -> Vec<Row> {
    let frame = Pfn(1);
    let mut rows = Vec::new();
    for why in Reason::ALL {
        let told = [None, Some((true, false)), Some((true, true)), Some((false, false)), Some((false, true))];
        let told = if why == Reason::ChangePte { &told[..] } else { &told[..1] };
        let leaves = [(Level::K4, false), (Level::M2, true), (Level::M2, false)];
        let leaves = if why == Reason::ChangePte { &leaves[..] } else { &leaves[..2] };
        for (&(level, part), writable, &now) in leaves.iter().flat_map(|leaf| {
            [false, true]
                .into_iter()
                .flat_map(move |writable| told.iter().map(move |now| (leaf, writable, now)))
        }) {
            let perms = if writable { Perms::RWX } else { Perms::RX };
            let old = Leaf {
                pfn: frame,
                perms,
                memory: MemoryType::WriteBack,
                host_writable: writable,
                accessed: true,
                dirty: false,
            };
            let page = |(same, writable)| {
                let pfn = if same { frame } else { frame + 1 };
                HostPage { pfn, writable, ..HostPage::PLAIN }
            };
            let told = now.map(page);
            let edit = if part { plan_part(why, &old, told) } else { plan(why, &old, level, told) };
            rows.push(Row { why, level, part, writable, now, edit });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(why: Reason, level: Level, now: Option<HostPage>) -> [Edit; 3] {
        [(Perms::RX, false), (Perms::RX, true), (Perms::RWX, true)].map(|(perms, host_writable)| {
            let old = Leaf {
                pfn: Pfn(1),
                perms,
                memory: MemoryType::WriteBack,
                host_writable,
                accessed: true,
                dirty: false,
            };
            plan(why, &old, level, now)
        })
    }

    #[test]
    fn every_row_that_is_decided_at_begin() {
        for why in Reason::ALL {
            let expect = match why {
                Reason::Protect | Reason::WriteProtect | Reason::SoftDirty => {
                    [Edit::Nothing, Edit::DropWrite, Edit::DropWrite]
                }
                _ => [Edit::Zap; 3],
            };
            assert_eq!(edits(why, Level::K4, None), expect, "{why:?}");
            assert_eq!(edits(why, Level::M2, None), expect, "{why:?}, large");
        }
    }

    #[test]
    fn every_row_that_is_decided_page_by_page() {
        use Edit::{DropWrite, Nothing, Replace, Zap};
        let page = |pfn, writable| Some(HostPage { pfn: Pfn(pfn), writable, ..HostPage::PLAIN });
        for (now, expect) in [
            (page(1, false), [Nothing, DropWrite, DropWrite]),
            (page(1, true), [Nothing; 3]),
            (page(2, false), [Replace(Pfn(2)), Zap, Zap]),
            (page(2, true), [Replace(Pfn(2)), Zap, Zap]),
            (None, [Zap; 3]),
        ] {
            assert_eq!(edits(Reason::ChangePte, Level::K4, now), expect, "{now:?}");
            assert_eq!(edits(Reason::ChangePte, Level::M2, now), [Zap; 3], "{now:?}, large");
            assert_eq!(edits(Reason::Numa, Level::K4, now), [Zap; 3]);
        }
    }

    #[test]
    fn a_leaf_of_which_a_part_changes_is_split_where_that_part_does_not_stay_as_it_is() {
        let rows = rows();
        for part in rows.iter().filter(|row| row.part) {
            let small = Row { level: Level::K4, part: false, ..*part };
            let same = |row: &&Row| Row { edit: part.edit, ..small } == Row { edit: part.edit, ..**row };
            let small = rows.iter().find(same).expect("each small leaf has its row").edit;
            assert_eq!(
                part.edit,
                if small == Edit::Nothing { Edit::Nothing } else { Edit::Split },
                "{part:?}"
            );
        }
    }

    #[test]
    fn the_rows_say_what_the_plan_does() {
        let rows = rows();
        assert!(Reason::ALL.iter().all(|&why| rows.iter().any(|row| row.why == why)));
        let holes =
            |row: &&Row| row.edit == Edit::Zap && row.why == Reason::ChangePte && row.level == Level::K4;
        assert_eq!(
            rows.iter().filter(holes).count(),
            4,
            "no page left, twice; writable to another page, twice"
        );
    }
}
