//! One fault of L2, and another operation that runs completely at each moment of it: when the host is asked, and
//! whenever the fault follows a link.

use super::*;
use crate::sync::prim::{AtomicBool, AtomicU64, Relaxed};
use crate::table::{Heap, Own, TableMemory, TablesOf};
use crate::trace::TraceEvent;
use crate::tries::tries;
use core::ptr::NonNull;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const DATA: u64 = 8;

/// The operation that runs meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    /// The host replaces the page behind L1's frame 8.
    Host,
    /// L1 maps frame 9 instead, and flushes.
    Flush,
    /// L1 maps frame 9 instead, and flushes that address: a guest without two stages, by `INVLPG`.
    Address,
    /// L1 maps frame 9, after a refusal, without a flush. The refused vCPU enters L2 again.
    Comeback,
    /// Reclaim unlinks and flushes the shadow's tables. The fault continues before they are freed.
    Reclaim,
}

/// Signals the other thread, and waits for its answer.
type Moment = (Sender<()>, Receiver<()>);

struct Watched {
    words: Vec<AtomicU64>,
    frames: [AtomicU64; 2],
    meanwhile: Mutex<Option<Moment>>,
    /// Number of moments until it happens; none before it is set.
    left: AtomicU64,
    /// Number of entries of L1's table that were read.
    reads: AtomicU64,
    /// Signalled when TLBs have been flushed, which is before the end of a reclaim.
    flushed: Mutex<Option<Sender<()>>>,
    /// Whether the reclaim has freed tables of the shadow; and how long the fault that is held waits for that.
    freed: AtomicBool,
    patience: Duration,
}

// SAFETY: the heap's own functions.
unsafe impl TableMemory for Watched {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        self.moment();
        Heap.at(pfn)
    }
}

impl Watched {
    fn moment(&self) {
        if self.left.load(Relaxed) != 0 && self.left.fetch_sub(1, Relaxed) == 1 {
            let (go, done) = self.meanwhile.lock().unwrap().take().unwrap();
            go.send(()).unwrap();
            done.recv().unwrap();
            let end = Instant::now() + self.patience;
            while !self.freed.load(Relaxed) && Instant::now() < end {
                std::thread::yield_now();
            }
            assert!(!self.freed.load(Relaxed), "{FREED}");
        }
    }
}

/// Entries of L1's table that a fault reads if it does not remember its leaf table.
const WALK: u64 = 4;

const FREED: &str = "tables are freed while a fault is in them";

impl Host for Watched {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn observe(&self, event: TraceEvent) {
        if let TraceEvent::Flush { .. } = event
            && let Some(flushed) = self.flushed.lock().unwrap().take()
        {
            flushed.send(()).unwrap();
        }
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let page = (hva.0 - BASE.0 >> PAGE_SHIFT) - DATA;
        let pfn = Pfn(self.frames[page as usize].load(Relaxed));
        self.moment();
        Some(HostPage { pfn, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        let word = Word(self.words[((hva.0 - BASE.0) / 8) as usize].load(Relaxed));
        self.reads.fetch_add(1, Relaxed);
        self.moment();
        Some(word)
    }
}

fn table() -> EptTable {
    EptTable::new(3 << 3 | 6, EptFeatures::of(46)).unwrap()
}

/// Makes the host's page behind L1's frame 8 `frame`.
fn moves(vm: &Vm<Npt4, Watched>, idle: &mut Idle, frame: u64) {
    let _change = vm
        .invalidate(Span::sized(BASE + (DATA << PAGE_SHIFT), PAGE_SIZE), Reason::Migrate)
        .apply(idle)
        .settle();
    vm.host().frames[0].store(frame, Relaxed);
}

/// L1's table says frame 9.
fn remaps(vm: &Vm<Npt4, Watched>) {
    vm.host().words[3 * 512].store((DATA + 1) << 12 | 6 << 3 | 7, Relaxed);
}

/// The other thread: vCPU 1, the host, and L1.
fn other(vm: &Vm<Npt4, Watched>, what: Meanwhile, (ready, go, done): (Sender<()>, Receiver<()>, Sender<()>)) {
    let mut idle = Idle::take().unwrap();
    let mut vcpu = vm.vcpu(VcpuId(1)).unwrap();
    let mut l2 = vcpu.nested(&mut idle, table()).unwrap();
    l2.fault(&mut idle, L1Access::new(Gpa(0), Access::Read)).unwrap();
    if what == Meanwhile::Comeback {
        let refused = l2.fault(&mut idle, L1Access::new(Gpa(0), Access::Write)).unwrap();
        assert!(matches!(refused, L2Next::ForL1(_)));
    } else {
        moves(vm, &mut idle, 0x50);
    }
    ready.send(()).unwrap();
    go.recv().unwrap();
    match what {
        Meanwhile::Host => moves(vm, &mut idle, 0x77),
        Meanwhile::Flush => {
            remaps(vm);
            // A flush for all vCPUs would wait for the fault.
            vcpu.l1_flushes(|_: &EptTable| true);
            let _ = vcpu.nested(&mut idle, table()).unwrap();
        }
        Meanwhile::Address => {
            remaps(vm);
            vcpu.l1_flushes_frames(|_: &EptTable| Some((Gfn(0), Span::sized(Gfn(0), 512))));
        }
        Meanwhile::Comeback => {
            remaps(vm);
            vcpu.nested(&mut idle, table()).unwrap();
        }
        Meanwhile::Reclaim => {
            *vm.host().flushed.lock().unwrap() = Some(done.clone());
            let went = vm.take_back_from_a_shadow(&mut idle, true);
            vm.host().freed.store(went, Relaxed);
            if vm.host().flushed.lock().unwrap().take().is_none() {
                return;
            }
        }
    }
    done.send(()).unwrap();
}

/// Returns the frame that L2 has in the end, if the operation ran at the given moment, and the expected one; `None` if
/// the fault has fewer moments.
fn in_moment(what: Meanwhile, near: bool, moment: u64, patience: Duration) -> Option<(Option<Pfn>, Pfn)> {
    let ((ready, is_ready), (go, goes), (done, is_done)) = (channel(), channel(), channel());
    let host = Watched {
        words: (0..10 * 512).map(|_| AtomicU64::new(0)).collect(),
        frames: [0x40, 0x60].map(AtomicU64::new),
        meanwhile: Mutex::new(Some((go.clone(), is_done))),
        left: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        flushed: Mutex::default(),
        freed: AtomicBool::new(false),
        patience,
    };
    for level in 0..3 {
        host.words[level * 512].store((level as u64 + 1) << 12 | 7, Relaxed);
    }
    let rights = if what == Meanwhile::Comeback { 5 } else { 7 };
    host.words[3 * 512].store(DATA << 12 | 6 << 3 | rights, Relaxed);
    for near in 1..3 {
        host.words[3 * 512 + near].store((DATA + 1) << 12 | 6 << 3 | rights, Relaxed);
    }
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(host).vcpus(2).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 10, BASE))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    drop(vcpu.nested(&mut idle, table()));
    std::thread::scope(|scope| {
        let vm = &vm;
        let other = scope.spawn(move || other(vm, what, (ready, goes, done)));
        is_ready.recv().unwrap();
        let mut l2 = vcpu.nested(&mut idle, table()).unwrap();
        if near {
            l2.fault(&mut idle, L1Access::new(Gpa(PAGE_SIZE), Access::Read)).unwrap();
        }
        vm.host().left.store(moment, Relaxed);
        l2.fault(&mut idle, L1Access::new(Gpa(0), Access::Read)).unwrap();
        let happened = vm.host().left.swap(0, Relaxed) == 0;
        if !happened {
            go.send(()).unwrap();
        }
        if what == Meanwhile::Reclaim {
            other.join().unwrap();
            // Near an earlier mapping, whose table is freed, or is not.
            let gone = l2.translate(Gpa(0)).is_none();
            let before = vm.host().reads.load(Relaxed);
            l2.fault(&mut idle, L1Access::new(Gpa(2 * PAGE_SIZE), Access::Read)).unwrap();
            let reads = vm.host().reads.load(Relaxed) - before;
            let found = l2.translate(Gpa(2 * PAGE_SIZE)).map_or(Pfn(0), |leaf| leaf.pfn);
            return happened
                .then_some((Some(Pfn(if gone && reads != WALK { 0 } else { found.0 })), Pfn(0x60)));
        }
        let found = l2.translate(Gpa(0)).map(|leaf| leaf.pfn);
        let right = if what == Meanwhile::Host { 0x77 } else { 0x60 };
        happened.then_some((found, Pfn(right)))
    })
}

/// Whether L2 maps what it must not, at any moment; and after how many moments.
fn goes_wrong(what: Meanwhile, near: bool) -> Option<u64> {
    for moment in 1..1000 {
        match in_moment(what, near, moment, Duration::ZERO) {
            None => return None,
            Some((Some(found), right)) if found != right => return Some(moment),
            Some(_) => {}
        }
    }
    panic!("a fault ends")
}

#[test]
fn in_no_moment_of_a_fault_does_anything_get_lost() {
    for what in
        [Meanwhile::Host, Meanwhile::Flush, Meanwhile::Address, Meanwhile::Comeback, Meanwhile::Reclaim]
    {
        for near in [false, true] {
            assert_eq!(goes_wrong(what, near), None, "{what:?}");
        }
    }
}

/// A fault is held at each moment while a reclaim of the shadow's tables has flushed.
#[test]
fn no_table_is_freed_while_a_fault_is_in_it() {
    let patience = Duration::from_millis(10 * tries(2));
    let moments =
        (1..).take_while(|&moment| in_moment(Meanwhile::Reclaim, false, moment, patience).is_some());
    assert!(moments.count() > 4);
}
