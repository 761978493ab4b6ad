//! A flush that L1 broadcasts, while a fault of another vCPU walks its table. When it returns, L1 may reuse the table's
//! pages, so no walk that has followed an old link may still be under way.

use super::*;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::tries::tries;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Signals that the walk is there and that the flush returned; and how long it must not return.
type Meets = (Sender<()>, Receiver<()>, Duration);

/// L1's tables. The reader stops before it reads the last one.
struct Slow {
    words: Vec<AtomicU64>,
    /// Signals that the walk is there, and waits this long for the flush, which must not return.
    meets: Mutex<Option<Meets>>,
    /// Whether it returned.
    early: AtomicU64,
}

impl Host for Slow {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        let at = (hva.0 - BASE.0) / 8;
        if at / 512 == 3
            && let Some((there, returned, patience)) = self.meets.lock().unwrap().take()
        {
            there.send(()).unwrap();
            let early = returned.recv_timeout(patience) != Err(RecvTimeoutError::Timeout);
            self.early.store(early.into(), Relaxed);
        }
        Some(Word(self.words[at as usize].load(Relaxed)))
    }
}

/// Whether the flush returns while another vCPU's fault reads what it has flushed.
fn returns_early(patience: Duration) -> bool {
    let ((there, is_there), (returned, has_returned)) = (channel(), channel());
    let host = Slow {
        words: (0..10 * 512).map(|_| AtomicU64::new(0)).collect(),
        meets: Mutex::new(None),
        early: AtomicU64::new(0),
    };
    for level in 0..3 {
        host.words[level * 512].store((level as u64 + 1) << 12 | 7, Relaxed);
    }
    host.words[3 * 512].store(8 << 12 | 6 << 3 | 7, Relaxed);
    let table = EptTable::new(3 << 3 | 6, EptFeatures::of(46)).unwrap();
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(host).vcpus(1).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 10, BASE))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    // The shadow exists before L1 flushes it.
    let _ = vcpu.nested(&mut idle, table).unwrap();
    *vm.host().meets.lock().unwrap() = Some((there, has_returned, patience));
    std::thread::scope(|scope| {
        let vm = &vm;
        scope.spawn(move || {
            let mut idle = Idle::take().unwrap();
            is_there.recv().unwrap();
            let all = Span::sized(Gfn(0), 1 << 18);
            vm.l1_broadcasts(&mut idle, SpaceId(0), all, |_: &EptTable| true);
            // The fault may have ended.
            let _ = returned.send(());
        });
        let mut l2 = vcpu.nested(&mut idle, table).unwrap();
        l2.fault(&mut idle, L1Access::new(Gpa(0), Access::Read)).unwrap();
    });
    vm.host().early.load(Relaxed) != 0
}

#[test]
fn a_broadcast_flush_outlasts_walks_of_what_it_flushes() {
    assert!(!returns_early(Duration::from_millis(10 * tries(5))));
}

#[test]
fn a_flush_of_shadows_alone_counts_as_one_edit() {
    let World { mut idle, vm } = World::new();
    let put = |frame: u64, word| vm.host().words[(frame * 512) as usize].store(word, Relaxed);
    for level in 0..3 {
        put(CHAIN[level], CHAIN[level + 1] << 12 | 7);
    }
    put(CHAIN[3], 0x20 << 12 | 6 << 3 | 7);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut l2 = vcpu.nested(&mut idle, ept(CHAIN[0], 4, true)).unwrap();
    let done = l2.fault(&mut idle, L1Access::new(Gpa(0x123), Access::Read)).unwrap();
    assert!(matches!(done, L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. }), "{done:?}");
    put(CHAIN[3], 0);
    let before = vm.stats();
    vm.l1_broadcasts(&mut idle, SpaceId(0), Span::sized(Gfn(0), 512), |_: &EptTable| true);
    let counted = vm.stats().since(&before).flushes;
    assert_eq!(counted, Flushes { requested: 1, paid: 1, pages: 0 });
}
