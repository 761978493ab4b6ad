//! A budget for table memory. A VM that reaches it takes its coldest tables back instead of failing (the TDP MMU
//! series' work item; KVM's direct MMU ignores its limit).
//!
//! The hardware walker sets Accessed in every link that it follows. A clear bit in a link therefore says that nothing
//! *below* was accessed lately. A clock goes over the links in pre-order, as far as needed:
//!
//! ```text
//! hand ─▶ link, Accessed      clear it, descend                 second chance
//!         link, not Accessed  the whole subtree is cold: unhook it, as an invalidation by the host would
//! ```
//! A stretch of cold subtrees costs one invalidation and one flush. Later faults map the pages again. Processors keep
//! links in paging-structure caches and then set no bit, so the clock is approximate, like aging, and as harmless.
//! Links without an Accessed bit look cold. For such formats the clock considers only leaf tables, and becomes first
//! in, first out. A list in order of use would need a write by every fault; a clock needs none.
//!
//! # Compaction
//! [`Vm::compact`] takes tables back for another reason: their chunks hold few tables. It keeps as many of the fullest
//! chunks as the tables need. It unhooks the leaf tables in other chunks, and the tables above those. No table moves:
//! later faults map the pages again in the kept chunks, because a new page comes from the fullest chunk.
//!
//! Tables of nested guests are taken back first if no vCPU runs on them, and last otherwise.
//!
//! The budget counts pages in use: in the tables, unhooked, or in the caches of vCPUs. If the *host* refuses memory,
//! operations fail with [`NoMemory`], and the VM stays usable.

use crate::hooks::{Nested, NestedHooks};
use crate::notify::begun::{Begun, Range, Scope};
use crate::oracle::Checked;
use crate::space::Space;
use crate::sync::mode::Shared;
use crate::sync::prim::Relaxed;
use crate::table::retire::DeadTables;
use crate::table::{Cache, Node, PageShortage};
use crate::trace::TraceEvent;
use crate::{Format, Gfn, Host, Idle, Level, NoMemory, Reason, Span, TableMemory, Vm, Walk};
use core::marker::PhantomData;

/// Maximum number of cold subtrees taken back by one invalidation.
const SUBTREES_AT_ONCE: usize = 16;
/// Maximum number of links checked before a flush: faults on their frames wait for it.
const LINKS: usize = 512;

/// Neighbouring subtrees to take back.
struct Found {
    gfns: [Span<Gfn>; SUBTREES_AT_ONCE],
    len: usize,
}

/// The subtrees to find.
#[derive(Clone, Copy)]
enum Wanted {
    /// Tables whose links lack the Accessed bit. The search clears the bit of other links.
    Cold,
    /// Tables whose top is in a chunk with more free pages than this.
    Sparse(u32),
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Limits the table pages in use to `bytes`, and takes the coldest tables back until they fit. The VM cannot take
    /// back what one fault needs, and what vCPUs keep as spare pages. If the budget is less, faults that need a table
    /// fail with [`FaultError::NoMemory`](crate::FaultError::NoMemory). Waits for vCPUs to answer flushes.
    pub fn set_table_budget(&self, idle: &mut Idle, bytes: u64) {
        self.pool.set_budget(bytes);
        while self.pool.in_use() > self.pool.budget() && self.reclaim(idle) {}
    }

    /// The dead tables of all address spaces.
    pub(crate) fn dead_tables(&self) -> DeadTables<'_, F, impl TableMemory, Checked<H>> {
        let Self { grace, reads, host: events, pool, .. } = self;
        DeadTables { grace, reads, memory: self.tables(), events, pool, format: PhantomData }
    }

    /// Waits for a grace period, and takes a few dead tables apart.
    #[cold]
    pub(crate) fn collect_some(&self) {
        self.dead_tables().collect_some();
    }

    /// Fills a cache of table pages up to `want`. Uses pages that wait for a grace period before it asks the host for
    /// more. If a reader delays the grace period, it asks the host first. If the budget is used up, takes cold tables
    /// back.
    #[cold]
    pub(crate) fn top_up(&self, idle: &mut Idle, cache: &mut Cache, want: usize) -> Result<(), NoMemory> {
        loop {
            match self.pool.top_up(self.tables(), cache, want, || self.dead_tables().reuse()) {
                Ok(()) => return Ok(()),
                Err(PageShortage::Budget) if self.reclaim(idle) => {}
                Err(PageShortage::Host) if self.dead_tables().reuse_late() => {}
                Err(_) => return Err(NoMemory),
            }
        }
    }

    /// Takes cold tables back. Returns false if two rounds of the clock found none.
    pub(crate) fn reclaim(&self, idle: &mut Idle) -> bool {
        let mut hand = self.clock.hand.lock();
        let before = self.pool.in_use();
        if before < self.pool.budget() || self.take_back_from_a_shadow(idle, false) {
            // Or another thread has taken tables back while this one waited for the lock.
            return true;
        }
        // The first round may only clear bits.
        let mut rounds = 2 * self.spaces.len() + 1;
        while rounds > 0 {
            let (space, from) = *hand;
            let space = &self.spaces[space];
            let (cold, next) = self.find(idle, space, from, Wanted::Cold);
            *hand = match next {
                Some(next) => (hand.0, next),
                None => ((hand.0 + 1) % self.spaces.len(), Gfn(0)),
            };
            rounds -= usize::from(next.is_none());
            if cold.len > 0 {
                self.unhook(idle, space, &cold);
                self.clock.reclaimed.fetch_add(cold.len as u64, Relaxed);
                self.host.observe(TraceEvent::Reclaimed { subtrees: cold.len as u64 });
                self.collect(idle);
                if self.pool.in_use() < before {
                    return true;
                }
            }
        }
        self.take_back_from_a_shadow(idle, true)
    }

    /// Takes back the tables of a shadow that no vCPU holds; or, with `held`, some cold tables of one that a vCPU
    /// holds. Returns false if there is none.
    pub(crate) fn take_back_from_a_shadow(&self, _idle: &mut Idle, held: bool) -> bool {
        let subtrees = Nested::reclaim(self, held);
        if subtrees > 0 {
            self.clock.reclaimed.fetch_add(subtrees, Relaxed);
            self.host.observe(TraceEvent::Reclaimed { subtrees });
        }
        subtrees > 0
    }

    /// [Shrinks](Self::shrink) table memory to little more than the tables need. If the tables lie in more chunks than
    /// necessary, takes back tables in sparsely used chunks; later faults map their pages again. Returns the number of
    /// bytes by which the VM's memory shrank. Waits for vCPUs to answer flushes, one flush for each 16 tables, and for
    /// grace periods. May sleep in [`TableMemory::take_back`].
    ///
    /// Keeps roots, tables that map 512 GiB or more, and the spare pages of vCPUs
    /// ([`Vcpu::give_tables_back`](crate::Vcpu::give_tables_back)).
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
    /// #         Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    /// #     }
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 2000 * 512, Hva(1 << 41))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// # for table in 0..2000 {
    /// #     vcpu.fault(&mut idle, Fault { gpa: Gfn(table * 512).gpa(), access: Access::Write })?;
    /// # }
    /// # vcpu.give_tables_back();
    /// // 2,000 tables, of which the guest keeps every 50th.
    /// for table in (0..2000).filter(|table| table % 50 != 0) {
    ///     let change = vm.memory().invalidate(Span::sized(Gfn(table * 512), 512), Why::Unmap).apply(&mut idle).settle();
    ///     // … here the host changes its own table …
    ///     drop(change);
    /// }
    /// vm.shrink(&mut idle);
    /// assert!(vm.stats().lent_bytes > 30 * 64 * PAGE_SIZE); // one or two tables in each chunk
    /// vm.compact(&mut idle);
    /// assert!(vm.stats().lent_bytes <= 2 * 64 * PAGE_SIZE);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self, idle: &mut Idle) -> u64 {
        let bytes = self.shrink(idle);
        let Some(most) = self.pool.most_free_to_keep() else { return bytes };
        for space in &self.spaces {
            let mut from = Some(Gfn(0));
            while let Some(start) = from {
                let (sparse, next) = self.find(idle, space, start, Wanted::Sparse(most));
                if sparse.len > 0 {
                    self.unhook(idle, space, &sparse);
                }
                from = next;
            }
        }
        bytes + self.shrink(idle)
    }

    /// Unhooks these subtrees by one invalidation and one flush.
    fn unhook(&self, idle: &mut Idle, space: &Space<F>, found: &Found) {
        let gfns = &found.gfns[..found.len];
        if let Some(hull) = gfns.iter().copied().reduce(|hull, gfns| hull.hull(&gfns)) {
            let mut change = Begun::begin(self, Range::Gfns(space.id, hull), Reason::Unmap);
            change.edit(idle, &Scope::Parts(gfns), None);
            change.settle(true);
        }
    }

    /// Checks links from `from` on. Returns the wanted subtrees, and where to continue unless the end was reached.
    fn find(&self, idle: &mut Idle, space: &Space<F>, from: Gfn, wanted: Wanted) -> (Found, Option<Gfn>) {
        let mut found = Found { gfns: [Span::default(); SUBTREES_AT_ONCE], len: 0 };
        let mut walk = Walk::<F, H, Shared>::on_any_seat(self, space, idle);
        let mut steps = walk.steps(Span::new(from, Gfn(1 << F::FRAME_BITS)), Level::M2);
        let (mut links, mut end) = (0, from);
        while let Some((_, step)) = steps.next() {
            let (at, gfns) = (step.at, step.gfns);
            if !F::is_table(at.word, at.level) || gfns.start < end {
                continue;
            }
            if links == LINKS || found.len == SUBTREES_AT_ONCE {
                return (found, Some(gfns.start));
            }
            links += 1;
            let is_wanted = match wanted {
                Wanted::Cold => at.is_cold::<F>(),
                Wanted::Sparse(most) => {
                    // SAFETY: a link of this table, read in the section of the walk.
                    let table = unsafe { Node::follow(self.tables(), F::pfn(at.word)) };
                    at.level <= Level::G1 && self.pool.free_beside(table) > most
                }
            };
            if is_wanted {
                found.gfns[found.len] = gfns;
                found.len += 1;
                // Everything below it goes with it.
                end = gfns.end;
            }
        }
        (found, None)
    }
}
