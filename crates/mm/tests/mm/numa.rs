//! Tests of NUMA balancing: which pages become protnone, what a hint fault does, and what secondary MMUs hear.

use crate::fixture::{BASE, at, pages};
use parking_lot::Mutex;
use slat::{Access, Again, Event, HostPage, Hva, Idle, Level, PAGE_SIZE, Pages, Reason, SecondaryMmu, Span};
use slat_mm::*;
use std::sync::Arc;
use std::time::Duration;

/// One notification.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Notification {
    why: Reason,
    hvas: Span<Hva>,
    /// The changes reported within it.
    changed: Vec<Span<Hva>>,
    flushes: usize,
}

/// A secondary MMU that records its notifications.
#[derive(Default)]
struct Recorder(Mutex<Vec<Notification>>);

impl Pages for Notification {
    fn changed(&mut self, _: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        assert!(to.is_none() || self.why != Reason::Numa, "protnone maps nothing");
        assert!(self.hvas.covers(&hvas), "the change was not announced");
        self.changed.push(hvas);
    }
    fn flush(&mut self, _: &mut Idle) {
        self.flushes += 1;
    }
    fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
}

impl SecondaryMmu for Recorder {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let mut heard = Notification { why: event.why, hvas: event.hvas, changed: Vec::new(), flushes: 0 };
        change(idle, &mut heard);
        self.0.lock().push(heard);
        Ok(())
    }
}

/// A machine of two nodes. The thread starts on node 0.
struct Machine {
    idle: Idle,
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    ear: Arc<Recorder>,
}

impl Machine {
    fn new(thp: bool) -> Self {
        Node(0).run_here();
        let arena = Arena::builder().limit(64 << 20).nodes(2).poison(0xdd).build().unwrap();
        let space = AddressSpace::builder(&arena).thp(thp).build().unwrap();
        let ear = Arc::new(Recorder::default());
        space.register(&ear);
        Self { idle: Idle::take().unwrap(), arena, space, ear }
    }

    /// Maps anonymous memory, and writes its own number into each page.
    fn map(&mut self, first: u64, count: u64) {
        let len = count * PAGE_SIZE;
        self.space.mmap(Place::Fixed(at(first)), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
        for page in first..first + count {
            self.put(page, page);
        }
    }

    fn put(&mut self, page: u64, value: u64) {
        self.space.write(&mut self.idle, at(page), &value.to_le_bytes()).unwrap();
    }

    fn get(&mut self, page: u64) -> u64 {
        crate::fixture::get(&self.space, &mut self.idle, page)
    }

    /// The node of the page mapped at `page`, and whether it is writable. `None` where it is protnone.
    fn look(&self, page: u64) -> Option<(u8, bool)> {
        let found = self.space.lookup(at(page), Access::Read)?;
        Some((self.arena.node_of(found.pfn).0, found.writable))
    }

    /// One scan of everything.
    fn scan(&mut self, policy: Policy) -> Vec<Notification> {
        let settings = Settings { policy, ..Settings::default() };
        Balancer::new(&self.space, settings).scan(&mut self.idle, 1 << 40).unwrap();
        self.heard()
    }

    fn heard(&self) -> Vec<Notification> {
        std::mem::take(&mut self.ear.0.lock())
    }

    fn skipped(&self) -> [u64; 5] {
        Skip::ALL.map(|why| self.space.numa_stats().skipped(why))
    }

    /// Drops the address space. Returns whether every frame came back unharmed.
    fn all_free(self) -> bool {
        let Self { arena, space, ear, .. } = self;
        drop((space, ear));
        let stats = arena.stats();
        stats.in_use == 0 && stats.tables == 0 && stats.stale_writes == 0
    }
}

#[test]
fn a_hint_fault_maps_the_page_again_as_it_was() {
    let mut machine = Machine::new(false);
    machine.map(0, 4);
    machine.space.mprotect(&mut machine.idle, pages(2, 2), Prot::Read).unwrap();
    let before = [0, 1, 2, 3].map(|page| machine.space.lookup(at(page), Access::Read));
    machine.scan(Policy::PageBatched);
    assert_eq!([0, 1, 2, 3].map(|page| machine.look(page)), [None; 4]);
    assert_eq!([0, 1, 2, 3].map(|page| machine.get(page)), [0, 1, 2, 3]);
    assert_eq!([0, 1, 2, 3].map(|page| machine.space.lookup(at(page), Access::Read)), before);
    assert_eq!([true, true, false, false].map(Some), before.map(|page| page.map(|page| page.writable)));
    assert!(machine.space.write(&mut machine.idle, at(2), b"x").is_err());
    let stats = machine.space.numa_stats();
    assert_eq!((stats.protnone, stats.hint_faults, stats.local_faults, stats.migrated), (4, 4, 4, 0));
    assert!(machine.heard().is_empty(), "a hint fault sends no notification");
    assert!(machine.all_free());
}

#[test]
fn a_page_moves_at_the_second_strike_of_the_same_node() {
    let mut machine = Machine::new(false);
    machine.map(0, 2);
    for (strike, node) in [(1, 0), (2, 1), (3, 1)] {
        Node(0).run_here();
        machine.scan(Policy::PageBatched);
        Node(1).run_here();
        assert_eq!(machine.get(0), 0);
        assert_eq!(machine.look(0), Some((node, true)), "hint fault {strike}");
    }
    let stats = machine.space.numa_stats();
    assert_eq!((stats.hint_faults, stats.local_faults, stats.migrated), (3, 1, 1));
    assert_eq!(machine.look(1), None, "its neighbour was not accessed");
    assert_eq!(machine.space.stats().faults, 2 + 3);
    assert!(machine.all_free());
}

#[test]
fn a_page_that_two_nodes_use_in_turn_stays() {
    let mut machine = Machine::new(false);
    machine.map(0, 1);
    for turn in 0..6 {
        machine.scan(Policy::PageBatched);
        Node(turn % 2).run_here();
        machine.get(0);
    }
    let stats = machine.space.numa_stats();
    assert_eq!((stats.hint_faults, stats.local_faults, stats.migrated), (6, 3, 0));
}

#[test]
fn the_move_is_announced_and_the_old_frame_is_freed() {
    let mut machine = Machine::new(false);
    machine.map(0, 1);
    Node(1).run_here();
    machine.scan(Policy::PageBatched);
    machine.put(0, 70);
    machine.scan(Policy::PageBatched);
    let old = {
        // The page stays protnone in place: its frame is the only one of node 0, except for the tables'.
        let stats = machine.arena.node_stats(Node(0));
        stats.in_use - machine.arena.stats().tables
    };
    assert_eq!(old, 1);
    assert_eq!(machine.get(0), 70);
    let expected = Notification { why: Reason::Migrate, hvas: pages(0, 1), changed: Vec::new(), flushes: 0 };
    assert_eq!(machine.heard(), [expected]);
    assert_eq!(machine.arena.node_stats(Node(0)).in_use, machine.arena.stats().tables);
    assert_eq!(machine.space.stats().notified(Reason::Migrate), 1);
    assert!(machine.all_free());
}

#[test]
fn a_huge_page_moves_whole() {
    let mut machine = Machine::new(true);
    let len = Level::M2.bytes();
    machine.space.mmap(Place::Fixed(BASE), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
    machine.put(300, 300);
    Node(1).run_here();
    for _ in 0..2 {
        let heard = machine.scan(Policy::PageBatched);
        assert_eq!(heard[0].changed, [pages(0, 512)]);
        assert_eq!(machine.look(300), None);
        assert_eq!(machine.get(300), 300);
    }
    let found = machine.space.lookup(at(300), Access::Write).unwrap();
    assert_eq!((found.level, found.writable, machine.look(300)), (Level::M2, true, Some((1, true))));
    let stats = machine.space.numa_stats();
    assert_eq!((stats.protnone, stats.told, stats.hint_faults, stats.migrated), (1024, 2, 2, 512));
    assert!(machine.all_free());
}

#[test]
fn where_its_node_is_full_a_page_stays() {
    let mut machine = Machine::new(false);
    machine.map(0, 1);
    let arena = machine.arena.clone();
    let full: Vec<_> = std::iter::from_fn(|| arena.page_on(Node(1), Level::K4).ok()).collect();
    Node(1).run_here();
    for _ in 0..2 {
        machine.scan(Policy::PageBatched);
        assert_eq!(machine.get(0), 0);
    }
    assert_eq!(machine.look(0), Some((0, true)));
    let stats = machine.space.numa_stats();
    assert_eq!((stats.hint_faults, stats.migrated, stats.no_room), (2, 0, 1));
    drop(full);
    machine.scan(Policy::PageBatched);
    machine.get(0);
    assert_eq!(machine.look(0), Some((1, true)));
    assert!(machine.all_free());
}

#[test]
fn every_reason_to_skip_is_counted() {
    let mut machine = Machine::new(false);
    let [shared, pinned, already, no_access, file] = [1, 2, 4, 8, 16];
    machine.map(0, already);
    machine.scan(Policy::PageBatched);
    assert_eq!(machine.skipped(), [0; 5]);

    machine.map(100, no_access);
    machine.space.mprotect(&mut machine.idle, pages(100, no_access), Prot::None).unwrap();
    machine.heard();
    let shm = File::zeroed(&machine.arena, file * PAGE_SIZE);
    let backing = Backing::Shared { file: shm.clone(), offset: 0 };
    machine.space.mmap(Place::Fixed(at(200)), file * PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
    machine.put(200, 1);
    let backing = Backing::Private { file: shm, offset: PAGE_SIZE };
    machine.space.mmap(Place::Fixed(at(300)), shared * PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
    machine.get(300);
    machine.map(400, pinned);
    let device = machine.space.pin(&mut machine.idle, pages(400, pinned)).unwrap();

    let heard = machine.scan(Policy::PageBatched);
    assert_eq!(heard, [], "nothing changes, so no notification");
    assert_eq!(machine.skipped(), [shared, pinned, already, no_access, file]);
    assert_eq!(machine.space.numa_stats().protnone, already);
    drop(device);
    machine.scan(Policy::PageBatched);
    assert_eq!(machine.space.numa_stats().protnone, already + pinned, "no page is pinned now");
    assert_eq!(machine.skipped(), [2 * shared, pinned, 2 * already, 2 * no_access, 2 * file]);
    assert!(machine.all_free());
}

/// Pages 0, 1 and 3 of the first 2 MiB, and page 0 of the third, may change. Page 2 is pinned, and so are all
/// pages that are there of the fifth.
fn told(policy: Policy) -> (Vec<Notification>, NumaStats) {
    let mut machine = Machine::new(false);
    machine.map(0, 4);
    machine.map(1024, 1);
    machine.map(2048, 1);
    let devices = [2, 2048].map(|page| machine.space.pin(&mut machine.idle, pages(page, 1)).unwrap());
    // One mapping for each 2 MiB. A mapping ends where it ends.
    let heard = machine.scan(policy);
    let stats = machine.space.numa_stats();
    let again = machine.scan(policy);
    let expected = match policy {
        Policy::PageBatched => 0,
        // A pinned page stays present, whatever the scan asks for.
        Policy::Range | Policy::Page => 2,
    };
    assert_eq!(again.len(), expected, "every page is protnone: {again:?}");
    assert!(again.iter().all(|heard| heard.changed.is_empty() && heard.flushes == 0));
    assert_eq!([0, 1, 2, 3, 1024, 2048].map(|page| machine.get(page)), [0, 1, 2, 3, 1024, 2048]);
    drop(devices);
    assert!(machine.all_free());
    (heard, stats)
}

fn heard(why: Reason, hvas: Span<Hva>, changed: &[u64], flushes: usize) -> Notification {
    Notification { why, hvas, changed: changed.iter().map(|&page| pages(page, 1)).collect(), flushes }
}

#[test]
fn range_announces_whole_ranges_and_tells_nothing_inside() {
    let (all, stats) = told(Policy::Range);
    let ranges = [pages(0, 4), pages(1024, 1), pages(2048, 1)];
    assert_eq!(all, ranges.map(|range| heard(Reason::Clear, range, &[], 0)));
    assert_eq!((stats.notified, stats.told, stats.flushed, stats.protnone), (3, 0, 0, 4));
}

#[test]
fn page_tells_each_page_that_changes_and_flushes_after_it() {
    let (all, stats) = told(Policy::Page);
    let expected = [
        heard(Reason::Numa, pages(0, 4), &[0, 1, 3], 3),
        heard(Reason::Numa, pages(1024, 1), &[1024], 1),
        heard(Reason::Numa, pages(2048, 1), &[], 0),
    ];
    assert_eq!(all, expected);
    assert_eq!((stats.notified, stats.told, stats.flushed, stats.protnone), (3, 4, 4, 4));
}

#[test]
fn page_batched_tells_the_same_pages_in_runs_and_leaves_flushing_to_the_end() {
    let (all, stats) = told(Policy::PageBatched);
    let mut first = heard(Reason::Numa, pages(0, 4), &[], 0);
    first.changed = vec![pages(0, 2), pages(3, 1)];
    assert_eq!(all, [first, heard(Reason::Numa, pages(1024, 1), &[1024], 0)]);
    assert_eq!((stats.notified, stats.told, stats.flushed, stats.protnone), (2, 3, 0, 4));
}

#[test]
fn one_stretch_is_one_notification_from_the_first_page_to_the_last() {
    for (stretch, expected) in [(16 << 20, 1), (4 << 20, 2), (2 << 20, 3), (0, 3)] {
        let mut machine = Machine::new(false);
        let len = 2048 * PAGE_SIZE;
        machine.space.mmap(Place::Fixed(BASE), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
        for page in [5, 700, 1030] {
            machine.put(page, page);
        }
        let settings = Settings { stretch, ..Settings::default() };
        Balancer::new(&machine.space, settings).scan(&mut machine.idle, len).unwrap();
        let all = machine.heard();
        assert_eq!(all.len(), expected, "by {stretch}");
        assert_eq!(all[0].hvas.start, at(5));
        assert_eq!(all[expected - 1].hvas.end, at(1031));
    }
}

#[test]
fn scans_go_round_in_the_portions_that_were_asked_for() {
    let mut machine = Machine::new(false);
    machine.map(0, 6);
    machine.map(600, 4);
    let balancer = Balancer::new(&machine.space, Settings::default());
    let scan = |machine: &mut Machine, count: u64| {
        balancer.scan(&mut machine.idle, count * PAGE_SIZE).unwrap();
        let changed = machine.heard().into_iter().flat_map(|heard| heard.changed);
        changed.map(|hvas| hvas.len() / PAGE_SIZE).collect::<Vec<_>>()
    };
    assert_eq!(scan(&mut machine, 4), [4]);
    assert_eq!(scan(&mut machine, 4), [2, 2]);
    assert_eq!(scan(&mut machine, 4), [2], "the other pages are protnone already");
    for page in [0, 3, 602] {
        machine.get(page);
    }
    assert_eq!(scan(&mut machine, u64::MAX / PAGE_SIZE), [1, 1, 1], "one round, not more");
    assert_eq!(scan(&mut machine, 0), []);
    machine.space.munmap(&mut machine.idle, Span::new(at(0), at(604))).unwrap();
    machine.heard();
    assert_eq!(scan(&mut machine, 100), [], "nothing is mapped");
    drop(balancer);
    assert!(machine.all_free());
}

/// Other operations on a protnone page.
#[test]
fn protnone_pages_are_shared_moved_protected_and_dropped_like_others() {
    let mut machine = Machine::new(false);
    machine.map(0, 8);
    machine.scan(Policy::PageBatched);
    let child = machine.space.fork(&mut machine.idle).unwrap();
    machine.put(0, 100);
    assert_eq!((crate::fixture::get(&child, &mut machine.idle, 0), machine.get(0)), (0, 100));
    assert_eq!(crate::fixture::get(&child, &mut machine.idle, 1), 1);
    drop(child);
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(1, 1)), Ok(1));
    assert_eq!((machine.look(1), machine.get(1)), (None, 1));
    machine.space.mprotect(&mut machine.idle, pages(2, 2), Prot::None).unwrap();
    assert!(machine.space.read(&mut machine.idle, at(2), &mut [0]).is_err());
    machine.space.mprotect(&mut machine.idle, pages(2, 2), Prot::ReadWrite).unwrap();
    machine.put(3, 103);
    assert_eq!((machine.get(2), machine.get(3)), (2, 103));
    let moved = machine.space.mremap(&mut machine.idle, pages(4, 1), PAGE_SIZE, Place::Fixed(at(900)));
    assert_eq!((moved, machine.get(900)), (Ok(pages(900, 1)), 4));
    machine.space.dontneed(&mut machine.idle, pages(5, 1)).unwrap();
    machine.space.munmap(&mut machine.idle, pages(6, 1)).unwrap();
    assert_eq!((machine.get(5), machine.get(7)), (0, 7));
    assert!(machine.all_free());
}

#[test]
fn a_huge_protnone_page_is_divided_where_a_part_changes() {
    let mut machine = Machine::new(true);
    let len = Level::M2.bytes();
    machine.space.mmap(Place::Fixed(BASE), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
    for page in [9, 10, 11] {
        machine.put(page, page);
    }
    machine.scan(Policy::PageBatched);
    machine.space.mprotect(&mut machine.idle, pages(10, 1), Prot::Read).unwrap();
    assert_eq!([9, 10, 11].map(|page| machine.look(page)), [None; 3]);
    assert_eq!([9, 10, 11].map(|page| machine.get(page)), [9, 10, 11]);
    assert_eq!([9, 10, 11].map(|page| machine.look(page)), [(0, true), (0, false), (0, true)].map(Some));
    assert_eq!(machine.space.numa_stats().hint_faults, 3, "one hint fault for each page");
    assert!(machine.all_free());
}

#[test]
fn the_scanner_scans_by_itself_until_it_is_dropped() {
    let mut machine = Machine::new(false);
    machine.map(0, 8);
    let settings = Settings { period: Duration::ZERO, ..Settings::default() };
    let scanner = NumaScanner::start(Balancer::new(&machine.space, settings));
    while machine.space.numa_stats().scanned < 80 {
        std::thread::yield_now();
    }
    drop(scanner);
    let scanned = machine.space.numa_stats().scanned;
    assert_eq!(machine.space.numa_stats().protnone, 8);
    assert_eq!((0..8).map(|page| machine.get(page)).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert_eq!(machine.space.numa_stats().scanned, scanned, "its thread has ended");
    // A scanner that waits for its next scan ends at once.
    let settings = Settings { period: Duration::from_secs(1 << 20), ..Settings::default() };
    drop(NumaScanner::start(Balancer::new(&machine.space, settings)));
    assert!(machine.all_free());
}
