//! Idle page tracking: the contents of `/sys/kernel/mm/page_idle/bitmap`, which few kernels have. A page is idle from
//! its marking until its next access; the engine's secondary-MMU interface reports, and clears, the access.

use crate::objects;
use slat::{Hva, Idle, PAGE_SIZE, SecondaryMmu, Span, Young};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

/// Pages that were marked, and not found accessed since; in words of 64.
static MARKED: LazyLock<Mutex<HashMap<u64, u64>>> = LazyLock::new(Mutex::default);

/// Returns which of these pages a guest has accessed since the last call.
fn accessed(word: u64, pages: u64) -> u64 {
    let Some(mut idle) = Idle::take() else { return 0 };
    let mut accessed = 0;
    for machine in objects::machines() {
        for bit in (0..64).filter(|bit| pages >> bit & 1 != 0) {
            let hvas = Span::sized(Hva((word * 64 + bit) * PAGE_SIZE), PAGE_SIZE);
            if machine.vm().young(&mut idle, hvas, Young::Clear) {
                accessed |= 1 << bit;
                machine.vm().forget(&mut idle, hvas);
            }
        }
    }
    accessed
}

/// Returns which of 64 pages are idle, one bit each.
pub fn read(word: u64) -> u64 {
    let mut marked = MARKED.lock().unwrap();
    let pages = marked.entry(word).or_default();
    *pages &= !accessed(word, *pages);
    *pages
}

/// Marks some of 64 pages.
pub fn mark(word: u64, pages: u64) {
    accessed(word, pages);
    *MARKED.lock().unwrap().entry(word).or_default() |= pages;
}
