//! The local interrupt controller, by which a guest starts its second processor.
//!
//! A real INIT would throw that processor out of the hypervisor, where it waits. So the controller's page is a memslot that
//! cannot be written until the guest has sent STARTUP: reads go through, and each write arrives here. INIT is swallowed,
//! STARTUP begins the second vCPU, anything else is done for the guest. Then the page becomes a plain one, and nothing that
//! the guest does with it is seen any more; a second STARTUP, as Linux sends it, is nothing to a processor that runs.

use slat::{Gfn, Gpa};

/// The controller's page, where every PC begins with it.
pub const PAGE: Gfn = Gfn(0xfee00);
/// Its register of commands to other processors.
const COMMAND: Gpa = Gpa(0xfee0_0300);

/// What a write means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// The second processor is reset.
    Init,
    /// It begins at this page.
    Startup(u8),
    /// Nothing of ours.
    Other,
}

impl Write {
    /// A write of this value there.
    pub fn of(gpa: Gpa, value: u32) -> Self {
        // How it is delivered.
        match value >> 8 & 7 {
            5 if gpa == COMMAND => Self::Init,
            6 if gpa == COMMAND => Self::Startup(value as u8),
            _ => Self::Other,
        }
    }
}

/// Does a guest's write for it, on the processor that it is for.
pub fn write(gpa: Gpa, value: u32) {
    // SAFETY: a register of the controller, mapped one to one; the guest would have written this now, and what it means
    // for processors has been looked at.
    unsafe { (gpa.0 as *mut u32).write_volatile(value) };
}
