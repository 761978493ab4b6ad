//! Answers of a host and arguments of a caller are checked once, with one error, before anything changes.

use super::common::{By, page, ram, vm, write};
use slat::table::formats::{Arm64L40, Ept4, Npt4, Sv39x4};
use slat::*;

#[test]
fn a_page_has_a_level_that_exists_or_cannot_be_said() {
    let there: Vec<u8> = (0..=u8::MAX).filter(|&number| Level::new(number).is_some()).collect();
    assert_eq!(there, [1, 2, 3, 4, 5, 6]);
    assert!(there.iter().all(|&number| Level::new(number).unwrap().number() == number));
    assert!(std::panic::catch_unwind(|| Level::K4.down()).is_err(), "in release builds, too");
    assert!(std::panic::catch_unwind(|| Level::new(6).unwrap().up()).is_err());
}

/// If the host says `level`, the largest leaf that slot and format allow is mapped, to the right frame.
fn mapped_as<F: Format>(level: Level) {
    let mut idle = Idle::take().unwrap();
    let lookup = move |hva: Hva| Some(HostPage { level, ..page(hva) });
    let vm = Vm::<F, _>::builder(By::new(lookup)).build().unwrap();
    let (large, pages) = (1 << 31, Level::G1.pages());
    vm.memory().commit(&mut idle, |tx| tx.create(ram(0, pages, pages, large))).unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(ram(1, 0, 8, 1 << 40))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for (gfn, most) in [(pages + 700, F::MAX_LEAF), (3, Level::K4)] {
        let size = level.min(most);
        assert_eq!(
            vcpu.fault(&mut idle, write(gfn)),
            Ok(Next::Resume(Resume::Mapped(size))),
            "{} {level:?}",
            F::NAME
        );
        let found = vm.memory().translate(&mut idle, Gfn(gfn)).unwrap();
        let hva = if gfn == 3 { (1 << 40) + (3 << 12) } else { large + (700 << 12) };
        assert_eq!(found.leaf.pfn, Pfn((hva >> 12) & !(size.pages() - 1)), "{} {level:?}", F::NAME);
    }
}

#[test]
fn a_page_of_any_level_is_mapped_by_leaves_that_exist() {
    for level in (1..).map_while(Level::new) {
        mapped_as::<Npt4>(level);
        mapped_as::<Ept4>(level);
        mapped_as::<Arm64L40>(level);
        mapped_as::<Sv39x4>(level);
    }
}

#[test]
fn leaves_are_split_down_to_any_level_that_exists() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(By::new(|hva| Some(HostPage { level: Level::M2, ..page(hva) })))
        .build()
        .unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(ram(0, 0, 512, 1 << 31))).unwrap();
    assert_eq!(
        vm.vcpu(VcpuId(0)).unwrap().fault(&mut idle, write(3)),
        Ok(Next::Resume(Resume::Mapped(Level::M2)))
    );
    for (number, split) in [(6, 0), (5, 0), (4, 0), (3, 0), (2, 0), (1, 1)] {
        let to = Level::new(number).unwrap();
        assert_eq!(vm.memory().split(&mut idle, Span::new(Gfn(0), Gfn(512)), to), Ok(split), "{to:?}");
    }
}

/// Frames 0 to 7 read-only in frames 0x40000 to 0x40007; then a change of `hvas` to `to` is told. Returns what is
/// mapped now.
fn told(hvas: Span<Hva>, to: HostPage) -> [Option<u64>; 8] {
    vm!(Npt4, |hva| Some(HostPage { writable: false, ..page(hva) }), idle, vm, vcpu);
    for gfn in 0..8 {
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
    }
    vm.around(
        &mut idle,
        Event::new(Span::sized(Hva(0x4000_0000), 2 << 20), Reason::ChangePte),
        &mut |idle, told| {
            told.changed(idle, hvas, Some(to));
        },
    )
    .unwrap();
    std::array::from_fn(|gfn| vm.memory().translate(&mut idle, Gfn(gfn as u64)).map(|found| found.leaf.pfn.0))
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn each_small_leaf_of_a_large_page_that_is_told_maps_its_own_frame() {
    let page = |pfn, level| HostPage { pfn: Pfn(pfn), level, writable: false, ..HostPage::PLAIN };
    let frames = |from: u64| std::array::from_fn(|gfn| Some(from + gfn as u64));
    let all = Span::sized(Hva(0x4000_0000), 2 << 20);
    assert_eq!(told(all, page(0x8_0000, Level::M2)), frames(0x8_0000));
    assert_eq!(told(all, page(0x8_0000, Level::G1)), frames(0x8_0000), "a page larger than what is told");
    // From the third page on: `to` names that page's frame.
    let some = Span::new(Hva(0x4000_2000), Hva(0x4000_6000));
    let mut expect = frames(0x4_0000);
    (2..6).for_each(|gfn| expect[gfn] = Some(0x8_0000 + gfn as u64));
    assert_eq!(told(some, page(0x8_0002, Level::M2)), expect);
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn frames_beyond_the_told_page_are_zapped() {
    let some = Span::new(Hva(0x4000_2000), Hva(0x4000_6000));
    let mut expect: [_; 8] = std::array::from_fn(|gfn| Some(0x4_0000 + gfn as u64));
    (3..6).for_each(|gfn| expect[gfn] = None);
    expect[2] = Some(0x8_0000);
    assert_eq!(told(some, HostPage { pfn: Pfn(0x8_0000), writable: false, ..HostPage::PLAIN }), expect);
}

/// Every call that takes a span of frames, with an empty one.
fn nothing_happens<F: Format>(gfns: Span<Gfn>) {
    vm!(F, |hva| Some(page(hva)), idle, vm, vcpu);
    let before = (vm.memory().translate(&mut idle, Gfn(5)), vm.stats().leaves);
    assert!(before.0.is_some());
    let mut debts = 0;
    for why in Reason::ALL {
        let change = vm.memory().invalidate(gfns, why);
        debts += change.apply(&mut idle).pages();
    }
    debts += vm.memory().write_protect(&mut idle, gfns).pages();
    vm.memory().shared(&mut idle).write_protect(gfns).settle();
    vm.memory().lockless(&mut idle).for_each(gfns, |found| panic!("{found:?}"));
    vm.memory().lockless(&mut idle).age(gfns, |seen| panic!("{seen:?}"));
    assert!(!vm.memory().lockless(&mut idle).is_young(gfns));
    assert_eq!(
        (vm.memory().recover(&mut idle, gfns), vm.memory().split(&mut idle, gfns, Level::K4)),
        (0, Ok(0))
    );
    assert_eq!(vcpu.prefault(&mut idle, gfns, Prefault::OLD), Ok(0));
    vm.memory().mark_dirty(gfns);
    assert_eq!(vm.memory().snapshot(&mut idle).range(gfns).count(), 0);
    assert_eq!(
        (vm.memory().translate(&mut idle, Gfn(5)), vm.stats().leaves, debts),
        (before.0, before.1, 0),
        "{gfns:?}"
    );
}

#[test]
fn inverted_spans_and_frames_beyond_the_format_are_empty() {
    fn all<F: Format>() {
        let end = 1 << F::FRAME_BITS;
        let beyond = [(end, end + 1), (end + 5, u64::MAX), (2 * end, 3 * end)];
        for (start, end) in [(7, 3), (5, 5), (6, 0), (u64::MAX, 0)].into_iter().chain(beyond) {
            nothing_happens::<F>(Span::new(Gfn(start), Gfn(end)));
        }
    }
    all::<Npt4>();
    all::<Arm64L40>();
    all::<Sv39x4>();
}

#[test]
fn an_empty_span_inside_a_large_leaf_leaves_the_leaf_alone() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(By::new(|hva| Some(HostPage { level: Level::M2, ..page(hva) })))
        .build()
        .unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(ram(0, 0, 512, 1 << 30))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(vcpu.fault(&mut idle, write(7)), Ok(Next::Resume(Resume::Mapped(Level::M2))));
    for (start, end) in [(5, 5), (9, 3)] {
        drop(
            vm.memory().invalidate(Span::new(Gfn(start), Gfn(end)), Reason::Unmap).apply(&mut idle).settle(),
        );
        assert_eq!(vm.memory().translate(&mut idle, Gfn(7)).map(|found| found.level), Some(Level::M2));
    }
}

#[test]
fn inverted_host_spans_are_empty() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, _vcpu);
    let before = vm.memory().translate(&mut idle, Gfn(5));
    for (start, end) in [(0x4000_7000, 0x4000_1000), (u64::MAX, 0), (0x4000_5000, 0x4000_5000)] {
        let hvas = Span::new(Hva(start), Hva(end));
        for why in Reason::ALL {
            let mut change = vm.invalidate(hvas, why);
            change.changed(&mut idle, hvas, None).settle();
            change.changed(&mut idle, hvas, Some(page(hvas.start))).settle();
        }
        assert!(!vm.young(&mut idle, hvas, Young::ClearAndFlush));
        vm.forget(&mut idle, hvas);
    }
    assert_eq!(vm.memory().translate(&mut idle, Gfn(5)), before);
}
