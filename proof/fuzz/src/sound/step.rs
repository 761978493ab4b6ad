//! Steps, each with arguments that are likely to matter, or that no client would pass.

use crate::Input;
use crate::vm::plain_host::{PAGES, hva};
use slat::slots::Region;
use slat::{Access, Gfn, Gpa, Hva, Level, Reason, Slot, SlotId, SpaceId, Span, Young};

/// Number of VMs, of vCPUs of each, of address spaces of each, and of processors.
pub(super) const TWO: usize = 2;

/// Ids of slots are mostly below this.
const IDS: u32 = 4;

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Number of callbacks until one panics; none at 0.
    pub fuse: u32,
    /// The engine call that the host makes when it is asked for a page.
    pub nested: Option<Nested>,
    /// The operation by which vCPUs that were left in the guest come back.
    pub back: Back,
    pub what: What,
}

/// A call of the engine from inside a fault.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    pub vm: usize,
    pub what: u8,
    pub gfn: Gfn,
    pub pages: Span<Gfn>,
    pub slot: Slot,
    pub flag: bool,
}

/// The operation by which a vCPU with a leaked guard comes back.
#[derive(Clone, Copy, Debug)]
pub enum Back {
    Prefault(Gfn),
    Enter,
    Drop,
}

/// The end of a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Properly.
    Proper,
    /// By a drop.
    Dropped,
    /// By a leak.
    Leaked,
    /// Later.
    Kept,
}

#[derive(Clone, Debug)]
pub enum What {
    Fault {
        vm: usize,
        vcpu: usize,
        gpa: Gpa,
        access: Access,
    },
    Prefault {
        vm: usize,
        vcpu: usize,
        gfns: Span<Gfn>,
    },
    /// The guest uses frames, on one of the processors.
    Enter {
        vm: usize,
        vcpu: usize,
        cpu: usize,
        gfn: Gfn,
        answers: bool,
        end: End,
    },
    Switch {
        vm: usize,
        vcpu: usize,
        space: SpaceId,
    },
    /// Gives back or loses a vCPU's number, and takes it again if possible.
    Number {
        vm: usize,
        vcpu: usize,
        end: End,
    },
    /// The host takes pages away.
    TakeBack {
        vm: usize,
        pages: Span<Gfn>,
        why: Reason,
        to_nothing: bool,
        debt: End,
        end: End,
    },
    Told {
        vm: usize,
        pages: Span<Gfn>,
        may_block: bool,
        to_nothing: bool,
    },
    InvalidateGfns {
        vm: usize,
        gfns: Span<Gfn>,
        why: Reason,
        end: End,
    },
    InvalidateHvas {
        vm: usize,
        hvas: Span<Hva>,
        why: Reason,
        end: End,
    },
    /// Ends a kept invalidation.
    EndOne {
        nth: usize,
        end: End,
    },
    Create {
        vm: usize,
        space: usize,
        slot: Slot,
    },
    Delete {
        vm: usize,
        space: usize,
        id: SlotId,
    },
    Move {
        vm: usize,
        space: usize,
        id: SlotId,
        gfn: Gfn,
    },
    Log {
        vm: usize,
        space: usize,
        id: SlotId,
        on: bool,
    },
    Set {
        vm: usize,
        space: usize,
        region: Region,
    },
    Harvest {
        vm: usize,
        space: usize,
        kind: u8,
        id: SlotId,
        end: End,
    },
    EndHarvest {
        end: End,
    },
    MarkDirty {
        vm: usize,
        space: usize,
        gfns: Span<Gfn>,
        hvas: Span<Hva>,
    },
    ClearDirty {
        vm: usize,
        space: usize,
        id: SlotId,
        first: u64,
        pages: u64,
        words: usize,
    },
    DirtyBits {
        vm: usize,
        space: usize,
        id: SlotId,
        words: usize,
    },
    WriteProtect {
        vm: usize,
        gfns: Span<Gfn>,
        in_a_walk: bool,
        end: End,
    },
    Split {
        vm: usize,
        gfns: Span<Gfn>,
        to: Level,
    },
    Recover {
        vm: usize,
        gfns: Span<Gfn>,
    },
    Age {
        vm: usize,
        gfns: Span<Gfn>,
        hvas: Span<Hva>,
        young: Young,
    },
    ZapAll {
        vm: usize,
    },
    Collect {
        vm: usize,
    },
    Budget {
        vm: usize,
        bytes: u64,
    },
    Look {
        vm: usize,
        space: usize,
        gfn: Gfn,
        hint: usize,
        gfns: Span<Gfn>,
        hvas: Span<Hva>,
    },
    /// A section that never ends.
    LeakSection {
        vm: usize,
        space: usize,
        snapshot: bool,
    },
}

const EAGER: [Reason; 5] = [Reason::Unmap, Reason::Clear, Reason::Migrate, Reason::Remap, Reason::Exit];

impl Step {
    pub fn next(input: &mut Input<'_>, frames: u64) -> Self {
        let what = What::next(input, frames);
        let fuse = if input.below(6) == 5 { 1 + input.below(6) as u32 } else { 0 };
        let nested = (input.below(4) == 3).then(|| Nested {
            vm: input.below(TWO as u64) as usize,
            what: input.below(16) as u8,
            gfn: a_gfn(input, frames),
            pages: pages(input),
            slot: some_slot(input, frames),
            flag: input.flag(),
        });
        let back = match input.below(3) {
            0 => Back::Prefault(a_gfn(input, frames)),
            1 => Back::Enter,
            _ => Back::Drop,
        };
        Self { fuse, nested, back, what }
    }
}

impl What {
    #[allow(clippy::too_many_lines, reason = "one line for each step")]
    fn next(input: &mut Input<'_>, frames: u64) -> Self {
        let kind = input.below(48);
        let [vm, vcpu, space] = [0; 3].map(|_| input.below(TWO as u64) as usize);
        let id = an_id(input);
        match kind {
            0..10 => {
                let access = input.pick(&[Access::Write, Access::Read, Access::Fetch]);
                let gpa = if input.below(8) == 7 { Gpa(input.word()) } else { a_gfn(input, frames).gpa() };
                Self::Fault { vm, vcpu, gpa, access }
            }
            10..13 => Self::Prefault { vm, vcpu, gfns: gfns(input, frames) },
            13..20 => {
                let (cpu, gfn) = (input.below(TWO as u64) as usize, a_gfn(input, frames));
                Self::Enter { vm, vcpu, cpu, gfn, answers: input.flag(), end: end(input) }
            }
            20 => Self::Switch { vm, vcpu, space: SpaceId(input.pick(&[1, 0, 2, 255])) },
            21 | 22 => Self::Number { vm, vcpu, end: end(input) },
            23..27 => {
                let (pages, why) = (pages(input), input.pick(&EAGER));
                Self::TakeBack { vm, pages, why, to_nothing: input.flag(), debt: end(input), end: end(input) }
            }
            27 => Self::Told { vm, pages: pages(input), may_block: input.flag(), to_nothing: input.flag() },
            28 => {
                let (gfns, why) = (gfns(input, frames), input.pick(&Reason::ALL));
                Self::InvalidateGfns { vm, gfns, why, end: end(input) }
            }
            29 => {
                let (hvas, why) = (hvas(input), input.pick(&Reason::ALL));
                Self::InvalidateHvas { vm, hvas, why, end: end(input) }
            }
            30 => Self::EndOne { nth: input.below(8) as usize, end: end(input) },
            31 | 32 => Self::Create { vm, space, slot: a_slot(input, id.0, frames) },
            33 => Self::Delete { vm, space, id },
            34 => Self::Move { vm, space, id, gfn: a_gfn(input, frames) },
            35 => Self::Log { vm, space, id, on: input.below(4) != 0 },
            36 => {
                let (gpa, hva) = (Gpa(edge(input)), Hva(edge(input)));
                let region = Region { slot: id, flags: input.below(8) as u32, gpa, bytes: edge(input), hva };
                Self::Set { vm, space, region }
            }
            37 => Self::Harvest { vm, space, kind: input.below(3) as u8, id, end: end(input) },
            38 if input.flag() => Self::EndHarvest { end: end(input) },
            38 => Self::MarkDirty { vm, space, gfns: gfns(input, frames), hvas: hvas(input) },
            39 => {
                let (first, pages) = (edge(input), edge(input));
                Self::ClearDirty { vm, space, id, first, pages, words: input.below(20) as usize }
            }
            40 if input.flag() => Self::DirtyBits { vm, space, id, words: input.below(20) as usize },
            40 => {
                let gfns = gfns(input, frames);
                Self::WriteProtect { vm, gfns, in_a_walk: input.flag(), end: end(input) }
            }
            41 => {
                let to = Level::new(input.word() as u8).unwrap_or(Level::K4);
                Self::Split { vm, gfns: gfns(input, frames), to }
            }
            42 => Self::Recover { vm, gfns: gfns(input, frames) },
            43 => {
                let young = input.pick(&[Young::Test, Young::Clear, Young::ClearAndFlush]);
                Self::Age { vm, gfns: gfns(input, frames), hvas: hvas(input), young }
            }
            44 => match input.below(4) {
                0 => Self::Budget { vm, bytes: edge(input) },
                1 => Self::LeakSection { vm, space, snapshot: input.flag() },
                2 => Self::Collect { vm },
                _ => Self::ZapAll { vm },
            },
            _ => Self::Look {
                vm,
                space,
                gfn: a_gfn(input, frames),
                hint: input.below(TWO as u64) as usize,
                gfns: gfns(input, frames),
                hvas: hvas(input),
            },
        }
    }
}

fn end(input: &mut Input<'_>) -> End {
    input.pick(&[End::Proper, End::Dropped, End::Leaked, End::Kept])
}

fn an_id(input: &mut Input<'_>) -> SlotId {
    let nth = input.below(8) as u32;
    SlotId(if nth == 7 { u32::MAX } else { nth % IDS })
}

fn some_slot(input: &mut Input<'_>, frames: u64) -> Slot {
    let SlotId(id) = an_id(input);
    a_slot(input, id, frames)
}

/// Draws a number at an edge.
fn edge(input: &mut Input<'_>) -> u64 {
    let edge = input.pick(&[0, 64, 512, 1 << 12, 1 << 18, 1 << 21, 1 << 39, 1 << 52, 1 << 63, u64::MAX]);
    let beside = input.pick(&[0, 1, 2, 63]);
    if input.flag() { edge.wrapping_sub(beside) } else { edge.wrapping_add(beside) }
}

/// Draws a frame: mostly one of the first.
pub fn a_gfn(input: &mut Input<'_>, frames: u64) -> Gfn {
    let most = u64::MAX >> 12;
    Gfn(match input.below(12) {
        0..6 => input.pick(&[5, 0, 1, 7, 8, 63]),
        6..10 => input.pick(&[511, 512, 513, 1023, 1024, 1536]),
        10 => input.pick(&[frames - 1, frames, frames / 2, 1 << 18]),
        _ => edge(input).min(most),
    })
}

fn gfns(input: &mut Input<'_>, frames: u64) -> Span<Gfn> {
    let span = span(input, |input| a_gfn(input, frames).0);
    Span::new(Gfn(span.0), Gfn(span.1))
}

fn hvas(input: &mut Input<'_>) -> Span<Hva> {
    let (start, end) = span(input, |input| match input.below(4) {
        3 => edge(input),
        _ => hva(a_gfn(input, PAGES).0.min(PAGES)).0 + input.pick(&[0, 0, 1, 4095]),
    });
    Span::new(Hva(start), Hva(end))
}

/// Draws a range between two places, or of a length.
fn span(input: &mut Input<'_>, mut place: impl FnMut(&mut Input<'_>) -> u64) -> (u64, u64) {
    let start = place(input);
    let end = match input.below(4) {
        0 => place(input),
        _ => start.saturating_add(input.pick(&[1, 0, 2, 64, 512, 1025])),
    };
    (start, end)
}

/// Draws pages of the host.
fn pages(input: &mut Input<'_>) -> Span<Gfn> {
    let start = a_gfn(input, PAGES).0.min(PAGES - 1);
    Span::new(Gfn(start), Gfn((start + input.pick(&[1, 2, 8, 512])).min(PAGES)))
}

/// Draws a slot: mostly a valid one.
pub fn a_slot(input: &mut Input<'_>, id: u32, frames: u64) -> Slot {
    let gfn = a_gfn(input, frames);
    let sizes = [8, 1, 512, 513, 1024, 64, 2048];
    let pages = if input.below(16) == 15 { edge(input) } else { input.pick(&sizes) };
    let place = gfn.0 % (1 << 18) + input.pick(&[0, 512, 1]);
    let place = if input.below(16) == 15 { Hva(edge(input)) } else { hva(place) };
    let (readonly, log_dirty) = (input.below(8) == 7, input.below(4) == 3);
    let gfns = Span::new(gfn, Gfn(gfn.0.wrapping_add(pages)));
    Slot { readonly, log_dirty, gfns, ..Slot::new(SlotId(id), gfn, 0, place) }
}
