//! Walking what memslots map of a host range: part by part, with rests; and what was told of the pages there.

use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, Span};
use crate::host::{Host, HostPage};
use crate::slots::behind::{Behind, Part};
use crate::sync::mode::Mode;
use crate::table::format::Format;
use crate::walk::{Steps, Walk};

/// Calls `visit` with steps along each range of frames that is backed by a part of `hvas`; it returns where it ended, and
/// goes on from there where the walk had to rest.
pub(super) fn along<F: Format, H: Host, M: Mode>(
    walk: &mut Walk<'_, F, H, M>,
    hvas: Span<Hva>,
    mut visit: impl FnMut(&mut Steps<'_, '_, F, H, M>, &Part) -> Gfn,
) {
    let mut left = Behind::new(hvas);
    let slots = &walk.space.memslots;
    while !left.is_nothing()
        && let Some(part) = slots.behind(&walk.vm.reads, walk.seat, &left)
    {
        let mut steps = walk.steps_up_to_a_rest(part.gfns, Level::K4);
        let goal = visit(&mut steps, &part);
        left = left.after(&part, goal);
        // Not before the slots are looked up again: frames that are other pages by then are not ours.
        if walk.is_rest_due() {
            walk.rest();
        }
    }
}

/// The page that the host maps now behind some frames of a memslot.
#[derive(Clone, Copy)]
pub(super) struct PageBehind {
    gfns: Span<Gfn>,
    /// With the frame of the first of them.
    page: HostPage,
}

impl PageBehind {
    /// The host says that `hvas` maps `page` now: what that says of `part`, which has some of `hvas`. The page ends where a
    /// page of its level ends; nothing is known of what comes after.
    pub(super) fn part(part: &Part, hvas: Span<Hva>, page: HostPage) -> Option<Self> {
        let inside = hvas.start.0 >> PAGE_SHIFT & (page.level.pages() - 1);
        let before = (part.hva_of(part.gfns.start).0 >> PAGE_SHIFT) - (hvas.start.0 >> PAGE_SHIFT);
        let left = (page.level.pages() - inside).checked_sub(before)?;
        let page = HostPage { pfn: page.pfn + before, ..page };
        Some(Self { gfns: Span::sized(part.gfns.start, left), page })
    }

    /// The host's page behind `gfn`, with the frame of that very page.
    #[inline]
    pub(super) fn of(&self, gfn: Gfn) -> Option<HostPage> {
        let ahead = if seeded!(ToldFirstFrame) { 0 } else { gfn.0.wrapping_sub(self.gfns.start.0) };
        self.gfns.contains(gfn).then(|| HostPage { pfn: self.page.pfn + ahead, ..self.page })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::notify::{Event, SecondaryMmu, Why};
    use crate::seeded::{self, Bug};
    use crate::table::{TableMemory, formats::Npt4};
    use crate::*;

    /// Small read-only pages, whose frames are their addresses.
    struct Linear;

    // SAFETY: the defaults keep the contract.
    unsafe impl TableMemory for Linear {}

    impl Host for Linear {
        fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), writable: false, ..HostPage::PLAIN })
        }
    }

    /// The frame that guest frame 3 maps when a page of 2 MiB, in frame 512, has taken the place of its small ones.
    fn third_frame() -> Option<Pfn> {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Linear).build().unwrap();
        let hvas = Span::sized(Hva(1 << 30), 2 << 20);
        vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, hvas.start))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        vcpu.fault(&mut idle, Fault { gpa: Gfn(3).gpa(), access: Access::Read }).unwrap();
        vm.around(&mut idle, Event::new(hvas, Why::ChangePte), &mut |idle, told| {
            let to = HostPage { pfn: Pfn(512), level: Level::M2, writable: false, ..HostPage::PLAIN };
            told.changed(idle, hvas, Some(to));
        })
        .unwrap();
        Some(vm.translate(&mut idle, Gfn(3))?.leaf.pfn)
    }

    #[test]
    fn a_small_leaf_of_a_large_page_maps_its_own_frame() {
        assert_eq!(third_frame(), Some(Pfn(515)));
    }

    #[test]
    fn mistake_every_small_leaf_maps_the_first_frame() {
        assert_eq!(seeded::with(Bug::ToldFirstFrame, third_frame), Some(Pfn(512)));
        seeded::found(Bug::ToldFirstFrame, 1);
    }
}
