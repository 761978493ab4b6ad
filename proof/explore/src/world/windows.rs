//! Windows of guest memory, and the memslot in each, as far as it is determined while transactions are in progress.

use crate::plan::layout::{self, WINDOWS};
use slat::Gfn;
use std::cell::RefCell;

/// A window.
#[derive(Clone, Default)]
pub(super) struct Window {
    /// The memslot in it; several candidates during a transaction.
    pub(super) may: Vec<Option<u32>>,
    /// The last step at which the window may have been empty, if it has a memslot now.
    pub(super) empty_at: u64,
    /// True while a transaction concerns the window.
    pub(super) busy: bool,
}

/// All windows, and the memslots that log.
pub struct Windows {
    pub(super) all: RefCell<Vec<Window>>,
    /// By number: true if pages of the memslot were logged since its last full copy.
    pub(super) logs: RefCell<[bool; layout::SLOTS as usize]>,
}

impl Windows {
    /// All windows empty.
    pub fn new() -> Self {
        let empty = Window { may: vec![None], ..Window::default() };
        Self { all: RefCell::new(vec![empty; WINDOWS.len()]), logs: RefCell::default() }
    }

    /// The host pages that a frame may stand for, as page `page` of a window.
    pub fn pages(&self, window: usize, page: u64) -> Vec<u64> {
        let all = self.all.borrow();
        all[window].may.iter().flatten().map(|&slot| layout::host_page(slot) + page).collect()
    }

    /// The frame of a host page, if its memslot is in a window and no transaction concerns it.
    pub fn frame_of(&self, page: u64) -> Option<Gfn> {
        let slot = layout::slot_of(page)?;
        Some(Gfn(WINDOWS[self.settled(slot)?] + page - layout::host_page(slot)))
    }

    /// Returns whether a frame may have been outside of all memslots at any step since `from`.
    pub fn was_empty(&self, gfn: Gfn, from: u64) -> bool {
        let Some(window) = layout::window_of(gfn) else { return true };
        let window = &self.all.borrow()[window];
        window.may.contains(&None) || window.empty_at >= from
    }

    /// The windows that may contain a memslot, and the others.
    pub fn by_use(&self) -> (Vec<usize>, Vec<usize>) {
        let all = self.all.borrow();
        (0..all.len()).partition(|&window| all[window].may.iter().any(Option::is_some))
    }

    /// Returns whether a memslot was ever in a window.
    pub(super) fn where_is(&self, slot: u32) -> Option<usize> {
        self.all.borrow().iter().position(|window| window.may.contains(&Some(slot)))
    }

    pub(super) fn is_free(&self, window: usize) -> bool {
        let window = &self.all.borrow()[window];
        window.may == [None] && !window.busy
    }

    /// The window of a memslot, if no transaction concerns it.
    pub(super) fn settled(&self, slot: u32) -> Option<usize> {
        self.where_is(slot).filter(|&window| !self.all.borrow()[window].busy)
    }

    /// The memslots that log and are in a window.
    pub fn logging(&self) -> Vec<u32> {
        let logs = *self.logs.borrow();
        (0..layout::SLOTS).filter(|&slot| logs[slot as usize] && self.where_is(slot).is_some()).collect()
    }
}
