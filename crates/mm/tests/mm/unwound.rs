//! Is the address space whole after a secondary MMU has panicked, before or after the change?

use crate::fixture::{at, pages};
use crate::vm::{coherent, guest_on};
use slat::{
    Access, Again, Event, Fault, Gfn, HostPage, Hva, Idle, PAGE_SIZE, Pages, SecondaryMmu, Span, VcpuId,
};
use slat_mm::{AddressSpace, Advice, Arena, Backing, Ksm, MmError, Place, Prot, Swap};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const BEFORE: u32 = 1;
const AFTER: u32 = 2;

const AT_PAGE: u32 = 3;

/// Panics before or after a change, or when it is told of a page.
#[derive(Default)]
struct Panics {
    when: AtomicU32,
    /// Changes before the one that panics.
    skip: AtomicU32,
}

impl Panics {
    fn at(&self, when: u32) {
        if self.skip.load(SeqCst) == 0 && self.when.compare_exchange(when, 0, SeqCst, SeqCst).is_ok() {
            resume_unwind(Box::new("listener"));
        }
    }
}

struct Told<'a>(&'a Panics);

impl Pages for Told<'_> {
    fn changed(&mut self, _: &mut Idle, _: Span<Hva>, _: Option<HostPage>) {
        self.0.at(AT_PAGE);
    }
    fn flush(&mut self, _: &mut Idle) {}
    fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
}

impl SecondaryMmu for Panics {
    fn around(
        &self,
        idle: &mut Idle,
        _: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        self.at(BEFORE);
        change(idle, &mut Told(self));
        self.at(AFTER);
        _ = self.skip.fetch_update(SeqCst, SeqCst, |skip| skip.checked_sub(1));
        Ok(())
    }
}

/// A space, and a listener that panics when it is told to.
struct Fixture {
    arena: Arc<Arena>,
    /// Frames of the arena in use without the space.
    in_use: u64,
    space: Arc<AddressSpace>,
    listener: Arc<Panics>,
}

impl Fixture {
    /// The listener is not registered yet.
    fn new(space: impl FnOnce(&Arc<Arena>) -> Arc<AddressSpace>) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xAA).build().unwrap();
        let in_use = arena.stats().in_use;
        let space = space(&arena);
        Self { arena, in_use, space, listener: Arc::default() }
    }

    /// Registers the listener, and maps eight pages that contain ones.
    fn of_ones(idle: &mut Idle, space: impl FnOnce(&Arc<Arena>) -> Arc<AddressSpace>) -> Self {
        let fixture = Self::new(space);
        fixture.space.register(&fixture.listener);
        fixture.map(8);
        fixture.space.write(idle, at(0), &vec![1; 8 * PAGE_SIZE as usize]).unwrap();
        fixture
    }

    /// Maps the first pages.
    fn map(&self, count: u64) {
        let place = Place::Fixed(at(0));
        self.space.mmap(place, pages(0, count).len(), Prot::ReadWrite, Backing::Anonymous).unwrap();
    }

    /// Runs an operation during which the listener panics. Returns whether it did.
    fn panics<R>(&self, when: u32, operation: impl FnOnce(&AddressSpace) -> R) -> bool {
        self.listener.when.store(when, SeqCst);
        catch_unwind(AssertUnwindSafe(|| operation(&self.space))).is_err()
    }

    /// Drops the space. No frame of it is in use then, and none was written after it was freed.
    fn end(self, context: impl Debug) {
        let Self { arena, in_use, space, listener } = self;
        drop((space, listener));
        assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (in_use, 0), "{context:?}");
    }
}

fn plain(arena: &Arc<Arena>) -> Arc<AddressSpace> {
    AddressSpace::builder(arena).build().unwrap()
}

/// Eight pages that contain ones, and an operation on them during which a listener panics; then `check`.
fn after_panic<R>(
    operation: impl Fn(&AddressSpace, &mut Idle) -> Result<R, MmError>,
    check: impl Fn(&AddressSpace, &mut Idle, u32),
) {
    for when in [BEFORE, AFTER] {
        let mut idle = Idle::take().unwrap();
        let fixture = Fixture::of_ones(&mut idle, plain);
        let space = &fixture.space;
        space.take_soft_dirty(&mut idle, pages(0, 8)).unwrap();
        assert!(fixture.panics(when, |space| operation(space, &mut idle)), "the panic reaches the caller");
        check(space, &mut idle, when);
        // Nothing is claimed or counted any more.
        space.munmap(&mut idle, pages(0, 64)).unwrap();
        fixture.map(64);
        assert_eq!(byte(space, &mut idle, 0), Ok(0));
        space.exit(&mut idle).unwrap();
        fixture.end(when);
    }
}

fn byte(space: &AddressSpace, idle: &mut Idle, page: u64) -> Result<u8, MmError> {
    let mut byte = [9];
    space.read(idle, at(page), &mut byte).map(|()| byte[0])
}

#[test]
fn a_page_that_was_written_is_reported_after_a_panic() {
    let written = |space: &AddressSpace, idle: &mut Idle| {
        space.write(idle, at(3), &[2])?;
        space.take_soft_dirty(idle, pages(0, 8))
    };
    after_panic(written, |space, idle, _| {
        let taken = space.take_soft_dirty(idle, pages(0, 8)).unwrap();
        assert!(taken.iter().any(|span| span.contains(at(3))), "{taken:?}");
        assert_eq!(space.take_soft_dirty(idle, pages(0, 8)), Ok(vec![]));
    });
}

#[test]
fn a_range_is_mapped_after_a_panic_of_munmap() {
    after_panic(
        |space, idle| space.munmap(idle, pages(2, 2)),
        |space, idle, when| {
            assert_eq!(byte(space, idle, 2), Ok(u8::from(when == BEFORE)));
            assert_eq!(byte(space, idle, 4), Ok(1));
            space.munmap(idle, pages(2, 2)).unwrap();
            assert_eq!(byte(space, idle, 2), Err(MmError::NotMapped(at(2))));
            let again = space.mmap(Place::Fixed(at(2)), PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous);
            assert_eq!(again, Ok(pages(2, 1)));
        },
    );
}

#[test]
fn permission_is_as_before_after_a_panic_of_mprotect() {
    for prot in [Prot::Read, Prot::None] {
        after_panic(
            |space, idle| space.mprotect(idle, pages(2, 2), prot),
            |space, idle, _| {
                space.write(idle, at(2), &[7]).unwrap();
                space.mprotect(idle, pages(2, 2), prot).unwrap();
                assert!(space.write(idle, at(2), &[8]).is_err(), "the second call withdraws it");
                space.mprotect(idle, pages(2, 2), Prot::Read).unwrap();
                assert_eq!((byte(space, idle, 2), byte(space, idle, 3)), (Ok(7), Ok(1)));
            },
        );
    }
}

#[test]
fn a_range_is_in_one_place_after_a_panic_of_mremap() {
    after_panic(
        |space, idle| space.mremap(idle, pages(2, 2), 3 * PAGE_SIZE, Place::Fixed(at(32))),
        |space, idle, when| {
            let (here, gone) = if when == BEFORE { (2, 32) } else { (32, 2) };
            assert_eq!((byte(space, idle, here), byte(space, idle, here + 1)), (Ok(1), Ok(1)));
            assert_eq!(byte(space, idle, gone), Err(MmError::NotMapped(at(gone))));
            assert_eq!(
                byte(space, idle, 34),
                if when == BEFORE { Err(MmError::NotMapped(at(34))) } else { Ok(0) }
            );
        },
    );
}

/// The part that is cut off is unmapped first, and the panic comes there.
#[test]
fn a_range_stays_after_a_panic_while_its_end_is_cut_off() {
    after_panic(
        |space, idle| space.mremap(idle, pages(2, 3), 2 * PAGE_SIZE, Place::Fixed(at(32))),
        |space, idle, when| {
            assert_eq!((byte(space, idle, 2), byte(space, idle, 3)), (Ok(1), Ok(1)));
            assert_eq!(byte(space, idle, 4), Ok(u8::from(when == BEFORE)));
            assert_eq!(byte(space, idle, 32), Err(MmError::NotMapped(at(32))));
            // The end is a mapping of its own now.
            space.munmap(idle, pages(4, 1)).unwrap();
            space.mremap(idle, pages(2, 2), 2 * PAGE_SIZE, Place::Fixed(at(32))).unwrap();
        },
    );
}

#[test]
fn the_contents_are_kept_or_gone_after_a_panic_of_other_changes() {
    let whole = |space: &AddressSpace, idle: &mut Idle, _: u32| assert_eq!(byte(space, idle, 2), Ok(1));
    after_panic(AddressSpace::fork, whole);
    after_panic(|space, idle| space.migrate(idle, pages(0, 8)), whole);
    after_panic(
        |space, idle| space.dontneed(idle, pages(0, 8)),
        |space, idle, when| assert_eq!(byte(space, idle, 2), Ok(u8::from(when == BEFORE))),
    );
    after_panic(
        |space, idle| space.reap(idle, pages(0, 8)),
        |space, idle, when| assert_eq!(byte(space, idle, 2), Ok(u8::from(when == BEFORE))),
    );
}

/// Lets the listener panic at each notification of a merge in turn. A frame that entries share is neither freed nor
/// written to.
#[test]
fn merged_pages_keep_their_contents_after_a_panic() {
    let mut panics = 0;
    for (when, skip) in (0..8).flat_map(|skip| [BEFORE, AFTER, AT_PAGE].map(|when| (when, skip))) {
        let mut idle = Idle::take().unwrap();
        let fixture = Fixture::of_ones(&mut idle, plain);
        let space = &fixture.space;
        let ksm = Ksm::builder(&fixture.arena).merge_together(2).build().unwrap();
        space.madvise(&mut idle, pages(0, 8), Advice::Mergeable).unwrap();
        ksm.add(space).unwrap();
        ksm.scan(&mut idle, u64::MAX);
        fixture.listener.skip.store(skip, SeqCst);
        panics += u32::from(fixture.panics(when, |_| ksm.scan(&mut idle, u64::MAX)));
        fixture.listener.when.store(0, SeqCst);
        for page in 0..8 {
            assert_eq!(byte(space, &mut idle, page), Ok(1));
        }
        // Merged pages keep their contents while the others are written.
        space.write(&mut idle, at(0), &vec![2; 4 * PAGE_SIZE as usize]).unwrap();
        (0..3).for_each(|_| _ = ksm.scan(&mut idle, u64::MAX));
        for page in 0..8 {
            assert_eq!(byte(space, &mut idle, page), Ok(if page < 4 { 2 } else { 1 }), "{when} {skip}");
        }
        drop(ksm);
        fixture.end((when, skip));
    }
    assert!(panics > 6, "{panics}");
}

#[test]
fn pages_stay_or_come_back_after_a_panic_of_pageout() {
    for when in [BEFORE, AFTER, AT_PAGE] {
        let mut idle = Idle::take().unwrap();
        let fixture = Fixture::of_ones(&mut idle, |arena| {
            let swap = Swap::builder().memory(1 << 20).build(arena).unwrap();
            AddressSpace::builder(arena).swap(&swap).build().unwrap()
        });
        let space = &fixture.space;
        assert!(fixture.panics(when, |space| space.pageout(&mut idle, pages(0, 8))));
        for page in 0..8 {
            assert_eq!(byte(space, &mut idle, page), Ok(1));
        }
        assert_eq!(space.pageout(&mut idle, pages(0, 8)), Ok(8));
        space.write(&mut idle, at(0), &[2]).unwrap();
        assert_eq!((byte(space, &mut idle, 0), byte(space, &mut idle, 7)), (Ok(2), Ok(1)));
        fixture.end(when);
    }
}

/// A VM is notified of the same changes, before the listener that panics or after it.
#[test]
fn a_guest_beside_a_listener_that_panics_follows_its_host() {
    type Operation = fn(&AddressSpace, &mut Idle) -> bool;
    let operations: [Operation; 5] = [
        |space, idle| space.munmap(idle, pages(4, 600)).is_ok(),
        |space, idle| space.mprotect(idle, pages(4, 600), Prot::Read).is_ok(),
        |space, idle| space.mremap(idle, pages(300, 600), 600 * PAGE_SIZE, Place::Fixed(at(2048))).is_ok(),
        |space, idle| space.take_soft_dirty(idle, pages(0, 1024)).is_ok(),
        |space, idle| space.exit(idle).is_ok(),
    ];
    for (number, operation) in operations.into_iter().enumerate() {
        for (when, guest_first) in [(BEFORE, true), (BEFORE, false), (AFTER, true), (AFTER, false)] {
            let mut idle = Idle::take().unwrap();
            let fixture = Fixture::new(|arena| AddressSpace::builder(arena).thp(true).build().unwrap());
            let space = &fixture.space;
            if !guest_first {
                space.register(&fixture.listener);
            }
            let vm = guest_on(space, &mut idle, 1024);
            if guest_first {
                space.register(&fixture.listener);
            }
            fixture.map(1024);
            space.mprotect(&mut idle, pages(100, 100), Prot::Read).unwrap();
            let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
            let mut touch = |idle: &mut Idle, access| {
                for gfn in (0..1024).step_by(30).map(Gfn) {
                    _ = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access });
                }
            };
            touch(&mut idle, Access::Write);
            touch(&mut idle, Access::Read);
            assert!(fixture.panics(when, |space| operation(space, &mut idle)), "{number}");
            coherent(&vm, &mut idle, 1024);
            touch(&mut idle, Access::Read);
            touch(&mut idle, Access::Write);
            coherent(&vm, &mut idle, 1024);
            if number == 1 {
                assert!(space.write(&mut idle, at(150), &[1]).is_err(), "it was read-only before");
                space.write(&mut idle, at(10), &[1]).unwrap();
            }
            _ = operation(space, &mut idle);
            coherent(&vm, &mut idle, 1024);
            drop(vcpu);
            drop(vm);
            fixture.end((number, when));
        }
    }
}
