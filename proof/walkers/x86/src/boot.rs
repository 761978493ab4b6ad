//! The start: from the loader to Rust, and the loader's information.
//!
//! QEMU's `-kernel` finds a note in the ELF file (PVH) and passes the address of a [`StartInfo`]; a ROM that copies the
//! flat image and jumps to its first byte passes zero. `boot.s` does the rest.

use core::ffi::CStr;

core::arch::global_asm!(include_str!("boot.s"));

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
}

/// Sets the main function of a binary: `fn(Boot) -> !`.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        /// Called by the boot code with the loader's information.
        #[unsafe(no_mangle)]
        extern "C" fn rust_entry(start_info: usize) -> ! {
            let main: fn($crate::boot::Boot) -> ! = $main;
            // SAFETY: the boot code calls this once, with the loader's word.
            main(unsafe { $crate::boot::Boot::begin(start_info) })
        }
    };
}

/// The start information of a PVH loader (`hvm_start_info`, version 1).
#[derive(Debug)]
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

const MAGIC: u32 = 0x336e_c578;

/// A range of physical memory in the loader's map (the kinds are those of E820).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemoryRange {
    /// First byte.
    pub start: u64,
    /// Length, in bytes.
    pub bytes: u64,
    /// Kind: [`USABLE`](Self::USABLE), or not to be used.
    pub kind: u32,
    reserved: u32,
}

impl MemoryRange {
    /// Ordinary memory.
    pub const USABLE: u32 = 1;
    /// Reserved memory.
    pub const RESERVED: u32 = 2;

    /// Makes a range of this kind, in bytes.
    pub const fn new(start: u64, bytes: u64, kind: u32) -> Self {
        Self { start, bytes, kind, reserved: 0 }
    }
}

/// The loader's information: none if a ROM started the image.
#[derive(Clone, Copy, Debug)]
pub struct Boot(Option<&'static StartInfo>);

impl Boot {
    /// Initializes the console and the heap.
    ///
    /// # Safety
    /// Called once, by [`entry!`], with the word that the boot code was given.
    pub unsafe fn begin(start_info: usize) -> Self {
        crate::serial::init();
        // SAFETY: the caller promises that this is the first and only call.
        unsafe { crate::heap::init() };
        let info = start_info as *const StartInfo;
        // SAFETY: a PVH loader left a start information there; anything else has another magic number, and all low
        // memory can be read.
        let info = (!info.is_null()).then(|| unsafe { &*info }).filter(|info| info.magic == MAGIC);
        Self(info)
    }

    /// Returns whether a PVH loader started the image, so that there is firmware and a memory map.
    pub fn has_firmware(self) -> bool {
        self.0.is_some()
    }

    /// Returns the command line: `-append` of QEMU. Empty if there is none.
    pub fn command_line(self) -> &'static str {
        let Some(line) = self.0.map(|info| info.command_line).filter(|&line| line != 0) else { return "" };
        // SAFETY: the loader wrote a string that ends in zero.
        unsafe { CStr::from_ptr(line as *const _) }.to_str().unwrap_or("")
    }

    /// Returns the physical address of ACPI's root pointer, if the loader passed one.
    pub fn rsdp(self) -> Option<u64> {
        self.0.map(|info| info.rsdp).filter(|&rsdp| rsdp != 0)
    }

    /// Returns the loader's memory map; empty without a loader.
    pub fn memory(self) -> &'static [MemoryRange] {
        let Some(info) = self.0.filter(|info| info.memory_map != 0) else { return &[] };
        // SAFETY: the loader wrote so many entries there.
        unsafe { core::slice::from_raw_parts(info.memory_map as *const _, info.memory_map_entries as usize) }
    }
}

/// Returns the physical memory of this program, including heap and stacks.
pub fn image() -> core::ops::Range<u64> {
    (&raw const image_start) as u64..(&raw const image_end) as u64
}
