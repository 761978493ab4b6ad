//! Rows of the table, first part: operations that give the guest something, or change how it is mapped. They owe no
//! flush, except the recovery of a large page from small ones.

use super::controlled_host::{ALL, GIB, ONE, World};
use super::operation::{Owes, Row};
use super::record::Between;
use crate::*;
use std::vec::Vec;

const M2: Span<Gfn> = Span::new(Gfn(0), Gfn(512));

pub(super) fn rows<F: Format>() -> Vec<Row<F>> {
    let mut rows = maps();
    rows.extend(permissions());
    rows.extend(sizes());
    if F::MAX_LEAF >= Level::G1 {
        rows.extend(gigabytes());
    }
    rows
}

fn store_at<F: Format>(gfn: u64) -> impl Fn(&World<F>, &mut Idle) {
    move |world, idle| {
        let _ = world.fault(idle, Gfn(gfn), Access::Write);
    }
}

fn maps<F: Format>() -> Vec<Row<F>> {
    let large = |world: &World<F>, idle: &mut Idle| {
        world.host_maps(Level::M2);
        assert_eq!(world.fault(idle, Gfn(65), Access::Read), Next::Resume(Resume::Mapped(Level::M2)));
    };
    vec![
        Row::new("map 4K where tables are missing", store_at(65)),
        Row::new("map 4K", store_at(65)).after(store_at(64)),
        Row::new("map 4K under what an invalidation emptied", store_at(65))
            .after(|world, idle| world.invalidate(idle, ALL, Reason::Unmap)),
        Row::new("map 4K under a new root", store_at(65)).after(|world, idle| {
            world.populate(idle);
            world.vm.zap_all(idle).unwrap();
        }),
        Row::new("map 4K, of a host that has to be asked", store_at(65))
            .after(|world, _| world.vm.host().answers.store(false, crate::sync::prim::Relaxed)),
        Row::new("map 2M", large).in_every_page(),
        Row::new("remember that nothing is there", store_at(4096)),
        Row::new("pre-fault", |world: &World<F>, idle| {
            world
                .vm
                .vcpu(VcpuId(0))
                .unwrap()
                .prefault(idle, Span::new(Gfn(500), Gfn(520)), Prefault::OLD)
                .unwrap();
        }),
        Row::new("create a slot", |world: &World<F>, idle| {
            let slot = Slot::new(SlotId(5), Gfn(2048), 1024, super::controlled_host::HVA);
            world.vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
        }),
    ]
}

fn permissions<F: Format>() -> Vec<Row<F>> {
    let read_only = |world: &World<F>, idle: &mut Idle| {
        world.host_lets_write(false);
        let _ = world.fault(idle, Gfn(65), Access::Read);
        world.host_lets_write(true);
    };
    let aged = |world: &World<F>, idle: &mut Idle| {
        world.populate(idle);
        world.vm.memory().lockless(idle).age(ALL, |_| {});
    };
    vec![
        Row::new("give W back", |world: &World<F>, idle| {
            assert_eq!(world.fault(idle, Gfn(65), Access::Write), Next::Resume(Resume::Fixed));
        })
        .after(|world, idle| {
            world.populate(idle);
            world.vm.memory().write_protect(idle, ONE).settle();
        }),
        Row::new("give a withdrawn leaf back to a load", |world: &World<F>, idle| {
            let done = world.fault(idle, Gfn(65), Access::Read);
            assert_eq!(
                done,
                if F::HARDWARE_AD { Next::Resume(Resume::Spurious) } else { Next::Resume(Resume::Fixed) }
            );
        })
        .after(aged),
        Row::new("give a withdrawn leaf back to a store", store_at(65)).after(aged),
        Row::new("upgrade", |world: &World<F>, idle| {
            assert_eq!(world.fault(idle, Gfn(65), Access::Write), Next::Resume(Resume::Fixed));
        })
        .after(read_only)
        .between(Between::Waiting),
        Row::new("upgrade by the answer of a host that has to be asked", |world: &World<F>, idle| {
            assert_eq!(world.fault(idle, Gfn(65), Access::Write), Next::Resume(Resume::Fixed));
        })
        .after(move |world, idle| {
            read_only(world, idle);
            world.vm.host().answers.store(false, crate::sync::prim::Relaxed);
        })
        .between(Between::Waiting),
        Row::new("make way for a page that may not be executed", |world: &World<F>, idle| {
            assert_eq!(world.fault(idle, Gfn(65), Access::Write), Next::Resume(Resume::Mapped(Level::K4)));
        })
        .after(move |world, idle| {
            read_only(world, idle);
            world.host_forbids_fetches(Gfn(65));
        })
        .between(Between::Hole)
        .owes(Owes::Flush(ONE)),
    ]
}

fn sizes<F: Format>() -> Vec<Row<F>> {
    vec![
        Row::new("split 2M", |world: &World<F>, idle| {
            assert_eq!(world.vm.memory().split(idle, ALL, Level::K4), Ok(2));
        })
        .after(World::populate_large)
        .in_every_page(),
        Row::new("split a clean 2M", |world: &World<F>, idle| {
            assert_eq!(world.vm.memory().split(idle, M2, Level::K4), Ok(1));
        })
        .after(|world, idle| {
            world.host_maps(Level::M2);
            let _ = world.fault(idle, Gfn(65), Access::Read);
        }),
        Row::new("split a withdrawn 2M", |world: &World<F>, idle| {
            assert_eq!(world.vm.memory().split(idle, ALL, Level::K4), Ok(2));
        })
        .after(|world, idle| {
            world.populate_large(idle);
            world.vm.memory().lockless(idle).age(ALL, |_| {});
        })
        .in_every_page(),
        Row::new("split by a fetch", |world: &World<F>, idle| {
            assert_eq!(world.fault(idle, Gfn(65), Access::Fetch), Next::Resume(Resume::Fixed));
        })
        .built(|builder| builder.nx_huge_pages(true))
        .after(World::populate_large)
        .in_every_page(),
        Row::new("recover 2M", |world: &World<F>, idle| {
            assert_eq!(world.vm.memory().recover(idle, M2), 1);
        })
        .after(|world, idle| {
            world.populate_large(idle);
            world.vm.memory().split(idle, ALL, Level::K4).unwrap();
        })
        .in_every_page()
        .between(Between::Waiting)
        .may_give_up()
        .owes(Owes::FlushAndTables(M2)),
        Row::new("recover 2M of a table with holes", |world: &World<F>, idle| {
            assert_eq!(world.vm.memory().recover(idle, ALL), 2);
        })
        .after(|world, idle| {
            world.populate(idle);
            world.host_maps(Level::M2);
        })
        .between(Between::Waiting)
        .may_give_up()
        .owes(Owes::FlushAndTables(ALL)),
    ]
}

/// Maps a page of 1 GiB.
fn large<F: Format>(world: &World<F>, idle: &mut Idle) {
    world.host_maps(Level::G1);
    assert_eq!(world.fault(idle, GIB.start, Access::Write), Next::Resume(Resume::Mapped(Level::G1)));
}

fn gigabytes<F: Format>() -> Vec<Row<F>> {
    vec![
        Row::new("map 1G", large),
        Row::new("split 1G", |world: &World<F>, idle| {
            assert_eq!(world.vm.memory().split(idle, GIB, Level::M2), Ok(1));
        })
        .after(large),
        Row::new("split a part of 1G", |world: &World<F>, idle| {
            let some = Span::new(GIB.start + 700, GIB.start + 701);
            assert_eq!(world.vm.memory().split(idle, some, Level::K4), Ok(2));
        })
        .after(large),
        Row::new("recover 1G", |world: &World<F>, idle| {
            assert_eq!(world.vm.memory().recover(idle, GIB), 1);
        })
        .after(|world, idle| {
            large(world, idle);
            world.vm.memory().split(idle, GIB, Level::M2).unwrap();
        })
        .between(Between::Waiting)
        .may_give_up()
        .owes(Owes::FlushAndTables(GIB)),
        Row::new("unmap a page in one of 1G", |world: &World<F>, idle| {
            let some = Span::new(GIB.start + 700, GIB.start + 701);
            world.invalidate(idle, some, Reason::Unmap);
        })
        .after(large)
        .renumbers(Span::new(GIB.start + 700, GIB.start + 701))
        .owes(Owes::Flush(Span::new(GIB.start + 700, GIB.start + 701))),
    ]
}
