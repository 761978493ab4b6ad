//! Changes the machine's ACPI tables for a guest with more processors than the machine.
//!
//! ```text
//! table "APIC": header, the local controllers' page, flags; then an entry for each processor, controller, line
//! ```
//! If two vCPUs share a processor, the table lists only these two: devices interrupt by the old controller (8259).

use crate::error::Error;
use crate::power::table;
use slat_walker_x86::boot::Boot;

/// Number of vCPUs that share a processor.
pub const CPUS: u32 = 2;

/// Offsets of the table's length, its checksum, and its first entry.
const BYTES: usize = 4;
const CHECKSUM: usize = 9;
const ENTRIES: usize = 44;

/// An entry of a processor's local controller: kind, length, the processor's number twice, and the enabled flag.
const fn controller(id: u8) -> [u8; 8] {
    [0, 8, id, id, 1, 0, 0, 0]
}

/// Rewrites the table for two processors.
pub fn tell_of_two(boot: Boot) -> Result<(), Error> {
    let Some(at) = table(boot, *b"APIC") else {
        return Err("no table of the firmware's lists processors".into());
    };
    let wanted = [controller(0), controller(1)];
    let (wanted, bytes) = (wanted.as_flattened(), ENTRIES + wanted.as_flattened().len());
    // SAFETY: the loader told where tables are; memory is mapped one to one, and no guest runs yet.
    let table = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, bytes) };
    // The firmware's table also has the controller for devices, so it is longer.
    if u32::from_le_bytes([table[BYTES], table[BYTES + 1], table[BYTES + 2], table[BYTES + 3]]) < bytes as u32
    {
        return Err("the firmware's list of processors has no room for another".into());
    }
    table[ENTRIES..].copy_from_slice(wanted);
    table[BYTES..BYTES + 4].copy_from_slice(&(bytes as u32).to_le_bytes());
    table[CHECKSUM] = 0;
    table[CHECKSUM] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
    Ok(())
}
