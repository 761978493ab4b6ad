//! A leaf that was written and lost its write permission is zapped during the fault of the next store. While its entry
//! is frozen, no other thread can see that it was dirty. The store fails, so that nothing else marks the page.
//!
//! ```text
//! store ─▶ D      write-protect      store ─▶ fault: the host is asked ─▶ a page beside it is invalidated
//!                                    entry frozen, the host is asked again ──────────┐
//!                                                                                    ▼ on another thread
//!                                    refused ◀── the host says read-only ◀── invalidated: the entry is a hole
//! harvest: the page of the first store
//! ```
//! The fault asks again because of the page beside it.

use super::subject::access;
use slat::table::formats::{Ept4, Npt4};
use slat::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};

const SLOT: SlotId = SlotId(0);
const HVA: Hva = Hva(0x4000_0000);
const PAGE: Gfn = Gfn(9);

/// A host whose frame is the address. When armed, the next questions let another thread run first.
#[derive(Default)]
struct Interrupted {
    read_only: AtomicBool,
    next: Mutex<Vec<(Sender<()>, Receiver<()>)>>,
}

impl Host for Interrupted {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let next = self.next.lock().unwrap().pop();
        if let Some((go, done)) = next {
            go.send(()).unwrap();
            done.recv().unwrap();
        }
        let writable = !self.read_only.load(SeqCst);
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), writable, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access)
            .filter(|page| page.writable || access != Access::Write)
            .ok_or(HostError::Fault)
    }
}

fn taken_away_while_it_is_frozen<F: Format>(track: Track) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<F, _>::builder(Interrupted::default()).dirty_log(DirtyLog::bitmap().track(track));
    let vm = vm.build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SLOT, Gfn(0), 64, HVA).log_dirty())).unwrap();
    access(&vm, &mut idle, PAGE, Access::Write);
    let hvas = Span::sized(HVA + PAGE.gpa().0, PAGE_SIZE);
    drop(vm.invalidate(hvas, Reason::WriteProtect).apply(&mut idle).settle());

    let [(go, went), (beside, went_beside)] = [channel(), channel()];
    let [(done, wait), (done_beside, wait_beside)] = [channel(), channel()];
    *vm.host().next.lock().unwrap() = vec![(go, wait), (beside, wait_beside)];
    std::thread::scope(|scope| {
        let vm = &vm;
        scope.spawn(move || {
            let mut idle = Idle::take().unwrap();
            went_beside.recv().unwrap();
            drop(vm.invalidate(Span::sized(hvas.end, 1), Reason::Unmap).apply(&mut idle).settle());
            done_beside.send(()).unwrap();
            went.recv().unwrap();
            let change = vm.invalidate(hvas, Reason::Protect).apply(&mut idle).settle();
            vm.host().read_only.store(true, SeqCst);
            drop(change);
            done.send(()).unwrap();
        });
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let refused = vcpu.fault(&mut idle, Fault { gpa: PAGE.gpa(), access: Access::Write });
        assert_eq!(refused, Err(FaultError::Host(HostError::Fault)), "{track:?}");
    });
    assert!(vm.host().next.lock().unwrap().is_empty(), "the host was asked twice");
    assert_eq!(vm.memory().translate(&mut idle, PAGE), None, "taken away");
    let harvest = vm.memory().harvest(&mut idle, SLOT).unwrap();
    assert!(harvest.iter().map(|page| page.gfn).eq([PAGE]), "{track:?}: {harvest:?}");
    harvest.commit();
}

#[test]
fn a_dirty_leaf_that_goes_while_it_is_frozen_is_told() {
    for track in [Track::Writes, Track::DirtyBits] {
        taken_away_while_it_is_frozen::<Ept4>(track);
        taken_away_while_it_is_frozen::<Npt4>(track);
    }
}
