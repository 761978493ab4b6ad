//! Tests of a vCPU that answers a kick late. Its last stores through an old translation must not be lost.
//!
//! ```text
//! vCPU      has page X in its TLB, writable ──────────── kicked ── a store by the TLB ── answers
//! change    X: read-only, or gone; told ── flush: waits for the answer ──────────────────┘
//! writer                                ── writes to X: breaks the share ── must wait, too ─┘
//! ```
//! The store is legal until the vCPU has answered. Each test combines one kind of writer with one kind of
//! change.

use crate::fixture::{at, pages};
use slat::table::formats::Npt4;
use slat::{Access, Fault, Gfn, Hva, Idle, Pfn, Slot, SlotId, Span, Translations, Vcpu, VcpuId, Vm};
use slat_mm::*;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The page that the tests are about. The memslot also has its neighbours.
const X: u64 = 11;
const PAGES: u64 = 64;
/// The vCPU waits this long before it answers, unless the page is copied earlier.
const LATE: Duration = Duration::from_millis(300);

type Machine = Vm<Npt4, HostView>;

/// A TLB with one translation: that of page X.
#[derive(Debug)]
struct Tlb {
    holds: bool,
}

impl Translations for Tlb {
    fn flush_all(&mut self) {
        self.holds = false;
    }
    fn flush(&mut self, gfns: Span<Gfn>) {
        self.holds &= !gfns.contains(Gfn(X));
    }
}

struct World {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    vm: Arc<Machine>,
    other: Arc<Machine>,
    ksm: Arc<Ksm>,
}

impl World {
    fn new(idle: &mut Idle) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().memory(8 << 20).build(&arena).unwrap();
        let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
        let len = pages(0, PAGES).len();
        space.mmap(Place::Fixed(at(0)), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let ksm = Ksm::builder(&arena).build().unwrap();
        ksm.add(&space).unwrap();
        let [vm, other] = [(); 2].map(|()| {
            let vm = Arc::new(Machine::builder(HostView::new(&space)).build().unwrap());
            space.register(&vm);
            vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, at(0)))).unwrap();
            vm
        });
        Self { arena, space, vm, other, ksm }
    }

    fn writable(&self) -> Option<Pfn> {
        self.space.lookup(at(X), Access::Write).filter(|page| page.writable).map(|page| page.pfn)
    }

    fn poke(&self, pfn: Pfn, offset: usize, value: u8) {
        // SAFETY: the byte is in a frame that a vCPU's TLB, a vCPU's table or a pin refers to.
        unsafe { self.arena.frame(pfn).wrapping_add(offset).write_volatile(value) };
    }

    /// Runs `change`, which withdraws page X. As soon as X is withdrawn, runs `write`, which puts 7 at offset
    /// 16 of X. Meanwhile a vCPU answers late and stores 5 at offset 8. Returns both bytes, or `None` where the
    /// vCPU had to forget X early.
    fn meet(
        &self,
        idle: &mut Idle,
        change: impl FnOnce(&mut Idle) + Send,
        write: impl FnOnce(&mut Idle) + Send,
    ) -> Option<(u8, u8)> {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        touch(&mut vcpu, idle);
        let old = self.writable().expect("just brought in");
        let mut tlb = Tlb { holds: true };
        let mut guest = vcpu.enter(idle, &mut tlb).poll();
        // The vCPU has not yet used a translation that it forgets on entry.
        tlb.holds = true;
        let stored = thread::scope(|scope| {
            let with_idle = |work: &mut dyn FnMut(&mut Idle)| work(&mut Idle::take().unwrap());
            let mut change = Some(change);
            let change = scope.spawn(move || with_idle(&mut |idle| change.take().unwrap()(idle)));
            let mut write = Some(write);
            let write = scope.spawn(move || {
                while self.writable().is_some() {
                    thread::yield_now();
                }
                with_idle(&mut |idle| write.take().unwrap()(idle));
            });
            // The vCPU answers flushes before that of X at once.
            while self.writable().is_some() {
                guest.answer(&mut tlb);
            }
            let until = Instant::now() + LATE;
            let copied = || self.space.lookup(at(X), Access::Read).is_some_and(|now| now.pfn != old);
            while tlb.holds && Instant::now() < until && !copied() {
                thread::yield_now();
            }
            if tlb.holds {
                self.poke(old, 8, 5);
            }
            let stored = tlb.holds;
            while !(change.is_finished() && write.is_finished()) {
                guest.answer(&mut tlb);
                thread::yield_now();
            }
            stored
        });
        drop(guest);
        let mut found = [0; 9];
        self.space.read(idle, at(X) + 8, &mut found).unwrap();
        stored.then_some((found[0], found[8]))
    }

    fn device_writes(&self, idle: &mut Idle) {
        self.space.write(idle, at(X) + 16, &[7]).unwrap();
    }

    fn pageout(&self, idle: &mut Idle) {
        self.space.pageout(idle, pages(X, 1)).unwrap();
    }
}

fn touch(vcpu: &mut Vcpu<'_, Npt4, HostView>, idle: &mut Idle) {
    let _ = vcpu.fault(idle, Fault { gpa: Gfn(X).gpa(), access: Access::Write }).unwrap();
}

const BOTH: Option<(u8, u8)> = Some((5, 7));

/// Tries worlds until the vCPU still has the page at the right moment.
fn until_late(mut meet: impl FnMut(&mut Idle, &World) -> Option<(u8, u8)>) -> Option<(u8, u8)> {
    let mut idle = Idle::take().unwrap();
    (0..100).find_map(|_| {
        let world = World::new(&mut idle);
        meet(&mut idle, &world)
    })
}

#[test]
fn a_store_survives_a_device_that_writes_beside_a_swap_out() {
    let found = until_late(|idle, world| {
        world.meet(idle, |idle| world.pageout(idle), |idle| world.device_writes(idle))
    });
    assert_eq!(found, BOTH, "the stores of the guest and the device");
}

#[test]
fn a_store_survives_a_pin_beside_a_swap_out() {
    let found = until_late(|idle, world| {
        let pin = |idle: &mut Idle| {
            let pinned = world.space.pin(idle, pages(X, 1)).unwrap();
            world.poke(pinned.frames()[0], 16, 7);
        };
        world.meet(idle, |idle| world.pageout(idle), pin)
    });
    assert_eq!(found, BOTH, "the stores of the guest and the device with the pin");
}

#[test]
fn a_store_survives_the_guest_of_another_vm_that_writes_beside_a_swap_out() {
    let found = until_late(|idle, world| {
        let write = |idle: &mut Idle| {
            touch(&mut world.other.vcpu(VcpuId(0)).unwrap(), idle);
            let page = world.other.memory().translate(idle, Gfn(X)).expect("just mapped").leaf;
            world.poke(page.pfn, 16, 7);
        };
        world.meet(idle, |idle| world.pageout(idle), write)
    });
    assert_eq!(found, BOTH, "the stores of both guests");
}

/// Eight pages with the same contents, eight apart. One becomes stable, and the others are withdrawn together,
/// page by page.
#[test]
fn a_store_survives_a_device_that_writes_beside_a_merge_with_gaps() {
    let found = until_late(|idle, world| {
        let alike: Vec<Hva> = (0..8).map(|number| at(X % 8 + 8 * number)).collect();
        for &page in &alike {
            world.space.write(idle, page, &[1; 8]).unwrap();
        }
        world.space.madvise(idle, pages(0, PAGES), Advice::Mergeable).unwrap();
        // The second pass has checksums that did not change. The third pass merges.
        world.ksm.scan(idle, u64::MAX);
        let scan = |idle: &mut Idle| {
            for _ in 0..3 {
                world.ksm.scan(idle, u64::MAX);
            }
        };
        world.meet(idle, scan, |idle| world.device_writes(idle))
    });
    assert_eq!(found, BOTH, "the stores of the guest and the device");
}
