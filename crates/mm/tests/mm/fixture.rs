//! The fixture of most tests: an arena that poisons free frames, an address space, and a secondary MMU that
//! records its notifications.

use parking_lot::Mutex;
use slat::{Access, Again, Event, HostPage, Hva, Idle, PAGE_SIZE, Pages, Reason, SecondaryMmu, Span};
use slat_mm::{AddressSpace, AddressSpaceBuilder, Arena, Backing, Place, Prot, Swap, SwapBuilder};
use std::sync::Arc;

/// Tests map memory from here on. The address is aligned to 1 GiB.
pub const BASE: Hva = Hva(0x4000_0000);

/// Tests map no page at or above this number.
const ALL: u64 = 8192;

/// `count` pages from page `first` of the test's memory.
pub fn pages(first: u64, count: u64) -> Span<Hva> {
    Span::sized(at(first), count * PAGE_SIZE)
}

/// The address of page `page` of the test's memory.
pub fn at(page: u64) -> Hva {
    BASE + page * PAGE_SIZE
}

/// One change, as a secondary MMU sees it.
#[derive(Clone, Debug)]
pub struct Notification {
    pub hvas: Span<Hva>,
    pub why: Reason,
    pub may_block: bool,
    /// The state of each page when the call came.
    pub before: Vec<Option<HostPage>>,
    /// The state of each page after the change.
    pub after: Vec<Option<HostPage>>,
    /// References of the frames in `before` after the change: the frames may not be free yet.
    pub references: Vec<u32>,
    /// The changes that the address space reported page by page.
    pub told: Vec<(Span<Hva>, Option<HostPage>)>,
}

pub struct Recorder {
    space: Arc<AddressSpace>,
    log: Mutex<Vec<Notification>>,
}

impl Recorder {
    pub fn register(space: &Arc<AddressSpace>) -> Arc<Self> {
        let recorder = Arc::new(Self { space: space.clone(), log: Mutex::default() });
        space.register(&recorder);
        recorder
    }

    /// The changes recorded since the last call.
    pub fn take(&self) -> Vec<Notification> {
        std::mem::take(&mut self.log.lock())
    }

    /// Returns the only change recorded since the last call. Panics if there was not exactly one.
    pub fn only(&self) -> Notification {
        let mut seen = self.take();
        assert_eq!(seen.len(), 1, "one notification: {seen:?}");
        seen.remove(0)
    }

    fn snapshot(&self, hvas: Span<Hva>) -> Vec<Option<HostPage>> {
        // Of an unbounded range, only the part that tests map.
        let hvas = if hvas.covers(&pages(0, ALL)) { pages(0, ALL) } else { hvas };
        let count = hvas.len() / PAGE_SIZE;
        (0..count).map(|page| self.space.lookup(hvas.start + page * PAGE_SIZE, Access::Read)).collect()
    }
}

impl SecondaryMmu for Recorder {
    fn around(
        &self,
        idle: &mut Idle,
        Event { hvas, why, may_block }: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let before = self.snapshot(hvas);
        let mut told = ToldPages::default();
        change(idle, &mut told);
        let after = self.snapshot(hvas);
        let arena = self.space.arena();
        let references = before.iter().flatten().map(|page| arena.references(page.pfn)).collect();
        self.log.lock().push(Notification { hvas, why, may_block, before, after, references, told: told.0 });
        Ok(())
    }
}

/// Records the changes that are reported page by page.
#[derive(Default)]
struct ToldPages(Vec<(Span<Hva>, Option<HostPage>)>);

impl Pages for ToldPages {
    fn changed(&mut self, _: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        self.0.push((hvas, to));
    }

    fn flush(&mut self, _: &mut Idle) {}
    fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
}

/// An address space with a recorder.
pub struct Machine {
    pub idle: Idle,
    pub arena: Arc<Arena>,
    pub space: Arc<AddressSpace>,
    pub recorder: Arc<Recorder>,
}

impl Machine {
    pub fn new() -> Self {
        Self::with(false)
    }

    pub fn huge() -> Self {
        Self::with(true)
    }

    fn with(thp: bool) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().memory(64 << 20).build(&arena).unwrap();
        Self::on(AddressSpace::builder(&arena).thp(thp).swap(&swap))
    }

    /// A machine whose pages can be swapped out.
    pub fn with_swap(swap: SwapBuilder) -> (Self, Arc<Swap>) {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = swap.build(&arena).unwrap();
        (Self::on(AddressSpace::builder(&arena).thp(true).swap(&swap)), swap)
    }

    pub fn on(builder: AddressSpaceBuilder) -> Self {
        let space = builder.build().unwrap();
        let arena = space.arena().clone();
        let recorder = Recorder::register(&space);
        Self { idle: Idle::take().unwrap(), arena, space, recorder }
    }

    /// Maps `count` anonymous pages from page `first`.
    pub fn map(&self, first: u64, count: u64) -> Span<Hva> {
        let len = count * PAGE_SIZE;
        self.space.mmap(Place::Fixed(at(first)), len, Prot::ReadWrite, Backing::Anonymous).unwrap()
    }

    /// Writes its own number into each page.
    pub fn number(&mut self, first: u64, count: u64) {
        for page in first..first + count {
            self.put(page, page);
        }
    }

    pub fn put(&mut self, page: u64, value: u64) {
        self.space.write(&mut self.idle, at(page), &value.to_le_bytes()).unwrap();
    }

    pub fn get(&mut self, page: u64) -> u64 {
        get(&self.space, &mut self.idle, page)
    }

    /// Returns the page mapped at `page`. Does not fault the page in.
    pub fn look(&self, page: u64) -> Option<HostPage> {
        self.space.lookup(at(page), Access::Write)
    }

    /// Drops the address space. Returns whether every frame came back unharmed.
    pub fn all_free(self) -> bool {
        let Self { arena, space, recorder, .. } = self;
        drop((space, recorder));
        let stats = arena.stats();
        stats.in_use == 0 && stats.tables == 0 && stats.stale_writes == 0
    }
}

/// The number in a page, as this process reads it.
pub fn get(space: &AddressSpace, idle: &mut Idle, page: u64) -> u64 {
    let mut bytes = [0; 8];
    space.read(idle, at(page), &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}
