//! Walks of the frames that memslots map of a host range, part by part, with yields; and the host's pages behind them.

use crate::slots::behind::{Behind, Part};
use crate::sync::mode::Mode;
use crate::walk::Steps;
use crate::{Format, Gfn, Host, HostPage, Hva, Level, PAGE_SHIFT, Span, Walk};

/// Calls `visit` with steps along each range of frames that a part of `hvas` backs. `visit` returns where it ended. The
/// walk yields where it must, and continues from there.
pub(crate) fn walk_behind<F: Format, H: Host, M: Mode>(
    walk: &mut Walk<'_, F, H, M>,
    hvas: Span<Hva>,
    mut visit: impl FnMut(&mut Steps<'_, '_, F, H, M>, &Part) -> Gfn,
) {
    let mut left = Behind::new(hvas);
    while !left.is_nothing()
        && let Some(part) = walk.behind(&left)
    {
        let mut steps = walk.steps_up_to_a_yield(part.gfns, Level::K4);
        let goal = visit(&mut steps, &part);
        left = left.after(&part, goal);
        // Yield before the slots are looked up again: they may then map other pages at these frames.
        if walk.is_rest_due() {
            walk.yield_section();
        }
    }
}

/// The page that the host maps now behind some frames of a memslot.
#[derive(Clone, Copy)]
pub(super) struct PageBehind {
    gfns: Span<Gfn>,
    /// The host's page, with the frame behind the first of `gfns`.
    page: HostPage,
}

impl PageBehind {
    /// Restricts what the host told, that `hva` maps `page` now, to `part`, which does not begin before `hva`. The page
    /// ends where a page of its level ends; nothing is known of the frames after it.
    #[inline(never)]
    pub(super) fn part(part: &Part, hva: Hva, page: HostPage) -> Option<Self> {
        let inside = hva.0 >> PAGE_SHIFT & (page.level.pages() - 1);
        let before = (part.hva_of(part.gfns.start).0 >> PAGE_SHIFT) - (hva.0 >> PAGE_SHIFT);
        let left = (page.level.pages() - inside).checked_sub(before)?;
        let page = HostPage { pfn: page.pfn + before, ..page };
        Some(Self { gfns: Span::sized(part.gfns.start, left), page })
    }

    /// Returns the host's page behind `gfn`, with the frame of exactly that page.
    #[inline]
    pub(super) fn of(&self, gfn: Gfn) -> Option<HostPage> {
        let ahead = gfn.0.wrapping_sub(self.gfns.start.0);
        self.gfns.contains(gfn).then(|| HostPage { pfn: self.page.pfn + ahead, ..self.page })
    }

    /// Returns the host's page of the first of `gfns`, if this page is behind all of them.
    pub(super) fn of_all(&self, gfns: Span<Gfn>) -> Option<HostPage> {
        self.of(Gfn(gfns.end.0 - 1)).and(self.of(gfns.start))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::notify::{Event, Reason, SecondaryMmu};
    use crate::table::formats::Npt4;
    use crate::*;

    /// A host of small read-only pages, whose frame numbers are their addresses.
    struct Linear;

    impl Host for Linear {
        fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), writable: false, ..HostPage::PLAIN })
        }
    }

    /// A 2 MiB page in frame 512 replaces small pages.
    #[test]
    fn a_small_leaf_of_a_large_page_maps_its_own_frame() {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Linear).build().unwrap();
        let hvas = Span::sized(Hva(1 << 30), 2 << 20);
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, hvas.start))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(3).gpa(), access: Access::Read }).unwrap();
        vm.around(&mut idle, Event::new(hvas, Reason::ChangePte), &mut |idle, told| {
            let to = HostPage { pfn: Pfn(512), level: Level::M2, writable: false, ..HostPage::PLAIN };
            told.changed(idle, hvas, Some(to));
        })
        .unwrap();
        assert_eq!(vm.memory().translate(&mut idle, Gfn(3)).map(|mapping| mapping.leaf.pfn), Some(Pfn(515)));
    }
}
