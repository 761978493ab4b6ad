//! A scenario: a world, a program for each thread, perhaps a mistake; and how it is checked.

use crate::bug::Bug;
use crate::fault::Access;
use crate::hardware::Caches;
use crate::thread::{Op, Pc, State, Thread};
use crate::world::{Bad, Leaf, NODES, PAGES, THREADS, Word, World, bits};
use stateright::{Checker, Model, Property};
use std::collections::HashMap;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What happens in it.
    pub name: String,
    /// As it begins.
    pub world: World,
    /// One for each thread.
    pub programs: Vec<Vec<Op>>,
    /// Guests store, and Dirty is watched.
    pub stores: bool,
    /// A thread that has got so far already.
    pub ahead: Option<(usize, Pc)>,
    /// The mistake that it is checked with.
    pub bug: Option<Bug>,
}

/// One atomic step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A thread does this.
    Thread(u8, Pc),
    /// A vCPU stores, and sets Dirty in an entry: page, node, level.
    Store(u8, (u8, u8)),
    /// Dead tables wait for a grace period from here.
    Collect,
    /// It is over: their leaves are booked, their pages given back.
    GiveBack,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// States seen.
    pub states: usize,
    /// The shortest way to something bad.
    pub found: Option<(Bad, Vec<Action>)>,
    /// Whether all programs can end.
    pub ends: bool,
}

impl Scenario {
    /// A scenario from an empty world of two levels and one vCPU.
    pub fn new(name: &str, programs: &[&[Op]]) -> Self {
        let programs = programs.iter().map(|ops| ops.to_vec()).collect();
        Self { name: name.into(), world: World::new(2, 1), programs, stores: false, ahead: None, bug: None }
    }

    /// The same with three levels.
    pub fn deep(mut self) -> Self {
        self.world = World::new(3, self.world.vcpu_count);
        self
    }

    /// The same with two vCPUs.
    pub fn two_vcpus(mut self) -> Self {
        self.world.vcpu_count = 2;
        self.world.vcpus[1] = self.world.vcpus[0];
        self
    }

    /// The same with guests that store.
    pub fn stores(mut self) -> Self {
        self.stores = true;
        self
    }

    /// The same from where thread `i` is about to do `pc`.
    pub fn from(mut self, i: usize, pc: Pc) -> Self {
        self.ahead = Some((i, pc));
        self
    }

    /// The same with a mistake.
    pub fn with(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self
    }

    /// The node that links region `region`, made if it is missing.
    fn links(&mut self) -> (u8, u8) {
        let world = &mut self.world;
        if !world.deep {
            return (world.root, 1);
        }
        let root = world.root;
        if let Word::Table(node) = world.load(root, 2, 0) {
            return (node, 1);
        }
        let node = world.new_node(1, [Word::Hole(0); 2]).expect("a new world");
        world.set(root, 2, 0, Word::Table(node));
        (node, 1)
    }

    /// A leaf table in region `region`, with these entries.
    pub fn table(mut self, region: u8, entries: [Word; 2]) -> Self {
        let (node, level) = self.links();
        let table = self.world.new_node(0, entries).expect("a new world");
        self.world.set(node, level, region * 2, Word::Table(table));
        self.settled()
    }

    /// An empty leaf table in region 0.
    pub fn empty(self) -> Self {
        self.table(0, [Word::Hole(0); 2])
    }

    /// Small leaves in region 0.
    pub fn small(self, write: bool, host_write: bool) -> Self {
        let leaf = |pfn| Word::Leaf(Leaf { pfn, write, host_write, dirty: false });
        let mut made = self.table(0, [leaf(0), leaf(1)]);
        made.world.writable[..2].fill(host_write);
        made.settled()
    }

    /// A large leaf in region 0.
    pub fn large(mut self, write: bool) -> Self {
        let (node, level) = self.links();
        let leaf = Leaf { pfn: 0, write, host_write: write, dirty: false };
        self.world.set(node, level, 0, Word::Leaf(leaf));
        self.world.writable[..2].fill(write);
        self.settled()
    }

    /// Region 0 is read-only on the host.
    pub fn read_only(mut self) -> Self {
        self.world.writable[..2].fill(false);
        self
    }

    /// No slot behind these frames.
    pub fn no_slot(mut self, gfns: std::ops::Range<usize>) -> Self {
        self.world.memslots[gfns].fill(crate::world::NONE);
        self
    }

    /// Every small leaf has been written by the guest, before.
    pub fn dirty(mut self) -> Self {
        let world = &mut self.world;
        for node in world.nodes.iter_mut().filter(|node| !node.free && node.level == 0) {
            for word in &mut node.entries {
                if let Word::Leaf(leaf) = word {
                    leaf.dirty = true;
                    world.written |= 1 << leaf.pfn;
                }
            }
        }
        self
    }

    /// What the hardware and the books say of the world as it begins.
    fn settled(mut self) -> Self {
        let world = &mut self.world;
        world.leaves = world.below(world.root).0.iter().map(|&(_, level)| World::pages(level) as i8).sum();
        for vcpu in &mut world.vcpus {
            *vcpu = Caches { root: world.root, ..Caches::default() };
        }
        self.world.hardware();
        assert_eq!(self.world.bad, None, "a world that begins well: {}", self.name);
        self
    }

    fn op(&self, thread: &Thread, i: usize) -> Option<Op> {
        self.programs.get(i)?.get(thread.op as usize).copied()
    }

    fn all_done(&self, s: &State) -> bool {
        s.threads.iter().enumerate().all(|(i, thread)| self.op(thread, i).is_none())
            && s.world.grace.queue == 0
            && s.world.grace.taken == 0
    }

    /// One step of thread `i`. `None`: it waits.
    fn step(&self, s: &mut State, i: usize) -> Option<()> {
        let op = self.op(&s.threads[i], i)?;
        match (s.threads[i].pc, op) {
            (_, Op::Access { gfn, write, sleeps, large }) => {
                return self.access(s, i, Access { gfn, write, sleeps, large });
            }
            (_, Op::Split { gfn }) => return self.split(s, i, gfn),
            (_, Op::Age { gfn }) => self.age(s, i, gfn),
            (Pc::Start, Op::ZapAll) if self.bug == Some(Bug::FlipWithoutTicket) => {
                s.threads[i].pc = Pc::Flip;
                return self.zap_all(s, i, op);
            }
            (Pc::Start, _) => {
                s.threads[i].pc = Pc::BeginSlot;
                self.number(s, i, op);
            }
            (Pc::BeginSlot | Pc::BeginNumber | Pc::WidenSlot | Pc::WidenNumber, _) => self.number(s, i, op),
            (Pc::ShootDown(vcpu), _) => self.shoot_down(s, i, op, vcpu),
            (Pc::EndCount | Pc::EndSlot, _) => self.end(s, i, op),
            (_, Op::Recover { .. }) => self.recover(s, i, op),
            (_, Op::ZapAll) => return self.zap_all(s, i, op),
            _ => return self.invalidate(s, i, op),
        }
        Some(())
    }

    /// Dead tables: their leaves leave the books, their pages are free.
    fn give_back(&self, s: &mut State) {
        for node in bits(s.world.grace.taken) {
            let (leaves, tables) = s.world.below(node);
            for (leaf, level) in leaves {
                s.world.book(level, -1);
                if self.bug == Some(Bug::DirtyToldAfterHost) {
                    s.world.tell(leaf, level);
                }
            }
            for table in tables {
                if s.world.nodes[table as usize].free {
                    s.world.bad = Some(Bad::FreedTable);
                }
                s.world.free_node(table);
            }
        }
        s.world.grace.taken = 0;
    }

    /// When all is done nothing may be missing.
    fn audit(&self, s: &mut State) {
        if !self.all_done(s) || s.world.bad.is_some() {
            return;
        }
        let (leaves, tables) = s.world.below(s.world.root);
        let pages: i8 = leaves.iter().map(|&(_, level)| World::pages(level) as i8).sum();
        if s.world.nodes.iter().filter(|node| !node.free).count() != tables.len() {
            s.world.bad = Some(Bad::TableLost);
        } else if pages != s.world.leaves {
            s.world.bad = Some(Bad::LeafLost);
        }
    }

    /// Checks every state that can be reached.
    pub fn check(&self) -> Verdict {
        let checker = self.clone().checker().threads(2).spawn_bfs().join();
        let mut verdict = Verdict { states: checker.unique_state_count(), found: None, ends: false };
        for (name, path) in checker.discoveries() {
            if name == ENDS {
                verdict.ends = true;
            } else {
                let bad = path.last_state().world.bad.expect("that is what was found");
                verdict.found = Some((bad, path.into_actions()));
            }
        }
        verdict
    }

    /// Whether all programs can still end from every state that can be reached: nothing deadlocks. Returns how many
    /// states there are, or one that is stuck. For scenarios that are safe.
    pub fn check_ends(&self) -> Result<usize, Box<State>> {
        let mut index = HashMap::new();
        let mut states = self.init_states();
        index.insert(states[0].clone(), 0);
        let mut before: Vec<Vec<usize>> = vec![Vec::new()];
        let (mut at, mut actions) = (0, Vec::new());
        while at < states.len() {
            actions.clear();
            self.actions(&states[at], &mut actions);
            for action in actions.drain(..) {
                let Some(next) = self.next_state(&states[at], action) else { continue };
                let id = *index.entry(next.clone()).or_insert(states.len());
                if id == states.len() {
                    states.push(next);
                    before.push(Vec::new());
                }
                before[id].push(at);
            }
            at += 1;
        }
        let mut ends: Vec<bool> = states.iter().map(|s| self.all_done(s)).collect();
        let mut work: Vec<usize> = (0..states.len()).filter(|&id| ends[id]).collect();
        while let Some(id) = work.pop() {
            for &from in &before[id] {
                if !core::mem::replace(&mut ends[from], true) {
                    work.push(from);
                }
            }
        }
        match ends.iter().position(|end| !end) {
            Some(stuck) => Err(Box::new(states[stuck].clone())),
            None => Ok(states.len()),
        }
    }
}

const SAFE: &str = "nothing bad";
const ENDS: &str = "all can end";

impl Model for Scenario {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        assert!(self.programs.len() <= THREADS && NODES <= 8);
        let mut s = State { world: self.world.clone(), threads: [Thread::at(0); THREADS] };
        if let Some((i, pc)) = self.ahead {
            while s.threads[i].pc != pc {
                self.step(&mut s, i).expect("it is alone");
            }
        }
        vec![s]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.world.bad.is_some() {
            return;
        }
        for (i, thread) in s.threads.iter().enumerate() {
            if self.op(thread, i).is_some() {
                actions.push(Action::Thread(i as u8, thread.pc));
            }
        }
        if self.stores {
            let mut world = s.world.clone();
            for vcpu in 0..world.vcpu_count as usize {
                for gfn in 0..PAGES {
                    let places = world.clean_places(vcpu, gfn);
                    actions.extend(places.into_iter().map(|place| Action::Store(gfn, place)));
                }
            }
        }
        if s.world.grace.taken != 0 {
            actions.push(Action::GiveBack);
        } else if s.world.grace.queue != 0 {
            actions.push(Action::Collect);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        match action {
            Action::Thread(i, _) => self.step(&mut s, i as usize)?,
            Action::Store(gfn, place) => s.world.store(gfn, place),
            Action::Collect => {
                s.world.grace.sections = s.sections();
                s.world.grace.taken = std::mem::take(&mut s.world.grace.queue);
            }
            Action::GiveBack if s.world.grace.sections == 0 || self.bug == Some(Bug::FreedBeforeGrace) => {
                s.world.grace.sections = 0;
                self.give_back(&mut s);
            }
            Action::GiveBack => return None,
        }
        if s.world.bad.is_none() {
            s.world.hardware();
        }
        self.audit(&mut s);
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::always(SAFE, |_: &Self, s: &State| s.world.bad.is_none());
        let ends = Property::sometimes(ENDS, |scenario: &Self, s: &State| scenario.all_done(s));
        // With a mistake, the first bad state is all that is wanted.
        if self.bug.is_some() { vec![safe] } else { vec![safe, ends] }
    }
}
