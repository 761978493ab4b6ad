//! Draws a plan from a seed.
//!
//! Each world has a theme, the kind of operation that most of its programs consist of. A few objects that CPUs use at
//! the same time find more mistakes than many objects that they rarely share.

use super::layout::{self, FIRST_LARGE, REGION, REGIONS, SMALL_SLOTS, USED};
use super::op::{Change, Op, Telling};
use super::rounds::Rounds;
use super::schedule::Schedule;
use super::{Cpu, Log, Plan, Role, Tables};
use crate::random::Random;
use slat::{Access, Gfn, Reason, Span};

/// The theme of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Theme {
    /// Memslots that share a leaf table.
    SmallSlots,
    /// Memslots of 2 MiB.
    LargeSlots,
    /// The host's pages.
    Pages,
    /// Write permission of two or three neighbouring pages comes and goes, by changes that overlap, in rounds that all
    /// CPUs begin together.
    Permissions,
    /// Table pages that are freed and used again.
    Tables,
    /// Large pages.
    Huge,
    /// Dirty logs.
    Dirty,
    /// Some of each.
    All,
}

/// The windows of this world: few, so that CPUs meet.
struct Ground {
    theme: Theme,
    windows: Vec<usize>,
    slots: Vec<u32>,
    vcpus: u32,
}

/// Numbers of CPUs with their weights.
const SIZES: &[(u64, u64)] =
    &[(100, 2), (300, 3), (500, 4), (300, 5), (200, 6), (80, 8), (8, 16), (4, 33), (1, 112), (1, 416)];

/// Draws the plan of `seed`: with `cpus` CPUs if that is given, and in rounds if `in_rounds` is true.
pub fn draw(seed: u64, cpus: Option<u64>, in_rounds: bool) -> Plan {
    let mut random = Random::new(seed, 1);
    let drawn = random.weighted(SIZES);
    let theme = random.weighted(&[
        (6, Theme::SmallSlots),
        (2, Theme::LargeSlots),
        (4, Theme::Pages),
        (4, Theme::Permissions),
        (3, Theme::Tables),
        (2, Theme::Huge),
        (6, Theme::Dirty),
        (2, Theme::All),
    ]);
    let theme = if in_rounds { Theme::Permissions } else { theme };
    // Upgrades, and invalidations of their pages and of others: six and more.
    let drawn = if theme == Theme::Permissions { random.within(6, 10) } else { drawn };
    let cpus = cpus.unwrap_or(drawn).max(1);
    // A transaction takes long if another thread holds a snapshot whenever a version is published.
    let holds = matches!(theme, Theme::SmallSlots | Theme::LargeSlots) && !random.once_in(4) && cpus > 2;
    let threads =
        if cpus == 1 { 0 } else { random.within(1 + u64::from(holds), (cpus / 2).clamp(2, 5).min(cpus - 1)) };
    let vcpus = (cpus - threads) as u32;
    let (ground, slots) = ground(&mut random, theme, vcpus);
    let rounds = (theme == Theme::Permissions).then(|| Rounds {
        window: ground.windows[0],
        slot: ground.slots[0],
        pages: random.within(2, 3),
        moves: random.once_in(3),
    });
    let length = if cpus > 16 { 4 } else { random.pick(&[4, 8, 12, 24]) };
    let vcpu = |random: &mut Random, id| Cpu {
        number: id,
        role: Role::Vcpu(id),
        late: if holds && id == 0 { 8 } else { random.pick(&[0, 0, 1, 2, 4]) },
        late_ns: random.pick(&[0, 100, 1000, 10_000]),
        ops: match &rounds {
            Some(rounds) => numbered(rounds.guest(random)),
            None => guest_program(random, &ground, length),
        },
    };
    let mut programs: Vec<Cpu> = (0..vcpus).map(|id| vcpu(&mut random, id)).collect();
    programs.extend((0..threads as u32).map(|thread| Cpu {
        number: vcpus + thread,
        role: Role::Thread,
        late: 0,
        late_ns: 0,
        ops: if let Some(rounds) = &rounds {
            numbered(rounds.thread(&mut random, thread == 0))
        } else if holds && thread > 0 {
            numbered((0..length).map(|_| Op::Hold(random.within(1000, 200_000))).collect())
        } else {
            numbered((0..random.within(1, length)).map(|_| thread_op(&mut random, &ground)).collect())
        },
    }));
    let fails = random.below(16);
    let dear = |random: &mut Random, many: &[u64]| if random.once_in(6) { random.pick(many) } else { 0 };
    let schedule = schedule(&mut random);
    // A lock whose waiters sleep is not fair. CPUs of very different speeds would starve others.
    let parks = matches!(schedule, Schedule::Random { .. } | Schedule::Bursts { .. }) && random.once_in(3);
    Plan {
        seed,
        turn: 0,
        tables: random.pick(&[Tables::Ept4, Tables::Ept4NoAd, Tables::Pae, Tables::Pae]),
        log: log(&mut random),
        budget: budget(&mut random, theme, vcpus),
        nx_huge_pages: random.once_in(8),
        alloc_fails: if fails == 0 { random.pick(&[2, 3, 5, 9]) } else { 0 },
        cas_fails: if fails == 1 { random.pick(&[3, 5, 9]) } else { 0 },
        refuses: dear(&mut random, &[2, 4, 8]),
        silent: dear(&mut random, &[1, 2, 4]),
        breaks: if rounds.is_none() && random.once_in(2) { random.pick(&[1, 2, 4]) } else { 0 },
        host_sleeps_ns: dear(&mut random, &[1000, 20_000]),
        park_after_ns: if parks { 1000 } else { 0 },
        huge: if theme == Theme::Huge || random.once_in(3) { random.number() } else { 0 },
        slots,
        faulty_tlbs: false,
        schedule,
        cpus: programs,
    }
}

fn numbered(ops: Vec<Op>) -> Vec<(u32, Op)> {
    (0..).zip(ops).collect()
}

fn schedule(random: &mut Random) -> Schedule {
    match random.below(13) {
        10.. => Schedule::Places { of: random.pick(&[3, 6, 12]), away: random.pick(&[1000, 5000, 20_000]) },
        0 | 1 => Schedule::Random { long: random.pick(&[5, 20, 100]) },
        2 | 3 => Schedule::Priorities {
            within: random.pick(&[500, 2000, 8000]),
            changes: random.within(1, 12) as u32,
        },
        4 | 5 => Schedule::Decisions {
            once_in: random.pick(&[2, 4, 10, 30]),
            away: random.pick(&[2000, 10_000, 50_000]),
        },
        6 => Schedule::Starve { times: random.pick(&[30, 300, 3000]), steps: random.pick(&[50, 300, 1000]) },
        _ => Schedule::Bursts {
            steps: random.pick(&[3, 10, 30, 100]),
            away: random.pick(&[500, 5000, 20_000]),
        },
    }
}

fn log(random: &mut Random) -> Log {
    let (lazy, set) = (random.once_in(3), random.once_in(3));
    random.weighted(&[(3, Log::Writes { lazy }), (4, Log::Bits { lazy, set }), (2, Log::Ring)])
}

fn budget(random: &mut Random, theme: Theme, vcpus: u32) -> Option<u64> {
    let tight = if theme == Theme::Tables { random.once_in(2) } else { random.once_in(10) };
    // The tables that each vCPU caches cannot be reclaimed: one per level of a root each, and a few for all.
    tight.then(|| 4 + 4 * u64::from(vcpus) + random.below(6))
}

/// Windows and memslots of a theme, and the memslots at the start.
fn ground(random: &mut Random, theme: Theme, vcpus: u32) -> (Ground, Vec<(u32, usize, bool)>) {
    let small = match theme {
        Theme::SmallSlots | Theme::Permissions => true,
        Theme::LargeSlots | Theme::Huge => false,
        _ => random.once_in(2),
    };
    let (windows, slots) = if small {
        // Neighbours in one table; sometimes in the next table, too.
        let first = random.below(6) as usize;
        let last = if random.once_in(4) { FIRST_LARGE - 1 } else { first + random.within(1, 3) as usize };
        (first..FIRST_LARGE.min(last + 1), 0..random.within(2, 4) as u32)
    } else {
        let many = random.within(1, 4);
        let slots = SMALL_SLOTS..SMALL_SLOTS + random.within(1, many) as u32;
        (FIRST_LARGE..FIRST_LARGE + many as usize, slots)
    };
    let logs = matches!(theme, Theme::Dirty) || random.once_in(8);
    let at_first = slots.clone().zip(windows.clone());
    let at_first = at_first.map(|(slot, window)| (slot, window, logs && !random.once_in(4))).collect();
    (Ground { theme, windows: windows.collect(), slots: slots.collect(), vcpus }, at_first)
}

/// A guest frame that guests use.
fn gfn(random: &mut Random, ground: &Ground) -> Gfn {
    let window = random.pick(&ground.windows);
    layout::frame(window, random.below(USED as u64) as usize)
}

/// Frames around `gfn`: one, a window, or all.
fn gfns(random: &mut Random, ground: &Ground) -> Span<Gfn> {
    match random.below(4) {
        0 => Span::sized(gfn(random, ground), 1),
        1 | 2 => layout::frames(random.pick(&ground.windows)),
        _ => Span::new(Gfn(0), Gfn(2560)),
    }
}

/// Host pages behind a memslot: one page that guests use, some, or all.
fn host_pages(random: &mut Random, ground: &Ground) -> (u64, u64) {
    let slot = random.pick(&ground.slots);
    let of = layout::pages_of(slot);
    let (first, page) = (layout::host_page(slot), layout::used(random.below(USED as u64) as usize, of));
    match random.below(8) {
        0..4 => (first + page, 1),
        4 | 5 => (first, of),
        6 => (first, of / 2 + 4),
        // For small memslots: all memslots that share the region.
        _ => (first / REGION * REGION, REGION),
    }
}

/// A guest stays in one window for a while.
fn guest_program(random: &mut Random, ground: &Ground, length: u64) -> Vec<(u32, Op)> {
    let mut here = Ground { windows: ground.windows.clone(), slots: Vec::new(), ..*ground };
    let ops = (0..random.within(2, length * 2)).map(|_| {
        if random.once_in(3) {
            here.windows.clone_from(&ground.windows);
        } else if here.windows.len() > 1 {
            here.windows = vec![random.pick(&here.windows)];
        }
        guest_op(random, &here)
    });
    numbered(ops.collect())
}

fn guest_op(random: &mut Random, ground: &Ground) -> Op {
    match random.below(40) {
        0 | 1 => Op::Compute(random.pick(&[100, 2000, 30_000])),
        2 => Op::Linger(random.pick(&[500, 5000, 50_000])),
        3 => Op::Leave,
        4 => Op::Prefault(Span::sized(gfn(random, ground), random.within(1, 4))),
        5 => Op::Rest(random.pick(&[500, 5000])),
        _ => {
            let access = random.weighted(&[(5, Access::Read), (5, Access::Write), (1, Access::Fetch)]);
            Op::Touch(gfn(random, ground), access)
        }
    }
}

fn thread_op(random: &mut Random, ground: &Ground) -> Op {
    let other = random.pick(&[
        Theme::SmallSlots,
        Theme::Pages,
        Theme::Pages,
        Theme::Tables,
        Theme::Huge,
        Theme::Dirty,
    ]);
    let theme = if ground.theme == Theme::All || random.once_in(4) { other } else { ground.theme };
    match theme {
        Theme::SmallSlots | Theme::LargeSlots => slots_op(random, ground),
        Theme::Pages | Theme::Permissions | Theme::All => pages_op(random, ground),
        Theme::Tables => tables_op(random, ground),
        Theme::Huge => huge_op(random, ground),
        Theme::Dirty => dirty_op(random, ground),
    }
}

fn slots_op(random: &mut Random, ground: &Ground) -> Op {
    let (slot, window) = (random.pick(&ground.slots), random.pick(&ground.windows));
    match random.below(10) {
        0..3 => Op::Move(slot, window),
        3 => Op::Zap(gfns(random, ground), Reason::Clear),
        4 => Op::Delete(slot),
        5 | 6 => Op::Create(slot, window),
        7 => Op::Exchange(slot, random.pick(&ground.slots)),
        _ => Op::Hold(random.pick(&[10_000, 100_000])),
    }
}

fn pages_op(random: &mut Random, ground: &Ground) -> Op {
    let (first, pages) = host_pages(random, ground);
    let sleeps = random.pick(&[0, 0, 1000, 20_000]);
    match random.below(18) {
        0 => Op::Replace(first, sleeps),
        1 => Op::Zap(gfns(random, ground), random.pick(&Reason::ALL)),
        2 => Op::Age(gfns(random, ground)),
        3 => Op::Young(first, pages, random.once_in(2)),
        4 => Op::Device(first),
        16 => Op::Track(gfns(random, ground), random.pick(&[1000, 20_000, 100_000])),
        17 => {
            let gfn = gfns(random, ground).start;
            Op::Keep(gfn, random.pick(&[Access::Read, Access::Write]), random.pick(&[100, 1000, 20_000]))
        }
        _ => change(random, (first, pages), sleeps),
    }
}

fn change(random: &mut Random, (first, pages): (u64, u64), sleeps: u64) -> Op {
    let why = random.pick(&Reason::ALL);
    let protects = matches!(why, Reason::Protect | Reason::WriteProtect | Reason::SoftDirty);
    let whole = first.is_multiple_of(REGION) && pages == REGION;
    let change = if protects {
        random.pick(&[Change::Protect, Change::Protect, Change::Nothing])
    } else {
        let of =
            [Change::Move, Change::Move, Change::Protect, Change::Drop, Change::Nothing, Change::Collapse];
        random.pick(if whole && !why.page_by_page() { &of } else { &of[..5] })
    };
    let tellings =
        [Telling::Invalidate, Telling::Overlapping, Telling::Around, Telling::AroundWithoutWaiting];
    let telling = random.pick(if why.page_by_page() { &tellings[2..] } else { &tellings });
    Op::Change { first, pages, change, why, telling, sleeps }
}

fn tables_op(random: &mut Random, ground: &Ground) -> Op {
    match random.below(10) {
        0 | 1 => Op::ZapAll,
        2 => Op::Collect,
        3 => Op::Budget(random.within(1, 4 + 4 * u64::from(ground.vcpus))),
        4 => Op::Walk(gfns(random, ground)),
        5 => Op::Zap(gfns(random, ground), Reason::Unmap),
        6 => Op::Age(gfns(random, ground)),
        _ => {
            let (first, pages) = host_pages(random, ground);
            let why = random.pick(&[Reason::Unmap, Reason::Remap, Reason::Exit]);
            let change = random.pick(&[Change::Drop, Change::Move]);
            Op::Change { first, pages, change, why, telling: Telling::Invalidate, sleeps: 0 }
        }
    }
}

fn huge_op(random: &mut Random, ground: &Ground) -> Op {
    let region = random.within(1, REGIONS - 1) * REGION;
    let slot = random.pick(&ground.slots);
    let region = if slot < SMALL_SLOTS { region } else { layout::host_page(slot) };
    match random.below(9) {
        8 => Op::Track(gfns(random, ground), random.pick(&[1000, 20_000])),
        0 | 1 => Op::Split(gfns(random, ground)),
        2..5 => Op::Recover(gfns(random, ground)),
        5 => {
            let why = random.pick(&[Reason::Migrate, Reason::Remap, Reason::Clear]);
            let (change, telling) = (Change::Collapse, random.pick(&[Telling::Invalidate, Telling::Around]));
            Op::Change { first: region, pages: REGION, change, why, telling, sleeps: 0 }
        }
        _ => {
            let (first, pages) = host_pages(random, ground);
            change(random, (first, pages), 0)
        }
    }
}

fn dirty_op(random: &mut Random, ground: &Ground) -> Op {
    let (slot, commits) = (random.pick(&ground.slots), !random.once_in(4));
    match random.below(16) {
        0..5 => Op::Harvest(commits),
        5 => Op::HarvestSlot(slot, commits),
        6 | 7 => Op::HarvestRing(random.below(ground.vcpus.into()) as u32, commits),
        8 => Op::Log(slot, true),
        9 => Op::Log(slot, false),
        10 => Op::WriteProtect(gfns(random, ground)),
        11 => Op::Device(host_pages(random, ground).0),
        _ => {
            let (first, pages) = host_pages(random, ground);
            let why = random.pick(&[
                Reason::Migrate,
                Reason::Clear,
                Reason::Reclaim,
                Reason::Protect,
                Reason::Unmap,
            ]);
            let change = if why == Reason::Protect { Change::Protect } else { Change::Move };
            Op::Change { first, pages, change, why, telling: Telling::Around, sleeps: 0 }
        }
    }
}
