//! A thin hypervisor on slat: it boots an unmodified Linux kernel and gives it the whole machine except the memory.
//!
//! ```text
//!   Linux ── ports, interrupts, MSRs, devices ──────────────────────▶ the machine
//!     │ an access without a translation
//!     ▼
//!   `guest_loop`: exit ─▶ vcpu.fault ─▶ slot (`layout`) ─▶ Host::lookup (`primary_mmu`) ─▶ a leaf; back into the guest
//!     │ an interrupt of the machine
//!     ▼
//!   `chores`: zap everything, harvest the dirty log, age, move and take pages, as the command line says
//! ```
//! | file | contents |
//! |---|---|
//! | `options` | the options on the command line |
//! | `disk` | the command line and the kernel, read from a disk where there is no loader |
//! | `layout` | the layout of the machine's memory, and the memslots |
//! | `primary_mmu` | the host: a small primary MMU under slat's [`Host`](slat::Host) |
//! | `moves` | moves pages, and takes them |
//! | `linux` | Linux's boot protocol: where the kernel goes, and the parameters that it reads |
//! | `multiboot` | the Multiboot protocol, for a guest that is not Linux |
//! | `power` | the guest's ways to report its end |
//! | `error` | errors, and the end of a run |
//! | `guest_loop` | the loop around the guest |
//! | `second` | the second processor, and how the guest starts it |
//! | `apic`, `instruction` | the guest starts it by stores to its interrupt controller; these decode them |
//! | `late` | pages that the host brings back later: the vCPU that needs one waits, and the other runs |
//! | `share`, `local`, `platform` | two vCPUs on one processor: turns, an interrupt controller for each, and the table of processors |
//! | `nested`, `l1`, `l2` | guests of the guest: its SVM's state; its SVM instructions; entry into its guest, and exits |
//! | `clock`, `vcpu_clock` | the guest's clocks: their common time; the clock of a vCPU, in a frame of its memory that the hypervisor holds and writes before each entry |
//! | `identify` | the answers to CPUID, which offer that clock |
//! | `chores` | the engine's operations on the guest's memory while the guest runs |
//! | `change_check` | sums of the guest's pages, compared with the results of harvests and aging |
//! | `events` | the engine's events, compared with its statistics |
//! | `record` | a list of every fault, by listeners |
//!
//! README.md explains how to connect slat to a hypervisor of your own.
#![no_std]
#![no_main]

extern crate alloc;

mod apic;
mod change_check;
mod chores;
mod clock;
mod disk;
mod error;
mod events;
mod guest_loop;
mod identify;
mod instruction;
mod l1;
mod l2;
mod late;
mod layout;
mod linux;
mod local;
mod moves;
mod multiboot;
mod nested;
mod options;
mod platform;
mod power;
mod primary_mmu;
mod record;
mod second;
mod share;
mod vcpu_clock;

use alloc::boxed::Box;
use chores::Chores;
use core::sync::atomic::AtomicU64;
use error::{Error, finish};
use guest_loop::{Cpu, Guest};
use layout::Layout;
use options::Options;
use primary_mmu::Machine;
use share::Share;
use slat::table::formats::{Ept4, Npt4};
use slat::{DirtyLog, Format, Idle, VcpuId, Vm};
use slat_walker_x86::boot::Boot;
use slat_walker_x86::cpu::{Vendor, processors, vendor};
use slat_walker_x86::processor::Processor;
use slat_walker_x86::svm::Svm;
use slat_walker_x86::vmx::Vmx;
use slat_walker_x86::{entry, println};

entry!(main);

fn main(boot: Boot) -> ! {
    finish(begin(boot))
}

/// Parses the options, and chooses the processor's maker.
fn begin(boot: Boot) -> Result<(), Error> {
    let options = if boot.has_firmware() {
        Options::parse(boot.command_line())?
    } else {
        Options::parse(&disk::load()?)?
    };
    match vendor() {
        _ if options.plain => linux::load(boot, &options, &Layout::of(boot))?.jump(),
        // The guest would start the other processors past the hypervisor.
        Vendor::Amd if processors() > options.cpus => {
            Err("the machine has more processors than the guest".into())
        }
        Vendor::Amd => run::<Svm, Npt4>(boot, options),
        Vendor::Intel if options.cpus > 1 => Err("two processors are for AMD-V only".into()),
        Vendor::Intel => run::<Vmx, Ept4>(boot, options),
        Vendor::Other => Err("a processor of neither AMD's nor Intel's".into()),
    }
}

/// Makes the VM and runs the guest to its end.
fn run<P: Processor, F: Format>(boot: Boot, options: Options) -> Result<(), Error> {
    let layout = Layout::of(boot);
    // SAFETY: the only token of this processor.
    let mut idle = unsafe { Idle::assume() };

    let vm = Vm::<F, _>::builder(Machine::new(&options, layout))
        .vcpus(options.cpus)
        .max_page(options.page)
        .dirty_log(DirtyLog::bitmap())
        .build()?;
    let apic = match (options.cpus, options.processors) {
        (1, _) => Some(Layout::apic()),
        (_, 1) => None,
        _ => Some(Layout::apic().readonly()),
    };
    vm.memory().commit(&mut idle, |tx| {
        layout.slots(options.chores.log_dirty).chain(apic).try_for_each(|slot| tx.create(slot))
    })?;
    println!("hypervisor: {} under {}, {:?} leaves", P::NAME, F::NAME, options.page);

    let is_image = options.image.1 > 0;
    let (first, registers) = if is_image {
        let (entry, registers) = multiboot::load(boot, &options, &layout)?;
        (P::entered(entry).ok_or("images are for AMD-V only")?, registers)
    } else {
        let start = linux::load(boot, &options, &layout)?;
        (P::new(&start.mode), start.registers)
    };
    let power = if is_image { Some(power::VERDICT) } else { power::control_port(boot) };
    let chores = Chores::new(&options, vm.host());
    let faults = [const { AtomicU64::new(0) }; 2];
    // Leaked: the second processor uses it to the end.
    let guest = Box::leak(Box::new(Guest { vm, options, power, chores, faults }));
    if options.is_shared() {
        return Share::new(guest, first, registers)?.run(&mut idle);
    }
    if options.cpus > 1 {
        second::bring::<P, F>(guest)?;
    }
    Cpu::new(guest, VcpuId(0), first, registers)?.run(&mut idle)
}
