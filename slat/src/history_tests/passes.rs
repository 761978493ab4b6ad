//! Rule 14: an invalidation hides no newer one by what it takes away, in whatever pass, and beyond its range too.
//!
//! The other actors act at single writes of invalidation J. A fault F has read the lists before the newer invalidation M
//! was listed, and looks at J's place after J has ended. It then may not fill the hole that J left: M has passed that
//! page by. [`Paused`] is F at that moment.

use crate::active::{Epoch, RegionLine};
use crate::notify::{Event, Invalidation};
use crate::sync::mode::Shared;
use crate::table::entry::{Entry, Word};
use crate::table::formats::Npt4;
use crate::table::history::meddled;
use crate::table::pool::Cache;
use crate::walk::Walk;
use crate::*;
use core::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BASE: Hva = Hva(1 << 30);

/// A host of read-only pages.
struct ReadOnly(Level);

impl Host for ReadOnly {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: self.0, writable: false, ..HostPage::PLAIN })
    }
}

type World = Vm<Npt4, ReadOnly>;

/// A VM in which the first pages are mapped read-only by leaves of `level`.
fn world(idle: &mut Idle, level: Level) -> World {
    let vm = Vm::<Npt4, _>::builder(ReadOnly(level)).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, BASE))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in [0, 1] {
        let _ = vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
    }
    drop(vcpu);
    vm
}

fn page(gfn: u64, pages: u64) -> Span<Hva> {
    Span::sized(BASE + gfn * PAGE_SIZE, pages * PAGE_SIZE)
}

fn word(vm: &World, gfn: u64) -> Word {
    // SAFETY: no thread frees tables meanwhile.
    unsafe { vm.spaces[0].radix.descend(vm.tables(), Gfn(gfn)) }.word
}

/// An upgrade freezes the leaf of `gfn`, and stops.
fn freeze(vm: &World, gfn: u64) {
    // SAFETY: no thread frees tables meanwhile.
    let at = unsafe { vm.spaces[0].radix.descend(vm.tables(), Gfn(gfn)) };
    at.entry.cas(at.word, Word::frozen(gfn)).expect("a leaf");
}

/// An invalidation of another page of the region begins, and ends.
fn short(vm: &World) {
    drop(vm.invalidate(page(300, 1), Reason::Clear));
}

/// A fault that has read the epoch, the region's number and its list, and is about to look at the listed places.
struct Paused {
    epoch: Epoch,
    newest: Word,
}

impl Paused {
    fn now(vm: &World) -> Self {
        Self { epoch: vm.active.epoch(), newest: vm.active.newest_of(RegionLine::of(BASE)) }
    }

    /// Whether it fills this word, if each listed place that it looks at has ended.
    fn fills(&self, vm: &World, word: Word) -> bool {
        vm.active.epoch() == self.epoch && word.is_hole() && word <= self.newest
    }
}

/// M withdraws write permission from `gfn`, on a thread of its own, and does not end.
fn withdraw(vm: &World, gfn: u64) -> Invalidation<'_, Npt4, ReadOnly> {
    let withdraw = || vm.invalidate(page(gfn, 1), Reason::Protect).apply(&mut Idle::take().unwrap()).settle();
    std::thread::scope(|scope| scope.spawn(withdraw).join().unwrap())
}

/// J withdraws write permission from pages 0 and 1. Its first pass takes page 0, which is frozen. A short invalidation
/// follows it. In J's second pass, F reads the lists, M passes page 1 by, and an upgrade freezes page 1. Returns
/// whether F fills page 1 after J has ended.
fn hidden_by_the_second_pass() -> bool {
    let mut idle = Idle::take().unwrap();
    let vm = &world(&mut idle, Level::K4);
    freeze(vm, 0);
    let (writes, paused, newer) = (Cell::new(0), Cell::new(None), Cell::new(None));
    let wrote = || {
        writes.set(writes.get() + 1);
        match writes.get() {
            1 => short(vm),
            2 => {
                short(vm);
                paused.set(Some(Paused::now(vm)));
                newer.set(Some(withdraw(vm, 1)));
                freeze(vm, 1);
            }
            _ => {}
        }
    };
    drop(meddled(|_| {}, wrote, || vm.invalidate(page(0, 2), Reason::Protect).apply(&mut idle).settle()));
    assert_eq!(writes.get(), 3, "page 0, page 0 again, page 1");
    assert!(word(vm, 1).is_hole(), "the second pass took the frozen entry");
    let hidden = paused.take().unwrap().fills(vm, word(vm, 1));
    drop(newer.take().unwrap());
    hidden
}

/// J clears page 5 of a large page, and has no page for a table: it zaps all. Between J's number and the zap, a short
/// invalidation begins and ends, F reads the lists, and M passes page 7 by. After the zap a fault links a table, and
/// fills nothing, for its stamp is old. Returns whether F fills page 7 after J has ended.
fn hidden_beyond_the_range() -> bool {
    let mut idle = Idle::take().unwrap();
    let vm = &world(&mut idle, Level::M2);
    let (writes, paused, newer) = (Cell::new(0), Cell::new(None), RefCell::new(None));
    let before = |_: &Entry| {
        if writes.get() == 0 {
            short(vm);
            paused.set(Some(Paused::now(vm)));
            *newer.borrow_mut() = Some(withdraw(vm, 7));
        }
    };
    let link = || {
        let (mut idle, mut pages) = (Idle::take().unwrap(), Cache::default());
        vm.top_up(&mut idle, &mut pages, 4).unwrap();
        let walk = Walk::<_, _, Shared>::on_any_seat(vm, &vm.spaces[0], &mut idle);
        let _ = walk.link_down(&mut pages, Gfn(9), walk.descend(Gfn(9)), Level::K4).unwrap();
        drop(walk);
        vm.pool.give_back(pages.drain());
    };
    let wrote = || {
        writes.set(writes.get() + 1);
        if writes.get() == 1 {
            std::thread::scope(|scope| scope.spawn(link).join().unwrap());
        }
    };
    let event = Event { may_block: false, ..Event::new(page(5, 1), Reason::Clear) };
    meddled(before, wrote, || vm.around(&mut idle, event, &mut |_, _| {}).unwrap());
    assert!(word(vm, 7).is_hole(), "all of the large page was zapped");
    let hidden = paused.take().unwrap().fills(vm, word(vm, 7));
    drop(newer.take().unwrap());
    hidden
}

#[test]
fn a_second_pass_hides_no_newer_invalidation() {
    assert!(!hidden_by_the_second_pass());
}

#[test]
fn a_zap_beyond_the_range_hides_no_newer_invalidation() {
    assert!(!hidden_beyond_the_range());
}

/// J withdraws write permission from pages 0 and 1, and panics after it has taken page 0, which M has passed by and which
/// was frozen then. J ends without a look. Returns whether F fills page 0 after that.
fn hidden_by_a_panic() -> bool {
    let mut idle = Idle::take().unwrap();
    let vm = &world(&mut idle, Level::K4);
    let change = vm.invalidate(page(0, 2), Reason::Protect);
    short(vm);
    let (paused, newer) = (Paused::now(vm), withdraw(vm, 0));
    freeze(vm, 0);
    freeze(vm, 1);
    let mut writes = 0;
    let before = |_: &Entry| {
        writes += 1;
        assert!(writes < 2, "before the second write");
    };
    let apply = AssertUnwindSafe(|| {
        drop(meddled(before, || (), || change.apply(&mut idle).settle()));
    });
    assert!(catch_unwind(apply).is_err());
    assert!(word(vm, 0).is_hole() && word(vm, 1).is_frozen());
    let hidden = paused.fills(vm, word(vm, 0));
    drop(newer);
    hidden
}

#[test]
fn an_invalidation_that_panics_hides_no_newer_invalidation() {
    assert!(!hidden_by_a_panic());
}

/// Nothing is mapped, so one hole above the lowest level is in the range of every invalidation. K begins; M, a newer one
/// of another page, numbers that hole, and has not flushed. K then meets the hole. Returns the hole after M, and after K.
fn numbers_of_an_upper_hole() -> [Word; 2] {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(ReadOnly(Level::K4)).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, BASE))).unwrap();
    let vm = &vm;
    let older = Cell::new(Some(vm.invalidate(page(0, 1), Reason::Protect)));
    let newer = vm.invalidate(page(1, 1), Reason::Migrate);
    let words = Cell::new([word(vm, 0); 2]);
    let wrote = || {
        let Some(older) = older.take() else { return };
        let first = word(vm, 0);
        let apply = || drop(older.apply(&mut Idle::take().unwrap()).settle());
        std::thread::scope(|scope| scope.spawn(apply).join().unwrap());
        words.set([first, word(vm, 0)]);
    };
    drop(meddled(|_| {}, wrote, || newer.apply(&mut idle).settle()));
    words.get()
}

/// Rule 6: K adopts M's flush, and therefore becomes wide: its number is newer than M's from then on.
#[test]
fn an_invalidation_that_adopts_a_debt_leaves_no_older_number() {
    let [newer, adopted] = numbers_of_an_upper_hole();
    assert!(newer.is_hole() && adopted.is_hole());
    assert!(adopted > newer, "{newer:?} became {adopted:?}");
}
