//! `VmLog` beside others that change or harvest the same slots: a migration ends with the same bytes on both sides, or
//! with an error.

#[path = "../src/test_support/breaks.rs"]
mod breaks;

use breaks::Breaks;
use slat::table::formats::Ept4;
use slat::{
    Access, DirtyPage, DirtyWord, Gfn, Host, HostError, HostPage, Hva, Idle, PAGE_SIZE, Pfn, Slot, SlotId,
    Span, Vm,
};
use slat_migrate::{
    LogError, MemoryRange, MigrateError, Outcome, PreCopy, Progress, Receiver, Session, Source, Target, VmLog,
};
use std::convert::Infallible;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const PAGES: u64 = 256;
const HALF: u64 = PAGES / 2;
const BASE: u64 = 1 << 30;
const RAM: SlotId = SlotId(0);
const SECOND: SlotId = SlotId(1);

/// The guest's memory: a number per page.
struct Memory(Vec<AtomicU64>);

impl Host for Memory {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    }
}

type Machine = Vm<Ept4, Memory>;

/// A machine with two slots, one after the other.
fn machine(idle: &mut Idle) -> Machine {
    let memory = Memory((1..=PAGES).map(AtomicU64::new).collect());
    let vm = Machine::builder(memory).build().unwrap();
    let create = |tx: &mut slat::slots::Transaction<'_>| {
        tx.create(Slot::new(RAM, Gfn(0), HALF, Hva(BASE)))?;
        tx.create(Slot::new(SECOND, Gfn(HALF), HALF, Hva(BASE + HALF * PAGE_SIZE)))
    };
    vm.memory().commit(idle, create).unwrap();
    vm
}

/// A store of a device.
fn store(vm: &Machine, page: u64) {
    vm.host().0[page as usize].fetch_add(1000, SeqCst);
    vm.mark_dirty(Span::sized(Hva(BASE + page * PAGE_SIZE), PAGE_SIZE));
}

/// The two slots change places.
fn change_places(vm: &Machine, idle: &mut Idle) {
    let change = |tx: &mut slat::slots::Transaction<'_>| {
        let at = |id| tx.get(id).map(|slot: Slot| slot.gfns.start).unwrap();
        let (ram, second) = (at(RAM), at(SECOND));
        tx.move_to(RAM, Gfn(1 << 20))?;
        tx.move_to(SECOND, ram)?;
        tx.move_to(RAM, second).map(drop)
    };
    vm.memory().commit(idle, change).unwrap();
}

type Watch = fn(&Machine, &mut Idle, Progress);

struct Here<'m, 'vm> {
    vm: &'vm Machine,
    idle: &'m mut Idle,
    log: &'m mut VmLog<'vm, Ept4, Memory>,
    watch: Watch,
}

impl Source for Here<'_, '_> {
    type Error = LogError;

    fn ranges(&self) -> Vec<MemoryRange> {
        let range = |slot, first| MemoryRange { slot, gfns: Span::sized(Gfn(first), HALF) };
        vec![range(RAM, 0), range(SECOND, HALF)]
    }

    fn session(&mut self) -> &mut Session {
        self.log.session()
    }

    fn mark_all(&mut self) -> Result<(), LogError> {
        self.log.mark_all(self.idle, [RAM, SECOND])
    }

    fn harvest(&mut self) -> Result<Vec<DirtyWord>, LogError> {
        self.log.harvest(self.idle)
    }

    fn commit(&mut self) {
        self.log.commit();
    }

    fn give_back(&mut self) {
        self.log.give_back();
    }

    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), LogError> {
        contents.fill(0);
        for (page, contents) in
            ((first.hva.0 - BASE) / PAGE_SIZE..).zip(contents.chunks_mut(PAGE_SIZE as usize))
        {
            contents[..8].copy_from_slice(&self.vm.host().0[page as usize].load(SeqCst).to_le_bytes());
        }
        Ok(())
    }

    fn halt(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    fn resume(&mut self) {}

    fn progress(&mut self, progress: Progress) -> ControlFlow<()> {
        (self.watch)(self.vm, self.idle, progress);
        ControlFlow::Continue(())
    }
}

#[derive(Default)]
struct There(Vec<u64>);

impl Target for There {
    type Error = Infallible;

    fn create(&mut self, _: &[MemoryRange]) -> Result<(), Infallible> {
        self.0 = vec![0; PAGES as usize];
        Ok(())
    }

    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Infallible> {
        for (page, contents) in (gfns.start.0 as usize..).zip(contents.chunks(PAGE_SIZE as usize)) {
            self.0[page] = u64::from_le_bytes(contents[..8].try_into().unwrap());
        }
        Ok(())
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Infallible> {
        self.0[gfns.start.0 as usize..gfns.end.0 as usize].fill(0);
        Ok(())
    }
}

/// Sends over one connection that breaks after so many bytes.
fn send<'vm>(
    (vm, idle): (&'vm Machine, &mut Idle),
    log: &mut VmLog<'vm, Ept4, Memory>,
    receiver: &mut Receiver<There>,
    bytes: usize,
    watch: Watch,
) -> Result<Outcome, MigrateError<LogError>> {
    let mut here = Here { vm, idle, log, watch };
    let (near, far) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| receiver.serve(far));
        let mut once = Some(Breaks(near, bytes));
        let settings = PreCopy::new().downtime(Duration::ZERO).max_rounds(3).tries(1);
        settings.send(&mut here, || once.take().ok_or(io::ErrorKind::NotConnected.into()))
    })
}

fn receiver() -> Receiver<There> {
    Receiver::new(There::default(), PAGES * PAGE_SIZE)
}

fn is_equal(vm: &Machine, receiver: &Receiver<There>) -> bool {
    vm.host().0.iter().map(|page| page.load(SeqCst)).eq(receiver.target().0.iter().copied())
}

/// 64 stores while the first round is sent.
fn stores(vm: &Machine, _: &mut Idle, progress: Progress) {
    if (progress.round, progress.sent) == (1, 0) {
        (0..64).for_each(|page| store(vm, page));
    }
}

/// The first round arrives, and the second does not.
const ONE_ROUND: usize = (PAGES * PAGE_SIZE) as usize + 50_000;

/// A migration is interrupted, and continued after `between`. Returns the pages of its first round then.
fn continued(between: impl FnOnce(&Machine, &mut Idle)) -> u64 {
    let mut idle = Idle::take().unwrap();
    let vm = machine(&mut idle);
    let (mut log, mut receiver) = (VmLog::new(&vm), receiver());
    let broken = send((&vm, &mut idle), &mut log, &mut receiver, ONE_ROUND, stores).unwrap_err();
    assert!(matches!(broken, MigrateError::Failed { round: 2, .. }), "{broken}");
    between(&vm, &mut idle);
    let outcome = send((&vm, &mut idle), &mut log, &mut receiver, usize::MAX, |_, _, _| ()).unwrap();
    assert!(is_equal(&vm, &receiver));
    outcome.rounds[0].told
}

#[test]
fn a_migration_whose_log_is_as_it_was_continues() {
    assert_eq!(continued(|vm, _| (60..70).for_each(|page| store(vm, page))), 70);
    let looked = |vm: &Machine, idle: &mut Idle| {
        assert_eq!(vm.memory().dirty_bits(idle, RAM, &mut [0; HALF as usize / 64]), Ok(64));
    };
    assert_eq!(continued(looked), 64);
    // Another address of the same slot is no other log.
    assert_eq!(
        continued(|vm, idle| vm.memory().commit(idle, |tx| tx.move_to(SECOND, Gfn(4096)).map(drop)).unwrap()),
        64
    );
}

#[test]
fn a_migration_begins_anew_if_its_log_was_replaced() {
    let logs = |vm: &Machine, idle: &mut Idle, on| {
        vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, on).map(drop)).unwrap();
    };
    let off_and_on = |vm: &Machine, idle: &mut Idle| {
        logs(vm, idle, false);
        (0..64).for_each(|page| store(vm, page));
        logs(vm, idle, true);
    };
    assert_eq!(continued(off_and_on), PAGES);
    let off = |vm: &Machine, idle: &mut Idle| {
        (0..64).for_each(|page| store(vm, page));
        logs(vm, idle, false);
    };
    assert_eq!(continued(off), PAGES);
    let created_again = |vm: &Machine, idle: &mut Idle| {
        vm.memory().commit(idle, |tx| tx.delete(RAM).map(drop)).unwrap();
        (0..64).for_each(|page| store(vm, page));
        let slot = Slot::new(RAM, Gfn(0), HALF, Hva(BASE)).log_dirty();
        vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
    };
    assert_eq!(continued(created_again), PAGES);
}

#[test]
fn a_migration_begins_anew_if_another_took_from_its_log() {
    assert_eq!(continued(|vm, idle| vm.memory().harvest(idle, RAM).unwrap().commit()), PAGES);
    assert_eq!(continued(|vm, idle| vm.memory().harvest_all(idle).unwrap().commit()), PAGES);
    let cleared = |vm: &Machine, idle: &mut Idle| {
        assert_eq!(vm.memory().clear_dirty(idle, RAM, 0, 64, &[u64::MAX]), Ok(64));
    };
    assert_eq!(continued(cleared), PAGES);
    let migrated = |vm: &Machine, idle: &mut Idle| {
        let (mut log, mut other) = (VmLog::new(vm), receiver());
        send((vm, idle), &mut log, &mut other, ONE_ROUND, stores).unwrap_err();
    };
    assert_eq!(continued(migrated), PAGES);
}

#[test]
fn a_harvest_fails_if_another_takes_from_the_log_during_the_migration() {
    let mut idle = Idle::take().unwrap();
    let vm = machine(&mut idle);
    let (mut log, mut receiver) = (VmLog::new(&vm), receiver());
    let takes: Watch = |vm, idle, progress| {
        stores(vm, idle, progress);
        if (progress.round, progress.sent) == (1, 64) {
            vm.memory().harvest(idle, RAM).unwrap().commit();
        }
    };
    let error = send((&vm, &mut idle), &mut log, &mut receiver, usize::MAX, takes).unwrap_err();
    assert!(matches!(error, MigrateError::Guest(LogError::Lost(RAM))), "{error}");
    let outcome = send((&vm, &mut idle), &mut log, &mut receiver, usize::MAX, |_, _, _| ()).unwrap();
    assert!(outcome.rounds[0].told == PAGES && is_equal(&vm, &receiver));
}

/// Beside a thread that moves the slot all the while.
#[test]
fn every_page_is_marked_wherever_its_slot_is() {
    let mut idle = Idle::take().unwrap();
    let vm = machine(&mut idle);
    let over = AtomicBool::new(false);
    let begun = AtomicBool::new(false);
    let short = thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            while !over.load(SeqCst) {
                for at in [4096, 0] {
                    vm.memory().commit(&mut idle, |tx| tx.move_to(RAM, Gfn(at)).map(drop)).unwrap();
                }
                begun.store(true, SeqCst);
            }
        });
        while !begun.load(SeqCst) {
            thread::yield_now();
        }
        let short = (0..5_000).find_map(|_| {
            let mut log = VmLog::new(&vm);
            log.mark_all(&mut idle, [RAM]).unwrap();
            let pages: u32 = log.harvest(&mut idle).unwrap().iter().map(|word| word.bits.count_ones()).sum();
            log.commit();
            (u64::from(pages) != HALF).then_some(pages)
        });
        over.store(true, SeqCst);
        short
    });
    assert_eq!(short, None);
}

#[test]
fn a_slot_that_cannot_be_marked_is_an_error() {
    let mut idle = Idle::take().unwrap();
    let vm = machine(&mut idle);
    let mut log = VmLog::new(&vm);
    assert!(matches!(log.harvest(&mut idle), Err(LogError::NoSlots)));
    assert!(matches!(log.mark_all(&mut idle, [RAM, SlotId(7)]), Err(LogError::Slot(_))));
    assert!(matches!(log.harvest(&mut idle), Err(LogError::NoSlots)), "after an error, too");
    assert!(matches!(log.watch([RAM]), Err(LogError::Dirty(_))), "it does not log");
}

#[test]
fn logs_of_other_slots_stay_as_they_are() {
    let mut idle = Idle::take().unwrap();
    let vm = machine(&mut idle);
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SECOND, true).map(drop)).unwrap();
    vm.memory().mark_dirty(Span::sized(Gfn(HALF), 8));
    let mut log = VmLog::new(&vm);
    log.mark_all(&mut idle, [RAM]).unwrap();
    assert!(log.harvest(&mut idle).unwrap().iter().all(|word| word.first.slot == RAM));
    log.commit();
    assert_eq!(vm.memory().harvest(&mut idle, SECOND).unwrap().pages(), 8);
    log.harvest(&mut idle).expect("another slot's harvest takes nothing from this log");
}

/// The receiver has each slot where it was announced, wherever it is at the sender during a harvest.
#[test]
fn slots_that_change_places_keep_their_contents() {
    let watches: [Watch; 2] = [
        |vm, idle, progress| {
            if progress.sent == 0 && progress.round <= 2 {
                change_places(vm, idle);
                store(vm, 5);
                store(vm, HALF + 7);
            }
        },
        // For good.
        |vm, idle, progress| {
            if progress.sent == 0 && progress.round == 1 {
                change_places(vm, idle);
                store(vm, 5);
            }
        },
    ];
    for watch in watches {
        let mut idle = Idle::take().unwrap();
        let vm = machine(&mut idle);
        let (mut log, mut receiver) = (VmLog::new(&vm), receiver());
        send((&vm, &mut idle), &mut log, &mut receiver, usize::MAX, watch).unwrap();
        assert!(is_equal(&vm, &receiver));
    }
}
