//! Each callback panics in turn. See the folder's header.

use super::callback_cases::{Case, cases};
use super::machine::{HVA, Machine, On, Panics, TABLES, called, planned};
use crate::nested::{EptFeatures, EptTable, L2};
use crate::table::formats::{Ept4NoAd, Npt4, Sv48x4};
use crate::*;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use std::vec::Vec;

pub(super) const RAM: SlotId = SlotId(0);
/// Frames of slot 0: a chunk of the dirty log, and a part of another.
pub(super) const PAGES: u64 = (1 << 15) + 2048;
/// L1's tables: the first frame. Frame n of the table memory is the page n of the machine's words.
pub(super) const L1: Gfn = Gfn(1 << 20);
/// The frames that the checks store to.
pub(super) const STORED: [u64; 8] = [0, 5, 64, 511, 512, 700, 33_000, 34_815];

/// The translations that the guest's processor caches: for each frame the host's, and whether it may store.
#[derive(Default)]
pub(super) struct Tlb(pub(super) Vec<(Gfn, Pfn, bool)>);

impl Translations for Tlb {
    fn flush_all(&mut self) {
        called("flush_all");
        self.0.clear();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        called("flush");
        self.0.retain(|&(gfn, ..)| !gfns.contains(gfn));
    }
}

/// A guest, and what is known of its stores.
pub(super) struct World<'v, 'm, F: Format, const SINGLE: bool> {
    pub(super) vm: &'v Vm<F, On<'m, SINGLE>>,
    pub(super) machine: &'m Machine,
    pub(super) vcpu: Vcpu<'v, F, On<'m, SINGLE>>,
    pub(super) idle: Idle,
    pub(super) tlb: Tlb,
    /// Pages of slot 0 that the guest has stored to while it logged, and that no harvest has told since.
    pub(super) written: BTreeSet<u64>,
    /// Pages that were collected from a ring. They are copied after the reset.
    pub(super) collected: BTreeSet<u64>,
    /// Whether the host has changed a page, and could not tell it.
    pub(super) untold: bool,
    /// Whether L1 has withdrawn its page 5 and asked for a flush.
    pub(super) withdrawn: bool,
}

/// L1's table: its root is the first page of the table memory.
pub(super) fn ept() -> EptTable {
    let root = L1.gpa().0;
    EptTable::new(root | 1 << 6 | 3 << 3 | 6, EptFeatures { accessed_dirty: true, ..EptFeatures::of(46) })
        .expect("a pointer that VM entry takes")
}

impl<'v, 'm, F: Format, const SINGLE: bool> World<'v, 'm, F, SINGLE> {
    /// The first frame of slot 0.
    pub(super) fn first(&mut self) -> Gfn {
        self.vm.memory().get(&mut self.idle, RAM).expect("RAM").gfns.start
    }

    fn logs(&mut self) -> bool {
        self.vm.memory().get(&mut self.idle, RAM).is_some_and(|slot| slot.log_dirty)
    }

    pub(super) fn fault(&mut self, page: u64, access: Access) -> Result<Next, FaultError> {
        let gpa = (self.first() + page).gpa();
        self.vcpu.fault(&mut self.idle, Fault { gpa, access })
    }

    /// The guest enters and stores to a page, through its TLB if that allows it.
    pub(super) fn store(&mut self, page: u64) {
        let gfn = self.first() + page;
        for _ in 0..16 {
            drop(self.vcpu.enter(&mut self.idle, &mut self.tlb));
            if self.stores_by_tlb(gfn, page) {
                return;
            }
            if self.walks(gfn) {
                continue;
            }
            match self.fault(page, Access::Write) {
                Ok(Next::Leave(Leave::RingFull)) => self.harvest_all(),
                Ok(_) => {}
                Err(error) => panic!("a store to page {page}: {error}"),
            }
        }
        panic!("a store to page {page} never ends");
    }

    pub(super) fn store_all(&mut self) {
        for page in STORED {
            self.store(page);
        }
    }

    fn stores_by_tlb(&mut self, gfn: Gfn, page: u64) -> bool {
        let found = self.tlb.0.iter().find(|&&(cached, _, writes)| cached == gfn && writes);
        let Some(&(_, pfn, _)) = found else { return false };
        let now = self.machine.page(HVA + page * PAGE_SIZE);
        assert!(
            now.writable && now.pfn == pfn,
            "page {page}: the guest stores to {pfn:?}, the host has {now:?}"
        );
        if self.logs() {
            self.written.insert(page);
        }
        true
    }

    /// The hardware walks for a store, and caches the translation.
    fn walks(&mut self, gfn: Gfn) -> bool {
        let walk = self.vm.memory().shared(&mut self.idle);
        let at = walk.descend(gfn);
        let leaf = F::decode(at.word);
        if !F::is_present(at.word) || !leaf.perms.allows(Access::Write) {
            return false;
        }
        let touched = table::Word(at.word.0 | F::touch(Access::Write));
        if F::HARDWARE_AD && at.entry.cas(at.word, touched).is_err() {
            return false;
        }
        let inside = gfn.0 & (at.level.pages() - 1);
        let pfn = Pfn(leaf.pfn.0 & !(at.level.pages() - 1)) + inside;
        drop(walk);
        self.tlb.0.push((gfn, pfn, true));
        true
    }

    pub(super) fn harvest_all(&mut self) {
        let harvest = self.vm.memory().harvest_all(&mut self.idle).unwrap();
        self.take(harvest);
    }

    pub(super) fn take(&mut self, harvest: Harvest<'_, F, On<'m, SINGLE>>) {
        for page in harvest.iter().filter(|page| page.slot == RAM) {
            self.written.remove(&page.page);
        }
        harvest.commit();
    }

    /// L1 maps its frame 5 for L2's frame 5, or withdraws it.
    pub(super) fn l1_maps(&mut self, is_mapped: bool) {
        let words = &self.machine.words;
        for table in 0..3 {
            words[table * 512].store((L1.0 + table as u64 + 1) << 12 | 0b111, SeqCst);
        }
        words[3 * 512 + 5].store(if is_mapped { 5 << 12 | 6 << 3 | 0b111 } else { 0 }, SeqCst);
    }

    pub(super) fn nested(&mut self) -> Option<L2<'_, 'v, F, On<'m, SINGLE>, EptTable>> {
        self.vcpu.nested(&mut self.idle, ept()).ok()
    }

    /// The host moves a page of RAM to another frame.
    pub(super) fn migrate(&mut self, page: u64) {
        let hvas = Span::sized(HVA + page * PAGE_SIZE, PAGE_SIZE);
        let before = self.machine.page(hvas.start);
        let _change = self.vm.invalidate(hvas, Reason::Migrate).apply(&mut self.idle).settle();
        self.machine.set(hvas.start, Pfn(before.pfn.0 ^ 1 << 28), before.writable);
    }

    /// Checks that the VM is whole: after the panic, and without another one.
    fn check(&mut self) {
        let (vm, logs) = (self.vm, self.logs());
        self.machine.late.store(false, SeqCst);
        if core::mem::take(&mut self.untold) {
            // As the documentation asks of a host.
            drop(
                vm.invalidate(Span::sized(HVA, PAGES * PAGE_SIZE), Reason::Unmap)
                    .apply(&mut self.idle)
                    .settle(),
            );
        }
        if vm.memory().get(&mut self.idle, RAM).is_none() {
            let slot = Slot::new(RAM, Gfn(0), PAGES, HVA);
            vm.memory().commit(&mut self.idle, |tx| tx.create(slot)).unwrap();
        }
        if !logs {
            self.written.clear();
        }
        assert_eq!(vm.grace.busy(), 0, "a thread takes tables apart for ever");
        self.nothing_lost();
        for _ in 0..2 {
            self.store_all();
            self.nothing_lost();
            for page in [0, 64, 512] {
                self.migrate(page);
            }
        }
        self.check_l2();
        vm.memory().commit(&mut self.idle, |tx| tx.set_log_dirty(RAM, !logs)).unwrap();
        self.store_all();
        if !logs {
            self.harvest_all();
            assert!(self.written.is_empty(), "stores to pages {:?} are not in the new log", self.written);
        }
        self.written.clear();
        vm.collect(&mut self.idle);
        let mut leaves = [0_u64; 3];
        vm.memory().lockless(&mut self.idle).for_each(Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)), |found| {
            leaves[usize::from(found.level.number()) - 1] += 1;
        });
        assert_eq!(vm.stats().leaves, leaves, "as counted, and as walked");
        vm.zap_all(&mut self.idle).unwrap();
        self.store(5);
        self.vcpu.give_tables_back();
        vm.shrink(&mut self.idle);
    }

    /// Each store while slot 0 logged is told by now.
    fn nothing_lost(&mut self) {
        if !self.logs() {
            return;
        }
        if !self.vm.rings.all().is_empty() {
            let collected = &mut self.collected;
            let tell = |page: DirtyPage| _ = collected.insert(page.page);
            self.vm.collect_ring(&mut self.idle, VcpuId(0), tell).unwrap();
            self.reset();
        }
        self.harvest_all();
        assert!(self.written.is_empty(), "stores to pages {:?} are in no log", self.written);
    }

    /// Resets the ring, and copies the collected pages.
    pub(super) fn reset(&mut self) {
        let pages = |_| {
            called("pages");
            u64::MAX
        };
        let _ = self.vm.reset_rings_in_part(&mut self.idle, pages).unwrap();
        for page in core::mem::take(&mut self.collected) {
            self.written.remove(&page);
        }
    }

    /// L2 maps nothing that the host or L1 has withdrawn.
    fn check_l2(&mut self) {
        if self.vm.spaces[0].nested.get().is_none() {
            return;
        }
        let (now, withdrawn) = (self.machine.page(HVA + 5 * PAGE_SIZE), self.withdrawn);
        let first = self.first();
        let l2 = self.nested().unwrap();
        if let Some(leaf) = l2.translate(Gfn(5).gpa()) {
            assert!(!withdrawn, "L2 has what L1 has withdrawn");
            assert!(first == Gfn(0) && leaf.pfn == now.pfn, "L2 has {leaf:?}, the host {now:?}");
        }
    }
}

/// Runs one case on a machine of its own. Returns the number of callbacks in its operation.
fn run<F: Format, const SINGLE: bool>(case: &Case<F, SINGLE>, panics: Panics) -> (u64, &'static str) {
    let machine = Machine::new();
    machine.large.store(case.large, SeqCst);
    let vm = Vm::<F, On<'_, SINGLE>>::builder(On(&machine)).vcpus(2).dirty_log(case.log).build().unwrap();
    let mut idle = Idle::take().unwrap();
    let ram = Slot::new(RAM, Gfn(0), PAGES, HVA);
    let ram = if case.logs { ram.log_dirty() } else { ram };
    let tables = Slot::new(SlotId(9), L1, super::machine::TABLE_PAGES, TABLES);
    vm.memory()
        .commit(&mut idle, |tx| {
            tx.create(ram)?;
            tx.create(tables)
        })
        .unwrap();
    let (calls, name, mut idle) = {
        let vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let (tlb, written) = (Tlb::default(), BTreeSet::new());
        let mut world = World {
            vm: &vm,
            machine: &machine,
            vcpu,
            idle,
            tlb,
            written,
            collected: BTreeSet::new(),
            untold: false,
            withdrawn: false,
        };
        (case.before)(&mut world);
        let (calls, name) = planned(panics, || (case.operation)(&mut world));
        world.check();
        (calls, name, world.idle)
    };
    if vm.spaces[0].nested.get().is_none() {
        let pages = vm.table_pages(&mut idle);
        let all = pages.reachable + pages.waiting + pages.free;
        assert_eq!(all, pages.allocated, "no table page is lost: {pages:?}");
    }
    drop(vm);
    assert_eq!(machine.lent.load(SeqCst), machine.lost.load(SeqCst), "the host has its memory back");
    (calls, name)
}

/// Ends the process if nothing moves on: an operation that waits for ever would otherwise look like a slow test.
fn watched<R>(work: impl FnOnce(&AtomicU64) -> R) -> R {
    let (moves, done) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut still = 0;
            let mut before = 0;
            while done.load(SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(20));
                let now = moves.load(SeqCst);
                still = if now == before { still + 1 } else { 0 };
                before = now;
                if still > 6_000 {
                    std::eprintln!("an operation after a panic waits for ever");
                    std::process::abort();
                }
            }
        });
        let result = catch_unwind(AssertUnwindSafe(|| work(&moves)));
        done.store(1, SeqCst);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Lets each callback of each case whose name contains one of `only` panic, by each plan. Adds the callbacks' names to
/// `names`. Returns the number of panics.
pub(super) fn each_panics<F: Format, const SINGLE: bool>(
    only: &[&str],
    plans: &[fn(u64) -> Panics],
    names: &mut BTreeSet<&'static str>,
) -> u64 {
    let mut panics = 0;
    let is_due = |case: &&Case<F, SINGLE>| only.iter().any(|name| case.name.contains(name));
    watched(|moves| {
        for case in cases::<F, SINGLE>().iter().filter(is_due) {
            let (calls, _) = run(case, Panics::Never);
            assert!((1..200).contains(&calls), "{}: {calls} callbacks", case.name);
            for plan in (0..calls).flat_map(|nth| plans.iter().map(move |plan| plan(nth))) {
                let ended = catch_unwind(AssertUnwindSafe(|| run(case, plan)));
                let (_, name) = ended.unwrap_or_else(|panic| {
                    std::eprintln!("{}, {}, {plan:?} of {calls}", F::NAME, case.name);
                    resume_unwind(panic)
                });
                names.insert(name);
                moves.fetch_add(1, SeqCst);
                panics += 1;
            }
        }
    });
    panics
}

#[test]
fn each_callback_panics_in_turn() {
    const BOTH: &[fn(u64) -> Panics] = &[Panics::Once, Panics::From];
    const ALL: &[&str] = &[""];
    // Roots of four pages differ in few of them.
    const WITH_ROOTS: &[&str] = &["zap all", "budget", "faults that ask"];
    let is_night = std::env::var_os("SLAT_THOROUGH").is_some();
    let (roots, plans) = if is_night { (ALL, BOTH) } else { (WITH_ROOTS, &BOTH[..1]) };
    let mut names = BTreeSet::new();
    let panics = each_panics::<Npt4, false>(ALL, BOTH, &mut names)
        + each_panics::<Ept4NoAd, true>(ALL, plans, &mut names)
        + each_panics::<Sv48x4, true>(roots, plans, &mut names);
    let host =
        ["lookup", "resolve", "read", "read_all", "compare_exchange", "token", "kick", "broadcast_flush"];
    let others = ["observe", "lend", "free", "flush", "flush_all", "before", "after", "store", "operations"];
    let closures = ["confirm", "change", "tell", "pages", "seen", "visit"];
    for name in host.into_iter().chain(others).chain(closures) {
        assert!(names.contains(name), "{name} has never panicked");
    }
    std::println!("EXECUTIONS Inject panics {panics}");
}

/// A VM that is dropped returns all of its memory but the block for which the host panics.
fn drops<const SINGLE: bool>() {
    let run = |panics: Panics| {
        let (machine, mut idle) = (Machine::new(), Idle::take().unwrap());
        let vm = Vm::<Npt4, On<'_, SINGLE>>::builder(On(&machine)).build().unwrap();
        let slot = Slot::new(RAM, Gfn(0), 200 * 512, HVA);
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for table in 0..200 {
            let fault = Fault { gpa: Gfn(table * 512).gpa(), access: Access::Read };
            let _ = vcpu.fault(&mut idle, fault).unwrap();
        }
        drop(vcpu);
        let (calls, _) = planned(panics, || drop(vm));
        let (lent, lost) = (machine.lent.load(SeqCst), machine.lost.load(SeqCst));
        assert!(lent == lost && lost <= calls, "{panics:?}: {lent} blocks are lent, {lost} were lost");
        (calls, lost)
    };
    let (calls, _) = run(Panics::Never);
    for nth in 0..calls {
        assert_eq!(run(Panics::Once(nth)), (calls, 1));
        assert_eq!(run(Panics::From(nth)), (calls, calls - nth));
    }
}

#[test]
fn a_host_that_panics_while_a_vm_is_dropped_loses_nothing_else() {
    drops::<false>();
    drops::<true>();
}
