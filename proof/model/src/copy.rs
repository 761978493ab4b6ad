//! A host that copies a page while another change withdraws it: `Pages::settle`, `mm`'s `break_share`.
//!
//! A page-by-page change, [`Why::Park`](crate::state::Why::Park), withdraws write permission of a page, releases the
//! page, and flushes later. A swap-out parks a page this way, and KSM shares it this way. Until that flush a vCPU may
//! still store through its TLB. Another thread that writes to the parked page copies it: a device model, a pin, a guest
//! of another VM. A later store to the old frame is lost. Hence the rule: **the thread settles the page before it
//! copies it**. It adopts the flush that another change of the page owes (rule 7), and pays it.

use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{Bad, NONE, Op, Pc, Span, State, frame, over_hvas};

impl Scenario {
    /// Ends the walk of a [`Why::Park`](crate::state::Why::Park): the host's entries now say that the pages are
    /// shared.
    pub(crate) fn park(s: &mut State, hvas: Span) {
        for page in hvas.start..hvas.end {
            s.shared.parked |= 1 << page;
        }
    }

    /// One step of the thread that writes to host page `page`. `None`: it waits.
    pub(crate) fn copy(&self, s: &mut State, i: usize, page: u8) -> Option<()> {
        match s.threads[i].pc {
            Pc::Start => {
                // There is nothing to copy yet, or another thread holds the page.
                if s.shared.parked >> page & 1 == 0 || s.shared.locked != NONE {
                    return None;
                }
                s.shared.locked = i as u8;
                s.threads[i].pc = Pc::Settle;
            }
            Pc::Settle => {
                let page = Span::new(page, page + 1);
                if s.unflushed_behind(i, page) && self.bug != Some(Bug::CopiedUnsettled) {
                    s.threads[i].owe(over_hvas(s.shared.memslots, page));
                    s.threads[i].pc = self.first_of_flush(&s.shared);
                } else {
                    s.threads[i].pc = Pc::Flushed;
                }
            }
            Pc::Flushed => {
                let old = frame(s.shared.frames[page as usize], page);
                let stores = |gfn: usize| {
                    let running = (0..s.shared.vcpu_count.into()).filter(|&vcpu| s.shared.tlb.runs(vcpu));
                    running.map(|vcpu| s.shared.vcpus[vcpu]).any(|vcpu| vcpu.stores[gfn] >> old & 1 != 0)
                };
                let frames = over_hvas(s.shared.memslots, Span::new(page, page + 1));
                if (frames.start..frames.end).map(usize::from).any(stores) {
                    s.shared.bad = Some(Bad::StoreAfterCopy);
                }
                s.shared.locked = NONE;
                s.done(i);
            }
            _ => return self.shoot_down(s, i, Op::Copy { page }),
        }
        Some(())
    }
}
