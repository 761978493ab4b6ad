//! The kernel's own dirty logs, through `/dev/kvm`: the model must agree with the kernel, and slat with both, in the
//! same walk.
//!
//! The guest is real, too: a vCPU in real mode that runs one instruction, a load or a store, and halts. The kernel is
//! not asked for what it does not have: to take a log of every slot at once, to take a harvest back, to be told what a
//! device wrote. Its `GET` takes the log for good where the VM is automatic, and only reads it where it is manual. The
//! kernel does not say how many pages `CLEAR` really cleared; the next `GET` does.
//!
//! If `/dev/kvm` cannot be opened the tests say so and pass; with `SLAT_REQUIRE_KVM=1` in the environment they fail.

use super::model::{IDS, Model, Operation, Reply, SMALL};
use super::operations::Operations;
use super::subject::Slat;
use super::{STEPS, Subject, walk};
use crate::common::identity::Identity;
use crate::common::kvm_device::device;
use kvm_bindings::{
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_MEM_LOG_DIRTY_PAGES, kvm_clear_dirty_log,
    kvm_clear_dirty_log__bindgen_ty_1, kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, Kvm as Device, VcpuExit, VcpuFd, VmFd};
use slat::table::formats::{Ept4, Npt4};
use slat::{DirtyLog, Idle, PAGE_SIZE, Track};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// The place of the guest's instructions: a slot of their own, above all others.
const CODE_GFN: u64 = 240;
const CODE_ID: u32 = 40;
/// `mov [di], al; hlt` and `mov al, [di]; hlt`, each in 16 bytes.
const CODE: [u8; 19] = [0x88, 0x05, 0xf4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x8a, 0x05, 0xf4];
const STORE: u64 = 0;
const LOAD: u64 = 16;

/// `_IOWR(KVMIO, 0xc0, struct kvm_clear_dirty_log)`: the crate's `VmFd` has no call for it.
const KVM_CLEAR_DIRTY_LOG: libc::c_ulong = 0xc018_aec0;
const _: () = assert!(size_of::<kvm_clear_dirty_log>() == 0x18, "its size is part of the number");

fn errno(error: kvm_ioctls::Error) -> i32 {
    error.errno()
}

/// Memory for all slots, 1 MiB.
struct Memory(NonNull<u8>);

const BYTES: usize = 1 << 20;

impl Memory {
    fn new() -> Self {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, prot, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self(NonNull::new(memory.cast()).expect("not at zero"))
    }

    /// Returns the place of slot `id`, whose pages no other slot has.
    fn of(&self, id: u32) -> NonNull<u8> {
        let page = if id == CODE_ID { CODE_GFN } else { SMALL[id as usize].places[0] };
        // SAFETY: inside, as all places are.
        unsafe { self.0.add((page * PAGE_SIZE) as usize) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the VM that used it is gone by now.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

/// A VM of the kernel. Fields drop in order.
struct Kvm {
    vcpu: VcpuFd,
    vm: VmFd,
    slots: [Option<(usize, bool)>; 3],
    ids: u32,
    memory: Memory,
}

impl Kvm {
    /// A VM whose logs are automatic (0), manual (1), or manual and set when they begin (3); `None` if the kernel does
    /// not offer that.
    fn new(device: &Device, manual: u64) -> Option<Self> {
        let vm = device.create_vm().expect("a VM");
        if manual != 0 {
            let mut cap = kvm_enable_cap { cap: KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, ..Default::default() };
            cap.args[0] = manual;
            vm.enable_cap(&cap).ok()?;
        }
        // Intel's real mode needs three pages of its own, which no slot has. Others do not know the request.
        let _ = vm.set_tss_address(0xfffb_d000);
        let vcpu = vm.create_vcpu(0).expect("a vCPU");
        let ids = vm.check_extension_int(Cap::NrMemslots) as u32;
        let mut kvm = Self { vcpu, vm, slots: [None; 3], ids, memory: Memory::new() };
        let code = kvm.memory.of(CODE_ID);
        // SAFETY: a page of the memory; no guest runs.
        unsafe { code.as_ptr().copy_from_nonoverlapping(CODE.as_ptr(), CODE.len()) };
        kvm.set(CODE_ID, CODE_GFN, PAGE_SIZE, 0);
        Some(kvm)
    }

    fn set(&mut self, id: u32, gfn: u64, bytes: u64, flags: u32) {
        let region = kvm_userspace_memory_region {
            slot: id,
            flags,
            guest_phys_addr: gfn * PAGE_SIZE,
            memory_size: bytes,
            userspace_addr: self.memory.of(id).as_ptr().addr() as u64,
        };
        // SAFETY: memory that outlives the VM, and that only its guest uses.
        unsafe { self.vm.set_user_memory_region(region) }.expect("nothing is in the way");
    }

    /// Makes the present state of a slot known.
    fn place(&mut self, id: u32, known: Option<(usize, bool)>) {
        let shape = &SMALL[id as usize];
        let (place, log) = known.unwrap_or_default();
        let bytes = if known.is_some() { shape.pages * PAGE_SIZE } else { 0 };
        let flags = if log { KVM_MEM_LOG_DIRTY_PAGES } else { 0 };
        self.set(id, shape.places[place], bytes, flags);
        self.slots[id as usize] = known;
    }

    /// Runs one instruction.
    fn run(&mut self, id: u32, page: u64, instruction: u64) {
        let (place, _) = self.slots[id as usize].expect("it is there");
        let gpa = (SMALL[id as usize].places[place] + page) * PAGE_SIZE;
        let mut sregs = self.vcpu.get_sregs().unwrap();
        (sregs.cs.base, sregs.cs.selector) = (CODE_GFN * PAGE_SIZE, (CODE_GFN << 8) as u16);
        (sregs.ds.base, sregs.ds.selector) = (gpa, (gpa >> 4) as u16);
        self.vcpu.set_sregs(&sregs).unwrap();
        let mut regs = self.vcpu.get_regs().unwrap();
        (regs.rip, regs.rdi, regs.rflags) = (instruction, 8, 2);
        regs.rax += 1;
        self.vcpu.set_regs(&regs).unwrap();
        match self.vcpu.run() {
            Ok(VcpuExit::Hlt) => {}
            exit => panic!("the guest did not halt: {exit:?}"),
        }
    }

    /// An id as the kernel counts them: the first invalid id is another number there.
    fn id(&self, id: u32) -> u32 {
        if id >= IDS { self.ids + (id - IDS) } else { id }
    }

    fn get(&self, id: u32) -> Result<Reply, i32> {
        let pages = SMALL.get(id as usize).map_or(64, |shape| shape.pages);
        let bits = self.vm.get_dirty_log(self.id(id), (pages * PAGE_SIZE) as usize);
        let bits = bits.map_err(errno)?;
        let set = |page: &u64| bits[(page / 64) as usize] >> (page % 64) & 1 != 0;
        Ok(Reply::Pages((0..pages).filter(set).collect()))
    }

    fn clear(&self, id: u32, first: u64, pages: u64, bits: &[u64]) -> Result<Reply, i32> {
        let request = kvm_clear_dirty_log {
            slot: self.id(id),
            num_pages: u32::try_from(pages).expect("few"),
            first_page: first,
            __bindgen_anon_1: kvm_clear_dirty_log__bindgen_ty_1 {
                dirty_bitmap: bits.as_ptr().cast_mut().cast(),
            },
        };
        // SAFETY: `bits` has a bit for each of `pages`, which is all that the kernel reads.
        let done = unsafe { libc::ioctl(self.vm.as_raw_fd(), KVM_CLEAR_DIRTY_LOG, &raw const request) };
        if done == 0 { Ok(Reply::Unsaid) } else { Err(io::Error::last_os_error().raw_os_error().unwrap()) }
    }
}

impl Subject for Kvm {
    fn ask(&mut self, _: &mut Idle, operation: &Operation) -> Result<Reply, i32> {
        match *operation {
            Operation::Create { id, log } => self.place(id, Some((0, log))),
            Operation::Delete { id } => self.place(id, None),
            Operation::Move { id, place } => {
                let (_, log) = self.slots[id as usize].unwrap();
                self.place(id, Some((place, log)));
            }
            Operation::Log { id, on } => {
                let (place, _) = self.slots[id as usize].unwrap();
                self.place(id, Some((place, on)));
            }
            Operation::Store { id, page } => self.run(id, page, STORE),
            Operation::Load { id, page } => self.run(id, page, LOAD),
            Operation::Zap { id } => {
                let bytes = (SMALL[id as usize].pages * PAGE_SIZE) as usize;
                // SAFETY: the slot's own pages, whose contents are not needed.
                unsafe { libc::madvise(self.memory.of(id).as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
            }
            Operation::Harvest { id, .. } | Operation::Get { id } => return self.get(id),
            Operation::Clear { id, first, pages, ref bits } => return self.clear(id, first, pages, bits),
            Operation::Device { .. } | Operation::HarvestAll { .. } => {
                unreachable!("the kernel has nothing like it")
            }
        }
        Ok(Reply::Done)
    }
}

/// Returns the nearest request that the kernel has.
fn asked_of_kvm(operation: Operation, manual: bool) -> Operation {
    match operation {
        Operation::Device { id, page, .. } => Operation::Store { id, page },
        Operation::HarvestAll { .. } => Operation::Get { id: 0 },
        operation => operation,
    }
    .with_get(manual)
}

impl Operation {
    /// `GET`, by its effect in such a VM.
    fn with_get(self, manual: bool) -> Self {
        match self {
            Self::Harvest { id, .. } | Self::Get { id } if manual => Self::Get { id },
            Self::Harvest { id, .. } | Self::Get { id } => Self::Harvest { id, commit: true },
            operation => operation,
        }
    }
}

#[test]
fn the_kernel_the_model_and_slat_agree() {
    let Some(device) = device() else { return };
    let mut told = 0;
    for (seed, manual) in [(1, 0), (2, 0), (3, 1), (4, 1), (5, 3), (6, 3)] {
        let Some(mut kvm) = Kvm::new(&device, manual) else { continue };
        let initially_set = manual & 2 != 0;
        let track = if seed % 2 == 0 { Track::Writes } else { Track::DirtyBits };
        let log = DirtyLog::bitmap().track(track);
        let log = if initially_set { log.initially_set() } else { log };
        let (mut ept, mut npt) = (
            Slat::<Ept4>::new(Identity::default(), &SMALL, log),
            Slat::<Npt4>::new(Identity::default(), &SMALL, log),
        );
        let mut operations = Operations::new(seed);
        let choose = |model: &Model| asked_of_kvm(operations.next(model), manual != 0);
        let subjects: &mut [&mut dyn Subject] = &mut [&mut kvm, &mut ept, &mut npt];
        let walked = walk(seed, STEPS, choose, &mut Model::new(&SMALL, initially_set), subjects);
        let tally = walked.unwrap_or_else(|wrong| panic!("manual {manual}: {wrong}"));
        assert!(tally.refused.contains(&2) && tally.refused.contains(&22), "{tally:?}");
        told += tally.told;
    }
    assert!(told > 100, "the guests stored");
}
