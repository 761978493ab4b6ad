//! Large pages that do not execute: the small pages that fetches have made of them, and the thread that takes those back.

use crate::capabilities::NX_PERIOD;
use crate::machine::Machine;
use crate::process_host::large_page;
use slat::{Idle, Level, Span, Why};
use std::sync::Arc;

/// Starts the thread of a new VM, if it needs one. It ends with the VM.
pub fn start(machine: &Arc<Machine>) {
    let Some(period) = *NX_PERIOD else { return };
    let machine = Arc::downgrade(machine);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(period);
            let Some(machine) = machine.upgrade() else { return };
            let Some(mut idle) = Idle::take() else { return };
            machine.recover(&mut idle);
        }
    });
}

impl Machine {
    /// Large pages of the host of which the guest has small ones.
    pub fn split_pages(&self, idle: &mut Idle) -> Vec<Span<slat::Gfn>> {
        let mut slots = Vec::new();
        self.vm().memory().for_each(idle, |slot| slots.push(slot));
        let mut split = Vec::new();
        for slot in slots {
            let pages = Level::M2.pages();
            let first = slot.gfns.start.0.next_multiple_of(pages);
            let all = (first..).step_by(pages as usize).map(|gfn| Span::sized(slat::Gfn(gfn), pages));
            for gfns in all.take_while(|gfns| slot.gfns.covers(gfns)) {
                let hva = slot.hva_of(gfns.start);
                let large = large_page(hva).is_some_and(|page| page.start == hva);
                let mut mapped = (gfns.start.0..gfns.end.0)
                    .filter_map(|gfn| self.vm().memory().translate(idle, slat::Gfn(gfn)));
                if large && mapped.next().is_some_and(|mapped| mapped.level == Level::K4) {
                    split.push(gfns);
                }
            }
        }
        split
    }

    /// Zaps split pages, as KVM does: the next access maps a large page. The engine could put the large pages in their
    /// place at once (`GuestSpace::recover`), but the test demands that they have gone.
    fn recover(&self, idle: &mut Idle) {
        for gfns in self.split_pages(idle) {
            drop(self.vm().memory().invalidate(gfns, Why::Unmap).apply(idle).settle());
        }
    }
}
