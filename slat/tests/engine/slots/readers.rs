//! Readers during a writer's transactions: they see one published set, never a mixture, and it stays while they look.
//!
//! Sixteen slots each carry the number of their set. From one set to the next all of them move by one frame, over their
//! own old range. Every fortieth time all are deleted and created where they began, with other host addresses. Each is
//! one transaction. In between, lone slots are created, changed and deleted, one operation at a time. A reader can thus
//! compute from any slot its set, and from the writer's two counters the sets to which it may belong.

use super::Leaving;
use super::oracle::PAGE;
use super::subject::{ARENA, Nothing};
use crate::common::random::Random;
use slat::memslots::{Generation, Snapshot};
use slat::table::formats::Npt4;
use slat::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Slots that carry the number.
const MANY: u32 = 16;
const PAGES: u64 = 8;
/// Frames from one slot's first place to the next slot's.
const STREET: u64 = 64;
/// Moves before all slots begin again.
const STEPS: u64 = 40;
/// Ids, and ranges, of lone slots.
const LONE: Range<u32> = 100..124;
const READERS: u64 = 2;

/// Slot `id` of set `number`.
fn slot_of(number: u64, id: u32) -> Slot {
    let gfn = Gfn(u64::from(id) * STREET + number % STEPS);
    Slot::new(SlotId(id), gfn, PAGES, hvas_of(number).start + u64::from(id) * PAGES * PAGE)
}

/// Returns the host addresses of set `number`, slot beside slot.
fn hvas_of(number: u64) -> Span<Hva> {
    let bytes = u64::from(MANY) * PAGES * PAGE;
    Span::sized(Hva(ARENA + number / STEPS * bytes), bytes)
}

/// Returns the set that `slot` belongs to, if any.
fn number_of(slot: &Slot) -> u64 {
    let step = slot.gfns.start.0 - u64::from(slot.id.0) * STREET;
    let lap = (slot.hva.0 - ARENA) / hvas_of(0).len();
    let number = lap * STEPS + step;
    assert_eq!(*slot, slot_of(number, slot.id.0), "a slot of no set");
    number
}

struct World {
    vm: Vm<Npt4, Nothing>,
    /// The newest set that may be published, and the newest that certainly is.
    begun: AtomicU64,
    done: AtomicU64,
    /// Readers that still run, and the writer.
    reading: AtomicU64,
    writing: AtomicU64,
}

impl World {
    /// Runs `reader` on every reader's thread while a writer publishes set after set.
    fn churn(reader: impl Fn(&Self, &mut Idle) + Sync) {
        let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
        let counter = |at| AtomicU64::new(at);
        let world =
            Self { vm, begun: counter(0), done: counter(0), reading: counter(READERS), writing: counter(1) };
        let mut idle = Idle::take().unwrap();
        let first = (0..MANY).map(|id| slot_of(0, id));
        world.vm.memory().commit(&mut idle, |tx| { first }.try_for_each(|slot| tx.create(slot))).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    let _leaving = Leaving(&world.reading);
                    reader(&world, &mut Idle::take().unwrap());
                });
            }
            world.write(&mut idle);
        });
    }

    fn write(&self, idle: &mut Idle) {
        let _leaving = Leaving(&self.writing);
        let slots = self.vm.memory();
        let mut random = Random::new(31);
        for number in 1.. {
            if self.reading.load(SeqCst) == 0 {
                break;
            }
            self.begun.store(number, SeqCst);
            let next = slots.commit(idle, |tx| {
                (0..MANY).try_for_each(|id| {
                    let next = slot_of(number, id);
                    if number % STEPS == 0 {
                        tx.delete(next.id)?;
                        return tx.create(next);
                    }
                    tx.move_to(next.id, next.gfns.start).map(drop)
                })
            });
            next.expect("each slot has its street");
            self.done.store(number, SeqCst);
            let lone =
                |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id) * STREET), PAGES, Hva(u64::from(id) << 20));
            if random.one_in(8) {
                // More in a row than there can be versions at once: a transaction that only creates waits for no
                // reader.
                let there: Vec<_> = LONE.filter_map(|id| slots.get(idle, SlotId(id))).collect();
                let cleared =
                    slots.commit(idle, |tx| there.iter().try_for_each(|slot| tx.delete(slot.id).map(drop)));
                cleared.expect("one writer");
                for id in LONE {
                    slots.commit(idle, |tx| tx.create(lone(id))).expect("all of them were away");
                }
            }
            for _ in 0..random.below(4) {
                let id = LONE.start + random.below(LONE.len() as u64) as u32;
                let changed = match slots.get(idle, SlotId(id)) {
                    None => slots.commit(idle, |tx| tx.create(lone(id))),
                    Some(old) if random.one_in(3) => {
                        slots.commit(idle, |tx| tx.set_log_dirty(old.id, !old.log_dirty).map(drop))
                    }
                    Some(old) => slots.commit(idle, |tx| tx.delete(old.id).map(drop)),
                };
                changed.expect("one writer");
            }
        }
    }

    /// Whether set `number` may have been published during a look-up that began when `done` was read.
    fn may_be(&self, number: u64, done: u64) -> bool {
        (done..=self.begun.load(SeqCst)).contains(&number)
    }
}

/// Queries one snapshot in every way, and compares the answers. Returns all slots and the number.
fn look_closely(snapshot: &Snapshot<'_>) -> (Vec<Slot>, u64) {
    let all: Vec<_> = snapshot.iter().collect();
    assert_eq!(all.len(), snapshot.len());
    assert!(all.windows(2).all(|pair| pair[0].gfns.end <= pair[1].gfns.start), "no overlap: {all:?}");
    let number = number_of(&snapshot.get(SlotId(0)).expect("never away"));
    for (id, slot) in (0..MANY).zip(&all) {
        assert_eq!(number_of(slot), number, "a mixture: {all:?}");
        assert_eq!(slot.id, SlotId(id), "lone slots come after these");
    }
    for slot in &all {
        assert_eq!(snapshot.get(slot.id), Some(*slot));
        assert_eq!(snapshot.find(Gfn(slot.gfns.end.0 - 1)), Some(*slot));
        assert_eq!(snapshot.find(slot.gfns.end).filter(|other| other.gfns.start != slot.gfns.end), None);
    }
    let mut behind = Vec::new();
    snapshot.over_hvas(hvas_of(number), |gfns| behind.push(gfns));
    assert!(
        behind.into_iter().eq((0..MANY).map(|id| slot_of(number, id).gfns)),
        "in order of host addresses"
    );
    (all, number)
}

#[test]
fn a_snapshot_is_one_published_set_while_it_is_held() {
    World::churn(|world, idle| {
        let slots = world.vm.memory();
        let mut last: Option<(Generation, Vec<Slot>)> = None;
        let mut changes = 0;
        while changes < 800 && world.writing.load(SeqCst) > 0 {
            let done = world.done.load(SeqCst);
            let snapshot = slots.snapshot(idle);
            let (all, number) = look_closely(&snapshot);
            assert!(world.may_be(number, done), "set {number} is not one of those published since {done}");
            let generation = snapshot.generation();
            if let Some((before, seen)) = &last {
                assert!(*before <= generation, "time runs forwards");
                assert!(*before != generation || *seen == all, "two versions of one number");
                changes += u64::from(*before != generation);
            }
            // Lets the writer run: the held snapshot must not change, nor its memory be reused.
            std::thread::yield_now();
            assert_eq!(look_closely(&snapshot), (all.clone(), number));
            assert_eq!(snapshot.generation(), generation);
            last = Some((generation, all));
        }
    });
}

/// Single look-ups: each is of a set that was published between its begin and its end.
#[test]
fn a_look_up_is_of_the_present() {
    World::churn(|world, idle| {
        let slots = world.vm.memory();
        let (mut last, mut changes, mut random) = (0, 0, Random::new(32));
        while changes < 800 && world.writing.load(SeqCst) > 0 {
            let id = random.below(u64::from(MANY)) as u32;
            let frame = Gfn(u64::from(id) * STREET + random.below(STEPS + PAGES));
            let done = world.done.load(SeqCst);
            let by_id = number_of(&slots.get(idle, SlotId(id)).expect("never away"));
            assert!(world.may_be(by_id, done));
            changes += u64::from(by_id != last);
            last = by_id;

            let done = world.done.load(SeqCst);
            let found = slots.find(idle, frame);
            let begun = world.begun.load(SeqCst);
            let mut possible = (done..=begun).map(|number| Some(slot_of(number, id)));
            let possible = possible.any(|slot| slot.filter(|slot| slot.gfns.contains(frame)) == found);
            assert!(possible, "{found:?} at {frame} in none of the sets {done} to {begun}");
        }
    });
}

/// Two look-ups are not a snapshot: the writer runs between them, sooner or later.
#[test]
fn negative_control_two_look_ups_see_a_mixture() {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mixtures = AtomicU64::new(0);
    World::churn(|world, idle| {
        let slots = world.vm.memory();
        while mixtures.load(SeqCst) == 0 && Instant::now() < deadline && world.writing.load(SeqCst) > 0 {
            let mut number = |id| number_of(&slots.get(idle, SlotId(id)).expect("never away"));
            let first = number(0);
            std::thread::yield_now();
            mixtures.fetch_add(u64::from(number(MANY - 1) != first), SeqCst);
        }
    });
    assert!(mixtures.into_inner() > 0, "the readers would not have noticed a mixture");
}
