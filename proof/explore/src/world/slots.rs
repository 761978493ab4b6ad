//! Transactions of memslots, and what they do to the windows.

use super::{World, primary_mmu};
use crate::plan::layout::{self, WINDOWS};
use crate::plan::op::Op;
use slat::slots::{SlotError, Transaction};
use slat::{Format, Gfn, Idle, SlotId};

impl<F: Format> World<'_, F> {
    /// Runs a transaction after which `after` lists the contents of some windows. Returns whether it was committed.
    fn change_slots(
        &self,
        idle: &mut Idle,
        after: &[(usize, Option<u32>)],
        operations: impl FnOnce(&mut Transaction<'_>) -> Result<(), SlotError>,
    ) -> bool {
        for &(window, slot) in after {
            let window = &mut self.windows.all.borrow_mut()[window];
            window.may.push(slot);
            window.busy = true;
        }
        let done = self.vm.memory().commit(idle, operations);
        for &(window, _) in after {
            let step = self.steps();
            let window = &mut self.windows.all.borrow_mut()[window];
            if window.may.contains(&None) {
                window.empty_at = step;
            }
            let kept = if done.is_ok() { window.may.len() - 1 } else { 0 };
            window.may = vec![window.may[kept]];
            window.busy = false;
        }
        self.story(|| format!("  transaction: {done:?}"));
        self.check();
        done.is_ok()
    }

    /// Creates a memslot.
    pub fn create(&self, idle: &mut Idle, slot: u32, window: usize, logs: bool) {
        let fits = layout::fits(slot, window) && self.windows.where_is(slot).is_none();
        if !fits || !self.windows.is_free(window) {
            return;
        }
        let made = layout::slot(slot, window, primary_mmu::hva(layout::host_page(slot)));
        let made = if logs { made.log_dirty() } else { made };
        self.windows.logs.borrow_mut()[slot as usize] = false;
        if self.change_slots(idle, &[(window, Some(slot))], |tx| tx.create(made)) && logs {
            self.begins_to_log(slot);
        }
    }

    /// Performs an operation on memslots. Returns `None` where it cannot be done now.
    pub fn slots_op(&self, idle: &mut Idle, op: &Op) -> Option<()> {
        let windows = &self.windows;
        match *op {
            Op::Create(slot, window) => self.create(idle, slot, window, false),
            Op::Delete(slot) => {
                let from = windows.settled(slot)?;
                let ends = std::mem::take(&mut windows.logs.borrow_mut()[slot as usize]);
                if !self.change_slots(idle, &[(from, None)], |tx| tx.delete(SlotId(slot)).map(drop)) {
                    windows.logs.borrow_mut()[slot as usize] = ends;
                }
            }
            Op::Move(slot, to) => {
                let from = windows.settled(slot)?;
                if !windows.is_free(to) || !layout::fits(slot, to) {
                    return None;
                }
                self.change_slots(idle, &[(from, None), (to, Some(slot))], |tx| {
                    tx.move_to(SlotId(slot), Gfn(WINDOWS[to])).map(drop)
                });
            }
            Op::Exchange(one, other) => {
                let (here, there) = (windows.settled(one)?, windows.settled(other)?);
                if here == there || layout::pages(here) != layout::pages(there) {
                    return None;
                }
                self.change_slots(idle, &[(here, Some(other)), (there, Some(one))], |tx| {
                    tx.move_to(SlotId(one), Gfn(1 << 19))?;
                    tx.move_to(SlotId(other), Gfn(WINDOWS[here]))?;
                    tx.move_to(SlotId(one), Gfn(WINDOWS[there])).map(drop)
                });
            }
            Op::Log(slot, on) => {
                let at = windows.settled(slot)?;
                let logged = windows.logs.borrow()[slot as usize];
                if !on {
                    windows.logs.borrow_mut()[slot as usize] = false;
                }
                let here = self.windows.all.borrow()[at].may[0];
                let done =
                    self.change_slots(idle, &[(at, here)], |tx| tx.set_log_dirty(SlotId(slot), on).map(drop));
                if done && on && !logged {
                    self.begins_to_log(slot);
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Starts the log of a memslot and copies its contents. No other transaction concerns it meanwhile.
    fn begins_to_log(&self, slot: u32) {
        let Some(at) = self.windows.where_is(slot) else { return };
        self.windows.all.borrow_mut()[at].busy = true;
        for page in layout::used_pages(slot) {
            slat_machine::pause();
            self.copied(page);
        }
        self.windows.logs.borrow_mut()[slot as usize] = true;
        self.windows.all.borrow_mut()[at].busy = false;
    }
}
