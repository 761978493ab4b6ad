//! A look-up as the hardware makes it: every link on the way, and the final entry.

use super::controlled_host::World;
use crate::table::entry::Version;
use crate::table::format::Kind;
use crate::table::memory::Node;
use crate::{Format, Gfn, Level, Perms, Pfn, Span};

/// The translation of a page. Without Accessed, which may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Translation {
    /// Frame of exactly this 4 KiB.
    pub(super) pfn: Pfn,
    pub(super) perms: Perms,
    pub(super) host_writable: bool,
    pub(super) dirty: bool,
}

impl Translation {
    /// Whether a TLB that still uses it allows only what `now` allows, and hides no store.
    pub(super) fn is_still(self, now: Self) -> bool {
        let lets = now.perms.with(self.perms) == now.perms;
        self.pfn == now.pfn && lets && (now.dirty || !self.dirty)
    }
}

/// The entry at which a look-up ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// A hole, with the number of this invalidation.
    Nothing(Version),
    /// The entry is frozen: the guest faults, and comes back.
    Waiting,
    /// The leaf is withdrawn to learn of the next access.
    Withdrawn(Translation),
    /// A leaf.
    Maps(Translation),
}

impl Seen {
    pub(super) fn translation(self) -> Option<Translation> {
        match self {
            Self::Withdrawn(translation) | Self::Maps(translation) => Some(translation),
            Self::Nothing(_) | Self::Waiting => None,
        }
    }

    /// Whether a look-up sees no difference: a hole's number does not matter to it.
    pub(super) fn is_same(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Nothing(_), Self::Nothing(_)))
    }
}

/// One look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Look {
    /// The tables on the way, by their level; the hardware has the root's frame in a register.
    pub(super) tables: [Option<Pfn>; 6],
    pub(super) seen: Seen,
}

/// Looks `gfn` up.
pub(super) fn look<F: Format>(world: &World<F>, gfn: Gfn) -> Look {
    let vm = &world.vm;
    let (mut table, mut level) = (F::top(vm.spaces[0].radix.root_word().pfn(), gfn), F::ROOT_LEVEL);
    let mut tables = [None; 6];
    loop {
        tables[usize::from(level.number())] = Some(table);
        // SAFETY: a link of this table; tables are given back by `collect`, which overwrites nothing.
        let entries = unsafe { Node::follow(vm.tables(), table).entries() };
        let word = entries[F::index(gfn, level)].load();
        let translation = || {
            let leaf = F::decode(word);
            Translation {
                pfn: leaf.pfn + (gfn.0 & (level.pages() - 1)),
                perms: leaf.perms,
                host_writable: leaf.host_writable,
                dirty: leaf.dirty,
            }
        };
        let seen = match word.kind::<F>(level) {
            Kind::Table(pfn) => {
                (table, level) = (pfn, level.down());
                continue;
            }
            Kind::Leaf => Seen::Maps(translation()),
            Kind::Withdrawn => Seen::Withdrawn(translation()),
            Kind::Hole(version) | Kind::Mmio(version) => Seen::Nothing(version),
            Kind::Frozen(_) => Seen::Waiting,
        };
        return Look { tables, seen };
    }
}

/// Returns the frames that one table of `level` serves.
pub(super) fn behind(gfn: Gfn, level: Level) -> Span<Gfn> {
    Span::sized(gfn.base(level.up()), level.up().pages())
}
