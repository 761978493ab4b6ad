//! A VM of one slot over a host that is a function, for tests of promises.

use slat::{
    Access, Fault, Gfn, Host, HostError, HostPage, Hva, Idle, Pfn, Slot, SlotId, Span, Translations, VcpuId,
};
use std::sync::mpsc;
use std::time::Duration;

type Answer = Box<dyn Fn(Hva) -> Option<HostPage> + Send + Sync>;

/// A host that answers every question by a function; boxed, since each host's type compiles a whole engine.
pub struct By(Answer);

impl By {
    pub fn new(answer: impl Fn(Hva) -> Option<HostPage> + Send + Sync + 'static) -> Self {
        Self(Box::new(answer))
    }
}

impl Host for By {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        self.0(hva)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        self.0(hva).ok_or(HostError::Fault)
    }

    fn kick(&self, _: VcpuId) {}
}

/// The small writable page whose frame number is its address over 4096.
pub fn page(hva: Hva) -> HostPage {
    HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN }
}

pub fn ram(id: u32, gfn: u64, pages: u64, hva: u64) -> Slot {
    Slot::new(SlotId(id), Gfn(gfn), pages, Hva(hva))
}

pub fn write(gfn: u64) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }
}

/// The host addresses of guest frame 5.
pub fn hva5() -> Span<Hva> {
    Span::sized(Hva(0x4000_5000), 4096)
}

/// A TLB that holds the guest frames that a test puts into it, until a flush.
#[derive(Default, Debug)]
pub struct Tlb(pub Vec<u64>);

impl Translations for Tlb {
    fn flush_all(&mut self) {
        self.0.clear();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0.retain(|&gfn| !gfns.contains(Gfn(gfn)));
    }
}

/// Whether `what` ends within a minute. Otherwise its thread is left behind.
pub fn ends<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> bool {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let out = what();
        done.send(()).ok();
        out
    });
    wait.recv_timeout(Duration::from_secs(60)).is_ok()
}

/// A VM with guest frames 0 to 7 at host address `0x4000_0000`, of which frame 5 is mapped by vCPU 0.
macro_rules! vm {
    ($format:ty, $host:expr, $idle:ident, $vm:ident, $vcpu:ident) => {
        let mut $idle = slat::Idle::take().unwrap();
        let $vm = slat::Vm::<$format, _>::builder($crate::sound::common::By::new($host))
            .vcpus(2)
            .address_spaces(2)
            .build()
            .unwrap();
        $vm.memory()
            .commit(&mut $idle, |tx| tx.create($crate::sound::common::ram(0, 0, 8, 0x4000_0000)))
            .unwrap();
        let mut $vcpu = $vm.vcpu(slat::VcpuId(0)).unwrap();
        let _ = $vcpu.fault(&mut $idle, $crate::sound::common::write(5));
    };
}
pub(crate) use vm;
