//! The plan: what an invalidation does to a leaf. One match, to be read by an engineer in a minute and tested
//! row by row.
//!
//! | why | leaf | edit |
//! |---|---|---|
//! | unmap, remap, clear, migrate, slot | any | zap |
//! | protect | writable now, or when the host gave it | drop write |
//! | protect | read-only both ways | nothing |
//!
//! A leaf that reaches out of the invalidated range is always zapped: what is left of it faults back in.

use super::why::Why;
use crate::table::format::{Access, Leaf};

/// What happens to one leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Edit {
    /// It stays as it is.
    Nothing,
    /// It loses write permission, and the record that the host allowed writes.
    DropWrite,
    /// It becomes a hole.
    Zap,
}

/// The least drastic edit that `why` allows for `old`.
#[inline]
pub fn plan(why: Why, old: &Leaf) -> Edit {
    match why {
        Why::Unmap | Why::Remap | Why::Clear | Why::Migrate | Why::Slot => Edit::Zap,
        Why::Protect if old.host_writable || old.perms.allows(Access::Write) => Edit::DropWrite,
        Why::Protect => Edit::Nothing,
    }
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
            _ => [Edit::Zap; 3],
        };
        for why in Why::ALL {
            assert_eq!(leaves.map(|(perms, host)| plan(why, &leaf(perms, host))), expect(why), "{why:?}");
        }
    }
}
