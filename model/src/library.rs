//! The scenarios: a set for every run, and a larger one.

use crate::bug::Bug;
use crate::scenario::{Action, Scenario};
use crate::thread::{Op, Pc, Range, Why};
use crate::world::{Bad, NONE, Span, Word};

const fn read(gfn: u8) -> Op {
    Op::Access { gfn, write: false, sleeps: false, large: false }
}

const fn write(gfn: u8) -> Op {
    Op::Access { gfn, write: true, sleeps: false, large: false }
}

/// A load whose fault asks a host that sleeps.
const fn slow(gfn: u8) -> Op {
    Op::Access { gfn, write: false, sleeps: true, large: false }
}

const fn large(gfn: u8, sleeps: bool) -> Op {
    Op::Access { gfn, write: false, sleeps, large: true }
}

const fn gfns(why: Why, start: u8, end: u8) -> Op {
    Op::Invalidate { range: Range::Gfns(Span::new(start, end)), why, rests: false }
}

const fn hvas(why: Why, start: u8, end: u8) -> Op {
    Op::Invalidate { range: Range::Hvas(Span::new(start, end)), why, rests: false }
}

const fn commit(start: u8, end: u8, hva: u8) -> Op {
    Op::Commit { gfns: Span::new(start, end), hva }
}

use Why::{ChangePte, Clear, Protect, Unmap};

type World = (&'static str, fn(Scenario) -> Scenario);

/// The worlds that two invalidators and a fault meet in.
fn worlds() -> Vec<World> {
    vec![
        ("nothing", |s| s),
        ("an empty table", Scenario::empty),
        ("small leaves", |s| s.small(true, true)),
        ("read-only leaves", |s| s.small(false, false)),
        ("a large leaf", |s| s.large(true)),
    ]
}

/// What every run checks.
pub fn every_run() -> Vec<Scenario> {
    let mut all = dirty();
    all.extend(shapes());
    all.extend(slots());
    all.extend(told());
    let edits = [
        ("clear 0..1", gfns(Clear, 0, 1)),
        ("clear 0..2", gfns(Clear, 0, 2)),
        ("unmap 0..2", gfns(Unmap, 0, 2)),
        ("protect 0..2", hvas(Protect, 0, 2)),
    ];
    for (world_name, world) in worlds() {
        for (a, (name_a, edit_a)) in edits.iter().enumerate() {
            for (name_b, edit_b) in &edits[a..] {
                let name = format!("{world_name}: {name_a} | {name_b} | slow fault on 0");
                all.push(world(Scenario::new(&name, &[&[*edit_a], &[*edit_b], &[slow(0)]])));
            }
        }
    }
    all
}

/// Large leaves, splits, recoveries, new roots.
fn shapes() -> Vec<Scenario> {
    let split = Op::Split { gfn: 0 };
    let recover = Op::Recover { gfn: 0 };
    let flip = Op::ZapAll;
    vec![
        Scenario::new(
            "large fault | clear 0..1 | large fault",
            &[&[large(0, true)], &[gfns(Clear, 0, 1)], &[large(1, false)]],
        ),
        Scenario::new(
            "large fault | clear 0..1, clear 1..2",
            &[&[large(0, true)], &[gfns(Clear, 0, 1), gfns(Clear, 1, 2)]],
        ),
        Scenario::new("large fault | clear 0..2 twice", &[&[large(1, true)], &[gfns(Clear, 0, 2); 2]]),
        Scenario::new("split | clear 0..1 | slow fault", &[&[split], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .large(true),
        Scenario::new(
            "split | clear 0..2 | unmap 0..2",
            &[&[split], &[gfns(Clear, 0, 2)], &[gfns(Unmap, 0, 2)]],
        )
        .large(true),
        Scenario::new("split | split | protect", &[&[split], &[split], &[gfns(Protect, 0, 2)]]).large(true),
        Scenario::new("split, recover | clear 0..1", &[&[split, recover], &[gfns(Clear, 0, 1)]]).large(true),
        Scenario::new("recover | clear 0..1 | slow fault", &[&[recover], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(true, true),
        Scenario::new("recover | clear 0..2 | slow fault", &[&[recover], &[gfns(Clear, 0, 2)], &[slow(1)]])
            .small(true, true),
        Scenario::new("recover | unmap 0..2 | fault", &[&[recover], &[gfns(Unmap, 0, 2)], &[read(0)]])
            .small(true, true),
        Scenario::new("recover | recover | clear 1..2", &[&[recover], &[recover], &[gfns(Clear, 1, 2)]])
            .small(true, true),
        Scenario::new("recover | protect | write", &[&[recover], &[gfns(Protect, 0, 2)], &[write(0)]])
            .small(false, true),
        Scenario::new("recover | upgrade | protect", &[&[recover], &[write(0)], &[gfns(Protect, 0, 1)]])
            .small(false, false),
        Scenario::new(
            "clear 0..1 | clear 1..2, recover | slow fault on 1",
            &[&[gfns(Clear, 0, 1)], &[gfns(Clear, 1, 2), recover], &[slow(1)]],
        )
        .small(true, true),
        Scenario::new(
            "recover | clear 0..2, recover | slow fault",
            &[&[recover], &[gfns(Clear, 0, 2), recover], &[slow(0)]],
        )
        .small(true, true),
        Scenario::new(
            "recover | fault, fault | clear 0..2",
            &[&[recover], &[slow(0), read(1)], &[gfns(Clear, 0, 2)]],
        )
        .table(0, [Word::Hole(0); 2]),
        Scenario::new("zap all | clear 0..1 | slow fault", &[&[flip], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(true, true),
        Scenario::new("zap all | unmap 0..2 | fault", &[&[flip], &[gfns(Unmap, 0, 2)], &[read(0)]])
            .small(true, true),
        Scenario::new("zap all | recover | clear 0..1", &[&[flip], &[recover], &[gfns(Clear, 0, 1)]])
            .small(true, true),
        Scenario::new("zap all | zap all | clear 0..1", &[&[flip], &[flip], &[gfns(Clear, 0, 1)]])
            .small(true, true),
        Scenario::new(
            "three levels: unmap 0..4 | clear 0..1 | slow fault",
            &[&[gfns(Unmap, 0, 4)], &[gfns(Clear, 0, 1)], &[slow(0)]],
        )
        .deep()
        .small(true, true),
        Scenario::new(
            "three levels: unmap 0..4 | recover | clear 0..1",
            &[&[gfns(Unmap, 0, 4)], &[recover], &[gfns(Clear, 0, 1)]],
        )
        .deep()
        .small(true, true),
        Scenario::new(
            "upgrade | clear, fault | protect",
            &[&[write(0)], &[gfns(Clear, 0, 1), read(0)], &[gfns(Protect, 0, 1)]],
        )
        .small(false, false),
        Scenario::new(
            "upgrade of a large leaf | protect 0..1 | clear 1..2",
            &[&[write(0)], &[gfns(Protect, 0, 1)], &[gfns(Clear, 1, 2)]],
        )
        .large(false),
    ]
}

/// Slots that change, and MMIO.
fn slots() -> Vec<Scenario> {
    vec![
        Scenario::new(
            "slot 0..2 to other pages | clear of the old ones | slow fault",
            &[&[commit(0, 2, 2)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .small(true, true),
        Scenario::new(
            "slot to other pages | clear of the old | clear of the new, fault | slow fault",
            &[&[commit(0, 2, 2)], &[hvas(Clear, 0, 1)], &[hvas(Clear, 2, 3), read(0)], &[slow(0)]],
        )
        .table(0, [Word::Hole(0); 2])
        .from(1, Pc::EditEntry),
        Scenario::new(
            "slot deleted, made again | faults",
            &[&[commit(0, 2, NONE), commit(0, 2, 0)], &[read(0), read(0)], &[slow(0)]],
        )
        .small(true, true),
        Scenario::new(
            "slot made | faults on MMIO | clear",
            &[&[commit(0, 1, 0)], &[read(0), read(0)], &[gfns(Clear, 0, 1)]],
        )
        .empty()
        .no_slot(0..1),
        Scenario::new(
            "slot made, deleted | faults on MMIO",
            &[&[commit(0, 1, 0), commit(0, 1, NONE)], &[read(0), read(0), read(0)]],
        )
        .empty()
        .no_slot(0..1),
        Scenario::new(
            "slot to other pages, clear of the new, fault | clear of the old that rests | slow fault",
            &[
                &[commit(0, 2, 2), hvas(Clear, 2, 4), read(1)],
                &[Op::Invalidate { range: Range::Hvas(Span::new(0, 2)), why: Clear, rests: true }],
                &[slow(1)],
            ],
        )
        .table(0, [Word::Hole(0); 2]),
    ]
}

/// Pages that are replaced one by one, in an announced range.
fn told() -> Vec<Scenario> {
    let (one, two) = (hvas(ChangePte, 0, 1), hvas(ChangePte, 0, 2));
    vec![
        Scenario::new("change 0 | slow fault on 0 | fault on 1", &[&[one], &[slow(0)], &[read(1)]])
            .small(false, false),
        Scenario::new("change 0..2 | slow fault on 0, in an empty table", &[&[two], &[slow(0)], &[read(1)]])
            .empty()
            .read_only(),
        Scenario::new("change 0 | write to 0 | fault on 0", &[&[one], &[write(0)], &[read(0)]])
            .small(false, false),
        Scenario::new("change 0..2 | change 0 | slow fault on 0", &[&[two], &[one], &[slow(0)]])
            .small(false, false),
        Scenario::new("change 0 | clear 0..1 | slow fault on 0", &[&[one], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(false, false),
        Scenario::new("change 0 | unmap 0..2 | write to 0", &[&[one], &[gfns(Unmap, 0, 2)], &[write(0)]])
            .small(false, false),
        Scenario::new("change 0 | protect 0..2 | write to 0", &[&[one], &[gfns(Protect, 0, 2)], &[write(0)]])
            .small(false, false),
        Scenario::new("change 0 of a large leaf | write to 1", &[&[one], &[write(1)], &[slow(0)]])
            .large(false),
    ]
}

/// Guests store, Dirty is watched.
fn dirty() -> Vec<Scenario> {
    let recover = Op::Recover { gfn: 0 };
    vec![
        Scenario::new("dirty: unmap 0..2 | write", &[&[gfns(Unmap, 0, 2)], &[write(0)]])
            .small(true, true)
            .stores(),
        Scenario::new("dirty: split | clear 0..1", &[&[Op::Split { gfn: 0 }], &[gfns(Clear, 0, 1)]])
            .large(true)
            .stores(),
        Scenario::new("dirty: recover | clear 0..2", &[&[recover], &[gfns(Clear, 0, 2)]])
            .small(true, true)
            .stores(),
        Scenario::new(
            "dirty: recover | permission back | clear 0..2",
            &[&[recover], &[write(0)], &[gfns(Clear, 0, 2)]],
        )
        .small(false, true)
        .stores(),
        Scenario::new("dirty: upgrade of a dirty leaf | clear 0..1", &[&[write(0)], &[gfns(Clear, 0, 1)]])
            .small(false, false)
            .dirty()
            .stores(),
        Scenario::new("dirty: age | clear 0..1", &[&[Op::Age { gfn: 0 }], &[gfns(Clear, 0, 1)]])
            .small(true, true)
            .stores(),
        Scenario::new(
            "dirty: age | split, clear 0..2",
            &[&[Op::Age { gfn: 0 }], &[Op::Split { gfn: 0 }, gfns(Clear, 0, 2)]],
        )
        .large(true)
        .stores(),
    ]
}

/// Those of every run that can be looked at from their ends as well.
pub fn small() -> Vec<Scenario> {
    let mut all = dirty();
    all.extend(shapes());
    all
}

/// The first scenario of every run where `bug` is found: its name, how many states were seen until then, and what was
/// found.
pub fn find(bug: Bug) -> Option<(String, usize, (Bad, Vec<Action>))> {
    let mut states = 0;
    every_run().into_iter().find_map(|scenario| {
        let name = scenario.name.clone();
        let verdict = scenario.with(bug).check();
        states += verdict.states;
        verdict.found.map(|found| (name, states, found))
    })
}

/// What takes minutes: three edits at once, each beside each, in every world; two vCPUs; three levels; four threads.
pub fn at_leisure() -> Vec<Scenario> {
    let edits = [
        ("clear 0..1", gfns(Clear, 0, 1)),
        ("clear 1..2", hvas(Clear, 1, 2)),
        ("clear 0..2", gfns(Clear, 0, 2)),
        ("unmap 0..2", gfns(Unmap, 0, 2)),
        ("protect 0..2", hvas(Protect, 0, 2)),
        ("recover", Op::Recover { gfn: 0 }),
        ("split", Op::Split { gfn: 0 }),
        ("zap all", Op::ZapAll),
    ];
    let faults = [
        ("slow load", slow(0)),
        ("large fault", large(1, true)),
        ("store", write(0)),
        ("another recovery", Op::Recover { gfn: 0 }),
    ];
    let mut all = Vec::new();
    for (world_name, world) in worlds() {
        for (a, (name_a, edit_a)) in edits.iter().enumerate() {
            for (name_b, edit_b) in &edits[a..] {
                for (name_c, fault) in &faults {
                    let name = format!("{world_name}: {name_a} | {name_b} | {name_c}");
                    let programs: [&[Op]; 3] = [&[*edit_a], &[*edit_b], &[*fault]];
                    all.push(world(Scenario::new(&name, &programs)));
                    let deep = Scenario::new(&format!("three levels: {name}"), &programs).deep();
                    all.push(world(deep));
                    let two = Scenario::new(&format!("two vCPUs: {name}"), &programs).two_vcpus();
                    all.push(world(two));
                }
            }
        }
    }
    for scenario in every_run() {
        let name = format!("two vCPUs: {}", scenario.name);
        all.push(Scenario { name, ..scenario.two_vcpus() });
    }
    let four: [(&str, [&[Op]; 4]); 3] = [
        (
            "unmap | clear 0..1 | clear 0..2 | slow load",
            [&[gfns(Unmap, 0, 2)], &[gfns(Clear, 0, 1)], &[gfns(Clear, 0, 2)], &[slow(0)]],
        ),
        (
            "recover | clear 0..1 | zap all | slow load",
            [&[Op::Recover { gfn: 0 }], &[gfns(Clear, 0, 1)], &[Op::ZapAll], &[slow(0)]],
        ),
        (
            "recover | clear 0..1 | unmap | slow load",
            [&[Op::Recover { gfn: 0 }], &[gfns(Clear, 0, 1)], &[gfns(Unmap, 0, 2)], &[slow(0)]],
        ),
    ];
    for (name, programs) in four {
        all.push(Scenario::new(&format!("four threads: {name}"), &programs).small(true, true));
    }
    all
}
