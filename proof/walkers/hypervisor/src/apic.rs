//! The local interrupt controller, by which a guest starts its second processor.
//!
//! A real INIT would reset that processor, which waits in the hypervisor. So the controller's page is a read-only
//! memslot until the guest has sent STARTUP: reads succeed, and each write exits to the hypervisor. It drops INIT,
//! begins the second vCPU at STARTUP, and makes any other write for the guest. Then the page becomes writable, and the
//! hypervisor sees no more writes. Linux sends STARTUP twice; a running processor ignores it.

use slat::{Gfn, Gpa};

/// The controller's page after reset.
pub const PAGE: Gfn = Gfn(0xfee00);
/// Its register for commands to other processors.
const COMMAND: Gpa = Gpa(0xfee0_0300);

/// Meaning of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// The second processor is reset.
    Init,
    /// The second processor begins at this page.
    Startup(u8),
    /// Any other write.
    Other,
}

impl Write {
    /// Decodes a write of this value.
    pub fn of(gpa: Gpa, value: u32) -> Self {
        // The delivery mode.
        match value >> 8 & 7 {
            5 if gpa == COMMAND => Self::Init,
            6 if gpa == COMMAND => Self::Startup(value as u8),
            _ => Self::Other,
        }
    }
}

/// Makes a guest's write for it, on the processor that it addresses.
pub fn write(gpa: Gpa, value: u32) {
    // SAFETY: a register of the controller, mapped one to one; the guest would have written this now, and what it means
    // for processors has been looked at.
    unsafe { (gpa.0 as *mut u32).write_volatile(value) };
}
