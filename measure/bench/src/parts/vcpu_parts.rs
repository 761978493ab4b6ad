//! The part of guest memory that each vCPU touches.

use crate::parts::setting::{Setting, Work};
use crate::parts::touch_pages::Guest;
use crate::parts::vm_setup::{SimVm, idle};
use slat::{Gfn, Level, Span};

/// The vCPUs of a VM, all of whose memory is one slot, and the part of it that each is to touch.
///
/// A run is a stretch from the middle of a longer one: each vCPU has touched the page before its part, so it has its tables and
/// some more at hand; where its part begins in a table of leaves is drawn by lot, so that vCPUs do not come to the ends of
/// their tables all at once. A table belongs to one vCPU alone, as all do where each has gigabytes.
pub struct Parts {
    /// Pages of each.
    pub pages: u64,
    starts: Vec<Gfn>,
}

/// Frames of a table of leaves.
const TABLE: u64 = Level::M2.pages();

impl Parts {
    /// So many pages for each vCPU.
    pub fn new(setting: &Setting<'_>, pages: u64) -> Self {
        let stride = pages.next_multiple_of(TABLE) + TABLE;
        let start = |vcpu| Gfn(vcpu * stride + 1 + setting.lot(vcpu) % (TABLE - 1));
        Self { pages, starts: (0..u64::from(setting.vcpus)).map(start).collect() }
    }

    /// All of their tables, from the first frame on.
    pub fn all(&self) -> Span<Gfn> {
        let end = self.starts.last().map_or(0, |start| start.0 + self.pages);
        Span::sized(Gfn(0), end.next_multiple_of(TABLE))
    }

    /// One for each vCPU.
    pub fn each(&self) -> impl Iterator<Item = Span<Gfn>> {
        self.starts.iter().map(|&start| Span::sized(start, self.pages))
    }

    /// The vCPUs, each of which has touched the page before its part, at no cost.
    pub fn guests<'vm>(&self, vm: &'vm SimVm, work: &'vm Work) -> Result<Vec<Guest<'vm>>, String> {
        let mut idle = idle()?;
        let guest = |(number, part): (u32, Span<Gfn>)| {
            let mut guest = Guest::new(vm, number, work)?;
            let _ = guest.touch(&mut idle, Gfn(part.start.0 - 1)).map_err(|error| error.to_string())?;
            Ok(guest)
        };
        (0..).zip(self.each()).map(guest).collect()
    }
}
