//! Draws a scenario from a seed: a theme, an initial state, and a program for each thread.
//!
//! The threads of a theme use few pages, and do few kinds of operations, so that they meet. No theme, no state and no
//! program is made for a defect.

use super::random::Random;
use crate::scenario::Scenario;
use crate::state::{Leaf, NONE, Op, PAGES, Range, Span, THREADS, Track, Why, Word};

/// The subject of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Theme {
    /// Write permission comes and goes.
    Permissions,
    /// Pages go.
    Moves,
    /// Large pages, splits, recoveries, new roots.
    Shapes,
    /// The same, and the host learns which frames are dirty. Nothing is unhooked: the thread that unhooks a table reports
    /// its dirty frames, and may do so after another thread's invalidation of them has ended.
    Dirty,
    /// Memslots go, come, and get other pages.
    Slots,
    /// A dirty log.
    Log(Track),
    /// Pages are replaced, and reported one by one.
    Told,
    /// Pages are replaced, and the debt is leaked.
    Leaked,
    /// Pages are parked, and copied.
    Copies,
    /// Stores are tracked.
    Tracked,
    /// A frame is held.
    Held,
    /// vCPUs remember slots of so many frames.
    Memo(u8),
    /// vCPUs enter and leave.
    Kicks,
}

const THEMES: [Theme; 16] = [
    Theme::Permissions,
    Theme::Moves,
    Theme::Shapes,
    Theme::Dirty,
    Theme::Slots,
    Theme::Log(Track::Writes),
    Theme::Log(Track::DirtyBits),
    Theme::Told,
    Theme::Leaked,
    Theme::Copies,
    Theme::Tracked,
    Theme::Held,
    Theme::Memo(1),
    Theme::Memo(2),
    Theme::Memo(4),
    Theme::Kicks,
];

/// Draws a scenario with so many actors.
pub(crate) fn draw(random: &mut Random, actors: usize) -> Scenario {
    let theme = random.pick(&THEMES);
    let shorts = if theme == Theme::Kicks { 0 } else { random.below(4).min(actors.saturating_sub(3)) };
    let threads = (actors - shorts).clamp(1, THREADS);
    let programs = programs(random, theme, threads);
    let programs: Vec<&[Op]> = programs.iter().map(Vec::as_slice).collect();
    let mut scenario = initial(random, theme, Scenario::new("", &programs)).beside_shorts(shorts as u8);
    scenario.name = format!("{theme:?}, {shorts} shorts: {programs:?}");
    scenario
}

/// Draws the programs. About half of the threads are vCPUs that fault.
fn programs(random: &mut Random, theme: Theme, threads: usize) -> Vec<Vec<Op>> {
    let vcpus = match theme {
        // The model's host would let a parked page be stored to.
        Theme::Copies => 0,
        _ => threads.div_ceil(2) - usize::from(random.once_in(3) && threads > 2),
    };
    let mut programs = Vec::new();
    for i in 0..threads {
        let length = random.pick(&[1, 1, 1, 2]);
        let program = match theme {
            _ if i < vcpus => (0..length).map(|_| access(random, theme)).collect(),
            // These threads are one of a kind.
            Theme::Slots | Theme::Memo(1 | 2) if i == vcpus => transactions(random, theme),
            Theme::Log(_) if i == vcpus => vec![Op::BeginLog, Op::Harvest],
            Theme::Log(_) if i == vcpus + 1 && random.once_in(3) => {
                [NONE, 0].map(|hva| Op::Commit { gfns: Span::new(0, 2), hva })[..length].to_vec()
            }
            Theme::Held if i == vcpus => vec![Op::Hold { gfn: 0, write: random.once_in(2) }; 2],
            Theme::Held if i == vcpus + 1 && random.once_in(2) => transactions(random, theme),
            _ => (0..length).map(|_| change(random, theme)).collect(),
        };
        programs.push(program);
    }
    programs
}

/// Draws a guest access. Most are to page 0.
fn access(random: &mut Random, theme: Theme) -> Op {
    // Outside of region 0, the model's log takes stores for those of the slot that logs.
    let elsewhere = if matches!(theme, Theme::Log(_)) { 1 } else { 2 };
    let gfn = random.pick(&[0, 0, 0, 0, 1, 1, elsewhere]);
    let stores = match theme {
        Theme::Permissions | Theme::Log(_) | Theme::Tracked => 3,
        // The model's host does not lock a page whose debt is leaked.
        Theme::Memo(_) | Theme::Slots | Theme::Leaked => 0,
        _ => 1,
    };
    let large = match theme {
        Theme::Shapes | Theme::Dirty => random.once_in(2),
        Theme::Moves | Theme::Told | Theme::Tracked => random.once_in(6),
        _ => false,
    };
    let sleeps = if matches!(theme, Theme::Memo(_)) { random.once_in(4) } else { random.once_in(2) };
    Op::Access { gfn, write: random.below(4) < stores, sleeps, large }
}

/// Draws an operation of another thread.
fn change(random: &mut Random, theme: Theme) -> Op {
    let (start, end) = random.pick(&[(0, 1), (0, 1), (0, 2), (0, 2), (1, 2), (0, PAGES), (2, 3)]);
    let pages = Span::new(start, end);
    let gfn = start;
    match theme {
        Theme::Shapes | Theme::Dirty if random.once_in(2) => {
            let recover = Op::Recover { gfn };
            let last = if theme == Theme::Dirty { Op::Age { gfn } } else { Op::ZapAll };
            return random.pick(&[Op::Split { gfn }, recover, recover, Op::Age { gfn }, last]);
        }
        Theme::Tracked if random.once_in(4) => {
            return random.pick(&[Op::Recover { gfn: 0 }, Op::Split { gfn: 0 }]);
        }
        Theme::Log(_) if random.once_in(2) => {
            return random.pick(&[Op::Harvest, Op::Harvest, Op::Age { gfn }]);
        }
        Theme::Kicks | Theme::Moves | Theme::Memo(_) | Theme::Log(_) if random.once_in(5) => {
            return Op::ZapAll;
        }
        Theme::Copies if random.once_in(2) => return Op::Copy { page: start.min(1) },
        _ => {}
    }
    let why = match theme {
        Theme::Permissions => random.pick(&[Why::Protect, Why::Protect, Why::Protect, Why::Clear]),
        Theme::Told => random.pick(&[Why::ChangePte, Why::ChangePte, Why::Protect, Why::Clear]),
        Theme::Leaked => random.pick(&[Why::Leaked, Why::Clear, Why::Unmap]),
        Theme::Copies => random.pick(&[Why::Park, Why::Park, Why::Clear]),
        Theme::Tracked => random.pick(&[Why::Track, Why::Track, Why::Protect, Why::Clear]),
        Theme::Dirty => random.pick(&[Why::Clear, Why::Protect]),
        _ => random.pick(&[Why::Clear, Why::Clear, Why::Unmap, Why::Protect]),
    };
    let pages = if matches!(theme, Theme::Told | Theme::Leaked | Theme::Copies) {
        Span::new(gfn.min(1), end.min(2))
    } else {
        pages
    };
    // Where frames get other pages, an invalidation of frames would be about the wrong pages.
    let by_frame = match why {
        Why::Track => true,
        Why::ChangePte | Why::Park => false,
        _ => !matches!(theme, Theme::Slots | Theme::Memo(_) | Theme::Held) && random.once_in(3),
    };
    let range = if by_frame { Range::Gfns(pages) } else { Range::Hvas(pages) };
    Op::Invalidate { range, why, yields: random.once_in(8) }
}

/// Draws transactions of memslots that may follow one another.
fn transactions(random: &mut Random, theme: Theme) -> Vec<Op> {
    let commit = |start, end, hva| Op::Commit { gfns: Span::new(start, end), hva };
    let one = random.below(2) as u8;
    // A slot changes as a whole.
    let kinds = match theme {
        Theme::Memo(1) => 0..3,
        Theme::Memo(_) => 3..5,
        _ => 0..5,
    };
    let (first, second) = match kinds.start + random.below(kinds.len()) {
        0 => (commit(one, one + 1, NONE), commit(one, one + 1, one)),
        1 => (commit(one, one + 1, NONE), commit(one, one + 1, 3)),
        2 => (commit(one, one + 1, 3), commit(one, one + 1, one)),
        3 => (commit(0, 2, 2), commit(0, 2, 0)),
        _ => (commit(0, 2, NONE), commit(0, 2, 0)),
    };
    if random.once_in(2) { vec![first, second] } else { vec![first] }
}

/// Draws the initial state.
fn initial(random: &mut Random, theme: Theme, new: Scenario) -> Scenario {
    let new = if random.once_in(4) { new.deep() } else { new };
    match theme {
        Theme::Permissions | Theme::Moves => leaves(random, new),
        Theme::Shapes | Theme::Dirty => {
            let new = if random.once_in(3) { new.pageless() } else { new };
            let new = if theme == Theme::Dirty { new.stores() } else { new };
            large_or_small(random, new)
        }
        Theme::Slots => {
            let new = leaves(random, new);
            if random.once_in(2) { new.cells() } else { new }
        }
        Theme::Log(track) => {
            let new = new.tracks(track);
            let new = if random.once_in(3) { new.begins_set() } else { new };
            large_or_small(random, new)
        }
        Theme::Told | Theme::Leaked => match random.below(3) {
            0 => new.empty().read_only(),
            1 => new.large(false),
            _ => new.small(false, false),
        },
        Theme::Copies => {
            if random.once_in(4) {
                new.large(true)
            } else {
                new.small(true, true)
            }
        }
        Theme::Tracked => large_or_small(random, new),
        Theme::Held => match random.below(4) {
            0 => new.empty().interrupts(1).held_by_hardware(false),
            1 => new.empty().kicks(1).held_by_hardware(false),
            2 => new.empty(),
            _ => new.small(true, true),
        },
        Theme::Memo(frames) => {
            let new = if random.once_in(3) { new.small(true, true) } else { new.empty() };
            new.remembers(frames)
        }
        Theme::Kicks => {
            let new = new.small(true, true);
            let new = if random.once_in(3) { new.two_vcpus() } else { new };
            let new = if random.once_in(2) { new.kicks(1) } else { new.interrupts(1) };
            if random.once_in(3) { new.broadcasts() } else { new }
        }
    }
}

fn large_or_small(random: &mut Random, new: Scenario) -> Scenario {
    match random.below(5) {
        0 => new.empty(),
        1 | 2 => new.large(random.once_in(2)),
        3 => new.small(false, false),
        _ => new.small(true, true),
    }
}

/// A leaf table of region 0 whose entries are drawn. An entry may be frozen by a vCPU that is not in the program.
fn leaves(random: &mut Random, new: Scenario) -> Scenario {
    let mut writable = [true; 2];
    let entries = [0, 1].map(|pfn| {
        let leaf = |write| Word::Leaf(Leaf { pfn, write, host_write: write, dirty: false });
        match random.below(6) {
            0 => Word::Hole(0),
            1 | 2 => leaf(true),
            3 | 4 => {
                writable[usize::from(pfn)] = random.once_in(2);
                leaf(false)
            }
            _ => Word::Frozen(THREADS as u8),
        }
    });
    let mut new = new.table(0, entries);
    new.shared.writable[..2].copy_from_slice(&writable);
    new
}
