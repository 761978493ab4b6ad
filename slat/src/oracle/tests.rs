//! Calls that overlap, as steps of the specification: sequences that are correct.

use super::state::World;
use crate::oracle::violation::Rule;
use crate::*;

const ALL: Span<Hva> = Span { start: Hva(0), end: Hva(2 << 20) };
const CALL: (&str, bool) = ("Host::resolve", true);

fn hvas(page: u64) -> Span<Hva> {
    Span::sized(Hva(page * PAGE_SIZE), PAGE_SIZE)
}

/// The host answers a load at the address, for a large page of frames from 0x8000 on. A change elsewhere is cancelled
/// `meanwhile`.
fn answers(world: &mut World, page: u64, meanwhile: bool) {
    let ask = world.asks(Hva(page * PAGE_SIZE));
    if meanwhile {
        let other = world.begins(hvas(9000), Reason::Unmap);
        world.ends(other);
    }
    let large = HostPage { pfn: Pfn(0x8000 + page), level: Level::M2, ..HostPage::PLAIN };
    world.answered(ask, CALL, (Hva(page * PAGE_SIZE), Access::Read), Ok(large));
}

/// A whole change.
fn changes(world: &mut World, hvas: Span<Hva>, why: Reason) {
    let change = world.begins(hvas, why);
    world.applies(change);
    world.settles(change);
    world.ends(change);
}

fn rules(world: &mut World) -> Vec<Rule> {
    world.take_found().into_iter().map(|found| found.rule).collect()
}

fn uses(world: &mut World, pfn: u64) -> Vec<Rule> {
    world.uses((VcpuId(0), false), Gfn(0), (Pfn(pfn), Access::Read));
    rules(world)
}

/// The engine maps all of a large page, also where the oracle remembers only a part of it.
#[test]
fn all_of_a_large_page_is_back_after_an_answer_beside_another_change() {
    let mut world = World::new(false, false, Pfn(1 << 40));
    answers(&mut world, 5, false);
    changes(&mut world, ALL, Reason::Migrate);
    assert_eq!(uses(&mut world, 0x8007), [Rule::StaleUse], "negative control");
    answers(&mut world, 5, true);
    assert_eq!([5, 7].map(|page| uses(&mut world, 0x8000 + page)), [[], []]);
}

/// While change 1 is open, another thread replaces the page by frame 0x99, and tells it. Change 1 then takes this frame.
#[test]
fn a_page_that_is_told_inside_another_change_may_be_freed_there() {
    let mut world = World::new(false, false, Pfn(1 << 40));
    for is_open in [false, true] {
        let taking = is_open.then(|| world.begins(hvas(5), Reason::Migrate));
        if let Some(change) = taking {
            world.applies(change);
            world.settles(change);
        }
        let telling = world.begins(hvas(5), Reason::ChangePte);
        world.tells(telling, hvas(5), Some(HostPage { pfn: Pfn(0x99), ..HostPage::PLAIN }));
        world.ends(telling);
        world.frees(Pfn(0x99));
        let expected: &[_] = if is_open { &[] } else { &[Rule::FreedInUse] };
        assert_eq!(rules(&mut world), expected);
        if let Some(change) = taking {
            world.ends(change);
        }
    }
}

/// The host answers a load at the address, for a small page.
fn gives(world: &mut World, page: u64, pfn: u64) -> Vec<Rule> {
    let ask = world.asks(Hva(page * PAGE_SIZE));
    let small = HostPage { pfn: Pfn(pfn), ..HostPage::PLAIN };
    world.answered(ask, CALL, (Hva(page * PAGE_SIZE), Access::Read), Ok(small));
    rules(world)
}

/// A change takes nothing from the host: it answers the same page again. Much later it moves the page without a change.
#[test]
fn a_harmless_change_of_long_ago_is_no_reason_of_a_move() {
    for (answers, expected) in [(10, Rule::EndedTooEarly), (2000, Rule::Moved)] {
        let mut world = World::new(false, false, Pfn(1 << 40));
        assert_eq!(gives(&mut world, 5, 0x99), []);
        changes(&mut world, hvas(5), Reason::Migrate);
        assert_eq!(gives(&mut world, 5, 0x99), []);
        (0..answers).for_each(|_| assert_eq!(gives(&mut world, 6, 0x9a), []));
        assert_eq!(gives(&mut world, 5, 0x9b), [expected]);
    }
}

/// A host whose frame is the address.
struct Linear;

impl Host for Linear {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

struct Silent;

impl Translations for Silent {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

/// A kick that comes after the answer to its flush is found to wait for nothing by a vCPU that polls.
#[cfg(feature = "std")]
#[test]
fn a_kick_for_a_flush_that_was_answered_is_not_late() {
    use crate::oracle::Checks;
    use core::time::Duration;
    use std::sync::{Arc, Mutex};

    for polls in [true, false] {
        let found = Arc::new(Mutex::new(Vec::new()));
        let report = found.clone();
        let checks = Checks::default().patience(Duration::ZERO);
        let checks = checks.report(move |violation| report.lock().unwrap().push(violation.rule));
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<crate::table::formats::Npt4, _>::builder(Linear).checked_with(checks).build().unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let guest = vcpu.enter(&mut idle, &mut Silent).poll();
        vm.host.kick(VcpuId(0));
        std::thread::sleep(Duration::from_millis(1));
        assert!(!polls || !guest.kicked());
        drop(guest);
        let expected: &[_] = if polls { &[] } else { &[Rule::KickLate] };
        assert_eq!(*found.lock().unwrap(), expected);
    }
}
