//! The changes that meddlers make to the host's memory: a table with a row for each kind of change.
//!
//! A new kind needs a function and a row. The function returns whether it made the change. Where it drops
//! contents, it enters that in the ledger.

use crate::groups::{LIMITS, with_room};
use crate::oracle::Lane;
use crate::random::Random;
use crate::stage::{BLOCK, NODES, PAGES, Stage, ZONE, ZONES, away, count, hva, hvas};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use slat::table::formats::Ept4NoAd;
use slat::{
    Access, Fault, Gfn, Hva, Idle, PAGE_SIZE, Slot, SlotId, VcpuId, Vm,
    Young::{Clear, ClearAndFlush, Test},
};
use slat_mm::{AddressSpace, Advice, Backing, HostView, LruError, MmError, Node, Place, Prot};
use std::ops::Range;
use std::sync::Arc;

/// A kind of change.
pub struct Change {
    pub name: &'static str,
    /// The change makes and frees no tables. It may therefore run beside guests that write to free frames by
    /// mistake.
    pub harmless: bool,
    make: fn(&mut Meddler<'_>) -> bool,
}

const fn row(name: &'static str, harmless: bool, make: fn(&mut Meddler<'_>) -> bool) -> Change {
    Change { name, harmless, make }
}

pub const CHANGES: &[Change] = &[
    row("munmap and mmap", true, replace),
    row("mremap there and back", false, move_away),
    row("fork", false, fork),
    row("a child exits", false, forget),
    row("mprotect and back", true, protect),
    row("migrate", true, migrate),
    row("pageout", true, pageout),
    row("age", true, age),
    row("reclaim", true, reclaim),
    row("dontneed", true, dontneed),
    row("reap", true, reap),
    row("clear soft-dirty", true, soft_dirty),
    row("merge", false, merge),
    row("unmerge", false, unmerge),
    row("NUMA balancing", false, balance),
    row("young", true, young),
    row("read and write", false, access),
    row("another VM comes and goes", false, visit),
    row("another limit", false, limit),
    row("harvest", false, harvest),
    row("trim", false, trim),
];

/// The most children of a meddler at once. A child keeps what it shares.
const CHILDREN: usize = 2;
/// Remembered places of a child.
const SAMPLES: usize = 24;

/// A fork, and what it must hold for its whole life.
struct Child {
    space: Arc<AddressSpace>,
    holds: Vec<(Hva, u64)>,
}

/// A thread that changes the host's memory.
pub struct Meddler<'a> {
    stage: &'a Stage,
    idle: Idle,
    random: Random,
    lane: Lane,
    children: Vec<Child>,
    /// How often each change was made.
    made: Vec<u64>,
}

/// Runs a meddler for `steps` changes. Returns its lane, and how often each change was made.
pub fn run(stage: &Stage, number: u64, steps: u64) -> (Lane, Vec<u64>) {
    let mut meddler = Meddler {
        stage,
        idle: Idle::take().expect("the meddler has its own thread"),
        random: Random::new(stage.seed << 16 ^ number),
        lane: Lane::new(number, PAGES),
        children: Vec::new(),
        made: vec![0; CHANGES.len()],
    };
    let all = 0..CHANGES.len();
    let choice: Vec<usize> =
        all.filter(|&at| CHANGES[at].harmless || !stage.mistake.spoils_frames()).collect();
    for _ in 0..steps {
        let at = meddler.random.pick(&choice);
        meddler.made[at] += u64::from((CHANGES[at].make)(&mut meddler));
        count(&stage.counts.begun);
        if stage.is_over() {
            break;
        }
    }
    while forget(&mut meddler) {}
    (meddler.lane, meddler.made)
}

impl<'a> Meddler<'a> {
    /// Some pages of a zone, often from a page on that guests use. Sometimes the whole zone, so that tables are
    /// freed.
    fn some_pages(&mut self) -> Range<u64> {
        if self.random.one_in(2) {
            let start = self.stage.some_hot(&mut self.random);
            let zone = start / ZONE * ZONE;
            return start..(zone + ZONE).min(start + 1 + self.random.below(BLOCK));
        }
        let zone = self.random.below(ZONES) * ZONE;
        let zone = zone..zone + ZONE;
        if self.whole() { zone } else { self.part(&zone, BLOCK) }
    }

    /// The same in whole blocks. A mapping that is cut there can be moved.
    fn some_blocks(&mut self) -> Range<u64> {
        let zone = self.random.below(ZONES) * ZONE;
        let blocks = self.part(&(0..ZONE / BLOCK), 2);
        if self.whole() { zone..zone + ZONE } else { zone + blocks.start * BLOCK..zone + blocks.end * BLOCK }
    }

    /// A part of `within` of at most `most` pages.
    fn part(&mut self, within: &Range<u64>, most: u64) -> Range<u64> {
        let start = within.start + self.random.below(within.end - within.start);
        start..within.end.min(start + 1 + self.random.below(most))
    }

    fn whole(&mut self) -> bool {
        self.random.one_in(8) && !self.stage.mistake.spoils_frames()
    }

    /// Keeps the mappings of the pages' zone in place.
    fn stay(&self, pages: &Range<u64>) -> RwLockReadGuard<'a, ()> {
        self.stage.zones[(pages.start / ZONE) as usize].read()
    }

    /// Excludes all threads that need the zone's mappings or drop its contents.
    fn alone(&self, pages: &Range<u64>) -> Option<RwLockWriteGuard<'a, ()>> {
        self.stage.zones[(pages.start / ZONE) as usize].try_write()
    }
}

fn replace(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_blocks();
    let Some(_alone) = m.alone(&pages) else { return false };
    let (space, idle, at) = (&m.stage.space, &mut m.idle, hvas(&pages));
    m.stage.ledger.dropping(pages, true, || space.munmap(idle, at)).unwrap();
    space.mmap(Place::Fixed(at.start), at.len(), Prot::ReadWrite, Backing::Anonymous).unwrap();
    space.madvise(idle, at, Advice::Mergeable).unwrap();
    true
}

fn move_away(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_blocks();
    let Some(_alone) = m.alone(&pages) else { return false };
    let (space, idle, at) = (&m.stage.space, &mut m.idle, hvas(&pages));
    let there = space.mremap(idle, at, at.len(), Place::Fixed(away(pages.start)));
    match there {
        Ok(there) => space.mremap(idle, there, at.len(), Place::Fixed(at.start)).map(|_| true).unwrap(),
        // The range has more than one mapping.
        Err(MmError::NotMapped(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

fn fork(m: &mut Meddler<'_>) -> bool {
    if m.children.len() == CHILDREN {
        return false;
    }
    let _stay: Vec<_> = m.stage.zones.iter().map(|zone| zone.read()).collect();
    m.stage.groups.has_forked();
    let Some(space) = with_room(m.stage.space.fork(&mut m.idle)) else {
        m.stage.groups.a_fork_has_gone();
        return false;
    };
    let mut child = Child { space, holds: Vec::new() };
    for sample in 0..SAMPLES {
        let (page, lane) = (m.random.below(PAGES), m.random.below(m.stage.lanes));
        let at = hva(page) + lane * crate::oracle::LINE as u64;
        if sample % 4 == 0 {
            // The child has its own copy from now on.
            child.holds.retain(|&(held, _)| held != at);
            let _ = child.space.write(&mut m.idle, at, &m.random.0.u64(..).to_le_bytes());
        }
        let mut word = [0; 8];
        // A place that is protected at the moment cannot be read.
        if child.space.read(&mut m.idle, at, &mut word).is_ok() {
            child.holds.push((at, u64::from_le_bytes(word)));
        }
    }
    m.children.push(child);
    true
}

fn forget(m: &mut Meddler<'_>) -> bool {
    let Some(Child { space, holds }) = m.children.pop() else { return false };
    for (at, expected) in holds {
        let mut word = [0; 8];
        let Some(()) = with_room(space.read(&mut m.idle, at, &mut word)) else { continue };
        let found = u64::from_le_bytes(word);
        if found != expected {
            m.stage.wrong(|| format!("a child reads {found:x} at {at} instead of {expected:x}"));
        }
    }
    drop(space);
    m.stage.groups.a_fork_has_gone();
    true
}

fn protect(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_blocks();
    let _stay = m.stay(&pages);
    let (space, at) = (&m.stage.space, hvas(&pages));
    let prot = m.random.pick(&[Prot::Read, Prot::None]);
    space.mprotect(&mut m.idle, at, prot).unwrap();
    std::thread::yield_now();
    space.mprotect(&mut m.idle, at, Prot::ReadWrite).unwrap();
    true
}

fn migrate(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_pages();
    with_room(m.stage.space.migrate(&mut m.idle, hvas(&pages))).is_some_and(|moved| moved > 0)
}

fn pageout(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_pages();
    m.stage.space.pageout(&mut m.idle, hvas(&pages)).unwrap() > 0
}

fn age(m: &mut Meddler<'_>) -> bool {
    let space = &m.stage.space;
    let seq = space.lru().unwrap().generations()[0].generations.last().unwrap().seq;
    let (node, forced) = (Node((seq % u64::from(NODES)) as u8), m.random.one_in(2));
    match space.age(&mut m.idle, node, seq, true, forced) {
        Ok(made) => made,
        Err(refused) => {
            assert!(!forced && refused == LruError::OutOfRange, "{refused}");
            false
        }
    }
}

fn reclaim(m: &mut Meddler<'_>) -> bool {
    let pages = m.random.below(64);
    m.stage.space.reclaim(&mut m.idle, pages) > 0
}

fn dontneed(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_pages();
    let _stay = m.stay(&pages);
    let (space, idle, at) = (&m.stage.space, &mut m.idle, hvas(&pages));
    m.stage.ledger.dropping(pages, true, || space.dontneed(idle, at)).unwrap();
    true
}

/// The reaper never waits. Where it would have to, it leaves some pages.
fn reap(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_pages();
    let _stay = m.stay(&pages);
    let (space, idle, at) = (&m.stage.space, &mut m.idle, hvas(&pages));
    match m.stage.ledger.dropping(pages, false, || space.reap(idle, at)) {
        Ok(_) => true,
        Err(MmError::Again) => false,
        Err(error) => panic!("{error}"),
    }
}

fn soft_dirty(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_pages();
    let (_stay, Some(_only)) = (m.stay(&pages), m.stage.soft_dirty.try_lock()) else { return false };
    let (space, ledger, at) = (&m.stage.space, &m.stage.ledger, hvas(&pages));
    space.clear_soft_dirty(&mut m.idle, at).unwrap();
    let looks = [0; 3].map(|_| {
        std::thread::yield_now();
        pages.clone().map(|page| ledger.look(page)).collect::<Vec<_>>()
    });
    let written = space.soft_dirty(at).unwrap();
    for (index, page) in pages.enumerate() {
        let surely = ledger.was_written(page, looks.each_ref().map(|look| &look[index]), |_| true);
        if surely && !written.iter().any(|span| span.contains(hva(page))) {
            m.stage.wrong(|| format!("page {page} was written, and is not soft-dirty"));
        }
    }
    true
}

/// Merges some pages at a time: those that were dropped and read, and those that are alike.
fn merge(m: &mut Meddler<'_>) -> bool {
    let pages = m.random.below(PAGES);
    m.stage.ksm.scan(&mut m.idle, pages) > 0
}

fn unmerge(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_blocks();
    let _stay = m.stay(&pages);
    for advice in [Advice::Unmergeable, Advice::Mergeable] {
        // Without room for copies, some pages stay merged.
        with_room(m.stage.space.madvise(&mut m.idle, hvas(&pages), advice));
    }
    true
}

/// Some pages become protnone, and move to the node that uses them.
fn balance(m: &mut Meddler<'_>) -> bool {
    let bytes = PAGE_SIZE * m.random.below(PAGES);
    let policy = m.random.below(m.stage.balancers.len() as u64) as usize;
    m.stage.balancers[policy].scan(&mut m.idle, bytes).unwrap();
    true
}

fn young(m: &mut Meddler<'_>) -> bool {
    let (pages, young) = (m.some_pages(), m.random.pick(&[Test, Clear, ClearAndFlush]));
    m.stage.space.young(&mut m.idle, hvas(&pages), young)
}

/// Loads and stores as the host.
fn access(m: &mut Meddler<'_>) -> bool {
    let pages = m.some_pages();
    let (space, ledger, idle) = (&m.stage.space, &m.stage.ledger, &mut m.idle);
    for page in pages.take(16) {
        let at = hva(page) + m.lane.offset();
        // Some pages are protected or not there at the moment.
        if m.lane.owns(ledger, page) && m.random.one_in(2) {
            let _ = m.lane.store(ledger, page, |line| space.write(idle, at, line));
        } else if let Ok(Err(wrong)) = m.lane.load(ledger, page, |line| space.read(idle, at, line)) {
            m.stage.wrong(|| format!("the host reads {wrong}"));
        }
    }
    true
}

/// Registers a VM, maps some pages in it, and drops it. The VM is told to release all of them.
fn visit(m: &mut Meddler<'_>) -> bool {
    let (space, idle) = (&m.stage.space, &mut m.idle);
    let vm = Arc::new(Vm::<Ept4NoAd, _>::builder(HostView::new(space)).build().unwrap());
    space.register(&vm);
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, hva(0)))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for _ in 0..32 {
        let access = m.random.pick(&[Access::Read, Access::Write]);
        let gpa = Gfn(m.random.below(PAGES)).gpa() + m.random.below(PAGE_SIZE);
        let _ = vcpu.fault(idle, Fault { gpa, access });
    }
    drop(vcpu);
    assert!(space.unregister(idle, &vm));
    vm.collect(idle);
    if vm.stats().leaves != [0; 3] {
        m.stage.wrong(|| format!("after its release a VM holds {:?}", vm.stats().leaves));
    }
    true
}

/// Raises or lowers the limit of the guests' group.
fn limit(m: &mut Meddler<'_>) -> bool {
    m.stage.groups.set_limit(m.random.pick(&LIMITS));
    true
}

fn harvest(m: &mut Meddler<'_>) -> bool {
    let Some(mut log) = m.stage.log.try_lock() else { return false };
    let Some(log) = &mut *log else { return false };
    if let Some(page) = log.harvest(&mut m.idle, &m.stage.ledger, |_| std::thread::yield_now()) {
        m.stage.wrong(|| format!("page {page} was written, and the dirty log does not tell"));
    }
    true
}

/// Returns memory of free frames to the system, including frames that were zeroed ahead.
fn trim(m: &mut Meddler<'_>) -> bool {
    m.stage.arena.trim().unwrap() > 0
}
