//! The places of memslots, and the host pages behind them.
//!
//! ```text
//! guest frames   [0: eight windows of 64 pages][512: two more, and nothing][1024 [1536 [2048: windows of 2 MiB]  [1 GiB: one more]
//! host pages     [region 0: eight slots of 64 pages][region 1][2][3][4]: one slot each, or one huge page
//! ```
//! Memslots of 64 pages share a leaf table. Memslots of 2 MiB have one each, and one leaf entry may map them. Guests
//! use a few pages of each window, at its edges and inside.

use slat::{Gfn, Level, SlotId, Span};

/// Pages per host region, and per large window.
pub const REGION: u64 = Level::M2.pages();
/// Host regions.
pub const REGIONS: u64 = 5;
/// Pages per small window.
pub const SMALL: u64 = 64;
/// Number of memslots of 64 pages. Their numbers are below this; large memslots follow.
pub const SMALL_SLOTS: u32 = 8;
/// Maximum number of memslots.
pub const SLOTS: u32 = SMALL_SLOTS + REGIONS as u32 - 1;
/// First frames of the small windows, then of the large ones.
pub const WINDOWS: [u64; 14] = [0, 64, 128, 192, 256, 320, 384, 448, 512, 960, 1024, 1536, 2048, 1 << 18];
/// The first large window.
pub const FIRST_LARGE: usize = 10;
/// Pages of a window that guests use: at both edges and inside.
pub const USED: usize = 8;

/// Number of pages of a window.
pub fn pages(window: usize) -> u64 {
    if window < FIRST_LARGE { SMALL } else { REGION }
}

/// The frames of a window.
pub fn frames(window: usize) -> Span<Gfn> {
    Span::sized(Gfn(WINDOWS[window]), pages(window))
}

/// The `nth` page that guests use, of this many.
pub fn used(nth: usize, of: u64) -> u64 {
    [0, 1, 2, 3, of / 2 + 3, of / 2 + 4, of - 2, of - 1][nth]
}

/// The window that contains a frame.
pub fn window_of(gfn: Gfn) -> Option<usize> {
    (0..WINDOWS.len()).find(|&window| frames(window).contains(gfn))
}

/// Returns whether the memslot fits into the window.
pub fn fits(slot: u32, window: usize) -> bool {
    (slot < SMALL_SLOTS) == (window < FIRST_LARGE)
}

/// The `nth` frame of a window that guests use.
pub fn frame(window: usize, nth: usize) -> Gfn {
    Gfn(WINDOWS[window] + used(nth, pages(window)))
}

/// The first host page behind a memslot.
pub fn host_page(slot: u32) -> u64 {
    if slot < SMALL_SLOTS { u64::from(slot) * SMALL } else { u64::from(slot - SMALL_SLOTS + 1) * REGION }
}

/// The memslot of a host page.
pub fn slot_of(page: u64) -> Option<u32> {
    (0..SLOTS).find(|&slot| (host_page(slot)..host_page(slot) + pages_of(slot)).contains(&page))
}

/// The host pages among these that guests use.
pub fn used_in(pages: &std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    let of_slot = |slot| (0..USED).map(move |nth| host_page(slot) + used(nth, pages_of(slot)));
    (0..SLOTS).flat_map(of_slot).filter(|page| pages.contains(page))
}

/// Number of host pages behind a memslot.
pub fn pages_of(slot: u32) -> u64 {
    if slot < SMALL_SLOTS { SMALL } else { REGION }
}

/// The host pages behind a memslot that guests use.
pub fn used_pages(slot: u32) -> impl Iterator<Item = u64> {
    (0..USED).map(move |nth| host_page(slot) + used(nth, pages_of(slot)))
}

/// The memslot with this number.
pub fn slot(number: u32, window: usize, host: slat::Hva) -> slat::Slot {
    slat::Slot::new(SlotId(number), Gfn(WINDOWS[window]), pages(window), host)
}
