//! Idle page tracking: the contents of `/sys/kernel/mm/page_idle/bitmap`, which few kernels have. A page is idle from
//! its marking until its next access; the engine's secondary-MMU interface reports, and clears, the access.

use crate::objects;
use crate::process_host::large_page;
use slat::{Hva, Idle, PAGE_SIZE, SecondaryMmu, Span, Young};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

/// Pages that were marked, and not found accessed since; in words of 64.
static MARKED: LazyLock<Mutex<HashMap<u64, u64>>> = LazyLock::new(Mutex::default);

/// Forgets the marks of those of these pages that a guest has accessed since the last call. The pages of a large page
/// share its Accessed bit, and their marks go together.
fn forget_accessed(marked: &mut HashMap<u64, u64>, word: u64, pages: u64) {
    let Some(mut idle) = Idle::take() else { return };
    for machine in objects::machines() {
        for bit in (0..64).filter(|bit| pages >> bit & 1 != 0) {
            let hvas = Span::sized(Hva((word * 64 + bit) * PAGE_SIZE), PAGE_SIZE);
            if machine.vm().young(&mut idle, hvas, Young::Clear) {
                machine.vm().forget(&mut idle, hvas);
                let all = large_page(hvas.start).unwrap_or(hvas);
                for page in all.start.0 / PAGE_SIZE..all.end.0 / PAGE_SIZE {
                    marked.entry(page / 64).and_modify(|marks| *marks &= !(1 << (page % 64)));
                }
            }
        }
    }
}

/// Returns which of 64 pages are idle, one bit each.
pub fn read(word: u64) -> u64 {
    let mut marked = MARKED.lock().unwrap();
    let pages = marked.get(&word).copied().unwrap_or(0);
    forget_accessed(&mut marked, word, pages);
    marked.get(&word).copied().unwrap_or(0)
}

/// Marks some of 64 pages.
pub fn mark(word: u64, pages: u64) {
    let mut marked = MARKED.lock().unwrap();
    forget_accessed(&mut marked, word, pages);
    *marked.entry(word).or_default() |= pages;
}
