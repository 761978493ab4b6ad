//! Random operations on an address space, on a VM on top of it, and on its forks. The model is a map from pages
//! to numbers. After each operation the VM agrees with its host. In the end every page holds what the model
//! says, and every frame comes back.

use crate::fixture::{at, get, pages};
use crate::near_edges::near_edges;
use crate::swap_device::Disk;
use crate::thorough::thorough;
use crate::vm::{Guest, coherent, guest_on};
use proptest::prelude::*;
use slat::{Access, Fault, Gfn, Idle, PAGE_SIZE, VcpuId};
use slat_mm::{AddressSpace, Advice, Arena, Backing, File, Ksm, LruSettings, MmError, Place, Prot, Swap};
use slat_mm::{Balancer, Node, Pinned, Policy, Settings};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pages of the test's memory: three huge pages and a part of a fourth.
const PAGES: u64 = 3 * 512 + 40;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Anonymous,
    /// This page of the shared file.
    Shared(u64),
    /// This page of the private file.
    Private(u64),
}

#[derive(Clone, Debug)]
struct Page {
    prot: Prot,
    kind: Kind,
    /// The number written since the page was mapped or dropped, if any.
    own: Option<u64>,
}

impl Page {
    /// Whether the page lies beyond the end of its file, because the mapping has grown.
    fn is_past_end(&self) -> bool {
        matches!(self.kind, Kind::Shared(index) | Kind::Private(index) if index >= PAGES)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64, Prot, u8),
    Unmap(u64, u64),
    Protect(u64, u64, Prot),
    Drop(u64, u64),
    Write(u64, u64),
    Remap(u64, u64, u64, u64),
    Migrate(u64, u64),
    PageOut(u64, u64),
    /// Ages, and evicts this many pages.
    Reclaim(u64),
    Advise(u64, u64, Advice),
    Merge,
    Fork,
    Forget,
    GuestFault(u64, bool),
    Balance(Policy, u64),
    Pin(u64, u64),
    Unpin,
}

fn steps() -> impl Strategy<Value = (u8, Step)> {
    let page = near_edges(0..PAGES);
    let count = prop_oneof![1..20u64, 511..514u64, 300..1100u64];
    let range = (page.clone(), count).prop_map(|(first, count)| (first, count.min(PAGES - first)));
    let prot = prop_oneof![1 => Just(Prot::None), 1 => Just(Prot::Read), 3 => Just(Prot::ReadWrite)];
    let policy = prop_oneof![Just(Policy::Range), Just(Policy::Page), Just(Policy::PageBatched)];
    let few = (page.clone(), 1..20u64).prop_map(|(first, count)| (first, count.min(PAGES - first)));
    let step = prop_oneof![
        3 => (policy, 1..2 * PAGES).prop_map(|(policy, count)| Step::Balance(policy, count)),
        1 => few.prop_map(|(a, n)| Step::Pin(a, n)),
        1 => Just(Step::Unpin),
        4 => (range.clone(), prot.clone(), 0..5u8).prop_map(|((a, n), prot, kind)| Step::Map(a, n, prot, kind)),
        1 => range.clone().prop_map(|(a, n)| Step::Unmap(a, n)),
        2 => (range.clone(), prot).prop_map(|((a, n), prot)| Step::Protect(a, n, prot)),
        1 => range.clone().prop_map(|(a, n)| Step::Drop(a, n)),
        8 => (page.clone(), 0..5u64).prop_map(|(page, value)| Step::Write(page, value)),
        2 => (range.clone(), range.clone()).prop_map(|((a, n), (to, m))| Step::Remap(a, n, to, m)),
        2 => range.clone().prop_map(|(a, n)| Step::Migrate(a, n)),
        4 => range.clone().prop_map(|(a, n)| Step::PageOut(a, n)),
        3 => (1..600u64).prop_map(Step::Reclaim),
        2 => (range, any::<bool>()).prop_map(|((a, n), on)| {
            Step::Advise(a, n, if on { Advice::Mergeable } else { Advice::Unmergeable })
        }),
        2 => Just(Step::Merge),
        1 => Just(Step::Fork),
        1 => Just(Step::Forget),
        8 => (page, any::<bool>()).prop_map(|(page, write)| Step::GuestFault(page, write)),
    ];
    (0..3u8, step)
}

struct World {
    idle: Idle,
    arena: Arc<Arena>,
    vm: Arc<Guest>,
    ksm: Arc<Ksm>,
    shared: Arc<File>,
    private: Arc<File>,
    written: BTreeMap<u64, u64>,
    sides: Vec<(Arc<AddressSpace>, BTreeMap<u64, Page>)>,
    pinned: Vec<Pinned>,
    swap: Arc<Swap>,
}

impl World {
    fn new(thp: bool) -> Self {
        let mut idle = Idle::take().expect("one test to a thread");
        let arena = Arena::builder().limit(256 << 20).nodes(2).poison(0xdd).build().unwrap();
        // The arena is small, so that pages also go to the device.
        let swap = Swap::builder().memory(16 << 12).device(Disk::new(), 64 << 20).build(&arena).unwrap();
        let space =
            AddressSpace::builder(&arena).thp(thp).swap(&swap).lru(LruSettings::default()).build().unwrap();
        // Writes whole words. In an unoptimized build, single bytes take longer than all the steps.
        let page = |page: u64| (page + 1).to_le_bytes().repeat(512);
        let contents = (0..PAGES).map(page).collect::<Vec<_>>().concat();
        let ksm = Ksm::builder(&arena).max_page_sharing(3).use_zero_pages(thp).build().unwrap();
        ksm.add(&space).unwrap();
        Self {
            ksm,
            vm: guest_on(&space, &mut idle, PAGES),
            shared: File::zeroed(&arena, PAGES * PAGE_SIZE),
            private: File::with_contents(&arena, contents),
            written: BTreeMap::new(),
            sides: vec![(space, BTreeMap::new())],
            pinned: Vec::new(),
            swap,
            idle,
            arena,
        }
    }

    fn value(&self, page: &Page) -> u64 {
        match page.kind {
            Kind::Shared(index) => self.written.get(&index).copied().unwrap_or(0),
            Kind::Private(index) => page.own.unwrap_or(index + 1),
            Kind::Anonymous => page.own.unwrap_or(0),
        }
    }

    fn step(&mut self, side: u8, step: &Step) {
        // Steps come from both nodes, so that balancing moves pages.
        Node(side % 2).run_here();
        let side = usize::from(side) % self.sides.len();
        let sides = self.sides.len();
        let (space, model) = &mut self.sides[side];
        let idle = &mut self.idle;
        let gap = |model: &BTreeMap<u64, Page>, first: u64, count: u64| {
            (first..first + count).find(|page| !model.contains_key(page))
        };
        match *step {
            Step::Map(first, count, prot, kind) => {
                let offset = first * PAGE_SIZE;
                let backing = match kind {
                    0 => Backing::Shared { file: self.shared.clone(), offset },
                    1 => Backing::Private { file: self.private.clone(), offset },
                    _ => Backing::Anonymous,
                };
                let done = space.mmap(Place::Fixed(at(first)), count * PAGE_SIZE, prot, backing);
                let free = (first..first + count).all(|page| !model.contains_key(&page));
                assert_eq!(done.is_ok(), free, "{done:?}");
                if free {
                    let kind = |page| match kind {
                        0 => Kind::Shared(page),
                        1 => Kind::Private(page),
                        _ => Kind::Anonymous,
                    };
                    let fresh = |page| (page, Page { prot, kind: kind(page), own: None });
                    model.extend((first..first + count).map(fresh));
                }
            }
            Step::Unmap(first, count) => {
                space.munmap(idle, pages(first, count)).unwrap();
                model.retain(|page, _| !(first..first + count).contains(page));
            }
            Step::Protect(first, count, prot) => {
                let done = space.mprotect(idle, pages(first, count), prot);
                match gap(model, first, count) {
                    Some(page) => assert_eq!(done, Err(MmError::NotMapped(at(page)))),
                    None => model.range_mut(first..first + count).for_each(|(_, page)| page.prot = prot),
                }
            }
            Step::Drop(first, count) => {
                space.dontneed(idle, pages(first, count)).unwrap();
                model.range_mut(first..first + count).for_each(|(_, page)| page.own = None);
            }
            Step::Write(page, value) => {
                let done = space.write(idle, at(page), &value.to_le_bytes());
                match model.get_mut(&page) {
                    None => assert_eq!(done, Err(MmError::NotMapped(at(page)))),
                    Some(Page { prot: Prot::ReadWrite, kind: Kind::Shared(index), .. }) => {
                        self.written.insert(*index, value);
                        done.unwrap();
                    }
                    Some(Page { prot: Prot::ReadWrite, own, .. }) => {
                        *own = Some(value);
                        done.unwrap();
                    }
                    Some(_) => assert_eq!(done, Err(MmError::Denied(at(page), Access::Write))),
                }
            }
            Step::Remap(first, count, to, len) => {
                let done = space.mremap(idle, pages(first, count), len * PAGE_SIZE, Place::Fixed(at(to)));
                if let Ok(new) = done {
                    assert_eq!(new, pages(to, len));
                    remap(model, (first, count), (to, len));
                }
            }
            Step::Migrate(first, count) => {
                space.migrate(idle, pages(first, count)).unwrap();
            }
            Step::PageOut(first, count) => {
                space.pageout(idle, pages(first, count)).unwrap();
            }
            Step::Reclaim(count) => reclaim(space, idle, count),
            Step::Advise(first, count, advice) => {
                let done = space.madvise(idle, pages(first, count), advice);
                assert_eq!(done.err(), gap(model, first, count).map(|page| MmError::NotMapped(at(page))));
            }
            Step::Merge => {
                // Scans to the end of a pass, then one more pass that finds the checksums unchanged.
                self.ksm.scan(idle, u64::MAX);
                self.ksm.scan(idle, u64::MAX);
            }
            Step::Fork if sides < 3 => {
                let copy = (space.fork(idle).unwrap(), model.clone());
                self.ksm.add(&copy.0).unwrap();
                self.sides.push(copy);
            }
            Step::Forget if sides > 1 => drop(self.sides.pop()),
            Step::Fork | Step::Forget => {}
            Step::GuestFault(page, write) => self.guest_fault(page, write),
            Step::Balance(policy, count) => {
                let balancer = Balancer::new(space, Settings { policy, ..Settings::default() });
                balancer.scan(idle, count * PAGE_SIZE).unwrap();
            }
            Step::Pin(first, count) => self.pinned.extend(space.pin(idle, pages(first, count))),
            Step::Unpin => drop(self.pinned.pop()),
        }
        coherent(&self.vm, &mut self.idle, PAGES);
        self.sides.iter().for_each(|(space, _)| generations_add_up(space));
    }

    fn guest_fault(&mut self, page: u64, write: bool) {
        let (space, model) = &self.sides[0];
        let access = if write { Access::Write } else { Access::Read };
        let fault = Fault { gpa: Gfn(page).gpa(), access };
        let done = self.vm.vcpu(VcpuId(0)).unwrap().fault(&mut self.idle, fault);
        let allowed = model.get(&page).is_some_and(|page| page.prot.allows(access) && !page.is_past_end());
        assert_eq!(done.is_ok(), allowed, "{done:?}");
        let mapped = space.lookup(at(page), access);
        assert!(!allowed || mapped.is_some_and(|page| page.writable || !write));
    }

    /// Checks that every page of every side holds what the model says. Then drops everything.
    fn finish(mut self) {
        for (space, model) in &self.sides {
            for (&number, page) in model {
                if page.prot.allows(Access::Read) && !page.is_past_end() {
                    assert_eq!(get(space, &mut self.idle, number), self.value(page), "page {number}");
                }
            }
        }
        let (arena, swap) = (self.arena.clone(), self.swap.clone());
        drop(self);
        assert_eq!(swap.stats().references, 0);
        let stats = arena.stats();
        assert_eq!((stats.in_use, stats.tables, stats.stale_writes), (0, 0, 0));
    }
}

fn reclaim(space: &AddressSpace, idle: &mut Idle, count: u64) {
    let seq = space.lru().unwrap().generations()[0].generations.last().unwrap().seq;
    assert_eq!(space.age(idle, Node(0), seq, true, true), Ok(true));
    space.reclaim(idle, count);
}

/// Every mapped page is in a generation, and the counts of the generations are right.
fn generations_add_up(space: &AddressSpace) {
    let nodes = space.lru().unwrap().generations();
    let mut counted = BTreeMap::new();
    for generation in nodes.iter().flat_map(|node| &node.generations) {
        *counted.entry(generation.seq).or_insert(0) += generation.anon + generation.file;
    }
    counted.retain(|_, pages| *pages > 0);
    let mut found = BTreeMap::new();
    for page in 0..2 * PAGES {
        match space.generation(at(page)) {
            Some(seq) => *found.entry(seq).or_insert(0) += 1,
            None => assert_eq!(space.lookup(at(page), Access::Read), None, "page {page}"),
        }
    }
    assert_eq!(counted, found);
}

/// Applies `mremap` to the model.
fn remap(model: &mut BTreeMap<u64, Page>, (first, count): (u64, u64), (to, len): (u64, u64)) {
    let moved: Vec<Page> =
        (first..first + count).map(|page| model.remove(&page).expect("one mapping covers it")).collect();
    let last = moved[moved.len() - 1].clone();
    let grown = (1..).map(|further| {
        let kind = match last.kind {
            Kind::Anonymous => Kind::Anonymous,
            Kind::Shared(index) => Kind::Shared(index + further),
            Kind::Private(index) => Kind::Private(index + further),
        };
        Page { kind, own: None, ..last }
    });
    for (page, contents) in (to..to + len).zip(moved.into_iter().chain(grown)) {
        assert!(model.insert(page, contents).is_none(), "the target was free");
    }
}

/// Writes past the end of a file are refused. The model leaves them out.
fn within_files(world: &World, side: u8, step: &Step) -> bool {
    let Step::Write(page, _) = step else { return true };
    let (_, model) = &world.sides[usize::from(side) % world.sides.len()];
    !model.get(page).is_some_and(Page::is_past_end)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: thorough(400, 20),
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn memory_is_what_a_map_says_it_is(thp: bool, steps in prop::collection::vec(steps(), 1..80)) {
        let mut world = World::new(thp);
        for (side, step) in &steps {
            if within_files(&world, *side, step) {
                world.step(*side, step);
            }
        }
        world.finish();
    }
}
