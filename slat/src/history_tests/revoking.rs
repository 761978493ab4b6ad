//! Rows of the table, second part: operations that take something: each reason over each range, slots, tables.

use super::controlled_host::{ALL, HVA, ONE, PART, World, frame, hvas, page};
use super::operation::{Owes, Row};
use crate::*;
use std::format;
use std::vec::Vec;

pub(super) fn rows<F: Format>() -> Vec<Row<F>> {
    let mut rows = Vec::new();
    for why in Reason::ALL {
        rows.extend(reasons(why));
    }
    rows.extend(one_by_one());
    rows.extend(leaked());
    rows.extend(slots());
    rows.extend(tables());
    rows
}

/// Returns the flush of an invalidation that covers `gfns`.
fn flush(why: Reason, gfns: Span<Gfn>) -> Owes {
    match why {
        Reason::Unmap | Reason::Remap | Reason::Exit | Reason::Slot if gfns == ALL => {
            Owes::FlushAndTables(ALL)
        }
        _ => Owes::Flush(gfns),
    }
}

fn reasons<F: Format>(why: Reason) -> Vec<Row<F>> {
    let name = |what: &str| format!("{} {what}", why.name());
    let row = |what, gfns: Span<Gfn>| {
        Row::new(name(what), move |world: &World<F>, idle| world.invalidate(idle, gfns, why)).renumbers(gfns)
    };
    vec![
        row("all", ALL).after(World::populate).owes(flush(why, ALL)),
        row("a part", PART).after(World::populate).owes(flush(why, PART)),
        row("a page", ONE).after(World::populate).owes(flush(why, ONE)),
        row("withdrawn pages", PART)
            .after(|world, idle| {
                world.populate(idle);
                world.vm.memory().lockless(idle).age(ALL, |_| {});
            })
            .owes(flush(why, PART)),
        row("where nothing is mapped", PART),
        row("where the second table is missing", PART)
            .after(|world, idle| world.store(idle, Gfn(65)))
            .owes(flush(why, ONE)),
        row("large pages", ALL).after(World::populate_large).owes(match flush(why, ALL) {
            // There are no tables below.
            Owes::FlushAndTables(gfns) => Owes::Flush(gfns),
            other => other,
        }),
        // Both large pages are split first.
        row("a part of large pages", PART)
            .after(World::populate_large)
            .owes(flush(why, PART))
            .in_every_page(),
    ]
}

fn one_by_one<F: Format>() -> Vec<Row<F>> {
    let other = frame(Gfn(5000));
    let change = |name, why: Reason, to: Option<HostPage>| {
        Row::new(name, move |world: &World<F>, idle| world.change(idle, why, &[(Gfn(65), to)]))
    };
    let read_only = |world: &World<F>, idle: &mut Idle| {
        world.host_lets_write(false);
        let _ = world.fault(idle, Gfn(65), Access::Read);
    };
    let same = frame(Gfn(65));
    vec![
        change("change-pte to another page, read-only", Reason::ChangePte, Some(page(other, true)))
            .after(read_only)
            .owes(Owes::Flush(ONE)),
        change(
            "change-pte to another page, read-only and withdrawn",
            Reason::ChangePte,
            Some(page(other, true)),
        )
        .after(move |world, idle| {
            read_only(world, idle);
            world.vm.memory().lockless(idle).age(ALL, |_| {});
        })
        .owes(Owes::Flush(ONE)),
        change("change-pte to the same page, read-only", Reason::ChangePte, Some(page(same, false)))
            .after(read_only),
        change("change-pte to another page", Reason::ChangePte, Some(page(other, true)))
            .after(World::populate)
            .renumbers(ONE)
            .owes(Owes::Flush(ONE)),
        change("change-pte to the same page, no longer writable", Reason::ChangePte, Some(page(same, false)))
            .after(World::populate)
            .owes(Owes::Flush(ONE)),
        change("change-pte to no page", Reason::ChangePte, None)
            .after(World::populate)
            .renumbers(ONE)
            .owes(Owes::Flush(ONE)),
        change("change-pte of a page in one of 2M", Reason::ChangePte, Some(page(other, true)))
            .after(World::populate_large)
            .renumbers(ONE)
            .owes(Owes::Flush(ONE))
            .in_every_page(),
        change(
            "change-pte to a share, of a page in one of 2M that is read-only",
            Reason::ChangePte,
            Some(page(other, false)),
        )
        .after(|world, idle| {
            world.host_lets_write(false);
            world.host_maps(Level::M2);
            let _ = world.fault(idle, Gfn(65), Access::Read);
        })
        .owes(Owes::Flush(ONE))
        .in_every_page(),
        change("change-pte to the same page, in one of 2M", Reason::ChangePte, Some(page(same, true)))
            .after(World::populate_large),
        change("numa, told of a page in one of 2M", Reason::Numa, None)
            .after(World::populate_large)
            .renumbers(ONE)
            .owes(Owes::Flush(ONE)),
        change("numa, told", Reason::Numa, None).after(World::populate).renumbers(ONE).owes(Owes::Flush(ONE)),
        change("reclaim, told where nothing is mapped", Reason::Reclaim, None).renumbers(ONE),
        // It may not ask for a table page, so it zaps the whole large leaf.
        Row::new("reclaim a page in one of 2M, in an event that may not block", |world: &World<F>, idle| {
            let event = Event { may_block: false, ..Event::new(hvas(ONE), Reason::Reclaim) };
            world.vm.around(idle, event, &mut |idle, told| told.changed(idle, hvas(ONE), None)).unwrap();
        })
        .after(World::populate_large)
        .renumbers(Span::new(Gfn(0), Gfn(512)))
        .owes(Owes::Flush(Span::new(Gfn(0), Gfn(512)))),
        Row::new("several pages told, one flush", |world: &World<F>, idle| {
            world.change(idle, Reason::Reclaim, &[(Gfn(575), None), (Gfn(64), None), (Gfn(300), None)]);
        })
        .after(World::populate)
        .owes(Owes::Flush(PART)),
    ]
}

/// Leaked debts: their invalidation pays them once, when it ends.
fn leaked<F: Format>() -> Vec<Row<F>> {
    vec![
        Row::new("unmap all, and the debt is left open", |world: &World<F>, idle| {
            drop(world.vm.invalidate(hvas(ALL), Reason::Unmap).apply(idle));
        })
        .after(World::populate)
        .renumbers(ALL)
        .owes(Owes::FlushAndTables(ALL)),
        Row::new("two pages told, and the first debt is leaked", |world: &World<F>, idle| {
            let mut change = world.vm.invalidate(hvas(ALL), Reason::Reclaim);
            core::mem::forget(change.changed(idle, hvas(Span::sized(Gfn(64), 1)), None));
            change.changed(idle, hvas(Span::sized(Gfn(575), 1)), None).settle();
        })
        .after(World::populate)
        .owes(Owes::Flush(PART)),
    ]
}

fn slots<F: Format>() -> Vec<Row<F>> {
    let delete = |world: &World<F>, idle: &mut Idle| {
        world.vm.memory().commit(idle, |tx| tx.delete(SlotId(0)).map(drop)).unwrap();
    };
    vec![
        Row::new("delete a slot", delete)
            .after(World::populate)
            .renumbers(ALL)
            .owes(Owes::FlushAndTables(ALL)),
        Row::new("delete a slot in which nothing is mapped", delete).renumbers(ALL),
        Row::new("move a slot", |world: &World<F>, idle| {
            world.vm.memory().commit(idle, |tx| tx.move_to(SlotId(0), Gfn(2048)).map(drop)).unwrap();
        })
        .after(World::populate)
        .renumbers(ALL)
        .owes(Owes::FlushAndTables(ALL)),
        Row::new("exchange two slots", |world: &World<F>, idle| {
            world
                .vm
                .memory()
                .commit(idle, |tx| {
                    tx.move_to(SlotId(0), Gfn(4096))?;
                    tx.move_to(SlotId(7), Gfn(0))?;
                    tx.move_to(SlotId(0), Gfn(2048)).map(drop)
                })
                .unwrap();
        })
        .after(|world, idle| {
            let slot = Slot::new(SlotId(7), Gfn(2048), 1024, HVA);
            world.vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
            world.populate(idle);
            for gfn in [2048, 2113, 3071] {
                let _ = world.fault(idle, Gfn(gfn), Access::Write);
            }
        })
        .renumbers(ALL)
        .owes(Owes::FlushAndTables(Span::new(Gfn(0), Gfn(3072)))),
    ]
}

fn tables<F: Format>() -> Vec<Row<F>> {
    // Reclaim reads Accessed bits of links; where a root has none, it frees leaf tables.
    let root = F::ROOT_LEVEL;
    let cold = if F::touch_link(root) == 0 { ALL } else { Span::sized(Gfn(0), root.pages()) };
    vec![
        Row::new("zap all", |world: &World<F>, idle| world.vm.zap_all(idle).unwrap())
            .after(World::populate)
            .renumbers(Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)))
            .owes(Owes::FlushAndTables(Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)))),
        Row::new("reclaim cold tables", |world: &World<F>, idle| {
            world.vm.set_table_budget(idle, 4096);
        })
        .after(World::populate)
        .renumbers(ALL)
        .owes(Owes::FlushAndTables(cold)),
        Row::new("write-protect", |world: &World<F>, idle| {
            world.vm.memory().write_protect(idle, PART).settle();
        })
        .after(World::populate)
        .owes(Owes::Flush(PART)),
        Row::new("age", |world: &World<F>, idle| world.vm.memory().lockless(idle).age(ALL, |_| {}))
            .after(World::populate)
            .of_accessed_bits(),
        Row::new("age, and flush", |world: &World<F>, idle| {
            assert!(world.vm.young(idle, hvas(PART), Young::ClearAndFlush));
        })
        .after(World::populate)
        .owes(Owes::Flush(PART)),
    ]
}
