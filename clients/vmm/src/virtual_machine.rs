//! A machine with memory, processors and a console, from the kernel's start to its restart.

use crate::arguments::{Arguments, Churn};
use crate::boot::Image;
use crate::churn::{Churned, churn};
use crate::console::{Console, Keys};
use crate::{processors, vcpu};
use anyhow::{Context, Result, ensure};
use slat::slots::Region;
use slat::{Gpa, Hva, Idle, SlotId, Span};
use slat_cli::interrupt;
use slat_kvm::KvmVm;
use slat_kvm::kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_pit_config};
use slat_kvm::kvm_ioctls::{Kvm, VmFd};
use slat_mm::{AddressSpace, Advice, Arena, Backing, Ksm, KsmScanner, Place, Prot, Swap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Memory below this is the first memslot, for a PC's firmware; the second memslot has the rest.
const LOW: u64 = 1 << 20;
/// Three pages outside memory, which KVM needs on Intel's processors.
const TASK_STATE: usize = 0xfffb_d000;

struct Machine<'a> {
    arguments: &'a Arguments,
    kvm: Kvm,
    vm: Arc<KvmVm>,
    /// The memslots.
    memory: Vec<(SlotId, Span<Hva>)>,
    swap: Arc<Swap>,
    merging: Option<(Arc<Ksm>, KsmScanner)>,
}

/// Runs the guest until it restarts, and prints the changes of its memory.
pub fn run(arguments: &Arguments) -> Result<()> {
    interrupt::hear()?;
    let mut idle = Idle::take().expect("this thread has its token");
    let machine = Machine::new(&mut idle, arguments)?;
    let entry = machine.load(&mut idle)?;
    drop(idle);
    let began = Instant::now();
    let churned = {
        let _keys = Keys::new();
        let ended = machine.start(entry)?;
        machine.until(&ended)?
    };
    machine.report(&churned, began.elapsed());
    Ok(())
}

impl<'a> Machine<'a> {
    fn new(idle: &mut Idle, arguments: &'a Arguments) -> Result<Self> {
        let bytes = arguments.memory;
        ensure!(
            (32 << 20..=3 << 30).contains(&bytes) && bytes.is_multiple_of(LOW),
            "guest memory is 32M to 3G, of whole 1M: --memory"
        );
        let kvm = Kvm::new().context("/dev/kvm")?;
        // Pages that are being moved or paged out need some more.
        let arena = Arena::builder().limit(bytes + bytes / 8 + (32 << 20)).build()?;
        let swap = Swap::builder().memory(bytes).build(&arena)?;
        let limit = arguments.frames.unwrap_or(u64::MAX);
        let space = AddressSpace::builder(&arena).swap(&swap).limit(limit).build()?;
        let ram = space.mmap(Place::Anywhere, bytes, Prot::ReadWrite, Backing::Anonymous)?;
        let vm = KvmVm::builder(&space).build(controllers(&kvm)?)?;

        let cut = ram.start + LOW;
        let memory = vec![(SlotId(0), Span::new(ram.start, cut)), (SlotId(1), Span::new(cut, ram.end))];
        let flags = if arguments.churns(Churn::LogDirty) { Region::LOG_DIRTY } else { 0 };
        for &(slot, hvas) in &memory {
            let gpa = Gpa(hvas.start.0 - ram.start.0);
            vm.set(idle, Region { slot, flags, gpa, bytes: hvas.len(), hva: hvas.start })?;
        }
        let merging = if arguments.churns(Churn::Merge) {
            let ksm = Ksm::builder(&arena).build()?;
            space.madvise(idle, ram, Advice::Mergeable)?;
            ksm.add(&space)?;
            let scanner = ksm.start()?;
            Some((ksm, scanner))
        } else {
            None
        };
        Ok(Self { arguments, kvm, vm: Arc::new(vm), memory, swap, merging })
    }

    /// Loads the kernel and its data into memory. Returns its start address.
    fn load(&self, idle: &mut Idle) -> Result<u64> {
        let arguments = self.arguments;
        let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
        let kernel = read(&arguments.kernel)?;
        let initrd = arguments.initrd.as_deref().map_or(Ok(Vec::new()), read)?;
        let command_line = format!("console=ttyS0 reboot=k panic=-1 pci=off {}", arguments.append);
        let image = Image {
            kernel: &kernel,
            initrd: &initrd,
            command_line: command_line.trim_end(),
            memory: arguments.memory,
        };
        self.vm.write(idle, Gpa(processors::AT), &processors::tables(arguments.cpus))?;
        let put = |gpa, bytes: &[u8]| Ok(self.vm.write(idle, gpa, bytes)?);
        image.load(put).with_context(|| arguments.kernel.display().to_string())
    }

    /// Starts a thread for each vCPU. The receiver gets the result of the first one that ends.
    fn start(&self, entry: u64) -> Result<Receiver<Result<()>>> {
        let console = Arc::new(Console::new(&self.vm));
        let cpuid = self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
        let (ends, ended) = channel();
        let numbers = 0..self.arguments.cpus;
        let vcpus: Result<Vec<_>, _> =
            numbers.map(|number| self.vm.fd().create_vcpu(number.into())).collect();
        for (number, mut vcpu) in (0..).zip(vcpus?) {
            vcpu::prepare(&vcpu, number, &cpuid, entry)?;
            let (vm, console, ends) = (self.vm.clone(), console.clone(), ends.clone());
            // Only the first end is received.
            let runs = move || _ = ends.send(vcpu::run(&vm, &mut vcpu, &console));
            thread::Builder::new().name(format!("vcpu {number}")).spawn(runs)?;
        }
        console.hear()?;
        Ok(ended)
    }

    /// Changes memory as the arguments ask, until a vCPU ends, or the user ends the command.
    fn until(&self, ended: &Receiver<Result<()>>) -> Result<Churned> {
        let mut end = Ok(());
        let churned = churn(&self.vm, &self.memory, self.arguments, |period| {
            if let Ok(first) = ended.recv_timeout(period) {
                end = first;
                return true;
            }
            interrupt::asked()
        });
        end.and(churned)
    }

    fn report(&self, churned: &Churned, took: Duration) {
        let (view, swap) = (self.vm.view_stats(), self.swap.stats());
        let lines = [
            ("faults", view.faults),
            ("pages shown", view.filled),
            ("flushes", view.flushes),
            ("pages moved", churned.moved),
            ("pages taken out", swap.stored),
            ("pages brought back", swap.loaded),
            ("pages merged", self.merging.as_ref().map_or(0, |(ksm, _)| ksm.stats().merges)),
            ("dirty pages", churned.dirty),
        ];
        println!("\nslat: the guest ran for {:.1} s", took.as_secs_f64());
        for (what, number) in lines {
            println!("slat: {number:>9} {what}");
        }
    }
}

/// Makes a VM of KVM's with a PC's interrupt controllers and timer.
fn controllers(kvm: &Kvm) -> Result<VmFd> {
    let vm = kvm.create_vm().context("a VM of KVM's")?;
    vm.set_tss_address(TASK_STATE)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config::default())?;
    Ok(vm)
}
