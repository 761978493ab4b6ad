//! Without a loader, kernel, initial file system and command line come from the first disk, by the oldest protocol
//! (ATA, programmed I/O, 28-bit sector numbers).
//!
//! ```text
//! sector 0    "SLATDISK", how many sectors follow (4 bytes), the command line, ended by zero
//! sector 1…   what belongs at [`AT`] in memory
//! ```

use crate::error::Error;
use alloc::string::String;
use slat_walker_x86::cpu::{inb, insw, outb};

/// Physical address of the copy of the disk; the command line has the addresses of its parts.
const AT: u64 = 0x1000_0000;
const MAGIC: &[u8] = b"SLATDISK";
const SECTOR: usize = 512;
/// Most sectors of one command.
const AT_ONCE: u32 = 128;

const DATA: u16 = 0x1f0;
const COUNT: u16 = 0x1f2;
const LOW: u16 = 0x1f3;
const MIDDLE: u16 = 0x1f4;
const HIGH: u16 = 0x1f5;
/// Port of the highest four bits of the sector number; selects the first disk, and sector numbers instead of geometry.
const DEVICE: u16 = 0x1f6;
const BY_NUMBER: u8 = 0xe0;
/// Port of the command; a read returns the status.
const COMMAND: u16 = 0x1f7;
const READ: u8 = 0x20;
const BUSY: u8 = 0x80;
const HAS_DATA: u8 = 0x08;
const FAILED: u8 = 0x01;

/// Copies the disk's contents to memory and returns the command line.
pub fn load() -> Result<String, Error> {
    let mut header = [0; SECTOR];
    read(0, &mut header)?;
    let (Some(header), Some(sectors)) = (header.strip_prefix(MAGIC), header[MAGIC.len()..].first_chunk())
    else {
        return Err("neither a loader nor a disk of ours".into());
    };
    let sectors = u32::from_le_bytes(*sectors) as usize;
    let line = header[4..].split(|&byte| byte == 0).next().unwrap_or_default();
    // SAFETY: memory there is not used before the guest runs, and mapped one to one.
    let memory = unsafe { core::slice::from_raw_parts_mut(AT as *mut u8, sectors * SECTOR) };
    for (part, first) in memory.chunks_mut(AT_ONCE as usize * SECTOR).zip((1..).step_by(AT_ONCE as usize)) {
        read(first, part)?;
    }
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// Reads whole sectors from number `first` on; at most [`AT_ONCE`].
fn read(first: u32, into: &mut [u8]) -> Result<(), Error> {
    let [low, middle, high, highest] = first.to_le_bytes();
    let status = || {
        // SAFETY: reading the status makes a disk do nothing.
        unsafe { inb(COMMAND) }
    };
    // SAFETY: the disk's contents come by the data port only.
    unsafe {
        outb(DEVICE, BY_NUMBER | highest);
        outb(COUNT, (into.len() / SECTOR) as u8);
        outb(LOW, low);
        outb(MIDDLE, middle);
        outb(HIGH, high);
        outb(COMMAND, READ);
    }
    for sector in into.chunks_exact_mut(SECTOR) {
        let ready = loop {
            match status() {
                status if status & BUSY != 0 => {}
                status if status & FAILED != 0 => return Err("the disk cannot be read".into()),
                status => break status & HAS_DATA != 0,
            }
        };
        if !ready {
            return Err("there is no disk".into());
        }
        // SAFETY: the disk has a sector for us.
        unsafe { insw(DATA, sector) };
    }
    Ok(())
}
