//! A processor: the part of Unicorn 2.1.5 that this library uses. The declarations are by hand, because Unicorn's crate
//! needs libclang.
//!
//! Its physical memory is this process: each physical address is the virtual address of the same number. For each miss
//! of its TLB it calls a hook, which returns the address of the guest's page.

use slat::Access;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// The calls that a running guest makes.
pub trait Hooks {
    /// The address of the page at `vaddr`, and the allowed accesses. On `None` the instruction does not run, and the
    /// run ends.
    fn translate(&mut self, processor: Processor, vaddr: u64, access: Access) -> Option<Page>;
    /// An IN instruction of one byte (`in (%dx)`) reads `port`; the run must end after it.
    fn input(&mut self, processor: Processor, port: u16, size: u8);
    /// A block of instructions begins. Returns whether the guest goes on.
    fn goes_on(&mut self) -> bool;
    /// A load of `size` bytes at [`DEVICES`] + `gpa`.
    fn load(&mut self, gpa: u64, size: u32) -> u64;
    /// A store of `size` bytes at [`DEVICES`] + `gpa`.
    fn store(&mut self, gpa: u64, size: u32, value: u64);
}

/// The layout of `uc_tlb_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Page {
    /// An address of this process, or [`DEVICES`] + a guest-physical one.
    pub at: u64,
    /// Of [`READ`], [`WRITE`], [`EXECUTE`].
    pub perms: u32,
}

pub const READ: u32 = 1;
pub const WRITE: u32 = 2;
pub const EXECUTE: u32 = 4;

/// Accesses from this address on go to the hooks. It is above every address of a process.
pub const DEVICES: u64 = 1 << 50;

/// The registers in the order of `struct kvm_regs`.
pub type Registers = [u64; 18];
/// The index of RIP.
pub const RIP: usize = 16;

#[repr(C)]
struct Uc([u8; 0]);

type OnTlbFill = unsafe extern "C" fn(*mut Uc, u64, c_int, *mut Page, *mut c_void) -> bool;
type OnIn = unsafe extern "C" fn(*mut Uc, u32, c_int, *mut c_void) -> u32;
type OnBlock = unsafe extern "C" fn(*mut Uc, u64, u32, *mut c_void);
type OnLoad = unsafe extern "C" fn(*mut Uc, u64, u32, *mut c_void) -> u64;
type OnStore = unsafe extern "C" fn(*mut Uc, u64, u32, u64, *mut c_void);

// SAFETY: as in unicorn.h of the pinned version.
unsafe extern "C" {
    fn uc_open(arch: c_int, mode: c_int, uc: *mut *mut Uc) -> c_int;
    fn uc_close(uc: *mut Uc) -> c_int;
    fn uc_ctl(uc: *mut Uc, control: u32, ...) -> c_int;
    fn uc_hook_add(
        uc: *mut Uc,
        hook: *mut usize,
        kind: c_int,
        callback: *mut c_void,
        data: *mut c_void,
        begin: u64,
        end: u64,
        ...
    ) -> c_int;
    fn uc_mem_map_ptr(uc: *mut Uc, address: u64, size: usize, perms: u32, host: *mut c_void) -> c_int;
    fn uc_mmio_map(
        uc: *mut Uc,
        address: u64,
        size: usize,
        load: OnLoad,
        load_data: *mut c_void,
        store: OnStore,
        store_data: *mut c_void,
    ) -> c_int;
    fn uc_reg_read(uc: *mut Uc, register: c_int, value: *mut c_void) -> c_int;
    fn uc_reg_write(uc: *mut Uc, register: c_int, value: *const c_void) -> c_int;
    fn uc_emu_start(uc: *mut Uc, begin: u64, until: u64, timeout: u64, count: usize) -> c_int;
    fn uc_emu_stop(uc: *mut Uc) -> c_int;
}

const ARCH_X86: c_int = 4;
const MODE_64: c_int = 1 << 3;
const HOOK_INSN: c_int = 1 << 1;
const HOOK_BLOCK: c_int = 1 << 3;
const HOOK_TLB_FILL: c_int = 1 << 17;
const INSN_IN: c_int = 218;
/// `uc_ctl`: a setting is written; this many arguments follow.
const CTL_WRITE: u32 = 1 << 30;
const CTL_ONE: u32 = 1 << 26;
const CTL_USE_EXITS: u32 = 4;
const CTL_FLUSH_BLOCKS: u32 = 10;
const CTL_FLUSH_TLB: u32 = 11;
const CTL_TLB_TYPE: u32 = 12;
const TLB_VIRTUAL: c_int = 1;
/// Unicorn's numbers of RAX, RBX, RCX, RDX, RSI, RDI, RSP, RBP, R8 to R15, RIP, RFLAGS.
const NUMBERS: [c_int; 18] =
    [35, 37, 38, 40, 43, 39, 44, 36, 106, 107, 108, 109, 110, 111, 112, 113, 41, 253];
/// The addresses that a process can map.
const PROCESS: std::ops::Range<usize> = 0x1000..0x7fff_ffff_f000;

/// The processor that calls a hook, with the operations that hooks may use.
#[derive(Clone, Copy)]
pub struct Processor(*mut Uc);

impl Processor {
    /// The registers: in [`Hooks::translate`] those before the instruction that misses, in [`Hooks::input`] those
    /// before the IN.
    pub fn registers(self) -> Registers {
        NUMBERS.map(|register| {
            let mut value = 0u64;
            // SAFETY: open, as the owner of this is called by it, or has the `Emulator`; each of these registers has 8 bytes.
            unsafe { uc_reg_read(self.0, register, (&raw mut value).cast()) };
            value
        })
    }

    /// Ends the run. Unicorn would first run the rest of the block; with an empty TLB no instruction with an access
    /// runs.
    pub fn stop(self) {
        self.flush_tlb();
        // SAFETY: as above.
        unsafe { uc_emu_stop(self.0) };
    }

    fn flush_tlb(self) {
        // SAFETY: as above.
        unsafe { uc_ctl(self.0, CTL_FLUSH_TLB | CTL_WRITE) };
    }
}

/// The hooks of the current run.
type Current = Cell<Option<NonNull<dyn Hooks>>>;

pub struct Emulator {
    processor: Processor,
    /// Unicorn passes the address of this cell to hooks.
    current: Box<Current>,
}

// SAFETY: no thread is remembered, neither here nor by Unicorn, and hooks are set during a run only.
unsafe impl Send for Emulator {}

impl Emulator {
    pub fn new() -> Self {
        let current = Box::new(Current::new(None));
        let data = (&raw const *current).cast_mut().cast();
        let mut uc = std::ptr::null_mut();
        // SAFETY: arguments as unicorn.h has them. Memory of the process is touched at addresses that a hook gives out only. `current`
        // lives as long as the engine.
        unsafe {
            assert_eq!(uc_open(ARCH_X86, MODE_64, &raw mut uc), 0, "no x86 in this Unicorn");
            let set = |control, value: c_int| assert_eq!(uc_ctl(uc, control | CTL_ONE | CTL_WRITE, value), 0);
            set(CTL_TLB_TYPE, TLB_VIRTUAL);
            // No address ends a run. Otherwise Unicorn would look up that page after each run, through the hook.
            set(CTL_USE_EXITS, 1);
            let (begin, size) = (PROCESS.start, PROCESS.len());
            assert_eq!(
                uc_mem_map_ptr(uc, begin as u64, size, READ | WRITE | EXECUTE, begin as *mut c_void),
                0
            );
            assert_eq!(uc_mmio_map(uc, DEVICES, 1 << 48, on_load, data, on_store, data), 0);
            let hook = |kind, callback: *mut c_void, instruction: c_int| {
                let mut handle = 0; // not used: hooks stay
                assert_eq!(uc_hook_add(uc, &raw mut handle, kind, callback, data, 1, 0, instruction), 0);
            };
            hook(HOOK_TLB_FILL, on_tlb_fill as OnTlbFill as *mut c_void, 0);
            hook(HOOK_INSN, on_in as OnIn as *mut c_void, INSN_IN);
            hook(HOOK_BLOCK, on_block as OnBlock as *mut c_void, 0);
        }
        Self { processor: Processor(uc), current }
    }

    /// Runs from RIP until a hook ends the run: true, unless something else did.
    pub fn run(&mut self, hooks: &mut dyn Hooks) -> bool {
        self.start(hooks, 0)
    }

    /// Runs one instruction.
    pub fn step(&mut self, hooks: &mut dyn Hooks) -> bool {
        // Blocks that Unicorn translated earlier do not count instructions.
        // SAFETY: open.
        unsafe { uc_ctl(self.processor.0, CTL_FLUSH_BLOCKS | CTL_WRITE) };
        self.start(hooks, 1)
    }

    fn start(&mut self, hooks: &mut dyn Hooks, instructions: usize) -> bool {
        let hooks: NonNull<dyn Hooks + '_> = hooks.into();
        // SAFETY: the lifetime alone. Hooks are called by `uc_emu_start` only, and forgotten after it.
        let hooks = unsafe { std::mem::transmute::<NonNull<dyn Hooks + '_>, NonNull<dyn Hooks>>(hooks) };
        self.current.set(Some(hooks));
        // SAFETY: open; no address ends the run.
        let error =
            unsafe { uc_emu_start(self.processor.0, self.registers()[RIP], u64::MAX - 1, 0, instructions) };
        self.current.set(None);
        error == 0
    }

    pub fn registers(&self) -> Registers {
        self.processor.registers()
    }

    pub fn set_registers(&mut self, values: Registers) {
        for (register, value) in NUMBERS.into_iter().zip(values) {
            // SAFETY: open; 8 bytes each.
            unsafe { uc_reg_write(self.processor.0, register, (&raw const value).cast()) };
        }
    }

    pub fn flush_tlb(&mut self) {
        self.processor.flush_tlb();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // SAFETY: opened by `new`.
        unsafe { uc_close(self.processor.0) };
    }
}

/// # Safety
/// `data` is the pointer that [`Emulator::new`] gave to Unicorn. Called in the thread that runs Unicorn.
unsafe fn hooks<'a>(data: *mut c_void) -> Option<&'a mut dyn Hooks> {
    // SAFETY: required of the caller (see `# Safety`). Unicorn calls no hook inside another one, so there is no second
    // reference.
    unsafe { (*data.cast::<Current>()).get().map(|mut hooks| hooks.as_mut()) }
}

unsafe extern "C" fn on_tlb_fill(
    uc: *mut Uc,
    vaddr: u64,
    kind: c_int,
    entry: *mut Page,
    data: *mut c_void,
) -> bool {
    // UC_MEM_READ and the two after it.
    let access = [Access::Read, Access::Write, Access::Fetch][kind as usize - 16];
    // SAFETY: called by Unicorn, with an entry to be filled.
    let page = unsafe { hooks(data) }.and_then(|hooks| hooks.translate(Processor(uc), vaddr, access));
    // SAFETY: the same.
    page.inspect(|page| unsafe { entry.write(*page) }).is_some()
}

unsafe extern "C" fn on_in(uc: *mut Uc, port: u32, size: c_int, data: *mut c_void) -> u32 {
    // SAFETY: called by Unicorn.
    if let Some(hooks) = unsafe { hooks(data) } {
        hooks.input(Processor(uc), port as u16, size as u8);
        Processor(uc).stop();
    }
    0
}

unsafe extern "C" fn on_block(uc: *mut Uc, _: u64, _: u32, data: *mut c_void) {
    // SAFETY: called by Unicorn.
    if unsafe { hooks(data) }.is_some_and(|hooks| !hooks.goes_on()) {
        // SAFETY: the same.
        unsafe { uc_emu_stop(uc) };
    }
}

unsafe extern "C" fn on_load(_: *mut Uc, gpa: u64, size: u32, data: *mut c_void) -> u64 {
    // SAFETY: called by Unicorn.
    unsafe { hooks(data) }.map_or(0, |hooks| hooks.load(gpa, size))
}

unsafe extern "C" fn on_store(_: *mut Uc, gpa: u64, size: u32, value: u64, data: *mut c_void) {
    // SAFETY: called by Unicorn.
    if let Some(hooks) = unsafe { hooks(data) } {
        hooks.store(gpa, size, value);
    }
}
