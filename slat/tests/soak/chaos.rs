//! Chaos: the public operations that no other thread of the soak uses, beside all of theirs, with callbacks that panic
//! or wait ([`crate::hazards`]).
//!
//! Some of them take part in the books of the soak: a store by a device or an emulator must be in the log that was on,
//! and a read of L1's table must not outlive its memslot. The others work on *extra* memslots, whose pages have no
//! books: they are there for the address sanitizer, for overflow checks and for the watchdog.

use crate::hazards::often;
use crate::host::{Change, Primary, RAM, hva, some_page};
use crate::logs::Logs;
use crate::meddlers::Meddler;
use crate::nested::Both;
use crate::random::Random;
use crate::slot_places::{ALIASES, frame_of, part_of};
use crate::vm_under_test::{World, count};
use slat::nested::{EptFeatures, EptTable, L1Access};
use slat::notify::SecondaryMmu as _;
use slat::slots::Hint;
use slat::table::Word;
use slat::writes::{TrackerId, WriteListener};
use slat::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// Ids of the extra slots, and the first one that a cut makes.
const EXTRA: std::ops::Range<u32> = 8..12;
const CUT: u32 = 12;
/// One more, at the end of host addresses.
const LAST: SlotId = SlotId(20);
/// The slot of L1's second table, in the space that has the aliases.
const TABLE: SlotId = SlotId(1);
/// Where the extra slots lie, and the pages of each place.
const EXTRA_AT: Gfn = Gfn(40 * Level::G1.pages());
const PLACE: u64 = 1024;
/// Where L1's second table lies: its own page, and the memory behind it.
const TABLE_AT: Gfn = Gfn(60 * Level::G1.pages());
/// Host addresses without books.
const ELSEWHERE: Hva = Hva(0x50_0000_0000);
const TABLE_HVA: Hva = Hva(0x51_0000_0000);
const LAST_HVA: Hva = Hva(0xffff_ffff_ffe0_0000);
const MEMORY: PrivateMemory = PrivateMemory(1);
/// Trackers that outlive the step that made them.
const TRACKERS: usize = 6;

/// Whether the soak keeps no books on the page at this address.
pub fn is_elsewhere(hva: Hva) -> bool {
    hva.private_memory().is_some() || hva >= ELSEWHERE
}

/// Returns the host's page there.
pub fn elsewhere(hva: Hva) -> HostPage {
    HostPage { pfn: Pfn(1 << 33 | hva.0 >> PAGE_SHIFT & 0xff_ffff), ..HostPage::PLAIN }
}

/// The books of the operations of this module.
#[derive(Default)]
pub struct Chaos {
    /// How often L1's second table has lost its memslot: counted when the deletion has returned.
    deleted: AtomicU64,
    /// Held from a deletion to its count. Without it a thread creates the slot again in between, and a read of the new
    /// slot sees the count of the old one's deletion.
    deleting: Mutex<()>,
    /// Reads of that table that went on when the deletion had returned.
    pub late_reads: AtomicU64,
    trackers: Mutex<Vec<TrackerId>>,
}

impl Chaos {
    /// Reads words of L1's second table; false if they are not there.
    pub fn reads(&self, hva: Hva, words: &mut [Word]) -> bool {
        if !is_elsewhere(hva) {
            return false;
        }
        let before = self.deleted.load(SeqCst);
        // Time for a deletion, which waits for this section.
        std::thread::yield_now();
        if self.deleted.load(SeqCst) != before {
            count(&self.late_reads);
        }
        (0..).zip(words).for_each(|(nth, word)| *word = Word(word_of_table(hva + nth * 8)));
        true
    }
}

/// L1's second table is one page, which is the table of every level: each entry links it again, or maps memory.
fn word_of_table(hva: Hva) -> u64 {
    let entry = hva.offset() / 8;
    match entry % 4 {
        0 => TABLE_AT.gpa().0 | 0b111,
        _ => (TABLE_AT + 1 + entry).gpa().0 | 6 << 3 | 0b111,
    }
}

fn second_table() -> EptTable {
    EptTable::new(TABLE_AT.gpa().0 | 3 << 3 | 6, EptFeatures::of(46)).expect("a good pointer")
}

/// One operation of a meddler.
pub fn change<F: Format>(meddler: &mut Meddler<'_, F>) {
    match meddler.random.below(16) {
        0 => age(meddler),
        1 => device_store(meddler),
        2 | 3 => held_store(meddler),
        4 | 5 => emulated_store(meddler),
        6 => track(meddler),
        7 | 8 => extra_slots(meddler),
        9 => page_by_page(meddler),
        10 => hand_over(meddler),
        11 => rings(meddler),
        12 => look_up(meddler),
        13 => tidy(meddler),
        14 => second_l1(meddler),
        _ => logs_of_extra_slots(meddler),
    }
}

/// Some host addresses, with or without books.
fn some_hvas(random: &mut Random) -> Span<Hva> {
    let pages = random.pick(&[1, 1, 3, 512, 4000]);
    let start = match random.below(8) {
        0 => ELSEWHERE + (random.below(4 * PLACE) << PAGE_SHIFT),
        1 => LAST_HVA,
        2 => MEMORY.at(random.below(PLACE) << PAGE_SHIFT),
        _ => hva(some_page(random)),
    };
    Span::new(start, Hva(start.0.saturating_add(pages << PAGE_SHIFT)))
}

fn some_extra(random: &mut Random) -> Span<Gfn> {
    let pages = random.pick(&[1, 1, 8, 513]);
    Span::sized(EXTRA_AT + random.below(4 * PLACE), pages)
}

fn age<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("age");
    let (vm, random, idle) = (&meddler.world.vm, &mut meddler.random, &mut meddler.idle);
    let hvas = some_hvas(random);
    let gfns = some_extra(random);
    vm.young(
        idle,
        hvas,
        random.pick(&[notify::Young::Test, notify::Young::Clear, notify::Young::ClearAndFlush]),
    );
    vm.age(idle, hvas, &mut |_| ());
    vm.forget(idle, hvas);
    vm.memory().lockless(idle).age(gfns, |_| ());
    vm.memory().lockless(idle).is_young(gfns);
}

/// The stores that a device makes by host address, and marks.
fn device_store<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("store by a device");
    let world = meddler.world;
    let at = hva(some_page(&mut meddler.random));
    let number = world.logs.on(part_of(at));
    std::thread::yield_now();
    world.vm.mark_dirty(Span::sized(at, 8));
    world.logs.note(part_of(at), number);
}

/// A store to a held frame, marked by the end of the use or, for hardware, by a call that comes late.
fn held_store<F: Format>(meddler: &mut Meddler<'_, F>) {
    let (world, random) = (meddler.world, &mut meddler.random);
    let page = some_page(random);
    let gfn = frame_of(&world.places, SpaceId(0), page);
    meddler.share.about_to("hold a frame to write");
    let Ok(mut held) = world.vm.memory().hold(&mut meddler.idle, gfn, Access::Write) else { return };
    for _ in 0..3 {
        meddler.share.about_to("write a held frame");
        let number = world.logs.on(part_of(hva(page)));
        if let Some(used) = held.write(&mut meddler.idle) {
            // The frame may have become another slot's page, at another place of the host.
            let still = world.places.settled(SpaceId(0), gfn) == Some(hva(page));
            std::thread::yield_now();
            drop(used);
            if still {
                world.logs.note(part_of(hva(page)), number);
            }
        } else if held.refresh(&mut meddler.idle).is_err() {
            return;
        }
    }
    held.mark_dirty();
}

/// An instruction that the VMM decodes and carries out.
fn emulated_store<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("emulate a store");
    let world = meddler.world;
    let gfn = frame_of(&world.places, SpaceId(0), some_page(&mut meddler.random));
    emulate(&world.vm, &world.logs, &mut meddler.idle, gfn);
}

/// Emulates a store to `gfn`, which may have no memslot.
pub fn emulate<F: Format>(vm: &Vm<F, Primary>, logs: &Logs, idle: &mut Idle, gfn: Gfn) {
    let mut stored = None;
    let emulated = vm.memory().emulate_store(idle, gfn.gpa(), &[1, 2], |hva| {
        stored = (!is_elsewhere(hva)).then(|| (part_of(hva), logs.on(part_of(hva))));
        std::thread::yield_now();
    });
    if let (Ok(()), Some((part, number))) = (emulated, stored) {
        logs.note(part, number);
    }
}

struct Listener;

impl WriteListener for Listener {}

fn track<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("track stores");
    let world = meddler.world;
    let gfn = frame_of(&world.places, SpaceId(0), some_page(&mut meddler.random));
    let gfns = Span::sized(gfn, 1 + meddler.random.below(40));
    let trackers = &world.vm.host().chaos.trackers;
    if let Ok(tracking) = world.vm.memory().track_writes(&mut meddler.idle, gfns, Arc::new(Listener)) {
        emulate(&world.vm, &world.logs, &mut meddler.idle, gfn);
        let mut trackers = trackers.lock().unwrap();
        if trackers.len() < TRACKERS && meddler.random.one_in(4) {
            trackers.push(tracking.detach());
        }
    }
    if meddler.random.one_in(4) {
        let popped = trackers.lock().unwrap().pop();
        if let Some(tracker) = popped {
            world.vm.memory().untrack_writes(tracker);
        }
    }
}

fn extra_slots<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("change extra memslots");
    let (vm, random) = (&meddler.world.vm, &mut meddler.random);
    // A transaction that is refused changes nothing.
    let _ = vm.memory().commit(&mut meddler.idle, |tx| {
        for _ in 0..=random.below(4) {
            let id = SlotId(random.pick(&[EXTRA.start, EXTRA.start + 1, EXTRA.end - 1]));
            let at = EXTRA_AT + random.below(4) * PLACE;
            let pages = random.pick(&[PLACE, 512, 64, 700]);
            let slot = Slot::new(id, at, pages, ELSEWHERE + (random.below(4) << 22));
            match random.below(12) {
                0 | 1 => tx.create(slot)?,
                2 => tx.create(slot.log_dirty())?,
                3 => tx.create_with_private(slot, MEMORY.at(random.below(4) << 21))?,
                4 | 5 => tx.set_private(some_extra(random), random.one_in(2))?,
                6 => drop(tx.delete(id)?),
                7 => drop(tx.move_to(id, at)?),
                8 => drop(tx.set_log_dirty(id, random.one_in(2))?),
                9 => drop(tx.cut(id, some_extra(random), SlotId(CUT + random.below(4) as u32))?),
                10 => drop(tx.delete(SlotId(CUT + random.below(4) as u32))?),
                _ if random.one_in(2) => drop(tx.delete(LAST)?),
                _ => tx.create(Slot::new(LAST, EXTRA_AT + 8 * PLACE, 511, LAST_HVA))?,
            }
        }
        Ok(())
    });
}

/// An announced range of which the host then tells pages.
fn page_by_page<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("tell pages one by one");
    let (world, random) = (meddler.world, &mut meddler.random);
    let page = some_page(random);
    let pages = page..(page + 1 + random.below(600)).min(crate::host::PAGES);
    let hvas = Span::new(hva(pages.start), hva(pages.end));
    let (change, why) = random.pick(&[
        (Change::Drop, Reason::Reclaim),
        (Change::Protect, Reason::Numa),
        (Change::Move, Reason::ChangePte),
        (Change::Drop, Reason::Unmap),
    ]);
    let event = notify::Event { may_block: random.one_in(2), ..notify::Event::new(hvas, why) };
    let host = world.vm.host();
    host.with_regions(&pages, |edit| {
        // `Again` leaves all as it was.
        let _ = world.vm.around(&mut meddler.idle, event, &mut |idle, told| {
            if why == Reason::Unmap {
                return edit(change);
            }
            told.changed(idle, hvas, None);
            told.flush(idle);
            edit(change);
        });
    });
}

/// An invalidation that another thread ends.
fn hand_over<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("hand an invalidation over");
    let (world, random) = (meddler.world, &mut meddler.random);
    let page = some_page(random);
    let pages = page..(page + 1 + random.below(64)).min(crate::host::PAGES);
    world.vm.host().with_regions(&pages, |edit| {
        let hvas = Span::new(hva(pages.start), hva(pages.end));
        let mut change = world.vm.invalidate(hvas, Reason::Migrate);
        if meddler.random.one_in(2) {
            // Its end pays the debt that is leaked here.
            std::mem::forget(change.changed(&mut meddler.idle, hvas, None));
        }
        let change = change.apply(&mut meddler.idle).settle();
        edit(Change::Move);
        std::thread::scope(|scope| scope.spawn(move || drop(change)).join().unwrap());
    });
}

/// Collects and resets rings, as a VMM does for KVM's interface; nothing without rings.
fn rings<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("collect rings");
    let (world, random) = (meddler.world, &mut meddler.random);
    let id = VcpuId(random.below(crate::VCPUS as u64) as u32);
    let idle = &mut meddler.idle;
    world.logs.take_from_rings(|taken| {
        let collected = world.vm.collect_ring(idle, id, |page| {
            taken.insert((u64::from(page.slot.0), page.page));
        });
        if collected.is_ok() && random.one_in(2) {
            let _ = world.vm.reset_rings_in_part(idle, |_| random.below(9));
        }
    });
    let _ = world.vm.collected_not_reset(&mut meddler.idle, id);
}

fn look_up<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("look memslots up");
    let (vm, random, idle) = (&meddler.world.vm, &mut meddler.random, &mut meddler.idle);
    let slots = vm.memory();
    let (gfns, hvas) = (some_extra(random), some_hvas(random));
    let hint = Hint::default();
    {
        let snapshot = slots.snapshot(idle);
        for slot in snapshot.iter() {
            let found = snapshot.find_with(&hint, slot.gfns.start);
            assert_eq!(found.map(|found| found.id), Some(slot.id));
            let whole = snapshot.get(slot.id).expect("one version has all of it");
            assert!(whole.gfns.covers(&slot.gfns), "{whole:?} {slot:?}");
        }
        snapshot.over_hvas(hvas, |_| ());
        assert!(snapshot.range(gfns).all(|slot| slot.gfns.overlaps(&gfns)));
    }
    slots.find(idle, gfns.start);
    slots.for_each(idle, |_| ());
    slots.is_dirty(gfns.start);
    vm.memory().translate(idle, gfns.start);
    // No other thread changes this slot.
    for _ in 0..20 {
        assert!(vm.space(ALIASES).unwrap().get(idle, SlotId(0)).is_some());
        let dirty = vm.space(ALIASES).unwrap().dirty(idle, SlotId(0), |_| ());
        assert!(matches!(dirty, Err(DirtyError::NotLogged(SlotId(0)) | DirtyError::RingOnly)), "{dirty:?}");
    }
}

fn tidy<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("compact, shrink, count");
    let (vm, idle) = (&meddler.world.vm, &mut meddler.idle);
    let choice = meddler.random.below(5);
    often(meddler.random.one_in(3), || match choice {
        0 => drop(vm.compact(idle)),
        1 => drop(vm.shrink(idle)),
        2 => drop(vm.stats()),
        3 => vm.collect(idle),
        _ => drop(vm.table_pages(idle)),
    });
}

/// L1's second table comes and goes; vCPUs run L2 on it (`vcpu_thread`), and the VMM walks it.
fn second_l1<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("change the memslot of L1's second table");
    let (world, idle) = (meddler.world, &mut meddler.idle);
    let slots = world.vm.space(ALIASES).unwrap();
    let chaos = &world.vm.host().chaos;
    // A panic of a callback poisons it.
    let deleting = || chaos.deleting.lock().unwrap_or_else(PoisonError::into_inner);
    {
        let _alone = deleting();
        let _ = slots.commit(idle, |tx| tx.create(Slot::new(TABLE, TABLE_AT, 1, TABLE_HVA)));
    }
    let access = L1Access::new(Gpa(meddler.random.below(1 << 39)), Access::Read);
    let _ = slots.walk_l1(idle, &second_table(), access);
    let _ = slots.look_l1(&second_table(), access.gpa);
    world.vm.l1_broadcasts(idle, ALIASES, Span::sized(Gfn(0), 1 << 27), |_: &EptTable| true);
    let _alone = deleting();
    if slots.commit(idle, |tx| tx.delete(TABLE).map(drop)).is_ok() {
        count(&chaos.deleted);
    }
}

/// A vCPU runs L2 on the second table, after L1 has flushed it.
fn run_l2<F: Format>(vcpu: &mut Vcpu<'_, F, Primary>, idle: &mut Idle, random: &mut Random) {
    vcpu.switch_to(ALIASES);
    // Every fourth entry of an upper table is a link.
    let mut gpa = || {
        let upper = (0..3).map(|level| 4 * random.below(128) << (21 + 9 * level));
        Gpa(upper.sum::<u64>() | random.below(1 << 21))
    };
    for _ in 0..3 {
        {
            let Ok(mut l2) = vcpu.nested(idle, second_table()) else { return };
            // An error is the budget's.
            let _ = l2.fault(idle, L1Access::new(gpa(), Access::Read));
            l2.translate(gpa());
        }
        vcpu.l1_flushes(|_: &EptTable| true);
    }
}

/// Operations of a vCPU outside the guest.
pub fn step<F: Format>(
    world: &World<F>,
    vcpu: &mut Vcpu<'_, F, Primary>,
    idle: &mut Idle,
    caches: &mut Both,
    random: &mut Random,
) {
    let gfns = some_extra(random);
    let access = random.pick(&[Access::Read, Access::Write, Access::Fetch]);
    // The extra slot may be gone, or its memory of the other kind.
    match random.below(7) {
        0 => drop(vcpu.prefault(idle, gfns, Prefault::young(access))),
        1 => vcpu.give_tables_back(),
        2 => drop(vcpu.fault_as(idle, Fault { gpa: gfns.start.gpa(), access }, random.one_in(2))),
        3 => {
            vcpu.take_ready();
            vcpu.forget_tokens();
        }
        4 => run_l2(vcpu, idle, random),
        5 => hardware_store(world, vcpu, idle, caches, random),
        _ => drop(vcpu.fault(idle, Fault { gpa: gfns.start.gpa(), access })),
    }
}

/// Hardware stores to a held frame while the vCPU runs, and the VMM marks it later: the memslot may have moved.
fn hardware_store<F: Format>(
    world: &World<F>,
    vcpu: &mut Vcpu<'_, F, Primary>,
    idle: &mut Idle,
    caches: &mut Both,
    random: &mut Random,
) {
    let page = some_page(random);
    let gfn = frame_of(&world.places, SpaceId(0), page);
    let Ok(held) = world.vm.memory().hold_for_hardware(idle, gfn, Access::Write) else { return };
    let part = part_of(hva(page));
    let number = world.logs.on(part);
    let ready = vcpu.enter(idle, caches);
    if held.current(&ready).is_none() {
        return;
    }
    let guest = ready.poll();
    if world.places.settled(SpaceId(0), gfn) != Some(hva(page)) {
        return;
    }
    for _ in 0..random.below(200) {
        if guest.kicked() {
            break;
        }
        std::hint::spin_loop();
    }
    if random.one_in(20) {
        // The next entry finds it. Nothing may come in between that waits for an invalidation: that waits for this vCPU.
        std::mem::forget(guest);
        return drop(vcpu.enter(idle, caches));
    }
    drop(guest);
    std::thread::yield_now();
    held.mark_dirty();
    world.logs.note(part, number);
}

fn logs_of_extra_slots<F: Format>(meddler: &mut Meddler<'_, F>) {
    meddler.share.about_to("use logs of extra memslots");
    let (world, random, idle) = (meddler.world, &mut meddler.random, &mut meddler.idle);
    let slots = world.vm.memory();
    let id = SlotId(random.pick(&[EXTRA.start, EXTRA.start + 1, CUT, LAST.0]));
    let mut bits = [0; 16];
    // Errors: the slot is gone, or does not log, or is of another size.
    match random.below(5) {
        0 => slots.mark_dirty(some_extra(random)),
        1 => drop(slots.mark_dirty_bits(id, 64 * random.below(4), &[random.below(u64::MAX)])),
        2 => {
            let _ = slots.dirty_bits(idle, id, &mut bits);
            let _ = slots.clear_dirty(idle, id, 0, 64, &bits);
        }
        3 => drop(slots.harvest(idle, id).map(Harvest::commit)),
        _ => drop(slots.dirty(idle, id, |_| ())),
    }
}

/// Takes everything without books away, when all threads have ended.
pub fn clear_away<F: Format>(world: &World<F>, idle: &mut Idle) {
    let vm = &world.vm;
    for space in [SpaceId(0), ALIASES] {
        let slots = vm.space(space).unwrap();
        let mut extra = Vec::new();
        slots.for_each(idle, |slot| extra.push(slot));
        extra.retain(|slot| is_elsewhere(slot.hva) || slot.hva < RAM);
        extra.dedup_by_key(|slot| slot.id);
        for slot in extra {
            slots.commit(idle, |tx| tx.delete(slot.id).map(drop)).expect("it was just there");
        }
    }
    for tracker in vm.host().chaos.trackers.lock().unwrap().drain(..) {
        vm.memory().untrack_writes(tracker);
    }
}
