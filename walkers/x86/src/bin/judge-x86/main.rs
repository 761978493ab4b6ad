//! The judge on x86-64.
#![no_std]
#![no_main]

extern crate alloc;

mod guest;
mod machine;

use machine::Walker;
use slat::table::formats::{Ept4, Ept4NoAd, Npt4, Npt5, Pae};
use slat::*;
use slat_judge::Machine;
use slat_walker_x86::boot::Boot;
use slat_walker_x86::exit::{Verdict, exit};
use slat_walker_x86::{cpu, entry, guest::Processor, println, svm::Svm, vmx::Vmx};

entry!(main);

struct Id;
unsafe impl TableMemory for Id {}
impl Host for Id {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::K4, writable: true })
    }
}

fn smoke<P: Processor, F: Format>(mut w: Walker<P, F>) -> Walker<P, F> {
    let mut idle = unsafe { Idle::assume() };
    let vm = Vm::<F, _>::builder(Id).vcpus(1).build().unwrap();
    let ram = w.ram();
    let fx = w.fixed()[0];
    vm.slots()
        .commit(&mut idle, |tx| {
            tx.create(Slot::new(SlotId(0), fx.gfn, fx.pages, Hva(fx.pfn.0 << 12)))?;
            tx.create(Slot::new(SlotId(1), Gfn(0x8_0000), 512, Hva(ram.pattern.start.0 << 12)))
        })
        .unwrap();
    for p in 0..512 {
        let a = (ram.pattern.start.0 + p) << 12;
        for i in 0..512 {
            unsafe { ((a + i * 8) as *mut u64).write(a + i * 8) }
        }
        w.write_code(Pfn(a >> 12));
    }
    let mut v = vm.vcpu(VcpuId(0)).unwrap();
    for p in 0..fx.pages {
        for a in [Access::Write, Access::Fetch] {
            v.fault(&mut idle, Fault { gpa: (fx.gfn + p).gpa(), access: a }).unwrap();
        }
    }
    for (gpa, a) in [
        (0x8000_0008, Access::Read),
        (0x8000_1010, Access::Write),
        (0x8000_2f00, Access::Fetch),
        (0x8020_0000, Access::Read),
    ] {
        let x = w.access(vm.root(), Gpa(gpa), a, 77);
        println!("{gpa:x} {a:?} {x:x?}");
        println!("{:?}", v.fault(&mut idle, Fault { gpa: Gpa(gpa), access: a }));
        w.flush();
        println!("{:x?}", w.access(vm.root(), Gpa(gpa), a, 77));
    }
    w
}

fn main(boot: Boot) -> ! {
    println!(
        "up: {:?}, {} processor(s), line '{}' bits {}",
        cpu::vendor(),
        cpu::processors(),
        boot.command_line(),
        cpu::physical_bits()
    );
    match cpu::vendor() {
        cpu::Vendor::Amd => {
            let w = smoke(Walker::<Svm, Npt4>::new(&[]));
            println!("PAE");
            let w = smoke(w.of::<Pae>());
            println!("4");
            let w = smoke(w.of::<Npt4>());
            if slat_walker_x86::paging::has_five_levels() {
                println!("5");
                let w = smoke(w.of::<Npt5>());
                println!("4");
                smoke(w.of::<Npt4>());
            }
        }
        _ => {
            let w = smoke(Walker::<Vmx, Ept4>::new(&[]));
            smoke(w.of::<Ept4NoAd>());
        }
    }
    exit(Verdict::Passed)
}
