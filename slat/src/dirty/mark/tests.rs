//! Marks that are made part by part.

use super::{CHUNK, WORD};
use crate::table::formats::Npt4;
use crate::*;

struct Nowhere;

impl Host for Nowhere {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// Most pages that one section marks.
const PART: u64 = CHUNK as u64 * WORD;
const HVA: Hva = Hva(1 << 40);

/// A VM whose slots 0, at frame 7, and 2 log 3 parts and a few pages; slot 1 between them does not log. Slot 3 logs and
/// shares host addresses with the end of slot 0.
fn logging(idle: &mut Idle) -> Vm<Npt4, Nowhere> {
    let vm = Vm::<Npt4, _>::builder(Nowhere).build().unwrap();
    let slot = |id, gfn, pages, hva| Slot::new(SlotId(id), Gfn(gfn), pages, hva);
    let (long, end) = (3 * PART + 5, 7 + 3 * PART + 5);
    vm.memory()
        .commit(idle, |tx| {
            tx.create(slot(0, 7, long, HVA).log_dirty())?;
            tx.create(slot(1, end, 100, HVA + (long << PAGE_SHIFT)))?;
            tx.create(slot(2, end + 100, long, HVA + ((long + 100) << PAGE_SHIFT)).log_dirty())?;
            tx.create(slot(3, 1 << 30, 200, HVA + ((long - 90) << PAGE_SHIFT)).log_dirty())
        })
        .unwrap();
    vm
}

fn frames(gfns: Span<Gfn>) -> impl Iterator<Item = Gfn> {
    (gfns.start.0..gfns.end.0).map(Gfn)
}

/// Harvests all dirty pages.
fn harvested(vm: &Vm<Npt4, Nowhere>, idle: &mut Idle) -> Vec<Gfn> {
    let harvest = vm.memory().harvest_all(idle).unwrap();
    let mut pages: Vec<_> = harvest.iter().map(|page| page.gfn).collect();
    harvest.commit();
    pages.sort_unstable();
    pages
}

#[test]
fn pages_are_marked_to_the_last_though_they_are_marked_part_by_part() {
    let mut idle = Idle::take().unwrap();
    let vm = logging(&mut idle);
    let slots: Vec<_> = vm.memory().snapshot(&mut idle).iter().filter(|slot| slot.log_dirty).collect();
    let edges = [0, 7, 8, 70, PART - 1, PART + 7, 2 * PART + 3, 3 * PART + 11, 3 * PART + 12, 3 * PART + 113];
    let edges = edges.into_iter().chain([4 * PART, 6 * PART + 117, 7 * PART, 1 << 30, (1 << 30) + 200]);
    let edges: Vec<u64> = edges.collect();
    let spans = edges.iter().flat_map(|&start| edges.iter().map(move |&end| (start, end)));
    for (start, end) in spans.filter(|(start, end)| start <= end) {
        let marked = Span::new(Gfn(start), Gfn(end));
        vm.memory().mark_dirty(marked);
        let expected = slots.iter().flat_map(|slot| frames(slot.gfns.clamp(&marked)));
        assert!(harvested(&vm, &mut idle).into_iter().eq(expected), "{marked:?}");

        let marked = Span::new(HVA + (start << PAGE_SHIFT), HVA + (end << PAGE_SHIFT));
        vm.mark_dirty(marked);
        let behind = |slot: &Slot, gfn: Gfn| marked.contains(slot.hva_of(gfn));
        let expected = slots.iter().flat_map(|slot| frames(slot.gfns).filter(move |&gfn| behind(slot, gfn)));
        assert!(harvested(&vm, &mut idle).into_iter().eq(expected), "{marked:?}");
    }
}

/// Returns how many sections it takes to mark 6 parts: by frames, by host addresses, by a given-back harvest.
fn sections() -> [u64; 3] {
    let mut idle = Idle::take().unwrap();
    let vm = logging(&mut idle);
    let count = |work: &mut dyn FnMut()| {
        let before = vm.reads.total_sections();
        work();
        vm.reads.total_sections() - before
    };
    let by_gfn = count(&mut || vm.memory().mark_dirty(Span::new(Gfn(0), Gfn(8 * PART))));
    let hvas = Span::sized(HVA, (8 * PART) << PAGE_SHIFT);
    let by_hva = count(&mut || vm.mark_dirty(hvas));
    let mut harvest = Some(vm.memory().harvest_all(&mut idle).unwrap());
    let given_back = count(&mut || drop(harvest.take()));
    [by_gfn, by_hva, given_back]
}

#[test]
fn no_section_marks_more_than_a_part() {
    let sections = sections();
    assert!(sections.iter().all(|&sections| sections >= 6), "{sections:?}");
}
