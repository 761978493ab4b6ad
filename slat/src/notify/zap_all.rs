//! `zap_all`: replaces the root; the old tables die like any unhooked subtree.
//!
//! ```text
//! begin an invalidation of everything     faults wait for one shootdown, whatever the VM's size
//!   root := a fresh page of hole(k)       walks that begin now find nothing mapped
//!   shootdown                             every vCPU flushes its TLB and loads the new root
//! end                                     faults continue, into the new table
//! grace period; the old tables are collected page by page, and no thread waits for that
//! ```
//! The root acts as the entry above all others, and this unhooks it ([`crate::table::retire`]). The host's
//! invalidations may therefore run beside it. One that walks the old table can miss nothing in the new one, which holds
//! no leaf before this invalidation ends. One that walks the new table finds holes of an invalidation that may not have
//! flushed, and then flushes too. A vCPU that answers any flush looks for a new root. A broadcast flush has no answers,
//! so none is sent while a root is replaced.

use super::begun::{Begun, Range, Scope};
use crate::hooks::{Nested, NestedHooks};
use crate::sync::mode::Exclusive;
use crate::table::pool::FreshRoot;
use crate::{Format, Gfn, Host, Idle, NoMemory, Reason, Span, Vm, Walk};

impl<F: Format, H: Host> Vm<F, H> {
    /// Unmaps every guest frame of every address space. vCPUs load a new root
    /// ([`InGuest::root`](crate::InGuest::root)); faults wait only for that. Returns when the old tables have been
    /// collected, which may take long; faults run meanwhile. May sleep.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no page for a new root. Address spaces before it are then zapped already.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
    /// let before = vm.memory().root();
    /// vm.zap_all(&mut idle)?;
    /// assert_eq!(vm.stats().mapped_bytes(), 0);
    /// assert_ne!(vm.memory().root(), before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn zap_all(&self, idle: &mut Idle) -> Result<(), NoMemory> {
        let everything = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
        for space in &self.spaces {
            let fresh = self.fresh_root(idle)?;
            // Outlives the invalidation: its end pays if nothing else has paid.
            let _replaces = self.tlb.replaces_root();
            let range = Range::Gfns(space.id, everything);
            let mut change = Begun::begin(self, range, Reason::Unmap);
            if self.logs_by_bits() {
                // Marks first what was written. Where no memslot logs, this is short.
                change.edit(idle, &Scope::Whole, None);
            }
            let Some(fresh) = fresh.filled(change.ticket.hole()) else { return Err(NoMemory) };
            let walk = Walk::<F, H, Exclusive>::on_any_seat(self, space, idle);
            let old = space.radix.replace_root(self.tables(), fresh);
            drop(walk);
            change.owed.owe(everything);
            change.owed.unlink(old, F::ROOT_LEVEL);
            Nested::reach(&mut change, &range.part(&Scope::Whole), false);
            change.is_applied = true;
            change.settle(true);
        }
        self.collect(idle);
        Ok(())
    }

    /// Allocates an empty root. If there are too few pages for one, it gives them back.
    fn fresh_root(&self, idle: &mut Idle) -> Result<FreshRoot<'_>, NoMemory> {
        let mut spare = self.pool.scratch();
        self.top_up(idle, &mut spare, F::ROOT_PAGES)?;
        self.pool.fresh_root(self.tables(), &mut spare)
    }
}
