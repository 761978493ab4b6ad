//! A vCPU's stay in the guest: the rules about its entry, and about kicks.

use super::checks::Oracle;
use super::seam::Checked;
use super::violation::Rule;
use crate::InGuest;
use crate::addr::{Gfn, Pfn};
use crate::host::{Host, VcpuId};
use crate::loaded::Tag;
use crate::slots::SpaceId;
use crate::table::format::Access;
use alloc::format;
use core::cell::Cell;

impl InGuest<'_> {
    /// The guest uses a translation of `gfn` to `pfn`: for a software vCPU, at each access. Reports what the oracle says
    /// against it ([`Rule::StaleUse`] and others).
    pub fn uses(&self, gfn: Gfn, pfn: Pfn, access: Access) {
        let stay = &self.stay;
        let kicked = self.kicked() && !self.has_ready();
        // L2's frames are in no log: its stores are logged by L1's frames.
        let stores = access == Access::Write && stay.tag == Tag::L1;
        stay.oracle.step(|world| {
            world.uses((stay.vcpu, kicked), gfn, (pfn, access));
            if stores {
                world.guest_stores(stay.space, gfn);
            }
        });
    }
}

/// A vCPU's stay in the guest.
#[derive(Debug)]
pub(crate) struct Stay<'a> {
    oracle: &'a Oracle,
    vcpu: VcpuId,
    space: SpaceId,
    tag: Tag,
    /// The root of the entry, once the guest runs.
    ran: Cell<Option<Pfn>>,
    /// The VMM has loaded the root, or has answered a kick.
    is_current: Cell<bool>,
}

impl<'a> Stay<'a> {
    pub(crate) fn begin<H: Host>(host: &'a Checked<H>, (vcpu, space, tag): (VcpuId, SpaceId, Tag)) -> Self {
        let oracle = host.oracle();
        #[cfg(feature = "std")]
        oracle.step(|world| world.vcpus.entry(vcpu).or_default().kicked = None);
        Self { oracle, vcpu, space, tag, ran: Cell::new(None), is_current: Cell::new(false) }
    }

    /// The VMM loads the root.
    pub(crate) fn loads(&self, root: Pfn) -> Pfn {
        if self.tag == Tag::L1 {
            self.is_current.set(true);
            self.oracle.step(|world| world.vcpus.entry(self.vcpu).or_default().root = Some(root));
        }
        root
    }

    /// The last step into the guest.
    pub(crate) fn runs(&self, root: Pfn) {
        self.ran.set(Some(root));
    }

    /// The vCPU looks whether a flush waits for it. If none does, a kick has come after the answer to its flush.
    pub(crate) fn polls(&self, kicked: bool) -> bool {
        #[cfg(feature = "std")]
        if !kicked {
            self.oracle.step(|world| world.vcpus.entry(self.vcpu).or_default().kicked = None);
        }
        kicked
    }

    /// A kick is answered, by a thread that has moved or not.
    pub(crate) fn answers(&self, moved: bool) {
        self.leaves("InGuest::answer");
        self.is_current.set(true);
        if moved {
            let seen = format!("vCPU {}: Translations::cpu has changed", self.vcpu.0);
            self.oracle.step(|world| world.finds(Rule::MovedInGuest, "InGuest::answer", seen));
        }
    }

    fn leaves(&self, call: &'static str) {
        let patience = self.oracle.patience();
        self.oracle.step(|world| {
            let state = world.vcpus.entry(self.vcpu).or_default();
            state.ignored = 0;
            let ran = self.ran.get().filter(|_| self.tag == Tag::L1 && !self.is_current.get());
            let stale = state.root.filter(|old| ran.is_some_and(|now| now != *old));
            #[cfg(feature = "std")]
            let late = state.kicked.take().map(|since| since.elapsed()).filter(|late| *late > patience);
            #[cfg(not(feature = "std"))]
            let late = Some(patience).filter(|_| false);
            if let Some(old) = stale {
                let seen = format!("vCPU {}: still {:#x}, now {ran:x?}", self.vcpu.0, old.0);
                world.finds(Rule::StaleRoot, call, seen);
            }
            if let Some(late) = late {
                world.finds(Rule::KickLate, call, format!("vCPU {}: after {late:?}", self.vcpu.0));
            }
        });
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.leaves("InGuest::drop");
    }
}

pub(crate) fn guest_was_leaked<H: Host>(host: &Checked<H>, vcpu: VcpuId) {
    host.oracle().step(|world| world.finds(Rule::GuestLeaked, "mem::forget", format!("vCPU {}", vcpu.0)));
}
