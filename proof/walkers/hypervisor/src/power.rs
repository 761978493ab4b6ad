//! The guest powers the machine off by a write to the power-management port in ACPI's tables.
//!
//! ```text
//! RSDP ─▶ RSDT ─▶ the table "FACP": at 64, the port of the control block
//! ```
//! Without ACPI it resets the machine by a triple fault.

use crate::error::Error;
use alloc::format;
use slat_walker_x86::boot::Boot;
use slat_walker_x86::exit::Verdict;

/// The bit of the written value that enters a sleep state. The state does not matter.
const SLEEP: u32 = 1 << 13;
const CONTROL_PORT: u64 = 64;

/// Port to which a program of ours, or a test of KVM's, writes its verdict; and the values for success.
pub const VERDICT: u16 = 0xf4;
const PASSED: [u32; 2] = [Verdict::Passed as u32, 0];

/// Fails if a hypervisor in the guest has failed.
pub fn judge(verdict: u32) -> Result<(), Error> {
    if PASSED.contains(&verdict) {
        Ok(())
    } else {
        Err(format!("a guest has failed: it ends with {verdict:#x}").into())
    }
}

/// Returns the port, if the firmware's tables name one.
pub fn control_port(boot: Boot) -> Option<u16> {
    let facp = table(boot, *b"FACP")?;
    u16::try_from(read(facp + CONTROL_PORT)).ok().filter(|&port| port != 0)
}

/// Returns the address of the firmware's table of this name.
pub fn table(boot: Boot, name: [u8; 4]) -> Option<u64> {
    let rsdt = read(boot.rsdp()? + 16);
    let entries = (read(rsdt + 4).saturating_sub(36)) / 4;
    let mut tables = (0..entries).map(|entry| read(rsdt + 36 + entry * 4));
    tables.find(|&table| read(table) == u64::from(u32::from_le_bytes(name)))
}

/// Returns whether this write powers the machine off.
pub fn is_the_end(value: u32) -> bool {
    value & SLEEP != 0
}

/// Reads four bytes of a table.
fn read(at: u64) -> u64 {
    // SAFETY: the loader told where the first table is, and each names the next; memory is mapped one to one.
    u64::from(unsafe { (at as *const u32).read_unaligned() })
}
