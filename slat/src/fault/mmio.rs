//! MMIO accesses, and the words in the table that remember them.
//!
//! A guest polls its devices, and each poll faults without a memslot. The first such fault leaves an mmio word: a hole
//! that says "no memslot here, as of invalidation v". Slots are published under numbers of the same counter. The word
//! is true until slots are published under a number above v. Every walk also treats it as the plain hole(v), which it
//! then becomes. KVM caches the generation of its slots in such entries, and flushes them all when its 19 bits wrap;
//! these 52 bits do not wrap.
//!
//! The word stands at the highest level below which no slot lies. A gap of 512 GiB in the guest's memory costs one
//! word, and a guest that touches all of it costs no tables.

use super::{By, Done, Emulate, Outcome};
use crate::active::Epoch;
use crate::sync::{Count, Shared};
use crate::table::{At, Kind, Reached, Version};
use crate::{Format, Gfn, Host, Level, NoMemory, Span, Vcpu, Walk, Word};

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Counts an access without a memslot, or one that the memslot forbids.
    pub(super) fn emulated(&self, why: Emulate) -> Outcome {
        self.tally().add(Count::Mmio);
        Outcome::Done(Done::Emulate(why))
    }

    /// An access without a memslot. A device has no private memory, so the VMM must not emulate an access to it.
    pub(super) fn without_memslot(&self, by: By) -> Outcome {
        match by {
            By::Guest { private: Some(true) } => Outcome::Done(Done::MemoryFault { private: true }),
            _ => self.emulated(Emulate::NoMemory),
        }
    }

    /// Checks the mmio word in `at`. Returns `None` if it is true; else the hole that it has become, or the word that
    /// another thread stored there. The caller read the epoch after the word.
    #[cold]
    pub(super) fn not_mmio<'w>(&self, mut at: At<'w>) -> Option<At<'w>> {
        if self.space.memslots.unchanged_since(at.word.version()) {
            return None;
        }
        let hole = Word::hole(at.word.version());
        at.word = at.entry.cas(at.word, hole).err().unwrap_or(hole);
        Some(at)
    }

    /// Remembers that `gfn` has no memslot, as found after `start`. `at` is the frame's lowest entry. Does
    /// nothing if that is not certain.
    #[cold]
    pub(super) fn remember_mmio<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        mut at: At<'w>,
        gfn: Gfn,
        start: Epoch,
    ) -> Result<(), NoMemory> {
        // The hole may be newer than the slots, if its invalidation changed none. It was read before the epoch.
        let seen = match at.word.kind::<F>(at.level) {
            Kind::Hole(version) => version,
            _ => Version::default(),
        };
        let newest = seen.max(self.space.memslots.published_under());
        let slots = walk.slots();
        let entry = |level: Level| Span::sized(gfn.base(level), level.pages());
        let mut level = at.level;
        while level > Level::K4 && slots.range(entry(level)).next().is_some() {
            level = level.down();
        }
        // No slot in the version that was published when the epoch was read, and no transaction is changing that now.
        if !walk.vm.active.nowhere(start, entry(level)) || slots.find(gfn).is_some() {
            return Ok(());
        }
        if at.level > level {
            let Reached::Level(reached) = walk.link_down(&mut self.cache, gfn, at, level)? else {
                return Ok(());
            };
            at = reached;
        }
        // A hole newer than `newest` may belong to a transaction that has begun since.
        if at.level == level && at.word.is_hole() && at.word <= Word::hole(newest) {
            // If this fails, another thread has stored a newer word.
            let _ = at.entry.cas(at.word, Word::mmio(newest));
        }
        Ok(())
    }
}
