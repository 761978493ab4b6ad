//! The first nested guest of a VM: two vCPUs begin one at once, or the host has no memory for its tables.

use crate::inject::{self, Point};
use crate::nested::*;
use crate::table::formats::Npt4;
use crate::table::pool::Cache;
use crate::table::{Heap, Own, TableMemory, TablesOf};
use crate::*;
use core::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Signals when it is called, and waits.
type Meeting = (Sender<()>, Receiver<()>);

/// A host that signals when it is asked for memory, and then waits for permission: once.
#[derive(Default)]
struct Slow {
    meeting: OnceLock<Mutex<Option<Meeting>>>,
}

// SAFETY: the heap's own functions.
unsafe impl TableMemory for Slow {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let meeting = self.meeting.get().and_then(|meeting| meeting.lock().unwrap().take());
        if let Some((asked, go_on)) = meeting {
            asked.send(()).unwrap();
            go_on.recv_timeout(LONG).unwrap();
        }
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

impl Host for Slow {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        unreachable!("{hva:?}: L2 does not run")
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

fn ept() -> EptTable {
    EptTable::new(3 << 3 | 6, EptFeatures::of(46)).unwrap()
}

/// A VM, with all the free pages of its pool taken.
fn vm() -> (Vm<Npt4, Slow>, Cache) {
    let vm = Vm::<Npt4, _>::builder(Slow::default()).vcpus(2).build().unwrap();
    let mut taken = Cache::default();
    vm.pool.top_up(vm.tables(), &mut taken, vm.pool.free() as usize, || false).unwrap();
    (vm, taken)
}

/// Returns the number of pages that are lost.
fn lost((vm, mut taken): (Vm<Npt4, Slow>, Cache), idle: &mut Idle) -> u64 {
    vm.pool.give_back(taken.drain());
    let pages = vm.table_pages(idle);
    pages.allocated - pages.reachable - pages.waiting - pages.free
}

/// A vCPU makes its tables, and another vCPU is faster.
fn lost_in_a_race() -> u64 {
    let mut idle = Idle::take().unwrap();
    let (vm, taken) = vm();
    let ((asked, is_asked), (tell, go_on)) = (channel(), channel());
    vm.host().meeting.set(Mutex::new(Some((asked, go_on)))).unwrap();
    let mut faster = vm.vcpu(VcpuId(1)).unwrap();
    std::thread::scope(|scope| {
        // If this thread panics, the other one does not wait for it.
        let tell = tell;
        let slower = scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
            vcpu.nested(&mut idle, ept()).map(drop).unwrap();
        });
        is_asked.recv_timeout(LONG).unwrap();
        faster.nested(&mut idle, ept()).map(drop).unwrap();
        tell.send(()).unwrap();
        slower.join().unwrap();
    });
    drop(faster);
    lost((vm, taken), &mut idle)
}

/// The pool refuses its `nth` page, for each page.
fn lost_without_memory() -> u64 {
    let mut idle = Idle::take().unwrap();
    let mut sum = 0;
    for nth in 0.. {
        let (vm, taken) = vm();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let begun = inject::nth(Point::Alloc, nth, || vcpu.nested(&mut idle, ept()).is_ok());
        drop(vcpu);
        sum += lost((vm, taken), &mut idle);
        if begun {
            assert!(nth > 3, "{nth} places");
            return sum;
        }
    }
    sum
}

#[test]
fn of_two_vcpus_that_begin_at_once_one_gives_its_tables_back() {
    assert_eq!(lost_in_a_race(), 0);
}

#[test]
fn pages_made_before_memory_ran_out_go_back() {
    assert_eq!(lost_without_memory(), 0);
}
