//! Shared by examples and tests: a guest on slat-mm's memory, and a loop that runs it.

use super::{DONE, OWN, Work, begin, load};
use slat::slots::Region;
use slat::{Gpa, Hva, Idle, PAGE_SIZE, SlotId, Span};
use slat_kvm::kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd};
use slat_kvm::{Builder, KvmError, KvmVm};
use slat_mm::{AddressSpace, Arena, Backing, Pinned, Place, Prot, Swap};
use std::sync::Arc;
use std::time::Duration;

/// The memslot of the guest's own memory.
pub const LOW: SlotId = SlotId(0);
/// The memslot of the memory that it works on.
pub const DATA: SlotId = SlotId(1);
/// Guest address of that memory.
pub const DATA_AT: Gpa = Gpa(16 << 20);

/// A guest with two memslots, and swap for all its memory.
pub struct Stage {
    pub vm: KvmVm,
    pub space: Arc<AddressSpace>,
    pub arena: Arc<Arena>,
    /// Host addresses of the memory that it works on.
    pub data: Span<Hva>,
    _pinned: Pinned,
}

impl Stage {
    /// Creates a guest with `pages` pages to work on. If this machine has no KVM or lacks userfaultfd features,
    /// prints a line with the reason and returns `None`.
    pub fn new(
        idle: &mut Idle,
        pages: u64,
        thp: bool,
        build: impl FnOnce(Builder) -> Builder,
    ) -> Option<Self> {
        let bytes = pages * PAGE_SIZE;
        let kvm = Kvm::new().map_err(|error| println!("SKIPPED: no /dev/kvm: {error}")).ok()?;
        assert!(kvm.check_extension(Cap::UserMemory), "KVM has memslots");
        let limit = (4 * bytes).max(64 << 20);
        let arena = Arena::builder().limit(limit).poison(0xdd).build().expect("an arena");
        let swap = Swap::builder().memory(limit).build(&arena).expect("swap");
        let space = AddressSpace::builder(&arena).thp(thp).swap(&swap).build().expect("an address space");
        let map = |at, len| space.mmap(Place::Fixed(Hva(at)), len, Prot::ReadWrite, Backing::Anonymous);
        let (low, data) = (map(1 << 30, OWN).expect("memory"), map(2 << 30, bytes).expect("memory"));
        let pinned = space.pin(idle, low).expect("memory");
        let vm = build(KvmVm::builder(&space)).build(kvm.create_vm().expect("a VM"));
        let vm =
            vm.map_err(|error| println!("SKIPPED: no userfaultfd for the kernel's faults: {error}")).ok()?;
        let own = Region { slot: LOW, flags: 0, gpa: Gpa(0), bytes: OWN, hva: low.start };
        vm.set(idle, own).expect("a memslot");
        vm.keep_mapped(LOW);
        let stage = Self { vm, space, arena, data, _pinned: pinned };
        stage.vm.set(idle, stage.region(0)).expect("a memslot");
        load(|gpa, bytes| stage.vm.write(idle, Gpa(gpa), bytes)).expect("memory");
        Some(stage)
    }

    /// Returns the memslot of the memory that it works on.
    pub fn region(&self, flags: u32) -> Region {
        Region { slot: DATA, flags, gpa: DATA_AT, bytes: self.data.len(), hva: self.data.start }
    }

    /// Creates a vCPU.
    pub fn vcpu(&self, number: u64) -> VcpuFd {
        self.vm.fd().create_vcpu(number).expect("a vCPU")
    }

    /// Runs a vCPU until its job is done. Returns how many words it found wrong, or why a page could not be
    /// brought in.
    pub fn run(
        &self,
        idle: &mut Idle,
        (number, vcpu): (u64, &mut VcpuFd),
        work: Work,
    ) -> Result<u64, KvmError> {
        begin(vcpu, number, work).expect("registers");
        loop {
            match vcpu.run() {
                Ok(VcpuExit::IoOut(DONE, _)) => return Ok(vcpu.get_regs().expect("registers").rbx),
                Ok(VcpuExit::MmioRead(gpa, data)) => self.vm.read(idle, Gpa(gpa), data).expect("memory"),
                Ok(VcpuExit::MmioWrite(gpa, data)) => self.vm.write(idle, Gpa(gpa), data).expect("memory"),
                Ok(exit) => panic!("the guest has failed: {exit:?}"),
                Err(error) if KvmVm::is_transient(&error) => self.vm.take_error().map_or(Ok(()), Err)?,
                Err(error) => panic!("KVM_RUN: {error}"),
            }
        }
    }
}

/// Ends the process after `time`: a vCPU that sleeps forever cannot be woken.
pub fn bound(time: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        eprintln!("FAILED: not done after {time:?}");
        std::process::exit(1);
    });
}
