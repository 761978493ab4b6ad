//! A thin hypervisor on slat: it boots an unmodified Linux kernel and gives it the machine, all but the memory.
//!
//! ```text
//!   Linux ── ports, interrupts, MSRs, devices ──────────────────────▶ the machine
//!     │ an access without a translation
//!     ▼
//!   `guest`: exit ─▶ vcpu.fault ─▶ slot (`memory`) ─▶ Host::lookup (`memory`) ─▶ a leaf; back into the guest
//!     │ an interrupt of the machine
//!     ▼
//!   `chores`: zap everything, harvest the dirty log, age, split and recover: whatever the command line says
//! ```
//! | file | what is there |
//! |---|---|
//! | `options` | what the command line says |
//! | `disk` | where that, and the kernel, come from if there is no loader |
//! | `memory` | the machine's memory as slat's [`Host`](slat::Host), and the memslots |
//! | `linux` | Linux's boot protocol: where the kernel goes, and what it is told |
//! | `power` | how the guest says that it is done |
//! | `guest` | the loop around the guest |
//! | `chores` | what is done to its memory while it runs |
//! | `record` | every fault, told to whoever listens |
//!
//! README.md beside this tells how to wire slat into a hypervisor of your own.
#![no_std]
#![no_main]

extern crate alloc;

mod chores;
mod disk;
mod guest;
mod linux;
mod memory;
mod options;
mod power;
mod record;

use guest::Guest;
use memory::{Layout, Machine};
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
    match begin(boot) {
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
        Vendor::Intel => run::<Vmx, Ept4>(boot, options),
        Vendor::Other => Err("a processor of neither AMD's nor Intel's".into()),
    }
}

/// From the memslots to the guest's last instruction.
fn run<P: Processor, F: Format>(boot: Boot, options: Options) -> Result<(), Error> {
    let layout = Layout::of(boot);
    // SAFETY: the only token of the only processor.
    let mut idle = unsafe { Idle::assume() };

    let vm = Vm::<F, _>::builder(Machine { page: options.page })
        .max_page(options.page)
        .dirty_log(DirtyLog::bitmap())
        .build()?;
    vm.slots().commit(&mut idle, |tx| {
        layout.slots(options.chores.log_dirty).try_for_each(|slot| tx.create(slot))
    })?;
    println!("hypervisor: {} under {}, {:?} leaves", P::NAME, F::NAME, options.page);

    let start = linux::load(boot, &options, &layout)?;
    let vcpu = vm.vcpu(VcpuId(0)).ok_or("vCPU 0 is taken")?;
    Guest::<P, F>::new(vcpu, &start, options, layout, power::control_port(boot)).run(&mut idle)
}

/// One line that says what went wrong.
type Error = alloc::boxed::Box<dyn core::error::Error>;
