//! The G-stage for the judge, and QEMU's own faults.

use crate::board::{PATTERN, Serial};
use crate::guest_access::{self, GUEST_PAGE_FAULTS};
use core::fmt::{self, Write};
use slat::{Access, Format, Gpa, Level, PAGE_SHIFT, Pfn, Span};
use slat_judge::{Answer, Difference, FaultWhy, Machine, Quirk, Ram};

/// Position of the mode in `hgatp`.
const MODE: u32 = 60;

/// Faults of QEMU 7.2, which 10.0 does not have.
pub const UPPER_HALF: &str = "addresses of the upper half fault";
const HLVX: &str = "HLVX asks for R, not for X";

/// The G-stage.
pub struct GStage {
    /// The format's number in `hgatp`.
    mode: u64,
    gpa_bits: u32,
    quirks: [Quirk; 2],
}

impl GStage {
    /// Makes a machine for tables of format `F`, and a guest with addresses of `gpa_bits` bits.
    pub fn new<F: Format>(mode: u64, gpa_bits: u32) -> Self {
        guest_access::set_accessed_dirty(F::HARDWARE_AD);
        let quirks = [
            Quirk { name: UPPER_HALF, explains: upper_half::<F> },
            Quirk { name: HLVX, explains: hlvx_by_r },
        ];
        Self { mode, gpa_bits, quirks }
    }

    /// Returns whether the hart supports the mode.
    pub fn is_there(&self) -> bool {
        guest_access::load_hgatp(self.mode << MODE) >> MODE == self.mode
    }
}

/// A guest-physical address is treated as sign-extended: addresses with the topmost bit set are refused.
fn upper_half<F: Format>(difference: &Difference) -> bool {
    let topmost = F::FRAME_BITS + PAGE_SHIFT - 1;
    difference.gpa.0 >> topmost == 1
        && matches!(difference.expected, Answer::Through { .. })
        && matches!(difference.answer, Answer::Fault { .. })
}

/// HLVX succeeds on a page that is readable and not executable.
fn hlvx_by_r(difference: &Difference) -> bool {
    difference.access == Access::Fetch
        && matches!(difference.expected, Answer::Fault { why: FaultWhy::Permission, .. })
        && matches!(difference.answer, Answer::Through { .. })
}

// SAFETY: the pattern's memory has no other use: neither the program nor its heap lies there.
unsafe impl Machine for GStage {
    const SHOWS_STALE: bool = true;

    fn name(&self) -> &'static str {
        "QEMU RISC-V"
    }

    fn ram(&self) -> Ram {
        let first = Pfn(PATTERN.start >> PAGE_SHIFT);
        let pattern = Span::new(first, Pfn(PATTERN.end >> PAGE_SHIFT));
        Ram { pattern, gib: Pfn(first.0 & !(Level::G1.pages() - 1)) }
    }

    fn gpa_bits(&self) -> u32 {
        self.gpa_bits
    }

    fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer {
        guest_access::load_hgatp(self.mode << MODE | root.0);
        let done = match access {
            Access::Read => guest_access::load(gpa.0),
            Access::Write => guest_access::store(gpa.0, value),
            Access::Fetch => guest_access::fetch(gpa.0),
        };
        match done {
            Ok(value) => Answer::Through { value },
            Err(trap) => {
                let gpa = GUEST_PAGE_FAULTS.contains(&trap.cause).then_some(Gpa(trap.shifted_gpa << 2));
                Answer::Fault { why: FaultWhy::Unsaid, level: None, gpa, allowed: None }
            }
        }
    }

    fn flush(&mut self) {
        guest_access::fence();
    }

    fn quirks(&self) -> &[Quirk] {
        &self.quirks
    }

    fn log(&mut self, line: fmt::Arguments<'_>) {
        let _ = writeln!(Serial, "{line}");
    }
}
