//! Where memslots can be, and what is behind them.
//!
//! ```text
//! guest frames   [0: eight windows of 64 pages][512: two more, and nothing][1024 [1536 [2048: windows of 2 MiB]  [1 GiB: one more]
//! host pages     [region 0: eight slots of 64 pages][region 1][2][3][4]: one slot each, or one huge page
//! ```
//! Memslots of 64 pages share a leaf table; those of 2 MiB have one each, and may be mapped by one leaf. Guests use a few
//! pages of each window, at its edges and inside.

use slat::{Gfn, Level, SlotId, Span};

/// Pages of a host region, and of a large window.
pub const REGION: u64 = Level::M2.pages();
/// Regions of the host.
pub const REGIONS: u64 = 5;
/// Pages of a small window.
pub const SMALL: u64 = 64;
/// Memslots of 64 pages; they have the numbers below this. Large ones have the next ones.
pub const SMALL_SLOTS: u32 = 8;
/// All memslots that there can be.
pub const SLOTS: u32 = SMALL_SLOTS + REGIONS as u32 - 1;
/// First frames of windows: of the small ones, then of the large ones.
pub const WINDOWS: [u64; 14] = [0, 64, 128, 192, 256, 320, 384, 448, 512, 960, 1024, 1536, 2048, 1 << 18];
/// The first large window.
pub const FIRST_LARGE: usize = 10;
/// Pages of a window that guests use: at both edges and inside.
pub const USED: usize = 8;

/// Pages of a window.
pub fn pages(window: usize) -> u64 {
    if window < FIRST_LARGE { SMALL } else { REGION }
}

/// The frames of a window.
pub fn frames(window: usize) -> Span<Gfn> {
    Span::sized(Gfn(WINDOWS[window]), pages(window))
}

/// The `nth` page of so many that guests use.
pub fn used(nth: usize, of: u64) -> u64 {
    [0, 1, 2, 3, of / 2 + 3, of / 2 + 4, of - 2, of - 1][nth]
}

/// The window that holds a frame.
pub fn window_of(gfn: Gfn) -> Option<usize> {
    (0..WINDOWS.len()).find(|&window| frames(window).contains(gfn))
}

/// Whether the memslot fits into the window.
pub fn fits(slot: u32, window: usize) -> bool {
    (slot < SMALL_SLOTS) == (window < FIRST_LARGE)
}

/// The host's first page behind a memslot.
pub fn host_page(slot: u32) -> u64 {
    if slot < SMALL_SLOTS { u64::from(slot) * SMALL } else { u64::from(slot - SMALL_SLOTS + 1) * REGION }
}

/// Every host page that guests use.
pub fn host_pages() -> impl Iterator<Item = u64> {
    (0..SLOTS).flat_map(|slot| {
        let of = if slot < SMALL_SLOTS { SMALL } else { REGION };
        (0..USED).map(move |nth| host_page(slot) + used(nth, of))
    })
}

/// The memslot of a number.
pub fn slot(number: u32, window: usize, host: slat::Hva) -> slat::Slot {
    slat::Slot::new(SlotId(number), Gfn(WINDOWS[window]), pages(window), host)
}
