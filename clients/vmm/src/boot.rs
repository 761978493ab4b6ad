//! Memory contents at the kernel's start, by Linux's 64-bit boot protocol (`Documentation/arch/x86/boot.rst`).
//!
//! ```text
//! 0x500     segments                    0x9_fc00  tables of processors
//! 0x7000    boot parameters             0x10_0000 the kernel
//! 0x9000    page tables: 4 GiB as it is, in pages of 2 MiB
//! 0x2_0000  command line                the end   the initial file system
//! ```

use anyhow::{Result, bail, ensure};
use slat::Gpa;

/// Addresses of the kernel's segments, boot parameters and page tables.
pub const SEGMENTS: u64 = 0x500;
pub const PARAMETERS: u64 = 0x7000;
pub const PAGE_TABLES: u64 = 0x9000;
const COMMAND_LINE: u64 = 0x2_0000;
/// End of a PC's free memory below 1 MiB.
const LOW_END: u64 = super::processors::AT;
const KERNEL: u64 = 0x10_0000;

/// Type of usable memory in the memory map.
const RAM: u32 = 1;

/// The table at [`SEGMENTS`]: 64-bit code, and data.
pub const DESCRIPTORS: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Offsets in the boot parameters; those from `SETUP` on are in the kernel's file, too.
mod field {
    pub const ACPI: usize = 0x70;
    pub const MAP_ENTRIES: usize = 0x1e8;
    pub const SETUP: usize = 0x1f1;
    pub const SETUP_END: usize = 0x201;
    pub const MAGIC: usize = 0x202;
    pub const VERSION: usize = 0x206;
    pub const LOADER: usize = 0x210;
    pub const RAMDISK: usize = 0x218;
    pub const RAMDISK_SIZE: usize = 0x21c;
    pub const COMMAND_LINE: usize = 0x228;
    pub const LOAD_FLAGS: usize = 0x236;
    pub const COMMAND_LINE_SIZE: usize = 0x238;
    pub const PREFERRED: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
    pub const MAP: usize = 0x2d0;
}

/// A kernel, and the data that is loaded with it.
pub struct Image<'a> {
    pub kernel: &'a [u8],
    pub initrd: &'a [u8],
    pub command_line: &'a str,
    /// Bytes of guest memory, from 0.
    pub memory: u64,
}

impl Image<'_> {
    /// Writes the image by `put`, which gets addresses and bytes. Returns the address of the kernel's first
    /// instruction.
    pub fn load(&self, mut put: impl FnMut(Gpa, &[u8]) -> Result<()>) -> Result<u64> {
        let kernel = self.kernel;
        ensure!(kernel.len() > 0x1000 && kernel[field::MAGIC..][..4] == *b"HdrS", "it is no bzImage");
        let version = word(kernel, field::VERSION, 2);
        ensure!(version >= 0x20c && kernel[field::LOAD_FLAGS] & 1 != 0, "it has no entry for 64 bits");
        let setup_sectors = if kernel[field::SETUP] == 0 { 4 } else { u64::from(kernel[field::SETUP]) };
        let Some(code) = kernel.get((setup_sectors as usize + 1) * 512..) else {
            bail!("it ends in its header")
        };
        let unpacked = word(kernel, field::PREFERRED, 8) + word(kernel, field::INIT_SIZE, 4);
        let initrd = self.memory.saturating_sub(self.initrd.len() as u64) & !0xfff;
        ensure!(unpacked <= initrd, "it and the initial file system need more memory: --memory");
        let room = word(kernel, field::COMMAND_LINE_SIZE, 4).min(0xfff);
        ensure!(
            self.command_line.len() as u64 <= room,
            "its command line has room for {room} bytes: --append"
        );

        let mut parameters = [0; 4096];
        let end = (field::MAGIC + usize::from(kernel[field::SETUP_END])).min(field::MAP);
        parameters[field::SETUP..end].copy_from_slice(&kernel[field::SETUP..end]);
        let mut set = |at: usize, bytes: &[u8]| parameters[at..at + bytes.len()].copy_from_slice(bytes);
        // The number for loaders without their own.
        set(field::LOADER, &[0xff]);
        set(field::COMMAND_LINE, &(COMMAND_LINE as u32).to_le_bytes());
        set(field::ACPI, &LOW_END.to_le_bytes());
        if !self.initrd.is_empty() {
            set(field::RAMDISK, &(initrd as u32).to_le_bytes());
            set(field::RAMDISK_SIZE, &(self.initrd.len() as u32).to_le_bytes());
        }
        let map = [(0, LOW_END), (KERNEL, self.memory - KERNEL)];
        set(field::MAP_ENTRIES, &[map.len() as u8]);
        for (number, (start, len)) in map.into_iter().enumerate() {
            let entry = [&u64::to_le_bytes(start)[..], &u64::to_le_bytes(len), &RAM.to_le_bytes()].concat();
            set(field::MAP + number * entry.len(), &entry);
        }

        put(Gpa(PARAMETERS), &parameters)?;
        put(Gpa(COMMAND_LINE), &[self.command_line.as_bytes(), &[0]].concat())?;
        put(Gpa(SEGMENTS), &DESCRIPTORS.map(u64::to_le_bytes).concat())?;
        put(Gpa(PAGE_TABLES), &page_tables())?;
        put(Gpa(KERNEL), code)?;
        put(Gpa(initrd), self.initrd)?;
        Ok(KERNEL + 0x200)
    }
}

/// Reads a number of `len` bytes.
fn word(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Makes a root, a table of four GiB, and their tables: present, writable.
fn page_tables() -> Vec<u8> {
    let table = |number: u64| (PAGE_TABLES + number * 0x1000) | 3;
    let mut entries = vec![0; 2 * 512];
    entries[0] = table(1);
    for gib in 0..4 {
        entries[512 + gib as usize] = table(2 + gib);
    }
    entries.extend((0..4 * 512u64).map(|page| page << 21 | 0x83));
    entries.into_iter().flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn kernel() -> Vec<u8> {
        let mut kernel = vec![0; 0x2000];
        kernel[field::SETUP] = 3;
        kernel[field::SETUP_END] = 0x66;
        kernel[field::MAGIC..][..4].copy_from_slice(b"HdrS");
        kernel[field::VERSION..][..2].copy_from_slice(&[0x0f, 0x02]);
        kernel[field::LOAD_FLAGS] = 1;
        kernel[field::COMMAND_LINE_SIZE..][..2].copy_from_slice(&[0xff, 7]);
        kernel[field::PREFERRED + 3] = 1;
        kernel[field::INIT_SIZE + 2] = 0x20;
        kernel[4 * 512] = 0xf4;
        kernel
    }

    fn loaded(kernel: &[u8], initrd: &[u8], memory: u64) -> Result<(u64, BTreeMap<u64, Vec<u8>>)> {
        let mut parts = BTreeMap::new();
        let image = Image { kernel, initrd, command_line: "console=ttyS0", memory };
        let entry = image.load(|gpa, bytes| {
            parts.insert(gpa.0, bytes.to_vec());
            Ok(())
        })?;
        Ok((entry, parts))
    }

    #[test]
    fn a_kernel_is_loaded_with_its_parameters() {
        let (entry, parts) = loaded(&kernel(), &[7; 5000], 64 << 20).unwrap();
        assert_eq!((entry, parts[&KERNEL][0]), (KERNEL + 0x200, 0xf4));
        let initrd = (64 << 20) - 0x2000;
        assert_eq!(parts[&initrd].len(), 5000);
        let parameters = &parts[&PARAMETERS];
        assert_eq!(word(parameters, field::RAMDISK, 4), initrd);
        assert_eq!(word(parameters, field::RAMDISK_SIZE, 4), 5000);
        assert_eq!(&parts[&word(parameters, field::COMMAND_LINE, 4)], b"console=ttyS0\0");
        assert_eq!((parameters[field::MAP_ENTRIES], word(parameters, field::MAP + 20, 8)), (2, KERNEL));
        assert_eq!(parts[&PAGE_TABLES].len(), 6 * 4096);
    }

    #[test]
    fn a_file_that_is_no_kernel_or_does_not_fit_is_refused() {
        assert!(loaded(&[0; 100], &[], 64 << 20).is_err());
        assert!(loaded(&[0; 0x2000], &[], 64 << 20).is_err());
        assert!(loaded(&kernel(), &[], 16 << 20).is_err());
        let mut old = kernel();
        old[field::LOAD_FLAGS] = 0;
        assert!(loaded(&old, &[], 64 << 20).is_err());
        let mut cut = kernel();
        cut[field::SETUP] = 0x40;
        assert!(loaded(&cut, &[], 64 << 20).is_err());
    }
}
