//! vCPUs during a writer's transactions. A slot that moves over its own range keeps the frames that both places share:
//! no fault there is ever MMIO. A deleted slot has nothing mapped when its transaction returns, and from then on every
//! fault is MMIO.
//!
//! The writer counts its transactions in `epoch`, odd while one runs. A vCPU that reads the same even number before and
//! after a fault knows the slots, and checks the result against them.

use super::Leaving;
use super::subject::ARENA;
use crate::common::random::Random;
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::Npt4;
use slat::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The slot that moves, and its largest offset: it always has the frames from `FIRST + SWAY` to `FIRST + PAGES`.
const ROVER: SlotId = SlotId(3);
const PAGES: u64 = 64;
const SWAY: u64 = 32;
const FIRST: u64 = 1024 - 16; // across a boundary of tables
/// The slot that is created and deleted.
const GUEST: Slot = Slot {
    id: SlotId(4),
    gfns: Span::new(Gfn(8192), Gfn(8192 + 24)),
    hva: Hva(ARENA + (1 << 30)),
    readonly: false,
    log_dirty: false,
    execute: true,
    memory: MemoryType::WriteBack,
};

fn rover(by: u64) -> Slot {
    Slot::new(ROVER, Gfn(FIRST + by), PAGES, Hva(ARENA))
}

/// A frame for each address; for every third it answers only when asked to sleep.
struct Linear;

impl Linear {
    fn page(hva: Hva) -> HostPage {
        HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN }
    }
}

impl Host for Linear {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        (!(hva.0 >> 12).is_multiple_of(3)).then(|| Self::page(hva))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(Self::page(hva))
    }
}

struct World {
    vm: Vm<Npt4, Linear>,
    /// Transactions begun and ended: odd while one runs.
    epoch: AtomicU64,
    /// The rover's place, and whether the guest slot exists (0 or 1), at an even epoch.
    by: AtomicU64,
    there: AtomicU64,
    vcpus: AtomicU64,
    /// Whether the writer still runs.
    writing: AtomicU64,
    /// Number of faults whose result was known.
    known: AtomicU64,
    /// Number of wrong MMIO results; only the negative control gets to count it.
    lost: AtomicU64,
}

impl World {
    fn new(lock: MmuLock, idle: &mut Idle) -> Self {
        let vm =
            Vm::<Npt4, _>::builder(Linear).vcpus(2).baseline(Baseline::NONE.mmu_lock(lock)).build().unwrap();
        vm.memory().commit(idle, |tx| tx.create(rover(0))).unwrap();
        let counter = |at| AtomicU64::new(at);
        let (epoch, by, there) = (counter(0), counter(0), counter(0));
        Self {
            vm,
            epoch,
            by,
            there,
            vcpus: counter(2),
            writing: counter(1),
            known: counter(0),
            lost: counter(0),
        }
    }

    /// Returns what the tables must hold at `gfn` directly after a fault there; `None` for MMIO.
    fn expected(&self, gfn: Gfn) -> Option<Pfn> {
        let slots = [Some(rover(self.by.load(SeqCst))), (self.there.load(SeqCst) == 1).then_some(GUEST)];
        let slot = slots.into_iter().flatten().find(|slot| slot.gfns.contains(gfn))?;
        Some(Linear::page(slot.hva_of(gfn)).pfn)
    }

    /// Faults until `enough`, and checks.
    fn vcpu(&self, id: VcpuId, enough: impl Fn() -> bool) {
        let _leaving = Leaving(&self.vcpus);
        let mut idle = Idle::take().unwrap();
        let mut vcpu = self.vm.vcpu(id).unwrap();
        let mut random = Random::new(u64::from(id.0));
        while !enough() && self.writing.load(SeqCst) > 0 {
            let always = random.one_in(2);
            let gfn = match random.below(3) {
                _ if always => Gfn(FIRST + SWAY + random.below(PAGES - SWAY)),
                0 => Gfn(FIRST + random.below(PAGES + SWAY)),
                _ => GUEST.gfns.start + random.below(GUEST.gfns.len()),
            };
            let access = random.pick(&[Access::Read, Access::Write]);
            let before = self.epoch.load(SeqCst);
            let expected = self.expected(gfn);
            let done = vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access }).unwrap();
            let mapped = self.vm.memory().translate(&mut idle, gfn).map(|mapping| mapping.leaf.pfn);
            if always {
                self.lost.fetch_add(u64::from(done == Next::Emulate(Emulate::NoMemory)), SeqCst);
            }
            if before.is_multiple_of(2) && self.epoch.load(SeqCst) == before {
                assert_eq!(done == Next::Emulate(Emulate::NoMemory), expected.is_none(), "{gfn}: {done:?}");
                assert_eq!(mapped, expected, "{gfn}");
                self.known.fetch_add(1, SeqCst);
            }
        }
    }

    /// Runs one transaction, or what `change` makes of it, after which the slots are as given.
    fn change(&self, idle: &mut Idle, by: u64, there: u64, change: impl FnOnce(&mut Idle)) {
        self.epoch.fetch_add(1, SeqCst);
        change(idle);
        self.by.store(by, SeqCst);
        self.there.store(there, SeqCst);
        // Frames that slots have lost are not mapped, and no vCPU can map them; the others belong to the new place.
        for gfn in (FIRST..FIRST + PAGES + SWAY).chain(GUEST.gfns.start.0..GUEST.gfns.end.0).map(Gfn) {
            let mapped = self.vm.memory().translate(idle, gfn).map(|mapping| mapping.leaf.pfn);
            assert!(mapped.is_none() || mapped == self.expected(gfn), "{gfn}: {mapped:?}");
        }
        self.epoch.fetch_add(1, SeqCst);
    }

    /// Gives the vCPUs a time without changes, in which they know the expected results.
    fn pause(&self) {
        let known = self.known.load(SeqCst);
        while self.known.load(SeqCst) == known && self.vcpus.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_move_is_never_mmio_and_a_deletion_always() {
    const CHANGES: u64 = 300;
    for lock in [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive] {
        let mut idle = Idle::take().unwrap();
        let world = World::new(lock, &mut idle);
        let slots = world.vm.memory();
        std::thread::scope(|scope| {
            for id in [VcpuId(0), VcpuId(1)] {
                let world = &world;
                let enough = || world.epoch.load(SeqCst) >= 2 * CHANGES;
                scope.spawn(move || world.vcpu(id, enough));
            }
            let _leaving = Leaving(&world.writing);
            let mut random = Random::new(41);
            let (mut by, mut there) = (0, 0);
            while world.vcpus.load(SeqCst) > 0 {
                // At times both slots change at once; the rover may stay in its place.
                if random.one_in(2) {
                    by = random.below(SWAY + 1);
                }
                there ^= u64::from(random.one_in(2));
                let (was_there, to) = (world.there.load(SeqCst), rover(by).gfns.start);
                world.change(&mut idle, by, there, |idle| {
                    let change = slots.commit(idle, |tx| {
                        match (was_there, there) {
                            (0, 1) => tx.create(GUEST)?,
                            (1, 0) => assert_eq!(tx.delete(GUEST.id)?, GUEST),
                            _ => {}
                        }
                        tx.move_to(ROVER, to).map(drop)
                    });
                    change.expect("no other slot is in the way");
                });
                if random.one_in(2) {
                    world.pause();
                }
            }
        });
        assert!(world.known.load(SeqCst) >= CHANGES / 4, "one in each pause, at least");
        assert_eq!(world.lost.load(SeqCst), 0, "{lock:?}: a frame of both places was taken for MMIO");

        let stay = world.there.load(SeqCst) == 1;
        slots
            .commit(&mut idle, |tx| {
                tx.delete(ROVER)?;
                if stay { tx.delete(GUEST.id).map(drop) } else { Ok(()) }
            })
            .unwrap();
        assert_eq!(world.vm.stats().leaves, [0; 3], "every leaf is accounted for");
    }
}

/// A move made of a deletion and a creation, in two transactions, is visible.
#[test]
fn negative_control_two_transactions_are_mmio_in_between() {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut idle = Idle::take().unwrap();
    let world = World::new(MmuLock::None, &mut idle);
    std::thread::scope(|scope| {
        for id in [VcpuId(0), VcpuId(1)] {
            let world = &world;
            let enough = move || world.lost.load(SeqCst) > 0 || Instant::now() > deadline;
            scope.spawn(move || world.vcpu(id, enough));
        }
        let _leaving = Leaving(&world.writing);
        let mut random = Random::new(42);
        while world.vcpus.load(SeqCst) > 0 {
            let by = random.below(SWAY + 1);
            world.change(&mut idle, by, 0, |idle| {
                world.vm.memory().commit(idle, |tx| tx.delete(ROVER)).unwrap();
                std::thread::yield_now();
                world.vm.memory().commit(idle, |tx| tx.create(rover(by))).unwrap();
            });
        }
    });
    assert!(world.lost.load(SeqCst) > 0, "the vCPUs would not have noticed a slot that is away");
}
