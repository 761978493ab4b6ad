//! Draws steps: places at the edges of tables, slots and words, and ranges between them.

use super::model::Space;
use super::plain_host::{PAGES, hva, number};
use crate::Input;
use slat::{Access, Gfn, Hva, Level, PAGE_SIZE, Reason, Slot, SlotId, Span};

/// Ids of slots are below this.
pub const IDS: u32 = 4;

/// New state of a host page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// The page is removed.
    Nothing,
    /// Its contents are in another, writable frame.
    Elsewhere,
    /// The same, but read-only.
    Copy,
    /// The same frame, read-only.
    ReadOnly,
    /// The same frame, or a new one where there was none, which may be written.
    Writable,
}

/// A step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The guest accesses pages, one after the other.
    Access {
        space: usize,
        gfn: u64,
        pages: u64,
        access: Access,
    },
    /// The host begins an invalidation, and changes nothing.
    Invalidate {
        hvas: Span<Hva>,
        why: Reason,
    },
    InvalidateGfns {
        gfns: Span<Gfn>,
        why: Reason,
    },
    /// The host changes pages, at once or page by page, as the reason requires.
    Change {
        pages: Span<Gfn>,
        why: Reason,
        to: To,
    },
    /// The host allows writes, or has a page again. No VM needs a notification.
    Grant {
        pages: Span<Gfn>,
    },
    /// It makes large pages of small ones.
    Restore {
        pages: Span<Gfn>,
    },
    Create {
        space: usize,
        slot: Slot,
    },
    Delete {
        space: usize,
        id: u32,
    },
    Move {
        space: usize,
        id: u32,
        gfn: u64,
    },
    Log {
        space: usize,
        id: u32,
        on: bool,
    },
    Harvest {
        space: usize,
        id: u32,
        commit: bool,
    },
    HarvestAll {
        space: usize,
        commit: bool,
    },
    Clear {
        space: usize,
        id: u32,
        first: u64,
        pages: u64,
        bits: Vec<u64>,
    },
    Device {
        space: usize,
        gfns: Span<Gfn>,
    },
    DeviceByHost {
        hvas: Span<Hva>,
    },
    WriteProtect {
        gfns: Span<Gfn>,
    },
    Split {
        gfns: Span<Gfn>,
        to: Level,
    },
    Recover {
        gfns: Span<Gfn>,
    },
    Age {
        gfns: Span<Gfn>,
    },
    ZapAll,
}

const AT_BEGIN: [Reason; 9] = [
    Reason::Clear,
    Reason::Unmap,
    Reason::Protect,
    Reason::Migrate,
    Reason::WriteProtect,
    Reason::SoftDirty,
    Reason::Remap,
    Reason::Exit,
    Reason::Slot,
];
const PAGE_BY_PAGE: [Reason; 3] = [Reason::ChangePte, Reason::Numa, Reason::Reclaim];
/// Of spans: around a word of a log, a table, and two.
const LENGTHS: [u64; 10] = [1, 2, 3, 63, 64, 65, 511, 512, 513, 1025];
/// Of slots; those of more pages than [`LOGGED`] begin without a log.
const SIZES: [u64; 10] = [1537, 513, 1024, 65, 512, 1, 64, 511, 1 << 18, (1 << 18) + 513];
/// The largest slot that is logged here, in pages: every one of them is a leaf then.
pub const LOGGED: u64 = 2048;
/// The most pages that change, or are split, in one step.
const AT_ONCE: u64 = 1025;

impl Step {
    /// Draws the next step for the current state.
    pub fn next(input: &mut Input<'_>, spaces: &[Space; 2]) -> Self {
        let kind = input.below(28);
        let space = usize::from(input.below(4) == 3);
        let id = an_id(input, &spaces[space], matches!(kind, 14 | 15));
        let slot = spaces[space].slots.get(&id);
        let near = |input: &mut Input<'_>| near(input, &spaces[space], slot);
        match kind {
            0..8 => {
                let access = input.pick(&[Access::Write, Access::Read, Access::Fetch]);
                Self::Access { space, gfn: near(input), pages: input.pick(&[1, 70, 1, 2]), access }
            }
            8 => {
                let (page, len) = (host_page(input, slot), length(input, 1 << 19));
                Self::Invalidate { hvas: bytes(input, page, len), why: input.pick(&AT_BEGIN) }
            }
            9 => Self::InvalidateGfns { gfns: gfns(input, near, 1 << 19), why: input.pick(&AT_BEGIN) },
            10 | 11 => {
                let page = host_page(input, slot);
                let pages = Span::new(Gfn(page), Gfn((page + length(input, AT_ONCE)).min(PAGES)));
                let why = if input.flag() { input.pick(&PAGE_BY_PAGE) } else { input.pick(&AT_BEGIN[..6]) };
                Self::Change { pages, why, to: to(input, why) }
            }
            12 => {
                let page = host_page(input, slot);
                let pages = Span::new(Gfn(page), Gfn((page + length(input, AT_ONCE)).min(PAGES)));
                Self::Grant { pages }
            }
            13 => {
                let level = input.pick(&[Level::M2, Level::G1]);
                Self::Restore { pages: Span::sized(Gfn(host_page(input, slot)).base(level), level.pages()) }
            }
            14 | 15 => Self::Create { space, slot: new_slot(input, id, 1 << spaces[space].rules.frame_bits) },
            16 => Self::Delete { space, id },
            17 => Self::Move { space, id, gfn: near(input) },
            18 => Self::Log { space, id, on: input.below(4) != 0 },
            19 => Self::Harvest { space, id, commit: input.flag() },
            20 if input.flag() => Self::HarvestAll { space, commit: input.flag() },
            20 => Self::ZapAll,
            21 => {
                let first = input.pick(&[0, 64, 448, 512, 1, 4096]);
                let pages = input.pick(&[64, 1, 0, 512, 576, 1 << 12]).min(LOGGED);
                let all = slot.map_or(0, |slot| slot.gfns.len());
                let pages = if input.flag() { all.saturating_sub(first).min(LOGGED) } else { pages };
                let bits = (0..pages.div_ceil(64)).map(|_| input.word()).collect();
                Self::Clear { space, id, first, pages, bits }
            }
            22 if input.flag() => Self::Device { space, gfns: gfns(input, near, AT_ONCE) },
            22 => {
                let (page, len) = (host_page(input, slot), length(input, AT_ONCE));
                Self::DeviceByHost { hvas: bytes(input, page, len) }
            }
            23 => Self::WriteProtect { gfns: gfns(input, near, 1 << 19) },
            24 => match input.below(4) {
                0 => Self::Split { gfns: gfns(input, near, 1 << 19), to: Level::M2 },
                _ => Self::Split { gfns: gfns(input, near, AT_ONCE), to: Level::K4 },
            },
            25 => Self::Recover { gfns: gfns(input, near, 1 << 19) },
            _ => Self::Age { gfns: gfns(input, near, 1 << 19) },
        }
    }
}

/// Draws an id: mostly of an existing slot.
fn an_id(input: &mut Input<'_>, space: &Space, fresh: bool) -> u32 {
    let nth = input.below(8) as usize;
    let ids = (0..IDS).filter(|id| space.slots.contains_key(id) != fresh || nth == 7);
    ids.clone().nth(nth % ids.count().max(1)).unwrap_or(0)
}

/// Draws a frame at an edge of the slot, or of a table in it, or just outside; without a slot, at an edge of the space.
fn near(input: &mut Input<'_>, space: &Space, slot: Option<&Slot>) -> u64 {
    let frames = 1 << space.rules.frame_bits;
    let Some(slot) = slot else { return edge(input, frames) };
    let (first, len) = (slot.gfns.start.0, slot.gfns.len());
    let table = slot.gfns.start.base(Level::M2).0 + 512;
    match input.below(16) {
        0..4 => first,
        4 => first + 1,
        5 => first + len - 1,
        6 => first + len,
        7 => first.saturating_sub(1),
        8 => table,
        9 => table - 1,
        10 => table + 512,
        11 => first + 63,
        12 => first + 64,
        13 => first + len / 2,
        14 => first + input.below(len),
        _ => edge(input, frames),
    }
}

/// Draws a frame at an edge of tables of some level.
fn edge(input: &mut Input<'_>, frames: u64) -> u64 {
    let edge = input.pick(&[0, 512, 1024, 1 << 18, 1 << 19, 1 << 27, frames]);
    let beside = input.pick(&[0, 1, 2, 64, 511, 512, 513, 1024]);
    let gfn = if input.flag() { edge.saturating_sub(beside) } else { edge + beside };
    gfn.min(frames)
}

fn length(input: &mut Input<'_>, most: u64) -> u64 {
    match input.below(12) {
        nth @ 0..10 => LENGTHS[nth as usize],
        10 => 1 << 18,
        _ => 1 << 19,
    }
    .min(most)
}

fn gfns(input: &mut Input<'_>, near: impl Fn(&mut Input<'_>) -> u64, most: u64) -> Span<Gfn> {
    let first = near(input);
    Span::sized(Gfn(first), length(input, most))
}

/// Draws a page of the host: mostly one of the slot.
fn host_page(input: &mut Input<'_>, slot: Option<&Slot>) -> u64 {
    let (first, len) = slot.map_or((0, PAGES), |slot| (number(slot.hva), slot.gfns.len()));
    let ahead = input.pick(&[0, 0, 1, 63, 64, 511, 512, 513]);
    let back = input.pick(&[0, 0, len - 1, len / 2]);
    (first + (ahead + back) % (len + 1)).min(PAGES - 1)
}

/// Returns the bytes of `pages` pages, sometimes with partial pages.
fn bytes(input: &mut Input<'_>, page: u64, pages: u64) -> Span<Hva> {
    let end = (page + pages).min(PAGES);
    let (late, early) = (input.pick(&[0, 0, 1, PAGE_SIZE - 1]), input.pick(&[0, 0, 1, PAGE_SIZE - 1]));
    Span::new(hva(page) + late, Hva(hva(end).0 - early))
}

fn to(input: &mut Input<'_>, why: Reason) -> To {
    match why {
        Reason::Protect | Reason::WriteProtect | Reason::SoftDirty => To::ReadOnly,
        Reason::ChangePte => input.pick(&[To::Copy, To::ReadOnly, To::Writable, To::Elsewhere, To::Nothing]),
        _ => input.pick(&[To::Elsewhere, To::Nothing, To::Copy]),
    }
}

pub fn new_slot(input: &mut Input<'_>, id: u32, frames: u64) -> Slot {
    let (gfn, pages) = (edge(input, frames), input.pick(&SIZES));
    // Congruent at some page size, or not at all; two slots may have the same pages.
    let page = gfn % (1 << 18) + input.pick(&[0, 1 << 18, 512, 1]);
    let slot = Slot::new(SlotId(id), Gfn(gfn), pages, hva(page));
    let readonly = input.below(8) == 7;
    Slot { log_dirty: pages <= LOGGED && input.below(4) == 3, readonly, ..slot }
}
