//! Rows of the table, third part: dirty logs, by write protection and by D bits.

use super::controlled_host::{ALL, Backing, PART, World};
use super::operation::{Owes, Row};
use super::record::Between;
use crate::*;
use std::format;
use std::vec::Vec;

pub(super) fn rows<F: Format>() -> Vec<Row<F>> {
    let mut rows = Vec::new();
    rows.extend(by("W", |builder| builder.dirty_log(DirtyLog::bitmap())));
    rows.extend(by("D", |builder| builder.dirty_log(DirtyLog::bitmap().track(Track::DirtyBits))));
    rows.extend(lazily("W", |builder| builder.dirty_log(DirtyLog::bitmap().splitting(Splitting::Lazy))));
    rows.extend(lazily("D", |builder| {
        builder.dirty_log(DirtyLog::bitmap().splitting(Splitting::Lazy).track(Track::DirtyBits))
    }));
    rows.push(
        Row::new("harvest a ring", |world: &World<F>, idle| {
            let harvest = world.vm.harvest_ring(idle, VcpuId(0)).unwrap();
            assert_eq!(harvest.pages(), 2);
            harvest.commit();
        })
        .built(|builder| builder.dirty_log(DirtyLog::ring(RingSize::new(4096).unwrap())))
        .after(stores)
        .owes(Owes::Flush(PART)),
    );
    rows
}

/// A log with two dirty pages, at the edges of [`PART`].
fn stores<F: Format>(world: &World<F>, idle: &mut Idle) {
    world.log(idle, true);
    world.store(idle, Gfn(64));
    world.store(idle, Gfn(575));
}

fn by<F: Format>(how: &str, built: fn(Builder<F, Backing>) -> Builder<F, Backing>) -> Vec<Row<F>> {
    let row = |what: &str, operation: fn(&World<F>, &mut Idle)| {
        Row::new(format!("{what}, by {how}"), operation).built(built)
    };
    let everything = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
    vec![
        row("begin a log", |world, idle| world.log(idle, true))
            .after(World::populate)
            .forgets()
            .owes(Owes::Flush(ALL)),
        row("begin a log of large pages", |world, idle| world.log(idle, true))
            .after(World::populate_large)
            .in_every_page()
            .forgets()
            .owes(Owes::Flush(ALL)),
        row("end a log", |world, idle| world.log(idle, false))
            .after(|world, idle| {
                stores(world, idle);
                world.host_maps(Level::M2);
            })
            .between(Between::Waiting)
            .may_give_up()
            .owes(Owes::FlushAndTables(ALL)),
        row("log a store", |world, idle| world.store(idle, Gfn(65))).after(stores),
        row("log a store to a page that was harvested", |world, idle| world.store(idle, Gfn(64))).after(
            |world, idle| {
                stores(world, idle);
                world.harvest(idle);
            },
        ),
        row("harvest", World::harvest).after(stores).owes(Owes::Flush(PART)),
        row("clear a part", |world, idle| {
            assert_eq!(world.vm.memory().clear_dirty(idle, SlotId(0), 64, 64, &[u64::MAX]), Ok(1));
            // Only the thread that clears the bit copies the page.
            world.told(Gfn(64));
        })
        .after(stores)
        .owes(Owes::Flush(Span::new(Gfn(64), Gfn(128)))),
        row("unmap what is logged", |world, idle| world.invalidate(idle, ALL, Reason::Unmap))
            .after(stores)
            .renumbers(ALL)
            .owes(Owes::FlushAndTables(ALL)),
        row("zap all, and what is logged", |world, idle| world.vm.zap_all(idle).unwrap())
            .after(stores)
            .renumbers(everything)
            .owes(Owes::FlushAndTables(everything)),
        row("delete a slot that logs", |world, idle| {
            world.vm.memory().commit(idle, |tx| tx.delete(SlotId(0)).map(drop)).unwrap();
        })
        .after(stores)
        .renumbers(ALL)
        .owes(Owes::FlushAndTables(ALL)),
    ]
}

/// Large pages that the first store splits.
fn lazily<F: Format>(how: &str, built: fn(Builder<F, Backing>) -> Builder<F, Backing>) -> Vec<Row<F>> {
    let row = |what: &str, operation: fn(&World<F>, &mut Idle)| {
        Row::new(format!("{what}, lazily by {how}"), operation).built(built)
    };
    vec![
        row("begin a log of large pages", |world, idle| world.log(idle, true))
            .after(World::populate_large)
            .forgets()
            .owes(Owes::Flush(ALL)),
        row("log a store to a large page", |world, idle| {
            let _ = world.fault(idle, Gfn(65), Access::Write);
        })
        .after(|world, idle| {
            world.populate_large(idle);
            world.log(idle, true);
        })
        .in_every_page(),
    ]
}
