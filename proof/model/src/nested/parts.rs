//! Split of a large leaf of a shadow of which a part changes, into a table of two small leaves, as in
//! `slat/src/shadows/split.rs`.
//!
//! T is one entry, which names one of two large pages of L1. Each page has two parts. At the start both pages are
//! backed by the same frames of the host, so their leaves are one word. The hint of a large page leads to whatever its
//! leaf was split into. Steps that other parts of the model have, such as the install of a small leaf, are one step
//! here. There is one vCPU; its TLB has everything that it could ever have loaded.

mod steps;

use crate::bug::Bug;
use crate::check::{Checked, ENDS, SAFE, Verdict, verdict};
use crate::scenario::Family;
use crate::state::Bad;
use stateright::{Model, Property};

const TWO: usize = 2;
const THREADS: usize = 3;
const BOTH: u8 = 3;

/// An operation of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    /// L2 accesses a part.
    Access(u8),
    /// L1 stores the number of a page in T.
    Store(u8),
    /// L1 flushes.
    Flush,
    /// The host moves parts of a page, a bit each.
    Move(u8, u8),
}
use Op::{Access, Flush, Move, Store};

/// The next step of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(missing_docs, reason = "each is what the thread does next")]
pub enum Pc {
    #[default]
    Start,
    // A fault.
    ReadTables,
    Lookup,
    Hint,
    Met,
    Freeze,
    Recheck,
    Row,
    Thaw,
    Small,
    // An invalidation by the host.
    Head,
    Load,
    Zap,
    SplitFreeze,
    SplitRow,
    SplitLink,
    Kick,
    Forget,
    Change,
    // A flush by L1.
    Look,
    Take,
    Settle,
}

/// The shadow's upper entry. The checker knows a leaf's page; no bit of the word has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Word {
    Hole,
    Leaf { page: u8 },
    Frozen(u8),
    Condemned(u8),
    Table,
}

impl Word {
    fn same(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Leaf { .. }, Self::Leaf { .. }))
    }
}

/// A small leaf, and its row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Small {
    frame: u8,
    page: u8,
    row: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Thread {
    op: u8,
    pc: Pc,
    /// A fault: N, the line of its part, the shadow's; T; the host's frame; the word that it met.
    number: u8,
    region: u8,
    line: u8,
    t: u8,
    frame: u8,
    is_large: bool,
    met: Option<Word>,
    /// An invalidation: the part that it is at, the row that it read, and whether it owes a flush.
    part: u8,
    row: u8,
    owes: bool,
}

/// The whole state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    t: u8,
    host: [[u8; TWO]; TWO],
    upper: Word,
    row: u8,
    small: [Option<Small>; TWO],
    large_hints: [bool; TWO],
    small_hints: [[bool; TWO]; TWO],
    /// N, and the lines of each page's parts; that of L1's flushes.
    number: u8,
    lines: [[u8; TWO]; TWO],
    line: u8,
    /// Page and parts that each thread's invalidation covers.
    listed: [Option<(u8, u8)>; THREADS],
    /// A bit for each page, part and frame.
    tlb: u32,
    /// Pages that T has named since the last flush.
    allowed: u8,
    /// Drops.
    under_way: u8,
    noted: bool,
    threads: [Thread; THREADS],
    bad: Option<Bad>,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Its events, in a few words.
    pub name: String,
    programs: Vec<Vec<Op>>,
    /// Whether it begins with a large leaf.
    composed: bool,
    bug: Option<Bug>,
}

impl Parts {
    fn new(name: &str, composed: bool, programs: &[&[Op]]) -> Self {
        let programs = programs.iter().map(|ops| ops.to_vec()).collect();
        Self { name: format!("nested parts: {name}"), programs, composed, bug: None }
    }

    /// The same with a mistake.
    pub fn with(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn op(&self, s: &State, i: usize) -> Option<Op> {
        self.programs.get(i)?.get(usize::from(s.threads[i].op)).copied()
    }

    fn all_done(&self, s: &State) -> bool {
        (0..THREADS).all(|i| self.op(s, i).is_none())
    }

    fn step(&self, s: &mut State, i: usize, op: Op) {
        match op {
            Access(part) => self.access(s, i, part),
            Store(page) => {
                s.t = page;
                s.allowed |= 1 << page;
                s.done(i);
            }
            Flush => s.flush(i),
            Move(page, parts) => self.moves(s, i, (page, parts)),
        }
    }
}

impl State {
    fn done(&mut self, i: usize) {
        self.threads[i] = Thread { op: self.threads[i].op + 1, ..Thread::default() };
    }

    fn again(&mut self, i: usize) {
        self.threads[i] = Thread { op: self.threads[i].op, ..Thread::default() };
    }

    /// Ends a drop.
    fn drops(&mut self) {
        self.under_way -= 1;
        self.noted = true;
    }

    /// Adds everything that the vCPU could load at this moment to its cache, and judges it.
    fn hardware(&mut self) {
        let mut load = |page: u8, part: u8, frame: u8| self.tlb |= 1 << (page * 16 + part * 8 + frame);
        match self.upper {
            Word::Leaf { page } => (0..2).for_each(|part| load(page, part, part)),
            Word::Table => {
                for (part, small) in (0..).zip(self.small) {
                    if let Some(small) = small {
                        load(small.page, part, small.frame);
                    }
                }
            }
            _ => {}
        }
        for bit in (0..32_u8).filter(|bit| self.tlb >> bit & 1 != 0) {
            let (page, part, frame) = (bit / 16, bit / 8 % 2, bit % 8);
            if self.host[usize::from(page)][usize::from(part)] != frame {
                self.bad = Some(Bad::StaleLoad);
            } else if self.allowed >> page & 1 == 0 {
                self.bad = Some(Bad::StaleTables);
            }
        }
    }
}

/// Returns all scenarios.
pub fn families() -> Vec<Family<Parts>> {
    let (first, second) = (1, 2);
    let back = [Store(1), Access(0), Store(0), Flush, Access(1)];
    let scenarios = vec![
        Parts::new("part 1 moves", true, &[&[Access(0)], &[Move(0, second)]]),
        Parts::new(
            "part 0 moves, part 1 moves",
            true,
            &[&[Access(0), Access(1)], &[Move(0, first), Move(0, second)]],
        ),
        Parts::new(
            "part 0 moves | part 1 moves",
            true,
            &[&[Access(0)], &[Move(0, first)], &[Move(0, second)]],
        ),
        Parts::new("part 1 moves | all moves", true, &[&[Access(1)], &[Move(0, second)], &[Move(0, BOTH)]]),
        Parts::new("nothing, fault | part 1 moves", false, &[&[Access(0)], &[Move(0, second)]]),
        Parts::new(
            "nothing, faults | part 1 moves, part 0 moves",
            false,
            &[&[Access(0), Access(1)], &[Move(0, second), Move(0, first)]],
        ),
        Parts::new(
            "T to 1, flush | part 1 moves",
            true,
            &[&[Store(1), Flush, Access(0)], &[Move(0, second)]],
        ),
        Parts::new("T to 1 and back, flush | part 1 of 0 moves", true, &[&back, &[Move(0, second)]]),
        Parts::new(
            "T to 1 and back, flush | part 1 of 0 moves | part 0 of 0 moves",
            true,
            &[&back, &[Move(0, second)], &[Move(0, first)]],
        ),
        Parts::new(
            "T to 1 and back, flush | part 1 of 0 moves | part 1 of 1 moves",
            true,
            &[&back, &[Move(0, second)], &[Move(1, second)]],
        ),
    ];
    vec![Family { name: "nested parts", scenarios }]
}

impl Checked for Parts {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Verdict {
        verdict(self, |s| s.bad)
    }
}

impl Model for Parts {
    type State = State;
    type Action = (usize, Pc);

    fn init_states(&self) -> Vec<State> {
        let mut s = State {
            t: 0,
            host: [[0, 1]; TWO],
            upper: if self.composed { Word::Leaf { page: 0 } } else { Word::Hole },
            row: 0,
            small: [None; TWO],
            large_hints: [self.composed, false],
            small_hints: [[false; TWO]; TWO],
            number: 0,
            lines: [[0; TWO]; TWO],
            line: 0,
            listed: [None; THREADS],
            tlb: 0,
            allowed: 1,
            under_way: 0,
            noted: false,
            threads: [Thread::default(); THREADS],
            bad: None,
        };
        s.hardware();
        vec![s]
    }

    fn actions(&self, s: &State, actions: &mut Vec<(usize, Pc)>) {
        if s.bad.is_none() {
            let busy = (0..THREADS).filter(|&i| self.op(s, i).is_some());
            actions.extend(busy.map(|i| (i, s.threads[i].pc)));
        }
    }

    fn next_state(&self, before: &State, (i, _): (usize, Pc)) -> Option<State> {
        let mut s = *before;
        self.step(&mut s, i, self.op(before, i)?);
        s.hardware();
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::always(SAFE, |_: &Self, s: &State| s.bad.is_none());
        let ends = Property::sometimes(ENDS, |parts: &Self, s: &State| parts.all_done(s));
        match self.bug {
            // With a mistake, only the first bad state is needed.
            Some(_) => vec![safe],
            None => vec![safe, ends],
        }
    }
}
