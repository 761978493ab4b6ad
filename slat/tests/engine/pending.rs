//! Faults that do not block: tokens, the vCPUs that wait for them and are woken, and changes meanwhile.

use slat::entry::Go;
use slat::table::formats::Npt4;
use slat::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

/// The host's answer if it has no page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Absent {
    /// Pending, under the page's address.
    #[default]
    Pending,
    /// Pending, under another number each time.
    Renamed,
    /// The VMM provides the page.
    Needed,
}

/// Pages that have arrived, by host address, with the frame; then pages that were asked for.
#[derive(Default)]
struct Remote {
    absent: Absent,
    here: Mutex<BTreeMap<Hva, Pfn>>,
    asked: Mutex<BTreeSet<Hva>>,
    kicks: [AtomicU64; 4],
    questions: AtomicU64,
}

impl Remote {
    fn comes(&self, page: Hva) {
        self.here.lock().unwrap().insert(page, Pfn(page.0 >> PAGE_SHIFT));
    }
}

impl Host for Remote {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        self.questions.fetch_add(1, SeqCst);
        let page = Hva(hva.0 & !(PAGE_SIZE - 1));
        if let Some(&pfn) = self.here.lock().unwrap().get(&page) {
            return Ok(HostPage { pfn, ..HostPage::PLAIN });
        }
        self.asked.lock().unwrap().insert(page);
        Err(match self.absent {
            Absent::Pending | Absent::Renamed => HostError::Pending,
            Absent::Needed => HostError::NeedsPage,
        })
    }

    fn token(&self, hva: Hva) -> Token {
        match self.absent {
            Absent::Renamed => Token(self.questions.load(SeqCst)),
            _ => Token(hva.0 & !(PAGE_SIZE - 1)),
        }
    }

    fn kick(&self, vcpu: VcpuId) {
        self.kicks[vcpu.0 as usize].fetch_add(1, SeqCst);
    }
}

const RAM: Hva = Hva(1 << 40);
const SLOT: SlotId = SlotId(0);

fn vm(absent: Absent) -> (Idle, Vm<Npt4, Remote>) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::builder(Remote { absent, ..Remote::default() }).vcpus(4).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SLOT, Gfn(0), 512, RAM))).unwrap();
    (idle, vm)
}

fn hva(gfn: u64) -> Hva {
    RAM + gfn * PAGE_SIZE
}

fn token(gfn: u64) -> Token {
    Token(hva(gfn).0)
}

/// The answer to a fault on the missing page `gfn`.
fn pending(gfn: u64) -> Next {
    Next::Leave(Leave::Pending(token(gfn)))
}

fn load(gfn: u64) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }
}

struct Tlb;

impl Translations for Tlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

#[test]
fn each_vcpu_that_waits_is_woken_once_and_no_other() {
    let (mut idle, vm) = vm(Absent::Pending);
    let mut vcpus: Vec<_> = (0..4).map(|id| vm.vcpu(VcpuId(id)).unwrap()).collect();
    for vcpu in &mut vcpus[..2] {
        assert_eq!(vcpu.fault(&mut idle, load(5)), Ok(pending(5)));
    }
    // A vCPU that waits already asks the host once.
    let questions = vm.host().questions.load(SeqCst);
    assert_eq!(vcpus[0].fault(&mut idle, load(5)), Ok(pending(5)));
    assert_eq!(vm.host().questions.load(SeqCst), questions + 1);
    assert_eq!(vcpus[2].fault(&mut idle, load(6)), Ok(pending(6)));
    assert_eq!(vcpus[2].pending_token(), Some(token(6)));
    assert_eq!(vm.waiters(token(5)), [VcpuId(0), VcpuId(1)]);
    assert_eq!(vm.waiters(token(7)), []);

    vm.host().comes(hva(5));
    assert_eq!(vm.ready(token(5)), 2);
    assert_eq!(vm.ready(token(5)), 0, "they are woken already");
    assert_eq!(vm.ready(token(7)), 0, "there is no such token");
    assert_eq!(vm.waiters(token(5)), []);
    assert_eq!(vm.host().kicks.each_ref().map(|kicks| kicks.load(SeqCst)), [1, 1, 0, 0]);
    let taken: Vec<_> = vcpus.iter_mut().map(Vcpu::take_ready).collect();
    assert_eq!(taken, [Some(token(5)), Some(token(5)), None, None]);
    assert!(vcpus.iter_mut().all(|vcpu| vcpu.take_ready().is_none()));
    assert_eq!(vcpus[0].fault(&mut idle, load(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vcpus[1].fault(&mut idle, load(5)), Ok(Next::Resume(Resume::Spurious)));
    assert_eq!(vm.waiters(token(6)), [VcpuId(2)]);
}

#[test]
fn a_vcpu_waits_for_many_tokens_and_takes_each() {
    let (mut idle, vm) = vm(Absent::Pending);
    let mut vcpu = vm.vcpu(VcpuId(3)).unwrap();
    for gfn in 0..100 {
        assert_eq!(vcpu.fault(&mut idle, load(gfn)), Ok(pending(gfn)));
    }
    for gfn in (0..100).rev() {
        vm.host().comes(hva(gfn));
        assert_eq!(vm.ready(token(gfn)), 1);
    }
    let taken: BTreeSet<_> = std::iter::from_fn(|| vcpu.take_ready()).collect();
    assert!(taken.into_iter().eq((0..100).map(token)));
}

/// The guest switches from its other task to the one whose page has arrived.
#[test]
fn a_ready_token_brings_a_vcpu_out_of_the_guest_until_it_is_taken() {
    let (mut idle, vm) = vm(Absent::Pending);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, load(1)).unwrap();
    let _ = vcpu.fault(&mut idle, load(2)).unwrap();
    let mut guest = vcpu.enter(&mut idle, &mut Tlb).poll();
    assert!(!guest.kicked() && !guest.has_ready());
    vm.host().comes(hva(1));
    vm.host().comes(hva(2));
    assert_eq!((vm.ready(token(1)), vm.ready(token(2))), (1, 1));
    assert!(guest.kicked() && guest.has_ready());
    guest.answer(&mut Tlb);
    assert!(guest.kicked() && guest.has_ready(), "an answer is to flushes");
    drop(guest);
    for tokens_left in [2, 1] {
        assert!(matches!(vcpu.enter(&mut idle, &mut Tlb).go(|| ()), Go::Back), "{tokens_left} are not taken");
        assert!(vcpu.take_ready().is_some());
    }
    assert!(matches!(vcpu.enter(&mut idle, &mut Tlb).go(|| ()), Go::In(..)));
    assert_eq!(vcpu.take_ready(), None);
}

#[test]
fn changes_during_a_wait_are_found_by_the_next_access() {
    let (mut idle, vm) = vm(Absent::Pending);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    // The page arrives, and is taken away again before the vCPU looks.
    let _ = vcpu.fault(&mut idle, load(1)).unwrap();
    vm.host().comes(hva(1));
    vm.ready(token(1));
    let change = vm.invalidate(Span::sized(hva(1), PAGE_SIZE), Reason::Unmap).apply(&mut idle).settle();
    vm.host().here.lock().unwrap().remove(&hva(1));
    drop(change);
    assert_eq!(vcpu.take_ready(), Some(token(1)));
    assert_eq!(vcpu.fault(&mut idle, load(1)), Ok(pending(1)), "it waits anew");
    assert_eq!(vm.waiters(token(1)), [VcpuId(0)]);
    // The page moves to another frame, and its memslot to other guest frames.
    vm.host().here.lock().unwrap().insert(hva(1), Pfn(0x777));
    vm.memory().commit(&mut idle, |tx| tx.move_to(SLOT, Gfn(1024))).unwrap();
    vm.ready(token(1));
    assert_eq!(vcpu.take_ready(), Some(token(1)));
    assert_eq!(vcpu.fault(&mut idle, load(1)), Ok(Next::Emulate(Emulate::NoMemory)));
    assert_eq!(vcpu.fault(&mut idle, load(1025)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vm.memory().translate(&mut idle, Gfn(1025)).unwrap().leaf.pfn, Pfn(0x777));
}

#[test]
fn a_prefault_ends_before_a_page_on_its_way_and_is_told_when_to_go_on() {
    let (mut idle, vm) = vm(Absent::Pending);
    (0..3).chain(4..8).for_each(|gfn| vm.host().comes(hva(gfn)));
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for how in [Prefault::OLD, Prefault::young(Access::Write)] {
        assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(0), Gfn(8)), how), Ok(3));
        let error = FaultError::Host(HostError::Pending);
        assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(3), Gfn(8)), how), Err(error));
    }
    assert_eq!(vm.waiters(token(3)), [VcpuId(0)]);
    vm.host().comes(hva(3));
    vm.ready(token(3));
    assert_eq!(vcpu.take_ready(), Some(token(3)));
    assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(3), Gfn(8)), Prefault::OLD), Ok(5));
}

/// KVM's user fault: an exit to the VMM, which provides the page; the access is then repeated.
#[test]
fn a_page_that_the_vmm_has_to_provide_leaves_to_it() {
    let (mut idle, vm) = vm(Absent::Needed);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let store = Fault { gpa: Gpa(0x5008), access: Access::Write };
    assert_eq!(vcpu.fault(&mut idle, store), Ok(Next::Leave(Leave::NeedsPage)));
    let error = FaultError::Host(HostError::NeedsPage);
    assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(5), Gfn(6)), Prefault::OLD), Err(error));
    vm.host().comes(hva(5));
    assert_eq!(vcpu.fault(&mut idle, load(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(5), Gfn(8)), Prefault::OLD), Ok(1));
    assert_eq!(vcpu.take_ready(), None);
}

#[test]
fn a_vcpu_that_has_gone_or_forgets_is_not_woken() {
    let (mut idle, vm) = vm(Absent::Pending);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, load(1)).unwrap();
    let _ = vcpu.fault(&mut idle, load(2)).unwrap();
    vm.ready(token(2));
    vcpu.forget_tokens();
    assert_eq!((vm.waiters(token(1)), vcpu.take_ready()), (vec![], None));
    assert!(matches!(vcpu.enter(&mut idle, &mut Tlb).go(|| ()), Go::In(..)));
    let _ = vcpu.fault(&mut idle, load(1)).unwrap();
    drop(vcpu);
    assert_eq!(vm.ready(token(1)), 0);
    assert_eq!(vm.vcpu(VcpuId(0)).unwrap().take_ready(), None);
}

#[test]
fn a_host_that_renames_its_pages_makes_no_fault_last() {
    let (mut idle, vm) = vm(Absent::Renamed);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for _ in 0..10 {
        let before = vm.host().questions.load(SeqCst);
        let Ok(Next::Leave(Leave::Pending(token))) = vcpu.fault(&mut idle, load(1)) else {
            panic!("no page comes")
        };
        assert_eq!(vm.host().questions.load(SeqCst), before + 2);
        assert_eq!(vcpu.take_ready(), Some(token), "it tries again at once");
        assert_eq!(vcpu.take_ready(), None);
    }
}

/// vCPUs that each stop at a missing page, and continue only by wake-ups; a thread that brings pages.
#[test]
fn no_wake_up_is_lost_between_threads() {
    let (idle, vm) = vm(Absent::Pending);
    drop(idle);
    let pages = 512;
    let left = AtomicU64::new(3);
    thread::scope(|scope| {
        for id in 0..3 {
            let (vm, left) = (&vm, &left);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
                for gfn in 0..pages {
                    // In another order each, so that one vCPU waits for a page, or several do.
                    let gfn = gfn * [1, 511, 257][id as usize] % pages;
                    while vcpu.fault(&mut idle, load(gfn)).unwrap() == pending(gfn) {
                        while vcpu.take_ready() != Some(token(gfn)) {
                            thread::yield_now();
                        }
                    }
                }
                left.fetch_sub(1, SeqCst);
            });
        }
        while left.load(SeqCst) > 0 {
            let next = vm.host().asked.lock().unwrap().pop_first();
            let Some(page) = next else {
                thread::yield_now();
                continue;
            };
            vm.host().comes(page);
            vm.ready(Token(page.0));
        }
    });
    assert_eq!(vm.stats().leaves[0], pages);
}
