//! Tests of soft-dirty tracking: it notices every write by a guest or the host, and nothing else.

use crate::fixture::*;
use crate::vm::guest_on;
use slat::{Access, Fault, Gfn, Hva, PAGE_SIZE, Reason, Span, VcpuId};
use slat_mm::{AddressSpace, Place, Prot};

/// A machine whose first `count` pages are there and clean.
fn clean(mut machine: Machine, count: u64) -> Machine {
    machine.map(0, count);
    machine.number(0, count);
    machine.space.clear_soft_dirty(&mut machine.idle, pages(0, count)).unwrap();
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::SoftDirty, pages(0, count)));
    assert!(seen.after.iter().flatten().all(|page| !page.writable));
    machine
}

fn written(space: &AddressSpace) -> Vec<Span<Hva>> {
    space.soft_dirty(pages(0, 4096)).unwrap()
}

#[test]
fn writes_are_noticed_and_reads_are_not() {
    let mut machine = clean(Machine::new(), 8);
    assert_eq!(machine.get(2), 2);
    assert_eq!(written(&machine.space), []);
    machine.put(2, 20);
    machine.put(3, 30);
    machine.put(6, 60);
    assert_eq!(written(&machine.space), [pages(2, 2), pages(6, 1)]);
    machine.space.clear_soft_dirty(&mut machine.idle, pages(0, 3)).unwrap();
    assert_eq!(written(&machine.space), [pages(3, 1), pages(6, 1)]);
    assert_eq!([2, 3, 6].map(|page| machine.get(page)), [20, 30, 60]);
    assert!(machine.all_free());
}

#[test]
fn the_writes_of_a_guest_are_noticed() {
    let mut machine = clean(Machine::new(), 8);
    let vm = guest_on(&machine.space, &mut machine.idle, 8);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut fault = |machine: &mut Machine, gfn: u64, access| {
        let _ = vcpu.fault(&mut machine.idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap();
    };
    fault(&mut machine, 1, Access::Read);
    fault(&mut machine, 4, Access::Write);
    assert_eq!(written(&machine.space), [pages(4, 1)]);
    machine.space.clear_soft_dirty(&mut machine.idle, pages(0, 8)).unwrap();
    let mapped = vm.memory().translate(&mut machine.idle, Gfn(4)).unwrap();
    assert!(!mapped.leaf.perms.allows(Access::Write), "the next write faults");
    fault(&mut machine, 4, Access::Write);
    assert_eq!(written(&machine.space), [pages(4, 1)]);
    drop(vcpu);
    drop(vm);
    assert!(machine.all_free());
}

/// A change to a clean page, and whether the page with this number then counts as written.
type Row = (&'static str, fn(&mut Machine), Vec<Span<Hva>>);

#[test]
fn other_changes_keep_what_is_known() {
    let rows: Vec<Row> = vec![
        ("migrate", |m| assert_eq!(m.space.migrate(&mut m.idle, pages(0, 8)), Ok(8)), vec![]),
        (
            "mprotect there and back",
            |m| {
                m.space.mprotect(&mut m.idle, pages(0, 8), Prot::None).unwrap();
                m.space.mprotect(&mut m.idle, pages(0, 8), Prot::ReadWrite).unwrap();
                assert_eq!(m.get(5), 5);
            },
            vec![],
        ),
        (
            "a fork, and a broken share",
            |m| {
                let _child = m.space.fork(&mut m.idle).unwrap();
                assert_eq!(m.get(3), 3);
                m.put(5, 50);
            },
            vec![pages(5, 1)],
        ),
        (
            "a write, and a fork",
            |m| {
                m.put(5, 50);
                drop(m.space.fork(&mut m.idle).unwrap());
            },
            vec![pages(5, 1)],
        ),
        (
            "a write, and mprotect",
            |m| {
                m.put(5, 50);
                m.space.mprotect(&mut m.idle, pages(0, 8), Prot::Read).unwrap();
            },
            vec![pages(5, 1)],
        ),
        (
            "dontneed, and a new page",
            |m| {
                m.space.dontneed(&mut m.idle, pages(5, 2)).unwrap();
                assert_eq!(m.get(5), 0);
            },
            vec![pages(5, 2)],
        ),
        (
            "reap, and a new page",
            |m| {
                m.space.reap(&mut m.idle, pages(5, 2)).unwrap();
                assert_eq!(m.get(5), 0);
            },
            vec![pages(5, 2)],
        ),
        (
            "a new mapping in place, never touched",
            |m| {
                m.space.munmap(&mut m.idle, pages(2, 2)).unwrap();
                m.map(2, 2);
            },
            vec![pages(2, 2)],
        ),
        (
            "made shorter, and longer again",
            |m| {
                let place = Place::Anywhere;
                m.space.mremap(&mut m.idle, pages(0, 8), 5 * PAGE_SIZE, place).unwrap();
                m.space.mremap(&mut m.idle, pages(0, 5), 8 * PAGE_SIZE, place).unwrap();
            },
            vec![pages(5, 3)],
        ),
        (
            "other pages moved there",
            |m| {
                m.map(100, 1);
                m.put(100, 7);
                m.space.munmap(&mut m.idle, pages(5, 1)).unwrap();
                m.space.mremap(&mut m.idle, pages(100, 1), PAGE_SIZE, Place::Fixed(at(5))).unwrap();
            },
            vec![pages(5, 1)],
        ),
        (
            "moved away, others moved there",
            |m| {
                m.space.mremap(&mut m.idle, pages(4, 2), 2 * PAGE_SIZE, Place::Fixed(at(200))).unwrap();
                m.map(100, 1);
                m.put(100, 7);
                m.space.mremap(&mut m.idle, pages(100, 1), PAGE_SIZE, Place::Fixed(at(5))).unwrap();
            },
            vec![pages(5, 1), pages(200, 2)],
        ),
    ];
    for (name, change, expected) in rows {
        let mut machine = clean(Machine::new(), 8);
        change(&mut machine);
        assert_eq!(written(&machine.space), expected, "{name}");
        assert!(machine.all_free(), "{name}");
    }
}

#[test]
fn what_a_device_may_store_to_counts_as_changed() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    let device = machine.space.pin(&mut machine.idle, pages(3, 1)).unwrap();
    machine.space.clear_soft_dirty(&mut machine.idle, pages(0, 8)).unwrap();
    // SAFETY: the frame belongs to the arena and is pinned, and the write takes one byte.
    unsafe { machine.arena.frame(device.frames()[0]).write(99) };
    assert_eq!(machine.space.take_soft_dirty(&mut machine.idle, pages(0, 8)), Ok(vec![pages(3, 1)]));
    assert_eq!(written(&machine.space), [pages(3, 1)], "it may store again");
    drop(device);
    machine.space.clear_soft_dirty(&mut machine.idle, pages(0, 8)).unwrap();
    assert_eq!(written(&machine.space), []);
    assert!(machine.all_free());
}

#[test]
fn a_huge_page_is_written_as_one_until_it_is_divided() {
    let mut machine = clean(Machine::huge(), 1024);
    machine.put(700, 1);
    assert_eq!(written(&machine.space), [pages(512, 512)]);
    machine.space.clear_soft_dirty(&mut machine.idle, pages(600, 300)).unwrap();
    machine.put(700, 2);
    assert_eq!(written(&machine.space), [pages(512, 88), pages(700, 1), pages(900, 124)]);
    assert!(machine.all_free());
}
