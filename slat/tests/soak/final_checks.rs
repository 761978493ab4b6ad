//! Final checks: the tables hold what the host holds, and every leaf and every table page is accounted for.

use crate::host::{REGION, hva};
use crate::slot_places::{ALIASES, SIZE, SLOTS, alias, frames_of, places_of, slot_at};
use crate::vm_under_test::World;
use slat::*;
use std::collections::BTreeSet;

const SPACES: [SpaceId; 2] = [SpaceId(0), ALIASES];

/// Called when all threads and vCPUs have ended.
pub fn check<F: Format>(world: &World<F>, idle: &mut Idle) {
    let vm = &world.vm;
    vm.set_table_budget(idle, u64::MAX);
    let mut leaves = [0; 3];
    for space in SPACES {
        each_leaf(vm, idle, space, |mapping| {
            leaves[usize::from(mapping.level.number()) - 1] += 1;
            holds_what_the_host_holds(world, space, &mapping);
        });
    }
    let mut seen = 0;
    vm.memory().lockless(idle).for_each(Span::new(Gfn(0), Gfn(u64::MAX)), |mapping| {
        assert!(frames_of(SpaceId(0)).covers(&mapping.gfns), "no slot was ever there: {mapping:?}");
        seen += 1;
    });
    vm.collect(idle);
    let stats = vm.stats();
    assert_eq!(stats.leaves, leaves, "what is counted is what a walk finds: {stats:?}");
    assert!(seen <= leaves.iter().sum::<u64>(), "{seen} in one space, {leaves:?} in both");
    pages_add_up(vm, idle);

    take_slots_away(world, idle);
    let stats = vm.stats();
    assert_eq!((stats.leaves, stats.tables_waiting), ([0; 3], 0), "{stats:?}");
    let pages = pages_add_up(vm, idle);
    vm.zap_all(idle).unwrap();
    if world.setting.nested || world.setting.chaos {
        // Shadows keep their tables, and so do the places of extra slots.
        return;
    }
    let upper = tables_that_reach_out::<F>();
    assert!(pages.reachable <= upper, "{pages:?}: {upper} reach out of a slot");
    assert_eq!(pages_add_up(vm, idle).reachable, SPACES.len() as u64, "roots");
}

fn each_leaf<F: Format>(
    vm: &Vm<F, crate::host::Primary>,
    idle: &mut Idle,
    space: SpaceId,
    mut visit: impl FnMut(Mapping),
) {
    let mut spans: Vec<_> = if space == ALIASES {
        vec![alias().gfns]
    } else {
        (0..SLOTS).flat_map(places_of).map(|gfn| Span::sized(gfn, SIZE)).collect()
    };
    spans.sort_by_key(|span| span.start);
    let mut next = Gfn(0);
    for span in spans {
        next = next.max(span.start);
        while next < span.end {
            let found = vm.space(space).unwrap().translate(idle, next);
            next = found.map_or(next + 1, |mapping| mapping.gfns.end);
            found.into_iter().for_each(&mut visit);
        }
    }
}

fn holds_what_the_host_holds<F: Format>(world: &World<F>, space: SpaceId, mapping: &Mapping) {
    for index in 0..mapping.gfns.len() {
        let gfn = mapping.gfns.start + index;
        let behind = world.places.behind(space, gfn).next();
        let page = behind.and_then(|hva| world.vm.host().now(hva));
        let Some(page) = page else { panic!("{gfn:?} in {space:?}: the host has nothing, {mapping:?}") };
        assert_eq!(mapping.leaf.pfn + index, page.pfn, "{gfn:?} in {space:?}: {mapping:?}");
        let may_write = mapping.leaf.host_writable || mapping.leaf.perms.allows(Access::Write);
        assert!(page.writable || !may_write, "{gfn:?} in {space:?}: {mapping:?}, {page:?}");
    }
}

fn pages_add_up<F: Format>(vm: &Vm<F, crate::host::Primary>, idle: &mut Idle) -> TablePages {
    let pages = vm.table_pages(idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated, "{pages:?}");
    assert_eq!(pages.waiting, 0, "collected: {pages:?}");
    pages
}

/// Each slot first moves over all of its places: that frees tables which faults in flight linked there after it had
/// moved on.
fn take_slots_away<F: Format>(world: &World<F>, idle: &mut Idle) {
    let vm = &world.vm;
    for slot in 0..SLOTS {
        let id = SlotId(slot as u32);
        let [first, places @ ..] = places_of(slot);
        if vm.memory().get(idle, id).is_none() {
            vm.memory().commit(idle, |tx| tx.create(slot_at(slot, first))).unwrap();
        }
        for place in places.into_iter().chain([first]) {
            vm.memory().commit(idle, |tx| tx.move_to(id, place)).unwrap();
        }
        vm.memory().commit(idle, |tx| tx.delete(id)).unwrap();
    }
    vm.space(ALIASES).unwrap().commit(idle, |tx| tx.delete(alias().id)).unwrap();
    vm.collect(idle);
}

/// Returns the maximum number of tables that serve frames of a place, and frames beside it.
fn tables_that_reach_out<F: Format>() -> u64 {
    let places = (0..SLOTS).flat_map(|slot| places_of(slot).map(|gfn| (0, Span::sized(gfn, SIZE))));
    let mut tables = BTreeSet::new();
    for (space, gfns) in places.chain([(1, alias().gfns)]) {
        for level in (1..=F::LEVELS).filter_map(Level::new) {
            for end in [gfns.start, Gfn(gfns.end.0 - 1)] {
                let served = Span::sized(end.base(level.up()), level.up().pages());
                if !gfns.covers(&served) {
                    tables.insert((space, level, served.start));
                }
            }
        }
    }
    debug_assert!(hva(0).0.is_multiple_of(REGION << PAGE_SHIFT));
    tables.len() as u64
}
