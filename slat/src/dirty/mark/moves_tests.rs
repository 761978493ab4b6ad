//! A transaction publishes at any moment between a store's permission and its mark: the store is in the log that was
//! known, wherever its memslot is by then.
//!
//! The transaction runs on a thread of its own. It begins after a certain write of the operation to the tables, or in a
//! certain call of the host, and the operation continues as soon as the next version is published. The transaction then
//! still waits for the operation's section.

use crate::nested::*;
use crate::sync::prim::{AtomicBool, AtomicU64, SeqCst};
use crate::table::Word;
use crate::table::formats::{Ept4NoAd, Npt4};
use crate::table::history::watched;
use crate::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

/// L1's tables are in the first four pages. The memslot of the others logs writes.
const TABLES: SlotId = SlotId(0);
const RAM: SlotId = SlotId(3);
const BASE: Hva = Hva(0x10_0000);
const FIRST: Gfn = Gfn(4);
const PAGES: u64 = 64;
/// The page that is stored to, the same page by frames, and the frame after a move.
const PAGE: u64 = 40;
const GFN: Gfn = Gfn(FIRST.0 + PAGE);
const ELSEWHERE: Gfn = Gfn(0x1000);
/// L2's page, which L1's table maps to `GFN`, and the memory of the table's last level.
const G2: Gpa = Gpa(0x5000);

struct Machine {
    words: Vec<AtomicU64>,
    writable: AtomicBool,
    /// The transaction shall begin at the next exchange; it shall begin now; and it has published.
    at_exchange: AtomicBool,
    go: AtomicBool,
    published: AtomicBool,
}

impl Host for Machine {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let writable = self.writable.load(SeqCst);
        let page = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), writable, ..HostPage::PLAIN };
        (writable || access != Access::Write).then_some(page)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.word(hva).load(SeqCst)))
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let done = self.word(hva).compare_exchange(current.0, new.0, SeqCst, SeqCst);
        if self.at_exchange.load(SeqCst) {
            self.transact();
        }
        Some(done.map(Word).map_err(Word))
    }
}

impl Machine {
    fn new() -> Self {
        let mut words = std::vec![0; 4 * 512];
        for table in 0..3 {
            words[table * 512] = (table as u64 + 1) << PAGE_SHIFT | 7 | 1 << 8;
        }
        words[3 * 512 + 5] = GFN.gpa().0 | 6 << 3 | 7;
        Self {
            words: words.into_iter().map(AtomicU64::new).collect(),
            writable: AtomicBool::new(true),
            at_exchange: AtomicBool::new(false),
            go: AtomicBool::new(false),
            published: AtomicBool::new(false),
        }
    }

    fn word(&self, hva: Hva) -> &AtomicU64 {
        &self.words[(hva.0 - BASE.0) as usize / 8]
    }

    /// Lets the transaction begin, and waits until it has published.
    fn transact(&self) {
        self.at_exchange.store(false, SeqCst);
        self.go.store(true, SeqCst);
        while !self.published.load(SeqCst) {
            std::thread::yield_now();
        }
    }
}

/// A transaction beside an operation.
type Transacts = fn(&mut slots::Transaction<'_>) -> Result<(), slots::SlotError>;

fn moves(tx: &mut slots::Transaction<'_>) -> Result<(), slots::SlotError> {
    tx.move_to(RAM, ELSEWHERE).map(drop)
}

/// Cuts off other frames.
fn cuts(tx: &mut slots::Transaction<'_>) -> Result<(), slots::SlotError> {
    tx.cut(RAM, Span::sized(FIRST + 60, 2), SlotId(9)).map(drop)
}

/// Another memslot gets the id, with fewer pages.
fn renews(tx: &mut slots::Transaction<'_>) -> Result<(), slots::SlotError> {
    tx.delete(RAM)?;
    tx.create(Slot::new(RAM, ELSEWHERE, 1, Hva(1 << 40)).log_dirty())
}

/// Another log of the same memslot.
fn relogs(tx: &mut slots::Transaction<'_>) -> Result<(), slots::SlotError> {
    tx.set_log_dirty(RAM, false)?;
    tx.set_log_dirty(RAM, true).map(drop)
}

fn table() -> EptTable {
    EptTable::new(3 << 3 | 6 | 1 << 6, EptFeatures { accessed_dirty: true, ..EptFeatures::of(46) }).unwrap()
}

/// Returns the dirty pages of the memslot: all that is in its log and in rings.
fn dirty<F: Format>(vm: &Vm<F, Machine>, idle: &mut Idle) -> Vec<u64> {
    let harvest = vm.memory().harvest_all(idle).unwrap();
    let pages = harvest.iter().filter(|page| page.slot == RAM).map(|page| page.page).collect();
    harvest.commit();
    pages
}

/// An operation that allows or makes a store to the page: how it is prepared, and the operation. It returns whether the
/// store was allowed or made.
struct Site<F: Format> {
    name: &'static str,
    log: DirtyLog,
    before: fn(&mut Vcpu<'_, F, Machine>, &mut Idle),
    store: fn(&mut Vcpu<'_, F, Machine>, &mut Idle) -> bool,
}

fn stores<F: Format>(vcpu: &mut Vcpu<'_, F, Machine>, idle: &mut Idle) -> bool {
    let store = Fault { gpa: GFN.gpa(), access: Access::Write };
    matches!(vcpu.fault(idle, store).unwrap(), Next::Resume(Resume::Mapped(_) | Resume::Fixed))
}

fn sites<F: Format>() -> Vec<Site<F>> {
    let log = DirtyLog::bitmap();
    let maps: Site<F> = Site { name: "a fault maps the page", log, before: |_, _| (), store: stores };
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    std::vec![
        Site { name: "a fault maps the page, with a ring", log: ring, ..maps },
        Site {
            name: "a permission is restored",
            before: |vcpu, idle| {
                stores(vcpu, idle);
            },
            ..maps
        },
        Site {
            name: "a withdrawn leaf is restored",
            before: |vcpu, idle| {
                vcpu.prefault(idle, Span::sized(GFN, 1), Prefault::OLD).unwrap();
            },
            ..maps
        },
        Site {
            name: "a leaf of a page that was read-only is upgraded",
            before: |vcpu, idle| {
                vcpu.vm().host().writable.store(false, SeqCst);
                let _ = vcpu.fault(idle, Fault { gpa: GFN.gpa(), access: Access::Read }).unwrap();
                vcpu.vm().host().writable.store(true, SeqCst);
            },
            ..maps
        },
        Site { name: "a fault of L2 maps the page", store: stores_of_l2, ..maps },
        maps,
    ]
}

fn stores_of_l2<F: Format>(vcpu: &mut Vcpu<'_, F, Machine>, idle: &mut Idle) -> bool {
    let mut l2 = vcpu.nested(idle, table()).unwrap();
    let done = l2.fault(idle, L1Access::new(G2, Access::Write)).unwrap();
    matches!(done, L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. })
}

/// Sites of a log by D bits. The D bit is marked when the leaf goes: by the move, or by the host.
fn sites_by_bits() -> Vec<Site<Npt4>> {
    let log = DirtyLog::bitmap().track(Track::DirtyBits);
    let maps = Site { name: "a fault maps the page", log, before: |_, _| (), store: stores };
    std::vec![
        Site { name: "a fault of L2 maps the page", store: stores_of_l2, ..maps },
        Site {
            name: "the host takes a page that was stored to",
            store: |vcpu, idle| {
                let stored = stores(vcpu, idle);
                let page = Span::sized(BASE + GFN.gpa().0, PAGE_SIZE);
                drop(vcpu.vm().invalidate(page, Reason::Migrate).apply(idle).settle());
                stored
            },
            ..maps
        },
        maps,
    ]
}

/// The outcome: whether the store was allowed or made, and the dirty pages.
type Seen = (bool, Vec<u64>);

/// Number of writes of an operation, from the last one back, after which the transaction runs. The first writes of an
/// operation make new tables.
const MOMENTS: u64 = 6;

/// Runs the operation of `site`, and the transaction beside it after write number `nth` of the operation. Returns the
/// number of writes, too.
fn beside<F: Format>(site: &Site<F>, transacts: Transacts, nth: u64) -> (u64, Seen) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<F, _>::builder(Machine::new()).dirty_log(site.log).build().unwrap();
    vm.memory()
        .commit(&mut idle, |tx| {
            tx.create(Slot::new(TABLES, Gfn(0), FIRST.0, BASE))?;
            tx.create(Slot::new(RAM, FIRST, PAGES, BASE + FIRST.gpa().0).log_dirty())
        })
        .unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    (site.before)(&mut vcpu, &mut idle);
    dirty(&vm, &mut idle);
    let host = vm.host();
    let mut writes = 0;
    let stored = transacting(&vm, transacts, || {
        let at_write = || {
            if writes == nth {
                host.transact();
            }
            writes += 1;
        };
        watched(at_write, || (site.store)(&mut vcpu, &mut idle))
    });
    drop(vcpu);
    (writes, (stored, dirty(&vm, &mut idle)))
}

/// Runs `operation` with a transaction that it may let [begin](Machine::transact).
fn transacting<F: Format, R>(vm: &Vm<F, Machine>, transacts: Transacts, operation: impl FnOnce() -> R) -> R {
    let host = vm.host();
    let over = AtomicBool::new(false);
    let wait = |over: &AtomicBool| {
        while !host.go.load(SeqCst) && !over.load(SeqCst) {
            std::thread::yield_now();
        }
        host.go.load(SeqCst)
    };
    let before = vm.memory().generation().number();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if wait(&over) {
                vm.memory().commit(&mut Idle::take().unwrap(), transacts).unwrap();
            }
        });
        scope.spawn(|| {
            while wait(&over) && vm.memory().generation().number() == before {
                std::thread::yield_now();
            }
            host.published.store(true, SeqCst);
        });
        let result = catch_unwind(AssertUnwindSafe(operation));
        over.store(true, SeqCst);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs each site with the transaction at each of its last writes. Returns the sites where a page was lost, or reported
/// that was not written, and the number of runs.
fn wrong<F: Format>(
    sites: Vec<Site<F>>,
    transacts: Transacts,
    right: fn(&Seen) -> bool,
) -> (Vec<&'static str>, u64) {
    let (mut wrong, mut runs) = (Vec::new(), 0);
    for site in sites {
        let (writes, alone) = beside(&site, transacts, u64::MAX);
        assert_eq!(alone, (true, std::vec![PAGE]), "{}", site.name);
        let mut moments = writes.saturating_sub(MOMENTS)..writes;
        runs += moments.end - moments.start;
        if !moments.all(|nth| right(&beside(&site, transacts, nth).1)) {
            wrong.push(site.name);
        }
    }
    (wrong, runs)
}

/// The page is dirty if it was written, and no other page is.
fn exactly((stored, dirty): &Seen) -> bool {
    *dirty == if *stored { std::vec![PAGE] } else { Vec::new() }
}

#[test]
fn a_store_is_logged_though_its_memslot_moves_before_the_mark() {
    let (npt, runs) = wrong(sites::<Npt4>(), moves, exactly);
    let (ept, _) = wrong(sites::<Ept4NoAd>(), moves, exactly);
    let (by_bits, _) = wrong(sites_by_bits(), moves, exactly);
    assert_eq!((npt, ept, by_bits), (Vec::new(), Vec::new(), Vec::new()));
    assert!(runs >= 12, "{runs} moments");
}

#[test]
fn a_store_is_logged_though_its_memslot_is_cut_before_the_mark() {
    assert_eq!(wrong(sites::<Npt4>(), cuts, |(_, dirty)| dirty.contains(&PAGE)).0, [""; 0]);
}

#[test]
fn a_store_to_a_deleted_memslot_is_not_logged_in_the_next_one_of_its_id() {
    assert_eq!(wrong(sites::<Npt4>(), renews, |(_, dirty)| dirty.is_empty()).0, [""; 0]);
}

/// Makes a VM whose memslot of `gfns` logs, and lets `operation` run beside a move of that memslot.
fn moved(
    gfns: Span<Gfn>,
    operation: impl FnOnce(&Vm<Npt4, Machine>, &mut Idle),
) -> (Idle, Vm<Npt4, Machine>) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Machine::new()).build().unwrap();
    let pages = |span: Span<Gfn>| (span.start, span.len(), BASE + span.start.gpa().0);
    vm.memory()
        .commit(&mut idle, |tx| {
            let logs = pages(gfns);
            tx.create(Slot::new(RAM, logs.0, logs.1, logs.2).log_dirty())?;
            let before = pages(Span::new(Gfn(0), gfns.start));
            tx.create(Slot::new(TABLES, before.0, before.1, before.2))
        })
        .unwrap();
    transacting(&vm, moves, || operation(&vm, &mut idle));
    (idle, vm)
}

/// Whether an A bit that the engine sets in L1's table is logged. The page with the table moves at that moment.
fn written_entry_of_l1() -> bool {
    let (mut idle, vm) = moved(Span::new(Gfn(3), Gfn(4)), |vm, _| {
        vm.host().at_exchange.store(true, SeqCst);
        vm.memory().try_walk_l1(&table(), L1Access::new(G2, Access::Read)).unwrap();
    });
    dirty(&vm, &mut idle) == [0]
}

#[test]
fn an_entry_that_the_engine_writes_for_l1_is_logged_though_its_memslot_moves() {
    assert!(written_entry_of_l1());
}

/// Whether a store that the VMM makes for the guest is logged. The memslot moves during the store.
fn emulated() -> bool {
    let (mut idle, vm) = moved(Span::sized(FIRST, PAGES), |vm, idle| {
        vm.memory().emulate_store(idle, GFN.gpa(), &[1], |_| vm.host().transact()).unwrap();
    });
    dirty(&vm, &mut idle) == [PAGE]
}

#[test]
fn an_emulated_store_is_logged_though_its_memslot_moves() {
    assert!(emulated());
}

#[test]
fn an_emulated_store_that_panics_is_logged() {
    let (mut idle, vm) = moved(Span::sized(FIRST, PAGES), |vm, idle| {
        let store = || vm.memory().emulate_store(idle, GFN.gpa(), &[1, 2], |_| panic!("half of it is done"));
        assert!(catch_unwind(AssertUnwindSafe(store)).is_err());
    });
    assert_eq!(dirty(&vm, &mut idle), [PAGE]);
}

/// Whether a frame that hardware has written is logged though its memslot was changed by `then` before the mark.
fn written_by_hardware(then: Transacts) -> Vec<u64> {
    let (mut idle, vm) = moved(Span::sized(FIRST, PAGES), |_, _| ());
    vm.memory().commit(&mut idle, |tx| tx.move_to(RAM, FIRST).map(drop)).unwrap();
    let apic = vm.memory().hold_for_hardware(&mut idle, GFN, Access::Write).unwrap();
    dirty(&vm, &mut idle);
    vm.memory().commit(&mut idle, then).unwrap();
    apic.mark_dirty();
    drop(apic);
    dirty(&vm, &mut idle)
}

fn hardware() -> bool {
    written_by_hardware(moves) == [PAGE]
}

#[test]
fn a_frame_that_hardware_has_written_is_logged_wherever_its_memslot_is() {
    assert!(hardware());
    assert!(written_by_hardware(cuts).contains(&PAGE));
    assert_eq!(written_by_hardware(relogs), [PAGE], "a log that has begun since");
    // The frames below go; then the rest moves.
    let shifted = |tx: &mut slots::Transaction<'_>| {
        tx.cut(RAM, Span::sized(FIRST, 8), SlotId(9))?;
        tx.move_to(RAM, ELSEWHERE).map(drop)
    };
    assert!(written_by_hardware(shifted).contains(&(PAGE - 8)));
    assert_eq!(written_by_hardware(renews), [0_u64; 0]);
    // Another memslot is at the frame now.
    let replaced = |tx: &mut slots::Transaction<'_>| {
        tx.move_to(RAM, ELSEWHERE)?;
        tx.create(Slot::new(SlotId(4), FIRST, PAGES, Hva(1 << 40)).log_dirty())
    };
    assert_eq!(written_by_hardware(replaced), [PAGE]);
}
