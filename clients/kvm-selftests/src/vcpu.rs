//! A vCPU: it enters the guest, exits for a fault, and enters again, until there is an exit for the VMM.

use crate::abi;
use crate::capabilities::give_cpuid;
use crate::emulator::{Emulator, RIP, Registers};
use crate::machine::{Machine, NewVcpu};
use crate::process_host::Process;
use crate::ring::Ring;
use crate::running_guest::{Caches, Device, Guest, HYPERCALL_BYTES, Remembered, Seen, Stop};
use crate::shared::Shared;
use kvm_bindings::{
    KVM_MEMORY_EXIT_FLAG_PRIVATE, kvm_cpuid_entry2, kvm_cpuid2, kvm_pre_fault_memory, kvm_regs, kvm_run,
    kvm_signal_mask, kvm_sregs,
};
use slat::table::formats::Ept4;
use slat::{Access, Emulate, Fault, FaultError, Gpa, Idle, Leave, Next, OwnedVcpu, Prefault, Span};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

/// The guest's error number for a hypercall that does not exist.
const KVM_ENOSYS: i64 = 1000;

/// A vCPU: its processor, its shared memory, and its ring.
pub struct Cpu {
    machine: Arc<Machine>,
    vcpu: OwnedVcpu<Ept4, Process>,
    ring: Option<Arc<Mutex<Ring>>>,
    shared: Arc<Shared>,
    sregs: kvm_sregs,
    cpuid: Vec<kvm_cpuid_entry2>,
    /// Signals that end a run.
    signals: u64,
    /// Blocks of instructions since the last check for a signal.
    blocks: u32,
    caches: Caches,
    device: Device,
    /// Whether the last exit was a hypercall, whose result the VMM has given meanwhile.
    calls: bool,
}

impl Cpu {
    pub fn new(machine: Arc<Machine>, (vcpu, shared, ring): NewVcpu) -> Self {
        let caches = Caches { emulator: Emulator::new(), memory: Remembered::default() };
        let (sregs, cpuid) = (kvm_sregs::default(), Vec::new());
        let (signals, blocks, device, calls) = (0, 0, Device::None, false);
        Self { machine, vcpu, ring, shared, sregs, cpuid, signals, blocks, caches, device, calls }
    }

    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// # Safety
    /// `argument` is valid for the ioctl of this number.
    pub unsafe fn ioctl(&mut self, number: u32, argument: *mut c_void) -> Result<c_int, c_int> {
        // SAFETY: required of the caller (see `# Safety`).
        unsafe {
            match number {
                abi::RUN => self.run()?,
                abi::GET_REGS => argument.cast::<kvm_regs>().write(regs(self.caches.emulator.registers())),
                abi::SET_REGS => {
                    self.caches.emulator.set_registers(registers(argument.cast::<kvm_regs>().read()));
                }
                abi::GET_SREGS => argument.cast::<kvm_sregs>().write(self.sregs),
                abi::SET_SREGS => {
                    self.sregs = argument.cast::<kvm_sregs>().read();
                    // The root may have changed.
                    slat::Translations::flush_all(&mut self.caches);
                }
                abi::SET_SIGNAL_MASK => {
                    let mask = (&raw const (*argument.cast::<kvm_signal_mask>()).sigset).cast::<u64>();
                    self.signals = !mask.read_unaligned();
                }
                abi::SET_CPUID2 => {
                    let given = argument.cast::<kvm_cpuid2>();
                    let entries = (&raw const (*given).entries).cast::<kvm_cpuid_entry2>();
                    self.cpuid = std::slice::from_raw_parts(entries, (*given).nent as usize).to_vec();
                }
                abi::GET_CPUID2 => give_cpuid(&self.cpuid, argument.cast())?,
                abi::GET_MP_STATE => argument.cast::<u32>().write(0),
                abi::SET_MP_STATE => {}
                abi::PRE_FAULT_MEMORY => self.pre_fault(&mut *argument.cast())?,
                _ => return Err(libc::EINVAL),
            }
        }
        Ok(0)
    }

    /// `KVM_RUN`.
    fn run(&mut self) -> Result<(), c_int> {
        let mut idle = Idle::take().ok_or(libc::EDEADLK)?;
        let result = self.run_until_exit(&mut idle);
        if let Some(ring) = &self.ring {
            let (vm, id) = (self.vcpu.vm().clone(), self.vcpu.id());
            ring.lock().unwrap().fill(&vm, &mut idle, id).map_err(|error| error.errno())?;
        }
        // SAFETY: the VMM reads it when this has returned. Errors leave it as it was.
        result.map(|reason| unsafe { (*self.shared.page::<kvm_run>(0)).exit_reason = reason })
    }

    /// Runs until an exit for the VMM; returns its reason, or an error.
    fn run_until_exit(&mut self, idle: &mut Idle) -> Result<u32, c_int> {
        if self.sregs.cr0 >> 31 == 0 {
            return Ok(abi::EXIT_INTERNAL_ERROR); // no paging, no guest of ours
        }
        if std::mem::take(&mut self.calls) {
            // SAFETY: the VMM has written it before the ioctl.
            let result = unsafe { (*self.shared.page::<kvm_run>(0)).__bindgen_anon_1.hypercall.ret };
            self.return_from_hypercall(result);
        }
        loop {
            // A load from a device completes before anything else, as in KVM.
            let loads = matches!(self.device, Device::Answer { .. });
            if !loads && self.shared.exits_at_once() {
                return Err(libc::EINTR);
            }
            if let Device::Answer { data, .. } = &mut self.device {
                // SAFETY: the VMM has written it before the ioctl.
                *data = u64::from_le_bytes(unsafe {
                    (*self.shared.page::<kvm_run>(0)).__bindgen_anon_1.mmio.data
                });
            }
            match self.run_in_guest(idle) {
                Ran::Signalled => {
                    // SAFETY: as in `run`.
                    unsafe { (*self.shared.page::<kvm_run>(0)).exit_reason = abi::EXIT_INTR };
                    return Err(libc::EINTR);
                }
                Ran::Seen { page, seen, before } => return Ok(self.exit_mmio(page, seen, before)),
                Ran::Stepped => {}
                Ran::Stopped(Stop::Port { port, size }) => {
                    // SAFETY: the VMM reads it when the ioctl has returned.
                    let io = unsafe { &mut (*self.shared.page::<kvm_run>(0)).__bindgen_anon_1.io };
                    (io.direction, io.size, io.port, io.count, io.data_offset) =
                        (0, size, port, 1, slat::PAGE_SIZE);
                    return Ok(abi::EXIT_IO);
                }
                Ran::Hypercall if self.hypercall() => return Ok(abi::EXIT_HYPERCALL),
                Ran::Hypercall => self.return_from_hypercall((-KVM_ENOSYS) as u64),
                Ran::Broken | Ran::Stopped(Stop::PageFault) => return Ok(abi::EXIT_INTERNAL_ERROR),
                Ran::Stopped(Stop::Fault { fault, own }) => match self.fault(idle, fault) {
                    Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly))
                        if own && fault.access != Access::Fetch =>
                    {
                        self.device = Device::Observe { frame: fault.gpa.gfn(), seen: None };
                    }
                    // A fetch from a device, or a guest's table in a device.
                    Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly)) => {
                        return Ok(abi::EXIT_INTERNAL_ERROR);
                    }
                    Ok(Next::Leave(Leave::RingFull)) => return Ok(abi::EXIT_DIRTY_RING_FULL),
                    Ok(Next::Leave(Leave::MemoryFault { private })) => {
                        self.exit_memory_fault(fault, private);
                        return Err(libc::EFAULT);
                    }
                    // A processor drops the cached entries of an address that faults.
                    Ok(_) => self.caches.memory.links.flush_all(),
                    Err(_) => return Err(libc::EFAULT),
                },
            }
        }
    }

    /// Enters the guest, and answers flushes there, until it stops for another reason.
    fn run_in_guest(&mut self, idle: &mut Idle) -> Ran {
        let engine = self.vcpu.vm().clone();
        let mut inside = self.vcpu.enter(idle, &mut self.caches).poll();
        loop {
            let Caches { emulator, memory } = &mut self.caches;
            let steps = !matches!(self.device, Device::None);
            let before = emulator.registers();
            let mut guest = Guest {
                engine: &engine,
                inside: &inside,
                memory,
                device: &mut self.device,
                device_page: 0,
                cr3: self.sregs.cr3,
                signals: self.signals,
                signalled: false,
                blocks: &mut self.blocks,
                stop: None,
            };
            let well = if steps { emulator.step(&mut guest) } else { emulator.run(&mut guest) };
            let calls = !well && guest.is_hypercall(emulator.registers()[RIP]);
            let Guest { stop, signalled, device_page: page, .. } = guest;
            if steps {
                emulator.flush_tlb(); // the device
            }
            if let Some((stop, registers)) = stop {
                emulator.set_registers(registers);
                if !matches!(self.device, Device::Answer { .. }) {
                    self.device = Device::None;
                }
                return Ran::Stopped(stop);
            }
            match std::mem::take(&mut self.device) {
                _ if calls => return Ran::Hypercall,
                _ if !well => return Ran::Broken,
                Device::Observe { seen: Some(seen), .. } => return Ran::Seen { page, seen, before },
                // Memory has come there since, or a load has its value.
                Device::Observe { .. } | Device::Answer { .. } => return Ran::Stepped,
                Device::None if signalled => return Ran::Signalled,
                Device::None => inside.answer(&mut self.caches),
            }
        }
    }

    /// Handles a fault. In a VM that can have private memory, an access means the memory that the frame's attribute names.
    fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Next, FaultError> {
        let Some(private) = &self.machine.private else { return self.vcpu.fault(idle, fault) };
        loop {
            let state = private.read().unwrap();
            let gfn = fault.gpa.gfn();
            let (bound, means) = (state.is_bound(gfn), state.is_private(gfn));
            // The engine checks the attribute of a frame that can be private. This lock keeps that of any other.
            let held = (!bound).then_some(state);
            let next = self.vcpu.with(|vcpu| vcpu.fault_as(idle, fault, means));
            drop(held);
            match next {
                // The frame is just being converted.
                Ok(Next::Leave(Leave::MemoryFault { .. })) if bound => std::thread::yield_now(),
                Err(FaultError::Host(_)) if means => {
                    return Ok(Next::Leave(Leave::MemoryFault { private: true }));
                }
                next => return next,
            }
        }
    }

    /// `KVM_PRE_FAULT_MEMORY`: maps what it can, and says how much is left.
    fn pre_fault(&mut self, asked: &mut kvm_pre_fault_memory) -> Result<(), c_int> {
        let (gpa, size) = (asked.gpa, asked.size);
        let wraps = gpa.checked_add(size).is_none();
        if asked.flags != 0 || wraps || size == 0 || !(gpa | size).is_multiple_of(slat::PAGE_SIZE) {
            return Err(libc::EINVAL);
        }
        let mut idle = Idle::take().ok_or(libc::EDEADLK)?;
        let mut gfns = Span::sized(Gpa(gpa).gfn(), size >> slat::PAGE_SHIFT);
        // Held until the pages are mapped: the engine has no attribute of these frames.
        let private = self.machine.private.as_ref().map(|private| private.read().unwrap());
        if let Some(end) = private.as_ref().and_then(|private| private.first_without_memory(gfns)) {
            gfns.end = end;
        }
        if gfns.is_empty() {
            return Err(libc::EFAULT);
        }
        let mapped = self.vcpu.with(|vcpu| vcpu.prefault(&mut idle, gfns, Prefault::OLD));
        match mapped.map_err(|_| libc::EFAULT)? {
            0 => Err(libc::ENOENT),
            pages => {
                let bytes = pages << slat::PAGE_SHIFT;
                (asked.gpa, asked.size) = (gpa + bytes, size - bytes);
                Ok(())
            }
        }
    }

    /// Reports a hypercall to the VMM, if that has asked for it.
    fn hypercall(&mut self) -> bool {
        let [rax, rbx, rcx, rdx, rsi, ..] = self.caches.emulator.registers();
        if rax != abi::MAP_GPA_RANGE || !self.machine.hypercalls_exit.load(SeqCst) {
            return false;
        }
        // SAFETY: the VMM reads it when the ioctl has returned.
        let call = unsafe { &mut (*self.shared.page::<kvm_run>(0)).__bindgen_anon_1.hypercall };
        (call.nr, call.args, call.ret) = (rax, [rbx, rcx, rdx, rsi, 0, 0], 0);
        call.__bindgen_anon_1.flags = 1; // in 64-bit mode
        self.calls = true;
        true
    }

    fn return_from_hypercall(&mut self, result: u64) {
        let mut registers = self.caches.emulator.registers();
        registers[0] = result;
        registers[RIP] += HYPERCALL_BYTES;
        self.caches.emulator.set_registers(registers);
    }

    /// Reports an access to memory of the other kind.
    fn exit_memory_fault(&mut self, fault: Fault, private: bool) {
        // SAFETY: the VMM reads it when the ioctl has returned.
        let run = unsafe { &mut *self.shared.page::<kvm_run>(0) };
        run.exit_reason = abi::EXIT_MEMORY_FAULT;
        // SAFETY: as above.
        let memory_fault = unsafe { &mut run.__bindgen_anon_1.memory_fault };
        memory_fault.flags = if private { u64::from(KVM_MEMORY_EXIT_FLAG_PRIVATE) } else { 0 };
        (memory_fault.gpa, memory_fault.size) = (fault.gpa.gfn().gpa().0, slat::PAGE_SIZE);
    }

    /// Reports an access to a device to the VMM: a store is complete, and a load runs again with the VMM's value.
    fn exit_mmio(&mut self, page: u64, seen: Seen, before: Registers) -> u32 {
        // SAFETY: the VMM reads it when the ioctl has returned.
        let mmio = unsafe { &mut (*self.shared.page::<kvm_run>(0)).__bindgen_anon_1.mmio };
        (mmio.phys_addr, mmio.len, mmio.is_write) = (seen.gpa, seen.size, u8::from(seen.value.is_some()));
        mmio.data = seen.value.unwrap_or(0).to_le_bytes();
        if seen.value.is_none() {
            self.caches.emulator.set_registers(before);
            self.device = Device::Answer { page, gpa: seen.gpa, data: 0 };
        }
        abi::EXIT_MMIO
    }
}

/// Why a guest stopped running.
enum Ran {
    Stopped(Stop),
    Signalled,
    /// VMCALL or VMMCALL, which the emulator does not know.
    Hypercall,
    /// One instruction accessed a device, at the guest's `page`; with the registers before it.
    Seen {
        page: u64,
        seen: Seen,
        before: Registers,
    },
    /// One instruction ran.
    Stepped,
    /// The emulator has given up.
    Broken,
}

/// KVM's registers in the emulator's order, which is the same.
fn registers(regs: kvm_regs) -> Registers {
    // SAFETY: 18 words each.
    unsafe { std::mem::transmute(regs) }
}

fn regs(registers: Registers) -> kvm_regs {
    // SAFETY: 18 words each.
    unsafe { std::mem::transmute(registers) }
}
