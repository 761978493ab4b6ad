//! The operations in which each callback panics.

use super::callbacks::{PAGES, RAM, STORED, World, ept};
use super::machine::{HVA, called};
use crate::nested::L1Access;
use crate::notify::{Event, SecondaryMmu, Young};
use crate::*;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::vec::Vec;

/// An operation on a world.
type Act<F, const SINGLE: bool> = for<'v, 'm> fn(&mut World<'v, 'm, F, SINGLE>);

/// An operation, and the VM on which it runs.
pub(super) struct Case<F: Format, const SINGLE: bool> {
    pub(super) name: &'static str,
    pub(super) log: DirtyLog,
    /// Whether slot 0 logs.
    pub(super) logs: bool,
    /// Whether the host has large pages.
    pub(super) large: bool,
    /// The preparation, without a panic.
    pub(super) before: Act<F, SINGLE>,
    pub(super) operation: Act<F, SINGLE>,
}

fn store_all<F: Format, const SINGLE: bool>(world: &mut World<'_, '_, F, SINGLE>) {
    world.store_all();
}

fn all() -> Span<Hva> {
    Span::sized(HVA, PAGES * PAGE_SIZE)
}

fn page(page: u64) -> Span<Hva> {
    Span::sized(HVA + page * PAGE_SIZE, PAGE_SIZE)
}

/// The first frame of a second slot.
const FAR: Gfn = Gfn(1 << 22);

/// Makes tables for one page each, in a second slot.
fn fill_tables<F: Format, const SINGLE: bool>(world: &mut World<'_, '_, F, SINGLE>, tables: u64) {
    let far = Slot::new(SlotId(5), FAR, tables * 512, Hva(1 << 45));
    world.vm.memory().commit(&mut world.idle, |tx| tx.create(far)).unwrap();
    for table in 0..tables {
        let gpa = (FAR + table * 512).gpa();
        let _ = world.vcpu.fault(&mut world.idle, Fault { gpa, access: Access::Read }).unwrap();
    }
    world.vcpu.give_tables_back();
}

/// Runs L2 on its page 5.
fn run_l2<F: Format, const SINGLE: bool>(world: &mut World<'_, '_, F, SINGLE>) {
    world.l1_maps(true);
    l2_faults(world);
}

fn l2_faults<F: Format, const SINGLE: bool>(world: &mut World<'_, '_, F, SINGLE>) {
    let World { vcpu, idle, .. } = world;
    let mut l2 = vcpu.nested(idle, ept()).unwrap();
    let _ = l2.fault(idle, L1Access::new(Gfn(5).gpa(), Access::Write)).unwrap();
}

/// Counts the stores that it is told of, before it may panic.
#[derive(Default)]
struct Told(AtomicU64);

impl WriteListener for Told {
    fn before(&self, _: &mut Idle, _: &TrackedStore<'_>) {
        called("before");
    }

    fn after(&self, _: &mut Idle, _: &TrackedStore<'_>) {
        self.0.fetch_add(1, SeqCst);
        called("after");
    }
}

fn emulate<F: Format, const SINGLE: bool>(world: &mut World<'_, '_, F, SINGLE>) {
    let listeners = [Arc::new(Told::default()), Arc::new(Told::default())];
    let vm = world.vm;
    let gfns = Span::sized(Gfn(5), 1);
    let track =
        |idle: &mut Idle, told: &Arc<Told>| vm.memory().track_writes(idle, gfns, told.clone()).unwrap();
    let _first = track(&mut world.idle, &listeners[0]);
    let _second = track(&mut world.idle, &listeners[1]);
    let (mut begun, mut made) = (false, false);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let store = |_: Hva| {
            begun = true;
            called("store");
            made = true;
        };
        vm.memory().emulate_store(&mut world.idle, Gfn(5).gpa(), &[1], store).unwrap();
    }));
    if begun {
        world.written.insert(5);
    }
    for told in &listeners {
        assert_eq!(told.0.load(SeqCst), u64::from(made), "each listener is told of a store that was made");
    }
    ended.unwrap_or_else(|panic| resume_unwind(panic));
}

/// A vCPU answers in the guest.
fn answer<F: Format, const SINGLE: bool>(world: &mut World<'_, '_, F, SINGLE>) {
    let World { vm, vcpu, idle, tlb, .. } = world;
    let mut guest = vcpu.enter(idle, tlb).poll();
    let vm: &Vm<F, _> = vm;
    std::thread::scope(|scope| {
        scope.spawn(|| vm.forget(&mut Idle::take().unwrap(), all()));
    });
    assert!(guest.kicked());
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| guest.answer(tlb))) {
        assert!(guest.kicked(), "the vCPU has not answered, and finds no kick");
        resume_unwind(panic);
    }
    assert!(!guest.kicked());
}

/// Another vCPU is in the guest and answers, so that flushes kick it.
fn beside<F: Format, const SINGLE: bool>(
    world: &mut World<'_, '_, F, SINGLE>,
    act: impl FnOnce(&mut World<'_, '_, F, SINGLE>),
) {
    let (vm, stop, inside) = (world.vm, AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(1)).unwrap());
            let mut guest = vcpu.enter(&mut idle, &mut super::callbacks::Tlb::default()).poll();
            inside.store(1, SeqCst);
            while stop.load(SeqCst) == 0 {
                if guest.kicked() {
                    guest.answer(&mut super::callbacks::Tlb::default());
                }
                std::thread::yield_now();
            }
        });
        while inside.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        let ended = catch_unwind(AssertUnwindSafe(|| act(world)));
        stop.store(1, SeqCst);
        ended.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

#[rustfmt::skip]
#[allow(clippy::too_many_lines, reason = "a table")]
pub(super) fn cases<F: Format, const SINGLE: bool>() -> Vec<Case<F, SINGLE>> {
    let bits = DirtyLog::bitmap();
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    let case = |name, before, operation| Case { name, log: bits, logs: false, large: false, before, operation };
    let logging = |name, before, operation| Case { logs: true, ..case(name, before, operation) };
    let large = |name, before, operation| Case { large: true, ..case(name, before, operation) };
    let none: Act<F, SINGLE> = |_| ();
    let stored: Act<F, SINGLE> = store_all;
    let all_dirty: Act<F, SINGLE> = |world| {
        store_all(world);
        world.vm.memory().commit(&mut world.idle, |tx| tx.set_log_dirty(RAM, true).map(drop)).unwrap();
        world.written.extend(STORED);
    };
    let mut cases = vec![
        case("faults", none, |world| {
            for access in [Access::Read, Access::Write, Access::Fetch] {
                let _ = world.fault(7, access).unwrap();
            }
            store_all(world);
        }),
        large("large faults", none, stored),
        case("faults that ask", |world| world.machine.sleeps.store(true, SeqCst), stored),
        logging("faults that are logged", none, stored),
        case("an upgrade", |world| {
            world.machine.set(HVA + 5 * PAGE_SIZE, Pfn(77), false);
            let _ = world.fault(5, Access::Read).unwrap();
            let _change = world.vm.invalidate(page(5), Reason::Protect).apply(&mut world.idle).settle();
            world.machine.set(HVA + 5 * PAGE_SIZE, Pfn(77), true);
        }, |world| world.store(5)),
        case("a pending page", |world| world.machine.late.store(true, SeqCst), |world| {
            world.machine.sleeps.store(true, SeqCst);
            let Ok(Next::Leave(Leave::Pending(token))) = world.fault(5, Access::Read) else { panic!("it is late") };
            world.machine.late.store(false, SeqCst);
            assert_eq!(world.vm.ready(token), 1);
            assert_eq!(world.vcpu.take_ready(), Some(token));
            world.store(5);
        }),
        large("pre-fault", none, |world| {
            let gfns = Span::new(Gfn(1020), Gfn(1030));
            let _ = world.vcpu.prefault(&mut world.idle, gfns, Prefault::OLD).unwrap();
            let young = Prefault::young(Access::Write);
            let _ = world.vcpu.prefault(&mut world.idle, Span::new(Gfn(500), Gfn(530)), young).unwrap();
            let _ = world.vcpu.populate(&mut world.idle, &Population::new(gfns, young));
        }),
        case("create, move and delete slots", stored, |world| {
            let (vm, idle) = (world.vm, &mut world.idle);
            let (slot, private) = (Slot::new(SlotId(1), Gfn(1 << 21), 8, HVA).log_dirty(), Gfn(1 << 22));
            vm.memory().commit(idle, |tx| { tx.create(slot)?; called("operations"); Ok(()) }).unwrap();
            let confirm = |(): &()| { called("confirm"); Ok::<_, ()>(()) };
            vm.memory().commit_with(idle, |tx| tx.move_to(RAM, private).map(drop), confirm).unwrap();
            vm.memory().commit_with(idle, |tx| tx.move_to(RAM, Gfn(0)).map(drop), confirm).unwrap();
            vm.memory().commit(idle, |tx| { tx.delete(SlotId(1))?; called("operations"); Ok(()) }).unwrap();
            vm.memory().commit(idle, |tx| tx.delete(RAM).map(drop)).unwrap();
        }),
        case("begin a log", stored, |world| {
            world.vm.memory().commit(&mut world.idle, |tx| tx.set_log_dirty(RAM, true).map(drop)).unwrap();
            store_all(world);
        }),
        large("begin a log of large pages", stored, |world| {
            world.vm.memory().commit(&mut world.idle, |tx| tx.set_log_dirty(RAM, true).map(drop)).unwrap();
        }),
        Case { log: bits.track(Track::DirtyBits), ..large("begin a log of large pages by D bits", stored, |world| {
            world.vm.memory().commit(&mut world.idle, |tx| tx.set_log_dirty(RAM, true).map(drop)).unwrap();
            store_all(world);
        }) },
        Case { logs: true, ..large("end a log of large pages", stored, |world| {
            world.vm.memory().commit(&mut world.idle, |tx| tx.set_log_dirty(RAM, false).map(drop)).unwrap();
        }) },
        logging("a log moves", stored, |world| {
            let (vm, idle) = (world.vm, &mut world.idle);
            vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(1 << 22)).map(drop)).unwrap();
            vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(0)).map(drop)).unwrap();
        }),
        logging("harvest", stored, |world| {
            let harvest = world.vm.memory().harvest(&mut world.idle, RAM).unwrap();
            called("between");
            world.take(harvest);
            store_all(world);
        }),
        Case { log: bits.track(Track::DirtyBits), ..logging("harvest by D bits", stored, |world| {
            world.harvest_all();
            store_all(world);
        }) },
        Case { log: bits.initially_set(), ..large("harvest what was dirty from the start", all_dirty, |world| {
            world.harvest_all();
        }) },
        Case { log: bits.initially_set(), ..large("clear a part", all_dirty, |world| {
            let mut told = vec![0; (PAGES / 64) as usize];
            let _ = world.vm.memory().dirty_bits(&mut world.idle, RAM, &mut told).unwrap();
            world.written.remove(&64);
            let _ = world.vm.memory().clear_dirty(&mut world.idle, RAM, 64, 64, &[1]).unwrap();
            world.store(64);
        }) },
        Case { log: ring, ..logging("harvest a ring", stored, |world| {
            let harvest = world.vm.harvest_ring(&mut world.idle, VcpuId(0)).unwrap();
            world.take(harvest);
            store_all(world);
        }) },
        Case { log: ring, ..logging("collect and reset a ring", stored, |world| {
            let collected = &mut world.collected;
            let tell = |page: DirtyPage| {
                called("tell");
                collected.insert(page.page);
            };
            let _ = world.vm.collect_ring(&mut world.idle, VcpuId(0), tell).unwrap();
            world.reset();
            store_all(world);
        }) },
        large("invalidate", stored, |world| {
            for (hvas, why) in [(page(5), Reason::Migrate), (page(512), Reason::Protect), (all(), Reason::Unmap)] {
                let change = world.vm.invalidate(hvas, why).apply(&mut world.idle).settle();
                drop(change);
                store_all(world);
            }
            world.migrate(5);
            world.migrate(600);
        }),
        large("a change page by page", stored, |world| {
            let (vm, machine) = (world.vm, world.machine);
            for why in [Reason::Reclaim, Reason::ChangePte] {
                let mut untold = false;
                let ended = catch_unwind(AssertUnwindSafe(|| vm.around(&mut world.idle, Event::new(all(), why), &mut |idle, told| {
                    called("change");
                    for nth in [5, 512] {
                        told.settle(idle, page(nth));
                        untold = true;
                        machine.set(page(nth).start, Pfn(9_000_000 + nth), true);
                        told.changed(idle, page(nth), Some(machine.page(page(nth).start)));
                        untold = false;
                    }
                    told.flush(idle);
                }).unwrap()));
                world.untold |= untold;
                ended.unwrap_or_else(|panic| resume_unwind(panic));
            }
            let event = Event { may_block: false, ..Event::new(page(5), Reason::Unmap) };
            let _ = vm.around(&mut world.idle, event, &mut |_, _| called("change"));
        }),
        case("flushes with kicks", stored, |world| beside(world, |world| {
            let change = world.vm.invalidate(all(), Reason::Clear).apply(&mut world.idle).settle();
            drop(change);
            world.vm.memory().write_protect(&mut world.idle, Span::sized(Gfn(0), PAGES)).settle();
            world.vm.forget(&mut world.idle, all());
            drop(world.vm.invalidate(all(), Reason::Clear).apply(&mut world.idle));
        })),
        case("age", stored, |world| {
            let (vm, idle) = (world.vm, &mut world.idle);
            for young in [Young::Test, Young::Clear, Young::ClearAndFlush] {
                let _ = vm.young(idle, page(5), young);
            }
            vm.age(idle, all(), &mut |_| called("seen"));
            vm.forget(idle, all());
            store_all(world);
        }),
        large("zap all", stored, |world| world.vm.zap_all(&mut world.idle).unwrap()),
        Case { log: bits.track(Track::DirtyBits), ..logging("zap all of a log", stored, |world| {
            world.vm.zap_all(&mut world.idle).unwrap();
        }) },
        // So many tables that the pool returns chunks by itself.
        case("unmap and collect", |world| fill_tables(world, if SINGLE { 260 } else { 640 }), |world| {
            let far = Span::sized(FAR, 1 << 20);
            let change = world.vm.memory().invalidate(far, Reason::Unmap).apply(&mut world.idle).settle();
            drop(change);
            world.vm.collect(&mut world.idle);
        }),
        case("unmap and shrink", |world| {
            fill_tables(world, if SINGLE { 24 } else { 320 });
            let far = Span::sized(FAR, 1 << 20);
            drop(world.vm.memory().invalidate(far, Reason::Unmap).apply(&mut world.idle));
        }, |world| { let _ = world.vm.shrink(&mut world.idle); }),
        case("a budget", |world| { store_all(world); let _ = world.vm.zap_all(&mut world.idle); }, |world| {
            let budget = 24 * PAGE_SIZE;
            world.vm.set_table_budget(&mut world.idle, budget);
            for nth in 0..24 {
                let _ = world.fault(nth * 512, Access::Read);
            }
            world.vm.set_table_budget(&mut world.idle, u64::MAX);
            let _ = world.vm.compact(&mut world.idle);
        }),
        large("split and recover", stored, |world| {
            let gfns = Span::sized(Gfn(0), 2048);
            let _ = world.vm.memory().split(&mut world.idle, gfns, Level::K4).unwrap();
            let _ = world.vm.memory().recover(&mut world.idle, gfns);
            world.vm.memory().lockless(&mut world.idle).for_each(gfns, |_| called("visit"));
        }),
        logging("emulate a store", |world| { store_all(world); world.harvest_all(); }, emulate),
        logging("write guest memory", |world| { store_all(world); world.harvest_all(); }, |world| {
            let (slots, mut bytes) = (world.vm.memory(), [0; 16]);
            slots.read_bytes(&mut world.idle, Gfn(5).gpa(), &mut bytes).unwrap();
            slots.write_bytes(&mut world.idle, Gfn(5).gpa(), &bytes).unwrap();
            world.written.insert(5);
        }),
        logging("hold a frame", stored, |world| {
            let (vm, idle) = (world.vm, &mut world.idle);
            let mut held = vm.memory().hold(idle, Gfn(5), Access::Write).unwrap();
            drop(held.write(idle));
            drop(vm.memory().invalidate(Span::sized(Gfn(5), 1), Reason::Migrate).apply(idle).settle());
            let refreshed = catch_unwind(AssertUnwindSafe(|| held.refresh(idle)));
            if let Err(panic) = refreshed {
                assert!(!held.is_valid());
                resume_unwind(panic);
            }
            world.migrate(5);
            assert!(!held.is_valid());
            let _ = held.refresh(&mut world.idle);
        }),
        case("answer in the guest", stored, answer),
        case("first faults of L2", |world| { store_all(world); world.l1_maps(true); }, |world| {
            l2_faults(world);
            world.migrate(5);
            l2_faults(world);
        }),
        case("a flush by L1", run_l2, |world| {
            world.l1_maps(false);
            world.vcpu.l1_flushes(|_: &nested::EptTable| true);
            world.withdrawn = true;
            let _ = world.nested().unwrap();
        }),
        case("a flush by L1 on all vCPUs", run_l2, |world| {
            let all = Span::new(Gfn(0), Gfn(1 << 36));
            world.vm.l1_broadcasts(&mut world.idle, SpaceId(0), all, |_: &nested::EptTable| true);
            world.vm.memory().commit(&mut world.idle, |tx| tx.set_log_dirty(RAM, true).map(drop)).unwrap();
            let _ = world.vm.zap_all(&mut world.idle);
            let _ = world.vm.take_back_from_a_shadow(&mut world.idle, true);
        }),
    ];
    // L1's table translates more addresses than this format; and the pool and the log are the same for each format.
    let left_out = ["L1", "L2", "unmap and", "dirty from the start", "clear a part"];
    cases.retain(|case| F::ROOT_PAGES == 1 || !left_out.iter().any(|word| case.name.contains(word)));
    cases
}
