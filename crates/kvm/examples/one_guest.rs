//! A VMM in a hundred lines: a guest whose pages are migrated, swapped and logged while it runs. `cargo run -p
//! slat-kvm --example one_guest`

use guest::{Job, Work};
use slat::slots::Region;
use slat::{Gpa, Idle, SlotId};
use slat_kvm::KvmVm;
use slat_kvm::kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use slat_mm::{AddressSpace, Arena, Backing, Place, Prot, Swap};
use std::error::Error;

#[allow(dead_code, reason = "it does without the stage")]
mod guest;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The guest's own memory, and the memory that it works on.
const LOW: SlotId = SlotId(0);
const DATA: SlotId = SlotId(1);
const DATA_AT: u64 = 16 << 20;
const PAGES: u64 = 2048;

/// Runs a vCPU until its job is done. Returns how many words it found wrong.
fn run(vm: &KvmVm, idle: &mut Idle, vcpu: &mut VcpuFd, work: Work) -> Result<u64> {
    guest::begin(vcpu, 0, work)?;
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(guest::DONE, _)) => return Ok(vcpu.get_regs()?.rbx),
            // KVM emulates an instruction at a page that was not mapped.
            Ok(VcpuExit::MmioRead(gpa, data)) => vm.read(idle, Gpa(gpa), data)?,
            Ok(VcpuExit::MmioWrite(gpa, data)) => vm.write(idle, Gpa(gpa), data)?,
            Ok(exit) => return Err(format!("the guest has failed: {exit:?}").into()),
            // A page was just being mapped, or cannot be brought in.
            Err(error) if KvmVm::is_transient(&error) => vm.take_error().map_or(Ok(()), Err)?,
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> Result<()> {
    let kvm = match Kvm::new() {
        Ok(kvm) => kvm,
        Err(error) => {
            println!("skipped: no /dev/kvm: {error}");
            return Ok(());
        }
    };
    // 64 MiB of memory and 64 MiB of swap.
    let mut idle = Idle::take().ok_or("another token is out")?;
    let arena = Arena::builder().limit(64 << 20).build()?;
    let swap = Swap::builder().memory(64 << 20).build(&arena)?;
    let space = AddressSpace::builder(&arena).swap(&swap).build()?;
    let low = space.mmap(Place::Anywhere, guest::OWN, Prot::ReadWrite, Backing::Anonymous)?;
    let data = space.mmap(Place::Anywhere, PAGES << 12, Prot::ReadWrite, Backing::Anonymous)?;
    // KVM may walk the guest's page tables in software, so they are pinned.
    let _pinned = space.pin(&mut idle, low)?;

    let vm = match KvmVm::builder(&space).build(kvm.create_vm()?) {
        Ok(vm) => vm,
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    vm.set(&mut idle, Region { slot: LOW, flags: 0, gpa: Gpa(0), bytes: low.len(), hva: low.start })?;
    let region = Region { slot: DATA, flags: 0, gpa: Gpa(DATA_AT), bytes: data.len(), hva: data.start };
    vm.set(&mut idle, region)?;
    guest::load(|gpa, bytes| vm.write(&mut idle, Gpa(gpa), bytes))?;
    let mut vcpu = vm.fd().create_vcpu(0)?;

    let work = |job, salt| Work { job, start: DATA_AT, pages: PAGES, mask: !0, salt };
    run(&vm, &mut idle, &mut vcpu, work(Job::Fill, 7))?;
    println!("filled    {PAGES} pages, each by a fault: {:?}", vm.view_stats());
    println!("moved     {} pages", space.migrate(&mut idle, data)?);
    println!("          {} words wrong", run(&vm, &mut idle, &mut vcpu, work(Job::Check, 7))?);
    let out = space.pageout(&mut idle, data)?;
    println!("swapped   {out} pages out; {} MiB go back to the system", arena.trim()? >> 20);
    println!("          {} words wrong", run(&vm, &mut idle, &mut vcpu, work(Job::Check, 7))?);
    println!("          {} with another salt", run(&vm, &mut idle, &mut vcpu, work(Job::Check, 8))?);

    // Log stores from now on.
    vm.set(&mut idle, Region { flags: Region::LOG_DIRTY, ..region })?;
    vm.harvest(&mut idle, DATA)?.commit();
    let touched = Work { job: Job::Touch, pages: 100, mask: 8192, ..work(Job::Touch, 9) };
    run(&vm, &mut idle, &mut vcpu, touched)?;
    vm.write(&mut idle, Gpa(DATA_AT + 4096), b"a device")?;
    let harvest = vm.harvest(&mut idle, DATA)?;
    println!("dirty     {} pages, of which 1 by a device", harvest.pages());
    harvest.commit();
    Ok(())
}
