//! Eviction: writes the contents of a page of an address space with vCPUs, or of its child, to a copy. A page that both
//! map is stored once: the frame is in the swap cache while one entry has the frame and the other one the copy. See
//! `crates/mm/src/swap/cache.rs`.

use super::shared::Shared;
use super::{Pc, Primary, State};
use crate::bug::Bug;

impl Primary {
    /// One step of thread `i`, which evicts the page. `None`: it waits.
    pub(super) fn evict(&self, s: &mut State, i: usize, page: u8, of_child: bool) -> Option<()> {
        let at = usize::from(page);
        match s.threads[i].pc {
            Pc::Start => {
                if of_child {
                    // The model has no vCPU of the child.
                    s.threads[i].pc = Pc::Sweep;
                    return Some(());
                }
                s.shared.pages[at].begun += 1;
                s.shared.pages[at].active += 1;
                s.threads[i].pc = Pc::Sweep;
            }
            Pc::Sweep => {
                let page = &mut s.shared.pages[at];
                if page.locked.is_some() {
                    return None;
                }
                let entry = page.entry.filter(|_| !page.parked);
                let mapped = if of_child { page.child } else { entry.map(|(frame, ..)| frame) };
                let mapped =
                    mapped.filter(|&frame| page.leaving != Some(frame) || self.makes(Bug::LeavingTwice));
                if let Some(frame) = mapped {
                    if let Some((_, _, number)) = entry.filter(|_| !of_child) {
                        page.entry = Some((frame, false, number));
                        page.parked = true;
                    }
                    page.leaving = Some(frame);
                    s.shared.held[usize::from(frame)] += 1;
                }
                s.threads[i].taken = mapped;
                s.threads[i].pc = if of_child { Pc::Save } else { Pc::Flush };
            }
            // The flush comes when the notification ends, after the page lock.
            Pc::Flush => {
                if !self.makes(Bug::EvictedBeforeTlb) {
                    s.shared.tlb.iter_mut().for_each(|tlb| tlb[at] = None);
                }
                s.shared.pages[at].active -= 1;
                s.threads[i].pc = Pc::Save;
            }
            Pc::Save => {
                let Some(frame) = s.threads[i].taken else {
                    s.done(i);
                    return Some(());
                };
                let known = s.shared.pages[at].cached.filter(|&(cached, _)| cached == frame);
                s.threads[i].saved = known.map_or(s.shared.contents[usize::from(frame)], |(_, copy)| copy);
                s.threads[i].pc = Pc::Leave;
            }
            _ => {
                let page = &mut s.shared.pages[at];
                if page.locked.is_some() {
                    return None;
                }
                let (frame, saved) = (s.threads[i].taken?, s.threads[i].saved);
                if of_child && page.child == Some(frame) {
                    (page.child, page.child_copy) = (None, Some(saved));
                } else if !of_child && page.parked && page.entry.is_some_and(|entry| entry.0 == frame) {
                    page.copy = page.entry.take().map(|(_, _, number)| (saved, number));
                    page.parked = false;
                }
                page.leaving = page.leaving.filter(|&leaving| leaving != frame);
                let is_mapped = page.entry.is_some_and(|entry| entry.0 == frame) || page.child == Some(frame);
                let is_copied = page.copy.is_some() || page.child_copy.is_some();
                page.cached = Some((frame, saved)).filter(|_| is_mapped && is_copied);
                s.shared.held[usize::from(frame)] -= 1;
                s.shared.let_go(at, frame);
                s.done(i);
            }
        }
        Some(())
    }
}

impl Shared {
    /// Frees the frame, if nothing refers to it.
    pub(super) fn let_go(&mut self, at: usize, frame: u8) {
        let page = &self.pages[at];
        let is_cached = page.cached.is_some_and(|(cached, _)| cached == frame);
        let is_mapped = page.entry.is_some_and(|entry| entry.0 == frame) || page.child == Some(frame);
        if !is_cached && !is_mapped && self.held[usize::from(frame)] == 0 {
            self.freed |= 1 << frame;
        }
    }

    /// Brings the page back from its copy, in the frame that the child shares, or in another one.
    pub(super) fn bring_back(&mut self, at: usize, copy: u8, number: u8) {
        let cached = self.pages[at].cached.filter(|&(_, contents)| contents == copy);
        let frame = cached.map_or_else(|| self.take_frame(), |(frame, _)| frame);
        if cached.is_none() {
            self.contents[usize::from(frame)] = copy;
        }
        let page = &mut self.pages[at];
        (page.copy, page.entry) = (None, Some((frame, false, number)));
        // Both refer to one copy if it has the same contents.
        page.cached = Some((frame, copy)).filter(|_| page.child_copy == Some(copy));
    }
}
