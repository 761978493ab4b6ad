//! A table of every operation and its reason. Its rows are those of the table in `change.rs`.

use crate::fixture::*;
use slat::{PAGE_SIZE, Reason, Young};
use slat_mm::{Advice, Balancer, Ksm, Place, Prot, Settings};

/// An operation on 8 present pages, and the reasons that it must tell, in order.
type Row = (&'static str, fn(&mut Machine), &'static [Reason]);

const ROWS: &[Row] = &[
    ("fault", |m| assert_eq!(m.get(3), 3), &[]),
    ("munmap", |m| m.space.munmap(&mut m.idle, pages(2, 3)).unwrap(), &[Reason::Unmap]),
    ("munmap of nothing", |m| m.space.munmap(&mut m.idle, pages(100, 3)).unwrap(), &[]),
    ("exit", |m| m.space.exit(&mut m.idle).unwrap(), &[Reason::Exit]),
    (
        "exit twice",
        |m| {
            m.space.exit(&mut m.idle).unwrap();
            m.space.exit(&mut m.idle).unwrap();
        },
        &[Reason::Exit],
    ),
    ("unregister", |m| assert!(m.space.unregister(&mut m.idle, &m.recorder)), &[Reason::Exit]),
    (
        "unregister, then changes",
        |m| {
            assert!(m.space.unregister(&mut m.idle, &m.recorder));
            m.space.dontneed(&mut m.idle, pages(0, 8)).unwrap();
            m.space.exit(&mut m.idle).unwrap();
        },
        &[Reason::Exit],
    ),
    ("dontneed", |m| m.space.dontneed(&mut m.idle, pages(2, 3)).unwrap(), &[Reason::Clear]),
    ("reap", |m| assert_eq!(m.space.reap(&mut m.idle, pages(2, 3)), Ok(3)), &[Reason::Unmap]),
    (
        "mprotect to read-only",
        |m| m.space.mprotect(&mut m.idle, pages(2, 3), Prot::Read).unwrap(),
        &[Reason::Protect],
    ),
    (
        "mprotect to none",
        |m| m.space.mprotect(&mut m.idle, pages(2, 3), Prot::None).unwrap(),
        &[Reason::Clear],
    ),
    ("mprotect to the same", |m| m.space.mprotect(&mut m.idle, pages(2, 3), Prot::ReadWrite).unwrap(), &[]),
    (
        "mprotect to less, to more",
        |m| {
            m.space.mprotect(&mut m.idle, pages(2, 3), Prot::Read).unwrap();
            m.space.mprotect(&mut m.idle, pages(2, 3), Prot::ReadWrite).unwrap();
            m.put(3, 30);
        },
        &[Reason::Protect],
    ),
    ("fork", |m| drop(m.space.fork(&mut m.idle).unwrap()), &[Reason::WriteProtect]),
    (
        "fork of read-only pages",
        |m| {
            m.space.mprotect(&mut m.idle, pages(0, 8), Prot::Read).unwrap();
            drop(m.space.fork(&mut m.idle).unwrap());
        },
        &[Reason::Protect],
    ),
    (
        "a write to a share",
        |m| {
            let _child = m.space.fork(&mut m.idle).unwrap();
            m.put(3, 30);
        },
        &[Reason::WriteProtect, Reason::ChangePte],
    ),
    (
        "a write to a page that is no longer shared",
        |m| {
            drop(m.space.fork(&mut m.idle).unwrap());
            m.put(3, 30);
        },
        &[Reason::WriteProtect],
    ),
    (
        "clear soft-dirty",
        |m| {
            m.space.clear_soft_dirty(&mut m.idle, pages(2, 3)).unwrap();
            m.put(3, 30);
            m.space.soft_dirty(pages(0, 8)).unwrap();
        },
        &[Reason::SoftDirty],
    ),
    ("mremap elsewhere", |m| resize(m, 8, Place::Fixed(at(100))), &[Reason::Remap]),
    ("mremap to less", |m| resize(m, 6, Place::Anywhere), &[Reason::Unmap]),
    ("mremap to more", |m| resize(m, 9, Place::Anywhere), &[]),
    ("mremap elsewhere, to less", |m| resize(m, 6, Place::Fixed(at(100))), &[Reason::Unmap, Reason::Remap]),
    ("migrate", |m| assert_eq!(m.space.migrate(&mut m.idle, pages(2, 3)), Ok(3)), &[Reason::Migrate]),
    (
        "migrate of shared pages",
        |m| {
            let _child = m.space.fork(&mut m.idle).unwrap();
            assert_eq!(m.space.migrate(&mut m.idle, pages(2, 3)), Ok(0));
        },
        &[Reason::WriteProtect],
    ),
    (
        "merge",
        |m| {
            let ksm = Ksm::builder(&m.arena).build().unwrap();
            ksm.add(&m.space).unwrap();
            m.space.madvise(&mut m.idle, pages(0, 8), Advice::Mergeable).unwrap();
            m.put(3, 4);
            // The first pass learns checksums. The second merges: one page becomes a share, and another joins
            // it.
            assert_eq!([0; 2].map(|_| ksm.scan(&mut m.idle, u64::MAX)), [0, 2]);
        },
        &[Reason::WriteProtect, Reason::WriteProtect, Reason::ChangePte],
    ),
    (
        "NUMA balancing",
        |m| Balancer::new(&m.space, Settings::default()).scan(&mut m.idle, 1 << 20).unwrap(),
        &[Reason::Numa],
    ),
    ("pageout", |m| assert_eq!(m.page_out(2, 3), 3), &[Reason::Reclaim]),
    (
        "pageout of nothing, or of swapped pages",
        |m| {
            assert_eq!([m.page_out(100, 3), m.page_out(2, 3), m.page_out(2, 3)], [0, 3, 0]);
        },
        &[Reason::Reclaim],
    ),
    (
        "a page that comes back, and is written",
        |m| {
            m.page_out(2, 3);
            m.get(2);
            m.put(3, 30);
        },
        &[Reason::Reclaim],
    ),
    ("young", |m| assert!(!m.space.young(&mut m.idle, pages(0, 8), Young::ClearAndFlush)), &[]),
];

fn resize(machine: &mut Machine, count: u64, place: Place) {
    machine.space.mremap(&mut machine.idle, pages(0, 8), count * PAGE_SIZE, place).unwrap();
}

#[test]
fn every_change_tells_its_reason() {
    for (name, change, reasons) in ROWS {
        let mut machine = Machine::new();
        machine.map(0, 8);
        machine.number(0, 8);
        change(&mut machine);
        let told: Vec<_> = machine.recorder.take().iter().map(|seen| seen.why).collect();
        assert_eq!(told, *reasons, "{name}");
        assert!(machine.all_free(), "{name}");
    }
}

/// Reasons without a row belong to the engine.
#[test]
fn every_reason_of_a_primary_mmu_has_a_row() {
    let rows = |why| ROWS.iter().any(|(_, _, reasons)| reasons.contains(&why));
    let without: Vec<_> = Reason::ALL.into_iter().filter(|&why| !rows(why)).collect();
    assert_eq!(without, [Reason::Slot]);
}
