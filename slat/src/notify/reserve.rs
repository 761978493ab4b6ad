//! Spare table pages of an invalidation, to split large leaves of which a part changes.
//!
//! An invalidation must not ask for memory inside a walk, nor while its host holds the lock of a page. It asks earlier:
//!
//! | invalidation | asks | without a page |
//! |---|---|---|
//! | edits its range when it begins | after a walk that met such a leaf, then walks again | zaps the leaf |
//! | is told page by page | when it begins and at each flush; in between it takes free pages | zaps the leaf |
//! | may not block | never | zaps the leaf |
//!
//! A VM that never mapped a large page asks for none.

use crate::table::{Cache, Node};
use crate::{Format, Host, Vm};

/// The spare pages. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    pub(crate) pages: Cache,
    /// Whether a walk met a leaf to split, and found no page.
    pub(crate) is_short: bool,
}

impl Reserve {
    /// Takes a page. If there is none, the reserve is short next.
    pub(super) fn take(&mut self) -> Option<Node> {
        let page = self.pages.take();
        self.is_short |= page.is_none();
        page
    }

    /// Fills it up to `wanted` pages. Returns whether it has pages. If it `asks` the host for memory, it may sleep; if
    /// not, it takes pages that are free already. Without memory, or above the budget, it stays as it is.
    #[cold]
    pub(super) fn fill<F: Format, H: Host>(&mut self, vm: &Vm<F, H>, wanted: usize, asks: bool) -> bool {
        if !asks {
            vm.pool.top_up_free(&mut self.pages, wanted);
        } else if vm.maps_large_pages() {
            _ = vm.pool.top_up(vm.tables(), &mut self.pages, wanted, || vm.dead_tables().reuse());
        }
        self.pages.len() > 0
    }

    /// Gives the unused pages back.
    pub(super) fn drain<F: Format, H: Host>(&mut self, vm: &Vm<F, H>) {
        let unused = self.pages.drain();
        if unused.len() > 0 {
            vm.pool.give_back(unused);
        }
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use crate::notify::{Event, SecondaryMmu};
    use crate::table::formats::Npt4;
    use crate::*;

    const BASE: Hva = Hva(1 << 30);

    /// A host of large pages, whose frame numbers are their addresses.
    struct Large;

    impl Host for Large {
        fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: Level::M2, ..HostPage::PLAIN })
        }
    }

    /// A VM with two large pages, mapped by stores.
    fn vm(idle: &mut Idle) -> Vm<Npt4, Large> {
        let vm = Vm::<Npt4, _>::builder(Large).build().unwrap();
        vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1024, BASE))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in [5, 600] {
            let fault = Fault { gpa: Gfn(gfn).gpa(), access: Access::Write };
            assert_eq!(vcpu.fault(idle, fault), Ok(Next::Resume(Resume::Mapped(Level::M2))));
        }
        drop(vcpu);
        vm
    }

    /// The host addresses behind frames 511 and 512.
    fn both_ends() -> Span<Hva> {
        Span::sized(BASE + 511 * PAGE_SIZE, 2 * PAGE_SIZE)
    }

    fn clear(vm: &Vm<Npt4, Large>, idle: &mut Idle, hvas: Span<Hva>) -> u64 {
        let change = vm.invalidate(hvas, Reason::Clear);
        change.apply(idle).pages()
    }

    #[test]
    fn both_large_pages_that_a_range_cuts_are_split() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        assert_eq!(clear(&vm, &mut idle, both_ends()), 2);
        assert_eq!((vm.stats().splits, vm.stats().leaves), ([2, 0], [1022, 0, 0]));
        assert_eq!([511, 512].map(|gfn| vm.memory().translate(&mut idle, Gfn(gfn))), [None; 2]);
    }

    #[test]
    fn pages_told_one_after_the_other_take_a_table_page_each() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        let all = Span::sized(BASE, 4 << 20);
        let mut tell = |page: u64| {
            vm.around(&mut idle, Event::new(all, Reason::Numa), &mut |idle, told| {
                told.changed(idle, Span::sized(BASE + page * PAGE_SIZE, PAGE_SIZE), None);
            })
            .unwrap();
            vm.stats().leaves
        };
        assert_eq!([7, 8, 1000].map(&mut tell), [[511, 1, 0], [510, 1, 0], [510 + 511, 0, 0]]);
    }

    #[test]
    fn a_large_page_goes_whole_where_no_more_table_pages_may_be_used() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        vm.pool.set_budget(vm.pool.in_use() * PAGE_SIZE);
        assert_eq!(clear(&vm, &mut idle, both_ends()), 1024);
        assert_eq!((vm.stats().splits, vm.stats().leaves), ([0, 0], [0, 0, 0]));
    }

    #[test]
    fn pages_that_were_not_used_go_back() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        let before = vm.pool.in_use();
        for _ in 0..100 {
            // The change tells no page, so the invalidation uses none of its spare pages.
            vm.around(&mut idle, Event::new(both_ends(), Reason::Reclaim), &mut |_, _| {}).unwrap();
        }
        assert_eq!(vm.pool.in_use(), before);
    }

    #[test]
    fn a_written_page_stays_dirty_when_its_neighbour_is_zapped() {
        let mut idle = Idle::take().unwrap();
        let vm = vm(&mut idle);
        clear(&vm, &mut idle, both_ends());
        assert!(vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.dirty);
    }
}
