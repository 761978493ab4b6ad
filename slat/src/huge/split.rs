//! Splitting: one CAS from the large leaf to a table with the same translations.
//!
//! There is no hole in between, and no flush afterwards, because translations in TLBs stay true. Splitting needs no
//! stamp and no invalidation: the small leaves allow what the large one allowed. If the hardware sets Accessed or Dirty
//! meanwhile, the CAS fails and the table is filled again, so neither bit is lost.

use crate::sync::{Count, Edits, Shared};
use crate::table::radix::link_parts;
use crate::table::{At, Cache, Kind, Node};
use crate::trace::TraceEvent;
use crate::{Format, Gfn, GuestSpace, Host, Idle, Leaf, Level, NoMemory, Perms, Span, Walk, Word};

/// Number of table pages that a splitting walk takes along. It ends when they are used up.
const PAGES: usize = 64;

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Splits every larger leaf that maps any of `gfns` down to leaves of `to`. Returns the number
    /// of leaves split. Split leaves may extend beyond the range. Use it, for example, before writes are tracked page
    /// by page. The guest notices nothing. Asks for table pages between its walks, so it may sleep.
    ///
    /// # Errors
    /// [`NoMemory`] if table pages are missing. Leaves split so far stay split.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Huge;
    /// # impl Host for Huge {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::M2, ..HostPage::PLAIN })
    /// #     }
    /// #     fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
    /// #         Some(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::M2, ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Huge).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1024, Hva(0x4000_0000))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// assert_eq!(vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Read })?, Next::Resume(Resume::Mapped(Level::M2)));
    /// let range = Span::new(Gfn(0), Gfn(512));
    /// assert_eq!(vm.memory().split(&mut idle, range, Level::K4)?, 1);
    /// assert_eq!(vm.stats().leaves, [512, 0, 0]);
    /// assert_eq!(vm.memory().recover(&mut idle, range), 1);
    /// assert_eq!(vm.memory().translate(&mut idle, Gfn(5)).unwrap().level, Level::M2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&self, idle: &mut Idle, gfns: Span<Gfn>, to: Level) -> Result<u64, NoMemory> {
        let vm = self.vm;
        let (mut cache, mut left, mut split) = (vm.pool.scratch(), gfns, 0);
        loop {
            let mut walk = Walk::<F, H, Shared>::on_any_seat(vm, self.space, idle);
            let stopped = walk.split_some(&mut cache, left, to, &mut split);
            drop(walk);
            let Some(goal) = stopped else { return Ok(split) };
            left.start = goal.max(left.start);
            // Pages in the cache are used up before a lack of memory is an error.
            if let Err(error) = vm.top_up(idle, &mut cache, PAGES)
                && cache.len() == 0
            {
                return Err(error);
            }
        }
    }
}

impl<F: Format, H: Host, M: Edits> Walk<'_, F, H, M> {
    /// Splits until the cache is empty, and then returns the frame where it stopped.
    fn split_some(&mut self, cache: &mut Cache, gfns: Span<Gfn>, to: Level, split: &mut u64) -> Option<Gfn> {
        if to >= F::ROOT_LEVEL {
            return None; // no leaf is larger
        }
        let mut steps = self.steps(gfns, to.up());
        while let Some((walk, step)) = steps.next() {
            let (mut at, first) = (step.at, step.gfns.start);
            while let Kind::Leaf | Kind::Withdrawn = at.word.kind::<F>(at.level) {
                let Some(node) = cache.take() else { return Some(first) };
                match walk.replace(node, at, first, F::decode(at.word)) {
                    Ok(_) => {
                        *split += 1;
                        break;
                    }
                    Err(found) => {
                        cache.put_back(node);
                        at.word = found;
                    }
                }
            }
        }
        None
    }

    /// Replaces the leaf `at`, which maps `gfn`, by a table of smaller leaves, because a part of it changes. Returns
    /// the link. If another thread or the hardware changed the leaf first, returns the page and the word found.
    pub(crate) fn split_for_part(&self, page: Node, at: At<'_>, gfn: Gfn) -> Result<Word, (Node, Word)> {
        let split = self.replace(page, at, gfn, F::decode(at.word));
        split.map_err(|found| (page, found))
    }

    /// Splits the leaf `at`, and descends to `gfn`'s entry in the new table. If another thread changed the leaf first,
    /// returns the entry as found. With `writable`, armed small leaves regain the write permission, and all of them are
    /// clean ([`crate::dirty`]).
    pub(crate) fn split_leaf<'w>(
        &'w self,
        cache: &mut Cache,
        gfn: Gfn,
        mut at: At<'w>,
        writable: bool,
    ) -> Result<At<'w>, NoMemory> {
        let node = cache.take().ok_or(NoMemory)?;
        let mut large = F::decode(at.word);
        if writable && large.host_writable {
            (large.perms, large.dirty) = (large.perms.with(Perms::WRITE), false);
        }
        match self.replace(node, at, gfn, large) {
            Ok(link) => Ok(self.step_down(gfn, At { word: link, ..at })),
            Err(found) => {
                cache.put_back(node);
                at.word = found;
                Ok(at)
            }
        }
    }

    /// Fills `node` with leaves equal to `large`, which maps `gfn`, and replaces the entry `at` by a link to it. Counts
    /// and reports the split, and returns the link.
    fn replace(&self, node: Node, at: At<'_>, gfn: Gfn, large: Leaf) -> Result<Word, Word> {
        // Large pages without execute permission are split so that the small ones can execute.
        let small = at.level.down() == Level::K4 && self.vm.policy.nx_huge_pages;
        let execute = if small { Perms::EXECUTE } else { Perms::NONE };
        let large = Leaf { perms: large.perms.with(execute), ..large };
        let link = link_parts::<F, _>(self.vm.tables(), node, at, (at.word, large))?;
        self.seat.tally.add(Count::split(at.level));
        self.vm.host.observe(TraceEvent::Split { gfn, level: at.level });
        Ok(link)
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
