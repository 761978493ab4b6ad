//! The EPT pointer, INVEPT, and the decoding of a violation.

use crate::processor::MemoryFault;
use core::arch::asm;
use slat::{Access, Format, Gpa, Perms, Pfn};

/// The tables of a guest: the root, the number of levels, and whether the hardware sets Accessed and Dirty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EptPointer(pub(super) u64);

impl EptPointer {
    /// Tables of format `F`, an EPT, with `root` as root. The walker reads them as write-back memory.
    pub fn new<F: Format>(root: Pfn) -> Self {
        const WRITE_BACK: u64 = 6;
        let levels = u64::from(F::LEVELS - 1) << 3;
        let accessed_dirty = u64::from(F::HARDWARE_AD) << 6;
        Self(root.address() | accessed_dirty | levels | WRITE_BACK)
    }
}

/// Drops all that this processor has cached of the tables behind `pointer`: translations and links.
pub(super) fn invept(pointer: EptPointer) {
    const SINGLE_CONTEXT: u64 = 1;
    let descriptor = [pointer.0, 0];
    // SAFETY: VMX is on where there is a guest; to forget translations is always right.
    unsafe { asm!("invept {}, [{}]", in(reg) SINGLE_CONTEXT, in(reg) descriptor.as_ptr(), options(nostack)) }
}

/// Decodes a violation from its exit qualification.
pub(super) fn violation(raw: u64, gpa: Gpa) -> MemoryFault {
    let bit = |bit: u32| raw >> bit & 1 == 1;
    // With Accessed and Dirty in use, a walk of the guest's own tables is a write as well as a read.
    let access = match () {
        () if bit(2) => Access::Fetch,
        () if bit(1) => Access::Write,
        () => Access::Read,
    };
    // There was a linear address, and the access was to the guest's tables, not to the final address.
    let in_guest_tables = bit(7) && !bit(8);
    let allowed = allowed(raw);
    let present = allowed != Perms::NONE;
    MemoryFault { gpa, access, present, misconfigured: false, in_guest_tables, allowed: Some(allowed), raw }
}

/// The permissions that all entries on the path grant together.
fn allowed(raw: u64) -> Perms {
    [(3, Perms::READ), (4, Perms::WRITE), (5, Perms::EXECUTE)]
        .into_iter()
        .filter(|(bit, _)| raw >> bit & 1 == 1)
        .fold(Perms::NONE, |all, (_, perms)| all.with(perms))
}

/// A misconfiguration: an entry on the path has a reserved value. The processor reports neither a qualification nor the
/// access.
pub(super) fn misconfiguration(gpa: Gpa) -> MemoryFault {
    let (access, raw) = (Access::Read, 0);
    MemoryFault {
        gpa,
        access,
        present: true,
        misconfigured: true,
        in_guest_tables: false,
        allowed: None,
        raw,
    }
}
