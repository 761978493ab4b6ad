//! The plan: what an invalidation does to a leaf. One match, to be read by an engineer in a minute and tested
//! row by row.
//!
//! | why | leaf | edit |
//! |---|---|---|
//! | unmap, remap, clear, migrate, slot | any | zap |
//! | protect | writable now, or when the host gave it | drop write |
//! | protect | read-only both ways | nothing |
//! | log | larger than 4 KiB, not split before | zap: it comes back page by page |
//! | log | the host gave it writable | track writes |
//! | log | any other | nothing |
//!
//! A leaf that reaches out of the invalidated range is always zapped: what is left of it faults back in.

use super::why::Why;
use crate::addr::Level;
use crate::table::format::{Access, Leaf};

/// What happens to one leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Edit {
    /// It stays as it is.
    Nothing,
    /// It loses write permission, and the record that the host allowed writes.
    DropWrite,
    /// It loses write permission; a store gets it back without asking the host.
    TrackWrite,
    /// It becomes a hole.
    Zap,
}

/// The least drastic edit that `why` allows for `old`, a leaf of `level`.
#[inline]
pub fn plan(why: Why, old: &Leaf, level: Level) -> Edit {
    match why {
        _ if zaps(why) => Edit::Zap,
        Why::Protect if old.host_writable || old.perms.allows(Access::Write) => Edit::DropWrite,
        Why::Log if level > Level::K4 => Edit::Zap,
        // A clear W never proves that no TLB writes: it is tightened again, and that owes a flush too.
        Why::Log if old.host_writable => Edit::TrackWrite,
        _ => Edit::Nothing,
    }
}

/// Whether every leaf goes, whatever it says.
#[inline]
pub(super) const fn zaps(why: Why) -> bool {
    matches!(why, Why::Unmap | Why::Remap | Why::Clear | Why::Migrate | Why::Slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Pfn;
    use crate::table::format::Perms;

    fn leaf(perms: Perms, host_writable: bool) -> Leaf {
        Leaf { pfn: Pfn(1), perms, host_writable, accessed: true, dirty: false }
    }

    #[test]
    fn every_row_of_the_table() {
        let leaves = [(Perms::RX, false), (Perms::RX, true), (Perms::RWX, true)];
        let expect = |why| match why {
            Why::Protect => [Edit::Nothing, Edit::DropWrite, Edit::DropWrite],
            Why::Log => [Edit::Nothing, Edit::TrackWrite, Edit::TrackWrite],
            _ => [Edit::Zap; 3],
        };
        for why in Why::ALL {
            let edits = |level| leaves.map(|(perms, host)| plan(why, &leaf(perms, host), level));
            assert_eq!(edits(Level::K4), expect(why), "{why:?}");
            let large = if why == Why::Log { [Edit::Zap; 3] } else { expect(why) };
            assert_eq!(edits(Level::M2), large, "{why:?}, large");
        }
    }
}
