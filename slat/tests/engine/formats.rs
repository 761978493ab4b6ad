//! One scenario, every format: the engine's behaviour must not depend on the position of bits. And leaves that are
//! withdrawn from the hardware, in the format that needs that.

use crate::common::identity::Identity;
use slat::notify::plan::{Edit, plan};
use slat::table::formats::{
    Arm64, Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept, Ept4, Ept4NoAd, Ept5, Npt, Npt4, Npt5, Pae, Sv39x4,
    Sv39x4NoAd, Sv48x4, Sv57x4,
};
use slat::*;
use std::sync::atomic::Ordering::Relaxed;

const RAM: Hva = Hva(0x40_0000_0000);
const SLOT: SlotId = SlotId(0);
/// Four leaf tables.
const PAGES: u64 = 4 * 512;

struct Machine<F: Format> {
    idle: Idle,
    vm: Vm<F, Identity>,
}

impl<F: Format> Machine<F> {
    fn new() -> Self {
        Self::with(Level::K4, false)
    }

    /// A VM on a host with pages of `level`.
    fn with(level: Level, nx: bool) -> Self {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<F, _>::builder(Identity::of(level)).nx_huge_pages(nx).build().unwrap();
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SLOT, Gfn(0), PAGES, RAM))).unwrap();
        Self { idle, vm }
    }

    fn touch(&mut self, gfn: Gfn, access: Access) -> Next {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        vcpu.fault(&mut self.idle, Fault { gpa: gfn.gpa(), access }).unwrap()
    }

    fn prefault(&mut self, from: u64, to: u64) -> u64 {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        vcpu.prefault(&mut self.idle, frames(from, to), Prefault::OLD).unwrap()
    }

    fn leaf(&mut self, gfn: u64) -> Option<Leaf> {
        self.vm.memory().translate(&mut self.idle, Gfn(gfn)).map(|found| found.leaf)
    }

    fn leaves(&mut self) -> Vec<Mapping> {
        let mut found = Vec::new();
        self.vm.memory().lockless(&mut self.idle).for_each(frames(0, PAGES), |mapping| found.push(mapping));
        found
    }

    /// Returns the questions that `f` asks the host.
    fn asks(&mut self, f: impl FnOnce(&mut Self)) -> u64 {
        let before = self.vm.host().looked.load(Relaxed);
        f(self);
        self.vm.host().looked.load(Relaxed) - before
    }

    /// Returns the reachable table pages, after checking that none is lost.
    fn tables(&mut self) -> u64 {
        self.vm.collect(&mut self.idle);
        let pages = self.vm.table_pages(&mut self.idle);
        assert_eq!((pages.waiting, pages.reachable + pages.free), (0, pages.allocated), "{}", F::NAME);
        pages.reachable
    }
}

fn frames(from: u64, to: u64) -> Span<Gfn> {
    Span::new(Gfn(from), Gfn(to))
}

/// The first access to a page that was mapped ahead.
fn first_use<F: Format>() -> Next {
    if F::HARDWARE_AD { Next::Resume(Resume::Spurious) } else { Next::Resume(Resume::Fixed) }
}

fn scenario<F: Format>() {
    faults_and_tracking::<F>();
    invalidations::<F>();
    large_pages::<F>();
    the_end_of_all::<F>();
}

#[test]
fn every_format_does_the_same() {
    scenario::<Ept4>();
    scenario::<Ept5>();
    scenario::<Npt4>();
    scenario::<Npt5>();
    scenario::<Pae>();
    scenario::<Ept4NoAd>();
    scenario::<Arm64L39>();
    scenario::<Arm64L40>();
    scenario::<Arm64L48>();
    scenario::<Arm64NoAd>();
    scenario::<Sv39x4>();
    scenario::<Sv48x4>();
    scenario::<Sv57x4>();
    scenario::<Sv39x4NoAd>();
    scenario::<Ept<4, true, 47>>();
    scenario::<Npt<4, 51>>();
}

/// A slot over each boundary between two pages of a root, and one beside none.
fn a_root_of_many_pages<F: Format>() {
    let mut machine = Machine::<F>::new();
    let page = 1_u64 << (u32::from(F::LEVELS) * 9);
    let seams = 1..F::ROOT_PAGES as u64;
    let pages: Vec<u64> = seams.clone().flat_map(|seam| [seam * page - 1, seam * page]).collect();
    machine
        .vm
        .memory()
        .commit(&mut machine.idle, |tx| {
            seams.clone().try_for_each(|seam| {
                tx.create(Slot::new(SlotId(seam as u32), Gfn(seam * page - 1), 2, RAM + (seam << 30)))
            })
        })
        .unwrap();
    for &gfn in pages.iter().chain(&pages) {
        let done = machine.touch(Gfn(gfn), Access::Write);
        assert!(
            matches!(done, Next::Resume(Resume::Mapped(Level::K4) | Resume::Spurious)),
            "{} {gfn:#x} {done:?}",
            F::NAME
        );
        assert_eq!(
            machine.leaf(gfn).unwrap().pfn.0,
            (RAM.0 >> 12) + ((gfn + 1) / page << 18) + (gfn + 1) % page
        );
    }
    let mut found = Vec::new();
    let everything = frames(0, 1 << F::FRAME_BITS);
    machine
        .vm
        .memory()
        .lockless(&mut machine.idle)
        .for_each(everything, |mapping| found.push(mapping.gfns.start.0));
    assert_eq!(found, pages, "in order, over every seam");
    found.clear();
    machine.vm.memory().lockless(&mut machine.idle).age(everything, |accessed| {
        let is_young = |&bit: &u64| accessed.bits()[bit as usize / 64] >> (bit % 64) & 1 == 1;
        found.extend((0..512).filter(is_young).map(|bit| accessed.first().0 + bit));
    });
    assert_eq!(found, pages, "all of them are young");
    let below = pages.len() as u64 * u64::from(F::LEVELS - 1);
    assert_eq!(
        machine.tables(),
        F::ROOT_PAGES as u64 + below,
        "each seam has tables of its own on either side"
    );
    for _ in 0..3 {
        machine.vm.zap_all(&mut machine.idle).unwrap();
        assert_eq!(
            (machine.tables(), machine.vm.memory().root().0 % F::ROOT_PAGES as u64),
            (F::ROOT_PAGES as u64, 0)
        );
        assert_eq!(machine.touch(Gfn(page), Access::Read), Next::Resume(Resume::Mapped(Level::K4)));
    }
    assert_eq!(machine.vm.stats().lent_bytes, 2 * 64 * PAGE_SIZE, "old roots are used again");
}

#[test]
fn every_page_of_a_root_is_reached() {
    a_root_of_many_pages::<Arm64L40>();
    a_root_of_many_pages::<Sv39x4>();
    a_root_of_many_pages::<Sv57x4>();
    a_root_of_many_pages::<Arm64<43>>();
}

/// The walker's own bit makes a clean page dirty; it stays dirty when it is write-protected.
#[test]
fn a_dirty_leaf_stays_dirty_when_it_loses_write_permission() {
    let mut machine = Machine::<Arm64L48>::new();
    let _ = machine.touch(Gfn(1), Access::Write);
    let before = machine.leaf(1).unwrap();
    assert!(before.dirty && before.perms.allows(Access::Write));
    machine.vm.memory().write_protect(&mut machine.idle, frames(0, 8)).settle();
    let protected = machine.leaf(1).unwrap();
    assert_eq!(protected, Leaf { perms: before.perms.without(Perms::WRITE), ..before });
    assert_eq!(machine.touch(Gfn(1), Access::Write), Next::Resume(Resume::Fixed));
    assert_eq!(machine.leaf(1).unwrap(), before);
}

fn faults_and_tracking<F: Format>() {
    let mut machine = Machine::<F>::new();
    let last = Gfn((1 << F::FRAME_BITS) - 1);
    let top = Slot::new(SlotId(1), last, 1, RAM + (1 << 36));
    machine.vm.memory().commit(&mut machine.idle, |tx| tx.create(top)).unwrap();
    assert_eq!(machine.touch(Gfn(3), Access::Read), Next::Resume(Resume::Mapped(Level::K4)), "{}", F::NAME);
    assert_eq!(machine.touch(Gfn(3), Access::Write), Next::Resume(Resume::Spurious));
    assert_eq!(
        machine.touch(last, Access::Fetch),
        Next::Resume(Resume::Mapped(Level::K4)),
        "the last page there is"
    );
    assert_eq!(
        machine.touch(last + 1, Access::Read),
        Next::Emulate(Emulate::NoMemory),
        "one past the format"
    );
    assert_eq!(
        machine.touch(Gfn(PAGES), Access::Read),
        Next::Emulate(Emulate::NoMemory),
        "one past the slot"
    );

    assert_eq!(machine.prefault(16, 32), 16);
    assert_eq!(machine.prefault(16, 32), 16, "what is there stays");
    assert!((16..32).all(|gfn| !machine.leaf(gfn).unwrap().accessed));
    let asked = machine.asks(|machine| assert_eq!(machine.touch(Gfn(20), Access::Read), first_use::<F>()));
    assert_eq!(asked, 0);
    assert_eq!(machine.touch(Gfn(20), Access::Write), Next::Resume(Resume::Spurious), "writable at once");

    // Everything is tracked for writes; one page of each sort is written again.
    let debt = machine.vm.memory().write_protect(&mut machine.idle, frames(0, PAGES));
    assert_eq!(debt.pages(), 17);
    assert!(debt.settle());
    for gfn in [3, 20, 25] {
        assert!(!machine.leaf(gfn).unwrap().perms.allows(Access::Write));
        let asked = machine
            .asks(|machine| assert_eq!(machine.touch(Gfn(gfn), Access::Write), Next::Resume(Resume::Fixed)));
        let leaf = machine.leaf(gfn).unwrap();
        assert!(asked == 0 && leaf.dirty && leaf.accessed && leaf.perms.allows(Access::Write), "{gfn}");
    }
    assert_eq!(machine.vm.stats().leaves, [18, 0, 0]);
    assert!(machine.tables() > 2 * (u64::from(F::LEVELS) - 1), "two ways down");
}

/// For each reason: present leaves and leaves mapped ahead are edited by the plan, and owe a flush for it.
fn invalidations<F: Format>() {
    for why in Reason::ALL {
        let mut machine = Machine::<F>::new();
        for gfn in 0..8 {
            let _ = machine.touch(Gfn(gfn), Access::Write);
        }
        machine.prefault(8, 16);
        let before = machine.leaves();
        let edits: Vec<_> = before.iter().map(|found| plan(why, &found.leaf, found.level, None)).collect();
        let hvas = Span::sized(RAM, 16 * PAGE_SIZE);
        let applied = machine.vm.invalidate(hvas, why).apply(&mut machine.idle);
        assert_eq!((applied.pages(), applied.owes()), (16, true), "{} {why:?}", F::NAME);
        drop(applied.settle());
        let expected: Vec<_> = before
            .iter()
            .zip(edits)
            .filter_map(|(found, edit)| {
                let mut leaf = found.leaf;
                match edit {
                    Edit::Zap => return None,
                    Edit::Replace(_) | Edit::Split => unreachable!("small leaves, and no page was told"),
                    Edit::Nothing => {}
                    Edit::DropWrite => {
                        leaf.perms = leaf.perms.without(Perms::WRITE);
                        leaf.host_writable = false;
                    }
                }
                // Without a D bit, a present leaf is dirty if it may be written.
                leaf.dirty &= F::HARDWARE_AD || !leaf.accessed || leaf.perms.allows(Access::Write);
                Some(Mapping { leaf, ..*found })
            })
            .collect();
        assert_eq!(machine.leaves(), expected, "{} {why:?}", F::NAME);
        assert_eq!(machine.vm.stats().leaves[0], expected.len() as u64);
        // A load of a remaining page; a normal fault on a zapped one.
        let done = machine.touch(Gfn(12), Access::Read);
        assert_eq!(
            done,
            if expected.is_empty() { Next::Resume(Resume::Mapped(Level::K4)) } else { first_use::<F>() }
        );
        machine.tables();
    }
}

fn large_pages<F: Format>() {
    let mut machine = Machine::<F>::with(Level::M2, false);
    assert_eq!(machine.touch(Gfn(5), Access::Write), Next::Resume(Resume::Mapped(Level::M2)), "{}", F::NAME);
    assert_eq!(machine.prefault(512, 1024), 512);
    assert_eq!(machine.vm.stats().leaves, [0, 2, 0]);
    let tables = machine.tables();

    assert_eq!(machine.vm.memory().split(&mut machine.idle, frames(0, 1024), Level::K4), Ok(2));
    assert_eq!((machine.vm.stats().leaves, machine.tables()), ([1024, 0, 0], tables + 2));
    for (index, found) in machine.leaves().into_iter().enumerate() {
        let used = index < 512;
        assert_eq!(found.leaf.pfn, Pfn((RAM.0 >> PAGE_SHIFT) + index as u64));
        assert_eq!((found.leaf.accessed, found.leaf.dirty, found.leaf.perms), (used, used, Perms::RWX));
    }
    assert_eq!(machine.touch(Gfn(700), Access::Fetch), first_use::<F>());
    assert_eq!(machine.vm.memory().recover(&mut machine.idle, frames(0, PAGES)), 2);
    assert_eq!((machine.vm.stats().leaves, machine.tables()), ([0, 2, 0], tables));
    assert_eq!(machine.touch(Gfn(1000), Access::Write), Next::Resume(Resume::Spurious), "present as a whole");

    // A large leaf that reaches out of the changed range is split; if its part stays as it is, it is not.
    machine.prefault(1024, 1025);
    let change =
        machine.vm.memory().invalidate(frames(1023, 1025), Reason::Protect).apply(&mut machine.idle).settle();
    drop(change);
    assert_eq!(machine.vm.stats().leaves, [1024, 1, 0]);
    let written: Vec<_> = machine.leaves().into_iter().filter(|found| !found.leaf.host_writable).collect();
    assert_eq!(written.iter().map(|found| found.gfns.start).collect::<Vec<_>>(), [Gfn(1023), Gfn(1024)]);
}

fn the_end_of_all<F: Format>() {
    let mut machine = Machine::<F>::new();
    let empty = machine.tables();
    assert_eq!(empty, F::ROOT_PAGES as u64, "{}: a root", F::NAME);
    let _ = machine.touch(Gfn(9), Access::Write);
    machine.prefault(100, 1100);
    let root = machine.vm.memory().root();
    machine.vm.zap_all(&mut machine.idle).unwrap();
    assert_ne!(machine.vm.memory().root(), root);
    assert_eq!((machine.vm.stats().leaves, machine.tables()), ([0; 3], empty));

    assert_eq!(machine.touch(Gfn(9), Access::Write), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(machine.prefault(100, 1100), 1000);
    machine.vm.memory().commit(&mut machine.idle, |tx| tx.delete(SLOT)).unwrap();
    assert_eq!(machine.touch(Gfn(9), Access::Read), Next::Emulate(Emulate::NoMemory));
    // Leaf tables were freed with the slot; the tables above them are shared with what comes next.
    assert_eq!((machine.vm.stats().leaves, machine.tables()), ([0; 3], empty + u64::from(F::LEVELS) - 2));
}

#[test]
fn an_access_gives_a_withdrawn_leaf_back_without_the_host() {
    for access in [Access::Read, Access::Fetch, Access::Write] {
        let mut machine = Machine::<Ept4NoAd>::new();
        machine.prefault(0, 4);
        let before = machine.vm.stats();
        let asked =
            machine.asks(|machine| assert_eq!(machine.touch(Gfn(2), access), Next::Resume(Resume::Fixed)));
        let after = machine.vm.stats();
        assert_eq!(asked, 0);
        assert_eq!(after.permission_faults, before.permission_faults + 1);
        assert_eq!((after.retries, after.flushes, after.leaves), (0, before.flushes, before.leaves));
        let leaf = machine.leaf(2).unwrap();
        assert_eq!((leaf.accessed, leaf.dirty, leaf.perms), (true, true, Perms::RWX));
        assert!(!machine.leaf(1).unwrap().accessed, "the neighbour is as it was");
        assert_eq!(machine.touch(Gfn(2), access), Next::Resume(Resume::Spurious));
    }
}

#[test]
fn a_page_taken_away_while_tracked_does_not_come_back() {
    let mut machine = Machine::<Ept4NoAd>::new();
    machine.prefault(0, 4);
    let change = machine.vm.invalidate(Span::sized(RAM + 2 * PAGE_SIZE, PAGE_SIZE), Reason::Migrate);
    let debt = change.apply(&mut machine.idle);
    assert_eq!(debt.pages(), 1, "it was in TLBs before it was withdrawn");
    drop(debt.settle());
    assert_eq!(machine.leaf(2), None);
    let asked = machine.asks(|machine| {
        assert_eq!(machine.touch(Gfn(2), Access::Read), Next::Resume(Resume::Mapped(Level::K4)));
    });
    assert_eq!(asked, 1, "the host says where it is now");
}

#[test]
fn a_store_to_a_tracked_page_that_the_host_had_read_only_asks_the_host() {
    let mut machine = Machine::<Ept4NoAd>::new();
    machine.vm.host().readonly.store(true, Relaxed);
    machine.prefault(0, 4);
    let load =
        machine.asks(|machine| assert_eq!(machine.touch(Gfn(1), Access::Read), Next::Resume(Resume::Fixed)));
    assert_eq!((load, machine.leaf(1).unwrap().perms), (0, Perms::RX));
    machine.vm.host().readonly.store(false, Relaxed); // made writable in place
    let store =
        machine.asks(|machine| assert_eq!(machine.touch(Gfn(2), Access::Write), Next::Resume(Resume::Fixed)));
    let leaf = machine.leaf(2).unwrap();
    assert_eq!((store, leaf.perms, leaf.host_writable), (1, Perms::RWX, true));
}

#[test]
fn stores_to_tracked_pages_are_logged_and_loads_are_not() {
    let mut machine = Machine::<Ept4NoAd>::new();
    machine.prefault(0, 8);
    let log = |tx: &mut slots::Transaction<'_>| tx.set_log_dirty(SLOT, true);
    machine.vm.memory().commit(&mut machine.idle, log).unwrap();
    machine.prefault(8, 16);
    for gfn in [2, 10] {
        assert_eq!(machine.touch(Gfn(gfn), Access::Read), Next::Resume(Resume::Fixed));
        assert!(!machine.leaf(gfn).unwrap().perms.allows(Access::Write), "{gfn}: a store must fault");
        assert_eq!(machine.touch(Gfn(gfn + 1), Access::Write), Next::Resume(Resume::Fixed));
    }
    let mut dirty = Vec::new();
    machine.vm.memory().dirty(&mut machine.idle, SLOT, |gfn| dirty.push(gfn.0)).unwrap();
    assert_eq!(dirty, [3, 11]);
}

#[test]
fn a_fetch_from_a_tracked_large_page_that_does_not_execute_splits_it() {
    let mut machine = Machine::<Ept4NoAd>::with(Level::M2, true);
    machine.prefault(0, 512);
    assert_eq!(machine.vm.stats().leaves, [0, 1, 0]);
    assert_eq!(machine.touch(Gfn(7), Access::Fetch), Next::Resume(Resume::Fixed));
    assert_eq!((machine.vm.stats().leaves, machine.leaf(7).unwrap().perms), ([512, 0, 0], Perms::RWX));
    assert_eq!(machine.touch(Gfn(8), Access::Fetch), Next::Resume(Resume::Spurious));
}

/// Links without an Accessed bit say nothing about the tables below: leaf tables are reclaimed, in the order of the
/// clock.
#[test]
fn a_budget_takes_leaf_tables_where_links_have_no_accessed_bit() {
    fn least<F: Format>() {
        let mut machine = Machine::<F>::new();
        for gfn in (0..PAGES).step_by(512) {
            let _ = machine.touch(Gfn(gfn), Access::Write);
        }
        let tables = machine.tables();
        let root = machine.vm.memory().root();
        machine.vm.set_table_budget(&mut machine.idle, (tables - 1) * PAGE_SIZE);
        let stats = machine.vm.stats();
        assert!(stats.leaves[0] < 4 && stats.tables_reclaimed > 0, "{}: {stats:?}", F::NAME);
        assert_eq!(machine.vm.memory().root(), root);
        assert!(machine.tables() >= u64::from(F::LEVELS) - 1, "{}: those above stay", F::NAME);
    }
    least::<Pae>();
    least::<Ept4NoAd>();
}
