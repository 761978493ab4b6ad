//! The leaf that a fault may map, decided from memslot, host page, access and level. Faults that install, upgrade or
//! take the quick path use it, and so does recovery.

use super::pursuit::Answer;
use crate::space::Space;
use crate::{
    Access, Format, Gfn, Host, HostPage, Hva, Leaf, Level, PAGE_SHIFT, Perms, Pfn, Slot, Span, Vcpu, Vm,
};

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// The answer, about as large a page as policy, format and slot allow. The next stamp is for a page of this size.
    #[inline(always)]
    pub(super) fn allowed(&mut self, answer: Answer) -> Answer {
        let (page, pursuit) = (answer.page(), answer.pursuit());
        if !self.space.watched.is_empty() || self.memo.is_narrow() {
            self.memo.look_around(self.vm, self.space, pursuit.gfn);
        }
        // A large page without execute permission cannot serve a fetch. If the host forbids execution, its small pages
        // are mapped.
        let small = self.vm.policy.nx_huge_pages && (pursuit.access == Access::Fetch || !page.execute);
        let level = if page.level == Level::K4 || small { Level::K4 } else { self.large_page_for(&answer) };
        self.memo.reach = level.max(Level::M2);
        answer.at_most(level)
    }

    #[cold]
    fn large_page_for(&self, answer: &Answer) -> Level {
        let (mut level, pursuit) = (answer.page().level, answer.pursuit());
        while level > Level::K4 && self.vm.large_page(self.space, &pursuit.slot, pursuit.gfn, level).is_none()
        {
            level = level.down();
        }
        if level > Level::K4 {
            self.vm.will_map_a_large_page();
        }
        level
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// The guest frames and host addresses that a large page of `level` around `gfn` would map. `None` if slot, format
    /// or policy forbids it, or if any of its frames is watched.
    pub(crate) fn large_page(
        &self,
        space: &Space<F>,
        slot: &Slot,
        gfn: Gfn,
        level: Level,
    ) -> Option<(Span<Gfn>, Span<Hva>)> {
        let gfns = Span::sized(gfn.base(level), level.pages());
        let congruent = (slot.hva.0 >> PAGE_SHIFT ^ slot.gfns.start.0) & (level.pages() - 1) == 0;
        let allowed = level <= self.policy.max_page.min(F::MAX_LEAF) && !slot.log_dirty;
        (allowed && congruent && slot.gfns.covers(&gfns) && !space.watched.any(gfns))
            .then(|| (gfns, Span::sized(slot.hva_of(gfns.start), level.bytes())))
    }

    /// The leaf for `page`, already restricted, after `access` to it. `page.pfn` may be any frame of the page.
    #[inline(always)]
    pub(crate) fn leaf(&self, page: HostPage, access: Access) -> Leaf {
        let withheld = page.level > Level::K4 && self.policy.nx_huge_pages;
        Leaf {
            pfn: Pfn(page.pfn.0 & !(page.level.pages() - 1)),
            perms: Perms::of(true, page.writable, page.execute && !withheld),
            memory: page.memory,
            host_writable: page.writable,
            accessed: true,
            dirty: access == Access::Write,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod frame_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::sync::prim::{AtomicBool, Relaxed};
    use crate::table::formats::Ept4;
    use crate::*;

    /// Read-only write-back memory, unless `writable` is set, or `device`, which makes it a writable device's memory.
    #[derive(Default)]
    struct Changing {
        writable: AtomicBool,
        device: AtomicBool,
    }

    impl Host for Changing {
        fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
            let device = self.device.load(Relaxed);
            let writable = device || self.writable.load(Relaxed);
            let memory = if device { MemoryType::Device } else { MemoryType::WriteBack };
            Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), writable, memory, ..HostPage::PLAIN })
        }

        fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
            self.lookup(hva, access).ok_or(HostError::Fault)
        }
    }

    fn vm(memory: MemoryType) -> (Idle, Vm<Ept4, Changing>) {
        let (mut idle, vm) =
            (Idle::take().unwrap(), Vm::<Ept4, _>::builder(Changing::default()).build().unwrap());
        let slot = Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)).memory(memory);
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        (idle, vm)
    }

    /// Two pages of one table, in a write-combining slot.
    #[test]
    fn the_quick_path_maps_only_write_back_memory() {
        let (mut idle, vm) = vm(MemoryType::WriteCombining);
        vm.host().writable.store(true, Relaxed);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in [Gfn(1), Gfn(2)] {
            let _ = vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access: Access::Write }).unwrap();
            assert_eq!(
                vm.memory().translate(&mut idle, gfn).unwrap().leaf.memory,
                MemoryType::WriteCombining
            );
        }
    }

    /// A page that becomes both writable and a device's is unmapped before it is mapped anew.
    #[test]
    #[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
    fn a_change_of_type_needs_a_flush() {
        let (mut idle, vm) = vm(MemoryType::WriteBack);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Read }).unwrap();
        vm.host().device.store(true, Relaxed);
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
        assert_eq!(vm.memory().translate(&mut idle, Gfn(0)).unwrap().leaf.memory, MemoryType::Device);
        assert_eq!(vm.stats().permission_faults, 0);
    }
}
