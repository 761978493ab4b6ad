//! Linux's 64-bit boot protocol (the kernel's Documentation/arch/x86/boot.rst). The kernel is copied to an address
//! where it can run. One page, the "zero page", describes memory, the initial file system and the command line.
//!
//! Below 1 MiB, in memory that the kernel uses only later:
//! ```text
//! 0x2_0000  page tables: the first 4 GiB one to one, by 2 MiB
//! 0x2_8000  descriptor table
//! 0x2_9000  zero page
//! 0x2_a000  command line
//! 0x3_0000  end of the stack
//! ```

use crate::error::Error;
use crate::layout::Layout;
use crate::options::Options;
use crate::platform;
use alloc::vec::Vec;
use slat::Gpa;
use slat_walker_x86::boot::{Boot, MemoryRange};
use slat_walker_x86::processor::{LongMode, Registers};

const TABLES: u64 = 0x2_0000;
const DESCRIPTORS: u64 = 0x2_8000;
const ZERO_PAGE: u64 = 0x2_9000;
const COMMAND_LINE: u64 = 0x2_a000;
const STACK_END: u64 = 0x3_0000;
/// Address of the kernel's copy, from which it unpacks itself.
const KERNEL: u64 = 0x800_0000;
/// Offset of the 64-bit entry in the kernel's copy.
const ENTRY: u64 = 0x200;

/// Fields of the zero page and of the kernel file's header, which is a part of it, by their offsets.
mod field {
    pub const RSDP: u64 = 0x070;
    pub const MAP_ENTRIES: u64 = 0x1e8;
    pub const HEADER: u64 = 0x1f1;
    pub const HEADER_END: u64 = 0x201;
    pub const MAGIC: u64 = 0x202;
    pub const SECTORS: u64 = 0x1f1;
    pub const PARAGRAPHS: u64 = 0x1f4;
    pub const LOADER: u64 = 0x210;
    pub const INITRD: u64 = 0x218;
    pub const INITRD_BYTES: u64 = 0x21c;
    pub const LINE: u64 = 0x228;
    pub const MAP: u64 = 0x2d0;
}
/// The letters `HdrS`.
const MAGIC: u32 = 0x5372_6448;
const OTHER_LOADER: u8 = 0xff;
const MAP_ENTRY_BYTES: u64 = 20;

/// The kernel's command line, with firmware and without. The latter is Bochs, whose serial port is as slow as a real
/// one.
const LINE: &[u8] = b"console=ttyS0 panic=-1 nokaslr\0";
const LINE_WITHOUT_FIRMWARE: &[u8] =
    b"console=ttyS0 quiet panic=-1 nokaslr acpi=off pci=off noapic nolapic reboot=t tsc=reliable mitigations=off\0";

/// The same for vCPUs that share a processor: devices interrupt by the old controller ([`platform`]).
const LINE_SHARED: &[u8] = b"console=ttyS0 panic=-1 nokaslr noapic tsc=reliable\0";

/// A guest that is about to run its first instruction.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Its mode and place.
    pub mode: LongMode,
    /// Its registers.
    pub registers: Registers,
}

impl Start {
    /// Starts the kernel on the bare machine.
    pub fn jump(&self) -> ! {
        let LongMode { cr3, gdt, rip, rsp } = self.mode;
        let descriptors: [u16; 5] = [31, gdt.0 as u16, (gdt.0 >> 16) as u16, 0, 0];
        // SAFETY: `load` has made all that the kernel needs, and nothing of ours is needed any more; its tables map this
        // code, too, where it is.
        unsafe {
            core::arch::asm!(
                "lgdt [{descriptors}]",
                "mov cr3, {tables}",
                "mov rsp, {stack}",
                "jmp {entry}",
                descriptors = in(reg) descriptors.as_ptr(),
                tables = in(reg) cr3.0,
                stack = in(reg) rsp,
                entry = in(reg) rip,
                in("rsi") self.registers.rsi,
                options(noreturn)
            )
        }
    }
}

/// Loads kernel and zero page.
pub fn load(boot: Boot, options: &Options, layout: &Layout) -> Result<Start, Error> {
    let file = options.kernel;
    if file == 0 || read::<u32>(file + field::MAGIC) != MAGIC {
        return Err("no kernel where the command line says".into());
    }
    let sectors = match read::<u8>(file + field::SECTORS) {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let (setup, bytes) = ((sectors + 1) * 512, u64::from(read::<u32>(file + field::PARAGRAPHS)) * 16);
    copy(file + setup, KERNEL, bytes);

    fill(ZERO_PAGE, 4096, 0);
    let header_end = field::MAGIC + u64::from(read::<u8>(file + field::HEADER_END));
    copy(file + field::HEADER, ZERO_PAGE + field::HEADER, header_end - field::HEADER);
    write(ZERO_PAGE + field::LOADER, OTHER_LOADER);
    write(ZERO_PAGE + field::INITRD, options.initrd.0 as u32);
    write(ZERO_PAGE + field::INITRD_BYTES, options.initrd.1 as u32);
    write(ZERO_PAGE + field::LINE, COMMAND_LINE as u32);
    write(ZERO_PAGE + field::RSDP, boot.rsdp().unwrap_or(0));
    let is_shared = !options.plain && options.is_shared();
    let line = match boot.has_firmware() {
        _ if is_shared => LINE_SHARED,
        true => LINE,
        false => LINE_WITHOUT_FIRMWARE,
    };
    if is_shared {
        platform::tell_of_two(boot)?;
    }
    copy(line.as_ptr() as u64, COMMAND_LINE, line.len() as u64);

    let map = memory_map(boot, layout);
    for (range, at) in map.iter().zip((ZERO_PAGE + field::MAP..).step_by(MAP_ENTRY_BYTES as usize)) {
        write(at, range.start);
        write(at + 8, range.bytes);
        write(at + 16, range.kind);
    }
    write(ZERO_PAGE + field::MAP_ENTRIES, map.len() as u8);
    write_tables();
    let registers = Registers { rsi: ZERO_PAGE, ..Registers::default() };
    let mode = LongMode { cr3: Gpa(TABLES), gdt: Gpa(DESCRIPTORS), rip: KERNEL + ENTRY, rsp: STACK_END };
    Ok(Start { mode, registers })
}

/// Returns the loader's memory map, or a plain one if there was none; and the ranges that are not the guest's, which
/// take precedence.
pub fn memory_map(boot: Boot, layout: &Layout) -> Vec<MemoryRange> {
    const LOW: MemoryRange = MemoryRange::new(0, 0x9_fc00, MemoryRange::USABLE);
    const MIB: u64 = 1 << 20;
    let mut map = boot.memory().to_vec();
    if map.is_empty() {
        map = alloc::vec![LOW, MemoryRange::new(MIB, layout.ram_end() - MIB, MemoryRange::USABLE)];
    }
    map.push(layout.own());
    map
}

/// Writes page tables that map the first 4 GiB one to one, and flat segments.
fn write_tables() {
    const LINK: u64 = 0b11;
    const LARGE_LEAF: u64 = 0x83;
    const SEGMENTS: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
    fill(TABLES, 2 * 4096, 0);
    let (directories, gigabytes) = (TABLES + 0x1000, TABLES + 0x2000);
    write(TABLES, directories | LINK);
    for gib in 0..4_u64 {
        let table = gigabytes + (gib << 12);
        write(directories + gib * 8, table | LINK);
        for page in 0..512_u64 {
            write(table + page * 8, gib << 30 | page << 21 | LARGE_LEAF);
        }
    }
    for (segment, at) in SEGMENTS.into_iter().zip((DESCRIPTORS..).step_by(8)) {
        write(at, segment);
    }
}

// Memory is mapped one to one, and all of it but the hypervisor's own is free before the guest runs. Addresses are those
// of this file, and what the loader was told to use: below 4 GiB, and outside the hypervisor.

/// Reads a value at an address.
pub fn read<T: Copy>(at: u64) -> T {
    // SAFETY: see above; integers of any bits are integers.
    unsafe { (at as *const T).read_unaligned() }
}

/// Writes a value at an address.
pub fn write<T>(at: u64, value: T) {
    // SAFETY: see above.
    unsafe { (at as *mut T).write_unaligned(value) }
}

/// Copies.
pub fn copy(from: u64, to: u64, bytes: u64) {
    // SAFETY: see above.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) }
}

/// Fills.
pub fn fill(at: u64, bytes: u64, value: u8) {
    // SAFETY: see above.
    unsafe { core::ptr::write_bytes(at as *mut u8, value, bytes as usize) }
}
