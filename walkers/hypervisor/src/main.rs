//! A thin hypervisor on slat: it boots an unmodified Linux kernel and gives it the machine, all but the memory.
//!
//! ```text
//!   Linux ── ports, interrupts, MSRs, devices ──────────────────────▶ the machine
//!     │ an access without a translation
//!     ▼
//!   `guest`: exit ─▶ vcpu.fault ─▶ slot (`layout`) ─▶ Host::lookup (`memory`) ─▶ a leaf; back into the guest
//!     │ an interrupt of the machine
//!     ▼
//!   `chores`: zap everything, harvest the dirty log, age, move and take pages: whatever the command line says
//! ```
//! | file | what is there |
//! |---|---|
//! | `options` | what the command line says |
//! | `disk` | where that, and the kernel, come from if there is no loader |
//! | `layout` | where in the machine's memory things are, and the memslots |
//! | `memory` | the host: a small primary MMU under slat's [`Host`](slat::Host) |
//! | `moves` | how it moves pages, and takes them |
//! | `linux` | Linux's boot protocol: where the kernel goes, and what it is told |
//! | `power` | how the guest says that it is done |
//! | `guest` | the loop around the guest |
//! | `second` | the second processor, until the guest starts it |
//! | `apic`, `instruction` | how the guest starts it: stores to its interrupt controller |
//! | `chores` | what is done to its memory while it runs |
//! | `watch` | what it has become, compared with what harvests and aging tell |
//! | `record` | every fault, told to whoever listens |
//!
//! README.md beside this tells how to wire slat into a hypervisor of your own.
#![no_std]
#![no_main]

extern crate alloc;

mod apic;
mod chores;
mod disk;
mod guest;
mod instruction;
mod layout;
mod linux;
mod memory;
mod moves;
mod options;
mod power;
mod record;
mod second;
mod watch;

use alloc::boxed::Box;
use chores::Chores;
use core::sync::atomic::AtomicU64;
use guest::{Cpu, Guest};
use layout::Layout;
use memory::Machine;
use options::Options;
use slat::table::formats::{Ept4, Npt4};
use slat::{DirtyLog, Format, Idle, VcpuId, Vm};
use slat_walker_x86::boot::Boot;
use slat_walker_x86::cpu::{Vendor, vendor};
use slat_walker_x86::exit::{Verdict, exit};
use slat_walker_x86::guest::Processor;
use slat_walker_x86::svm::Svm;
use slat_walker_x86::vmx::Vmx;
use slat_walker_x86::{entry, println};

entry!(main);

fn main(boot: Boot) -> ! {
    finish(begin(boot))
}

/// Ends the machine, on whichever processor.
fn finish(result: Result<(), Error>) -> ! {
    match result {
        Ok(()) => exit(Verdict::Passed),
        Err(error) => {
            println!("hypervisor: {error}");
            exit(Verdict::Failed)
        }
    }
}

/// Finds out what is wanted, and on which processor.
fn begin(boot: Boot) -> Result<(), Error> {
    let options = if boot.has_firmware() {
        Options::parse(boot.command_line())?
    } else {
        Options::parse(&disk::load()?)?
    };
    match vendor() {
        _ if options.plain => linux::load(boot, &options, &Layout::of(boot))?.jump(),
        Vendor::Amd => run::<Svm, Npt4>(boot, options),
        Vendor::Intel if options.cpus > 1 => Err("two processors are for AMD-V only".into()),
        Vendor::Intel => run::<Vmx, Ept4>(boot, options),
        Vendor::Other => Err("a processor of neither AMD's nor Intel's".into()),
    }
}

/// From the memslots to the guest's last instruction.
fn run<P: Processor, F: Format>(boot: Boot, options: Options) -> Result<(), Error> {
    let layout = Layout::of(boot);
    // SAFETY: the only token of this processor.
    let mut idle = unsafe { Idle::assume() };

    let vm = Vm::<F, _>::builder(Machine::new(options.page, layout))
        .vcpus(options.cpus)
        .max_page(options.page)
        .dirty_log(DirtyLog::bitmap())
        .build()?;
    let apic = if options.cpus > 1 { Layout::apic().readonly() } else { Layout::apic() };
    vm.slots().commit(&mut idle, |tx| {
        layout.slots(options.chores.log_dirty).chain([apic]).try_for_each(|slot| tx.create(slot))
    })?;
    println!("hypervisor: {} under {}, {:?} leaves", P::NAME, F::NAME, options.page);

    let start = linux::load(boot, &options, &layout)?;
    let power = power::control_port(boot);
    let chores = Chores::new(options.chores, vm.host(), options.cpus);
    let faults = [const { AtomicU64::new(0) }; 2];
    // Leaked: the second processor is in it to the end.
    let guest = Box::leak(Box::new(Guest { vm, options, power, chores, faults }));
    if options.cpus > 1 {
        second::bring::<P, F>(guest)?;
    }
    Cpu::new(guest, VcpuId(0), P::new(&start.mode), start.registers)?.run(&mut idle)
}

/// One line that says what went wrong.
type Error = Box<dyn core::error::Error>;
