//! Demand paging by slat: vCPUs fault in parallel.

use crate::software_guest::{self, Counts, Cpu, Exit, Turns, Workload};
use slat::table::formats::Npt4;
use slat::{
    Access, CpuId, Fault, Gfn, Host, HostError, HostPage, Hva, Idle, PAGE_SHIFT, Pfn, Slot, SlotId, Span,
    Translations, VcpuId, Vm,
};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The frame of each page of the guest; 0 where there is none yet.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn page(&self, hva: Hva) -> &AtomicU64 {
        &self.0[(hva.0 >> PAGE_SHIFT) as usize]
    }
}

impl Host for Memory {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let frame = self.page(hva).load(SeqCst);
        (frame != 0).then_some(HostPage { pfn: Pfn(frame >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let _ = self.page(hva).compare_exchange(0, software_guest::frame(), SeqCst, SeqCst);
        self.lookup(hva, access).ok_or(HostError::NoMemory)
    }
}

struct Tlb<'c, 'w>(&'c mut Cpu<'w>, bool);

impl Translations for Tlb<'_, '_> {
    fn flush_all(&mut self) {
        // The first entry of a vCPU, when nothing is cached.
        if std::mem::replace(&mut self.1, true) {
            self.0.flush();
        }
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0.flush();
    }

    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
}

/// A VM with this many pages on demand.
fn vm(vcpus: usize, pages: u64) -> Vm<Npt4, Memory> {
    software_guest::prepare(pages + 64);
    let memory = Memory((0..pages).map(|_| AtomicU64::new(0)).collect());
    let vm = Vm::builder(memory).vcpus(vcpus as u32).build().expect("memory");
    let ram = Slot::new(SlotId(0), Gfn(0), pages, Hva(0));
    let mut idle = Idle::take().expect("a thread's own");
    vm.memory().commit(&mut idle, |tx| tx.create(ram)).expect("a memslot");
    vm
}

/// Makes the two faults of `theirs`.
pub fn two_faults_keep_a_store() -> bool {
    let vm = vm(2, 1);
    let fault = |id| {
        let (mut idle, mut vcpu) =
            (Idle::take().expect("a thread's own"), vm.vcpu(VcpuId(id)).expect("its number"));
        vcpu.fault(&mut idle, Fault { gpa: Gfn(0).gpa(), access: Access::Write }).expect("memory");
    };
    let kept = software_guest::stores_between([0, 1], fault, vm.memory().root().address());
    drop(vm);
    kept
}

pub fn run(workload: &Workload) -> (Counts, bool) {
    let vm = vm(workload.vcpus, workload.pages);
    let root = vm.memory().root().address();
    let turns = Turns::new(workload);
    let counts = software_guest::threads(workload, &turns, |nth| {
        let mut idle = Idle::take().expect("a thread's own");
        let mut vcpu = vm.vcpu(VcpuId(nth as u32)).expect("its number");
        let mut cpu = Cpu::new(workload, &turns, nth);
        let mut entered = false;
        loop {
            let mut tlb = Tlb(&mut cpu, entered);
            let guest = vcpu.enter(&mut idle, &mut tlb).poll();
            entered = true;
            let exit = cpu.run(root, || guest.kicked());
            drop(guest);
            match exit {
                Exit::Done => break cpu.counts,
                Exit::Kicked => {}
                Exit::Fault(page) => {
                    let fault = Fault { gpa: Gfn(page).gpa(), access: Access::Write };
                    vcpu.fault(&mut idle, fault).expect("memory");
                }
            }
        }
    });
    let is_whole = software_guest::is_whole(workload, root);
    drop(vm);
    (counts, is_whole)
}
