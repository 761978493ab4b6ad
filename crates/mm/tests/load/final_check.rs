//! The checks at the end of a world: every byte is right, and every leaf, table page and frame is accounted
//! for.

use crate::groups::LIMITS;
use crate::oracle::Lane;
use crate::stage::{NESTED, NESTED_PAGES, PAGES, Primary, Stage, hva, hvas};
use slat::{Access, Fault, Format, Gfn, Host, Idle, Level, PAGE_SIZE, Span, TablePages, VcpuId, Vm};
use slat_mm::{Advice, Arena, Evictor};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// An evictor that evicts nothing for this long hangs. A busy machine may take its time, as long as pages leave.
const PATIENCE: Duration = Duration::from_secs(20);

/// Checks the world. No thread runs any more, and no vCPU is left.
pub fn check<F: Format>(idle: &mut Idle, stage: Stage, vms: Vec<Arc<Vm<F, Primary>>>, lanes: Vec<Lane>) {
    // All pages are more than the group's limit. Pages that were read leave again, also to the device that
    // fails.
    stage.groups.set_limit(LIMITS[2]);
    for mut lane in lanes {
        for page in 0..PAGES {
            let at = hva(page) + lane.offset();
            let read = |line: &mut [u8]| stage.space.read(idle, at, line);
            lane.load(&stage.ledger, page, read).unwrap().unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    assert!(
        stage.disk.has_recovered(),
        "the device stored no page after its failure: {:?}",
        stage.swap.stats()
    );
    let log = stage.log.lock().take();
    let lost = log.and_then(|mut log| log.harvest(idle, &stage.ledger, |_| {}));
    assert_eq!(lost, None, "the log misses a page");

    stage.groups.guests.set_limit(None);
    stage.space.munmap(idle, Span::sized(NESTED, NESTED_PAGES * PAGE_SIZE)).unwrap();
    stage.space.madvise(idle, hvas(&(0..PAGES)), Advice::Unmergeable).unwrap();
    fault_all_in(idle, &vms);
    let nodes = stage.space.lru().unwrap().generations();
    let known: u64 =
        nodes.iter().flat_map(|node| &node.generations).map(|found| found.anon + found.file).sum();
    assert_eq!(known, PAGES, "each page is in one generation");
    charges_add_up(&stage);
    evict_ahead(&stage);
    charges_add_up(&stage);
    for vm in &vms {
        agrees_with_host(vm, idle);
    }

    stage.space.exit(idle).unwrap();
    for vm in &vms {
        check_empty(vm, idle);
    }

    let Stage { arena, space, ksm, swap, balancers, groups, .. } = stage;
    drop((vms, space, ksm, balancers));
    assert_eq!(swap.stats().references, 0, "a copy was leaked");
    assert_eq!([groups.guests.charged(), groups.neighbour.charged()], [0, 0], "a page is still charged");
    let stats = arena.stats();
    assert_eq!((stats.in_use, stats.tables), (0, 0), "a frame did not come back");
    free_frames_are_untouched(&arena);
}

/// Faults every page into each VM.
fn fault_all_in<F: Format>(idle: &mut Idle, vms: &[Arc<Vm<F, Primary>>]) {
    for vm in vms {
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for page in 0..PAGES {
            let _ = vcpu.fault(idle, Fault { gpa: Gfn(page).gpa(), access: Access::Write }).unwrap();
        }
    }
}

/// Every frame in use is charged to one group, except tables, the pool, and a page of zeroes that KSM keeps.
fn charges_add_up(stage: &Stage) {
    let (all, pool) = (stage.arena.stats(), stage.swap.stats().memory_bytes / PAGE_SIZE);
    let stats = [&stage.groups.guests, &stage.groups.neighbour].map(|group| group.stats());
    let frames: u64 = stats.iter().map(|stats| (stats.anon + stats.file) / PAGE_SIZE).sum();
    let (pages, own) = (all.in_use - all.tables - pool, u64::from(stage.thp));
    assert!((frames..=frames + own).contains(&pages), "{pages} pages, {frames} charged: {stats:?}");
}

/// A group gets a limit below its usage. Its evictor must evict without a fault.
fn evict_ahead(stage: &Stage) {
    let group = &stage.groups.guests;
    let limit = group.charged() * 3 / 4;
    group.set_limit(Some(limit));
    let _evictor = Evictor::start(&stage.space, 1).unwrap();
    let mut last = (group.charged(), Instant::now());
    while last.0 > limit {
        assert!(last.1.elapsed() < PATIENCE, "the evictor left {} of {limit} bytes", last.0);
        thread::sleep(Duration::from_millis(1));
        let charged = group.charged();
        last = if charged < last.0 { (charged, Instant::now()) } else { last };
    }
}

/// The arena checks the fill of a free frame when it is used again. Some frames are zeroed before that.
fn free_frames_are_untouched(arena: &Arena) {
    let zeroed = arena.zero_ahead(PAGES);
    while let Ok(page) = arena.zeroed(Level::K4) {
        // SAFETY: no other thread uses the frame.
        let bytes: &[u8; PAGE_SIZE as usize] = unsafe { &*arena.frame(page.pfn()).cast() };
        assert!(*bytes == [0; PAGE_SIZE as usize], "a page of zeroes holds something");
        std::mem::forget(page);
    }
    assert!(zeroed > 0 && arena.list_stats().zeroed >= zeroed, "the zeroed frames were not used");
    assert_eq!(arena.stats().stale_writes, 0, "a thread wrote to a free frame");
}

/// The VM's leaves agree with the host and with the VM's own counts.
fn agrees_with_host<F: Format>(vm: &Vm<F, Primary>, idle: &mut Idle) {
    let mut leaves = [0; 3];
    let mut next = Gfn(0);
    while next < Gfn(PAGES) {
        let Some(mapping) = vm.memory().translate(idle, next) else {
            next = next + 1;
            continue;
        };
        leaves[usize::from(mapping.level.number()) - 1] += 1;
        for index in 0..mapping.gfns.len() {
            let host = vm.host().lookup(hva(mapping.gfns.start.0 + index), Access::Read);
            let host = host.unwrap_or_else(|| panic!("{mapping:?}: the host maps nothing"));
            assert_eq!(mapping.leaf.pfn + index, host.pfn, "{mapping:?}");
            assert!(host.writable || !mapping.leaf.perms.allows(Access::Write), "{mapping:?}, {host:?}");
        }
        next = mapping.gfns.end;
    }
    vm.collect(idle);
    assert_eq!(vm.stats().leaves, leaves, "the counts differ from a walk");
    pages_add_up(vm, idle);
}

/// The address space is gone, so the VM must be empty.
fn check_empty<F: Format>(vm: &Vm<F, Primary>, idle: &mut Idle) {
    vm.collect(idle);
    assert_eq!(vm.stats().leaves, [0; 3], "a leaf was not released");
    let fault = Fault { gpa: Gfn(0).gpa(), access: Access::Read };
    assert!(vm.vcpu(VcpuId(0)).unwrap().fault(idle, fault).is_err(), "a page came back");
    vm.zap_all(idle).unwrap();
    assert_eq!(pages_add_up(vm, idle).reachable, 1, "only the root is left");
}

fn pages_add_up<F: Format>(vm: &Vm<F, Primary>, idle: &mut Idle) -> TablePages {
    vm.collect(idle);
    let pages = vm.table_pages(idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated, "{pages:?}");
    assert_eq!(pages.waiting, 0, "pages wait after a collect: {pages:?}");
    pages
}
