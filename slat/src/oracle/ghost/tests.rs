//! Calls that overlap, as steps of the specification: sequences that are correct.

use super::World;
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
