//! When all have gone: every byte is what it must be, and every leaf, table page and frame is accounted for.

use crate::oracle::Lane;
use crate::stage::{PAGES, Primary, Stage, hva};
use slat::{Access, Fault, Format, Gfn, Host, Idle, Level, TablePages, VcpuId, Vm};
use std::sync::Arc;

/// No thread is about any more, and no vCPU is left.
pub fn check<F: Format>(idle: &mut Idle, stage: Stage, vms: Vec<Arc<Vm<F, Primary>>>, lanes: Vec<Lane>) {
    for mut lane in lanes {
        for page in 0..PAGES {
            let at = hva(page) + lane.offset();
            let read = |line: &mut [u8]| stage.space.read(idle, at, line);
            lane.load(&stage.ledger, page, read).unwrap().unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    let nodes = stage.space.lru().unwrap().generations();
    let known: u64 =
        nodes.iter().flat_map(|node| &node.generations).map(|found| found.anon + found.file).sum();
    assert_eq!(known, PAGES, "each page is in one generation");
    for vm in &vms {
        agrees(vm, idle);
    }

    stage.space.exit(idle).unwrap();
    for vm in &vms {
        is_empty(vm, idle);
    }

    let Stage { arena, space, ksm, swap, balancers, .. } = stage;
    drop((vms, space, ksm, balancers));
    assert_eq!(swap.stats().references, 0, "no copy was forgotten");
    let stats = arena.stats();
    assert_eq!((stats.in_use, stats.tables), (0, 0), "every frame came back");
    // The fill of a free frame is looked at when it is used again.
    while arena.page(Level::K4).map(std::mem::forget).is_ok() {}
    assert_eq!(arena.stats().stale_writes, 0, "no thread wrote to a free frame");
}

/// Its leaves are what the host says, and what it counts.
fn agrees<F: Format>(vm: &Vm<F, Primary>, idle: &mut Idle) {
    let mut leaves = [0; 3];
    let mut next = Gfn(0);
    while next < Gfn(PAGES) {
        let Some(mapping) = vm.translate(idle, next) else {
            next = next + 1;
            continue;
        };
        leaves[usize::from(mapping.level.number()) - 1] += 1;
        for index in 0..mapping.gfns.len() {
            let host = vm.host().lookup(hva(mapping.gfns.start.0 + index), Access::Read);
            let host = host.unwrap_or_else(|| panic!("{mapping:?}: the host has nothing"));
            assert_eq!(mapping.leaf.pfn + index, host.pfn, "{mapping:?}");
            assert!(host.writable || !mapping.leaf.perms.allows(Access::Write), "{mapping:?}, {host:?}");
        }
        next = mapping.gfns.end;
    }
    vm.collect(idle);
    assert_eq!(vm.stats().leaves, leaves, "what is counted is what a walk finds");
    pages_add_up(vm, idle);
}

/// The address space is gone.
fn is_empty<F: Format>(vm: &Vm<F, Primary>, idle: &mut Idle) {
    vm.collect(idle);
    assert_eq!(vm.stats().leaves, [0; 3], "all was released");
    let fault = Fault { gpa: Gfn(0).gpa(), access: Access::Read };
    assert!(vm.vcpu(VcpuId(0)).unwrap().fault(idle, fault).is_err(), "and nothing comes back");
    vm.zap_all(idle).unwrap();
    assert_eq!(pages_add_up(vm, idle).reachable, 1, "the root");
}

fn pages_add_up<F: Format>(vm: &Vm<F, Primary>, idle: &mut Idle) -> TablePages {
    vm.collect(idle);
    let pages = vm.table_pages(idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated, "{pages:?}");
    assert_eq!(pages.waiting, 0, "collected: {pages:?}");
    pages
}
