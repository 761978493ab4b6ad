//! A fault on a withdrawn leaf: mapped, but withdrawn from the hardware to detect this access.
//!
//! | saved permissions | access | action |
//! |---|---|---|
//! | allow it | any | make the leaf present again by one CAS |
//! | host allowed writes, W is taken | write | the same, with W, unless the leaf is large and must be split first: a withdrawn write as in [`super::present`] |
//! | do not allow it | any | make the leaf present again, and continue with [`super::present`] |
//!
//! The fault takes no stamp and asks no host. Unlike an upgrade, it uses no right but the one in the word. An
//! invalidation that takes away the page or a permission edits the word itself, as it would a present leaf, so the CAS
//! restores the current state. If the page has gone meanwhile and returned with the same frame and permissions, the CAS
//! restores those. No flush is needed: translations that a TLB still holds are as valid as before.

use super::{By, Done, Fault, Outcome};
use crate::sync::{Count, Shared};
use crate::table::radix::At;
use crate::{Access, Format, Host, Level, NoMemory, Vcpu, Walk};

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Handles the fault by the table above.
    #[cold]
    pub(super) fn withdrawn<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        at: At<'w>,
        fault: Fault,
        by: By,
    ) -> Result<Outcome, NoMemory> {
        let leaf = at.word.withdrawn_leaf();
        if by == By::Prefault && leaf.perms.allows(fault.access) {
            // The page is mapped, and no vCPU accesses it.
            walk.seat.tally.add(Count::Spurious);
            return Ok(Outcome::Done(Done::Spurious));
        }
        let store = fault.access == Access::Write;
        // A large page must be split before it becomes writable in a slot that logs.
        let whole = at.level > Level::K4 && store && self.logs(walk, at, fault.gpa.gfn());
        let gives_write = store && leaf.host_writable && !whole;
        let word = if gives_write { F::set_writable(at.word, true) } else { at.word };
        let mut given = F::restore(word, at.level);
        let allowed = gives_write || leaf.perms.allows(fault.access);
        if allowed {
            given.0 |= F::touch(fault.access);
        }
        let restore = || at.entry.cas(at.word, given).is_ok();
        if store && allowed {
            return Ok(self.regain(walk, at, fault, restore));
        }
        if !restore() {
            return Ok(Outcome::Retry);
        }
        if !allowed {
            return self.present(walk, At { word: given, ..at }, fault);
        }
        // W restored by a load needs no log entry. It was logged when it was first given, or a harvest that begins to
        // log takes it again: that walk meets this leaf, withdrawn or present.
        walk.seat.tally.add(Count::Permission);
        Ok(Outcome::Done(Done::Fixed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::table::formats::Ept4NoAd;
    use crate::why::Reason;
    use crate::*;

    struct Identity;

    impl Host for Identity {
        fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
            Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
        }

        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            Err(HostError::Fault)
        }
    }

    /// Lets a load find a withdrawn leaf, then lets another thread do `between`, then lets the load restore the leaf.
    /// Returns the outcome, and the mapped leaf.
    fn load_around(
        between: impl FnOnce(&Vm<Ept4NoAd, Identity>, &mut Idle) + Send,
    ) -> (Outcome, Option<Leaf>) {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Ept4NoAd, _>::builder(Identity).build().unwrap();
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        vcpu.prefault(&mut idle, Span::new(Gfn(5), Gfn(6)), Prefault::OLD).unwrap();
        let fault = Fault { gpa: Gfn(5).gpa(), access: Access::Read };
        let walk = vm.memory().shared(&mut idle);
        let at = walk.descend(Gfn(5));
        std::thread::scope(|scope| scope.spawn(|| between(&vm, &mut Idle::take().unwrap())).join().unwrap());
        let outcome = vcpu.withdrawn(&walk, at, fault, By::GUEST).unwrap();
        drop(walk);
        (outcome, vm.memory().translate(&mut idle, Gfn(5)).map(|found| found.leaf))
    }

    fn invalidate(vm: &Vm<Ept4NoAd, Identity>, idle: &mut Idle, why: Reason) {
        let _change = vm.memory().invalidate(Span::new(Gfn(5), Gfn(6)), why).apply(idle).settle();
    }

    #[test]
    fn a_withdrawn_leaf_that_is_zapped_meanwhile_is_not_restored() {
        let (outcome, leaf) = load_around(|vm, idle| invalidate(vm, idle, Reason::Migrate));
        assert_eq!((outcome, leaf), (Outcome::Retry, None));
    }

    #[test]
    fn a_permission_that_is_withdrawn_meanwhile_is_not_restored() {
        let (outcome, leaf) = load_around(|vm, idle| invalidate(vm, idle, Reason::Protect));
        let leaf = leaf.unwrap();
        assert_eq!((outcome, leaf.accessed, leaf.perms), (Outcome::Retry, false, Perms::RX));
    }

    #[test]
    fn an_unchanged_withdrawn_leaf_is_restored() {
        let (outcome, leaf) = load_around(|_, _| {});
        let leaf = leaf.unwrap();
        assert_eq!((outcome, leaf.accessed, leaf.perms), (Outcome::Done(Done::Fixed), true, Perms::RWX));
    }
}
