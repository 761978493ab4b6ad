//! Accesses to no memory: emulated, and remembered in the table.
//!
//! A guest polls its devices, and each poll is a fault that finds no memslot. So the first one leaves a word behind:
//! a hole that says "no memslot here, as of invalidation v". Slots are published under numbers of the same count, so the
//! word is true while none of them is above v; else it is the plain hole(v) that it also is, to every walk. KVM
//! caches the generation of its slots in such entries, and flushes all of them when its 19 bits wrap; 52 do not.
//!
//! The word stands as high up as no slot is below: a hole of 512 GiB in the guest's memory costs one word, and a guest
//! that touches all of it costs no tables.

use super::{Done, Outcome};
use crate::addr::{Gfn, Level, Span};
use crate::host::Host;
use crate::notify::active::Epoch;
use crate::sync::mode::Shared;
use crate::sync::tally::Count;
use crate::table::entry::{Version, Word};
use crate::table::format::Format;
use crate::table::pool::NoMemory;
use crate::table::radix::At;
use crate::vcpu::Vcpu;
use crate::walk::Walk;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Counts and reports an access to no memory.
    pub(super) fn mmio(&self) -> Outcome {
        self.tally().add(Count::Mmio);
        Outcome::Done(Done::Mmio)
    }

    /// What an mmio word `at` says: `None` where it is true; else the hole that it is now, or the word that another thread
    /// put there. The epoch was read after the word was.
    #[cold]
    pub(super) fn not_mmio<'w>(&self, mut at: At<'w>) -> Option<At<'w>> {
        if self.space.memslots.unchanged_since(at.word.version()) {
            return None;
        }
        let hole = Word::hole(at.word.version());
        at.word = at.entry.cas(at.word, hole).err().unwrap_or(hole);
        Some(at)
    }

    /// Remembers that `gfn` has no memslot, as was found after `epoch` was read; `at` is the lowest entry that it has. Where that
    /// cannot be said for sure it is left alone.
    #[cold]
    pub(super) fn remember_mmio<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        mut at: At<'w>,
        gfn: Gfn,
        epoch: Epoch,
    ) -> Result<(), NoMemory> {
        // The hole may be newer than the slots, of an invalidation that changes none. It was read before the epoch.
        let seen = if at.word.is_hole() { at.word.version() } else { Version::default() };
        let newest = seen.max(self.space.memslots.published_under());
        let slots = self.space.memslots.read(&walk.vm.reads, walk.seat).version;
        let entry = |level: Level| Span::sized(gfn.base(level), level.pages());
        let mut level = at.level;
        while level > Level::K4 && slots.range(entry(level)).next().is_some() {
            level = level.down();
        }
        // No slot, in the version that was published when the epoch was read, and no transaction changes that now.
        if !walk.vm.active.nowhere(epoch, entry(level)) || slots.find(gfn).is_some() {
            return Ok(());
        }
        if at.level > level {
            at = walk.link_down(&mut self.cache, gfn, at, level)?;
        }
        let newest = if seeded!(MmioUnlooked) { newest.max(at.word.version()) } else { newest };
        // A hole that is newer than all that was looked at may be of a transaction that has begun since.
        if at.level == level && at.word.is_hole() && at.word <= Word::hole(newest) {
            // Where that fails another thread knows better.
            let _ = at.entry.cas(at.word, Word::mmio(newest));
        }
        Ok(())
    }
}
