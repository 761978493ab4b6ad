//! L1's flushes of its vCPUs' translations through T.
//!
//! | L1's instruction | scope | call |
//! |---|---|---|
//! | `INVEPT` single, all | this vCPU; tables with that EP4TA, all | [`Vcpu::l1_flushes`] |
//! | `VMRUN` with `TLB_CONTROL`, or with another ASID than its last for that nCR3 | this vCPU; the tables that it ran under the ASID | [`Vcpu::l1_flushes`] |
//! | `HFENCE.GVMA` | this hart; tables with that VMID, all | [`Vcpu::l1_flushes`] |
//! | `TLBI IPAS2E1IS`, `VMALLS12E1IS`, `ALLE1IS` | all vCPUs; addresses, tables with that VMID, all | [`Vm::l1_broadcasts`](crate::Vm::l1_broadcasts) |
//! | `INVLPG`, `INVPCID`, writes to control registers, of a guest without two stages | this vCPU | [`Vcpu::guest_flushes`] |
//! | `INVVPID`, `INVLPGA`; writes to control registers; L2's entry and exit | no table | none |
//!
//! A flush for one vCPU is recorded, and carried out when that vCPU next enters L2: many flushes cost one. It zaps the
//! leaves that T no longer confirms (`revalidate`). It is skipped if a flush of the same shadow that **began** after
//! the request has ended: that one has read everything that L1 had written. The vCPU's own TLB is flushed if anything
//! was dropped since its last flush. Other vCPUs' TLBs keep their copies, as L1's hardware would. The L1 frames keep
//! their hints, so the host's next invalidation of such a page flushes it. No vCPU is kicked.
//!
//! When a flush for all vCPUs returns, each vCPU has carried it out, and walks of L1's table that began before have
//! ended. If nothing was dropped since the last such flush, the vCPUs have nothing to carry out.

use super::format::L1Format;
use super::revalidate::Revalidation;
use crate::sync::idle::NoIdle;
use crate::tlb::debt::Owed;
use crate::{Cause, FlushDebt, Format, Gfn, GuestSpace, Host, Idle, Reason, SpaceId, Span, Vcpu, Vm};
use alloc::vec::Vec;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Flushes this vCPU's translations through L1's tables of this format for which `covers` returns true. Carried out
    /// when the vCPU next [runs L2](Self::nested). Never sleeps; [`nested`](Self::nested) has an example.
    pub fn l1_flushes<T: L1Format>(&mut self, covers: impl Fn(&T) -> bool) {
        if let Some(state) = &mut self.nested {
            state.owes(covers, self.vm.active.now());
        }
    }

    /// Flushes an address of each table now. `block` returns its frame, and the frames of the largest page that may
    /// contain it. The block is gone over if any page of the shadow was mapped by smaller ones; otherwise the address
    /// alone, with all of its leaf. Acts as a [flush for all vCPUs](Vm::l1_broadcasts), except for TLBs: this vCPU
    /// flushes, if anything was dropped, before it runs L2 again. Other vCPUs' copies stay, as on L1's hardware.
    pub(super) fn l1_flushes_frames<T: L1Format>(&mut self, block: impl Fn(&T) -> Option<(Gfn, Span<Gfn>)>) {
        let (vm, space, seat, _no_idle) = (self.vm, self.space, self.awake(), NoIdle::new());
        let (Some(shadows), Some(state)) = (space.nested.get(), &mut self.nested) else { return };
        for (index, table) in state.tables::<T>() {
            let (Some((g2, block)), Some((shadow, inside))) = (block(&table), shadows.visit(index)) else {
                continue;
            };
            shadow.line.announce();
            let g2s = if shadow.line.splinters() { block } else { Span::sized(g2, 1) };
            Revalidation { slots: GuestSpace { vm, space }, shadows, shadow, table }.run(seat, &inside, g2s);
        }
        if shadows.drops.since(state.forgot) {
            state.forgot = vm.active.now();
            self.loaded.forget_l2();
        }
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Flushes, on all of L1's vCPUs in address space `space`, frames `g2s` of L2, in tables of this format for which
    /// `covers` returns true. On return no vCPU uses what T said before: waits for vCPUs that are in L2 or L1.
    ///
    /// ```
    /// # use slat::{*, nested::*};
    /// # fn tlbi<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle, vttbr: u64, vtcr: u64, ipa: Gpa) {
    /// // TLBI IPAS2E1IS, without a level hint: the largest block around the address.
    /// let current = Stage2Table::new(vttbr, vtcr, Stage2Features::default());
    /// let block = Span::sized(ipa.gfn().base(Level::G1), Level::G1.pages());
    /// vm.l1_broadcasts(idle, SpaceId(0), block, |table: &Stage2Table| Some(*table) == current);
    /// # }
    /// ```
    pub fn l1_broadcasts<T: L1Format>(
        &self,
        idle: &mut Idle,
        space: SpaceId,
        g2s: Span<Gfn>,
        covers: impl Fn(&T) -> bool,
    ) {
        let Some((space, shadows)) =
            self.space(space).and_then(|space| Some((space.space, space.space.nested.get()?)))
        else {
            return;
        };
        let mut found = Vec::new();
        shadows.for_tables(covers, |hold, table| found.push((hold.index, table)));
        let seat = self.borrow_seat(idle);
        for (index, table) in found {
            let Some((shadow, inside)) = shadows.visit(index) else { continue };
            let slots = GuestSpace { vm: self, space };
            shadow.line.announce();
            Revalidation { slots, shadows, shadow, table }.run(&seat, &inside, g2s);
        }
        drop(seat);
        if let Some(dropped) = shadows.drops.unsettled() {
            let mut owed = Owed::default();
            owed.owe_nested();
            FlushDebt::new(self, owed, Cause::Change(Reason::Clear)).settle();
            shadows.drops.settled(dropped);
        }
        // L1 may now reuse its table's pages, as after its barrier: no earlier fault still uses them.
        self.reads.synchronize();
    }
}
